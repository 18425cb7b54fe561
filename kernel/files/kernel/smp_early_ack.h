/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Early acknowledgment of TLB flushes: the messages. For kernel/smp.c only, whose
 * static functions this calls. arch/x86/mm/early_ack.c says why it is safe.
 *
 * The message is a call of flush_tlb_func() that waits, as in stock, with the
 * request behind it on the same cache line and a flag that says so. A target that
 * does not look at the flag carries it out as any other call and acknowledges
 * afterwards; so the switch may change while messages are on their way.
 */
#ifdef CONFIG_QUELL_EARLY_ACK

#include <asm/early_ack.h>

/* All of smp_call_function_many_cond()'s call_single_data are in one of these. */
struct early_ack_message {
	call_single_data_t csd;
	struct early_ack_request request;
} __aligned(EARLY_ACK_CSD_SIZE);

static_assert(sizeof(struct early_ack_message) == EARLY_ACK_CSD_SIZE);

/* For csd_lock_record(): what a CPU is at that has nothing left to unlock. */
static call_single_data_t early_ack_csd = CSD_INIT(flush_tlb_func, NULL);

static struct early_ack_request *early_ack_request(call_single_data_t *csd)
{
	return &container_of(csd, struct early_ack_message, csd)->request;
}

/* @csd is about to be queued: does it say all that has to be known? */
static __always_inline void early_ack_post(call_single_data_t *csd)
{
	if (csd->func != flush_tlb_func || !early_ack_possible(csd->info))
		return;
	early_ack_put(early_ack_request(csd), csd->info);
	csd->node.u_flags |= CSD_FLAG_EARLY_ACK;
}

/* csd_lock_wait() for @csd is next. */
static __always_inline void early_ack_await(call_single_data_t *csd)
{
	if (static_branch_likely(&early_ack_key))
		early_ack_poll(&csd->node.u_flags);
}

static __always_inline bool early_ack_is_posted(call_single_data_t *csd)
{
	return (csd->node.u_flags & (CSD_FLAG_TYPE_MASK | CSD_FLAG_EARLY_ACK)) ==
	       (CSD_TYPE_SYNC | CSD_FLAG_EARLY_ACK);
}

/*
 * Take the flushes off the list, acknowledge them, then carry them out. Before
 * anything else that is on the list: nobody else's function may run while they are
 * owed. Interrupts off. Returns the rest of the list.
 */
static struct llist_node *early_ack_receive(struct llist_node *entry)
{
	call_single_data_t *csd, *next, *first = NULL;
	struct llist_node *prev = NULL;
	/* Not zeroed for every interrupt: early_ack_take() fills it. */
	struct early_ack_work work __uninitialized;

	/* The others are acknowledged when they were carried out, as in stock. */
	if (!static_branch_likely(&early_ack_key) || !early_ack_may_take())
		return entry;

	work.nr = 0;
	llist_for_each_entry_safe(csd, next, entry, node.llist) {
		if (!early_ack_is_posted(csd)) {
			prev = &csd->node.llist;
			continue;
		}
		/* As soon as it is unlocked its sender may use it again. */
		if (prev)
			prev->next = &next->node.llist;
		else
			entry = &next->node.llist;

		if (!first) {
			first = csd;
			csd_lock_record(&early_ack_csd);
		}
		trace_csd_function_entry(csd->func, csd);
		early_ack_take(&work, early_ack_request(csd));
		if (csd != first)
			trace_csd_function_exit(csd->func, csd);
		csd_unlock(csd);
	}

	if (first) {
		early_ack_carry_out(&work);
		/* Sent in the window: A5. */
		if (!llist_empty(this_cpu_ptr(&call_single_queue)))
			early_ack_pause();
		trace_csd_function_exit(flush_tlb_func, first);
		csd_lock_record(NULL);
	}
	return entry;
}

#else

static __always_inline void early_ack_post(call_single_data_t *csd)
{
}

static __always_inline void early_ack_await(call_single_data_t *csd)
{
}

static __always_inline struct llist_node *early_ack_receive(struct llist_node *entry)
{
	return entry;
}

#endif /* CONFIG_QUELL_EARLY_ACK */
