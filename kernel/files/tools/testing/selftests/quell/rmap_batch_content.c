// SPDX-License-Identifier: GPL-2.0-only
/* Content, dirty and young bits. */
#include "rmap_batch.h"

static void case_content(struct region *r, unsigned int act)
{
	lose(r, act);
	check_in_any_order(r, "after the first time");
	put_all(r, 2);
	lose(r, act);
	check_in_any_order(r, "after the second time");
	/* Pages come back in order, with writes between. */
	lose(r, act);
	for (unsigned long i = 0; i < r->pages; i++) {
		if (in_pattern(r, i))
			put(r, i, 3);
		check(r, i, "after the third time");
	}
	lose(r, act);
	check_in_any_order(r, "after the fourth time");
}

/* Holes before (partially mapped folios), and after unmapping. */
static void case_holes(struct region *r, unsigned int act)
{
	unsigned int n = r->block;

	for (unsigned long i = 0; i < r->pages; i++)
		if (i / n % 2 && i % n >= n / 4 && i % n < n / 2)
			forget(r, i);
	lose(r, act);
	for (unsigned long i = 0; i < r->pages; i++)
		if (i / n % 4 == 2 && i % n >= n / 2 && i % n < n * 3 / 4)
			forget(r, i);
	check_in_any_order(r, "beside the holes");
	for (unsigned long i = 0; i < r->pages; i++)
		if (i / n % 4 == 3 && r->at[i] && (i % n == 0 || i % n == n - 1))
			forget(r, i);
	lose(r, act);
	check_in_any_order(r, "beside more holes");
}

/*
 * Pages are in swap and in memory, unchanged. One page of each folio is written: without
 * its dirty bit the content is lost.
 */
static void case_dirty(struct region *r, unsigned int act)
{
	lose(r, PAGEOUT);
	check_all(r, "clean");
	for (unsigned int round = 0; round < 3; round++) {
		for (unsigned long i = 0; i < r->pages; i += r->block)
			put(r, i + (round == 0 ? 0 : round == 1 ? r->block - 1 :
				    pick(r->block)), 2 + round);
		lose(r, act);
		/* Migration must pass the dirty bit on. */
		if (act == MIGRATE)
			lose(r, PAGEOUT);
		check_in_any_order(r, "written while clean");
	}
}

/* Shared pages that were only read are clean and writable. */
static void case_dirty_shared(struct region *r, unsigned int act)
{
	drop(r);
	map_kind(r, r->kind);
	for (unsigned long i = 0; i < r->pages; i++)
		(void)*(volatile char *)r->at[i];
	put_pattern(r, 0, 2);
	lose(r, act);
	if (act == MIGRATE)
		lose(r, PAGEOUT);
	check_in_any_order(r, "of empty ranges");
}

static void case_dirty_file(struct region *r, unsigned int act)
{
	char page[PAGE];

	for (unsigned int round = 0; round < 3; round++) {
		put_pattern(r, round, 2 + round);
		if (round == 1 && fdatasync(r->fd))
			die("fdatasync");
		lose(r, act);
		check_in_any_order(r, "in the page cache");
	}
	lose(r, act);
	munmap(r->map, r->pages * PAGE);
	if (fsync(r->fd) || posix_fadvise(r->fd, 0, 0, POSIX_FADV_DONTNEED))
		die("fsync");
	for (unsigned long i = 0; i < r->pages; i++) {
		r->at[i] = NULL;
		if (pread(r->fd, page, PAGE, i * PAGE) != (ssize_t)PAGE)
			die("pread");
		if (!holds(page, i, r->gen[i]))
			bad("page %lu of the file does not hold generation %u on disk", i,
			    r->gen[i]);
	}
}

static void case_young(struct region *r, unsigned int act)
{
	for (unsigned int round = 0; round < 2; round++) {
		try_write("/proc/self/clear_refs", "1");
		for (unsigned long i = 0; i < r->pages; i++)
			if (in_pattern(r, i))
				check(r, i, "before");
		lose(r, act);
		check_in_any_order(r, "some of it young");
	}
}

const struct property content_properties[] = {
	{ "content", case_content, ALL_ANON | SHARED | DISK, ANYHOW,
	  .flags = BATCHES | MOST | CACHE },
	{ "holes", case_holes, MID | SHARED, ANYHOW, .flags = BATCHES | MOST | CACHE },
	{ "dirty", case_dirty, ALL_ANON, ANYHOW, .flags = BATCHES | MOST | CACHE },
	{ "dirty shared", case_dirty_shared, SHARED, ANYHOW, .flags = BATCHES | MOST },
	{ "dirty file", case_dirty_file, DISK, ANYHOW, .flags = BATCHES },
	{ "young", case_young, MID | SHARED | DISK, ANYHOW, .flags = BATCHES | MOST },
	{}
};
