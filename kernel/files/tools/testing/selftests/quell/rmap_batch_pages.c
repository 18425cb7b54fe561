// SPDX-License-Identifier: GPL-2.0-only
/* Locked, lazily freed, pinned and poisoned pages; counters, and concurrent writes. */
/* For io_uring.h: the types.h of tools/include is short. */
#include <linux/posix_types.h>
#include <linux/stddef.h>
#include <linux/io_uring.h>

#include "rmap_batch.h"

/* --- Pages that reclaim must leave alone --------------------------------- */

static void mlocked_comes_to(long pages)
{
	long now = 0;

	for (int tries = 0; tries < 20; tries++) {
		drain_lru();
		now = vm_pages("nr_mlock");
		if (now == pages)
			return;
		usleep(10000);
	}
	bad("%ld pages were locked, and %ld are", pages, now);
}

/* The first half of each folio is locked. */
static void case_mlock(struct region *r, unsigned int act)
{
	long before = vm_pages("nr_mlock");
	uint64_t entries[MAX_PAGES];
	unsigned int n = r->block;

	for (unsigned long i = 0; i < r->pages; i += n)
		if (mlock(r->at[i], n / 2 * PAGE))
			die("mlock");
	for (unsigned int round = 0; round < 2; round++) {
		long taken = results->taken, possible = results->possible;

		lose(r, act);
		if (act != MIGRATE) {
			/* Half goes at most. */
			results->taken = taken;
			results->possible = possible;
			pagemap_of(r, entries);
			for (unsigned long i = 0; i < r->pages; i++)
				if (i % n < n / 2 && !(entries[i] & PM_PRESENT))
					bad("page %lu is locked, and not present", i);
		}
		check_in_any_order(r, "partly locked");
		put_all(r, 2 + round);
	}
	if (munlock(r->map, r->pages * PAGE))
		die("munlock");
	lose(r, act);
	check_in_any_order(r, "not locked any more");
	mlocked_comes_to(before);
}

/* Whole locked folios go page by page. */
static void case_mlock_all(struct region *r, unsigned int act)
{
	long before = vm_pages("nr_mlock");
	long in_batches;

	if (mlock(r->map, r->pages * PAGE))
		die("mlock");
	in_batches = vm_counter("rmap_batch_pages");
	lose(r, act);
	in_batches = vm_counter("rmap_batch_pages") - in_batches;
	if (in_batches)
		bad("%ld locked pages went in batches", in_batches);
	check_in_any_order(r, "locked");
	if (munlock(r->map, r->pages * PAGE))
		die("munlock");
	mlocked_comes_to(before);
}

static void case_lazyfree(struct region *r, unsigned int act)
{
	unsigned long kept = 0;

	must_advise(r->map, r->pages * PAGE, MADV_FREE);
	put_pattern(r, 0, 2);
	lose(r, act);
	for (unsigned long i = 0; i < r->pages; i++) {
		if (r->gen[i] == 2)
			check(r, i, "written after MADV_FREE");
		else if (holds(r->at[i], i, 1))
			kept++;
		else if (!holds(r->at[i], i, 0))
			bad("page %lu is neither old nor empty after MADV_FREE", i);
	}
	if (act == MIGRATE && kept < r->pages / 8)
		bad("migration freed pages");
	/* Pages with a written neighbor may stay. */
	lose(r, act);
	for (unsigned long i = 0; i < r->pages; i++)
		if (r->gen[i] == 2)
			check(r, i, "written after MADV_FREE, again");
}

/* A pinned page of each folio must stay where it is. */
static void case_pinned(struct region *r, unsigned int act)
{
	struct io_uring_params params = { 0 };
	struct iovec pins[MAX_PAGES];
	uint64_t before[MAX_PAGES];
	unsigned int n = 0;
	struct child c;
	int ring;

	ring = syscall(SYS_io_uring_setup, 1, &params);
	if (ring < 0)
		skip();
	/* The swap cache first: reclaim adds no pinned folio. */
	lose(r, PAGEOUT);
	check_all(r, "before they are pinned");
	/* The first half is shared, so its PTEs do not show the pin. */
	for (unsigned long i = 0; i < r->pages; i++)
		if (i % r->block >= r->block / 2 &&
		    madvise(r->at[i], PAGE, MADV_DONTFORK))
			die("MADV_DONTFORK");
	{
		char *at[MAX_PAGES];

		memcpy(at, r->at, sizeof(at));
		for (unsigned long i = 0; i < r->pages; i++)
			if (i % r->block >= r->block / 2)
				r->at[i] = NULL;
		c = fork_child(r);
		memcpy(r->at, at, sizeof(at));
	}
	end_child(&c);
	madvise(r->map, r->pages * PAGE, MADV_DOFORK);
	for (unsigned long i = r->block * 3 / 4; i < r->pages; i += 2 * r->block) {
		pins[n].iov_base = r->at[i];
		pins[n++].iov_len = PAGE;
	}
	if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, pins, n))
		skip();
	pagemap_of(r, before);
	for (unsigned int round = 0; round < 2; round++) {
		lose(r, act);
		check_in_any_order(r, "pinned");
		put_all(r, 2 + round);
		for (unsigned int k = 0; k < n; k++) {
			unsigned long i = ((char *)pins[k].iov_base - r->map) / PAGE;

			if (PAGEMAP_PFN(pagemap_at(r->at[i])) != PAGEMAP_PFN(before[i]))
				bad("page %lu is pinned, and another one is mapped", i);
		}
	}
	lose(r, act);
	check_in_any_order(r, "pinned, written");
	close(ring);
}

/* --- Counters ------------------------------------------------------------ */

struct counts {
	long anon, file, shmem, swap;	/* in pages */
};

static struct counts count_process(void)
{
	static const char status[] = "/proc/self/status";
	struct counts c = {
		.anon = number_in(status, "RssAnon:") / 4,
		.file = number_in(status, "RssFile:") / 4,
		.shmem = number_in(status, "RssShmem:") / 4,
		.swap = number_in(status, "VmSwap:") / 4,
	};

	return c;
}

static struct counts count_region(const struct region *r)
{
	struct counts c = { 0 };
	uint64_t entries[MAX_PAGES];

	pagemap_of(r, entries);
	for (unsigned long i = 0; i < r->pages; i++) {
		if (entries[i] & PM_PRESENT) {
			if (r->kind->bit == DISK)
				c.file++;
			else if (r->kind->bit == SHARED)
				c.shmem++;
			else
				c.anon++;
		} else if (entries[i] & PM_SWAP) {
			c.swap++;
		}
	}
	return c;
}

static void compare_counts(const struct region *r, const struct counts *base,
			   const char *when)
{
	struct counts is = count_process(), here = count_region(r);
	/* Each CPU keeps up to a batch, now and at @base. */
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	long slack = 2 * cpus * (cpus > 16 ? 2 * cpus : 32);

	if (labs(is.anon - base->anon - here.anon) > slack ||
	    labs(is.file - base->file - here.file) > slack ||
	    labs(is.shmem - base->shmem - here.shmem) > slack ||
	    labs(is.swap - base->swap - here.swap) > slack)
		bad("%s: anon %+ld, file %+ld, shmem %+ld, swap %+ld; mapped %ld %ld %ld %ld",
		    when, is.anon - base->anon, is.file - base->file,
		    is.shmem - base->shmem, is.swap - base->swap, here.anon, here.file,
		    here.shmem, here.swap);
}

/* Repeated: batches per CPU hide small errors. */
static void case_counters(struct region *r, unsigned int act)
{
	struct counts base = count_process(), here = count_region(r);

	base.anon -= here.anon;
	base.file -= here.file;
	base.shmem -= here.shmem;
	base.swap -= here.swap;
	for (unsigned int round = 0; round < 4; round++) {
		put_all(r, 2 + round);
		compare_counts(r, &base, "all there");
		lose(r, act);
		compare_counts(r, &base, "all away");
		for (unsigned long i = 0; i < r->pages; i++)
			if (in_pattern(r, i))
				check(r, i, "of the pattern");
		compare_counts(r, &base, "some of it back");
		lose(r, act);
		compare_counts(r, &base, "away again");
	}
	drop(r);
	compare_counts(r, &base, "unmapped");
}

/* --- Concurrent writes --------------------------------------------------- */

static atomic_bool counting;
static uint64_t counted[MAX_PAGES];

static void *count_all(void *arg)
{
	struct region *r = arg;

	if (sysconf(_SC_NPROCESSORS_ONLN) > 1)
		pin(1);
	while (atomic_load(&counting))
		for (unsigned long i = 0; i < r->pages; i++) {
			(*(volatile uint64_t *)(r->at[i] + 8))++;
			counted[i]++;
		}
	return NULL;
}

static void case_lost_writes(struct region *r, unsigned int act)
{
	pthread_t thread;
	int lost = 0;

	for (unsigned long i = 0; i < r->pages; i++)
		*(volatile uint64_t *)(r->at[i] + 8) = 0;
	memset(counted, 0, sizeof(counted));
	atomic_store(&counting, true);
	start_thread(&thread, count_all, r);
	for (int i = 0; i < 12; i++) {
		if (act == PAGEOUT)
			pageout_runs(r);
		else
			migrate_runs(r);
		usleep(pick(2000));
	}
	atomic_store(&counting, false);
	pthread_join(thread, NULL);
	for (unsigned long i = 0; i < r->pages; i++)
		lost += *(volatile uint64_t *)(r->at[i] + 8) != counted[i];
	if (lost)
		bad("writes to %d pages of %lu were lost, of %lu to each", lost, r->pages,
		    (unsigned long)counted[0]);
	check_all(r, "beside the counter");
}

/* --- Poison -------------------------------------------------------------- */

static bool can_poison(void)
{
	return !madvise((void *)PAGE, 0, MADV_HWPOISON);
}

static void poison(struct region *r, unsigned long i)
{
	sigjmp_buf jump;

	if (sigsetjmp(jump, 1)) {
		jump_on_fault(NULL);
		return;
	}
	/* SIGBUS now or later. */
	jump_on_fault(&jump);
	madvise(r->at[i], PAGE, MADV_HWPOISON);
	jump_on_fault(NULL);
}

/*
 * A poisoned page splits its folio. While a pipe holds the folio it stays whole and mapped,
 * and unmapping must tell the page from the others.
 */
static void case_poison(struct region *r, unsigned int act)
{
	unsigned long split = r->block / 2, whole = 3 * r->block + r->block / 3;
	struct iovec v = { r->at[whole + 1], PAGE };
	unsigned long away = 0;
	int held[2];

	if (pipe2(held, O_CLOEXEC) || vmsplice(held[1], &v, 1, 0) != (ssize_t)PAGE)
		die("vmsplice");
	poison(r, split);
	poison(r, whole);
	close(held[0]);
	close(held[1]);
	for (unsigned int round = 0; round < 2; round++) {
		lose(r, act);
		for (unsigned long i = 0; i < r->pages; i++) {
			if (i == split || i == whole)
				continue;
			check(r, i, "beside a bad page");
			put(r, i, 2 + round);
		}
	}
	away += !try_touch(r, split);
	if (!away)
		bad("page %lu is bad, and can be read", split);
	/* Reclaim skips the folio. Migration must not copy the page. */
	if (act == MIGRATE && try_touch(r, whole))
		bad("page %lu is bad, and can be read", whole);
	forget(r, split);
	forget(r, whole);
	lose(r, act);
	check_all(r, "beside a former bad page");
}

const struct property page_properties[] = {
	{ "mlock", case_mlock, ANON, ANYHOW, .flags = 0 },
	{ "mlock all", case_mlock_all, MID | SHARED, MIGRATE, .flags = MOST },
	{ "lazyfree", case_lazyfree, ANON, ANYHOW, .flags = 0 },
	{ "pinned", case_pinned, MID, ANYHOW, .flags = CACHE, .needs = "CONFIG_IO_URING" },
	{ "counters", case_counters, BIG | DISK, PAGEOUT | MIGRATE, .flags = BATCHES | MOST },
	{ "lost writes", case_lost_writes, MID | SHARED, PAGEOUT | MIGRATE,
	  .flags = BATCHES | CACHE },
	{ "poison", case_poison, MID, PAGEOUT | MIGRATE, .flags = 0,
	  .possible = can_poison, .needs = "CONFIG_MEMORY_FAILURE" },
	{}
};
