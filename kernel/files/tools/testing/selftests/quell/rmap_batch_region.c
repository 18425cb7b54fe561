// SPDX-License-Identifier: GPL-2.0-only
/* Regions of the kinds of memory under test, and ways to unmap them. */
#include "rmap_batch.h"

/* --- Regions ------------------------------------------------------------- */

static uint64_t word_of(unsigned long page, uint32_t gen)
{
	return gen ? 0x5aUL << 56 | (uint64_t)page << 32 | gen : 0;
}

/* At both ends and in the middle. */
void put_at(char *at, unsigned long page, uint32_t gen)
{
	volatile uint64_t *words = (uint64_t *)at;

	words[0] = word_of(page, gen);
	words[WORDS / 2] = word_of(page, gen);
	words[WORDS - 1] = word_of(page, gen);
}

bool holds(const char *at, unsigned long page, uint32_t gen)
{
	const volatile uint64_t *words = (const uint64_t *)at;
	uint64_t word = word_of(page, gen);

	return words[0] == word && words[WORDS / 2] == word && words[WORDS - 1] == word;
}

void put(struct region *r, unsigned long i, uint32_t gen)
{
	put_at(r->at[i], i, gen);
	r->gen[i] = gen;
}

void check(struct region *r, unsigned long i, const char *when)
{
	if (r->at[i] && !holds(r->at[i], i, r->gen[i]))
		bad("%s: page %lu holds %#lx, not generation %u", when, i,
		    *(volatile unsigned long *)r->at[i], r->gen[i]);
}

void check_all(struct region *r, const char *when)
{
	for (unsigned long i = 0; i < r->pages; i++)
		check(r, i, when);
}

static void shuffle(unsigned long *order, unsigned long n)
{
	for (unsigned long i = 0; i < n; i++)
		order[i] = i;
	for (unsigned long i = n - 1; i; i--) {
		unsigned long j = pick(i + 1), swapped = order[i];

		order[i] = order[j];
		order[j] = swapped;
	}
}

/* Each page comes back alone. */
void check_in_any_order(struct region *r, const char *when)
{
	unsigned long order[MAX_PAGES];

	shuffle(order, r->pages);
	for (unsigned long i = 0; i < r->pages; i++)
		check(r, order[i], when);
}

/* Pages with the property; the patterns alternate. */
bool in_pattern(const struct region *r, unsigned long i)
{
	unsigned int n = r->block, k = i % n;

	switch (i / n % 8) {
	case 0:
		return false;
	case 1:
		return true;
	case 2:
		return k == 0;
	case 3:
		return k == n - 1;
	case 4:
		return k == n / 2;
	case 5:
		return k % 3 == 0;
	case 6:
		return k < n / 2;
	default:
		return (i * 2654435761UL + pattern_seed) >> 7 & 1;
	}
}

void put_all(struct region *r, uint32_t gen)
{
	for (unsigned long i = 0; i < r->pages; i++)
		put(r, i, gen);
}

void put_pattern(struct region *r, unsigned long shift, uint32_t gen)
{
	for (unsigned long i = 0; i < r->pages; i++)
		if (in_pattern(r, (i + shift) % r->pages))
			put(r, i, gen);
}

/* Aligned to 2 MB, with as much room behind. */
char *reserve_huge(unsigned long bytes)
{
	return reserve(bytes + HUGE, HUGE);
}

static void make_file(struct region *r)
{
	unsigned long bytes = r->pages * PAGE;
	char *from = map_private(bytes);

	snprintf(r->path, sizeof(r->path), "%s/rmap_batch", dir);
	r->fd = must_open(r->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC);
	for (unsigned long i = 0; i < r->pages; i++) {
		put_at(from + i * PAGE, i, 1);
		r->gen[i] = 1;
	}
	/* One write: the file system chooses folios by its size. */
	if (write(r->fd, from, bytes) != (ssize_t)bytes || fsync(r->fd))
		die(r->path);
	munmap(from, bytes);
	r->map = reserve_huge(bytes);
	must_map(r->map, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, r->fd);
}

/* Pages in folios of the requested size. */
static unsigned long large_pages(const struct region *r)
{
	unsigned long found = 0, i = 0;

	while (i < r->pages) {
		unsigned int n = r->at[i] ? folio_pages_at(r->at[i]) : 0;

		if (r->kind->kb ? n == r->kind->kb / 4 : n >= 4)
			found += n;
		i += n ? n : 1;
	}
	return found;
}

/* At r->map if that is set. Populates nothing. */
void map_kind(struct region *r, const struct kind *kind)
{
	char *map = r->map;

	memset(r, 0, sizeof(*r));
	r->kind = kind;
	r->pages = kind->pages;
	r->block = kind->bit == BIG ? 64 : kind->kb ? kind->kb / 4 : 16;
	r->fd = -1;
	if (kind->bit == DISK) {
		make_file(r);
	} else {
		r->map = map ? map : reserve_huge(r->pages * PAGE);
		must_map(r->map, r->pages * PAGE, PROT_READ | PROT_WRITE, MAP_FIXED |
			 MAP_ANONYMOUS | (kind->bit == SHARED ? MAP_SHARED : MAP_PRIVATE), -1);
		madvise(r->map, r->pages * PAGE, MADV_HUGEPAGE);
	}
	for (unsigned long i = 0; i < r->pages; i++)
		r->at[i] = r->map + i * PAGE;
}

/* PTEs replace the huge mapping; the folio stays whole. */
static void split_mapping(struct region *r)
{
	for (unsigned long at = 0; at < r->pages * PAGE; at += HUGE)
		if (mprotect(r->map + at, PAGE, PROT_READ) ||
		    mprotect(r->map + at, PAGE, PROT_READ | PROT_WRITE))
			die("mprotect");
	/* Keep khugepaged away. */
	madvise(r->map, r->pages * PAGE, MADV_NOHUGEPAGE);
}

void populate(struct region *r, const struct kind *kind)
{
	r->map = NULL;
	map_kind(r, kind);
	for (unsigned long i = 0; i < r->pages; i++)
		if (kind->bit == DISK)
			(void)*(volatile char *)r->at[i];
		else
			put(r, i, 1);
	if (kind->bit == BIG)
		split_mapping(r);
	/* Fragmented memory may deny some. */
	if (large_pages(r) < r->pages / 2)
		skip();
}

/* Pages from @i with consecutive addresses. */
static unsigned long run_at(const struct region *r, unsigned long i)
{
	unsigned long n = 0;

	while (i + n < r->pages && r->at[i + n] && r->at[i + n] == r->at[i] + n * PAGE)
		n++;
	return n;
}

void drop(struct region *r)
{
	unsigned long n;

	for (unsigned long i = 0; i < r->pages; i += n ? n : 1) {
		n = run_at(r, i);
		if (n)
			munmap(r->at[i], n * PAGE);
	}
	memset(r->at, 0, sizeof(r->at));
	if (r->fd >= 0) {
		close(r->fd);
		unlink(r->path);
	}
	r->fd = -1;
}

void pagemap_of(const struct region *r, uint64_t *entries)
{
	unsigned long n;

	memset(entries, 0, r->pages * 8);
	for (unsigned long i = 0; i < r->pages; i += n ? n : 1) {
		n = run_at(r, i);
		if (n)
			pagemap_read(r->at[i], n, entries + i);
	}
}

/* --- Unmapping ------------------------------------------------------------ */

void pageout_runs(struct region *r)
{
	unsigned long n;

	for (unsigned long i = 0; i < r->pages; i += n ? n : 1) {
		n = run_at(r, i);
		if (!n || !madvise(r->at[i], n * PAGE, MADV_PAGEOUT))
			continue;
		/* It ends at a locked part: half of a block. */
		if (errno != EINVAL)
			die("MADV_PAGEOUT");
		n = r->block / 2 - i % (r->block / 2);
		if (n > run_at(r, i))
			n = run_at(r, i);
		madvise(r->at[i], n * PAGE, MADV_PAGEOUT);
	}
}

/* One target node, as a folio may be in several runs. */
void migrate_runs(struct region *r)
{
	int node = -1;
	unsigned long n;

	for (unsigned long i = 0; i < r->pages && node < 0; i++)
		if (r->at[i])
			node = node_of(r->at[i]);
	for (unsigned long i = 0; i < r->pages && node >= 0; i += n ? n : 1) {
		n = run_at(r, i);
		if (n)
			move_to_node(r->at[i], n, !node);
	}
}

/* Folios under writeback are not taken again. */
static void wait_for_writeback(const struct region *r, const uint64_t *entries)
{
	for (unsigned long i = 0, tries = 0; i < r->pages && tries < 500; i++)
		while (entries[i] & PM_PRESENT && tries++ < 500 &&
		       kpageflags_at(PAGEMAP_PFN(entries[i])) & KPF_WRITEBACK)
			usleep(1000);
}

/* Busy folios may stay; @results counts. */
void lose(struct region *r, unsigned int act)
{
	uint64_t before[MAX_PAGES], after[MAX_PAGES];
	long taken = 0, possible = 0;

	pagemap_of(r, before);
	for (unsigned long i = 0; i < r->pages; i++)
		possible += !!(before[i] & PM_PRESENT);
	if (swap_now == LOOP)
		wait_for_writeback(r, before);
	for (int tries = 0; tries < (act == MIGRATE ? 1 : 12); tries++) {
		if (act == PAGEOUT) {
			pageout_runs(r);
		} else if (act == RECLAIM) {
			/* Referenced pages would be kept. */
			try_write("/proc/self/clear_refs", "1");
			/* Other memory of the cgroup may go instead. */
			reclaim_cgroup((tries < 4 ? 1 : 2) * r->pages * PAGE,
				       r->kind->bit != DISK);
		} else {
			migrate_runs(r);
		}
		pagemap_of(r, after);
		taken = 0;
		for (unsigned long i = 0; i < r->pages; i++)
			if (before[i] & PM_PRESENT)
				taken += !(after[i] & PM_PRESENT) ||
					 PAGEMAP_PFN(after[i]) != PAGEMAP_PFN(before[i]);
		if (taken * 4 >= possible * 3)
			break;
	}
	results->taken += taken;
	results->possible += possible;
}

void forget(struct region *r, unsigned long i)
{
	if (munmap(r->at[i], PAGE))
		die("munmap");
	r->at[i] = NULL;
}

/* False if the write faults. */
bool try_put(struct region *r, unsigned long i, uint32_t gen)
{
	sigjmp_buf jump;

	if (sigsetjmp(jump, 1)) {
		jump_on_fault(NULL);
		return false;
	}
	jump_on_fault(&jump);
	put(r, i, gen);
	jump_on_fault(NULL);
	return true;
}

bool try_touch(struct region *r, unsigned long i)
{
	sigjmp_buf jump;

	if (sigsetjmp(jump, 1)) {
		jump_on_fault(NULL);
		return false;
	}
	jump_on_fault(&jump);
	(void)*(volatile char *)r->at[i];
	jump_on_fault(NULL);
	return true;
}
