/* SPDX-License-Identifier: GPL-2.0-only */
/* Common parts of the tests of lazy unmap flush: its tunables. */
#ifndef QUELL_LUF_H
#define QUELL_LUF_H

#include "pages.h"
#include "system.h"

#define LUF		QUELL_SYSFS "luf/"
#define STALE_MS	LUF "max_stale_ms"
/* For tests: pages of a full deferred-free list; 0: by the watermarks. */
#define LOT_PAGES	"/sys/module/luf_lot/parameters/pages"

/* Until restore_lot_pages() or exit. */
void set_lot_pages(const char *pages);
void restore_lot_pages(void);

/* The beginning of names of tests that run; "": all. */
extern const char *only;

bool wanted(const char *name);

/* Skips all tests without lazy unmap flush. */
void need_luf(void);
void drain_luf(void);

/* No stale-TLB window ends by time before release_windows() or exit. */
void hold_windows(void);
void release_windows(void);

/* Since boot. */
long luf_given_back(void);

#endif /* QUELL_LUF_H */
