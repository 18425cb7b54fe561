/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The system around a test: settings, swap, a memory cgroup and the kernel's log. Needs
 * root. All settings are restored at exit.
 *
 * Large folios are swapped out whole to block devices only, and split for a swap file. A loop
 * device over a memfd writes in the background: folios stay in the swap cache, and faults find
 * them there. A RAM disk (a free /dev/ram0 of SWAP_MB or more, brd.rd_size) is synchronous:
 * folios leave at once, and faults bypass the swap cache.
 */
#ifndef QUELL_SYSTEM_H
#define QUELL_SYSTEM_H

#include "util.h"

/* --- Settings: settings.c ------------------------------------------------ */

#define THP		"/sys/kernel/mm/transparent_hugepage/"
#define NUMA_BALANCING	"/proc/sys/kernel/numa_balancing"

/* A file that this process restores at exit; the last one first. Nothing if it is missing. */
void save_setting(const char *path);
void restore_settings(void);

/* Sizes of anonymous and shared folios, and the switch of rmap_batch. */
void save_system(void);
/* MADV_HUGEPAGE gives folios of @kb, a sum of sizes, and no others. */
void choose_thp(unsigned int kb);

/* Quell's switches; -1 if there is none. */
int get_switch(const char *name);
/* Saves it first, unless a child does. */
void set_switch(const char *name, bool on);

void watch_kernel_log(void);
/*
 * The first complaint since the last call, or NULL. Without data races (KCSAN): stock has
 * some.
 */
const char *kernel_complaint(void);

/* --- Swap: swap.c -------------------------------------------------------- */

#define RAM_DISK	"/dev/ram0"
#define SWAP_MB		32UL

enum swap { RAM, LOOP, SWAP_FILE, SWAPS };

extern const char * const swap_names[];
extern const char *swap_file;		/* of SWAP_FILE, which stays; NULL: none */

/* Only a RAM disk of @least bytes that is unused and empty. */
bool make_ram_swap(unsigned long least);
bool swap_on(enum swap which);
/* @flags: further ones of swapon() */
bool swap_on_with(enum swap which, int flags);
bool swap_is_on(enum swap which);
bool swap_off(enum swap which);
bool swap_off_in_time(enum swap which);

/* --- A memory cgroup: cgroup.c ------------------------------------------- */

extern char cgroup[128];		/* "" without one */

void cgroup_path(char *path, size_t size, const char *file);
bool make_cgroup(const char *name);
bool enter_cgroup(void);
void leave_cgroup(void);
void remove_cgroup(void);
void reclaim_cgroup(unsigned long bytes, bool anonymous);
/*
 * The cgroup's remaining memory once its processes have ended, or "". Statistics may be
 * late by seconds.
 */
const char *cgroup_rest(void);

#endif /* QUELL_SYSTEM_H */
