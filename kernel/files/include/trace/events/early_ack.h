/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM early_ack

#if !defined(_TRACE_EARLY_ACK_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_EARLY_ACK_H

#include <linux/tracepoint.h>

/*
 * On the target, before it acknowledges the call of the last csd:csd_function_entry. @nr: earlier
 * calls that are acknowledged and have not run yet.
 */
TRACE_EVENT(early_ack_ack,

	TP_PROTO(unsigned int nr),

	TP_ARGS(nr),

	TP_STRUCT__entry(
		__field(unsigned int, nr)
	),

	TP_fast_assign(
		__entry->nr = nr;
	),

	TP_printk("nr=%u", __entry->nr)
);

#endif /* _TRACE_EARLY_ACK_H */

#include <trace/define_trace.h>
