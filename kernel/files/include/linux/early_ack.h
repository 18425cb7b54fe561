/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Calls of functions whose argument travels in the message, and which the target may
 * acknowledge before it runs them: see arch/x86/mm/early_ack.c.
 */
#ifndef _LINUX_EARLY_ACK_H
#define _LINUX_EARLY_ACK_H

#include <linux/percpu-defs.h>
#include <linux/smp.h>
#include <linux/types.h>

#ifdef CONFIG_QUELL_EARLY_ACK

/* A call_single_data of smp_call_function_many_cond(): a cache line. */
#define EARLY_ACK_CSD_SIZE	64

/* The size of an argument: the rest of the line behind call_single_data.func. */
#define EARLY_ACK_INFO_SIZE	40

DECLARE_PER_CPU(bool, early_ack_owed);

void early_ack_call(smp_cond_func_t cond_func, smp_call_func_t func, void *info,
		    bool early, const struct cpumask *mask);

/*
 * Has this CPU acknowledged a call that it has not run yet? Then it must not touch
 * user memory. Only an NMI, or what is attached to a function or a tracepoint, may
 * find it so. False wherever interrupts are on.
 */
static __always_inline bool early_ack_owes(void)
{
	return this_cpu_read(early_ack_owed);
}

/*
 * Has @cpu? If so, it compares tlb_gen before it uses an entry. Pairs with
 * early_ack_run(): what it did before it says no is seen after smp_rmb().
 */
static inline bool early_ack_cpu_owes(unsigned int cpu)
{
	return READ_ONCE(per_cpu(early_ack_owed, cpu));
}

#else

#define EARLY_ACK_CSD_SIZE	sizeof(call_single_data_t)

static __always_inline bool early_ack_owes(void)
{
	return false;
}

static inline bool early_ack_cpu_owes(unsigned int cpu)
{
	return false;
}

#endif /* CONFIG_QUELL_EARLY_ACK */

#endif /* _LINUX_EARLY_ACK_H */
