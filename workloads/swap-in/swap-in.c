// SPDX-License-Identifier: GPL-2.0-only
/*
 * swap-in: memory that was filled from one end and is all in swap is read again, in
 * the orders of fault:
 *
 *   sequential	every page of the region, in order
 *   strided	one page in 16, in order (each in its own 64 KB)
 *   random	half of the region's pages, each once, in random order
 *
 * For each: the faults it took (minor and major, as getrusage() counts them), the time
 * per page read, and the anonymous memory that there is when all is read (RssAnon).
 * The guest has swap. Half of each page is random, half zero: zram and zswap store it in
 * about half a page.
 *
 * One thread. Each order is a process of its own.
 */
#define WORKLOAD "swap-in"
#include "../touch-order.h"
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif

/* Something else may hold a folio for a moment. */
#define PAGEOUTS	10

static uint64_t all_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (uint64_t)usage.ru_minflt + (uint64_t)usage.ru_majflt;
}

static uint64_t mark(uint64_t page)
{
	return page * 0x9e3779b97f4a7c15ULL | 1;
}

static void fill_page(char *page, uint64_t number)
{
	uint64_t *words = (uint64_t *)page;
	uint64_t x = mark(number);

	for (uint64_t i = 0; i < PAGE_BYTES / 2 / sizeof(x); i++) {
		words[i] = x;
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
	}
}

struct counts {
	uint64_t faults, touch_ns;
	uint64_t anonymous_kb;		/* at most */
};

/* Fill a region, swap it out, and read the pages in @order; what that takes goes to @sum. */
static void read_again(const uint32_t *order, uint64_t count, uint64_t pages,
		       struct counts *sum)
{
	char *region = map_anonymous(pages * PAGE_BYTES);
	uint64_t without, kb, before, start;

	without = anonymous_kb();
	for (uint64_t page = 0; page < pages; page++)
		fill_page(region + page * PAGE_BYTES, page);
	for (int i = 0; i < PAGEOUTS && anonymous_kb() > without + pages / 64; i++)
		if (madvise(region, pages * PAGE_BYTES, MADV_PAGEOUT))
			die("Cannot page out: %s.", strerror(errno));
	kb = anonymous_kb();
	if (kb > without + pages / 64)
		die("%llu kB are not swapped out.", (unsigned long long)(kb - without));

	before = all_faults();
	start = now_ns();
	for (uint64_t i = 0; i < count; i++) {
		const volatile uint64_t *p =
			(const volatile uint64_t *)(region + order[i] * PAGE_BYTES);

		if (*p != mark(order[i]))
			die("Page %lu is not as it was written.", (unsigned long)order[i]);
	}
	sum->touch_ns += now_ns() - start;
	sum->faults += all_faults() - before;
	kb = anonymous_kb();
	if (kb > sum->anonymous_kb)
		sum->anonymous_kb = kb;
	munmap(region, pages * PAGE_BYTES);
}

static void measure(const char *what, const uint32_t *order, uint64_t count,
		    uint64_t pages, uint64_t rounds)
{
	struct counts sum = { 0 };
	char name[64];

	/* The text of the status file needs memory as well. */
	anonymous_kb();
	for (uint64_t round = 0; round < rounds; round++)
		read_again(order, count, pages, &sum);
	snprintf(name, sizeof(name), "%s_ns_per_page", what);
	figure(name, (double)sum.touch_ns / (double)(count * rounds), "ns");
	snprintf(name, sizeof(name), "%s_faults", what);
	figure(name, (double)sum.faults / (double)rounds, "faults");
	snprintf(name, sizeof(name), "%s_anonymous_kb", what);
	figure(name, (double)sum.anonymous_kb, "kB");
}

int main(int argc, char **argv)
{
	uint64_t mb = 48, rounds = 3;
	const char *only = NULL;
	uint64_t pages;
	uint32_t *order;
	int i = 1, status;

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
		die("No memory for the order of %llu pages.", (unsigned long long)pages);

	for (size_t k = 0; k < ARRAY_SIZE(touch_orders); k++) {
		const struct touch_order *one = &touch_orders[k];
		uint64_t count;
		pid_t pid;

		if (only && strcmp(only, one->name))
			continue;
		count = one->fill(order, pages, one->stride);
		fflush(stdout);
		pid = fork();
		if (pid < 0)
			die("Cannot fork: %s.", strerror(errno));
		if (!pid) {
			measure(one->name, order, count, pages, rounds);
			fflush(stdout);
			_exit(0);
		}
		if (waitpid(pid, &status, 0) != pid || status)
			exit(1);	/* it has said why */
	}
	return 0;
}
