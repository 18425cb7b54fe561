/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Overlapping gathers flush the range of their own call: see mm/gather_range.c. Included by
 * asm-generic/tlb.h, which has struct mmu_gather.
 */
#ifndef _LINUX_GATHER_RANGE_H
#define _LINUX_GATHER_RANGE_H

#ifdef CONFIG_QUELL_GATHER_RANGE

#include <linux/jump_label.h>
#include <linux/limits.h>
#include <linux/minmax.h>

DECLARE_STATIC_KEY_FALSE(gather_range_key);

bool __gather_range_use(struct mmu_gather *tlb);

/* Start a gather. Without gather_range_add() it flushes as in stock. */
static inline void gather_range_init(struct mmu_gather *tlb)
{
	tlb->call_start = ULONG_MAX;
	tlb->call_end = 0;
}

/**
 * gather_range_add - add a range to the call that @tlb serves
 * @tlb:	from tlb_gather_mmu()
 * @start:	first address, page aligned
 * @end:	first address behind, page aligned
 *
 * A call adds all ranges that have to be flushed when it returns and that it does not flush by
 * itself, or none. At any time before tlb_finish_mmu(), also before its first entry.
 */
static inline void gather_range_add(struct mmu_gather *tlb, unsigned long start,
				    unsigned long end)
{
	tlb->call_start = min(tlb->call_start, start);
	tlb->call_end = max(tlb->call_end, end);
}

/*
 * For tlb_finish_mmu(), while another gather of the mm is under way: does it suffice to flush the
 * range of @tlb?
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
