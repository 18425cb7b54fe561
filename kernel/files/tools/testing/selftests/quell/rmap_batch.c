// SPDX-License-Identifier: GPL-2.0-only
/*
 * Unmapping a large folio by runs of PTEs leaves the state that unmapping PTE by PTE
 * leaves. Attacks the merging of a run in mm/rmap_batch.c. Usage:
 *
 *	rmap_batch DIR [ROUNDS] [PROPERTY]
 *
 * DIR is on a file system; large file folios need one that has them (xfs). Migration needs
 * two NUMA nodes, synchronous swap a RAM disk of 32 MB or more (brd.rd_size=32768).
 *
 * Each test checks one property of a PTE, a page or a counter. Its cases combine kinds of
 * memory (anonymous folios of 16K, 64K and 2M mapped by PTEs, shared memory, a file) with
 *
 *	pageout		MADV_PAGEOUT: only folios that are mapped whole
 *	reclaim		memory.reclaim of a cgroup: any folio
 *	migrate		move_pages() to the other node
 *
 * Properties follow a pattern within a folio (in_pattern()), so a mix-up shows. Each case
 * is a process: the kernel's log shows wrong counters at its end.
 *
 * Every kernel must pass. With a switch, all tests run on and a part of them off.
 * rmap_batch_pages rises in tests with long runs while it is on, and never while it is off.
 *
 * The poison test loses a few pages of memory (CONFIG_MEMORY_FAILURE).
 */
#include <linux/io_uring.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "pages.h"
#include "system.h"

#define MAX_PAGES	1024
#define CASE_SECONDS	120

/* --- Kinds of memory, and results ------------------------------------------ */

enum {
	SMALL = 1, MID = 2, BIG = 4, SHARED = 8, DISK = 16,
	ANON = MID | BIG, ALL_ANON = SMALL | MID | BIG,
};

static const struct kind {
	unsigned int bit;
	const char *name;
	unsigned int kb;		/* per folio, 0: any */
	unsigned long pages;
} kinds[] = {
	{ SMALL,	"16K",		16,	64 },
	{ MID,		"64K",		64,	128 },
	{ BIG,		"2M",		2048,	512 },
	{ SHARED,	"shared 64K",	64,	128 },
	{ DISK,		"file",		0,	256 },
};

enum {
	PAGEOUT = 1, RECLAIM = 2, MIGRATE = 4,
	ANYHOW = PAGEOUT | RECLAIM | MIGRATE,
};

static const char * const act_names[] = {
	[PAGEOUT] = "pageout", [RECLAIM] = "reclaim", [MIGRATE] = "migrate",
};

/* Written by the case. */
static struct results {
	int bad, lines;
	bool skipped;
	long taken, possible;
	char line[4][160];
} *results;

static const char *dir;
static enum swap swap_now;
static uint64_t random_state;
static unsigned int pattern_seed;

static unsigned int pick(unsigned int n)
{
	return next_random(&random_state) % n;
}

static void bad(const char *fmt, ...)
{
	va_list args;

	results->bad++;
	if (results->lines == 4)
		return;
	va_start(args, fmt);
	vsnprintf(results->line[results->lines++], sizeof(results->line[0]), fmt, args);
	va_end(args);
}

/* The system lacks a requirement of the case. */
static void skip(void)
{
	results->skipped = true;
	_exit(0);
}

/* --- Regions ------------------------------------------------------------- */

struct region {
	const struct kind *kind;
	unsigned long pages;
	unsigned int block;		/* pages of one pattern */
	char *map;
	char *at[MAX_PAGES];		/* NULL: unmapped */
	uint32_t gen[MAX_PAGES];	/* of the content; 0: empty */
	int fd;
	char path[4096];
};

static uint64_t word_of(unsigned long page, uint32_t gen)
{
	return gen ? 0x5aUL << 56 | (uint64_t)page << 32 | gen : 0;
}

/* At both ends and in the middle. */
static void put_at(char *at, unsigned long page, uint32_t gen)
{
	volatile uint64_t *words = (uint64_t *)at;

	words[0] = word_of(page, gen);
	words[WORDS / 2] = word_of(page, gen);
	words[WORDS - 1] = word_of(page, gen);
}

static bool holds(const char *at, unsigned long page, uint32_t gen)
{
	const volatile uint64_t *words = (const uint64_t *)at;
	uint64_t word = word_of(page, gen);

	return words[0] == word && words[WORDS / 2] == word && words[WORDS - 1] == word;
}

static void put(struct region *r, unsigned long i, uint32_t gen)
{
	put_at(r->at[i], i, gen);
	r->gen[i] = gen;
}

static void check(struct region *r, unsigned long i, const char *when)
{
	if (r->at[i] && !holds(r->at[i], i, r->gen[i]))
		bad("%s: page %lu holds %#lx, not generation %u", when, i,
		    *(volatile unsigned long *)r->at[i], r->gen[i]);
}

static void check_all(struct region *r, const char *when)
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
static void check_in_any_order(struct region *r, const char *when)
{
	unsigned long order[MAX_PAGES];

	shuffle(order, r->pages);
	for (unsigned long i = 0; i < r->pages; i++)
		check(r, order[i], when);
}

/* Pages with the property; the patterns alternate. */
static bool in_pattern(const struct region *r, unsigned long i)
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

/* With as much room behind. */
static char *reserve_huge(unsigned long bytes)
{
	return reserve(bytes + HUGE, HUGE);
}

static void make_file(struct region *r)
{
	unsigned long bytes = r->pages * PAGE;
	char *from = map_private(bytes);

	snprintf(r->path, sizeof(r->path), "%s/rmap_batch", dir);
	r->fd = open(r->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (r->fd < 0)
		die(r->path);
	for (unsigned long i = 0; i < r->pages; i++) {
		put_at(from + i * PAGE, i, 1);
		r->gen[i] = 1;
	}
	/* One write: the file system chooses folios by its size. */
	if (write(r->fd, from, bytes) != (ssize_t)bytes || fsync(r->fd))
		die(r->path);
	munmap(from, bytes);
	r->map = reserve_huge(bytes);
	if (mmap(r->map, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, r->fd,
		 0) == MAP_FAILED)
		die("mmap");
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
static void map_kind(struct region *r, const struct kind *kind)
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
		if (mmap(r->map, r->pages * PAGE, PROT_READ | PROT_WRITE,
			 (kind->bit == SHARED ? MAP_SHARED : MAP_PRIVATE) |
			 MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
			die("mmap");
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

static void populate(struct region *r, const struct kind *kind)
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

static void drop(struct region *r)
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

static void pagemap_of(const struct region *r, uint64_t *entries)
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

static void pageout_runs(struct region *r)
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
static void migrate_runs(struct region *r)
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
static void lose(struct region *r, unsigned int act)
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

/* --- Content and PTEs ---------------------------------------------------- */

static void case_content(struct region *r, unsigned int act)
{
	lose(r, act);
	check_in_any_order(r, "after the first time");
	for (unsigned long i = 0; i < r->pages; i++)
		put(r, i, 2);
	lose(r, act);
	check_in_any_order(r, "after the second time");
	/* Pages come back in order, with writes between. */
	lose(r, act);
	for (unsigned long i = 0; i < r->pages; i++) {
		if (in_pattern(r, i))
			put(r, i, 3);
		check(r, i, "after the third time");
	}
	lose(r, act);
	check_in_any_order(r, "after the fourth time");
}

static void forget(struct region *r, unsigned long i)
{
	if (munmap(r->at[i], PAGE))
		die("munmap");
	r->at[i] = NULL;
}

/* Holes before (partially mapped folios), and after unmapping. */
static void case_holes(struct region *r, unsigned int act)
{
	unsigned int n = r->block;

	for (unsigned long i = 0; i < r->pages; i++)
		if (i / n % 2 && i % n >= n / 4 && i % n < n / 2)
			forget(r, i);
	lose(r, act);
	for (unsigned long i = 0; i < r->pages; i++)
		if (i / n % 4 == 2 && i % n >= n / 2 && i % n < n * 3 / 4)
			forget(r, i);
	check_in_any_order(r, "beside the holes");
	for (unsigned long i = 0; i < r->pages; i++)
		if (i / n % 4 == 3 && r->at[i] && (i % n == 0 || i % n == n - 1))
			forget(r, i);
	lose(r, act);
	check_in_any_order(r, "beside more holes");
}

/*
 * Pages are in swap and in memory, unchanged. One page of each folio is written: without
 * its dirty bit the content is lost.
 */
static void case_dirty(struct region *r, unsigned int act)
{
	lose(r, PAGEOUT);
	check_all(r, "clean");
	for (unsigned int round = 0; round < 3; round++) {
		for (unsigned long i = 0; i < r->pages; i += r->block)
			put(r, i + (round == 0 ? 0 : round == 1 ? r->block - 1 :
				    pick(r->block)), 2 + round);
		lose(r, act);
		/* Migration must pass the dirty bit on. */
		if (act == MIGRATE)
			lose(r, PAGEOUT);
		check_in_any_order(r, "written while clean");
	}
}

/* Shared pages that were only read are clean and writable. */
static void case_dirty_shared(struct region *r, unsigned int act)
{
	drop(r);
	map_kind(r, r->kind);
	for (unsigned long i = 0; i < r->pages; i++)
		(void)*(volatile char *)r->at[i];
	for (unsigned long i = 0; i < r->pages; i++)
		if (in_pattern(r, i))
			put(r, i, 2);
	lose(r, act);
	if (act == MIGRATE)
		lose(r, PAGEOUT);
	check_in_any_order(r, "of what was empty");
}

static void case_dirty_file(struct region *r, unsigned int act)
{
	char page[PAGE];

	for (unsigned int round = 0; round < 3; round++) {
		for (unsigned long i = 0; i < r->pages; i++)
			if (in_pattern(r, (i + round) % r->pages))
				put(r, i, 2 + round);
		if (round == 1 && fdatasync(r->fd))
			die("fdatasync");
		lose(r, act);
		check_in_any_order(r, "in the page cache");
	}
	lose(r, act);
	munmap(r->map, r->pages * PAGE);
	if (fsync(r->fd) || posix_fadvise(r->fd, 0, 0, POSIX_FADV_DONTNEED))
		die("fsync");
	for (unsigned long i = 0; i < r->pages; i++) {
		r->at[i] = NULL;
		if (pread(r->fd, page, PAGE, i * PAGE) != (ssize_t)PAGE)
			die("pread");
		if (!holds(page, i, r->gen[i]))
			bad("page %lu of the file does not hold generation %u on disk", i,
			    r->gen[i]);
	}
}

static void case_young(struct region *r, unsigned int act)
{
	for (unsigned int round = 0; round < 2; round++) {
		try_write("/proc/self/clear_refs", "1");
		for (unsigned long i = 0; i < r->pages; i++)
			if (in_pattern(r, i))
				check(r, i, "before");
		lose(r, act);
		check_in_any_order(r, "some of it young");
	}
}

/* --- Bits of PTEs --------------------------------------------------------- */

static void compare_bits(struct region *r, const uint64_t *expected, uint64_t bit,
			 const char *what, const char *when)
{
	uint64_t found[MAX_PAGES];

	pagemap_of(r, found);
	for (unsigned long i = 0; i < r->pages; i++)
		if (r->at[i] && (found[i] ^ expected[i]) & bit)
			bad("%s: page %lu is%s %s (%#lx)", when, i,
			    found[i] & bit ? "" : " not", what, found[i]);
}

static void case_soft_dirty(struct region *r, unsigned int act)
{
	uint64_t bits[MAX_PAGES];

	for (unsigned int round = 0; round < 3; round++) {
		clear_softdirty();
		for (unsigned long i = 0; i < r->pages; i++)
			if (in_pattern(r, (i + round) % r->pages))
				put(r, i, 2 + round);
		pagemap_of(r, bits);
		for (unsigned long i = 0; i < r->pages; i++)
			if (r->gen[i] == 2 + round && !(bits[i] & PM_SOFT_DIRTY))
				bad("page %lu was written and is not soft-dirty", i);
		lose(r, act);
		compare_bits(r, bits, PM_SOFT_DIRTY, "soft-dirty", "while it is away");
		/* The second round clears bits while it is away. */
		if (round == 1)
			continue;
		check_in_any_order(r, "soft-dirty");
		compare_bits(r, bits, PM_SOFT_DIRTY, "soft-dirty", "back");
	}
}

/* False if the write faults. */
static bool try_put(struct region *r, unsigned long i, uint32_t gen)
{
	sigjmp_buf jump;

	if (sigsetjmp(jump, 1)) {
		fault_jump = NULL;
		return false;
	}
	fault_jump = &jump;
	put(r, i, gen);
	fault_jump = NULL;
	return true;
}

static bool try_touch(struct region *r, unsigned long i)
{
	sigjmp_buf jump;

	if (sigsetjmp(jump, 1)) {
		fault_jump = NULL;
		return false;
	}
	fault_jump = &jump;
	(void)*(volatile char *)r->at[i];
	fault_jump = NULL;
	return true;
}

static int watch_writes(struct region *r)
{
	uint64_t features = UFFD_FEATURE_SIGBUS;

	if (r->kind->bit == SHARED)
		features |= UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
	if (r->kind->bit == DISK)
		features = UFFD_FEATURE_WP_ASYNC;
	return open_uffd(r->map, r->pages * PAGE, features);
}

static void case_uffd_wp(struct region *r, unsigned int act)
{
	uint64_t bits[MAX_PAGES], found;
	int fd = watch_writes(r);

	if (fd < 0)
		skip();
	for (unsigned long i = 0; i < r->pages; i++) {
		bits[i] = in_pattern(r, i) ? PM_UFFD_WP : 0;
		if (bits[i] && !uffd_protect(fd, r->at[i], PAGE, true))
			die("UFFDIO_WRITEPROTECT");
	}
	compare_bits(r, bits, PM_UFFD_WP, "write-protected", "before");
	for (unsigned int round = 0; round < 2; round++) {
		lose(r, act);
		compare_bits(r, bits, PM_UFFD_WP, "write-protected", "while it is away");
		check_in_any_order(r, "write-protected");
		compare_bits(r, bits, PM_UFFD_WP, "write-protected", "back");
	}
	lose(r, act);
	/* The bit alone is not enough: a write must fault. */
	for (unsigned long i = 0; i < r->pages; i++) {
		bool wrote = try_put(r, i, 2);

		found = pagemap_at(r->at[i]) & PM_UFFD_WP;
		if (r->kind->bit == DISK ? found != 0 : wrote != !bits[i])
			bad("a write to page %lu was%s noticed (%s)", i,
			    wrote ? " not" : "", bits[i] ? "protected" : "not protected");
	}
	check_all(r, "after writes");
	close(fd);
}

static void case_protected(struct region *r, unsigned int act)
{
	for (unsigned int round = 0; round < 2; round++) {
		for (unsigned long i = 0; i < r->pages; i++)
			if (in_pattern(r, i) && mprotect(r->at[i], PAGE, PROT_READ))
				die("mprotect");
		lose(r, act);
		check_in_any_order(r, "partly read-only");
		lose(r, act);
		for (unsigned long i = 0; i < r->pages; i++)
			if (try_put(r, i, 2 + round) == in_pattern(r, i))
				bad("page %lu can%s be written", i,
				    in_pattern(r, i) ? "" : "not");
		lose(r, act);
		if (mprotect(r->map, r->pages * PAGE, PROT_READ | PROT_WRITE))
			die("mprotect");
		for (unsigned long i = 0; i < r->pages; i++)
			put(r, i, 10 + round);
		check_all(r, "writable again");
	}
}

/* --- Shared and exclusive pages ------------------------------------------ */

struct child {
	pid_t pid;
	int go;
};

/* The child waits, and then checks the content. */
static struct child fork_child(struct region *r)
{
	struct child c;
	int go[2];
	char byte;

	if (pipe2(go, O_CLOEXEC))
		die("pipe2");
	c.pid = fork();
	if (c.pid < 0)
		die("fork");
	if (!c.pid) {
		int before = results->bad;

		close(go[1]);
		if (read(go[0], &byte, 1) < 0)
			_exit(1);
		check_in_any_order(r, "in the child");
		_exit(results->bad != before);
	}
	close(go[0]);
	c.go = go[1];
	return c;
}

static void end_child(struct child *c)
{
	int status;

	close(c->go);
	if (waitpid(c->pid, &status, 0) != c->pid || status)
		bad("the child ended with %#x", status);
}

static long minor_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

/*
 * A write to an exclusive page must not copy. A write to a shared page of a large folio
 * must copy: only a page that is alone in its folio can become exclusive later.
 */
static void write_exclusive(struct region *r, unsigned int act, uint32_t gen)
{
	for (unsigned long i = 0; i < r->pages; i++) {
		bool shared = in_pattern(r, i), reused;
		uint64_t before, after, flags;
		long faults;

		check(r, i, "before the write");
		before = pagemap_at(r->at[i]);
		flags = kpageflags_at(PAGEMAP_PFN(before));
		faults = minor_faults();
		put(r, i, gen);
		faults = minor_faults() - faults;
		after = pagemap_at(r->at[i]);
		reused = PAGEMAP_PFN(before) == PAGEMAP_PFN(after);
		if (!shared && !reused)
			bad("page %lu was exclusive and has been copied", i);
		if (shared && reused && flags & (KPF_COMPOUND_HEAD | KPF_COMPOUND_TAIL) &&
		    (act == MIGRATE || flags & KPF_SWAPCACHE))
			bad("page %lu was shared and has not been copied", i);
		/* Migration must keep the PTE writable. */
		if (!shared && act == MIGRATE && faults)
			bad("page %lu was writable and has faulted", i);
	}
}

/* The child gets only the pattern's pages; the others stay exclusive. */
static struct child share_pattern(struct region *r)
{
	char *at[MAX_PAGES];
	struct child c;

	memcpy(at, r->at, sizeof(at));
	for (unsigned long i = 0; i < r->pages; i++)
		if (!in_pattern(r, i)) {
			if (madvise(r->at[i], PAGE, MADV_DONTFORK))
				die("MADV_DONTFORK");
			r->at[i] = NULL;
		}
	c = fork_child(r);
	memcpy(r->at, at, sizeof(at));
	/* One VMA again. */
	if (madvise(r->map, r->pages * PAGE, MADV_DOFORK))
		die("MADV_DOFORK");
	return c;
}

static void case_exclusive_gone(struct region *r, unsigned int act)
{
	bool on = get_switch("folio_order") == 1;

	/* folio_order reuses folios without the exclusive bit. */
	if (on)
		set_switch("folio_order", false);
	for (unsigned int round = 0; round < 2; round++) {
		struct child c = share_pattern(r);

		end_child(&c);
		lose(r, act);
		write_exclusive(r, act, 2 + round);
		lose(r, act);
		check_in_any_order(r, "after the writes");
	}
	if (on)
		set_switch("folio_order", true);
}

static void case_exclusive_there(struct region *r, unsigned int act)
{
	struct child c = share_pattern(r);

	lose(r, act);
	lose(r, act);
	write_exclusive(r, act, 2);
	lose(r, act);
	check_in_any_order(r, "after the writes");
	/* The child must see the content from before the writes. */
	end_child(&c);
	for (unsigned long i = 0; i < r->pages; i++)
		put(r, i, 3);
	lose(r, act);
	check_in_any_order(r, "after the child");
}

/* Child and parent map different parts, and both write. */
static void case_parts(struct region *r, unsigned int act)
{
	unsigned int n = r->block;
	int go[2], ready[2], status;
	char byte = 0;
	pid_t pid;

	if (pipe2(go, O_CLOEXEC) || pipe2(ready, O_CLOEXEC))
		die("pipe2");
	pid = must_fork();
	if (!pid) {
		int before = results->bad;

		close(go[1]);
		for (unsigned long i = 0; i < r->pages; i++)
			if (i % n >= n * 3 / 4)
				forget(r, i);
		for (unsigned long i = 0; i < r->pages; i++)
			if (r->at[i] && i % n < n / 8)
				put(r, i, 7);
		if (write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) < 0)
			_exit(1);
		check_in_any_order(r, "in the child");
		for (unsigned long i = 0; i < r->pages; i++)
			if (r->at[i])
				put(r, i, 8);
		check_in_any_order(r, "in the child, written");
		_exit(results->bad != before);
	}
	if (read(ready[0], &byte, 1) != 1)
		die("the child");
	for (unsigned long i = 0; i < r->pages; i++)
		if (i % n < n / 4)
			forget(r, i);
	for (unsigned long i = 0; i < r->pages; i++)
		if (r->at[i] && i % n == n / 2)
			put(r, i, 2);
	lose(r, act);
	lose(r, act);
	check_in_any_order(r, "in the parent");
	lose(r, act);
	close(go[1]);
	if (waitpid(pid, &status, 0) != pid || status)
		bad("the child ended with %#x", status);
	check_in_any_order(r, "in the parent, after the child");
}

/* --- Places of mappings ----------------------------------------------------- */

static char *move_to(struct region *r, unsigned long i, unsigned long n, char *to)
{
	if (mremap(r->at[i], n * PAGE, n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) ==
	    MAP_FAILED)
		die("mremap");
	for (unsigned long k = 0; k < n; k++)
		r->at[i + k] = to + k * PAGE;
	return to + n * PAGE;
}

/* Each folio's second half is elsewhere. */
static void case_halves(struct region *r, unsigned int act)
{
	char *to = reserve_huge(r->pages * PAGE) + PAGE;
	unsigned int n = r->block;

	for (unsigned long i = 0; i < r->pages; i += n)
		to = move_to(r, i + n / 2, n / 2, to + PAGE);
	for (unsigned int round = 0; round < 2; round++) {
		lose(r, act);
		check_in_any_order(r, "in two halves");
		for (unsigned long i = 0; i < r->pages; i++)
			put(r, i, 2 + round);
	}
	lose(r, act);
	check_in_any_order(r, "in two halves, written");
}

/* A folio in two page tables, at an unaligned address. */
static void case_crossing(struct region *r, unsigned int act)
{
	char *border = reserve_huge(r->pages * PAGE + 2 * HUGE) + 2 * HUGE;
	unsigned long n = r->kind->kb / 4, before = r->pages / n / 2 * n + n / 2;

	move_to(r, 0, r->pages, border - before * PAGE);
	for (unsigned int round = 0; round < 2; round++) {
		lose(r, act);
		check_in_any_order(r, "across page tables");
		for (unsigned long i = 0; i < r->pages; i++)
			put(r, i, 2 + round);
	}
	lose(r, act);
	check_in_any_order(r, "across page tables, written");
}

static void case_middle(struct region *r, unsigned int act)
{
	unsigned int n = r->block;

	for (unsigned long i = 0; i < r->pages; i++)
		if (i % n < n / 4 || i % n >= n * 3 / 4)
			forget(r, i);
	lose(r, act);
	check_in_any_order(r, "of the middle");
	for (unsigned long i = 0; i < r->pages; i++)
		if (r->at[i])
			put(r, i, 2);
	lose(r, act);
	check_in_any_order(r, "of the middle, written");
}

/* Two VMAs of one mm map the folios. */
static void case_twice(struct region *r, unsigned int act)
{
	unsigned long bytes = r->pages * PAGE;
	char *second = reserve_huge(bytes + HUGE) + 3 * PAGE;
	uint64_t entries[MAX_PAGES];
	unsigned long left = 0;

	if (r->fd >= 0)
		second = mmap(second, bytes, PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_FIXED, r->fd, 0);
	else	/* Size 0 duplicates a shared mapping. */
		second = mremap(r->map, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, second);
	if (second == MAP_FAILED)
		die("the second mapping");
	for (unsigned int round = 0; round < 3; round++) {
		for (unsigned long i = 0; i < r->pages; i++) {
			if (!holds(second + i * PAGE, i, r->gen[i]))
				bad("page %lu is another one in the second mapping", i);
			if (in_pattern(r, (i + round) % r->pages)) {
				put_at(second + i * PAGE, i, 2 + round);
				r->gen[i] = 2 + round;
			}
		}
		lose(r, act);
		pagemap_read(second, r->pages, entries);
		for (unsigned long i = 0; i < r->pages; i++)
			left += !!(entries[i] & PM_PRESENT);
		check_in_any_order(r, "mapped twice");
	}
	if (act == RECLAIM && left > 3 * r->pages / 2)
		bad("%lu pages are left in the second mapping", left);
	munmap(second, bytes);
}

/* --- Pages that reclaim must leave alone --------------------------------- */

static void mlocked_comes_to(long pages)
{
	long now = 0;

	for (int tries = 0; tries < 20; tries++) {
		drain_lru();
		now = vm_pages("nr_mlock");
		if (now == pages)
			return;
		usleep(10000);
	}
	bad("%ld pages were locked, and %ld are", pages, now);
}

/* The first half of each folio is locked. */
static void case_mlock(struct region *r, unsigned int act)
{
	long before = vm_pages("nr_mlock");
	uint64_t entries[MAX_PAGES];
	unsigned int n = r->block;

	for (unsigned long i = 0; i < r->pages; i += n)
		if (mlock(r->at[i], n / 2 * PAGE))
			die("mlock");
	for (unsigned int round = 0; round < 2; round++) {
		long taken = results->taken, possible = results->possible;

		lose(r, act);
		if (act != MIGRATE) {
			/* Half goes at most. */
			results->taken = taken;
			results->possible = possible;
			pagemap_of(r, entries);
			for (unsigned long i = 0; i < r->pages; i++)
				if (i % n < n / 2 && !(entries[i] & PM_PRESENT))
					bad("page %lu is locked, and not present", i);
		}
		check_in_any_order(r, "partly locked");
		for (unsigned long i = 0; i < r->pages; i++)
			put(r, i, 2 + round);
	}
	if (munlock(r->map, r->pages * PAGE))
		die("munlock");
	lose(r, act);
	check_in_any_order(r, "not locked any more");
	mlocked_comes_to(before);
}

/* Whole locked folios go page by page. */
static void case_mlock_all(struct region *r, unsigned int act)
{
	long before = vm_pages("nr_mlock");
	long in_batches;

	if (mlock(r->map, r->pages * PAGE))
		die("mlock");
	in_batches = vm_counter("rmap_batch_pages");
	lose(r, act);
	in_batches = vm_counter("rmap_batch_pages") - in_batches;
	if (in_batches)
		bad("%ld locked pages went in batches", in_batches);
	check_in_any_order(r, "locked");
	if (munlock(r->map, r->pages * PAGE))
		die("munlock");
	mlocked_comes_to(before);
}

static void case_lazyfree(struct region *r, unsigned int act)
{
	unsigned long kept = 0;

	if (madvise(r->map, r->pages * PAGE, MADV_FREE))
		die("MADV_FREE");
	for (unsigned long i = 0; i < r->pages; i++)
		if (in_pattern(r, i))
			put(r, i, 2);
	lose(r, act);
	for (unsigned long i = 0; i < r->pages; i++) {
		if (r->gen[i] == 2)
			check(r, i, "written after MADV_FREE");
		else if (holds(r->at[i], i, 1))
			kept++;
		else if (!holds(r->at[i], i, 0))
			bad("page %lu is neither old nor empty after MADV_FREE", i);
	}
	if (act == MIGRATE && kept < r->pages / 8)
		bad("migration freed pages");
	/* Pages with a written neighbor may stay. */
	lose(r, act);
	for (unsigned long i = 0; i < r->pages; i++)
		if (r->gen[i] == 2)
			check(r, i, "written after MADV_FREE, again");
}

/* A pinned page of each folio must stay where it is. */
static void case_pinned(struct region *r, unsigned int act)
{
	struct io_uring_params params = { 0 };
	struct iovec pins[MAX_PAGES];
	uint64_t before[MAX_PAGES];
	unsigned int n = 0;
	struct child c;
	int ring;

	ring = syscall(SYS_io_uring_setup, 1, &params);
	if (ring < 0)
		skip();
	/* The swap cache first: reclaim adds no pinned folio. */
	lose(r, PAGEOUT);
	check_all(r, "before they are pinned");
	/* The first half is shared, so its PTEs do not show the pin. */
	for (unsigned long i = 0; i < r->pages; i++)
		if (i % r->block >= r->block / 2 &&
		    madvise(r->at[i], PAGE, MADV_DONTFORK))
			die("MADV_DONTFORK");
	{
		char *at[MAX_PAGES];

		memcpy(at, r->at, sizeof(at));
		for (unsigned long i = 0; i < r->pages; i++)
			if (i % r->block >= r->block / 2)
				r->at[i] = NULL;
		c = fork_child(r);
		memcpy(r->at, at, sizeof(at));
	}
	end_child(&c);
	madvise(r->map, r->pages * PAGE, MADV_DOFORK);
	for (unsigned long i = r->block * 3 / 4; i < r->pages; i += 2 * r->block) {
		pins[n].iov_base = r->at[i];
		pins[n++].iov_len = PAGE;
	}
	if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, pins, n))
		skip();
	pagemap_of(r, before);
	for (unsigned int round = 0; round < 2; round++) {
		lose(r, act);
		check_in_any_order(r, "pinned");
		for (unsigned long i = 0; i < r->pages; i++)
			put(r, i, 2 + round);
		for (unsigned int k = 0; k < n; k++) {
			unsigned long i = ((char *)pins[k].iov_base - r->map) / PAGE;

			if (PAGEMAP_PFN(pagemap_at(r->at[i])) != PAGEMAP_PFN(before[i]))
				bad("page %lu is pinned, and another one is mapped", i);
		}
	}
	lose(r, act);
	check_in_any_order(r, "pinned, written");
	close(ring);
}

/* --- Counters ------------------------------------------------------------ */

struct counts {
	long anon, file, shmem, swap;	/* in pages */
};

static struct counts count_process(void)
{
	static const char status[] = "/proc/self/status";
	struct counts c = {
		.anon = number_in(status, "RssAnon:") / 4,
		.file = number_in(status, "RssFile:") / 4,
		.shmem = number_in(status, "RssShmem:") / 4,
		.swap = number_in(status, "VmSwap:") / 4,
	};

	return c;
}

static struct counts count_region(const struct region *r)
{
	struct counts c = { 0 };
	uint64_t entries[MAX_PAGES];

	pagemap_of(r, entries);
	for (unsigned long i = 0; i < r->pages; i++) {
		if (entries[i] & PM_PRESENT) {
			if (r->kind->bit == DISK)
				c.file++;
			else if (r->kind->bit == SHARED)
				c.shmem++;
			else
				c.anon++;
		} else if (entries[i] & PM_SWAP) {
			c.swap++;
		}
	}
	return c;
}

static void compare_counts(const struct region *r, const struct counts *base,
			   const char *when)
{
	struct counts is = count_process(), here = count_region(r);
	/* Each CPU keeps up to a batch, now and at @base. */
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	long slack = 2 * cpus * (cpus > 16 ? 2 * cpus : 32);

	if (labs(is.anon - base->anon - here.anon) > slack ||
	    labs(is.file - base->file - here.file) > slack ||
	    labs(is.shmem - base->shmem - here.shmem) > slack ||
	    labs(is.swap - base->swap - here.swap) > slack)
		bad("%s: anon %+ld, file %+ld, shmem %+ld, swap %+ld; mapped %ld %ld %ld %ld",
		    when, is.anon - base->anon, is.file - base->file,
		    is.shmem - base->shmem, is.swap - base->swap, here.anon, here.file,
		    here.shmem, here.swap);
}

/* Repeated: batches per CPU hide small errors. */
static void case_counters(struct region *r, unsigned int act)
{
	struct counts base = count_process(), here = count_region(r);

	base.anon -= here.anon;
	base.file -= here.file;
	base.shmem -= here.shmem;
	base.swap -= here.swap;
	for (unsigned int round = 0; round < 4; round++) {
		for (unsigned long i = 0; i < r->pages; i++)
			put(r, i, 2 + round);
		compare_counts(r, &base, "all there");
		lose(r, act);
		compare_counts(r, &base, "all away");
		for (unsigned long i = 0; i < r->pages; i++)
			if (in_pattern(r, i))
				check(r, i, "of the pattern");
		compare_counts(r, &base, "some of it back");
		lose(r, act);
		compare_counts(r, &base, "away again");
	}
	drop(r);
	compare_counts(r, &base, "unmapped");
}

/* --- Concurrent writes --------------------------------------------------- */

static atomic_bool counting;
static uint64_t counted[MAX_PAGES];

static void *count_all(void *arg)
{
	struct region *r = arg;

	if (sysconf(_SC_NPROCESSORS_ONLN) > 1)
		pin(1);
	while (atomic_load(&counting))
		for (unsigned long i = 0; i < r->pages; i++) {
			(*(volatile uint64_t *)(r->at[i] + 8))++;
			counted[i]++;
		}
	return NULL;
}

static void case_lost_writes(struct region *r, unsigned int act)
{
	pthread_t thread;
	int lost = 0;

	for (unsigned long i = 0; i < r->pages; i++)
		*(volatile uint64_t *)(r->at[i] + 8) = 0;
	memset(counted, 0, sizeof(counted));
	atomic_store(&counting, true);
	start_thread(&thread, count_all, r);
	for (int i = 0; i < 12; i++) {
		if (act == PAGEOUT)
			pageout_runs(r);
		else
			migrate_runs(r);
		usleep(pick(2000));
	}
	atomic_store(&counting, false);
	pthread_join(thread, NULL);
	for (unsigned long i = 0; i < r->pages; i++)
		lost += *(volatile uint64_t *)(r->at[i] + 8) != counted[i];
	if (lost)
		bad("writes to %d pages of %lu were lost, of %lu to each", lost, r->pages,
		    (unsigned long)counted[0]);
	check_all(r, "beside the counter");
}

/* --- Poison -------------------------------------------------------------- */

static bool can_poison(void)
{
	return !madvise((void *)PAGE, 0, MADV_HWPOISON);
}

static void poison(struct region *r, unsigned long i)
{
	sigjmp_buf jump;

	if (sigsetjmp(jump, 1)) {
		fault_jump = NULL;
		return;
	}
	/* SIGBUS now or later. */
	fault_jump = &jump;
	madvise(r->at[i], PAGE, MADV_HWPOISON);
	fault_jump = NULL;
}

/*
 * A poisoned page splits its folio. While a pipe holds the folio it stays whole and mapped,
 * and unmapping must tell the page from the others.
 */
static void case_poison(struct region *r, unsigned int act)
{
	unsigned long split = r->block / 2, whole = 3 * r->block + r->block / 3;
	struct iovec v = { r->at[whole + 1], PAGE };
	unsigned long away = 0;
	int held[2];

	if (pipe2(held, O_CLOEXEC) || vmsplice(held[1], &v, 1, 0) != (ssize_t)PAGE)
		die("vmsplice");
	poison(r, split);
	poison(r, whole);
	close(held[0]);
	close(held[1]);
	for (unsigned int round = 0; round < 2; round++) {
		lose(r, act);
		for (unsigned long i = 0; i < r->pages; i++) {
			if (i == split || i == whole)
				continue;
			check(r, i, "beside a bad page");
			put(r, i, 2 + round);
		}
	}
	away += !try_touch(r, split);
	if (!away)
		bad("page %lu is bad, and can be read", split);
	/* Reclaim skips the folio. Migration must not copy the page. */
	if (act == MIGRATE && try_touch(r, whole))
		bad("page %lu is bad, and can be read", whole);
	forget(r, split);
	forget(r, whole);
	lose(r, act);
	check_all(r, "beside what was a bad page");
}

/* --- The tests ----------------------------------------------------------- */

static const struct property {
	const char *name;
	void (*run)(struct region *r, unsigned int act);
	unsigned int kinds, acts;
	/* Long, uniform runs: batches are expected. */
	bool batches;
	/* Most pages must go. */
	bool most;
	/* The swap cache matters. */
	bool loop;
	bool (*possible)(void);
	const char *needs;
} properties[] = {
	{ "content", case_content, ALL_ANON | SHARED | DISK, ANYHOW, true, true, true,
	  NULL, NULL },
	{ "holes", case_holes, MID | SHARED, ANYHOW, true, true, true, NULL, NULL },
	{ "dirty", case_dirty, ALL_ANON, ANYHOW, true, true, true, NULL, NULL },
	{ "dirty shared", case_dirty_shared, SHARED, ANYHOW, true, true, false, NULL, NULL },
	{ "dirty file", case_dirty_file, DISK, ANYHOW, true, false, false, NULL, NULL },
	{ "young", case_young, MID | SHARED | DISK, ANYHOW, true, true, false, NULL, NULL },
	{ "soft-dirty", case_soft_dirty, ALL_ANON, ANYHOW, true, true, true,
	  softdirty_supported, "CONFIG_MEM_SOFT_DIRTY" },
	{ "soft-dirty shared", case_soft_dirty, SHARED, MIGRATE, true, true, false,
	  softdirty_supported, "CONFIG_MEM_SOFT_DIRTY" },
	{ "uffd-wp", case_uffd_wp, ALL_ANON, ANYHOW, false, true, true, NULL,
	  "CONFIG_USERFAULTFD" },
	{ "uffd-wp shared", case_uffd_wp, SHARED, ANYHOW, false, true, false, NULL,
	  "CONFIG_PTE_MARKER_UFFD_WP" },
	{ "uffd-wp file", case_uffd_wp, DISK, ANYHOW, false, true, false, NULL,
	  "CONFIG_PTE_MARKER_UFFD_WP and large file folios" },
	{ "protected", case_protected, MID | SHARED, ANYHOW, false, true, false,
	  NULL, NULL },
	{ "exclusive, child gone", case_exclusive_gone, ALL_ANON, ANYHOW, true, true, true,
	  NULL, NULL },
	{ "exclusive, child there", case_exclusive_there, ANON, RECLAIM | MIGRATE, true,
	  true, true, NULL, NULL },
	{ "parts", case_parts, MID, RECLAIM | MIGRATE, false, false, true, NULL, NULL },
	{ "halves", case_halves, MID | SHARED, ANYHOW, true, true, true, NULL, NULL },
	{ "crossing", case_crossing, ALL_ANON | SHARED, ANYHOW, true, true, false,
	  NULL, NULL },
	{ "middle", case_middle, MID | SHARED | DISK, ANYHOW, false, true, false,
	  NULL, NULL },
	{ "twice", case_twice, SHARED | DISK, RECLAIM | MIGRATE, true, false, false,
	  NULL, NULL },
	{ "mlock", case_mlock, ANON, ANYHOW, false, false, false, NULL, NULL },
	{ "mlock all", case_mlock_all, MID | SHARED, MIGRATE, false, true, false,
	  NULL, NULL },
	{ "lazyfree", case_lazyfree, ANON, ANYHOW, false, false, false, NULL, NULL },
	{ "pinned", case_pinned, MID, ANYHOW, false, false, true, NULL,
	  "CONFIG_IO_URING" },
	{ "counters", case_counters, BIG | DISK, PAGEOUT | MIGRATE, true, true, false,
	  NULL, NULL },
	{ "lost writes", case_lost_writes, MID | SHARED, PAGEOUT | MIGRATE, true, false,
	  true, NULL, NULL },
	{ "poison", case_poison, MID, PAGEOUT | MIGRATE, false, false, false, can_poison,
	  "CONFIG_MEMORY_FAILURE" },
};

#define PROPERTIES	((int)ARRAY_SIZE(properties))

static enum swap main_swap;
static long gone, there;	/* pages, in all cases */

static void run_case(const struct property *p, const struct kind *kind, unsigned int act,
		     const char *pass)
{
	static struct region r;
	int status, before;
	const char *said;
	pid_t pid;

	before = results->bad;
	pattern_seed = pick(256);
	results->skipped = false;
	results->taken = 0;
	results->possible = 0;
	choose_thp(kind->kb);
	pid = must_fork();
	if (!pid) {
		alarm(CASE_SECONDS);
		catch_faults();
		enter_cgroup();
		populate(&r, kind);
		p->run(&r, act);
		drop(&r);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	if (status)
		bad("it ended with %#x", status);
	if (p->most && !results->skipped && results->taken * 2 < results->possible)
		ksft_print_msg("%s, %s, %s, %s: only %ld of %ld pages went\n", p->name, kind->name,
		       act_names[act], pass, results->taken, results->possible);
	gone += results->taken;
	there += results->possible;
	said = kernel_complaint();
	if (said)
		bad("the kernel said: %s", said);
	if (results->bad == before)
		return;
	ksft_print_msg("%s, %s, %s, %s: %d complaints\n", p->name, kind->name, act_names[act], pass,
	       results->bad - before);
	for (int i = 0; i < results->lines; i++)
		ksft_print_msg("  %s\n", results->line[i]);
	results->lines = 0;
}

/* Slow cases without a difference are left out. */
static bool wanted_in_background(const struct kind *kind, unsigned int act)
{
	return kind->bit & (SMALL | MID | SHARED) &&
	       (act == PAGEOUT || kind->bit == MID);
}

static void run_property(const struct property *p, int enabled, const char *pass)
{
	double started = now();
	long batches = vm_counter("rmap_batch_runs"), in_batches = vm_counter("rmap_batch_pages");
	int cases = 0, skipped = 0;
	bool ok;

	if (p->possible && !p->possible()) {
		test_skip(p->needs, "rmap_batch %s (%s)", p->name, pass);
		return;
	}
	memset(results, 0, sizeof(*results));
	gone = 0;
	there = 0;
	for (unsigned long k = 0; k < ARRAY_SIZE(kinds); k++)
		for (unsigned int act = PAGEOUT; act <= MIGRATE; act <<= 1) {
			if (!(p->kinds & kinds[k].bit && p->acts & act) ||
			    (act == RECLAIM && !cgroup[0]) ||
			    (act == MIGRATE && !two_nodes()) ||
			    (swap_now != main_swap && !wanted_in_background(&kinds[k], act)) ||
			    (!enabled && !(kinds[k].bit & (MID | SHARED | DISK))))
				continue;
			run_case(p, &kinds[k], act, pass);
			skipped += results->skipped;
			cases++;
		}
	if (cases == skipped) {
		test_skip(p->needs ? p->needs : "large folios", "rmap_batch %s (%s)",
			  p->name, pass);
		return;
	}
	batches = vm_counter("rmap_batch_runs") - batches;
	in_batches = vm_counter("rmap_batch_pages") - in_batches;
	ok = !results->bad && (!p->most || gone * 2 >= there);
	if (enabled > 0 && p->batches)
		ok &= batches > 0 && in_batches > batches;
	if (enabled <= 0)
		ok &= !batches && !in_batches;
	test_result(ok,
		    "rmap_batch %s (%s): %d cases in %.1f s, %d complaints, %ld of %ld pages gone, %ld in %ld batches",
		    p->name, pass, cases - skipped, now() - started, results->bad,
		    gone, there, in_batches, batches);
}

/* --- A pass: all tests, one switch setting, one swap device -------------- */

/* No memory and no swap entry may be left. */
static void look_at_the_rest(const char *pass)
{
	const char *rest;

	test_result(swap_off_in_time(swap_now),
		    "rmap_batch swap (%s): all entries are free at the end", pass);
	if (!cgroup[0])
		return;
	rest = cgroup_rest();
	test_result(!rest[0], "rmap_batch memory cgroup (%s): left in it: %s", pass,
		    rest[0] ? rest : "nothing");
}

static void run_pass(int enabled, enum swap swap, const char *only)
{
	char pass[64];

	snprintf(pass, sizeof(pass), "%s, %s", enabled < 0 ? "stock" : enabled ? "on" : "off",
		 swap_names[swap]);
	if (!swap_on(swap)) {
		test_skip(swap == RAM ? "a free RAM disk of 32 MB" : "a loop device",
			  "rmap_batch (%s)", pass);
		/* The loop device runs all tests. */
		main_swap = LOOP;
		return;
	}
	swap_now = swap;
	if (enabled >= 0)
		set_switch("rmap_batch", enabled);
	if (!make_cgroup("rmap_batch"))
		ksft_print_msg("no memory cgroup: nothing is tested with memory.reclaim\n");
	for (int i = 0; i < PROPERTIES; i++)
		if ((!only || !strcmp(only, properties[i].name)) &&
		    (swap == main_swap || properties[i].loop))
			run_property(&properties[i], enabled, pass);
	look_at_the_rest(pass);
	remove_cgroup();
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[2]) : 1, enabled;
	const char *only = argc > 3 ? argv[3] : NULL;
	char text[8];

	if (argc < 2) {
		fprintf(stderr, "usage: rmap_batch DIR [ROUNDS] [PROPERTY]\n");
		return 2;
	}
	dir = argv[1];
	ksft_print_header();
	if (geteuid())
		ksft_exit_skip("root is needed\n");
	if (!try_read(THP "hugepages-64kB/enabled", text, sizeof(text)))
		ksft_exit_skip("this kernel has no large folios of several sizes\n");
	if (!two_nodes())
		ksft_print_msg("one NUMA node: nothing is tested with migration\n");
	results = map_shared(sizeof(*results));
	save_system();
	watch_kernel_log();
	/* No case pays for this program's page faults. */
	mlockall(MCL_CURRENT);
	munlockall();
	random_state = 88172645463325252ULL;
	enabled = get_switch("rmap_batch");
	for (int i = 0; i < rounds; i++) {
		for (int on = 1; on >= (enabled < 0 ? 1 : 0); on--) {
			main_swap = RAM;
			run_pass(enabled < 0 ? -1 : on, RAM, only);
			/* Off is stock: a part suffices. */
			if (on || main_swap == LOOP)
				run_pass(enabled < 0 ? -1 : on, LOOP, only);
		}
		random_state += 0x9e3779b97f4a7c15ULL;
	}
	test_end();
}
