/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Page tables and frames: /proc/self/pagemap, folio sizes, NUMA nodes, userfaultfd, and
 * page-out beside a busy CPU.
 */
#ifndef QUELL_PAGES_H
#define QUELL_PAGES_H

#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "util.h"
/* After util.h: vm_util.h of Linux 6.12 includes no stdio.h. */
#include "mm/vm_util.h"

/* Pages of the small mappings below. */
#define PAGES	64
#define SIZE	(PAGES * PAGE)

/* /proc/kpageflags; vm_util.h of Linux 6.12 has none. */
#define KPF_LRU			BIT_ULL(5)
#define KPF_WRITEBACK		BIT_ULL(8)
#define KPF_SWAPCACHE		BIT_ULL(13)
#ifndef KPF_COMPOUND_HEAD
#define KPF_COMPOUND_HEAD	BIT_ULL(15)
#define KPF_COMPOUND_TAIL	BIT_ULL(16)
#endif

#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM	0x1000
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC	0x8000
#endif

/* --- Page table entries and folios --------------------------------------- */

/*
 * @known: process and descriptor. After fork() the old descriptor shows the parent. A race
 * opens one file too many and closes none in use.
 */
int proc_fd(const char *path, uint64_t *known);
void pagemap_read(const volatile void *addr, unsigned long n, uint64_t *entries);
uint64_t pagemap_at(const volatile void *addr);
uint64_t kpageflags_at(uint64_t pfn);
/* 0 if no page is mapped. */
unsigned int folio_pages_at(const void *addr);

/* Drain this CPU's or all CPUs' folio batches. */
void drain_lru(void);
void drain_all_lru(void);

/* --- NUMA nodes ---------------------------------------------------------- */

bool two_nodes(void);
/* -1 without a page. */
int node_of(void *addr);
/* A busy page may stay. */
void move_to_node(volatile void *map, unsigned long n, int node);

/* --- userfaultfd --------------------------------------------------------- */

/* For write protection of a range. Returns a descriptor, or -1. */
int open_uffd(volatile void *addr, size_t bytes, uint64_t features);
bool uffd_protect(int uffd, volatile void *addr, size_t bytes, bool on);

/* --- Mappings of SIZE bytes ---------------------------------------------- */

/* All words are @value. */
void fill_file(const char *name, uint64_t value);
void *map_file(const char *name, int flags);
/* Single pages. */
void *map_filled(uint64_t value);

/* --- Page-out ------------------------------------------------------------ */

/* Read each page once. */
void touch(const volatile void *map, size_t bytes);
/* Cached by another CPU: a purely local flush is never deferred. */
void touch_on_other_cpu(void *map);
/* Returns the rise of @counter. */
long pageout(void *map, const char *counter);

struct companion {
	pthread_t thread;
	void *map;
	bool touched, stop;
};

/*
 * Stay on the other CPU: it leaves the mm as soon as another task runs, and a local flush
 * is never deferred.
 */
void companion_start(struct companion *c, void *map);
/* May flush, as the end of any thread. */
void companion_stop(struct companion *c);
/* The stale-TLB window may be over on return. */
long pageout_shared(void *map, const char *counter);

#endif /* QUELL_PAGES_H */
