/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lazy unmap flush: what mm/luf.c, which knows the flushes that are owed, and
 * mm/luf_lot.c, which has the folios that wait for them, ask of each other.
 */
#ifndef _MM_LUF_LOT_H
#define _MM_LUF_LOT_H

#include <linux/migrate_mode.h>
#include <linux/types.h>

struct folio;

/* mm/luf.c */
u64 luf_now(void);
u64 luf_done(void);
bool luf_owes(void);
u64 luf_aged(u64 oldest);
bool luf_flush(u64 need);

/* mm/luf_lot.c */
bool luf_hold(struct folio *folio);
void luf_keep_closing(void);

/* These want the frame itself, or hand it to somebody else. */
static inline bool luf_wants_frame(enum migrate_reason reason)
{
	return reason == MR_MEMORY_FAILURE || reason == MR_CONTIG_RANGE ||
	       reason == MR_MEMORY_HOTPLUG || reason == MR_LONGTERM_PIN;
}

#endif /* _MM_LUF_LOT_H */
