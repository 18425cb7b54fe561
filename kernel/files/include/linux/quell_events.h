/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The counters of the mechanisms of CONFIG_QUELL in /proc/vmstat, for enum vm_event_item and
 * vmstat_text[], which define QUELL_EVENT(item, text).
 */
#include <linux/version.h>

#ifdef CONFIG_QUELL_LUF
QUELL_EVENT(LUF_PARK, "luf_park")		/* pages put on deferred-free lists */
QUELL_EVENT(LUF_MIGRATE, "luf_migrate")		/* of these, by migration */
QUELL_EVENT(LUF_RELEASE_AGED, "luf_release_aged") /* of these, released without an IPI */
QUELL_EVENT(LUF_FLUSH, "luf_flush")		/* flushes for pages that wait, and for writers */
QUELL_EVENT(LUF_KEPT_FOLIO, "luf_kept")		/* folios unmapped lazily, then not freed */
QUELL_EVENT(LUF_WRITE, "luf_write")		/* opens, exclusions, faults that flushed */
#endif
#ifdef CONFIG_QUELL_WRITEOUT_BATCH
QUELL_EVENT(WRITEOUT_BATCH_FLUSH, "writeout_batch_flush") /* flushes before folios are written */
QUELL_EVENT(WRITEOUT_BATCH_FOLIOS, "writeout_batch_folios") /* folios that they served */
#endif
#ifdef CONFIG_QUELL_GATHER_RANGE
/* overlapping gathers that flushed their range only */
QUELL_EVENT(GATHER_RANGE_FLUSH, "gather_range_flush")
#endif
#ifdef CONFIG_QUELL_RMAP_BATCH
QUELL_EVENT(RMAP_BATCH_RUNS, "rmap_batch_runs")	/* runs of PTEs of large folios */
QUELL_EVENT(RMAP_BATCH_PAGES, "rmap_batch_pages") /* PTEs in these runs */
#endif
#ifdef CONFIG_QUELL_EARLY_ACK
QUELL_EVENT(EARLY_ACK_ACKED, "early_ack_acked")	/* calls that were acknowledged before they ran */
QUELL_EVENT(EARLY_ACK_MERGED, "early_ack_merged") /* calls that needed no IPI of their own */
#endif
#ifdef CONFIG_QUELL_FOLIO_ORDER
QUELL_EVENT(FOLIO_ORDER_ALLOC, "folio_order_alloc") /* large folios of faults */
QUELL_EVENT(FOLIO_ORDER_PRESSURE, "folio_order_pressure") /* memory short or fragmented */
QUELL_EVENT(FOLIO_ORDER_UNUSED, "folio_order_unused") /* blocks that were found unused */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 15, 0)
QUELL_EVENT(FOLIO_ORDER_REUSE, "folio_order_reuse") /* pages not copied after fork */
#endif
QUELL_EVENT(FOLIO_ORDER_SPLIT, "folio_order_split") /* partially mapped, or to be moved */
QUELL_EVENT(FOLIO_ORDER_UNDERUSED, "folio_order_underused") /* had zeroes when reclaimed */
#endif
#undef QUELL_EVENT
