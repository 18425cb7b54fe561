// SPDX-License-Identifier: GPL-2.0-only
/* R4: all pages of a CMA area are taken, deferred or mapped. */
#include "luf_stale.h"

#define CMA	DEBUGFS "cma/reserved/"

static unsigned long cma_number(const char *file)
{
	char text[32];

	read_text(file, text, sizeof(text));
	return strtoul(text, NULL, 0);
}

static bool take_area(unsigned long nr)
{
	int fd = must_open(CMA "alloc", O_WRONLY), len;
	char text[32];
	bool ok;

	len = snprintf(text, sizeof(text), "%lu", nr);
	ok = write(fd, text, len) == len;
	close(fd);
	if (ok)
		write_text(CMA "free", text);
	return ok;
}

/* A page with a short reference fails it. */
static bool take_area_in_time(unsigned long nr)
{
	for (int i = 0; i < 10; i++) {
		if (take_area(nr))
			return true;
		usleep(20000);
	}
	return false;
}

/* In one write, for large folios. */
static void fill_at_once(void)
{
	static uint64_t content[SIZE / 8];
	int fd = must_open(path, O_RDWR | O_CREAT | O_TRUNC);

	for (unsigned long i = 0; i < SIZE / 8; i++)
		content[i] = OLD;
	if (write(fd, content, SIZE) != (ssize_t)SIZE || fsync(fd) || close(fd))
		die(path);
}

/* R4: a CMA allocation finds deferred pages, and those that it defers itself. */
void take_cma(bool park)
{
	unsigned long start, nr, inside = 0;
	long parked = 0, drains = 0, busy = 0;
	int tried = 0, failed = 0;
	struct companion c;

	mount_debugfs();
	if (access(CMA "alloc", W_OK)) {
		test_skip("cma= and CONFIG_CMA_DEBUGFS", "luf_stale CMA");
		return;
	}
	start = cma_number(CMA "base_pfn");
	nr = cma_number(CMA "count");
	hold_windows();
	for (int tries = 4 * rounds; tries && tried - busy < rounds; tries--) {
		long before = vm_counter("luf_park"), given;
		void *map;

		/* Empties the area, which serves the next allocations. */
		if (!take_area(nr))
			continue;
		tried++;
		fill_at_once();
		map = map_file(path, MAP_SHARED);
		companion_start(&c, map);
		for (unsigned long at = 0; at < SIZE; at += PAGE)
			inside += frame_of((char *)map + at) - start < nr;
		/* A busy large folio is the whole file. */
		for (int i = 0; park && i < 5 && vm_counter("luf_park") == before; i++)
			pageout(map, "luf_park");
		given = luf_given_back();
		failed += !take_area_in_time(nr);
		drains += luf_given_back() > given;
		companion_stop(&c);
		/* If all of it is busy, other pages move and nothing is deferred here. */
		busy += vm_counter("luf_park") == before;
		parked += vm_counter("luf_park") - before;
		munmap(map, SIZE);
		drain_luf();
	}
	release_windows();
	test_result(tried > busy && !failed && drains >= tried - busy &&
		    parked >= (tried - busy) * PAGES / 2 &&
		    inside >= (unsigned long)tried * PAGES / 2,
		    "luf_stale CMA, %s: %d of %d failed, %lu pages in it, %ld deferred, %ld drains",
		    park ? "deferred before" : "deferred meanwhile", failed, tried, inside,
		    parked, drains);
}
