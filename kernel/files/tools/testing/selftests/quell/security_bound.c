// SPDX-License-Identifier: GPL-2.0-only
/* Users that defer as many pages as they can, and memory while the list is full. */
#include <sys/wait.h>

#include "security.h"

/* --- bound -------------------------------------------------------------------- */

#define PARKERS		6
#define PARK_PAGES	1024UL
#define LIST_PAGES	31	/* of a reclaiming task: folios that are freed at once */

static volatile char *map_park_file(int which)
{
	char name[sizeof(path) + 16];
	void *map;
	int fd;

	snprintf(name, sizeof(name), "%s.%d", path, which);
	fd = must_open(name, O_RDONLY);
	map = must_map(NULL, PARK_PAGES * PAGE, PROT_READ, MAP_SHARED, fd);
	close(fd);
	/* No readahead, so no large folios. */
	must_advise(map, PARK_PAGES * PAGE, MADV_RANDOM);
	return map;
}

static void parker(int which)
{
	unsigned long size = PARK_PAGES * PAGE;
	volatile char *map = map_park_file(which);

	atomic_fetch_add(&sh->ready, 1);
	/* Two CPUs: a purely local flush is never deferred. */
	for (int cpu = which; !atomic_load(&sh->stop); cpu++) {
		touch(map, size);
		pin(cpu % nr_cpus);
		touch(map, size);
		madvise((void *)map, size, MADV_PAGEOUT);
		atomic_fetch_add(&sh->loops, 1);
	}
}

static void make_park_files(void)
{
	static char page[PAGE];
	char name[sizeof(path) + 16];

	for (int i = 0; i < PARKERS; i++) {
		int fd;

		snprintf(name, sizeof(name), "%s.%d", path, i);
		fd = must_open(name, O_WRONLY | O_CREAT | O_TRUNC);
		if (fchown(fd, READER, READER))
			die(name);
		for (unsigned long k = 0; k < PARK_PAGES; k++)
			if (write(fd, page, PAGE) != (ssize_t)PAGE)
				die(name);
		if (fsync(fd) || close(fd))
			die(name);
	}
}

static void unlink_park_files(void)
{
	char name[sizeof(path) + 16];

	for (int i = 0; i < PARKERS; i++) {
		snprintf(name, sizeof(name), "%s.%d", path, i);
		unlink(name);
	}
}

static int nr_nodes(void)
{
	char name[64];
	int nodes = 0;

	do {
		snprintf(name, sizeof(name), "/sys/devices/system/node/node%d", ++nodes);
	} while (!access(name, F_OK));
	return nodes;
}

/* Pages that a test lets wait: @pages, at most 1/64 of a node. Nodes have one size. */
static long lot_limit(long pages)
{
	long managed = sysconf(_SC_PHYS_PAGES) / nr_nodes() / 64;

	return pages < managed ? pages : managed;
}

/*
 * A task's list of up to LIST_PAGES comes before the check. /proc/vmstat lacks per-CPU
 * deltas.
 */
void test_bound(void)
{
	long limit = lot_limit(256), slack, most = 0, parked, samples = 0;
	pid_t pids[PARKERS];
	long end;

	reset();
	make_park_files();
	set_lot_pages("256");
	/* The limit alone gives pages back. */
	hold_windows();
	parked = vm_counter("luf_park");
	for (int i = 0; i < PARKERS; i++)
		pids[i] = start(READER, i % nr_cpus, parker, i);
	wait_ready(PARKERS);
	/* A busy host may need longer. */
	for (end = now_us() + rounds * 400000L;
	     now_us() < end || (vm_counter("luf_park") - parked <= 10 * limit &&
				now_us() < end + 60000000);
	     samples++) {
		long n = vm_counter("nr_luf_parked");

		most = n > most ? n : most;
	}
	atomic_store(&sh->stop, true);
	for (int i = 0; i < PARKERS; i++)
		must_wait(pids[i]);
	parked = vm_counter("luf_park") - parked;
	restore_lot_pages();
	release_windows();
	unlink_park_files();
	slack = PARKERS * LIST_PAGES + nr_cpus * 64;
	test_result(most <= limit * nr_nodes() + slack && parked > 10 * limit,
		    "security bound: %d users deferred %ld pages, at most %ld at once in %ld looks; the limit is %ld",
		    PARKERS, parked, most, samples, limit);
}

/* --- memory --------------------------------------------------------------------- */

/* Returns the longest wait for a page. */
static long take_memory(unsigned long size)
{
	char *map = map_private(size);
	long worst = 0;

	for (unsigned long at = 0; at < size; at += PAGE) {
		long before = now_us(), took;

		map[at] = 1;
		took = now_us() - before;
		worst = took > worst ? took : worst;
	}
	return worst;
}

/* Most free memory; then, on order, more than there is. */
static void hog(int unused __always_unused)
{
	take_memory(atomic_load(&sh->size));
	atomic_store(&sh->ready, 1);
	while (!atomic_load(&sh->go))
		usleep(1000);
	atomic_store(&sh->worst_us, take_memory(atomic_load(&sh->size)));
	atomic_store(&sh->ready, 99);
	pause();
}

/* Up to half of @limit. */
static void park_some(long limit)
{
	unsigned long size = PARK_PAGES * PAGE;

	for (int i = 0; i < PARKERS && vm_counter("nr_luf_parked") < limit / 2; i++) {
		volatile char *map = map_park_file(i);

		/* Two CPUs, as above. */
		for (int cpu = 1; cpu >= 0; cpu--) {
			pin(cpu);
			touch(map, size);
		}
		must_advise((void *)map, limit / 2 * PAGE < size ? limit / 2 * PAGE : size,
			    MADV_PAGEOUT);
		munmap((void *)map, size);
	}
}

void test_memory(void)
{
	long limit = lot_limit(16384), kills, parked, left, reserve;
	char reserve_kb[32];
	unsigned long taken;
	bool got = false;
	pid_t pid;

	reset();
	read_text("/proc/sys/vm/min_free_kbytes", reserve_kb, sizeof(reserve_kb));
	/* Large with several nodes. */
	reserve = atol(reserve_kb) << 10;
	/* kswapd must sleep until pages are deferred. */
	taken = (number_in("/proc/meminfo", "MemFree:") << 10) - reserve * 3 / 2 - (32UL << 20);
	atomic_store(&sh->size, taken);
	pid = start(WRITER, 0, hog, 0);
	wait_ready(1);
	make_park_files();
	set_lot_pages("16384");
	/* Only an allocation gives them back. */
	hold_windows();
	park_some(limit);
	parked = vm_counter("nr_luf_parked");
	kills = vm_counter("oom_kill");
	/*
	 * All that is free or deferred, and some page cache. At once: time gives pages back
	 * in 20 s.
	 */
	atomic_store(&sh->size, (number_in("/proc/meminfo", "MemFree:") << 10) - reserve +
				parked * PAGE + (4UL << 20));
	taken += atomic_load(&sh->size);
	atomic_store(&sh->go, true);
	for (int i = 0; i < 6000 && !got && waitpid(pid, NULL, WNOHANG) != pid; i++) {
		usleep(10000);
		got = atomic_load(&sh->ready) >= 99;
	}
	got = atomic_load(&sh->ready) >= 99;
	/* Others may still free pages. */
	for (int i = 0; i < 100 && vm_counter("nr_luf_parked") >= parked / 2; i++)
		usleep(10000);
	left = vm_counter("nr_luf_parked");
	kills = vm_counter("oom_kill") - kills;
	kill_and_wait(pid);
	restore_lot_pages();
	release_windows();
	unlink_park_files();
	test_result(got && !kills && parked >= limit / 4 && left < parked / 2 &&
		    atomic_load(&sh->worst_us) < 10000000,
		    "security memory: %lu MB taken with %ld of %ld pages deferred, %ld left, %ld processes killed, no page took longer than %ld us",
		    taken >> 20, parked, limit, left, kills, atomic_load(&sh->worst_us));
}
