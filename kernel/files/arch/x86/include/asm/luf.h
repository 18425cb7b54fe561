/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lazy unmap flush: which CPUs may still have a cleared PTE cached. See mm/luf.c,
 * under "Which CPUs are behind".
 */
#ifndef _ASM_X86_LUF_H
#define _ASM_X86_LUF_H

#include <linux/atomic.h>
#include <linux/cpumask.h>
#include <linux/jump_label.h>
#include <linux/mmu_notifier.h>
#include <linux/percpu-defs.h>
#include <asm/tlbflush.h>

#ifdef CONFIG_QUELL_LUF

DECLARE_STATIC_KEY_FALSE(luf_key);
extern atomic64_t luf_clock;
DECLARE_PER_CPU(u64, luf_seen);

/*
 * This CPU is about to read the tlb_gen that it will catch up with. Interrupts
 * off, until luf_caught_up().
 */
static inline u64 luf_look_at_clock(void)
{
	u64 clock = 0;

	if (static_branch_likely(&luf_key)) {
		clock = atomic64_read(&luf_clock);
		/* The clock before tlb_gen. */
		smp_rmb();
	}
	return clock;
}

/* This CPU uses no entry that the tlb_gen it read after @clock made stale. */
static inline void luf_caught_up(u64 clock)
{
	if (static_branch_likely(&luf_key))
		this_cpu_write(luf_seen, clock);
}

/* May @cpu use an entry whose PTE was cleared at @clock or before? */
static inline bool arch_luf_behind(unsigned int cpu, u64 clock)
{
	/* A lazy CPU compares tlb_gen before it uses any entry again. */
	return !per_cpu(cpu_tlbstate_shared.is_lazy, cpu) &&
	       READ_ONCE(per_cpu(luf_seen, cpu)) < clock;
}

/*
 * A PTE of @mm was cleared: whoever loads @mm from now on does not use it.
 * A full barrier, as inc_mm_tlb_gen() is. Secondary MMUs keep no entry.
 */
static inline void arch_luf_unmapped(struct mm_struct *mm)
{
	inc_mm_tlb_gen(mm);
	mmu_notifier_arch_invalidate_secondary_tlbs(mm, 0, -1UL);
}

/* Are all CPUs that may have cached PTEs of @mm in @batch? Takes no lock. */
static inline bool arch_luf_covered(const struct arch_tlbflush_unmap_batch *batch,
				    struct mm_struct *mm)
{
	/* Racy by design: R1 in mm/luf.c. */
	return data_race(cpumask_subset(mm_cpumask(mm), &batch->cpumask));
}

static inline void arch_luf_add(struct arch_tlbflush_unmap_batch *batch,
				const struct arch_tlbflush_unmap_batch *more)
{
	cpumask_or(&batch->cpumask, &batch->cpumask, &more->cpumask);
}

/*
 * Leave in @batch the CPUs that are behind @need. Those that are not, but are
 * behind @clock, go to @later. Returns whether @batch has any; *@any_later says
 * that of @later.
 */
static inline bool arch_luf_sort(struct arch_tlbflush_unmap_batch *batch,
				 struct arch_tlbflush_unmap_batch *later,
				 u64 need, u64 clock, bool *any_later)
{
	unsigned int cpu;

	for_each_cpu(cpu, &batch->cpumask) {
		if (arch_luf_behind(cpu, need))
			continue;
		cpumask_clear_cpu(cpu, &batch->cpumask);
		if (arch_luf_behind(cpu, clock))
			cpumask_set_cpu(cpu, &later->cpumask);
	}
	*any_later = !cpumask_empty(&later->cpumask);
	return !cpumask_empty(&batch->cpumask);
}

/* The last value up to @clock that no CPU of @batch is behind. */
static inline u64 arch_luf_least(const struct arch_tlbflush_unmap_batch *batch,
				 u64 clock)
{
	unsigned int cpu;

	for_each_cpu(cpu, &batch->cpumask)
		if (arch_luf_behind(cpu, clock))
			clock = min(clock, READ_ONCE(per_cpu(luf_seen, cpu)));
	return clock;
}

#else

static inline u64 luf_look_at_clock(void)
{
	return 0;
}

static inline void luf_caught_up(u64 clock)
{
}

#endif /* CONFIG_QUELL_LUF */

#endif /* _ASM_X86_LUF_H */
