// SPDX-License-Identifier: GPL-2.0-only
/*
 * alloc-latency: the latency of allocations while threads read a mapped file larger than
 * memory. R4 of mm/luf.c: free memory stays near the watermarks, and reclaim is always at
 * work. Usage:
 *
 *	alloc-latency --make PATH BYTES | [--samples N] PATH
 *
 * Two threads read the file, as in mapped-read. The main thread has real-time priority, so
 * its samples exclude the run queue. The time is that of the whole page fault or system
 * call:
 *
 *   4 KB	the first touch of a page of anonymous memory
 *   32 KB	F_SETPIPE_SZ to SLOTS slots: one kcalloc() of 20480 bytes. No slab cache is that
 *		large, so it is an order-3 page. GFP_KERNEL may reclaim and compact
 *		(pipe_resize_ring())
 */
#define WORKLOAD "alloc-latency"
#include "../mapped-file.h"
#include <sched.h>

#define READERS		2
#define REGION_PAGES	2048
#define PIPES		64
#define SLOTS		512
#define PAUSE_NS	100000
#define NSEC_PER_USEC	1000.0

static struct file_set set = { .files = 1 };
static atomic_int stop;
static _Atomic uint64_t pages_read;

static void *read_file(void *arg)
{
	uint64_t from = set.pages * (uintptr_t)arg / READERS;

	atomic_fetch_add(&pages_read, read_until(&set, from, &stop));
	return NULL;
}

static uint64_t touch(char *region, uint64_t sample)
{
	uint64_t page = sample % REGION_PAGES, start;

	if (!page && sample &&
	    madvise(region, REGION_PAGES * PAGE_BYTES, MADV_DONTNEED))
		die("Cannot free anonymous memory: %s.", strerror(errno));
	start = now_ns();
	*(volatile char *)(region + page * PAGE_BYTES) = 1;
	return now_ns() - start;
}

static void resize(int fd, uint64_t slots)
{
	if (fcntl(fd, F_SETPIPE_SZ, (int)(slots * PAGE_BYTES)) < 0)
		die("Cannot resize a pipe to %llu slots: %s.",
		    (unsigned long long)slots, strerror(errno));
}

static uint64_t grow_pipe(const int *pipes, uint64_t sample)
{
	uint64_t start;

	if (sample && sample % PIPES == 0)
		for (int i = 0; i < PIPES; i++)
			resize(pipes[i], 1);
	start = now_ns();
	resize(pipes[sample % PIPES], SLOTS);
	return now_ns() - start;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void report(const char *what, uint64_t *ns, uint64_t n)
{
	static const struct {
		const char *name;
		double share;
	} points[] = { { "p50", 0.5 }, { "p99", 0.99 }, { "max", 1 } };
	char name[64];

	qsort(ns, n, sizeof(*ns), compare);
	for (size_t i = 0; i < ARRAY_SIZE(points); i++) {
		uint64_t rank = (uint64_t)(points[i].share * (double)n);

		if (rank >= n)
			rank = n - 1;
		snprintf(name, sizeof(name), "%s_%s_us", what, points[i].name);
		figure(name, (double)ns[rank] / NSEC_PER_USEC, "us");
	}
}

static void measure(uint64_t samples)
{
	struct sched_param priority = { .sched_priority = 1 };
	struct timespec pause = { .tv_nsec = PAUSE_NS };
	uint64_t every = 4, n32 = samples / every;
	uint64_t *ns4 = map_anonymous(samples * sizeof(*ns4));
	uint64_t *ns32 = map_anonymous(n32 * sizeof(*ns32));
	char *region = map_anonymous(REGION_PAGES * PAGE_BYTES);
	pthread_t readers[READERS];
	int pipes[PIPES];
	uint64_t start;

	if (madvise(region, REGION_PAGES * PAGE_BYTES, MADV_NOHUGEPAGE) &&
	    errno != EINVAL)
		die("Cannot set up anonymous memory: %s.", strerror(errno));
	for (int i = 0; i < PIPES; i++) {
		int ends[2];

		if (pipe(ends))
			die("Cannot make a pipe: %s.", strerror(errno));
		pipes[i] = ends[1];
		resize(pipes[i], 1);
	}
	/* Their first touch is not measured. */
	memset(ns4, 1, samples * sizeof(*ns4));
	memset(ns32, 1, n32 * sizeof(*ns32));

	start = now_ns();
	for (uintptr_t i = 0; i < READERS; i++)
		start_thread(&readers[i], read_file, (void *)i);
	if (sched_setscheduler(0, SCHED_FIFO, &priority))
		die("Cannot take real-time priority: %s.", strerror(errno));
	wait_for_reclaim();
	for (uint64_t i = 0; i < samples; i++) {
		ns4[i] = touch(region, i);
		if (i % every == 0)
			ns32[i / every] = grow_pipe(pipes, i / every);
		nanosleep(&pause, NULL);
	}
	atomic_store(&stop, 1);
	for (int i = 0; i < READERS; i++)
		pthread_join(readers[i], NULL);

	report("alloc4k", ns4, samples);
	report("alloc32k", ns32, n32);
	figure_more("pages_per_second",
		    (double)pages_read * NSEC_PER_SEC / (double)(now_ns() - start),
		    "pages/s");
}

int main(int argc, char **argv)
{
	uint64_t samples = 16384;

	make_if_asked(argc, argv);
	if (argc == 4 && !strcmp(argv[1], "--samples")) {
		/* A multiple of 4: each fourth sample is of both kinds. */
		samples = parse_number("--samples", argv[2], 400, 1 << 24) & -4ULL;
		argc -= 2;
		argv += 2;
	}
	if (argc != 2 || argv[1][0] == '-')
		die("usage: " WORKLOAD " --make PATH BYTES, or " WORKLOAD
		    " [--samples N] PATH");
	set.path = argv[1];
	map_set(&set, PROT_READ, MAP_SHARED);
	measure(samples);
	return 0;
}
