/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM writeout_batch

#if !defined(_TRACE_WRITEOUT_BATCH_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_WRITEOUT_BATCH_H

#include <linux/tracepoint.h>

TRACE_EVENT(writeout_batch_flush,

	TP_PROTO(unsigned int nr_folios),

	TP_ARGS(nr_folios),

	TP_STRUCT__entry(
		__field(unsigned int, nr_folios)
	),

	TP_fast_assign(
		__entry->nr_folios = nr_folios;
	),

	TP_printk("nr_folios=%u", __entry->nr_folios)
);

#endif /* _TRACE_WRITEOUT_BATCH_H */

#include <trace/define_trace.h>
