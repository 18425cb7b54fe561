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
DECLARE_PER_CPU_SHARED_ALIGNED(u64, luf_seen);

#ifdef CONFIG_QUELL_LUF_DEBUG
/* The same for the ledger in mm/luf_debug.c. */
struct luf_debug_cpu {
	u64 look;
	u64 seen;
	bool busy;
};

extern atomic64_t luf_debug_clock;
DECLARE_PER_CPU(struct luf_debug_cpu, luf_debug_cpu);

static inline void luf_debug_look(void)
{
	/* Before is_lazy is cleared. */
	this_cpu_write(luf_debug_cpu.busy,
		       this_cpu_read(cpu_tlbstate_shared.is_lazy));
	this_cpu_write(luf_debug_cpu.look, atomic64_read(&luf_debug_clock));
	/* The clock before tlb_gen. */
	smp_rmb();
}

static inline void luf_debug_caught_up(void)
{
	this_cpu_write(luf_debug_cpu.seen, this_cpu_read(luf_debug_cpu.look));
	/* Pairs with luf_cpu_behind(). */
	smp_wmb();
	this_cpu_write(luf_debug_cpu.busy, false);
}
#else
static inline void luf_debug_look(void)
{
}

static inline void luf_debug_caught_up(void)
{
}
#endif

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
	luf_debug_look();
	return clock;
}

/* This CPU uses no entry that the tlb_gen it read after @clock made stale. */
static inline void luf_caught_up(u64 clock)
{
	/* Others look at it: do not dirty the cache line for nothing. */
	if (static_branch_likely(&luf_key) && this_cpu_read(luf_seen) != clock)
		this_cpu_write(luf_seen, clock);
	luf_debug_caught_up();
}

/* A lazy CPU compares tlb_gen before it uses any entry of a user again. */
static inline bool arch_luf_lazy(unsigned int cpu)
{
	return READ_ONCE(per_cpu(cpu_tlbstate_shared.is_lazy, cpu));
}

/* May @cpu use an entry that became stale with a label up to @label? */
static inline bool arch_luf_behind(unsigned int cpu, u64 label)
{
	return !arch_luf_lazy(cpu) && READ_ONCE(per_cpu(luf_seen, cpu)) < label;
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

static inline void arch_luf_add_mm(struct arch_tlbflush_unmap_batch *batch,
				   struct mm_struct *mm)
{
	cpumask_or(&batch->cpumask, &batch->cpumask, mm_cpumask(mm));
}

static inline void arch_luf_add(struct arch_tlbflush_unmap_batch *batch,
				const struct arch_tlbflush_unmap_batch *more)
{
	cpumask_or(&batch->cpumask, &batch->cpumask, &more->cpumask);
}

static inline bool arch_luf_empty(const struct arch_tlbflush_unmap_batch *batch)
{
	return cpumask_empty(&batch->cpumask);
}

/*
 * Leave in @batch the CPUs that are behind @need. Those that are not go to
 * @later, or nowhere if they are lazy.
 */
static inline void arch_luf_sort(struct arch_tlbflush_unmap_batch *batch,
				 struct arch_tlbflush_unmap_batch *later,
				 u64 need)
{
	unsigned int cpu;

	for_each_cpu(cpu, &batch->cpumask) {
		if (arch_luf_behind(cpu, need))
			continue;
		cpumask_clear_cpu(cpu, &batch->cpumask);
		if (!arch_luf_lazy(cpu))
			cpumask_set_cpu(cpu, &later->cpumask);
	}
}

static inline bool arch_luf_owes(const struct arch_tlbflush_unmap_batch *batch,
				 unsigned int cpu)
{
	return cpumask_test_cpu(cpu, &batch->cpumask);
}

static inline void arch_luf_only(struct arch_tlbflush_unmap_batch *batch,
				 unsigned int cpu)
{
	cpumask_clear(&batch->cpumask);
	cpumask_set_cpu(cpu, &batch->cpumask);
}

/*
 * The last label up to @label that no CPU of @batch but @but is behind. CPUs may
 * be added meanwhile; they are for greater labels.
 */
static inline u64 arch_luf_least(const struct arch_tlbflush_unmap_batch *batch,
				 u64 label, unsigned int but)
{
	unsigned int cpu;

	for_each_cpu(cpu, &batch->cpumask)
		if (cpu != but && arch_luf_behind(cpu, label))
			label = min(label, READ_ONCE(per_cpu(luf_seen, cpu)));
	return label;
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
