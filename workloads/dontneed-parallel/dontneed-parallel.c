// SPDX-License-Identifier: GPL-2.0-only
/*
 * dontneed-parallel: threads of one process, each on its CPU, touch pages and drop them
 * with MADV_DONTNEED at once, as an allocator's threads do. Measures mm/gather_range.c and
 * merged requests of early_ack. Usage:
 *
 *	dontneed-parallel [--threads N] [--pages N] [--calls N]
 *
 *	calls_per_s		of all threads
 *	requests_per_call	flush requests to other CPUs, one per call and CPU
 *	interrupts_per_call	call-function interrupts; requests may share one
 *	full_share		calls whose own CPU flushed everything, not a range
 *	early_share		requests that were acknowledged early
 *	target_rate		millions per second that a thread counts beside two droppers
 *				(beside one with two CPUs)
 *
 * Counters: /proc/vmstat (CONFIG_DEBUG_TLBFLUSH) and /proc/interrupts. A dropped page must
 * be empty.
 */
#define WORKLOAD "dontneed-parallel"
#include "../workload.h"
#include <sched.h>

#define MAX_THREADS	64

struct worker {
	pthread_t thread;
	int cpu;
	uint64_t pages, calls;
};

static pthread_barrier_t start;

/* Of all CPUs. */
static uint64_t call_interrupts(void)
{
	FILE *f = fopen("/proc/interrupts", "r");
	static char line[65536];
	uint64_t sum = 0;

	if (!f)
		die("Cannot read /proc/interrupts: %s.", strerror(errno));
	while (fgets(line, sizeof(line), f)) {
		char *at = strstr(line, "CAL:"), *end;

		if (!at)
			continue;
		for (at += 4;; at = end) {
			unsigned long long n = strtoull(at, &end, 10);

			if (end == at)
				break;
			sum += n;
		}
	}
	fclose(f);
	return sum;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	char *region = map_anonymous(w->pages * PAGE_BYTES);
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(w->cpu, &one);
	if (pthread_setaffinity_np(pthread_self(), sizeof(one), &one))
		die("Cannot bind a thread to CPU %d.", w->cpu);
	/* Single pages: a larger folio changes the work. */
	madvise(region, w->pages * PAGE_BYTES, MADV_NOHUGEPAGE);
	pthread_barrier_wait(&start);
	for (uint64_t call = 1; call <= w->calls; call++) {
		for (uint64_t page = 0; page < w->pages; page++) {
			uint64_t *word = (void *)(region + page * PAGE_BYTES);

			/* A write at once is one fault. */
			if (__atomic_exchange_n(word, call, __ATOMIC_RELAXED))
				die("A page was not empty after MADV_DONTNEED.");
		}
		if (madvise(region, w->pages * PAGE_BYTES, MADV_DONTNEED))
			die("MADV_DONTNEED failed: %s.", strerror(errno));
	}
	/* The last threads must not run alone. */
	pthread_barrier_wait(&start);
	munmap(region, w->pages * PAGE_BYTES);
	return NULL;
}

/* Set when the droppers have ended. */
static int stop_counting;

static void *count(void *arg)
{
	struct worker *w = arg;
	volatile uint64_t n = 0;
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(w->cpu, &one);
	if (pthread_setaffinity_np(pthread_self(), sizeof(one), &one))
		die("Cannot bind a thread to CPU %d.", w->cpu);
	while (!__atomic_load_n(&stop_counting, __ATOMIC_RELAXED))
		n++;
	w->calls = n;
	return NULL;
}

static void measure(uint64_t threads, uint64_t pages, uint64_t calls)
{
	static struct worker workers[MAX_THREADS];
	static const char * const names[] = {
		"nr_tlb_remote_flush_received", "nr_tlb_local_flush_all", "early_ack_acked",
	};
	double before[ARRAY_SIZE(names)], rise[ARRAY_SIZE(names)], interrupts, all;
	uint64_t from;

	pthread_barrier_init(&start, NULL, (unsigned int)threads + 1);
	for (uint64_t t = 0; t < threads; t++) {
		workers[t] = (struct worker){ .cpu = (int)t, .pages = pages, .calls = calls };
		start_thread(&workers[t].thread, work, &workers[t]);
	}
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		before[i] = (double)vm_counter(names[i]);
	interrupts = (double)call_interrupts();
	pthread_barrier_wait(&start);
	from = now_ns();
	pthread_barrier_wait(&start);
	from = now_ns() - from;
	interrupts = (double)call_interrupts() - interrupts;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		rise[i] = (double)vm_counter(names[i]) - before[i];
	for (uint64_t t = 0; t < threads; t++)
		pthread_join(workers[t].thread, NULL);
	pthread_barrier_destroy(&start);

	all = (double)(threads * calls);
	figure_more("calls_per_s", all * NSEC_PER_SEC / (double)from, "1/s");
	figure("interrupts_per_call", interrupts / all, "");
	figure("requests_per_call", rise[0] / all, "");
	figure("full_share", rise[1] / all, "");
	figure_more("early_share", rise[0] > 0 ? rise[2] / rise[0] : 0, "");
}

static void measure_target(int droppers, uint64_t pages, uint64_t calls)
{
	struct worker workers[3];
	uint64_t from;

	pthread_barrier_init(&start, NULL, (unsigned int)droppers + 1);
	for (int t = 0; t <= droppers; t++) {
		workers[t] = (struct worker){ .cpu = t, .pages = pages, .calls = calls };
		start_thread(&workers[t].thread, t == droppers ? count : work, &workers[t]);
	}
	from = now_ns();
	pthread_barrier_wait(&start);
	pthread_barrier_wait(&start);
	__atomic_store_n(&stop_counting, 1, __ATOMIC_RELAXED);
	from = now_ns() - from;
	for (int t = 0; t <= droppers; t++)
		pthread_join(workers[t].thread, NULL);
	pthread_barrier_destroy(&start);
	figure_more("target_rate", (double)workers[droppers].calls * 1000 / (double)from, "");
}

int main(int argc, char **argv)
{
	uint64_t threads = 2, pages = 8, calls = 20000;
	int i = 1;

	for (; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--threads"))
			threads = parse_number("--threads", argv[i + 1], 2, MAX_THREADS);
		else if (!strcmp(argv[i], "--pages"))
			pages = parse_number("--pages", argv[i + 1], 1, 512);
		else if (!strcmp(argv[i], "--calls"))
			calls = parse_number("--calls", argv[i + 1], 1, 1000000000);
		else
			break;
	}
	if (i != argc)
		die("usage: " WORKLOAD " [--threads N] [--pages N] [--calls N]");
	measure(threads, pages, calls);
	measure_target(threads > 2 ? 2 : 1, pages, calls);
	return 0;
}
