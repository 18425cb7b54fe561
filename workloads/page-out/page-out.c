// SPDX-License-Identifier: GPL-2.0-only
/*
 * page-out: memory goes to swap by MADV_PAGEOUT of a region and by memory.reclaim of its
 * cgroup, in long lists of dirty pages. Measures mm/writeout_batch.c.
 * Usage: page-out [--threads N] [--megabytes N] [--rounds N]
 * Figures: flush requests per page swapped out (/proc/vmstat, CONFIG_DEBUG_TLBFLUSH), and
 * time. A thread per further CPU spins with the mm loaded. Each round reads all pages back
 * and compares. fault_p99_us is of the faults of a thread that writes at random to the
 * region while MADV_PAGEOUT is under way: a fault waits for the lock of its page.
 */
#define WORKLOAD "page-out"
#include "../workload.h"
#include "../times.h"
#include <fcntl.h>
#include <unistd.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif

/* The lab's cgroup of a command. */
#define RECLAIM		"/sys/fs/cgroup/quell/memory.reclaim"
#define MAX_THREADS	256
/* Enough for a 99th percentile. */
#define FAULTS		5000

static int stop;

static void *spin(void *arg)
{
	(void)arg;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
		;
	return NULL;
}

static void by_madvise(char *region, size_t bytes)
{
	if (madvise(region, bytes, MADV_PAGEOUT))
		die("Cannot page out: %s.", strerror(errno));
}

/* Three quarters: pages with other references may stay. */
static void by_cgroup(char *region, size_t bytes)
{
	int fd = open(RECLAIM, O_WRONLY);
	char text[48];

	(void)region;
	snprintf(text, sizeof(text), "%zu swappiness=200", bytes * 3 / 4);
	if (fd < 0 || (write(fd, text, strlen(text)) < 0 && errno != EAGAIN))
		die("Cannot reclaim by " RECLAIM ": %s.", strerror(errno));
	close(fd);
}

static void measure(const char *what, void (*out)(char *region, size_t bytes), size_t bytes,
		    uint64_t rounds)
{
	uint64_t flushes = 0, swapped = 0, ns = 0;
	uint64_t pages = bytes / PAGE_BYTES;
	char *region = map_anonymous(bytes);
	char name[64];

	for (uint64_t round = 1; round <= rounds; round++) {
		uint64_t start;

		for (uint64_t page = 0; page < pages; page++)
			*(volatile uint64_t *)(region + page * PAGE_BYTES) = page << 8 | round;
		flushes -= vm_counter("nr_tlb_remote_flush");
		swapped -= vm_counter("pswpout") + vm_counter("zswpout");
		start = now_ns();
		out(region, bytes);
		ns += now_ns() - start;
		swapped += vm_counter("pswpout") + vm_counter("zswpout");
		flushes += vm_counter("nr_tlb_remote_flush");
		for (uint64_t page = 0; page < pages; page++)
			if (*(volatile uint64_t *)(region + page * PAGE_BYTES) != (page << 8 | round))
				die("Page %llu is not as it was written.", (unsigned long long)page);
	}
	if (swapped < pages * rounds / 2)
		die("%s: only %llu pages of %llu were swapped out.", what,
		    (unsigned long long)swapped, (unsigned long long)(pages * rounds));
	snprintf(name, sizeof(name), "%s_flushes_per_page", what);
	figure(name, (double)flushes / (double)swapped, "");
	snprintf(name, sizeof(name), "%s_ns_per_page", what);
	figure(name, (double)ns / (double)swapped, "ns");
	munmap(region, bytes);
}

struct writer {
	pthread_t thread;
	char *region;
	uint64_t pages;
	struct times took;
};

static long faults_of_thread(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_minflt + usage.ru_majflt;
}

static void *write_and_time(void *arg)
{
	struct writer *w = arg;
	uint64_t x = RANDOM_START, start, end;
	long before, faults = faults_of_thread();

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		next_random(&x);
		before = faults;
		start = now_ns();
		*(volatile uint64_t *)(w->region + x % w->pages * PAGE_BYTES) = x;
		end = now_ns();
		faults = faults_of_thread();
		if (faults != before)
			times_add(&w->took, end - start);
	}
	return NULL;
}

static void measure_faults(size_t bytes)
{
	uint64_t end = now_ns() + 60 * NSEC_PER_SEC;
	struct writer w = { .region = map_anonymous(bytes), .pages = bytes / PAGE_BYTES };

	memset(w.region, 1, bytes);
	start_thread(&w.thread, write_and_time, &w);
	while (__atomic_load_n(&w.took.count, __ATOMIC_RELAXED) < FAULTS && now_ns() < end)
		by_madvise(w.region, bytes);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(w.thread, NULL);
	if (w.took.count < FAULTS)
		die("Only %llu writes faulted.", (unsigned long long)w.took.count);
	figure("fault_p99_us", times_percentile_us(&w.took, 0.99), "us");
	munmap(w.region, bytes);
}

int main(int argc, char **argv)
{
	uint64_t threads = 2, mb = 48, rounds = 4;
	pthread_t spinner[MAX_THREADS];
	int i = 1;

	for (; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--threads"))
			threads = parse_number("--threads", argv[i + 1], 1, MAX_THREADS);
		else if (!strcmp(argv[i], "--megabytes"))
			mb = parse_number("--megabytes", argv[i + 1], 1, 1 << 20);
		else if (!strcmp(argv[i], "--rounds"))
			rounds = parse_number("--rounds", argv[i + 1], 1, 1000000);
		else
			break;
	}
	if (i != argc)
		die("usage: " WORKLOAD " [--threads N] [--megabytes N] [--rounds N]");
	for (uint64_t t = 1; t < threads; t++)
		start_thread(&spinner[t], spin, NULL);
	measure("madvise", by_madvise, mb << 20, rounds);
	measure("reclaim", by_cgroup, mb << 20, rounds);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (uint64_t t = 1; t < threads; t++)
		pthread_join(spinner[t], NULL);
	__atomic_store_n(&stop, 0, __ATOMIC_RELAXED);
	measure_faults(mb << 20);
	return 0;
}
