// SPDX-License-Identifier: GPL-2.0-only
/* Waste, and its bound. */
#include "folio_order.h"

static void test_strided(void)
{
	for (unsigned long stride = 2; stride <= 64; stride *= 2) {
		char *map = map_region(BIG);
		unsigned long asked = 0, found;

		for (unsigned long i = 0; i < COUNT; i += stride, asked++)
			put(map, i);
		found = there(map, COUNT);
		expect(found * 100 <= asked * 102, "one in %lu: %lu pages for %lu", stride,
		       found, asked);
		munmap(map, BIG);
	}
}

static void test_random(void)
{
	static bool done[COUNT];
	char *map = map_region(BIG);
	unsigned long asked = 0, found, random = 1;

	for (unsigned long k = 0; k < COUNT / 2; k++) {
		unsigned long i;

		random = random * 6364136223846793005UL + 1442695040888963407UL;
		i = (random >> 33) % COUNT;
		asked += !done[i];
		done[i] = true;
		put(map, i);
	}
	found = there(map, COUNT);
	expect(found * 100 <= asked * 102, "%lu pages for %lu", found, asked);
	for (unsigned long i = 0; i < COUNT; i++)
		if (done[i])
			verify(map, i, i + 1, true, "random");
}

/* A range is filled, and behind it one page in each 64 KB, as headers of an allocator. */
static void test_dense_then_strided(void)
{
	for (unsigned long end = 1024; end <= 1088; end += 64)
		for (unsigned long at = 0; at < 16; at += 4) {
			char *map = map_region(BIG);
			unsigned long asked = end, found;

			fill(map, 0, end);
			for (unsigned long i = end + at; i < COUNT; i += 16, asked++)
				put(map, i);
			found = there(map, COUNT);
			expect(found <= asked + (end == 1024 && !at ? 32 : 64),
			       "%lu pages for %lu: end %lu, at %lu", found, asked, end, at);
			munmap(map, BIG);
		}
}

/* Bursts of a few pages behind a filled range, at any distance. */
static void test_bursts(void)
{
	for (unsigned long step = 8; step <= 32; step += 4)
		for (unsigned long nr = 1; nr <= 4; nr++) {
			char *map = map_region(BIG);
			unsigned long asked = 0, found;

			fill(map, 0, 1024);
			for (unsigned long i = 1024 + 5; i + step <= COUNT; i += step, asked += nr)
				fill(map, i, i + nr);
			found = there(map, COUNT) - 1024;
			expect(found <= asked * 2 + 64, "%lu in %lu: %lu pages for %lu", nr, step,
			       found, asked);
			munmap(map, BIG);
		}
}

/* Unused blocks lower the score of a VMA, full ones raise it. */
static void test_learns(void)
{
	long unused = vm_counter("folio_order_unused");
	char *map = map_region(BIG);
	unsigned long asked = 0, found;

	/* The fifth page has a run of four beside it. */
	for (unsigned long i = 0; i + 64 <= COUNT / 2; i += 64, asked += 5)
		fill(map, i, i + 5);
	found = there(map, COUNT);
	expect(vm_counter("folio_order_unused") > unused, "nothing was found unused");
	expect(found * 100 <= asked * 125, "%lu pages for %lu", found, asked);
	fill(map, COUNT / 2, COUNT);
	expect_folio(map, COUNT - 1, MOST);
}

static char *two_map;

static void *fill_odd(void *arg)
{
	for (unsigned long i = (uintptr_t)arg; i < COUNT; i += 64)
		fill(two_map, i, i + 32);
	return NULL;
}

/* Threads fault in the same blocks and next to each other. */
static void test_threads(void)
{
	for (int round = 0; round < 8; round++) {
		pthread_t thread[4];

		two_map = map_region(BIG);
		for (unsigned long i = 0; i < 4; i++)
			start_thread(&thread[i], fill_odd, (void *)(i % 2 * 32));
		for (int i = 0; i < 4; i++)
			pthread_join(thread[i], NULL);
		verify(two_map, 0, COUNT, true, "threads");
		munmap(two_map, BIG);
	}
}

static atomic_ulong filled[2];

static void *fill_at_once(void *arg)
{
	unsigned long me = (uintptr_t)arg;

	pin(me);
	for (unsigned long i = 0; i < COUNT; i++) {
		if (i % MOST == 0) {
			atomic_store(&filled[me], i);
			while (atomic_load(&filled[!me]) < i)
				;
		}
		put(two_map, i);
	}
	atomic_store(&filled[me], COUNT);
	return NULL;
}

/* Both threads fault on one page: one of two allocated folios is dropped. */
static void test_races(void)
{
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		return skip("two CPUs");
	for (int round = 0; round < 4; round++) {
		pthread_t thread[2];

		two_map = map_region(BIG);
		atomic_store(&filled[0], 0);
		atomic_store(&filled[1], 0);
		for (unsigned long i = 0; i < 2; i++)
			start_thread(&thread[i], fill_at_once, (void *)i);
		for (int i = 0; i < 2; i++)
			pthread_join(thread[i], NULL);
		verify(two_map, 0, COUNT, true, "races");
		munmap(two_map, BIG);
		expect_new(256, MOST, "races");
	}
}

const struct test waste_tests[] = {
	{ "strided", test_strided },
	{ "random", test_random },
	{ "dense then strided", test_dense_then_strided },
	{ "bursts", test_bursts },
	{ "learns", test_learns },
	{ "threads", test_threads },
	{ "races", test_races },
	{}
};
