// SPDX-License-Identifier: GPL-2.0-only
/*
 * swap-write: threads write at random to more anonymous memory than fits. Most writes swap
 * a page in and another one out. Measures mm/writeout_batch.c. Usage:
 *
 *	swap-write [--threads N] [--share PERCENT] [--writes N]
 *
 * The size is all of available memory and --share percent of free swap (default 33), so no
 * run fits by chance. With swap nearly full the OOM killer ended runs, of stock as well. Each
 * thread owns every Nth page. Before a write it compares the page's generation in the
 * first, a middle and the last word. Half of a page is random, half zero, for zram and
 * zswap.
 *
 *   writes_per_s	of all threads
 *   write_p99_us	99th percentile of the time of a write, fault included
 */
#define WORKLOAD "swap-write"
#include "../workload.h"
#include "../times.h"

#define WORDS		(PAGE_BYTES / sizeof(uint64_t))

struct writer {
	pthread_t thread;
	uint64_t number, of, writes, pages;
	char *region;
	uint32_t *generation;
	struct times took;
};

static uint64_t mark(uint64_t page, uint32_t generation)
{
	return (page << 32 | generation) * 0x9e3779b97f4a7c15ULL | 1;
}

static void set_page(char *at, uint64_t mark)
{
	volatile uint64_t *words = (volatile uint64_t *)at;

	words[0] = mark;
	words[WORDS / 2] = mark;
	words[WORDS - 1] = mark;
}

static void check_page(const char *at, uint64_t page, uint32_t generation)
{
	const volatile uint64_t *words = (const volatile uint64_t *)at;
	uint64_t want = mark(page, generation);

	if (words[0] != want || words[WORDS / 2] != want || words[WORDS - 1] != want)
		die("Page %llu is not as it was written, in generation %u.",
		    (unsigned long long)page, generation);
}

static void *write_pages(void *arg)
{
	struct writer *w = arg;
	uint64_t x = RANDOM_START + w->number;
	uint64_t own = (w->pages - w->number + w->of - 1) / w->of;

	for (uint64_t i = 0; i < own; i++) {
		uint64_t page = i * w->of + w->number;
		char *at = w->region + page * PAGE_BYTES;

		for (uint64_t k = 0; k < WORDS / 2; k++)
			((uint64_t *)at)[k] = next_random(&x);
		set_page(at, mark(page, 0));
	}
	for (uint64_t i = 0; i < w->writes; i++) {
		uint64_t page = next_random(&x) % own * w->of + w->number;
		char *at = w->region + page * PAGE_BYTES;
		uint64_t start = now_ns();

		check_page(at, page, w->generation[page]);
		set_page(at, mark(page, ++w->generation[page]));
		times_add(&w->took, now_ns() - start);
	}
	return NULL;
}

/* In kB. */
static uint64_t meminfo(const char *name)
{
	FILE *f = fopen("/proc/meminfo", "r");
	unsigned long long kb;
	char line[128];

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, strlen(name)) &&
		    sscanf(line + strlen(name), ": %llu", &kb) == 1) {
			fclose(f);
			return kb;
		}
	die("/proc/meminfo does not tell %s.", name);
}

int main(int argc, char **argv)
{
	uint64_t threads = 2, share = 33, writes = 50000, pages, start;
	struct times took = { 0 };
	struct writer *writers;
	uint32_t *generation;
	char *region;
	int i = 1;

	for (; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--threads"))
			threads = parse_number("--threads", argv[i + 1], 1, 256);
		else if (!strcmp(argv[i], "--share"))
			share = parse_number("--share", argv[i + 1], 1, 95);
		else if (!strcmp(argv[i], "--writes"))
			writes = parse_number("--writes", argv[i + 1], 1, 1ULL << 40);
		else
			break;
	}
	if (i != argc)
		die("usage: " WORKLOAD " [--threads N] [--share PERCENT] [--writes N]");
	if (!meminfo("SwapFree"))
		die("There is no swap.");
	pages = (meminfo("MemAvailable") + meminfo("SwapFree") * share / 100) / 4;
	region = map_anonymous(pages * PAGE_BYTES);
	generation = map_anonymous(pages * sizeof(*generation));
	writers = calloc(threads, sizeof(*writers));
	if (!writers)
		die("No memory for %llu threads.", (unsigned long long)threads);
	start = now_ns();
	for (uint64_t t = 0; t < threads; t++) {
		writers[t] = (struct writer) {
			.number = t, .of = threads, .writes = writes / threads,
			.pages = pages, .region = region, .generation = generation,
		};
		start_thread(&writers[t].thread, write_pages, &writers[t]);
	}
	for (uint64_t t = 0; t < threads; t++) {
		pthread_join(writers[t].thread, NULL);
		times_merge(&took, &writers[t].took);
	}
	figure_more("writes_per_s", (double)(writes / threads * threads) * 1e9 /
		    (double)(now_ns() - start), "1/s");
	figure("write_p99_us", times_percentile_us(&took, 0.99), "us");
	for (uint64_t page = 0; page < pages; page++)
		check_page(region + page * PAGE_BYTES, page, generation[page]);
	return 0;
}
