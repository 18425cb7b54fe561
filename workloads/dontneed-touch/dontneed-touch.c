// SPDX-License-Identifier: GPL-2.0-only
/*
 * dontneed-touch: the cost of a TLB shootdown for its initiator, the toucher. Measures
 * early_ack. Usage:
 *
 *	dontneed-touch [--scale] [--pages N] [--iterations N]
 *
 * One thread touches 1, 8 and 33 pages and drops them with MADV_DONTNEED, beside 0, 1 and 3
 * spinning threads of the process. Without spinners the flush is local. With spinners each
 * round sends a shootdown to each of their CPUs: the time that they add is its cost. The
 * cases alternate, TRIES times, and the 1st percentile of all MADV_DONTNEEDs counts. A busy
 * host only adds, and the fastest one is chance. With one page the whole round is measured
 * as well, as in published measurements: the fastest try, without a clock around each
 * round.
 *
 * The toucher has the first CPU; spinners share the others.
 *
 * On x86 33 pages is the most that is invalidated page by page
 * (tlb_single_page_flush_ceiling). --pages N measures N pages only.
 *
 * --scale is for the instruction counter as clock, where all CPUs take turns. It compares
 * no spinner with one on each other CPU. The median counts. Spinners pause, as they would
 * keep their turn otherwise.
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

/* One case. */
struct work {
	uint64_t pages;
	int others;
	uint64_t *drops;	/* ns of each MADV_DONTNEED */
	size_t nr_drops;
	double round;		/* ns; 0: not measured */
};

struct place {
	const cpu_set_t *allowed;
	int spinner;
};

static atomic_bool stop;
static atomic_int spinning;
static bool scale;

/* Across the fork of the measuring process. */
static void *map_shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("Cannot map %zu bytes: %s.", bytes, strerror(errno));
	return p;
}

/* For spinner @i, or for the toucher if @i is negative. */
static int cpu_for(const cpu_set_t *allowed, int i)
{
	int cpus = CPU_COUNT(allowed);
	int nth = i < 0 || cpus == 1 ? 0 : 1 + i % (cpus - 1);

	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, allowed) && !nth--)
			return cpu;
	return 0;
}

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
 * Pinned before it counts: without it, an early toucher has no CPU to interrupt, and its
 * fastest try has no shootdown.
 */
static void *spin(void *arg)
{
	const struct place *place = arg;

	pin_to(place->allowed, place->spinner);
	atomic_fetch_add(&spinning, 1);
	/* User mode only: it enters the kernel only by interrupts. */
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		if (scale)
			__builtin_ia32_pause();
	return NULL;
}

static void touch(char *region, uint64_t pages, uint64_t mark)
{
	for (uint64_t i = 0; i < pages; i++) {
		_Atomic(uint64_t) *word = (void *)(region + i * PAGE_BYTES);

		/* A write at once is one fault. */
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

/* @drops: the time of each drop. */
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

/* No clock between rounds. */
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

	/* Single pages: a larger folio changes the work. */
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

/* A process of its own: an mm that was on another CPU may send it flushes by chance. */
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
		exit(1);	/* the child printed the reason */
	result = *round;
	munmap(round, sizeof(*round));
	return result;
}

static int compare(const void *a, const void *b)
{
	uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;

	return one < other ? -1 : one > other;
}

/* With --scale no host interferes. */
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

/* Alternating: all cases see the host in all its moods. */
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
