/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Calls of functions with the argument in the message, and acknowledged early. For
 * kernel/smp.c only, whose static functions this calls. The argument why early
 * acknowledgment of a TLB flush is safe is at the head of arch/x86/mm/early_ack.c.
 *
 * smp_call_function_many_cond() has a call_single_data for each pair of CPUs. Here it
 * is the beginning of a cache line whose rest holds a copy of the argument, so the
 * target reads nothing else of the initiator's memory. Two bits say what to do:
 *
 * CSD_FLAG_INLINE	The argument is in the message.
 * CSD_FLAG_EARLY	The target copies the call, acknowledges it and then runs it, with
 *			interrupts off all the while. So the initiator can use the message
 *			again before its function has run.
 *
 * After a batch of such calls the target takes what was queued meanwhile. An initiator
 * that queues a call in that time sends no interrupt (early_ack_looks()).
 */
#ifdef CONFIG_QUELL_EARLY_ACK

#include <linux/bits.h>
#include <linux/early_ack.h>
#include <linux/irq_work.h>
#include <linux/quell_mutants.h>
#include <linux/string.h>
#include <linux/vmstat.h>

#define CREATE_TRACE_POINTS
#include <trace/events/early_ack.h>
#undef CREATE_TRACE_POINTS

/* Beside SCF_WAIT and SCF_RUN_LOCAL. */
#define SCF_INLINE	BIT(2)
#define SCF_EARLY	BIT(3)

/* So many calls are acknowledged before the first of them runs. */
#define EARLY_ACK_BATCH	4

/* A call_single_data, longer. */
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

/* Calls that are queued for this CPU now are found without an interrupt. */
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

/* Returns whether that is all that happens to @work. */
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

static bool early_ack_misbehave(const struct early_ack_work *work)
{
	return false;
}

#endif /* CONFIG_QUELL_MUTANTS */

/* --- The initiator --------------------------------------------------------------- */

/* @csd has its function, and is queued next. */
static __always_inline void early_ack_post(call_single_data_t *csd, const void *info,
					   unsigned int scf_flags)
{
	if (!(scf_flags & SCF_INLINE))
		return;
	memcpy(early_ack_info(csd), info, EARLY_ACK_INFO_SIZE);
	csd->node.u_flags |= CSD_FLAG_INLINE;
	if (scf_flags & SCF_EARLY) {
		csd->node.u_flags |= CSD_FLAG_EARLY;
		count_vm_event(EARLY_ACK_SENT);
	}
}

/* A call was added to @cpu's queue, which was empty: is it found without an interrupt? */
static __always_inline bool early_ack_looks(int cpu)
{
	/* After llist_add(), a full barrier. Pairs with early_ack_receive(). */
	if (!READ_ONCE(per_cpu(early_ack_looking, cpu)))
		return false;
	count_vm_event(EARLY_ACK_MERGED);
	return true;
}

/* --- The target ------------------------------------------------------------------- */

/* Run the @nr calls of @work. This CPU owes nothing afterwards. */
static noinline void early_ack_run(struct early_ack_work *work, unsigned int nr)
{
	unsigned int i;

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
 * @csd is off the list: copy it to @work, where @nr are already, and acknowledge it. Its
 * initiator may use it again then.
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

/* Returns @entry without the calls with CSD_FLAG_INLINE, which have run. */
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
		/* Nothing else runs while calls are owed. */
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
 * The queue was emptied, @entry is what was in it. Runs the calls whose argument is in
 * the message, before all others, and then those that came during the first round.
 * Interrupts off. Returns the other calls.
 *
 * Twice at most, so that initiators without a pause cannot keep a CPU here.
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
 * @cond_func:	asked for each CPU of @mask whether it gets the call; or NULL
 * @func:	called with interrupts off; must not touch user memory
 * @info:	EARLY_ACK_INFO_SIZE bytes: @func gets a copy of them, on this CPU the original
 * @early:	return when the other CPUs have received the call; else when it has run there
 * @mask:	CPUs; only those that are online count
 *
 * With @early each CPU runs @func before anything else but other such calls. Process
 * context, interrupts on. Preemption disabled before Linux 7.0.
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
