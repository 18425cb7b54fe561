/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM luf

#if !defined(_TRACE_LUF_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_LUF_H

#include <linux/fs.h>
#include <linux/tracepoint.h>

TRACE_DEFINE_ENUM(LUF_DRAIN_FULL);
TRACE_DEFINE_ENUM(LUF_DRAIN_ALLOC);
TRACE_DEFINE_ENUM(LUF_DRAIN_KSWAPD);
TRACE_DEFINE_ENUM(LUF_DRAIN_STALE);
TRACE_DEFINE_ENUM(LUF_DRAIN_OTHER);

#define show_luf_drain_reason(reason)		\
	__print_symbolic(reason,		\
		{ LUF_DRAIN_FULL,	"full" },	\
		{ LUF_DRAIN_ALLOC,	"alloc" },	\
		{ LUF_DRAIN_KSWAPD,	"kswapd" },	\
		{ LUF_DRAIN_STALE,	"stale" },	\
		{ LUF_DRAIN_OTHER,	"other" })

TRACE_EVENT(luf_park,

	TP_PROTO(int nid, unsigned long nr_pages, u64 label),

	TP_ARGS(nid, nr_pages, label),

	TP_STRUCT__entry(
		__field(int, nid)
		__field(unsigned long, nr_pages)
		__field(u64, label)
	),

	TP_fast_assign(
		__entry->nid = nid;
		__entry->nr_pages = nr_pages;
		__entry->label = label;
	),

	TP_printk("nid=%d nr_pages=%lu label=%llu",
		  __entry->nid, __entry->nr_pages, __entry->label)
);

TRACE_EVENT(luf_flush,

	TP_PROTO(u64 label),

	TP_ARGS(label),

	TP_STRUCT__entry(
		__field(u64, label)
	),

	TP_fast_assign(
		__entry->label = label;
	),

	TP_printk("label=%llu", __entry->label)
);

TRACE_EVENT(luf_drain,

	TP_PROTO(int nid, unsigned long nr_pages, int reason),

	TP_ARGS(nid, nr_pages, reason),

	TP_STRUCT__entry(
		__field(int, nid)
		__field(unsigned long, nr_pages)
		__field(int, reason)
	),

	TP_fast_assign(
		__entry->nid = nid;
		__entry->nr_pages = nr_pages;
		__entry->reason = reason;
	),

	TP_printk("nid=%d nr_pages=%lu reason=%s",
		  __entry->nid, __entry->nr_pages,
		  show_luf_drain_reason(__entry->reason))
);

/* Once for each file. */
TRACE_EVENT(luf_exclude,

	TP_PROTO(struct inode *inode),

	TP_ARGS(inode),

	TP_STRUCT__entry(
		__field(dev_t, dev)
		__field(unsigned long, ino)
	),

	TP_fast_assign(
		__entry->dev = inode->i_sb->s_dev;
		__entry->ino = inode->i_ino;
	),

	TP_printk("dev=%d:%d ino=%lu",
		  MAJOR(__entry->dev), MINOR(__entry->dev), __entry->ino)
);

#endif /* _TRACE_LUF_H */

#include <trace/define_trace.h>
