/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Calls of functions whose argument is inlined in the message, and which may be acknowledged
 * early. For kernel/smp.c only, whose static functions this calls. The head of
 * arch/x86/mm/early_ack.c says why TLB flushes may be acknowledged before they run. Inlined
 * requests were first published by Nadav Amit (RFC v2, 2019); here a flag of each message says
 * whether it may be acknowledged early.
 *
 * smp_call_function_many_cond() has a call_single_data for each pair of CPUs. Here the rest of its
 * cache line holds a copy of the argument, so the target reads no other memory of the initiator.
 * Two flags select the treatment:
 *
 * CSD_FLAG_INLINE: the argument is in the message.
 *
 * CSD_FLAG_EARLY: the target copies the call, acknowledges it and then runs it, with interrupts
 * off throughout. So the initiator may use the message again before its function has run.
 *
 * After such calls at the head of its queue the target takes those that were queued meanwhile. An
 * initiator that queues one in that time sends no IPI (early_ack_looks()).
 *
 *  - A message has one user at a time: csd_lock() waits for the acknowledgment of the last call.
 *    An initiator that may be preempted while it waits (since 7.0) finds its message free, or
 *    waits for its next user's acknowledgment as well.
 *  - The target unlinks and copies a message before the acknowledgment. Later it uses the address
 *    for tracing only. early_ack_take()
 *  - Flushes may run in another order than they were sent. Initiators raise tlb_gen before they
 *    send, and flush_tlb_func() flushes a range only if nothing else is missing. Of several
 *    requests the first that is behind flushes everything, and the others find nothing to do.
 *  - A call that is queued without an IPI is found. Initiators read early_ack_looking after they
 *    have queued; the target clears it before its last look at the queue. A full barrier on either
 *    side makes at least one see the other. The target takes the queue whole, also calls that were
 *    added behind this one, so it needs no generation, which could wrap around. early_ack_looks(),
 *    early_ack_receive()
 *  - Such a call is carried out as if its IPI had come between the two rounds:
 *     - NMI: its initiator still waits, so one may use the stale entry. Of the calls of the first
 *       round, which are acknowledged, all have run; no window is open.
 *     - Lazy TLB: a flush of the first round may have loaded init_mm. Then the second finds another
 *       mm. Initiators raise tlb_gen before they queue, and a return to their mm compares it.
 *     - Another mm: only a flush can load one between the rounds, init_mm, as interrupts are off.
 *  - CPU hotplug: early_ack_looking is true only in early_ack_receive(), with interrupts off. A CPU
 *    goes offline in stop_machine(), so after its last look. Initiators queue with preemption
 *    disabled, so those that saw the CPU online have queued, and smpcfd_dying_cpu() takes their
 *    calls. Nobody queues then, and a CPU that comes back is not looking. take_cpu_down()
 */
#ifdef CONFIG_QUELL_EARLY_ACK

#include <linux/bits.h>
#include <linux/delay.h>
#include <linux/early_ack.h>
#include <linux/irq_work.h>
#include <linux/mm.h>
#include <linux/quell_mutants.h>
#include <linux/string.h>
#include <linux/vmstat.h>

#define CREATE_TRACE_POINTS
#include <trace/events/early_ack.h>
#undef CREATE_TRACE_POINTS

/* Beside SCF_WAIT and SCF_RUN_LOCAL. */
#define SCF_INLINE	BIT(2)
#define SCF_EARLY	BIT(3)

/* Calls that are acknowledged before the first of them runs, at the most. */
#define EARLY_ACK_BATCH	4

/* A call_single_data with an inlined argument. */
struct early_ack_message {
	struct __call_single_node node;
	smp_call_func_t func;
	u8 info[EARLY_ACK_INFO_SIZE] __aligned(sizeof(u64));
} __aligned(EARLY_ACK_CSD_SIZE);

static_assert(sizeof(struct early_ack_message) == EARLY_ACK_CSD_SIZE);
static_assert(offsetof(struct early_ack_message, info) ==
	      offsetof(struct __call_single_data, info));

/* A call that was acknowledged and has not run. @csd: for tracing only. */
struct early_ack_work {
	u8 info[EARLY_ACK_INFO_SIZE] __aligned(sizeof(u64));
	smp_call_func_t func;
	call_single_data_t *csd;
};

DEFINE_PER_CPU(bool, early_ack_owed);

/* Calls that are queued for this CPU now need no IPI. */
static DEFINE_PER_CPU_SHARED_ALIGNED(bool, early_ack_looking);

static u8 *early_ack_info(call_single_data_t *csd)
{
	return ((struct early_ack_message *)csd)->info;
}

/* --- Mutations ----------------------------------------------------------------- */

#ifdef CONFIG_QUELL_MUTANTS

struct early_ack_late {
	struct irq_work irq_work;
	struct early_ack_work work;
};

static void early_ack_run_late(struct irq_work *irq_work)
{
	struct early_ack_late *late = container_of(irq_work, struct early_ack_late, irq_work);

	late->work.func(late->work.info);
}

static DEFINE_PER_CPU(struct early_ack_late, early_ack_late) = {
	.irq_work = IRQ_WORK_INIT_LAZY(early_ack_run_late),
};

/* Keep an ack-to-flush window open: arch/x86/mm/tests/early_ack_nmi.h. */
static void early_ack_stretch(void)
{
	mdelay(READ_ONCE(early_ack_window_us) / USEC_PER_MSEC);
	udelay(READ_ONCE(early_ack_window_us) % USEC_PER_MSEC);
}

/* Returns whether @work must not run now. */
static bool early_ack_misbehave(const struct early_ack_work *work)
{
	struct early_ack_late *late = this_cpu_ptr(&early_ack_late);

	if (quell_mutant(EARLY_ACK_FLUSH_LATER)) {
		late->work = *work;
		irq_work_queue(&late->irq_work);
	}
	return quell_mutant(EARLY_ACK_NO_FLUSH) || quell_mutant(EARLY_ACK_FLUSH_LATER);
}

#else

static void early_ack_stretch(void)
{
}

static bool early_ack_misbehave(const struct early_ack_work *work)
{
	return false;
}

#endif /* CONFIG_QUELL_MUTANTS */

/* --- The initiator --------------------------------------------------------------- */

/* Inline @info in @csd, which has its function and is queued next. */
static __always_inline void early_ack_post(call_single_data_t *csd, const void *info,
					   unsigned int scf_flags)
{
	if (!(scf_flags & SCF_INLINE))
		return;
	memcpy(early_ack_info(csd), info, EARLY_ACK_INFO_SIZE);
	csd->node.u_flags |= CSD_FLAG_INLINE;
	if (scf_flags & SCF_EARLY)
		csd->node.u_flags |= CSD_FLAG_EARLY;
}

/* A call was added to @cpu's queue, which was empty: is it found without an IPI? */
static __always_inline bool early_ack_looks(int cpu)
{
	/* After llist_add(), a full barrier. Pairs with early_ack_receive(). */
	if (!READ_ONCE(per_cpu(early_ack_looking, cpu)))
		return false;
	count_vm_event(EARLY_ACK_MERGED);
	return true;
}

/* --- The target ------------------------------------------------------------------- */

/* Run the @nr calls of @work, and end the ack-to-flush window. */
static noinline void early_ack_run(struct early_ack_work *work, unsigned int nr)
{
	unsigned int i;

	early_ack_stretch();
	for (i = 0; i < nr; i++)
		if (!early_ack_misbehave(&work[i]))
			work[i].func(work[i].info);
	/* After the calls. Pairs with luf_cpu_behind(): luf_debug_cpu comes first. */
	smp_store_release(this_cpu_ptr(&early_ack_owed), false);
	count_vm_events(EARLY_ACK_ACKED, nr);
	for (i = 0; i < nr; i++)
		trace_csd_function_exit(work[i].func, work[i].csd);
}

/*
 * Copy @csd, which is off the list, to @work behind its first @nr calls, and acknowledge it. Then
 * its initiator may use it again.
 */
static noinline void early_ack_take(struct early_ack_work *work, unsigned int nr,
				    call_single_data_t *csd)
{
	work += nr;
	work->func = csd->func;
	work->csd = csd;
	memcpy(work->info, early_ack_info(csd), EARLY_ACK_INFO_SIZE);
	trace_csd_function_entry(csd->func, csd);
	trace_early_ack_ack(nr);
	/* Before the acknowledgment, a release. */
	if (!quell_mutant(EARLY_ACK_NOT_OWED))
		this_cpu_write(early_ack_owed, true);
	csd_unlock(csd);
}

static bool early_ack_is_inline(const call_single_data_t *csd)
{
	return (csd->node.u_flags & (CSD_FLAG_TYPE_MASK | CSD_FLAG_INLINE)) ==
	       (CSD_TYPE_SYNC | CSD_FLAG_INLINE);
}

/* Run the calls with CSD_FLAG_INLINE of @entry, and return the others. */
static struct llist_node *early_ack_run_inline(struct llist_node *entry)
{
	struct early_ack_work work[EARLY_ACK_BATCH] __uninitialized;
	call_single_data_t *csd, *next;
	struct llist_node *prev = NULL;
	unsigned int nr = 0;

	llist_for_each_entry_safe(csd, next, entry, node.llist) {
		if (!early_ack_is_inline(csd)) {
			prev = &csd->node.llist;
			continue;
		}
		if (prev)
			prev->next = &next->node.llist;
		else
			entry = &next->node.llist;

		if (csd->node.u_flags & CSD_FLAG_EARLY) {
			early_ack_take(work, nr++, csd);
			if (nr < EARLY_ACK_BATCH)
				continue;
			early_ack_run(work, nr);
			nr = 0;
			continue;
		}
		/* No other call runs in an ack-to-flush window. */
		if (nr)
			early_ack_run(work, nr);
		nr = 0;
		csd_lock_record(csd);
		csd_do_func(csd->func, early_ack_info(csd), csd);
		csd_unlock(csd);
		csd_lock_record(NULL);
	}
	if (nr)
		early_ack_run(work, nr);
	return entry;
}

/*
 * Run the inlined calls of @entry, the emptied queue, and then those that came during this first
 * round. Both precede all other calls, which are returned. Interrupts are off.
 *
 * Two rounds at most, so that a stream of initiators cannot keep a CPU here.
 */
static struct llist_node *early_ack_receive(struct llist_node *entry)
{
	struct llist_head *queue = this_cpu_ptr(&call_single_queue);
	struct llist_node *more, **tail = &entry;

	if (!entry)
		return NULL;
	if (!early_ack_is_inline(llist_entry(entry, call_single_data_t, node.llist)))
		return early_ack_run_inline(entry);

	WRITE_ONCE(*this_cpu_ptr(&early_ack_looking), true);
	entry = early_ack_run_inline(entry);
	/* Pairs with early_ack_looks(): it sees this, or its call is in the queue now. */
	smp_store_mb(*this_cpu_ptr(&early_ack_looking), false);
	if (llist_empty(queue))
		return entry;
	more = early_ack_run_inline(llist_reverse_order(llist_del_all(queue)));
	while (*tail)
		tail = &(*tail)->next;
	*tail = more;
	return entry;
}

/* --- The interface ------------------------------------------------------------------ */

static void smp_call_function_many_cond(const struct cpumask *mask,
					smp_call_func_t func, void *info,
					unsigned int scf_flags,
					smp_cond_func_t cond_func);

/**
 * early_ack_call - on_each_cpu_cond_mask() with the argument in the message
 * @cond_func:	called for each CPU of @mask: does it get the call? NULL: all do
 * @func:	called with interrupts off; must not touch user memory
 * @info:	EARLY_ACK_INFO_SIZE bytes; @func gets a copy, on this CPU the original
 * @early:	return once the other CPUs have acknowledged; else once @func has run there
 * @mask:	CPUs; offline ones are ignored
 *
 * With @early each CPU runs @func before anything but other such calls. Waits for the other CPUs.
 * Process context, interrupts on; before Linux 7.0 with preemption disabled.
 */
void early_ack_call(smp_cond_func_t cond_func, smp_call_func_t func, void *info,
		    bool early, const struct cpumask *mask)
{
	smp_call_function_many_cond(mask, func, info, SCF_RUN_LOCAL | SCF_WAIT |
				    SCF_INLINE | (early ? SCF_EARLY : 0), cond_func);
}

#else

static __always_inline void early_ack_post(call_single_data_t *csd, const void *info,
					   unsigned int scf_flags)
{
}

static __always_inline bool early_ack_looks(int cpu)
{
	return false;
}

static struct llist_node *early_ack_receive(struct llist_node *entry)
{
	return entry;
}

#endif /* CONFIG_QUELL_EARLY_ACK */
