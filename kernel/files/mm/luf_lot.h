/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lazy unmap flush: the interface between mm/luf.c (pending CPUs) and mm/luf_lot.c (deferred-free
 * lists).
 */
#ifndef _MM_LUF_LOT_H
#define _MM_LUF_LOT_H

#include <linux/types.h>

struct folio;

/* mm/luf.c */
u64 luf_now(void);
u64 luf_done(void);
u64 luf_aged(void);
bool luf_flush(u64 need);

/* mm/luf_lot.c */
bool luf_hold(struct folio *folio);
void luf_keep_closing(void);

#endif /* _MM_LUF_LOT_H */
