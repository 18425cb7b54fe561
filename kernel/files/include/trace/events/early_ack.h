/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM early_ack

#if !defined(_TRACE_EARLY_ACK_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_EARLY_ACK_H

#include <linux/tracepoint.h>

/* The sender: a flush begins, local and remote. @early: need not be carried out. */
TRACE_EVENT(early_ack_send,

	TP_PROTO(unsigned long pages, u64 tlb_gen, bool early),

	TP_ARGS(pages, tlb_gen, early),

	TP_STRUCT__entry(
		__field(unsigned long, pages)
		__field(u64, tlb_gen)
		__field(bool, early)
	),

	TP_fast_assign(
		__entry->pages = pages;
		__entry->tlb_gen = tlb_gen;
		__entry->early = early;
	),

	TP_printk("pages=%ld tlb_gen=%llu early=%d",
		  __entry->pages, __entry->tlb_gen, __entry->early)
);

/*
 * The target: a request is about to be acknowledged, that of the csd:csd_function_entry
 * before it.
 */
TRACE_EVENT(early_ack_ack,

	TP_PROTO(unsigned long pages, u64 tlb_gen, bool merged),

	TP_ARGS(pages, tlb_gen, merged),

	TP_STRUCT__entry(
		__field(unsigned long, pages)
		__field(u64, tlb_gen)
		__field(bool, merged)
	),

	TP_fast_assign(
		__entry->pages = pages;
		__entry->tlb_gen = tlb_gen;
		__entry->merged = merged;
	),

	TP_printk("pages=%ld tlb_gen=%llu merged=%d",
		  __entry->pages, __entry->tlb_gen, __entry->merged)
);

/* The target: what it acknowledged is carried out, so long after the first. */
TRACE_EVENT(early_ack_flush,

	TP_PROTO(unsigned int requests, u64 duration),

	TP_ARGS(requests, duration),

	TP_STRUCT__entry(
		__field(unsigned int, requests)
		__field(u64, duration)
	),

	TP_fast_assign(
		__entry->requests = requests;
		__entry->duration = duration;
	),

	TP_printk("requests=%u duration=%llu",
		  __entry->requests, __entry->duration)
);

/* The sender goes on, so many ns after early_ack_send. */
TRACE_EVENT(early_ack_wait,

	TP_PROTO(unsigned long pages, u64 duration, bool early),

	TP_ARGS(pages, duration, early),

	TP_STRUCT__entry(
		__field(unsigned long, pages)
		__field(u64, duration)
		__field(bool, early)
	),

	TP_fast_assign(
		__entry->pages = pages;
		__entry->duration = duration;
		__entry->early = early;
	),

	TP_printk("pages=%ld duration=%llu early=%d",
		  __entry->pages, __entry->duration, __entry->early)
);

#endif /* _TRACE_EARLY_ACK_H */

#include <trace/define_trace.h>
