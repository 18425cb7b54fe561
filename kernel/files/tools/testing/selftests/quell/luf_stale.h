/* SPDX-License-Identifier: GPL-2.0-only */
/* Parts of the test of stale TLB entries: see luf_stale.c. */
#ifndef QUELL_LUF_STALE_H
#define QUELL_LUF_STALE_H

#include "luf_reader.h"

#define DEBUGFS	"/sys/kernel/debug/"

/* luf_stale.c */
extern char path[4096], other_path[4096 + 8];
extern int rounds;

/* luf_stale_races.c */
void race_open(void);
void race_drains(void);
void race_drain_open(void);
void drain_own(void);
void keep_and_free(void);

/* luf_stale_deferral.c */
void try_to_park(const char *name, const char *file, bool writer, bool expected);
void mount_debugfs(void);
void fail_a_write(void);
void write_atomically(void);
void write_bitmap(void);
long park_again(volatile uint64_t *map);
unsigned long frame_of(const volatile void *address);
void offline_parked(const char *how);
void park_long_list(void);
void look_at_time(void);
void look_at_available(void);

/* luf_stale_swap.c */
void come_back_in_window(void);

/* luf_stale_quota.c */
void switch_quota_on(void);

/* luf_stale_cma.c */
void take_cma(bool park);

#endif /* QUELL_LUF_STALE_H */
