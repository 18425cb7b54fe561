/* SPDX-License-Identifier: GPL-2.0-only */
/* Parts of the torture of unmapping: see rmap_torture.c. */
#ifndef QUELL_RMAP_TORTURE_H
#define QUELL_RMAP_TORTURE_H

#include "pages.h"
#include "system.h"

#define ARENAS		4
#define UFFD_ARENA	2		/* never moves */
#define ARENA_PAGES	512
#define ARENA_SLOTS	1024
#define SHARED_PAGES	256
#define HISTORY		40

struct window {
	atomic_uint lo, hi;	/* generations that a page may hold */
};

enum { FILE_AREA, MEMORY_AREA, AREAS };

struct shared {
	atomic_bool stop;
	atomic_uint nonce;
	atomic_ulong steps, checks, forks, takes;
	atomic_int violations;
	/* Read: moving pages. Write: clearing soft-dirty bits. */
	pthread_rwlock_t moving;
	char report[8192];
	struct window windows[AREAS][SHARED_PAGES];
};

struct page {
	char *at;		/* NULL: unmapped */
	uint32_t gen;		/* of the content; 0: empty */
	uint32_t changed;	/* in this step */
	bool lazy;		/* may be empty since MADV_FREE */
	bool own;		/* written since the last fork(): exclusive */
	bool readable, writable, locked, protected;
	bool dirty, clean;	/* soft-dirty, or clean, for sure */
};

struct arena {
	char *base;
	int uffd;
	bool fresh;		/* new VMAs since soft-dirty bits were cleared */
	struct page pages[ARENA_PAGES];
	bool used[ARENA_SLOTS];
};

struct operation {
	uint32_t step;
	const char *what;
	int arena;
	unsigned int first, n;
	long arg;
};

#define LOOKED_AT	3

/* rmap_torture.c */
extern struct shared *sh;
extern char *areas[AREAS];
extern int nr_workers;
extern bool nodes, soft_dirty;
extern bool huge;
extern uint64_t seed;

/* rmap_torture_check.c */
extern struct arena arenas[ARENAS];
extern uint32_t steps, generation;
extern int worker, depth, nr_children;
extern uint64_t random_state;
extern const unsigned int looked_at[];

unsigned int pick(unsigned int n);
bool stopped(void);
void note(const char *what, int arena, unsigned int first, unsigned int n, long arg);
void __printf(3, 4) violated(int arena, unsigned int i, const char *fmt, ...);
uint64_t word_of(int arena, unsigned int i, uint32_t gen);
void on_fault(int sig, siginfo_t *info, void *context);
bool try_put(char *at, int arena, unsigned int i, uint32_t gen);
bool try_get(const char *at, uint64_t *found);
void check_page(int arena, unsigned int i);
void check_arena(int arena);

/* rmap_torture_actions.c */
unsigned int run_length(const struct arena *a, unsigned int first, unsigned int n);
unsigned int pick_length(void);
unsigned int pick_first(unsigned int n);
struct page *page_of(int arena, unsigned int i);
void forget_clean(int arena);
void do_write(int arena, unsigned int first, unsigned int n);
void do_read(int arena, unsigned int first, unsigned int n);
void move_pages_to(char *at, unsigned long n, int node);
void do_take(int arena, unsigned int first, unsigned int n);
void do_take_again(int arena, unsigned int first, unsigned int n);
void do_protect(int arena, unsigned int first, unsigned int n);
void do_lock(int arena, unsigned int first, unsigned int n);
void do_discard(int arena, unsigned int first, unsigned int n);
void do_unmap(int arena, unsigned int first, unsigned int n);
void do_map(int arena, unsigned int first, unsigned int n);
void do_remap(int arena, unsigned int first, unsigned int n);
void do_write_protect(int arena, unsigned int first, unsigned int n);
void do_clear_soft_dirty(void);
void check_shared(int area, unsigned int i);
void do_shared(void);

/* rmap_torture_worker.c */
void work(int number);

#endif /* QUELL_RMAP_TORTURE_H */
