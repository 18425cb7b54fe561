// SPDX-License-Identifier: GPL-2.0-only
/*
 * fault: touch anonymous memory for the first time, in three orders:
 *
 *   sequential	every page of the region, in order
 *   strided	one page in 16, in order (each in its own 64 KB)
 *   random	half of the region's pages, each once, in random order
 *
 * For each: the faults it took (as getrusage() counts them) and the time per
 * page touched. Where one fault brings one page the two agree; where a kernel
 * brings several pages at once, the faults go down and the time per fault goes
 * up, so that the time per page is the one to compare.
 *
 * The random order is the same in each run. One thread.
 */
#define WORKLOAD "fault"
#include "../workload.h"
#include <sys/resource.h>

#define STRIDE	16

static uint64_t minor_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (uint64_t)usage.ru_minflt;
}

/* The first @count page numbers, every @stride pages. */
static uint64_t in_order(uint32_t *order, uint64_t pages, uint64_t stride)
{
	uint64_t count = 0;

	for (uint64_t page = 0; page < pages; page += stride)
		order[count++] = (uint32_t)page;
	return count;
}

/* All page numbers shuffled; the first half of them is what is touched. */
static uint64_t at_random(uint32_t *order, uint64_t pages, uint64_t stride)
{
	uint64_t x = 88172645463325252ULL;	/* any but 0 */

	in_order(order, pages, stride);
	for (uint64_t i = pages - 1; i > 0; i--) {
		uint64_t j;
		uint32_t page;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		j = x % (i + 1);
		page = order[i];
		order[i] = order[j];
		order[j] = page;
	}
	return pages / 2;
}

/* Touch the pages in @order; the faults are added to @faults. */
static uint64_t touch(const uint32_t *order, uint64_t count, uint64_t pages,
		      uint64_t *faults)
{
	char *region = map_anonymous(pages * PAGE_BYTES);
	uint64_t faults_before = minor_faults();
	uint64_t start = now_ns(), elapsed, taken;

	for (uint64_t i = 0; i < count; i++) {
		volatile char *p = region + order[i] * PAGE_BYTES;

		/* Unlike a read first, this is one fault. */
		*p = 1;
	}
	elapsed = now_ns() - start;
	taken = minor_faults() - faults_before;
	*faults += taken;
	if (!taken)
		die("Touching %llu new pages took no fault.",
		    (unsigned long long)count);
	for (uint64_t i = 0; i < count; i++) {
		char *p = region + order[i] * PAGE_BYTES;

		if (p[0] != 1 || p[1] || p[PAGE_BYTES - 1])
			die("Page %lu is not as it was written.",
			    (unsigned long)order[i]);
	}
	munmap(region, pages * PAGE_BYTES);
	return elapsed;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		uint64_t (*fill)(uint32_t *order, uint64_t pages,
				 uint64_t stride);
		uint64_t stride;
		uint64_t weight;	/* so that each case takes about as long */
	} cases[] = {
		{ "sequential", in_order, 1, 1 },
		{ "strided", in_order, STRIDE, 8 },
		{ "random", at_random, 1, 2 },
	};
	uint64_t mb = 96, rounds = 3;
	uint64_t pages, unused = 0;
	uint32_t *order;
	int i = 1;

	for (; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--megabytes"))
			mb = parse_number("--megabytes", argv[i + 1], 1, 1 << 20);
		else if (!strcmp(argv[i], "--rounds"))
			rounds = parse_number("--rounds", argv[i + 1], 1, 1000000);
		else
			break;
	}
	if (i != argc)
		die("usage: " WORKLOAD " [--megabytes N] [--rounds N]");
	pages = (mb << 20) / PAGE_BYTES;
	order = calloc(pages, sizeof(*order));
	if (!order)
		die("No memory for the order of %llu pages.",
		    (unsigned long long)pages);

	/*
	 * Not measured: the host gives a guest its memory at the first touch,
	 * and the first use of the clock is a fault of its own.
	 */
	in_order(order, pages, 1);
	touch(order, pages, pages, &unused);

	for (size_t k = 0; k < ARRAY_SIZE(cases); k++) {
		uint64_t count = cases[k].fill(order, pages, cases[k].stride);
		uint64_t n = rounds * cases[k].weight;
		uint64_t faults = 0, elapsed = 0;
		char name[64];

		for (uint64_t round = 0; round < n; round++)
			elapsed += touch(order, count, pages, &faults);
		snprintf(name, sizeof(name), "%s_ns_per_page", cases[k].name);
		figure(name, (double)elapsed / (double)(count * n), "ns");
		snprintf(name, sizeof(name), "%s_faults", cases[k].name);
		figure(name, (double)faults / (double)n, "faults");
	}
	return 0;
}
