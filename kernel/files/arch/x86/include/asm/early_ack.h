/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Early acknowledgment of TLB flushes: what is sent, and the hooks of the sender.
 * The head of arch/x86/mm/early_ack.c says how it works and why it is safe;
 * kernel/smp_early_ack.h has the hooks of the messages.
 */
#ifndef _ASM_X86_EARLY_ACK_H
#define _ASM_X86_EARLY_ACK_H

#include <linux/early_ack.h>
#include <linux/jump_label.h>
#include <linux/mm.h>
#include <linux/smp.h>
#include <linux/timex.h>
#include <linux/tracepoint-defs.h>
#include <asm/apic.h>
#include <asm/tlbflush.h>

/* arch/x86/mm/tlb.c */
void flush_tlb_func(void *info);

#ifdef CONFIG_QUELL_EARLY_ACK

DECLARE_STATIC_KEY_FALSE(early_ack_key);
DECLARE_PER_CPU(cycles_t, early_ack_ended);
DECLARE_PER_CPU(bool, early_ack_paused);
extern cycles_t early_ack_gap;
extern unsigned int early_ack_polls;
DECLARE_TRACEPOINT(early_ack_send);
DECLARE_TRACEPOINT(early_ack_wait);

/**
 * struct early_ack_request - a flush_tlb_info, as it travels
 * @mm:		to be compared only: the target may not own a reference
 * @start:	page aligned, and below that the stride_shift
 * @end:	as in flush_tlb_info
 * @new_tlb_gen: as in flush_tlb_info
 *
 * What is not here does not vary, or only the sender looks at it.
 */
struct early_ack_request {
	struct mm_struct *mm;
	unsigned long start;
	unsigned long end;
	u64 new_tlb_gen;
};

/**
 * struct early_ack_work - what a target has acknowledged and not carried out
 * @info:	one flush for all of them
 * @nr:		so many there are
 * @since:	when the first was acknowledged, if anybody wants to know
 */
struct early_ack_work {
	struct flush_tlb_info info;
	unsigned int nr;
	u64 since;
};

void early_ack_take(struct early_ack_work *work,
		    const struct early_ack_request *request);
void early_ack_carry_out(struct early_ack_work *work);
u64 __early_ack_begin(const struct flush_tlb_info *info);
void __early_ack_end(const struct flush_tlb_info *info, u64 start);

/* With a paravirtual flush everything stays as it is. */
static inline bool early_ack_native(void)
{
#ifdef CONFIG_PARAVIRT
	return pv_ops.mmu.flush_tlb_multi == native_flush_tlb_multi;
#else
	return true;
#endif
}

/*
 * May this flush be acknowledged before it is carried out? Not if the target may be
 * to change the mm (trim_cpumask; it does since 6.14), which may be gone by then.
 */
static inline bool early_ack_possible(const struct flush_tlb_info *info)
{
	return static_branch_likely(&early_ack_key) && !info->freed_tables &&
	       !info->trim_cpumask && early_ack_native();
}

/* The sender: @info goes into the message. */
static inline void early_ack_put(struct early_ack_request *request,
				 const struct flush_tlb_info *info)
{
	/* Rounding down only means that one page more is flushed. */
	request->mm = info->mm;
	request->start = (info->start & PAGE_MASK) | info->stride_shift;
	request->end = info->end;
	request->new_tlb_gen = info->new_tlb_gen;
	count_vm_event(EARLY_ACK_SENT);
}

/*
 * The sender: look whether the target has acknowledged, without PAUSE, early_ack_polls
 * times at most. Returns whether it need not look any more: it has, or it will not
 * early. Nothing is acquired.
 */
static inline bool early_ack_poll(const unsigned int *u_flags)
{
	unsigned int n;

	for (n = READ_ONCE(early_ack_polls); n; n--)
		if (!(READ_ONCE(*u_flags) & CSD_FLAG_EARLY_ACK))
			return true;
	return false;
}

/*
 * The target: has the program had its turn since the last window? In stock it has, as
 * the sender has things to do after the flush; see A5.
 */
static inline bool early_ack_may_take(void)
{
	if (this_cpu_read(early_ack_paused)) {
		this_cpu_write(early_ack_paused, false);
		return false;
	}
	return get_cycles() - this_cpu_read(early_ack_ended) >= early_ack_gap;
}

/* The target: what it gets next is carried out first and acknowledged then. */
static inline void early_ack_pause(void)
{
	this_cpu_write(early_ack_paused, true);
}

/*
 * The handlers of calls of functions begin: to tell the APIC may cost as much as all
 * the sender waits for otherwise, so that comes last, if flushes come this way at
 * all. Returns what early_ack_handled() wants; the switch may change in between.
 */
static __always_inline bool early_ack_handle(void)
{
	if (static_branch_likely(&early_ack_key) && early_ack_native())
		return true;
	apic_eoi();
	return false;
}

/* The handlers end. */
static __always_inline void early_ack_handled(bool eoi)
{
	if (eoi)
		apic_eoi();
}

/* native_flush_tlb_multi() begins. Returns what early_ack_end() wants. */
static inline u64 early_ack_begin(const struct flush_tlb_info *info)
{
	if (tracepoint_enabled(early_ack_send) || tracepoint_enabled(early_ack_wait))
		return __early_ack_begin(info);
	return 0;
}

/* The sender goes on. */
static inline void early_ack_end(const struct flush_tlb_info *info, u64 start)
{
	if (tracepoint_enabled(early_ack_wait))
		__early_ack_end(info, start);
}

#else

static __always_inline bool early_ack_handle(void)
{
	apic_eoi();
	return false;
}

static __always_inline void early_ack_handled(bool eoi)
{
}

static inline u64 early_ack_begin(const struct flush_tlb_info *info)
{
	return 0;
}

static inline void early_ack_end(const struct flush_tlb_info *info, u64 start)
{
}

#endif /* CONFIG_QUELL_EARLY_ACK */

#endif /* _ASM_X86_EARLY_ACK_H */
