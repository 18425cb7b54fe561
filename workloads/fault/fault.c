// SPDX-License-Identifier: GPL-2.0-only
/*
 * fault: first touches of anonymous memory. Measures the sizes that mm/folio_order.c
 * chooses. Needs root and version 2 of cgroups. Usage:
 *
 *	fault [--megabytes N] [--rounds N] [--only ORDER]
 *
 *   sequential	every page, in order
 *   strided	one page in 16, in order (each in its own 64 KB)
 *   random	half of the pages, each once, in random order
 *
 * Figures: faults (getrusage()), time per touched page, anonymous memory after it (RssAnon,
 * which is exact), memory in use (memory.current: with page tables, and with pages that are mapped
 * no more), and the time of munmap(). Compare the time per page: with larger folios the faults go
 * down and the time per fault goes up.
 *
 * The random order is the same in each run. Each order is a process: none changes the next.
 */
#define WORKLOAD "fault"
#include "../workload.h"

#define STRIDE	16

/* Returns the count. */
static inline uint64_t in_order(uint32_t *order, uint64_t pages, uint64_t stride)
{
	uint64_t count = 0;

	for (uint64_t page = 0; page < pages; page += stride)
		order[count++] = (uint32_t)page;
	return count;
}

/* The first half of the shuffled pages is touched. */
static inline uint64_t at_random(uint32_t *order, uint64_t pages, uint64_t stride)
{
	uint64_t x = RANDOM_START;

	in_order(order, pages, stride);
	for (uint64_t i = pages - 1; i > 0; i--) {
		uint64_t j = next_random(&x) % (i + 1);
		uint32_t page = order[i];

		order[i] = order[j];
		order[j] = page;
	}
	return pages / 2;
}

/* @fill writes the pages to touch and returns their number. */
struct touch_order {
	const char *name;
	uint64_t (*fill)(uint32_t *order, uint64_t pages, uint64_t stride);
	uint64_t stride;
	uint64_t weight;	/* equalizes the time of cases */
};

static const struct touch_order touch_orders[] = {
	{ "sequential", in_order, 1, 1 },
	{ "strided", in_order, STRIDE, 8 },
	{ "random", at_random, 1, 2 },
};

struct counts {
	uint64_t faults, touch_ns, munmap_ns;
	uint64_t anonymous_kb;		/* largest */
	double in_use_kb;		/* largest */
};

/* Adds to @sum. */
static void touch(const uint32_t *order, uint64_t count, uint64_t pages,
		  struct counts *sum)
{
	char *region = map_anonymous(pages * PAGE_BYTES);
	uint64_t faults_before = minor_faults();
	uint64_t start = now_ns(), elapsed, taken, kb;
	double in_use;

	for (uint64_t i = 0; i < count; i++) {
		volatile char *p = region + order[i] * PAGE_BYTES;

		/* A read first would be a second fault. */
		*p = 1;
	}
	elapsed = now_ns() - start;
	taken = minor_faults() - faults_before;
	sum->touch_ns += elapsed;
	sum->faults += taken;
	kb = anonymous_kb(getpid());
	if (kb > sum->anonymous_kb)
		sum->anonymous_kb = kb;
	in_use = cgroup_kb("memory.current");
	if (in_use > sum->in_use_kb)
		sum->in_use_kb = in_use;
	if (!taken)
		die("Touching %llu new pages took no fault.",
		    (unsigned long long)count);
	for (uint64_t i = 0; i < count; i++) {
		char *p = region + order[i] * PAGE_BYTES;

		if (p[0] != 1 || p[1] || p[PAGE_BYTES - 1])
			die("Page %lu is not as it was written.",
			    (unsigned long)order[i]);
	}
	start = now_ns();
	munmap(region, pages * PAGE_BYTES);
	sum->munmap_ns += now_ns() - start;
}

static void measure(const char *what, const uint32_t *order, uint64_t count,
		    uint64_t pages, uint64_t rounds)
{
	struct counts sum = { 0 };
	char name[64];

	/* The status text needs memory, too. */
	anonymous_kb(getpid());
	for (uint64_t round = 0; round < rounds; round++)
		touch(order, count, pages, &sum);
	snprintf(name, sizeof(name), "%s_ns_per_page", what);
	figure(name, (double)sum.touch_ns / (double)(count * rounds), "ns");
	snprintf(name, sizeof(name), "%s_faults", what);
	figure(name, (double)sum.faults / (double)rounds, "faults");
	snprintf(name, sizeof(name), "%s_anonymous_kb", what);
	figure(name, (double)sum.anonymous_kb, "kB");
	snprintf(name, sizeof(name), "%s_in_use_kb", what);
	figure(name, sum.in_use_kb, "kB");
	snprintf(name, sizeof(name), "%s_munmap_ns_per_page", what);
	figure(name, (double)sum.munmap_ns / (double)(count * rounds), "ns");
}

int main(int argc, char **argv)
{
	uint64_t mb = 96, rounds = 3;
	const char *only = NULL;
	uint64_t pages;
	uint32_t *order;
	char *region;
	int i = 1;

	for (; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--megabytes"))
			mb = parse_number("--megabytes", argv[i + 1], 1, 1 << 20);
		else if (!strcmp(argv[i], "--rounds"))
			rounds = parse_number("--rounds", argv[i + 1], 1, 1000000);
		else if (!strcmp(argv[i], "--only"))
			only = argv[i + 1];
		else
			break;
	}
	if (i != argc)
		die("usage: " WORKLOAD " [--megabytes N] [--rounds N] [--only ORDER]");
	pages = (mb << 20) / PAGE_BYTES;
	order = calloc(pages, sizeof(*order));
	if (!order)
		die("No memory for the order of %llu pages.",
		    (unsigned long long)pages);

	/*
	 * Not measured: the host backs guest memory at its first touch, and the first use
	 * of the clock is a fault.
	 */
	now_ns();
	region = map_anonymous(pages * PAGE_BYTES);
	memset(region, 1, pages * PAGE_BYTES);
	munmap(region, pages * PAGE_BYTES);

	for (size_t k = 0; k < ARRAY_SIZE(touch_orders); k++) {
		const struct touch_order *one = &touch_orders[k];
		uint64_t count;

		if (only && strcmp(only, one->name))
			continue;
		count = one->fill(order, pages, one->stride);
		if (alone()) {
			measure(one->name, order, count, pages, rounds * one->weight);
			exit(0);
		}
	}
	return 0;
}
