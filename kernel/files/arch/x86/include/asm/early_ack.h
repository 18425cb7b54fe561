/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Early acknowledgment of TLB flushes: the hook of native_flush_tlb_multi(). See
 * arch/x86/mm/early_ack.c.
 */
#ifndef _ASM_X86_EARLY_ACK_H
#define _ASM_X86_EARLY_ACK_H

#include <linux/early_ack.h>
#include <linux/jump_label.h>
#include <asm/tlbflush.h>

#ifdef CONFIG_QUELL_EARLY_ACK

DECLARE_STATIC_KEY_FALSE(early_ack_key);

/* Do call-function messages carry the flush requests? */
static inline bool early_ack_on(void)
{
	return static_branch_likely(&early_ack_key);
}

/* Does @mm move to an ASID that is flushed by INVLPGB? */
static inline bool early_ack_asid_moves(struct mm_struct *mm)
{
#ifdef CONFIG_BROADCAST_TLB_FLUSH
	return mm_in_asid_transition(mm);
#else
	return false;
#endif
}

/*
 * May the target acknowledge @info before it flushes? Not with trim_cpumask: since 6.14 the target
 * then writes to the mm, which may be gone.
 */
static inline bool early_ack_possible(const struct flush_tlb_info *info)
{
	return !info->freed_tables && !info->trim_cpumask && !early_ack_asid_moves(info->mm);
}

#else

static inline bool early_ack_on(void)
{
	return false;
}

static inline bool early_ack_possible(const struct flush_tlb_info *info)
{
	return false;
}

static inline void early_ack_call(smp_cond_func_t cond_func, smp_call_func_t func,
				  void *info, bool early, const struct cpumask *mask)
{
}

#endif /* CONFIG_QUELL_EARLY_ACK */

#endif /* _ASM_X86_EARLY_ACK_H */
