/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The orders in which fault and swap-in touch a region, and what memory that takes.
 * Include after WORKLOAD is defined.
 */
#ifndef QUELL_TOUCH_ORDER_H
#define QUELL_TOUCH_ORDER_H

#include "workload.h"

#define STRIDE	16

/* The first @count page numbers, every @stride pages. */
static inline uint64_t in_order(uint32_t *order, uint64_t pages, uint64_t stride)
{
	uint64_t count = 0;

	for (uint64_t page = 0; page < pages; page += stride)
		order[count++] = (uint32_t)page;
	return count;
}

/* All page numbers shuffled; the first half of them is what is touched. */
static inline uint64_t at_random(uint32_t *order, uint64_t pages, uint64_t stride)
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

/* One order: @fill writes the pages of a region to touch, and returns how many. */
struct touch_order {
	const char *name;
	uint64_t (*fill)(uint32_t *order, uint64_t pages, uint64_t stride);
	uint64_t stride;
	uint64_t weight;	/* so that each case takes about as long */
};

static const struct touch_order touch_orders[] = {
	{ "sequential", in_order, 1, 1 },
	{ "strided", in_order, STRIDE, 8 },
	{ "random", at_random, 1, 2 },
};

/* RssAnon of this process. */
static inline uint64_t anonymous_kb(void)
{
	static char text[16384];
	FILE *file = fopen("/proc/self/status", "r");
	const char *line;
	size_t got;

	if (!file)
		die("Cannot open /proc/self/status: %s.", strerror(errno));
	got = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[got] = 0;
	line = strstr(text, "\nRssAnon:");
	if (!line)
		die("/proc/self/status has no RssAnon.");
	return strtoull(line + strlen("\nRssAnon:"), NULL, 10);
}

#endif /* QUELL_TOUCH_ORDER_H */
