/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lazy unmap flush: the hooks inside of mm/. What they are for, and why they
 * are enough, is at the head of mm/luf.c.
 */
#ifndef _MM_LUF_H
#define _MM_LUF_H

#include <linux/gfp_types.h>
#include <linux/luf.h>
#include <linux/rmap.h>
#include <linux/sched.h>

struct alloc_context;

#ifdef CONFIG_QUELL_LUF

/* tlbflush_unmap_batch.luf_state, all about tlbflush_unmap_batch.luf_folio */
enum luf_state {
	LUF_UNMAPPING	= 1,	/* being unmapped, may be done lazily */
	LUF_OWED	= 2,	/* cleared PTEs whose flush the lot owes */
	LUF_MIXED	= 4,	/* other cleared PTEs, flushed as usual */
	LUF_KEPT	= 8,	/* an earlier folio was OWED and not parked */
};

bool __luf_defer(struct mm_struct *mm, pte_t pteval);
void __luf_settle(void);

void luf_try_to_unmap(struct folio *folio, enum ttu_flags flags);
bool luf_park(struct folio *folio, struct list_head *parked);
void luf_park_list(struct list_head *parked, struct pglist_data *pgdat);
void luf_write_fault(struct mm_struct *mm);
bool luf_drain_for_alloc(gfp_t gfp_mask, const struct alloc_context *ac);
bool luf_drain_for_kswapd(struct pglist_data *pgdat, int highest_zoneidx);
void luf_drain_all(void);

/*
 * Is the flush for this cleared PTE owed by the lot? Else it is the caller's.
 * Under the page table lock, after the PTE was cleared.
 */
static inline bool luf_defer(struct mm_struct *mm, pte_t pteval)
{
	if (likely(!(current->tlb_ubc.luf_state & LUF_UNMAPPING)))
		return false;
	return __luf_defer(mm, pteval);
}

/* What was unmapped lazily and not parked is flushed with the batch. */
static inline void luf_settle(void)
{
	if (unlikely(current->tlb_ubc.luf_state & (LUF_OWED | LUF_KEPT)))
		__luf_settle();
}

#else /* !CONFIG_QUELL_LUF */

#define luf_try_to_unmap(folio, flags)	try_to_unmap(folio, flags)

static inline bool luf_park(struct folio *folio, struct list_head *parked)
{
	return false;
}

static inline void luf_park_list(struct list_head *parked,
				 struct pglist_data *pgdat)
{
}

static inline void luf_write_fault(struct mm_struct *mm)
{
}

static inline bool luf_drain_for_alloc(gfp_t gfp_mask,
				       const struct alloc_context *ac)
{
	return false;
}

static inline bool luf_drain_for_kswapd(struct pglist_data *pgdat,
					int highest_zoneidx)
{
	return false;
}

static inline void luf_drain_all(void)
{
}

static inline bool luf_defer(struct mm_struct *mm, pte_t pteval)
{
	return false;
}

static inline void luf_settle(void)
{
}

#endif /* CONFIG_QUELL_LUF */

#endif /* _MM_LUF_H */
