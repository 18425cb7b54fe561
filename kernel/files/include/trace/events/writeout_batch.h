/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM writeout_batch

#if !defined(_TRACE_WRITEOUT_BATCH_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_WRITEOUT_BATCH_H

#include <linux/tracepoint.h>

TRACE_EVENT(writeout_batch_flush,

	TP_PROTO(unsigned int nr_pages),

	TP_ARGS(nr_pages),

	TP_STRUCT__entry(
		__field(unsigned int, nr_pages)
	),

	TP_fast_assign(
		__entry->nr_pages = nr_pages;
	),

	TP_printk("nr_pages=%u", __entry->nr_pages)
);

#endif /* _TRACE_WRITEOUT_BATCH_H */

#include <trace/define_trace.h>
