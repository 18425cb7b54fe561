/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Calls of functions whose argument is inlined in the message, and which the target may
 * acknowledge before it runs them. See kernel/smp_early_ack.h and arch/x86/mm/early_ack.c.
 */
#ifndef _LINUX_EARLY_ACK_H
#define _LINUX_EARLY_ACK_H

#include <linux/percpu-defs.h>
#include <linux/smp.h>
#include <linux/types.h>

#ifdef CONFIG_QUELL_EARLY_ACK

/* A call_single_data of smp_call_function_many_cond(): a cache line. */
#define EARLY_ACK_CSD_SIZE	64

/* Bytes of an argument: the rest of the line behind call_single_data.func. */
#define EARLY_ACK_INFO_SIZE	40

DECLARE_PER_CPU(bool, early_ack_owed);
/* With CONFIG_QUELL_MUTANTS: how long ack-to-flush windows are kept open, in us. */
extern unsigned int early_ack_window_us;

void early_ack_call(smp_cond_func_t cond_func, smp_call_func_t func, void *info,
		    bool early, const struct cpumask *mask);

/*
 * Is this CPU in an ack-to-flush window? Then it must not touch user memory. Only an NMI, or
 * programs that are attached to a function or tracepoint, may find it so. False wherever
 * interrupts are on.
 */
static __always_inline bool early_ack_owes(void)
{
	return this_cpu_read(early_ack_owed);
}

/*
 * Is @cpu in one? Then it compares tlb_gen before it uses an entry. Pairs with early_ack_run():
 * after a false, its earlier stores are seen behind smp_rmb().
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
