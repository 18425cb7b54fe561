// SPDX-License-Identifier: GPL-2.0-only
/* R3: memory comes back from swap while other pages are in their window. */
#include <sys/swap.h>

#include "luf_stale.h"

static void *map_swapped(void)
{
	void *map = map_filled(OLD);

	must_advise(map, SIZE, MADV_PAGEOUT);
	return map;
}

enum back { BY_READ, BY_SWAPOFF, NOT_YET };

/*
 * Memory comes back from swap while other pages are in their window. Returns the rise of
 * luf_write at the read, or at a private write after or before swapoff. -1: nothing was
 * swapped out, or no flush is owed, as when page-out kept a page.
 */
static long come_back(enum back how)
{
	volatile uint64_t *anon, *private, *map;
	long faults = -1, flushes;
	struct companion c;

	if (swapon(RAM_DISK, 0))
		die("swapon");
	anon = map_swapped();
	private = map_file(other_path, MAP_PRIVATE);
	map = map_file(path, MAP_SHARED);
	companion_start(&c, (void *)map);
	flushes = vm_counter("luf_flush");
	if (pageout((void *)map, "luf_park") >= PAGES / 2 && (pagemap_at(anon) & PM_SWAP) &&
	    vm_counter("luf_flush") == flushes) {
		if (how == BY_SWAPOFF && swapoff(RAM_DISK))
			die("swapoff");
		faults = vm_counter("luf_write");
		if (how == BY_READ)
			(void)*anon;
		else
			*private = NEW;
		faults = vm_counter("luf_write") - faults;
	}
	companion_stop(&c);
	munmap((void *)map, SIZE);
	munmap((void *)private, SIZE);
	munmap((void *)anon, SIZE);
	swapoff(RAM_DISK);
	return faults;
}

/*
 * R3: a stale entry may exist where a page comes back from swap. A fault that maps it
 * writable flushes. swapoff maps it read-only and flushes for later writes.
 */
void come_back_in_window(void)
{
	long found[NOT_YET + 1] = { 0 }, tried[NOT_YET + 1] = { 0 };

	if (!make_ram_swap(4 * SIZE)) {
		test_skip("an empty " RAM_DISK, "luf_stale swap");
		return;
	}
	hold_windows();
	fill_file(path, OLD);
	fill_file(other_path, NEW);
	for (int i = 0; i < rounds; i++)
		for (enum back how = BY_READ; how <= NOT_YET; how++) {
			long faults = -1;

			for (int i = 0; i < 10 && faults < 0; i++)
				faults = come_back(how);
			if (faults < 0)
				continue;
			found[how] += faults;
			tried[how]++;
		}
	release_windows();
	test_result(tried[BY_READ] && found[BY_READ] == tried[BY_READ],
		    "luf_stale swap in: %ld flushes for %ld pages",
		    found[BY_READ], tried[BY_READ]);
	test_result(tried[BY_SWAPOFF] && !found[BY_SWAPOFF] &&
		    tried[NOT_YET] && found[NOT_YET] == tried[NOT_YET],
		    "luf_stale swapoff: %ld of %ld times a flush was still owed after it, %ld of %ld without",
		    found[BY_SWAPOFF], tried[BY_SWAPOFF], found[NOT_YET], tried[NOT_YET]);
}
