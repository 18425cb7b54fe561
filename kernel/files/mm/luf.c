// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lazy unmap flush (LUF): reclaim and migration unmap folios without a TLB flush. One
 * flush serves many folios, before their frames are reused.
 *
 * Stock reclaim clears the PTEs of about 31 folios, interrupts every CPU that may have
 * cached them, and frees the folios. LUF puts the folios on the deferred-free list of
 * their node instead (struct luf_lot; such folios are "parked"). A drain flushes the CPUs
 * that are still pending and frees the list in bulk. Until then a CPU may read a folio
 * through a stale TLB entry. The read is legal: the folio has the content that a fault
 * would bring back. Migration works alike: the old frame has the content of the new one.
 *
 * First published by Byungchul Park ("LUF (Lazy Unmap Flush)", v10, May 2024; RFC v12,
 * February 2025). His version marks pages in the buddy allocator and checks at allocation.
 * Here the pages wait on lists of their own, and the allocator's fast path has no check.
 *
 * Terms:
 *  - The *stale-TLB window* of a PTE runs from its clearing until no CPU may use an entry that
 *    it cached: each has flushed, or has to before it uses a user entry (lazy TLB mode).
 *  - A *generation* ("label" in symbols) is luf_clock + 1, read after the PTE was cleared,
 *    tlb_gen raised and the CPUs recorded in luf_owed[].
 *  - A CPU is *pending* for a generation until luf_reached() says that it uses no stale entry.
 *    A generation is *complete* when no CPU is pending for it or an older one.
 *
 * The rules, each with its selftests, KUnit tests, mutations and models in brackets:
 *
 * R1, frames: no frame reaches the page allocator inside its stale-TLB window. luf_lot_take()
 * releases complete generations only. [luf_stale release, full lot; LUF_NO_OWING,
 * LUF_SKIP_FLUSH, LUF_RELEASE_EARLY; models lot, list] The full barriers order both sides:
 *
 *	initiator			drain of a generation
 *	  clear the PTE, tlb_gen++	  luf_clock is there, or moves there
 *	  luf_owed[CPUs] = clock + 1	  full barrier
 *	  full barrier			  flush each CPU that is pending:
 *	  label = clock + 1, which	    luf_reached() < generation
 *	    may be greater by now	  luf.done = generation
 *
 * R2, writes: only read-only PTEs are deferred, of files only clean ones. __luf_defer() also
 * refuses if an initiator has yet to flush a writable entry: [luf_migrate lost writes;
 * LUF_DEFER_WRITABLE, LUF_MIGRATE_PROTECTED; model store]
 *
 *	mprotect, fork, ...		unmap
 *	  mm_tlb_flush_pending++	  clear the PTE: it is read-only
 *	  write protect the PTE		  mm_tlb_flush_pending? then as stock
 *	  flush, mm_tlb_flush_pending--
 *
 * R3, reads: (mm, address) gets a new meaning only after a flush. (a) The page table changes
 * under the lock under which mm->luf_label was raised, and luf_flush_pending() flushes.
 * [luf_stale private, remap, protect; LUF_NO_MM_LABEL, LUF_NO_PENDING; model fault] (b) The
 * file changes only by writers with write access, and get_write_access() flushes:
 * [luf_stale write; LUF_IGNORE_WRITER, LUF_NO_WRITE_ACCESS; model writer]
 *
 *	unmap				get_write_access(), luf_exclude()
 *	  raise the file's label	  i_writecount++, or AS_LUF_NEVER
 *	  full barrier			  full barrier
 *	  luf_content_fixed()?		  the file's label > luf.done? then flush
 *	    else as stock
 *
 * R4, progress: parked pages count as free, and are released first where that is worth an IPI.
 * [security memory; LUF_HOARD; model drain]
 *
 *	free pages	kswapd releases			allocations that may wait
 *	  above low	those that need no IPI		-
 *	  below low	all, once a piece waits		-
 *	  below min	all, once a piece waits		all, before and after reclaim
 *
 * R5, nothing hidden: a CPU is left out by evidence, never by time. It compared tlb_gen since, or
 * has to before it uses a user entry (lazy, init_mm). luf_reached() looks.
 * [luf_ledger_behind_test, luf_ledger_other_mm_test; LUF_NO_TLB_GEN, LUF_AGED_UNCHECKED; model lot]
 *
 *	CPU, at a switch or a flush	unmap			drain
 *	  look = luf_clock		  tlb_gen++
 *	  compare tlb_gen, catch up	  label > look or seen
 *	  luf_seen = look					  luf_seen >= label?
 *
 * This file records pending CPUs and hooks unmapping and content changes; mm/luf_lot.c has
 * the lists. luf.mutex is held across the flush, never across the freeing. mm/luf_debug.c
 * checks R1 and R3 at run time. Documentation/mm/lazy_unmap_flush.rst has the full argument,
 * and the promises that an architecture makes with ARCH_SUPPORTS_LUF.
 */
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/export.h>
#include <linux/fs.h>
#include <linux/jump_label.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
#include <linux/quell_mutants.h>
#include <linux/sched.h>
#include <linux/swap.h>
#include <linux/vmstat.h>
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
atomic64_t luf_clock __cacheline_aligned_in_smp = ATOMIC64_INIT(0);

/* The newest generation that each CPU is pending for; only rises. */
static atomic64_t luf_owed[NR_CPUS];

/**
 * struct luf_ledger - which CPU is pending for which generation
 * @clock:	rises as pages are parked or held, at flushes, and by the timer
 * @owed:	per CPU: the newest generation that it is pending for; only rises
 * @done:	all generations up to this one are complete
 * @mutex:	held while CPUs are flushed, so that two drains do not flush the same CPUs
 * @flushing:	the CPUs that are being flushed; protected by @mutex
 */
struct luf_ledger {
	atomic64_t *clock;
	atomic64_t *owed;
	u64 done;
	struct mutex mutex;		/* protects @flushing and @done */
	struct arch_tlbflush_unmap_batch flushing;
};

static struct luf_ledger luf = {
	.clock	= &luf_clock,
	.owed	= luf_owed,
	.mutex	= __MUTEX_INITIALIZER(luf.mutex),
};

/* The newest generation that luf_owe() returned. */
static atomic64_t luf_newest;

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

/* Return a generation that is not older than any that was given out. */
static u64 luf_ledger_now(struct luf_ledger *ledger)
{
	return atomic64_read(ledger->clock) + 1;
}

static bool luf_ledger_done(struct luf_ledger *ledger, u64 label)
{
	/* Pairs with luf_ledger_flush(): the caller frees after the flush. */
	return smp_load_acquire(&ledger->done) >= label;
}

/*
 * Make the CPUs of @mm pending. Called under the page table lock, after a PTE of @mm was cleared
 * and tlb_gen raised. Returns the generation, which may be newer than luf_owed of these CPUs: a
 * CPU has caught up once it has seen its luf_owed. So a CPU may still be pending although
 * ledger->done has passed its luf_owed.
 */
static u64 luf_ledger_owe(struct luf_ledger *ledger, struct mm_struct *mm)
{
	u64 label = luf_ledger_now(ledger);
	unsigned int cpu;

	if (!quell_mutant(LUF_NO_OWING))
		for_each_cpu(cpu, mm_cpumask(mm))
			luf_raise(&ledger->owed[cpu], label);
	/* luf_owed before the clock: pairs with luf_ledger_flush(). */
	smp_mb();
	return luf_ledger_now(ledger);
}

/*
 * Return the newest generation, up to @label, of which @cpu uses no stale entry. Less than
 * @label means that @cpu is pending: see R5.
 */
static u64 luf_reached(struct luf_ledger *ledger, unsigned int cpu, u64 label)
{
	u64 owed = atomic64_read(&ledger->owed[cpu]);
	u64 seen = arch_luf_seen(cpu);

	return seen < min(owed, label) && arch_luf_may_use(cpu) ? seen : label;
}

/*
 * Return the newest generation that needs no IPI, or ledger->done if that is older than @oldest.
 * If this CPU alone is pending it flushes itself, unless its task has a batch under way.
 */
static u64 luf_ledger_aged(struct luf_ledger *ledger, u64 oldest)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	u64 label = atomic64_read(ledger->clock);
	unsigned int cpu, here;

	if (quell_mutant(LUF_AGED_UNCHECKED))
		return label;
	/* The clock before the CPUs: pairs with luf_ledger_owe(). */
	smp_mb();
	here = get_cpu();
	for_each_online_cpu(cpu) {
		if (label < oldest)
			break;
		if (cpu != here)
			label = luf_reached(ledger, cpu, label);
	}
	if (label >= oldest && luf_reached(ledger, here, label) < label) {
		if (tlb_ubc->flush_required)
			label = 0;
		else if (!quell_mutant(LUF_AGED_NOT_LOCAL))
			arch_luf_flush_here(&tlb_ubc->arch, here);
	}
	put_cpu();
	if (label < oldest)
		label = 0;
	/* See luf_ledger_done(). */
	return max(label, smp_load_acquire(&ledger->done));
}

/*
 * Complete all generations up to @need by flushing the pending CPUs. May sleep, and waits for
 * these CPUs. Returns whether there were any.
 */
static bool luf_ledger_flush(struct luf_ledger *ledger, u64 need)
{
	unsigned int cpu;
	bool behind;

	if (luf_ledger_done(ledger, need))
		return false;

	mutex_lock(&ledger->mutex);
	if (luf_ledger_done(ledger, need)) {
		mutex_unlock(&ledger->mutex);
		return false;
	}

	/* Later generations are newer than @need. */
	luf_raise(ledger->clock, need);
	/* The clock before the CPUs: pairs with luf_ledger_owe(). */
	smp_mb();
	for_each_online_cpu(cpu)
		if (luf_reached(ledger, cpu, need) < need)
			arch_luf_add_cpu(&ledger->flushing, cpu);
	behind = !arch_luf_empty(&ledger->flushing);
	if (quell_mutant(LUF_DONE_EARLY)) {
		/* Before the flush. */
		smp_store_release(&ledger->done, need);
		mdelay(1);
	}
	if (behind && !quell_mutant(LUF_SKIP_FLUSH))
		arch_tlbbatch_flush(&ledger->flushing);
	/* Pairs with luf_ledger_done(): after the flush. */
	smp_store_release(&ledger->done, need);
	mutex_unlock(&ledger->mutex);
	return behind;
}

/* A generation that is not older than any that has pending CPUs now. */
u64 luf_now(void)
{
	return luf_ledger_now(&luf);
}

/* The newest generation that is known to be complete. */
u64 luf_done(void)
{
	/* See luf_ledger_done(). */
	return smp_load_acquire(&luf.done);
}

/* Is any flush still deferred? */
bool luf_owes(void)
{
	return !luf_ledger_done(&luf, atomic64_read(&luf_newest));
}

/* See luf_ledger_aged(). */
u64 luf_aged(u64 oldest)
{
	return luf_ledger_aged(&luf, oldest);
}

/*
 * Complete all generations up to @need. May sleep, and waits for the CPUs that it flushes. Returns
 * whether there were any.
 */
bool luf_flush(u64 need)
{
	might_sleep();
	if (!luf_ledger_flush(&luf, need))
		return false;
	count_vm_event(LUF_FLUSH);
	trace_luf_flush(need);
	return true;
}

/* Make the CPUs of @mm pending; see luf_ledger_owe(). */
static u64 luf_owe(struct mm_struct *mm)
{
	u64 label = luf_ledger_owe(&luf, mm);

	/* The initiator that raises it arms the timer, for older generations as well. */
	if (luf_raise(&luf_newest, label))
		luf_keep_closing();
	return label;
}

/* --- Hooks of unmapping ----------------------------------------------------- */

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

	if (folio_test_swapbacked(folio) || !mapping || !mapping->host)
		return false;
	if (folio_test_dirty(folio) || folio_test_writeback(folio) ||
	    !folio_test_uptodate(folio))
		return false;
	return S_ISREG(mapping->host->i_mode) &&
	       (mapping->host->i_sb->s_iflags & SB_I_LUF) &&
	       luf_content_fixed(mapping);
}

/*
 * The PTEs of @folio are about to be cleared; defer their flushes if possible. @more is
 * LUF_MAY_HOLD or 0.
 */
static void luf_begin(struct folio *folio, unsigned char more)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	unsigned char state = tlb_ubc->luf_state;

	/* The deferred flush of an earlier folio stays due. */
	if ((state & LUF_OWED) && !luf_hold(tlb_ubc->luf_folio))
		state |= LUF_KEPT;
	tlb_ubc->luf_state = (state & LUF_LASTING) | LUF_UNMAPPING | more;
	tlb_ubc->luf_folio = folio;
}

static void luf_end(void)
{
	current->tlb_ubc.luf_state &= ~LUF_UNMAPPING;
}

/**
 * __luf_try_to_unmap - try_to_unmap() with a deferred flush where that is safe
 * @folio:	not anonymous, locked, isolated from the LRU
 * @flags:	of try_to_unmap()
 *
 * For reclaim only: the caller ends with luf_park() or try_to_unmap_flush(). May sleep.
 */
void __luf_try_to_unmap(struct folio *folio, enum ttu_flags flags)
{
	/* Node reclaim needs free pages at once, or the allocation goes to another node. */
	if (!luf_may_defer_file(folio) || (node_reclaim_enabled() && !current_is_kswapd())) {
		try_to_unmap(folio, flags);
		return;
	}
	luf_begin(folio, LUF_MAY_HOLD);
	try_to_unmap(folio, flags);
	luf_end();
}

/**
 * __luf_try_to_migrate - try_to_migrate() with a deferred flush where that is safe
 * @folio:	locked, isolated from the LRU
 * @flags:	of try_to_migrate()
 * @reason:	of the migration
 *
 * For migrate_pages_batch() only: its source folios end in luf_put_migrated() or are
 * mapped again where they were. May sleep.
 */
void __luf_try_to_migrate(struct folio *folio, enum ttu_flags flags,
			  enum migrate_reason reason)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;

	if (luf_wants_frame(reason) || folio_test_hugetlb(folio) ||
	    folio_contain_hwpoisoned_page(folio) ||
	    !(folio_test_anon(folio) || luf_may_defer_file(folio))) {
		try_to_migrate(folio, flags);
		return;
	}
	luf_begin(folio, 0);
	try_to_migrate(folio, flags);
	luf_end();
	/* __luf_end_batch() must not flush for it, so LUF_OWED is not kept. */
	if (tlb_ubc->luf_state & LUF_OWED) {
		tlb_ubc->luf_state &= ~LUF_OWED;
		tlb_ubc->luf_state |= LUF_MOVING;
	}
}

/* See luf_defer(): luf_folio is being unmapped, and its flush may be deferred. */
bool __luf_defer(struct mm_struct *mm, pte_t pteval, unsigned long start,
		 unsigned long end)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	struct folio *folio = tlb_ubc->luf_folio;
	struct address_space *mapping = folio->mapping;
	u64 label, stamp;

	if (pte_write(pteval) && !quell_mutant(LUF_DEFER_WRITABLE))
		return false;
	if (folio_test_anon(folio)) {
		/* An initiator has write protected and not flushed yet: R2. */
		if (mm_tlb_flush_pending(mm) && !quell_mutant(LUF_MIGRATE_PROTECTED))
			return false;
	} else if (pte_dirty(pteval) && !quell_mutant(LUF_DEFER_WRITABLE)) {
		return false;
	}

	if (!quell_mutant(LUF_NO_TLB_GEN))
		arch_luf_unmapped(mm);
	stamp = luf_debug_stamp();
	label = luf_owe(mm);
	if (!folio_test_anon(folio)) {
		if (quell_mutant(LUF_CHECK_FIRST)) {
			if (!luf_content_fixed(mapping))
				return false;
			mdelay(1);
		}
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
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;

	if (((tlb_ubc->luf_state & LUF_OWED) && !luf_hold(tlb_ubc->luf_folio)) ||
	    (tlb_ubc->luf_state & LUF_KEPT))
		luf_flush(luf_now());
	tlb_ubc->luf_state &= LUF_LASTING & ~LUF_KEPT;
}

/* --- Hooks of changes of the content at an address -------------------------- */

/**
 * luf_write_access - the file may be written from now on
 * @inode:	i_writecount is raised, or AS_LUF_NEVER set
 *
 * Returns when no CPU can read old content through a stale entry. May sleep, and waits for
 * other CPUs. Exported because get_write_access() is inline.
 */
void luf_write_access(struct inode *inode)
{
	s64 label;

	might_sleep();
	/* Pairs with __luf_defer(): R3 (b). */
	smp_mb__after_atomic();
	label = atomic64_read(&inode->i_mapping->host->i_luf_label);
	if (likely(!label) || luf_ledger_done(&luf, label) ||
	    quell_mutant(LUF_NO_WRITE_ACCESS))
		return;
	count_vm_event(LUF_WRITE);
	luf_flush(label);
}
EXPORT_SYMBOL(luf_write_access);

/**
 * luf_exclude - the content of this file changes without write access
 * @inode:	its folios are not unmapped lazily again until it is evicted
 *
 * Returns when no CPU can read old content through a stale entry. May sleep.
 */
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

	if (quell_mutant(LUF_NO_PENDING) || !label)
		return false;
	if (luf_ledger_done(&luf, label)) {
		/* A generation never comes back. */
		atomic64_cmpxchg(&mm->luf_label, label, 0);
		return false;
	}
	/* Later generations are newer than @label. */
	luf_raise(&luf_clock, label);
	/* Older initiators have cleared their PTEs and raised tlb_gen before the flush. */
	smp_mb();
	flush_tlb_mm(mm);
	atomic64_cmpxchg(&mm->luf_label, label, 0);
	return true;
}

/* See luf_write_fault(). */
void __luf_write_fault(struct mm_struct *mm)
{
	if (!quell_mutant(LUF_NO_WRITE_FAULT) && __luf_flush_pending(mm))
		count_vm_event(LUF_WRITE);
}

#ifdef CONFIG_QUELL_KUNIT_TEST
#include "tests/luf-kunit.h"
#endif
