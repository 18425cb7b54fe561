// SPDX-License-Identifier: GPL-2.0-only
/*
 * dontneed-touch: one thread touches 1, 8 and 33 pages and gives them back with
 * MADV_DONTNEED, again and again, while 0, 1 and 3 other threads of the same
 * process spin. With nobody else the flush stays on the toucher's CPU; with
 * others each round owes a TLB shootdown to every CPU they run on. What the
 * others add to an MADV_DONTNEED is what a shootdown costs the one who asks for
 * it. Each case is measured TRIES times, in turn, and the 1st percentile of all
 * its MADV_DONTNEEDs counts: what a busy host takes away only ever adds, and the
 * one fastest is chance. With one page the whole round is measured as well,
 * touching included, as it is in what has been published; there the fastest try
 * counts, as a clock around each would be in it.
 *
 * The toucher has the first CPU to itself and the others share the rest, so
 * with fewer CPUs than threads the spinners slow each other down but never the
 * toucher. (On one CPU everybody shares it.)
 *
 * 33 pages are as many as the kernel invalidates one by one on x86 (its
 * tlb_single_page_flush_ceiling); with more it flushes everything instead.
 * --pages N does the same with N pages only.
 *
 * --scale is for the instruction counter as clock, where all CPUs take turns: it
 * compares nobody with one spinner on each other CPU. There the median counts, and the
 * spinners pause, as one that does not keeps its turn and would be what is measured.
 */
#define WORKLOAD "dontneed-touch"
#include "../workload.h"
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PAGES	512
#define MAX_OTHERS	63
#define TRIES		40
#define SCALE_TRIES	3

/* What is measured: with so many pages, beside so many spinners. */
struct work {
	uint64_t pages;
	int others;
	uint64_t *drops;	/* nanoseconds of each MADV_DONTNEED */
	size_t nr_drops;
	double round;		/* nanoseconds; no round is measured: 0 */
};

/* Where a spinner belongs. */
struct place {
	const cpu_set_t *allowed;
	int spinner;
};

static atomic_bool stop;
static atomic_int spinning;
static bool scale;

/* Seen by the processes that measure, and by the one that reports. */
static void *map_shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("Cannot map %zu bytes: %s.", bytes, strerror(errno));
	return p;
}

/* The CPU for spinner @i, or for the toucher if @i is negative. */
static int cpu_for(const cpu_set_t *allowed, int i)
{
	int cpus = CPU_COUNT(allowed);
	int nth = i < 0 || cpus == 1 ? 0 : 1 + i % (cpus - 1);

	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, allowed) && !nth--)
			return cpu;
	return 0;
}

/* The caller, where cpu_for() says. */
static void pin_to(const cpu_set_t *allowed, int i)
{
	cpu_set_t one;
	int error;

	CPU_ZERO(&one);
	CPU_SET(cpu_for(allowed, i), &one);
	error = pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
	if (error)
		die("Cannot bind a thread to its CPU: %s.", strerror(error));
}

/*
 * It goes to its CPU before it counts: a toucher that starts earlier has nobody
 * to interrupt yet, and its fastest try would be one without a shootdown.
 */
static void *spin(void *arg)
{
	const struct place *place = arg;

	pin_to(place->allowed, place->spinner);
	atomic_fetch_add(&spinning, 1);
	/* User mode only: it meets the kernel when it is interrupted. */
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		if (scale)
			__builtin_ia32_pause();
	return NULL;
}

static void touch(char *region, uint64_t pages, uint64_t mark)
{
	for (uint64_t i = 0; i < pages; i++) {
		_Atomic(uint64_t) *word = (void *)(region + i * PAGE_BYTES);

		/* Written at once, so that it is one fault, not two. */
		if (atomic_exchange(word, mark))
			die("Page %llu was not empty after MADV_DONTNEED.",
			    (unsigned long long)i);
	}
}

static void drop(char *region, uint64_t pages)
{
	if (madvise(region, pages * PAGE_BYTES, MADV_DONTNEED))
		die("MADV_DONTNEED failed: %s.", strerror(errno));
}

/* Leaves in @drops how long it took to drop, each time. */
static void touch_and_drop(char *region, uint64_t pages, uint64_t rounds,
			   uint64_t *drops)
{
	uint64_t start;

	for (uint64_t round = 0; round < rounds; round++) {
		touch(region, pages, round + 1);
		start = now_ns();
		drop(region, pages);
		drops[round] = now_ns() - start;
	}
}

/* Returns the time of whole rounds, with nothing but them between two clocks. */
static uint64_t whole_rounds(char *region, uint64_t pages, uint64_t rounds)
{
	uint64_t start = now_ns();

	for (uint64_t round = 0; round < rounds; round++) {
		touch(region, pages, round + 1);
		drop(region, pages);
	}
	return now_ns() - start;
}

/* Returns the time of a whole round, or 0. */
static double measure(const cpu_set_t *allowed, int others, uint64_t pages,
		      uint64_t rounds, uint64_t *drops)
{
	struct place places[MAX_OTHERS];
	pthread_t threads[MAX_OTHERS];
	char *region = map_anonymous(pages * PAGE_BYTES);
	double round = 0;

	/* One page each: a larger folio would change what is measured. */
	madvise(region, pages * PAGE_BYTES, MADV_NOHUGEPAGE);
	atomic_store(&stop, false);
	atomic_store(&spinning, 0);
	for (int i = 0; i < others; i++) {
		places[i] = (struct place){ allowed, i };
		start_thread(&threads[i], spin, &places[i]);
	}
	while (atomic_load(&spinning) < others)
		sched_yield();

	touch_and_drop(region, pages, rounds, drops);
	if (pages == 1)
		round = (double)whole_rounds(region, pages, rounds) /
			(double)rounds;

	atomic_store(&stop, true);
	for (int i = 0; i < others; i++)
		pthread_join(threads[i], NULL);
	munmap(region, pages * PAGE_BYTES);
	return round;
}

/*
 * In a process of its own, whose address space has never been on another CPU
 * than the toucher's: one that has been there, even before it was pinned, may
 * still be asked to flush, or not, as chance will have it.
 */
static double measure_apart(const cpu_set_t *allowed, int others, uint64_t pages,
			    uint64_t rounds, uint64_t *drops)
{
	double *round = map_shared(sizeof(*round));
	double result;
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child < 0)
		die("Cannot start a process: %s.", strerror(errno));
	if (!child) {
		*round = measure(allowed, others, pages, rounds, drops);
		exit(0);
	}
	if (waitpid(child, &status, 0) != child)
		die("Cannot wait for a process: %s.", strerror(errno));
	if (WIFSIGNALED(status))
		die("The toucher was killed by signal %d.", WTERMSIG(status));
	if (WEXITSTATUS(status))
		exit(1);	/* it has said why */
	result = *round;
	munmap(round, sizeof(*round));
	return result;
}

static int compare(const void *a, const void *b)
{
	uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;

	return one < other ? -1 : one > other;
}

/* The 1st percentile; no host gets in the way with --scale: the median. */
static double typical(const struct work *work)
{
	return (double)work->drops[work->nr_drops / (scale ? 2 : 100)];
}

static void report(const struct work *work, const struct work *alone)
{
	char who[24], name[64];

	if (scale && work->others)
		snprintf(who, sizeof(who), "all");
	else
		snprintf(who, sizeof(who), "%d", work->others);
	snprintf(name, sizeof(name), "ns_%llup_%s_others",
		 (unsigned long long)work->pages, who);
	figure(name, typical(work), "ns");
	if (work->pages == 1) {
		snprintf(name, sizeof(name), "ns_round_1p_%s_others", who);
		figure(name, work->round, "ns");
	}
	if (work == alone)
		return;
	snprintf(name, sizeof(name), "ns_added_%llup_%s_others",
		 (unsigned long long)work->pages, who);
	figure(name, typical(work) - typical(alone), "ns");
}

/* Each once, again and again, so that all of them see the host in all its moods. */
static void measure_all(const cpu_set_t *allowed, struct work *works, size_t count,
			uint64_t iterations)
{
	size_t tries = scale ? SCALE_TRIES : TRIES;
	uint64_t rounds = iterations / tries + 1;

	for (size_t i = 0; i < count; i++)
		works[i].drops = map_shared(tries * rounds * sizeof(uint64_t));
	for (size_t try = 0; try < tries; try++)
		for (size_t i = 0; i < count; i++) {
			struct work *work = &works[i];
			double round = measure_apart(allowed, work->others,
						     work->pages, rounds,
						     work->drops + work->nr_drops);

			work->nr_drops += rounds;
			if (!try || round < work->round)
				work->round = round;
		}
	for (size_t i = 0; i < count; i++)
		qsort(works[i].drops, works[i].nr_drops, sizeof(uint64_t), compare);
}

int main(int argc, char **argv)
{
	static const uint64_t usual[] = { 1, 8, 33 };
	struct work works[ARRAY_SIZE(usual) * 3];
	uint64_t pages = 0, iterations = 10000;
	int others[] = { 0, 1, 3 }, i = 1;
	size_t cases = 3, count = 0;
	cpu_set_t allowed;

	if (i < argc && !strcmp(argv[i], "--scale")) {
		scale = true;
		i++;
	}
	for (; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--pages"))
			pages = parse_number("--pages", argv[i + 1], 1,
					     MAX_PAGES);
		else if (!strcmp(argv[i], "--iterations"))
			iterations = parse_number("--iterations", argv[i + 1],
						  1, 1000000000);
		else
			break;
	}
	if (i != argc)
		die("usage: " WORKLOAD " [--scale] [--pages N] [--iterations N]");
	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		die("Cannot read the CPUs this may run on: %s.",
		    strerror(errno));
	pin_to(&allowed, -1);
	if (scale) {
		others[1] = CPU_COUNT(&allowed) - 1;
		cases = 2;
		if (others[1] < 1 || others[1] > MAX_OTHERS)
			die("--scale needs 2 to %d CPUs.", MAX_OTHERS + 1);
	}
	for (size_t k = 0; k < (pages ? 1 : ARRAY_SIZE(usual)); k++)
		for (size_t j = 0; j < cases; j++)
			works[count++] = (struct work){
				.pages = pages ? pages : usual[k],
				.others = others[j],
			};
	measure_all(&allowed, works, count, iterations);
	for (size_t k = 0; k < count; k++)
		report(&works[k], &works[k - k % cases]);
	return 0;
}
