// SPDX-License-Identifier: GPL-2.0-only
/*
 * zap: the cost of zapping populated memory by munmap(), by MADV_DONTNEED of all of it, and
 * by MADV_DONTNEED page by page, for small and large folios. Measures zap_batch. One
 * thread, so there is no shootdown (see dontneed-touch). Usage:
 *
 *	zap [--enable-thp] [--megabytes N] [--rounds N]
 *
 * Large folios are of 2 MB (MADV_HUGEPAGE), as sizes below are off by default. mprotect()
 * of one page and back splits each mapping and keeps the folio: 512 PTEs of one folio, the
 * case of batched zapping. Populating, splitting and checking are not timed.
 */
#define WORKLOAD "zap"
#include "../workload.h"

#define THP_ENABLED	"/sys/kernel/mm/transparent_hugepage/enabled"

#define HUGE_BYTES	(2UL << 20)
#define CHECK_EVERY	61	/* pages; a prime, so all places come up */

/*
 * Linux switches transparent huge pages off with less than 512 MB. Larger machines have
 * them.
 */
static void enable_huge_pages(void)
{
	FILE *f = fopen(THP_ENABLED, "r+e");
	char now[64] = "";

	if (!f || !fgets(now, sizeof(now), f))
		die("Cannot read " THP_ENABLED ": %s.", strerror(errno));
	rewind(f);
	if (strstr(now, "[never]") && fputs("madvise", f) == EOF)
		die("Cannot write " THP_ENABLED ": %s.", strerror(errno));
	if (fclose(f))
		die("Cannot write " THP_ENABLED ": %s.", strerror(errno));
}

struct region {
	char *start;
	size_t bytes;
	void *mapping;		/* with room for the alignment */
	size_t mapping_bytes;
};

/* In bytes, by 2 MB entries. */
static size_t huge_mapped(void)
{
	FILE *f = fopen("/proc/self/smaps_rollup", "re");
	char line[256];
	size_t kb = 0;

	if (!f)
		die("Cannot read /proc/self/smaps_rollup: %s.",
		    strerror(errno));
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "AnonHugePages: %zu", &kb) == 1)
			break;
	fclose(f);
	return kb << 10;
}

static void split_mappings(const struct region *r)
{
	for (size_t at = 0; at < r->bytes; at += HUGE_BYTES)
		if (mprotect(r->start + at, PAGE_BYTES, PROT_READ) ||
		    mprotect(r->start + at, PAGE_BYTES, PROT_READ | PROT_WRITE))
			die("mprotect failed: %s.", strerror(errno));
}

static struct region populate(size_t bytes, int large)
{
	struct region r = { .bytes = bytes };

	r.mapping_bytes = bytes + HUGE_BYTES;
	r.mapping = map_anonymous(r.mapping_bytes);
	r.start = (char *)(((uintptr_t)r.mapping + HUGE_BYTES - 1) &
			   ~(HUGE_BYTES - 1));
	if (madvise(r.start, bytes, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) &&
	    large)
		die("MADV_HUGEPAGE failed: %s.", strerror(errno));
	for (size_t at = 0; at < bytes; at += PAGE_BYTES)
		r.start[at] = 1;
	if (large) {
		/* One missing is fragmentation. */
		if (huge_mapped() + HUGE_BYTES < bytes)
			die("Only %zu of %zu KB became 2 MB folios: try --enable-thp, or more memory.",
			    huge_mapped() >> 10, bytes >> 10);
		split_mappings(&r);
		if (huge_mapped())
			die("%zu KB are still mapped by 2 MB entries.",
			    huge_mapped() >> 10);
	}
	return r;
}

static uint64_t zap_by_munmap(const struct region *r)
{
	uint64_t start = now_ns();

	if (munmap(r->start, r->bytes))
		die("munmap failed: %s.", strerror(errno));
	return now_ns() - start;
}

/* @step bytes at a time. */
static uint64_t zap_by_steps(const struct region *r, size_t step)
{
	uint64_t start = now_ns(), elapsed;

	for (size_t at = 0; at < r->bytes; at += step)
		if (madvise(r->start + at, step, MADV_DONTNEED))
			die("MADV_DONTNEED failed: %s.", strerror(errno));
	elapsed = now_ns() - start;
	for (size_t at = 0; at < r->bytes; at += CHECK_EVERY * PAGE_BYTES)
		if (r->start[at])
			die("Page %zu was not empty after MADV_DONTNEED.",
			    at / PAGE_BYTES);
	return elapsed;
}

static uint64_t zap_by_page(const struct region *r)
{
	return zap_by_steps(r, PAGE_BYTES);
}

static uint64_t zap_at_once(const struct region *r)
{
	return zap_by_steps(r, r->bytes);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		uint64_t (*zap)(const struct region *r);
		int large;
	} cases[] = {
		{ "munmap_small_ns_per_page", zap_by_munmap, 0 },
		{ "munmap_large_ns_per_page", zap_by_munmap, 1 },
		{ "dontneed_small_ns_per_page", zap_by_page, 0 },
		{ "dontneed_large_ns_per_page", zap_by_page, 1 },
		{ "dontneed_all_small_ns_per_page", zap_at_once, 0 },
		{ "dontneed_all_large_ns_per_page", zap_at_once, 1 },
	};
	uint64_t mb = 64, rounds = 4;
	int i = 1;

	if (i < argc && !strcmp(argv[i], "--enable-thp")) {
		enable_huge_pages();
		i++;
	}
	for (; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--megabytes"))
			mb = parse_number("--megabytes", argv[i + 1], 2, 1 << 20);
		else if (!strcmp(argv[i], "--rounds"))
			rounds = parse_number("--rounds", argv[i + 1], 1, 1000000);
		else
			break;
	}
	if (i != argc)
		die("usage: " WORKLOAD " [--enable-thp] [--megabytes N] [--rounds N]");
	for (size_t k = 0; k < ARRAY_SIZE(cases); k++) {
		size_t bytes = (mb << 20) & ~(HUGE_BYTES - 1);
		uint64_t elapsed = 0;

		for (uint64_t round = 0; round < rounds; round++) {
			struct region r = populate(bytes, cases[k].large);

			elapsed += cases[k].zap(&r);
			munmap(r.mapping, r.mapping_bytes);
		}
		figure(cases[k].name,
		       (double)elapsed / (double)rounds /
			       ((double)bytes / PAGE_BYTES),
		       "ns");
	}
	return 0;
}
