// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lazy unmap flush (LUF): reclaim and migration unmap folios without a TLB flush.
 * The flush happens once for many, before their frames can be used again.
 *
 * Stock reclaim clears the PTEs of some 31 folios, interrupts every CPU that may have
 * cached them, and frees the folios. Here the folios wait in a list, the lot of their
 * node. A drain flushes the CPUs that are still behind, and frees the lot in bulk. In
 * between a CPU may read a folio through an entry that it cached: it is still there, and
 * has the content that a fault would bring back. Migration is the same: the old frame
 * waits, and has the content of the new one.
 *
 * The *window* of a PTE runs from its clearing until every CPU that may have cached it
 * has flushed; that flush is *owed* meanwhile. A *parked* folio is in a lot: unmapped,
 * out of the page cache, uncharged, with no reference. A *label* is a value that
 * luf_clock reaches after the PTE was cleared, tlb_gen raised and its CPUs noted.
 *
 * R1, frames: no frame reaches the page allocator inside a window. Its label is settled
 * first. The full barriers let one see the other:
 *
 *	unmap				drain of a label
 *	  clear the PTE, tlb_gen++	  the clock is at the label, or moves there
 *	  luf_owed[CPUs] = clock + 1	  full barrier
 *	  full barrier			  flush who has seen less than that
 *	  label = clock + 1		    and than what he is owed
 *					  luf.done = label
 *
 * R2, writes: only read-only PTEs are deferred, of files only clean ones. No entry that
 * may be written is left by others either:
 *
 *	mprotect, fork, ...		unmap
 *	  mm_tlb_flush_pending++	  clear the PTE: it is read-only
 *	  write protect the PTE		  mm_tlb_flush_pending? then as stock
 *	  flush, mm_tlb_flush_pending--
 *
 * R3, reads: what (mm, address) denotes changes only after a flush of what is owed.
 * (a) The page table changes under the lock under which mm->luf_label was raised. (b) The
 * file changes only by who has write access:
 *
 *	unmap				get_write_access(), luf_exclude()
 *	  the file's label is raised	  i_writecount++, or AS_LUF_NEVER
 *	  full barrier			  full barrier
 *	  luf_content_fixed()?		  the file's label > luf.done? then flush
 *	    else as stock
 *
 * R4, progress: parked pages are the first to be given back, and count as free:
 *
 *	free pages	kswapd			allocations that may wait
 *	  above low	what needs no interrupt	-
 *	  below low	all, in pieces		-
 *	  below min	all, in pieces		all, before and after they reclaim
 *
 * R5, nothing hidden: a CPU is left out by the evidence of tlb_gen, never by time:
 *
 *	CPU, at a switch or a flush	unmap			drain
 *	  look = luf_clock		  tlb_gen++
 *	  compare tlb_gen, catch up	  label > look or seen
 *	  luf_seen = look					  luf_seen >= label?
 *
 * This file has the ledger of owed flushes, and the hooks of unmapping and of changes of
 * the content of an address; mm/luf_lot.c has the lots. luf.mutex is held across
 * the flush, and never across the freeing.
 *
 * Documentation/mm/lazy_unmap_flush.rst has the argument in full, and what an
 * architecture must promise. mm/luf_debug.c checks R1 and R3 at run time.
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

/* Off until luf_init(): the lots must exist. */
DEFINE_STATIC_KEY_FALSE(luf_key);

DEFINE_PER_CPU_SHARED_ALIGNED(u64, luf_seen);
atomic64_t luf_clock __cacheline_aligned_in_smp = ATOMIC64_INIT(0);

/* The last label that each CPU is owed a flush for: it only rises. */
static atomic64_t luf_owed[NR_CPUS];

/**
 * struct luf_ledger - which CPU is owed which flush
 * @clock:	moves after many folios were parked, and at flushes
 * @owed:	by CPU: the last label that it is owed a flush for; only rises
 * @done:	all labels up to this one are flushed
 * @mutex:	held while CPUs are flushed, so that nobody flushes them for the same
 * @flushing:	the CPUs that are being flushed; under @mutex
 */
struct luf_ledger {
	atomic64_t *clock;
	atomic64_t *owed;
	u64 done;
	struct mutex mutex;		/* of those who flush */
	struct arch_tlbflush_unmap_batch flushing;
};

static struct luf_ledger luf = {
	.clock	= &luf_clock,
	.owed	= luf_owed,
	.mutex	= __MUTEX_INITIALIZER(luf.mutex),
};

/* The newest label that was given out. */
static atomic64_t luf_newest;

/* --- The ledger of owed flushes ------------------------------------------ */

/* No label is lost to a lesser one. Returns whether @at was less. */
static bool luf_raise(atomic64_t *at, s64 label)
{
	s64 old = atomic64_read(at);

	while (old < label)
		if (atomic64_try_cmpxchg(at, &old, label))
			return true;
	return false;
}

/* A label that is not less than any given out so far. */
static u64 luf_ledger_now(struct luf_ledger *ledger)
{
	return atomic64_read(ledger->clock) + 1;
}

static bool luf_ledger_done(struct luf_ledger *ledger, u64 label)
{
	/* Pairs with luf_ledger_flush(): what is freed next was flushed. */
	return smp_load_acquire(&ledger->done) >= label;
}

/*
 * The CPUs of @mm are owed a flush. After a PTE of @mm was cleared and tlb_gen
 * raised, under its page table lock. Returns the label, which may be greater than what
 * the CPUs are owed: they have caught up once they have seen that. So that everything
 * up to a label is done does not mean that a CPU which is owed no more is not behind.
 */
static u64 luf_ledger_owe(struct luf_ledger *ledger, struct mm_struct *mm)
{
	u64 label = luf_ledger_now(ledger);
	unsigned int cpu;

	if (!quell_mutant(LUF_NO_OWING))
		for_each_cpu(cpu, mm_cpumask(mm))
			luf_raise(&ledger->owed[cpu], label);
	/* The CPUs before the clock: pairs with luf_ledger_flush(). */
	smp_mb();
	return luf_ledger_now(ledger);
}

/*
 * Up to which label, @label at the most, does @cpu use no entry that became stale with
 * it? Less than @label means that it is behind: see R5.
 */
static u64 luf_reached(struct luf_ledger *ledger, unsigned int cpu, u64 label)
{
	u64 owed = atomic64_read(&ledger->owed[cpu]);
	u64 seen = arch_luf_seen(cpu);

	return seen < min(owed, label) && arch_luf_may_use(cpu) ? seen : label;
}

/*
 * Up to which label is everything settled, or is so without an interrupt? Anything
 * less than @oldest counts as nothing. If only this CPU is behind that, it is flushed.
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
	/* As in luf_ledger_done(). */
	return max(label, smp_load_acquire(&ledger->done));
}

/*
 * Settle all labels up to @need, by flushing the CPUs that are behind. May
 * sleep, and waits for the CPUs. Returns whether there were any.
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

	/* Labels that are given out from now on are greater. */
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

/* A label that is not less than any that a flush is owed for now. */
u64 luf_now(void)
{
	return luf_ledger_now(&luf);
}

/* The greatest label for which, and for all before, flushes have been done. */
u64 luf_done(void)
{
	/* As in luf_ledger_done(). */
	return smp_load_acquire(&luf.done);
}

/* Are there flushes that are owed, by anybody? */
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
 * Settle all labels up to @need. May sleep, and waits for the CPUs. Returns whether one
 * had to be flushed.
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

/* The CPUs of @mm are owed a flush; see luf_ledger_owe(). */
static u64 luf_owe(struct mm_struct *mm)
{
	u64 label = luf_ledger_owe(&luf, mm);

	/* Whoever raises it sees to it that what is less is flushed, too. */
	if (luf_raise(&luf_newest, label))
		luf_keep_closing();
	return label;
}

/* --- Hooks of unmapping ----------------------------------------------------- */

/* Can only who has write access change the content of the file? R3 (b). */
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
 * The PTEs of @folio are about to be cleared; defer their flushes if possible. @more
 * is LUF_MAY_HOLD or nothing.
 */
static void luf_begin(struct folio *folio, unsigned char more)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	unsigned char state = tlb_ubc->luf_state;

	/* What an earlier folio is owed is not forgotten. */
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
 * __luf_try_to_unmap - try_to_unmap(), lazily where that is safe
 * @folio:	not anonymous, locked, isolated from the LRU
 * @flags:	of try_to_unmap()
 *
 * For reclaim only: the caller ends with luf_park() or try_to_unmap_flush().
 * May sleep.
 */
void __luf_try_to_unmap(struct folio *folio, enum ttu_flags flags)
{
	/* Node reclaim needs free pages at once, or the allocation goes elsewhere. */
	if (!luf_may_defer_file(folio) || (node_reclaim_enabled() && !current_is_kswapd())) {
		try_to_unmap(folio, flags);
		return;
	}
	luf_begin(folio, LUF_MAY_HOLD);
	try_to_unmap(folio, flags);
	luf_end();
}

/**
 * __luf_try_to_migrate - try_to_migrate(), lazily where that is safe
 * @folio:	locked, isolated from the LRU
 * @flags:	of try_to_migrate()
 * @reason:	of the migration
 *
 * For migrate_pages_batch() only: its source folios end in luf_put_migrated()
 * or are mapped again where they were. May sleep.
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
	/* Not for the end of the batch, like LUF_OWED and LUF_KEPT. */
	if (tlb_ubc->luf_state & LUF_OWED) {
		tlb_ubc->luf_state &= ~LUF_OWED;
		tlb_ubc->luf_state |= LUF_MOVING;
	}
}

/* See luf_defer(): luf_folio is being unmapped and may be done lazily. */
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
		/* A write protection that was not flushed yet: R2. */
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

/* --- Hooks of what changes the content that an address denotes -------------- */

/**
 * luf_write_access - somebody may write to the file from now on
 * @inode:	i_writecount is raised
 *
 * Returns when no CPU can read old content through a stale entry. May sleep.
 * Exported because get_write_access() is inline.
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
 * @inode:	its folios are never unmapped lazily again, until it is evicted
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

/* See luf_flush_pending(). Returns whether there was something to flush. */
bool __luf_flush_pending(struct mm_struct *mm)
{
	s64 label = atomic64_read(&mm->luf_label);

	if (quell_mutant(LUF_NO_PENDING) || !label)
		return false;
	if (luf_ledger_done(&luf, label)) {
		/* A label never comes back. */
		atomic64_cmpxchg(&mm->luf_label, label, 0);
		return false;
	}
	/* Labels that are given out from now on are greater. */
	luf_raise(&luf_clock, label);
	/* The PTEs of all others were cleared, and tlb_gen raised, before the flush. */
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
