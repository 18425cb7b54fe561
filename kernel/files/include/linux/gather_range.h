/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Overlapping gathers flush the range of their own call: see mm/gather_range.c.
 * Included by asm-generic/tlb.h, which has struct mmu_gather.
 */
#ifndef _LINUX_GATHER_RANGE_H
#define _LINUX_GATHER_RANGE_H

#ifdef CONFIG_QUELL_GATHER_RANGE

#include <linux/jump_label.h>
#include <linux/limits.h>
#include <linux/minmax.h>

DECLARE_STATIC_KEY_FALSE(gather_range_key);

bool __gather_range_use(struct mmu_gather *tlb);

/* @tlb begins. Without gather_range_add() it flushes as in stock. */
static inline void gather_range_init(struct mmu_gather *tlb)
{
	tlb->call_start = ULONG_MAX;
	tlb->call_end = 0;
}

/**
 * gather_range_add - the call that @tlb serves is about a range
 * @tlb:	from tlb_gather_mmu()
 * @start:	first address, page aligned
 * @end:	first address behind, page aligned
 *
 * For all that the call wants to be flushed when it returns, or for none of it:
 * whatever it does not flush by itself. Before the first of its entries is looked at
 * or after, but before tlb_finish_mmu().
 */
static inline void gather_range_add(struct mmu_gather *tlb, unsigned long start,
				    unsigned long end)
{
	tlb->call_start = min(tlb->call_start, start);
	tlb->call_end = max(tlb->call_end, end);
}

/*
 * tlb_finish_mmu(), where another gather of the mm is under way: is it enough to
 * flush what is in @tlb now?
 */
static inline bool gather_range_use(struct mmu_gather *tlb)
{
	return static_branch_likely(&gather_range_key) && __gather_range_use(tlb);
}

#else

static inline void gather_range_init(struct mmu_gather *tlb)
{
}

static inline void gather_range_add(struct mmu_gather *tlb, unsigned long start,
				    unsigned long end)
{
}

static inline bool gather_range_use(struct mmu_gather *tlb)
{
	return false;
}

#endif /* CONFIG_QUELL_GATHER_RANGE */

#endif /* _LINUX_GATHER_RANGE_H */
