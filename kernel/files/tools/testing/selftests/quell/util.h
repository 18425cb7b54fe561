/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Common parts of all tests in this folder: results, files, counters, processes, mappings
 * and faults.
 *
 * kselftest.h counts results per C file, and a program has several. Therefore test_result()
 * and test_skip() report, die() bails out, and test_end() ends the program. It prints the
 * plan, as the number of tests depends on the system.
 */
#ifndef QUELL_UTIL_H
#define QUELL_UTIL_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kselftest.h"

/* Linux 6.12 has none. */
#ifndef __always_unused
#define __always_unused	__attribute((__unused__))
#endif

#define QUELL_SYSFS	"/sys/kernel/mm/quell/"

#ifndef MADV_COLD
#define MADV_COLD	20
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE	23
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED	24
#endif

#define PAGE	4096UL
#define WORDS	(PAGE / 8)		/* of a page */
#define HUGE	(2UL << 20)

/* --- Results ------------------------------------------------------------- */

void __printf(2, 3) test_result(bool ok, const char *fmt, ...);
/* @why: a requirement of the test. */
void __printf(2, 3) test_skip(const char *why, const char *fmt, ...);
void __noreturn test_end(void);
void __noreturn die(const char *what);

/* Complaints of CONFIG_QUELL_LUF_DEBUG's ledger. */
long nr_violations(void);

/* --- Files and counters -------------------------------------------------- */

bool try_write(const char *path, const char *text);
bool try_read(const char *path, char *text, size_t size);
void write_text(const char *path, const char *text);
void read_text(const char *path, char *text, size_t size);

int must_open(const char *path, int flags);

/* The number after @name at the start of a line, or -1. */
long number_in(const char *path, const char *name);

/* Of /proc/vmstat; -1 if there is no such counter. */
long vm_counter(const char *name);
/* A gauge, with per-CPU deltas folded in. */
long vm_pages(const char *name);
/* Does /proc/vmstat count flushes? Distributions leave CONFIG_DEBUG_TLBFLUSH out. */
bool counts_flushes(void);

/* --- Time and chance ----------------------------------------------------- */

/* In seconds. */
double now(void);

static inline uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state >> 16;
}

/* --- CPUs, threads and processes ----------------------------------------- */

bool try_pin(int cpu);
void pin(int cpu);
void start_thread(pthread_t *thread, void *(*work)(void *arg), void *arg);
pid_t must_fork(void);
/* Returns the status. */
int must_wait(pid_t pid);
/* It may have ended before. */
void kill_and_wait(pid_t pid);

/* --- Mappings ------------------------------------------------------------ */

void *must_map(void *at, size_t bytes, int prot, int flags, int fd);

static inline void *map_private(size_t bytes)
{
	return must_map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static inline void *map_shared(size_t bytes)
{
	return must_map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
}

#define must_advise(addr, bytes, advice)		\
	do {						\
		if (madvise(addr, bytes, advice))	\
			die(#advice);			\
	} while (0)

void must_protect(void *addr, size_t bytes, int prot);

/* Inaccessible addresses for MAP_FIXED, aligned to @align. */
char *reserve(size_t bytes, size_t align);

/* --- Faults -------------------------------------------------------------- */

void catch_faults(void);
/* After catch_faults(): SIGBUS and SIGSEGV of this thread jump there, unless it is NULL. */
void jump_on_fault(sigjmp_buf *jump);

#endif /* QUELL_UTIL_H */
