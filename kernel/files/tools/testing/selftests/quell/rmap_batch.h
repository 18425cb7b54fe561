/* SPDX-License-Identifier: GPL-2.0-only */
/* Parts of the test of unmapping in batches: see rmap_batch.c. */
#ifndef QUELL_RMAP_BATCH_H
#define QUELL_RMAP_BATCH_H

#include "pages.h"
#include "system.h"

#define MAX_PAGES	1024

enum {
	SMALL = 1, MID = 2, BIG = 4, SHARED = 8, DISK = 16,
	ANON = MID | BIG, ALL_ANON = SMALL | MID | BIG,
};

struct kind {
	unsigned int bit;
	const char *name;
	unsigned int kb;		/* per folio, 0: any */
	unsigned long pages;
};

enum {
	PAGEOUT = 1, RECLAIM = 2, MIGRATE = 4,
	ANYHOW = PAGEOUT | RECLAIM | MIGRATE,
};

/* Written by the case. */
struct results {
	int bad, lines;
	bool skipped;
	long taken, possible;
	char line[4][160];
};

struct region {
	const struct kind *kind;
	unsigned long pages;
	unsigned int block;		/* pages of one pattern */
	char *map;
	char *at[MAX_PAGES];		/* NULL: unmapped */
	uint32_t gen[MAX_PAGES];	/* of the content; 0: empty */
	int fd;
	char path[4096];
};

struct child {
	pid_t pid;
	int go;
};

enum {
	BATCHES = 1,		/* long, uniform runs: batches are expected */
	MOST = 2,		/* most pages must go */
	CACHE = 4,		/* the swap cache matters: also with the loop device */
};

struct property {
	const char *name;
	void (*run)(struct region *r, unsigned int act);
	unsigned int kinds, acts, flags;
	bool (*possible)(void);
	const char *needs;
};

/* rmap_batch.c */
extern struct results *results;
extern const char *dir;
extern enum swap swap_now;
extern unsigned int pattern_seed;

unsigned int pick(unsigned int n);
void __printf(1, 2) bad(const char *fmt, ...);
void skip(void);

/* rmap_batch_region.c */
void put_at(char *at, unsigned long page, uint32_t gen);
bool holds(const char *at, unsigned long page, uint32_t gen);
void put(struct region *r, unsigned long i, uint32_t gen);
void put_all(struct region *r, uint32_t gen);
/* To the pattern, @shift pages before. */
void put_pattern(struct region *r, unsigned long shift, uint32_t gen);
void check(struct region *r, unsigned long i, const char *when);
void check_all(struct region *r, const char *when);
void check_in_any_order(struct region *r, const char *when);
bool in_pattern(const struct region *r, unsigned long i);
char *reserve_huge(unsigned long bytes);
void map_kind(struct region *r, const struct kind *kind);
void populate(struct region *r, const struct kind *kind);
void drop(struct region *r);
void pagemap_of(const struct region *r, uint64_t *entries);
void pageout_runs(struct region *r);
void migrate_runs(struct region *r);
void lose(struct region *r, unsigned int act);
void forget(struct region *r, unsigned long i);
bool try_put(struct region *r, unsigned long i, uint32_t gen);
bool try_touch(struct region *r, unsigned long i);

/* rmap_batch_content.c */
extern const struct property content_properties[];

/* rmap_batch_bits.c */
extern const struct property bit_properties[];

/* rmap_batch_shared.c */
extern const struct property sharing_properties[];

struct child fork_child(struct region *r);
void end_child(struct child *c);

/* rmap_batch_pages.c */
extern const struct property page_properties[];

#endif /* QUELL_RMAP_BATCH_H */
