// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lazy unmap flush (LUF): reclaim and migration unmap folios without a TLB flush. One
 * flush serves many folios, before their frames are reused.
 *
 * Folios wait on the *deferred-free list* of their node (struct luf_lot; "parked" in symbols).
 * Until the flush a CPU may read a folio through a stale TLB entry. The read is legal: the folio
 * has the content that a fault would bring back, or that the migrated folio has.
 *
 * The idea is Byungchul Park's ("LUF (Lazy Unmap Flush)", v10, May 2024; RFC v12, February 2025).
 * His version marks pages in the buddy allocator; here they wait on lists outside of it.
 *
 * Terms:
 *  - The *stale-TLB window* of a PTE runs from its clearing until no CPU may use an entry that
 *    it cached: each has flushed, or has to before it uses a user entry (lazy TLB mode).
 *  - A *generation* ("label" in symbols) is luf_clock + 1, read after the PTE was cleared,
 *    tlb_gen raised and the CPUs recorded in luf_owed[].
 *  - A CPU is *pending* for a generation until luf_reached() says that it uses no stale entry.
 *
 * The rules; Documentation/mm/lazy_unmap_flush.rst has the full argument and the promises of
 * ARCH_SUPPORTS_LUF:
 *
 * R1, frames: no frame reaches the page allocator inside its stale-TLB window. luf_lot_take()
 * releases generations without a pending CPU only. The full barriers order both sides:
 *
 *	initiator			flush of a generation
 *	  clear the PTE, tlb_gen++	  luf_clock is there, or moves there
 *	  luf_owed[CPUs] = clock + 1	  full barrier
 *	  full barrier			  flush each CPU that is pending:
 *	  label = clock + 1, which	    luf_reached() < generation
 *	    may be greater by now	  luf_completed = generation
 *
 * R2, writes: only read-only PTEs are deferred, of files only clean ones. __luf_defer() also
 * refuses if an initiator has yet to flush a writable entry:
 *
 *	mprotect, ...			fork			unmap
 *	  mm_tlb_flush_pending++	  mmap_write_lock	  clear the PTE: it is read-only
 *	  write protect the PTE		  the same		  mm_tlb_flush_pending, or the
 *	  flush, then --		  flush, unlock		    lock held? then as stock
 *
 * R3, reads: (mm, address) gets a new meaning only after a flush. (a) The page table changes
 * under the lock under which mm->luf_label was raised, and luf_flush_pending() flushes. (b) The
 * file changes only by writers with write access, and get_write_access() flushes:
 *
 *	unmap				get_write_access(), luf_exclude()
 *	  raise the file's label	  i_writecount++, or AS_LUF_NEVER
 *	  full barrier			  full barrier
 *	  luf_content_fixed()?		  the file's label > luf_done()? then flush
 *	    else as stock
 *
 * R4, progress: the list counts as free memory, and is freed first where that is worth an IPI:
 *
 *	free pages	kswapd				allocation that may wait
 *	  above low	frees what needs no IPI		takes free pages
 *	  above min	all: (low-min)/4, 128..4096 up	takes free pages
 *	  below min	the same			frees all, before it reclaims
 *
 * R5, nothing hidden: a CPU is left out by evidence, never by time. It compared tlb_gen since, or
 * has to before it uses a user entry (lazy, init_mm). luf_reached() looks.
 *
 *	CPU, at a switch or a flush	unmap			flush
 *	  look = luf_clock		  tlb_gen++
 *	  compare tlb_gen, catch up	  label > look or seen
 *	  luf_seen = look					  luf_seen >= label?
 *
 * This file records pending CPUs and hooks unmapping and content changes; mm/luf_lot.c has
 * the lists. luf_mutex is held across the flush, never across the freeing.
 */
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/export.h>
#include <linux/fs.h>
#include <linux/fs_context.h>
#include <linux/migrate.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
#include <linux/swap.h>
#include <asm/luf.h>
#include <asm/tlbflush.h>
#include "internal.h"
#include "luf.h"
#include "luf_debug.h"
#include "luf_lot.h"

#include <trace/events/luf.h>

/* Off until quell_apply_param(), when luf_init() has allocated the lists. */
DEFINE_STATIC_KEY_FALSE(luf_key);

DEFINE_PER_CPU_SHARED_ALIGNED(u64, luf_seen);
/* Rises as pages are deferred, at flushes, and by the timer. */
atomic64_t luf_clock __cacheline_aligned_in_smp = ATOMIC64_INIT(0);

/* The newest generation that each CPU is pending for, and that luf_owe() returned; only rise. */
static atomic64_t luf_owed[NR_CPUS];
static atomic64_t luf_newest;

/* Two drains do not flush the same CPUs. Protects the CPUs being flushed, and luf_completed. */
static DEFINE_MUTEX(luf_mutex);
static struct arch_tlbflush_unmap_batch luf_flushing;
/* No CPU is pending for a generation up to this one. */
static u64 luf_completed;

/* --- Pending CPUs -------------------------------------------------------- */

/* Raise @at to @label and never lower it. Returns whether it rose. */
static bool luf_raise(atomic64_t *at, s64 label)
{
	s64 old = atomic64_read(at);

	while (old < label)
		if (atomic64_try_cmpxchg(at, &old, label))
			return true;
	return false;
}

/* Not older than any generation of a PTE that this task, or a folio's last owner, unmapped. */
u64 luf_now(void)
{
	return atomic64_read(&luf_newest);
}

/* No CPU is pending for a generation up to the one that this returns. */
u64 luf_done(void)
{
	/* Pairs with luf_flush(): callers free after the flush. */
	return smp_load_acquire(&luf_completed);
}

/*
 * Make the CPUs of @mm pending. Called under the page table lock, after a PTE of @mm was cleared
 * and tlb_gen raised. Returns the generation, which may be newer than luf_owed of these CPUs. A
 * CPU has caught up once it has seen its luf_owed, and may be pending beyond luf_done().
 */
static u64 luf_owe(struct mm_struct *mm)
{
	u64 label = atomic64_read(&luf_clock) + 1;
	unsigned int cpu;

	for_each_cpu(cpu, mm_cpumask(mm))
		if (arch_luf_has_loaded(cpu, mm) && !quell_mutant(LUF_NO_OWING))
			luf_raise(&luf_owed[cpu], label);
	/* luf_owed before the clock: pairs with luf_flush(). */
	smp_mb();
	label = atomic64_read(&luf_clock) + 1;
	/* The initiator that raises it arms the timer, for older generations as well. */
	if (luf_raise(&luf_newest, label))
		luf_keep_closing();
	return label;
}

/* Return the newest generation, up to @label, of which @cpu uses no stale entry: see R5. */
static u64 luf_reached(unsigned int cpu, u64 owed, u64 label)
{
	u64 seen = arch_luf_seen(cpu);

	return seen < min(owed, label) && arch_luf_may_use(cpu) ? seen : label;
}

/*
 * Return the newest generation that needs no IPI. If this CPU alone is pending it flushes itself,
 * unless its task has a batch under way.
 */
u64 luf_aged(void)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	u64 label = atomic64_read(&luf_clock), done = luf_done();
	unsigned int cpu, here;

	if (quell_mutant(LUF_AGED_UNCHECKED))
		return label;
	/* The clock before the CPUs: pairs with luf_owe(). */
	smp_mb();
	here = get_cpu();
	for_each_online_cpu(cpu)
		if (cpu != here && label > done)
			label = luf_reached(cpu, atomic64_read(&luf_owed[cpu]), label);
	if (label > done && luf_reached(here, atomic64_read(&luf_owed[here]), label) < label) {
		if (tlb_ubc->flush_required)
			label = done;
		else if (!quell_mutant(LUF_AGED_NOT_LOCAL))
			arch_luf_flush_here(&tlb_ubc->arch, here);
	}
	put_cpu();
	return max(label, done);
}

/*
 * Flush the CPUs that are pending for a generation up to @need. May sleep, and waits for them.
 * Returns whether there were any.
 */
bool luf_flush(u64 need)
{
	unsigned int cpu;
	bool behind;

	might_sleep();
	if (luf_done() >= need)
		return false;
	guard(mutex)(&luf_mutex);
	if (luf_completed >= need)
		return false;
	/* Later generations are newer than @need. */
	luf_raise(&luf_clock, need);
	/* The clock before the CPUs: pairs with luf_owe(). */
	smp_mb();
	for_each_online_cpu(cpu)
		if (luf_reached(cpu, atomic64_read(&luf_owed[cpu]), need) < need)
			arch_luf_add_cpu(&luf_flushing, cpu);
	behind = !arch_luf_empty(&luf_flushing);
	if (quell_mutant(LUF_DONE_EARLY)) {
		/* Before the flush. */
		smp_store_release(&luf_completed, need);
		mdelay(1);
	}
	if (behind && !quell_mutant(LUF_SKIP_FLUSH))
		arch_tlbbatch_flush(&luf_flushing);
	/* Pairs with luf_done(): after the flush. */
	smp_store_release(&luf_completed, need);
	if (behind) {
		count_vm_event(LUF_FLUSH);
		trace_luf_flush(need);
	}
	return behind;
}

/* --- Hooks of unmapping ----------------------------------------------------- */

static_assert(AS_FOLIO_ORDER_MAX + AS_FOLIO_ORDER_BITS <= AS_LUF_NEVER);
static_assert(SB_I_LUF > (typeof_member(struct fs_context, s_iflags))~0);

/* Is the content of the file fixed until a writer gets write access? R3 (b). */
static __always_inline bool luf_content_fixed(struct address_space *mapping)
{
	struct inode *inode = mapping->host;

	return (!inode_is_open_for_write(inode) || quell_mutant(LUF_IGNORE_WRITER)) &&
	       !(READ_ONCE(inode->i_flags) & (S_DAX | S_NOQUOTA)) &&
	       !test_bit(AS_LUF_NEVER, &mapping->flags) &&
	       !READ_ONCE(mapping->wb_err);
}

static bool luf_may_defer_file(struct folio *folio)
{
	struct address_space *mapping = folio->mapping;

	return mapping && mapping->host && !folio_test_swapbacked(folio) &&
	       !folio_test_dirty(folio) && !folio_test_writeback(folio) &&
	       folio_test_uptodate(folio) && S_ISREG(mapping->host->i_mode) &&
	       (mapping->host->i_sb->s_iflags & SB_I_LUF) && luf_content_fixed(mapping);
}

/*
 * What became of luf_folio, whose flush was deferred? Reclaim is about to free it:
 * luf_free_folios() defers that. It stays: the list holds it, or the flush stays due (LUF_KEPT).
 */
static void luf_end_unmap(void)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;

	if (!(tlb_ubc->luf_state & LUF_OWED))
		return;
	tlb_ubc->luf_state &= ~LUF_OWED;
	if (!folio_ref_count(tlb_ubc->luf_folio)) {
		tlb_ubc->luf_folio->private = (void *)LUF_PARKING;
		tlb_ubc->luf_state |= LUF_PARKING;
	} else if (!luf_hold(tlb_ubc->luf_folio)) {
		tlb_ubc->luf_state |= LUF_KEPT;
	}
}

static void luf_begin(struct folio *folio)
{
	luf_end_unmap();
	current->tlb_ubc.luf_state |= LUF_UNMAPPING;
	current->tlb_ubc.luf_folio = folio;
}

/* Reclaim is about to unmap @folio; defer its flushes if possible. May sleep. */
void luf_begin_unmap(struct folio *folio)
{
	/* Node reclaim needs free pages at once, or the allocation goes to another node. */
	if (luf_may_defer_file(folio) && (!node_reclaim_enabled() || current_is_kswapd()))
		luf_begin(folio);
}

/*
 * The same for migrate_pages_batch(): its source folios end in luf_put_migrated(), which flushes
 * if somebody wants the frame, or are mapped again where they were.
 */
void luf_begin_migrate(struct folio *folio)
{
	if (!folio_test_hugetlb(folio) && !folio_contain_hwpoisoned_page(folio) &&
	    (folio_test_anon(folio) || luf_may_defer_file(folio)))
		luf_begin(folio);
}

/* Is mmap_lock held for writing? */
static bool luf_write_locked(struct mm_struct *mm)
{
#ifdef CONFIG_PREEMPT_RT
	return rwsem_is_locked(&mm->mmap_lock);
#else
	return atomic_long_read(&mm->mmap_lock.count) & RWSEM_WRITER_LOCKED;
#endif
}

/* See luf_defer(): luf_folio is being unmapped, and its flush may be deferred. */
bool __luf_defer(struct mm_struct *mm, pte_t pteval, unsigned long start,
		 unsigned long end)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	struct folio *folio = tlb_ubc->luf_folio;
	struct address_space *mapping = folio->mapping;
	bool anon = folio_test_anon(folio);
	u64 label, stamp;

	if ((pte_write(pteval) || (!anon && pte_dirty(pteval))) &&
	    !quell_mutant(LUF_DEFER_WRITABLE))
		return false;
	/* An initiator, fork with the lock, has write protected and not flushed yet: R2. */
	if (anon && (mm_tlb_flush_pending(mm) || luf_write_locked(mm)) &&
	    !quell_mutant(LUF_MIGRATE_PROTECTED))
		return false;

	if (!quell_mutant(LUF_NO_TLB_GEN))
		arch_luf_unmapped(mm);
	stamp = luf_debug_stamp();
	label = luf_owe(mm);
	if (!anon) {
		if (quell_mutant(LUF_CHECK_FIRST))
			mdelay(1);
		if (!quell_mutant(LUF_NO_FILE_LABEL))
			luf_raise(&mapping->host->i_luf_label, label);
		/* Pairs with luf_write_access(): R3 (b). */
		smp_mb();
		if (!quell_mutant(LUF_CHECK_FIRST) && !luf_content_fixed(mapping))
			return false;
	}
	/* For luf_flush_pending(): R3 (a). */
	if (!quell_mutant(LUF_NO_MM_LABEL))
		luf_raise(&mm->luf_label, label);
	luf_debug_open(folio, mm, start, pteval, (end - start) >> PAGE_SHIFT, stamp);

	tlb_ubc->luf_state |= LUF_OWED;
	return true;
}

/* See luf_end_batch(). */
void __luf_end_batch(void)
{
	luf_end_unmap();
	if (current->tlb_ubc.luf_state & LUF_KEPT)
		luf_flush(luf_now());
	current->tlb_ubc.luf_state &= ~LUF_KEPT;
}

/* --- Hooks of changes of the content at an address -------------------------- */

/*
 * The file may be written from now on: i_writecount is raised, or AS_LUF_NEVER set. Returns when no
 * CPU can read old content through a stale entry. May sleep. Exported for get_write_access().
 */
void luf_write_access(struct inode *inode)
{
	s64 label;

	might_sleep();
	/* Pairs with __luf_defer(): R3 (b). */
	smp_mb__after_atomic();
	label = atomic64_read(&inode->i_mapping->host->i_luf_label);
	if (likely(!label) || luf_done() >= label || quell_mutant(LUF_NO_WRITE_ACCESS))
		return;
	count_vm_event(LUF_WRITE);
	luf_flush(label);
}
EXPORT_SYMBOL(luf_write_access);

/* The same, if the content changes without write access. Lasts until the inode is evicted. */
void luf_exclude(struct inode *inode)
{
	if (!test_and_set_bit(AS_LUF_NEVER, &inode->i_mapping->flags))
		trace_luf_exclude(inode);
	luf_write_access(inode);
}
EXPORT_SYMBOL_GPL(luf_exclude);

/* See luf_flush_pending(). Returns whether it flushed. */
bool __luf_flush_pending(struct mm_struct *mm)
{
	s64 label = atomic64_read(&mm->luf_label);
	bool late = label > luf_done();

	if (quell_mutant(LUF_NO_PENDING))
		return false;
	if (late) {
		/* Later generations are newer than @label. */
		luf_raise(&luf_clock, label);
		/* Older initiators have cleared their PTEs and raised tlb_gen before the flush. */
		smp_mb();
		flush_tlb_mm(mm);
	}
	/* A generation never comes back. */
	atomic64_cmpxchg(&mm->luf_label, label, 0);
	return late;
}

#ifdef CONFIG_QUELL_KUNIT_TEST
#include "tests/luf-kunit.h"
#endif
