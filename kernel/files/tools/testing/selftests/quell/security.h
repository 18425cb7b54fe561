/* SPDX-License-Identifier: GPL-2.0-only */
/* Parts of the test of one user's attacks on another: see security.c. */
#ifndef QUELL_SECURITY_H
#define QUELL_SECURITY_H

#include "luf_reader.h"

#define READER		65533
#define WRITER		65532
#define VICTIM		65531
#define MAX_CPUS	8

struct shared {
	volatile uint64_t *map;			/* the reader's */
	atomic_ulong passes[MAX_CPUS];		/* by CPU */
	atomic_ulong reads, secrets, wrong;
	atomic_bool go, stop, more;
	atomic_int ready;
	atomic_ulong loops;
	atomic_long worst_us;
	atomic_ulong size;
};

/* security.c */
extern struct shared *sh;
extern char path[4096], victim_path[4096 + 8];
extern int rounds, nr_cpus;

long now_us(void);
pid_t start(unsigned int uid, int cpu, void (*work)(int which), int which);
void reset(void);
void wait_ready(int number);
void frames_of(pid_t pid, const volatile void *address, int pages, uint64_t *frames);
void page_out_of(pid_t pid, volatile void *address, unsigned long size);

/* security_secrets.c */
void *read_on(void *arg);
void wait_hot(int first, int end);
void test_secrets(void);
void test_zeroes(void);

/* security_bound.c */
void test_bound(void);
void test_memory(void);

/* security_permissions.c */
void test_permissions(void);

/* security_flood.c */
void test_flood(void);

#endif /* QUELL_SECURITY_H */
