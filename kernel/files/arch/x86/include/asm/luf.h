/* SPDX-License-Identifier: GPL-2.0-only */
/* Lazy unmap flush: which CPUs may still have a cleared PTE cached. See R5 in mm/luf.c. */
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

/*
 * May @cpu use user entries? Not if it is lazy or has init_mm loaded: it loads an mm, or compares
 * tlb_gen, before it does.
 */
static inline bool arch_luf_may_use(unsigned int cpu)
{
	return !READ_ONCE(per_cpu(cpu_tlbstate_shared.is_lazy, cpu)) &&
	       READ_ONCE(per_cpu(cpu_tlbstate.loaded_mm, cpu)) != &init_mm;
}

#ifdef CONFIG_QUELL_LUF_DEBUG
/* arch_luf_seen() for the checker in mm/luf_debug.c, which has a clock of its own. */
struct luf_debug_cpu {
	u64 look;
	u64 seen;
	bool busy;
};

extern atomic64_t luf_debug_clock;
DECLARE_PER_CPU(struct luf_debug_cpu, luf_debug_cpu);

void luf_debug_pending(unsigned int cpu);

static inline void luf_debug_look(void)
{
	/* Before is_lazy is cleared, or loaded_mm is no longer init_mm. */
	this_cpu_write(luf_debug_cpu.busy, !arch_luf_may_use(smp_processor_id()));
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
static inline void luf_debug_pending(unsigned int cpu)
{
}

static inline void luf_debug_look(void)
{
}

static inline void luf_debug_caught_up(void)
{
}
#endif

/*
 * Has @cpu, in mm_cpumask(@mm), loaded @mm? Called after tlb_gen was raised. Since 6.14 CPUs that
 * left stay in the mask; switch_mm_irqs_off() orders LOADED_MM_SWITCHING before reading tlb_gen.
 * The checker notes each CPU that has.
 */
static inline bool arch_luf_has_loaded(unsigned int cpu, struct mm_struct *mm)
{
#ifdef X86_FEATURE_INVLPGB
	struct mm_struct *loaded = READ_ONCE(per_cpu(cpu_tlbstate.loaded_mm, cpu));

	if (loaded != mm && loaded != LOADED_MM_SWITCHING)
		return false;
#endif
	luf_debug_pending(cpu);
	return true;
}

/*
 * Returns luf_clock; this CPU reads the tlb_gen that it will catch up with next. Interrupts are
 * off until luf_caught_up().
 */
static inline u64 luf_look_at_clock(void)
{
	u64 clock = 0;

	if (static_branch_likely(&luf_key)) {
		clock = atomic64_read(&luf_clock);
		/* The clock before tlb_gen. Enough as x86 is TSO; others need smp_mb(). */
		smp_rmb();
	}
	luf_debug_look();
	return clock;
}

/* This CPU uses no entry that became stale up to the tlb_gen that it read after @clock. */
static inline void luf_caught_up(u64 clock)
{
	/* The checker's stamp first: luf_aged() frees without an IPI. */
	luf_debug_caught_up();
	/* Other CPUs read it: do not dirty the cache line without need. */
	if (static_branch_likely(&luf_key) && this_cpu_read(luf_seen) != clock)
		this_cpu_write(luf_seen, clock);
}

/* @cpu uses no entry that became stale in a generation up to this one. */
static inline u64 arch_luf_seen(unsigned int cpu)
{
	return READ_ONCE(per_cpu(luf_seen, cpu));
}

/*
 * A PTE of @mm was cleared: CPUs that load @mm from now on do not use it. A full barrier, as
 * inc_mm_tlb_gen() is. Secondary MMUs keep no entry.
 */
static inline void arch_luf_unmapped(struct mm_struct *mm)
{
	inc_mm_tlb_gen(mm);
	mmu_notifier_arch_invalidate_secondary_tlbs(mm, 0, -1UL);
}

static inline void arch_luf_add_cpu(struct arch_tlbflush_unmap_batch *batch,
				    unsigned int cpu)
{
	cpumask_set_cpu(cpu, &batch->cpumask);
}

static inline bool arch_luf_empty(const struct arch_tlbflush_unmap_batch *batch)
{
	return cpumask_empty(&batch->cpumask);
}

/* Flush this CPU, @cpu, with @batch, which is empty. Preemption is disabled. */
static inline void arch_luf_flush_here(struct arch_tlbflush_unmap_batch *batch,
				       unsigned int cpu)
{
	arch_luf_add_cpu(batch, cpu);
	arch_tlbbatch_flush(batch);
}

/*
 * Return why tlb_gen is no evidence on this machine, or NULL. With INVLPGB, CPUs that share a
 * global ASID are flushed without an IPI, and do not compare tlb_gen.
 */
static inline const char *arch_luf_refused(void)
{
#ifdef X86_FEATURE_INVLPGB
	/* Read when it is called, so that a test can set the flag. */
	if (boot_cpu_has(X86_FEATURE_INVLPGB))
		return "CPUs broadcast TLB flushes with INVLPGB";
#endif
	return NULL;
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
