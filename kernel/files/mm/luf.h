/* SPDX-License-Identifier: GPL-2.0-only */
/* Lazy unmap flush: the hooks inside of mm/. The head of mm/luf.c has the terms and the rules. */
#ifndef _MM_LUF_H
#define _MM_LUF_H

#include <linux/gfp_types.h>
#include <linux/jump_label.h>
#include <linux/luf.h>
#include <linux/migrate_mode.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mm_types.h>
#include <linux/quell_mutants.h>
#include <linux/rmap.h>
#include <linux/sched.h>
#include <linux/vmstat.h>

#ifdef CONFIG_QUELL_LUF

/* tlbflush_unmap_batch.luf_state and .luf_folio: UNMAPPING and OWED are about that */
enum luf_state {
	LUF_UNMAPPING	= 1,	/* being unmapped, its flush may be deferred */
	LUF_OWED	= 2,	/* PTEs were cleared and their flush deferred */
	LUF_KEPT	= 4,	/* an earlier folio was OWED and not parked */
	LUF_MOVING	= 8,	/* folios that this task migrates may be OWED */
	LUF_PARKING	= 16,	/* folios about to be freed are deferred; also folio->private */
};

DECLARE_STATIC_KEY_FALSE(luf_key);

bool __luf_defer(struct mm_struct *mm, pte_t pteval, unsigned long start,
		 unsigned long end);
void __luf_end_batch(void);
bool __luf_flush_pending(struct mm_struct *mm);

void luf_begin_unmap(struct folio *folio);
void luf_begin_migrate(struct folio *folio);
void __luf_free_folios(struct folio_batch *fbatch, struct pglist_data *pgdat);
void __luf_put_migrated(struct folio *folio, enum migrate_reason reason);
bool luf_drain_for_alloc(struct zone *zone, gfp_t gfp_mask, unsigned int order,
			 unsigned long mark, int highest_zoneidx,
			 unsigned int alloc_flags);
bool luf_balanced(struct zone *zone, int order, unsigned long mark,
		  int highest_zoneidx);
bool luf_drain_for_kswapd(struct pglist_data *pgdat, int order,
			  int highest_zoneidx);
void luf_drain_for_compact(struct zone *zone);
void luf_drain_all(void);
unsigned long luf_zone_parked(struct zone *zone);

/*
 * try_to_unmap() for reclaim, with a deferred flush where that is safe; see mm/luf.c. Anonymous
 * and shared memory is never deferred, and pays for no call.
 */
static inline void luf_try_to_unmap(struct folio *folio, enum ttu_flags flags)
{
	if (static_branch_likely(&luf_key) && !folio_test_anon(folio) &&
	    !folio_test_swapbacked(folio))
		luf_begin_unmap(folio);
	try_to_unmap(folio, flags);
	current->tlb_ubc.luf_state &= ~LUF_UNMAPPING;
}

void free_unref_folios(struct folio_batch *fbatch);

/* free_unref_folios() for reclaim; the last flush of their batch was try_to_unmap_flush(). */
static inline void luf_free_folios(struct folio_batch *fbatch, struct pglist_data *pgdat)
{
	if (current->tlb_ubc.luf_state & LUF_PARKING)
		__luf_free_folios(fbatch, pgdat);
	else
		free_unref_folios(fbatch);
}

/* try_to_migrate(), with a deferred flush where that is safe. */
static inline void luf_try_to_migrate(struct folio *folio, enum ttu_flags flags)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;

	if (static_branch_likely(&luf_key))
		luf_begin_migrate(folio);
	try_to_migrate(folio, flags);
	if (!(tlb_ubc->luf_state & LUF_UNMAPPING))
		return;
	/* __luf_end_batch() must not flush for it, so LUF_OWED is not kept. */
	if (tlb_ubc->luf_state & LUF_OWED)
		tlb_ubc->luf_state |= LUF_MOVING;
	tlb_ubc->luf_state &= ~(LUF_UNMAPPING | LUF_OWED);
}

/* These migrations need the frame itself, or hand it to another owner. */
static inline bool luf_wants_frame(enum migrate_reason reason)
{
	return reason == MR_MEMORY_FAILURE || reason == MR_CONTIG_RANGE ||
	       reason == MR_MEMORY_HOTPLUG || reason == MR_LONGTERM_PIN;
}

/* Before such a migration, the references to held folios are dropped. */
static inline void luf_let_go(enum migrate_reason reason)
{
	if (luf_wants_frame(reason))
		luf_drain_all();
}

/* folio_put() for the source of a migration. */
static inline void luf_put_migrated(struct folio *folio,
				    enum migrate_reason reason)
{
	if (unlikely(current->tlb_ubc.luf_state & LUF_MOVING))
		__luf_put_migrated(folio, reason);
	/* Else page_handle_poison() drops the reference. */
	else if (reason != MR_MEMORY_FAILURE)
		folio_put(folio);
}

/*
 * Is the flush for the cleared PTEs from @start up to @end deferred? If not, the caller flushes.
 * @pteval is the first one, writable and dirty if any of them was. Under the page table lock, after
 * they were cleared.
 */
static inline bool luf_defer(struct mm_struct *mm, pte_t pteval,
			     unsigned long start, unsigned long end)
{
	if (likely(!(current->tlb_ubc.luf_state & LUF_UNMAPPING)))
		return false;
	return __luf_defer(mm, pteval, start, end);
}

/* Flush for lazily unmapped folios that were not deferred, with the batch. */
static inline void luf_end_batch(void)
{
	if (unlikely(current->tlb_ubc.luf_state & (LUF_OWED | LUF_KEPT)))
		__luf_end_batch();
}

/*
 * Does @mm have deferred flushes? Flush it: the page table changes where a CPU may have a stale
 * entry. Under the page table lock.
 */
static inline void luf_flush_pending(struct mm_struct *mm)
{
	if (unlikely(atomic64_read(&mm->luf_label)))
		__luf_flush_pending(mm);
}

/*
 * The same where stock needs no flush: @mm is about to write, through this PTE or by the kernel,
 * where a CPU may have a stale entry for a former frame. Under the page table lock, before the PTE
 * is set.
 */
static inline void luf_write_fault(struct mm_struct *mm)
{
	if (unlikely(atomic64_read(&mm->luf_label)) && !quell_mutant(LUF_NO_WRITE_FAULT) &&
	    __luf_flush_pending(mm))
		count_vm_event(LUF_WRITE);
}

/*
 * Is the protection changed for NUMA hinting only (@prot_numa)? Then (mm, address) keeps its
 * meaning, a stale entry hides an access at most, and the PTEs that change are flushed later. Only
 * present ones may. A migration entry gets no flush, and could without its write permission be
 * mapped read-only while a CPU has a writable entry (R2).
 */
static inline bool luf_only_hints(bool prot_numa)
{
	return prot_numa && static_branch_likely(&luf_key);
}

/*
 * A PTE that NUMA hinting changed becomes accessible again, perhaps writable, before the flush
 * after that change. As luf_write_fault().
 */
static inline void luf_numa_fault(struct mm_struct *mm)
{
	if (unlikely(mm_tlb_flush_pending(mm)))
		luf_write_fault(mm);
}

/* Deferred pages, on all nodes: allocations that may wait get them before they reclaim. */
static inline unsigned long luf_nr_parked(void)
{
	return global_node_page_state(NR_LUF_PARKED);
}

#else /* !CONFIG_QUELL_LUF */

#define luf_try_to_unmap(folio, flags)	try_to_unmap(folio, flags)
#define luf_try_to_migrate(folio, flags)	try_to_migrate(folio, flags)
#define luf_balanced(...)			false
#define luf_free_folios(fbatch, pgdat)	((void)(pgdat), free_unref_folios(fbatch))

static inline void luf_put_migrated(struct folio *folio,
				    enum migrate_reason reason)
{
	if (reason != MR_MEMORY_FAILURE)
		folio_put(folio);
}

static inline void luf_flush_pending(struct mm_struct *mm)
{
}

static inline void luf_write_fault(struct mm_struct *mm)
{
}

static inline bool luf_only_hints(bool prot_numa)
{
	return false;
}

static inline void luf_numa_fault(struct mm_struct *mm)
{
}

static inline bool luf_drain_for_alloc(struct zone *zone, gfp_t gfp_mask,
				       unsigned int order, unsigned long mark,
				       int highest_zoneidx,
				       unsigned int alloc_flags)
{
	return false;
}

static inline bool luf_drain_for_kswapd(struct pglist_data *pgdat, int order,
					int highest_zoneidx)
{
	return false;
}

static inline void luf_drain_for_compact(struct zone *zone)
{
}

static inline void luf_drain_all(void)
{
}

static inline void luf_let_go(enum migrate_reason reason)
{
}

static inline unsigned long luf_zone_parked(struct zone *zone)
{
	return 0;
}

static inline unsigned long luf_nr_parked(void)
{
	return 0;
}

static inline bool luf_defer(struct mm_struct *mm, pte_t pteval,
			     unsigned long start, unsigned long end)
{
	return false;
}

static inline void luf_end_batch(void)
{
}

#endif /* CONFIG_QUELL_LUF */

#endif /* _MM_LUF_H */
