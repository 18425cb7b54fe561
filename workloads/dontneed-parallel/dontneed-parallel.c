// SPDX-License-Identifier: GPL-2.0-only
/*
 * dontneed-parallel: threads of one process, each on its CPU, touch pages and drop them
 * with MADV_DONTNEED at once, as an allocator's threads do. Measures mm/gather_range.c and
 * merged requests of early_ack. Usage:
 *
 *	dontneed-parallel [--threads N] [--pages N] [--calls N | --seconds N] [--targets N]
 *
 * Each thread makes that many calls, or calls for that time. With --targets the last N threads
 * only count. The others do nothing but flush: they write to the pages and call MADV_FREE, which
 * marks them clean and flushes, without faults.
 *
 *	calls_per_s		of all threads
 *	requests_per_call	flush requests to other CPUs, one per call and CPU
 *	interrupts_per_call	call-function interrupts; requests may share one
 *	full_share		calls whose own CPU flushed everything, not a range
 *	waited_share		requests that were not acknowledged early: all in stock
 *	target_rate		with --targets: millions per second that these threads count
 *
 * Counters: /proc/vmstat (CONFIG_DEBUG_TLBFLUSH) and /proc/interrupts. A page dropped with
 * MADV_DONTNEED must be empty.
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
static int advice = MADV_DONTNEED;
/* Workers that have not made all of their calls. */
static uint64_t busy;
/* From the start on; 0: no limit. */
static uint64_t limit_ns;

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

static void bind_to(int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	if (pthread_setaffinity_np(pthread_self(), sizeof(one), &one))
		die("Cannot bind a thread to CPU %d.", cpu);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	char *region = map_anonymous(w->pages * PAGE_BYTES);
	uint64_t call = 0, end;

	bind_to(w->cpu);
	/* Single pages: a larger folio changes the work. */
	madvise(region, w->pages * PAGE_BYTES, MADV_NOHUGEPAGE);
	pthread_barrier_wait(&start);
	end = now_ns() + limit_ns;
	while (limit_ns ? now_ns() < end : call < w->calls) {
		call++;
		for (uint64_t page = 0; page < w->pages; page++) {
			uint64_t *word = (void *)(region + page * PAGE_BYTES);

			/* A write at once is one fault. */
			if (__atomic_exchange_n(word, call, __ATOMIC_RELAXED) &&
			    advice == MADV_DONTNEED)
				die("A page was not empty after MADV_DONTNEED.");
		}
		if (madvise(region, w->pages * PAGE_BYTES, advice))
			die("madvise() failed: %s.", strerror(errno));
	}
	w->calls = call;
	__atomic_fetch_sub(&busy, 1, __ATOMIC_RELAXED);
	/* The last threads must not run alone. */
	pthread_barrier_wait(&start);
	munmap(region, w->pages * PAGE_BYTES);
	return NULL;
}

static void *count(void *arg)
{
	struct worker *w = arg;
	volatile uint64_t n = 0;

	bind_to(w->cpu);
	pthread_barrier_wait(&start);
	while (__atomic_load_n(&busy, __ATOMIC_RELAXED))
		n++;
	w->calls = n;
	pthread_barrier_wait(&start);
	return NULL;
}

static void measure(uint64_t threads, uint64_t targets, uint64_t pages, uint64_t calls)
{
	static struct worker workers[MAX_THREADS];
	static const char * const names[] = {
		"nr_tlb_remote_flush_received", "nr_tlb_local_flush_all", "early_ack_acked",
	};
	double before[ARRAY_SIZE(names)], rise[ARRAY_SIZE(names)], interrupts, all = 0, counted = 0;
	uint64_t from;

	busy = threads - targets;
	pthread_barrier_init(&start, NULL, (unsigned int)threads + 1);
	for (uint64_t t = 0; t < threads; t++) {
		workers[t] = (struct worker){ .cpu = (int)t, .pages = pages, .calls = calls };
		start_thread(&workers[t].thread, t < threads - targets ? work : count, &workers[t]);
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
	for (uint64_t t = 0; t < threads; t++) {
		pthread_join(workers[t].thread, NULL);
		*(t < threads - targets ? &all : &counted) += (double)workers[t].calls;
	}
	pthread_barrier_destroy(&start);

	figure_more("calls_per_s", all * NSEC_PER_SEC / (double)from, "1/s");
	figure("interrupts_per_call", interrupts / all, "");
	figure("requests_per_call", rise[0] / all, "");
	figure("full_share", rise[1] / all, "");
	figure("waited_share", rise[0] > 0 ? 1 - rise[2] / rise[0] : 0, "");
	if (targets)
		figure_more("target_rate", counted * 1000 / (double)from, "");
}

int main(int argc, char **argv)
{
	uint64_t threads = 2, targets = 0, pages = 8, calls = 20000;
	int i = 1;

	for (; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--threads"))
			threads = parse_number("--threads", argv[i + 1], 2, MAX_THREADS);
		else if (!strcmp(argv[i], "--pages"))
			pages = parse_number("--pages", argv[i + 1], 1, 512);
		else if (!strcmp(argv[i], "--calls"))
			calls = parse_number("--calls", argv[i + 1], 1, 1000000000);
		else if (!strcmp(argv[i], "--seconds"))
			limit_ns = parse_number("--seconds", argv[i + 1], 1, 3600) * NSEC_PER_SEC;
		else if (!strcmp(argv[i], "--targets"))
			targets = parse_number("--targets", argv[i + 1], 0, MAX_THREADS - 1);
		else
			break;
	}
	if (i != argc || targets >= threads)
		die("usage: " WORKLOAD " [--threads N] [--pages N] [--calls N | --seconds N] [--targets N]");
	if (targets)
		advice = MADV_FREE;
	measure(threads, targets, pages, calls);
	return 0;
}
