// SPDX-License-Identifier: GPL-2.0-only
/* R3, R5, R1: an open, a drain and a free beside page-out and drain. */
#include "luf_stale.h"

#define HELD	8

static volatile uint64_t *race_map;
static atomic_ulong race_ready, race_written, race_seen, race_stale;
/* The last race; extended if nothing was deferred. */
static atomic_ulong race_end;
#define RACES	((unsigned long)rounds * 25)

/* This CPU's folio batch is not on the LRU and would not be reclaimed. */
static void put_on_lru(void)
{
	must_advise((void *)(race_map + WORDS), PAGE, MADV_COLD);
}

static void *open_and_write(void *arg __always_unused)
{
	pin(1);
	for (uint64_t i = 1; i <= atomic_load(&race_end); i++) {
		int fd;

		/* The open would complete an older flush together with this one. */
		drain_luf();
		put_on_lru();
		(void)race_map[0];
		atomic_store(&race_ready, i);
		/* At any point of the page-out. */
		for (uint64_t n = 0; n < i * 7919 % 400000 * (1 + i / RACES); n++)
			(void)race_map[0];
		fd = must_open(path, O_RDWR);
		/* A waiter for the folio would keep it from reclaim. */
		usleep(2000);
		if (pwrite(fd, &i, sizeof(i), 0) != sizeof(i))
			die(path);
		atomic_store(&race_written, i);
		while (atomic_load(&race_seen) != i)
			;
		if (fsync(fd) || close(fd))
			die(path);
	}
	return NULL;
}

/*
 * R3: reclaim looks for writers while a writer comes, and one of them sees the other. The
 * initiator goes on reading: another madvise() would flush.
 */
void race_open(void)
{
	long parked = vm_counter("luf_park");
	unsigned long stale = 0;
	pthread_t writer;

	fill_file(path, 0);
	race_map = map_file(path, MAP_SHARED);
	atomic_store(&race_end, RACES);
	start_thread(&writer, open_and_write, NULL);
	for (unsigned long i = 1; i <= atomic_load(&race_end); i++) {
		while (atomic_load(&race_ready) != i)
			;
		(void)race_map[0];
		must_advise((void *)race_map, PAGE, MADV_PAGEOUT);
		do {
			/* Until then the word may be half written. */
			(void)race_map[0];
		} while (atomic_load(&race_written) != i);
		for (int looks = 0; looks < LOOKS; looks++)
			stale += race_map[0] < i;
		/* On a busy host all opens may come first. */
		if (i == atomic_load(&race_end) && i < 20 * RACES &&
		    vm_counter("luf_park") == parked)
			atomic_store(&race_end, i + RACES);
		atomic_store(&race_seen, i);
	}
	pthread_join(writer, NULL);
	parked = vm_counter("luf_park") - parked;
	test_result(!stale && parked > 0,
		    "luf_stale open race: %lu opens, %lu stale, %ld pages deferred",
		    atomic_load(&race_end), stale, parked);
	munmap((void *)race_map, SIZE);
}

static void *park_and_drain(void *arg)
{
	int fd = must_open(LUF "drain", O_WRONLY);
	bool second = *(bool *)arg;
	void *map;

	pin(second);
	map = map_file(second ? other_path : path, MAP_SHARED);
	for (int i = 0; i < rounds * 50; i++) {
		touch(map, SIZE);
		if (madvise(map, SIZE, MADV_PAGEOUT) || write(fd, "1", 1) != 1)
			die("drain");
	}
	munmap(map, SIZE);
	close(fd);
	return NULL;
}

/* R5: each drains behind the other's CPU, which is about to flush. */
void race_drains(void)
{
	long before = nr_violations(), found;
	bool second[] = { false, true };
	pthread_t other;

	fill_file(path, OLD);
	start_thread(&other, park_and_drain, &second[1]);
	park_and_drain(&second[0]);
	pthread_join(other, NULL);
	pin(0);
	found = nr_violations() - before;
	test_result(!found, "luf_stale two drains: %d each, %ld violations",
		    rounds * 50, found);
}

static atomic_ulong drain_ready, drain_parked, drain_seen;

static void *write_beside_drain(void *arg __always_unused)
{
	pin(1);
	for (uint64_t i = 1; i <= (uint64_t)rounds * 25; i++) {
		int fd;

		put_on_lru();
		(void)race_map[0];
		atomic_store(&drain_ready, i);
		while (atomic_load(&drain_parked) != i)
			;
		/* At any point of the drain. */
		for (uint64_t n = 0; n < i * 7919 % 20000; n++)
			(void)race_map[0];
		fd = must_open(path, O_RDWR);
		if (pwrite(fd, &i, sizeof(i), 0) != sizeof(i))
			die(path);
		for (int looks = 0; looks < LOOKS; looks++)
			if (race_map[0] < i)
				atomic_fetch_add(&race_stale, 1);
		if (fsync(fd) || close(fd))
			die(path);
		atomic_store(&drain_seen, i);
	}
	return NULL;
}

/* R3: an open for writing relies on a flush that a drain carries out. */
void race_drain_open(void)
{
	long parked = vm_counter("luf_park");
	pthread_t writer;

	fill_file(path, 0);
	race_map = map_file(path, MAP_SHARED);
	atomic_store(&race_stale, 0);
	start_thread(&writer, write_beside_drain, NULL);
	for (unsigned long i = 1; i <= (unsigned long)rounds * 25; i++) {
		while (atomic_load(&drain_ready) != i)
			;
		(void)race_map[0];
		must_advise((void *)race_map, PAGE, MADV_PAGEOUT);
		atomic_store(&drain_parked, i);
		drain_luf();
		while (atomic_load(&drain_seen) != i)
			;
	}
	pthread_join(writer, NULL);
	parked = vm_counter("luf_park") - parked;
	test_result(!race_stale && parked > 0,
		    "luf_stale drain race: %d opens, %lu stale, %ld pages deferred",
		    rounds * 25, race_stale, parked);
	munmap((void *)race_map, SIZE);
}

/*
 * R1: the drain's CPU alone is behind, as the other one is idle. It flushes without an IPI.
 */
void drain_own(void)
{
	long before = nr_violations(), released = vm_counter("luf_release_aged"), found;

	set_lot_pages("1");
	fill_file(path, OLD);
	for (int i = 0; i < rounds * 5; i++) {
		void *map = map_file(path, MAP_SHARED);

		touch_on_other_cpu(map);
		touch(map, SIZE);
		pageout(map, "luf_park");
		munmap(map, SIZE);
	}
	restore_lot_pages();
	found = nr_violations() - before;
	released = vm_counter("luf_release_aged") - released;
	test_result(!found && released,
		    "luf_stale own CPU: %ld pages released without an interrupt, %ld violations",
		    released, found);
}

/*
 * R1: pages held by a pipe are unmapped and stay. Later they are freed without an unmap,
 * and the reader's CPU must have flushed by then.
 */
void keep_and_free(void)
{
	long before = nr_violations(), kept = vm_counter("luf_kept"), found;
	unsigned long wrong = 0;

	fill_file(path, OLD);
	for (int i = 0; i < rounds * 5; i++) {
		struct iovec first = { .iov_len = HELD * PAGE };
		/* Where RCU's thread runs, it has the CPU flush every few milliseconds. */
		struct reader r = { .zero_is_fine = true, .on_first = i % 2 };
		int ends[2];

		pin(r.on_first);
		r.map = map_file(path, MAP_SHARED);
		first.iov_base = (void *)r.map;
		reader_start(&r);
		drain_all_lru();
		if (pipe(ends) || vmsplice(ends[1], &first, 1, 0) != HELD * PAGE)
			die("vmsplice");
		must_advise((void *)r.map, HELD * PAGE, MADV_PAGEOUT);
		close(ends[0]);
		close(ends[1]);
		/* Some pages are in folio batches. */
		drain_all_lru();
		reader_stop(&r);
		wrong += atomic_load(&r.wrong);
		munmap((void *)r.map, SIZE);
	}
	pin(0);
	found = nr_violations() - before;
	kept = vm_counter("luf_kept") - kept;
	test_result(!found && !wrong && kept,
		    "luf_stale kept: %ld pages that stayed, %lu wrong, %ld violations",
		    kept, wrong, found);
}
