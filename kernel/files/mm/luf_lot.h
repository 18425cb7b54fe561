/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lazy unmap flush: the interface between mm/luf.c (pending CPUs) and mm/luf_lot.c (deferred-free
 * lists).
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

/* These migrations need the frame itself, or hand it to another owner. */
static inline bool luf_wants_frame(enum migrate_reason reason)
{
	return reason == MR_MEMORY_FAILURE || reason == MR_CONTIG_RANGE ||
	       reason == MR_MEMORY_HOTPLUG || reason == MR_LONGTERM_PIN;
}

#endif /* _MM_LUF_LOT_H */
