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
#include <linux/rmap.h>
#include <linux/sched.h>

#ifdef CONFIG_QUELL_LUF

/* tlbflush_unmap_batch.luf_state; about tlbflush_unmap_batch.luf_folio but for LUF_LASTING */
enum luf_state {
	LUF_UNMAPPING	= 1,	/* being unmapped, its flush may be deferred */
	LUF_OWED	= 2,	/* PTEs were cleared and their flush deferred */
	LUF_KEPT	= 4,	/* an earlier folio was OWED and not parked */
	LUF_MOVING	= 8,	/* folios that this task migrates may be OWED */
	LUF_MAY_HOLD	= 16,	/* luf_hold() may keep a reference to the folio */
	/* Not about one folio: kept from one to the next. */
	LUF_LASTING	= LUF_KEPT | LUF_MOVING,
};

DECLARE_STATIC_KEY_FALSE(luf_key);

bool __luf_defer(struct mm_struct *mm, pte_t pteval, unsigned long start,
		 unsigned long end);
void __luf_end_batch(void);
bool __luf_flush_pending(struct mm_struct *mm);
void __luf_write_fault(struct mm_struct *mm);

void __luf_try_to_unmap(struct folio *folio, enum ttu_flags flags);
bool __luf_park(struct folio *folio, struct list_head *parked);
void luf_park_list(struct list_head *parked, struct pglist_data *pgdat);
void __luf_try_to_migrate(struct folio *folio, enum ttu_flags flags,
			  enum migrate_reason reason);
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
void luf_let_go(enum migrate_reason reason);
unsigned long luf_zone_parked(struct zone *zone);

/*
 * try_to_unmap() for reclaim, with a deferred flush where that is safe; see mm/luf.c. Anonymous
 * and shared memory is never deferred, and pays for no call.
 */
static inline void luf_try_to_unmap(struct folio *folio, enum ttu_flags flags)
{
	if (static_branch_likely(&luf_key) && !folio_test_anon(folio) &&
	    !folio_test_swapbacked(folio))
		__luf_try_to_unmap(folio, flags);
	else
		try_to_unmap(folio, flags);
}

/* Should @folio wait for its flush on the deferred-free list? Then it is on @parked now. */
static inline bool luf_park(struct folio *folio, struct list_head *parked)
{
	return current->tlb_ubc.luf_folio == folio && __luf_park(folio, parked);
}

/* try_to_migrate(), with a deferred flush where that is safe. */
static inline void luf_try_to_migrate(struct folio *folio, enum ttu_flags flags,
				      enum migrate_reason reason)
{
	if (static_branch_likely(&luf_key))
		__luf_try_to_migrate(folio, flags, reason);
	else
		try_to_migrate(folio, flags);
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

/* Flush for lazily unmapped folios that were not parked, with the batch. */
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
	if (unlikely(atomic64_read(&mm->luf_label)))
		__luf_write_fault(mm);
}

/*
 * Does the protection change only for NUMA hinting (@prot_numa)? Addresses keep their meaning
 * then, and a stale entry only hides an access. Present PTEs alone are changed: the flush of their
 * addresses ends stale entries, too. A migration entry would get no flush: without its write
 * permission it could be mapped read-only while a CPU has a writable entry (R2).
 */
static inline bool luf_only_looks(bool prot_numa)
{
	return prot_numa && static_branch_likely(&luf_key);
}

/*
 * A PTE that NUMA hinting changed becomes accessible again, perhaps writable. The flush after that
 * change ends entries for former frames, too; until then it is pending. Under the page table lock,
 * before the PTE is set.
 */
static inline void luf_numa_fault(struct mm_struct *mm)
{
	if (unlikely(mm_tlb_flush_pending(mm)))
		luf_write_fault(mm);
}

#else /* !CONFIG_QUELL_LUF */

#define luf_try_to_unmap(folio, flags)	try_to_unmap(folio, flags)
#define luf_try_to_migrate(folio, flags, reason)	\
	((void)(reason), try_to_migrate(folio, flags))
#define luf_balanced(...)			false

static inline bool luf_park(struct folio *folio, struct list_head *parked)
{
	return false;
}

static inline void luf_park_list(struct list_head *parked,
				 struct pglist_data *pgdat)
{
}

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

static inline bool luf_only_looks(bool prot_numa)
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
