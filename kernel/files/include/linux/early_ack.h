/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Early acknowledgment of TLB flushes: what others than the flush itself have to
 * know. See arch/x86/mm/early_ack.c.
 */
#ifndef _LINUX_EARLY_ACK_H
#define _LINUX_EARLY_ACK_H

#include <linux/percpu-defs.h>
#include <linux/smp.h>
#include <linux/types.h>

#ifdef CONFIG_QUELL_EARLY_ACK

/* A call_single_data of kernel/smp.c and the request behind it: a cache line. */
#define EARLY_ACK_CSD_SIZE	64

DECLARE_PER_CPU(bool, early_ack_owed);

/*
 * Has this CPU acknowledged a flush that it has not carried out yet? Then it must
 * not touch user memory. Only an NMI, or what is attached to a function or a
 * tracepoint, may find it so. False wherever interrupts are on.
 */
static __always_inline bool early_ack_owes(void)
{
	return this_cpu_read(early_ack_owed);
}

/*
 * Has @cpu? If so, it compares tlb_gen before it uses an entry. Pairs with
 * early_ack_carry_out(): what it did before it says no is seen after smp_rmb().
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
