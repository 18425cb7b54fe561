// SPDX-License-Identifier: GPL-2.0-only
/*
 * Do faults on anonymous memory get large folios where they are of use, and nowhere
 * else, and is what was not asked for counted and bounded? Usage:
 *
 *	folio_order [DIR [TEST]]
 *
 * DIR is not used. Root is needed; swap and a memory cgroup for some of the tests. What
 * is changed in the system is put back, but for the list in manual_sizes, which is
 * empty afterwards.
 *
 * Each test is a process of its own. What it says is printed when it fails.
 */
#define _GNU_SOURCE
#include "util.h"
#include "rmap.h"
#include <stdatomic.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define SYSFS		QUELL_SYSFS "folio_order/"
#define BIG		(32UL << 20)	/* bytes of most regions */
#define COUNT		(BIG / PAGE)
#define MOST		16UL		/* pages of a folio that nobody asked for */
#define LINES		12
#define MAX_NODES	8U

static struct {
	int bad, lines;
	bool skipped;
	char why[80];
	char line[LINES][160];
} *said;

static void expect(bool ok, const char *fmt, ...)
{
	va_list args;

	if (ok)
		return;
	said->bad++;
	if (said->lines == LINES)
		return;
	va_start(args, fmt);
	vsnprintf(said->line[said->lines++], sizeof(said->line[0]), fmt, args);
	va_end(args);
}

static void skip(const char *why)
{
	said->skipped = true;
	snprintf(said->why, sizeof(said->why), "%s", why);
}

/* --- Regions ------------------------------------------------------------- */

/* Private anonymous memory at a multiple of 2 MB, with nothing beside it. */
static char *map_region(unsigned long bytes)
{
	unsigned long room = bytes + 3 * HUGE;
	char *all = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			 -1, 0);
	char *at;

	if (all == MAP_FAILED)
		die("mmap");
	at = (char *)(((uintptr_t)all + 2 * HUGE - 1) & -HUGE);
	if (mmap(at, bytes, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != at)
		die("mmap");
	return at;
}

static uint64_t mark(unsigned long i)
{
	return i * 0x9e3779b97f4a7c15ULL | 1;
}

static void put(char *map, unsigned long i)
{
	*(volatile uint64_t *)(map + i * PAGE) = mark(i);
}

static uint64_t get(char *map, unsigned long i)
{
	return *(volatile uint64_t *)(map + i * PAGE);
}

static void fill(char *map, unsigned long from, unsigned long to)
{
	for (; from < to; from++)
		put(map, from);
}

/* The pages from @from to @to are as put() left them; or 0, if not @written. */
static void verify(char *map, unsigned long from, unsigned long to, bool written,
		   const char *when)
{
	for (unsigned long i = from; i < to; i++) {
		uint64_t is = get(map, i), right = written ? mark(i) : 0;

		expect(is == right && *(uint64_t *)(map + i * PAGE + PAGE - 8) == 0,
		       "%s: page %lu is %#lx, not %#lx", when, i, (unsigned long)is,
		       (unsigned long)right);
	}
}

static unsigned long there(const char *map, unsigned long pages)
{
	uint64_t entries[512];
	unsigned long found = 0;

	for (unsigned long i = 0; i < pages; i += 512) {
		unsigned long n = pages - i < 512 ? pages - i : 512;

		pagemap_read(map + i * PAGE, n, entries);
		for (unsigned long k = 0; k < n; k++)
			found += !!(entries[k] & PM_PRESENT);
	}
	return found;
}

static unsigned long largest(const char *map, unsigned long pages)
{
	unsigned long most = 0;

	for (unsigned long i = 0; i < pages;) {
		unsigned long n = folio_pages_at(map + i * PAGE);

		most = n > most ? n : most;
		i += n > 1 ? n - i % n : 1;
	}
	return most;
}

static unsigned long faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

static long unasked_kb(void)
{
	return number_in("/proc/self/status", "AnonUnasked:");
}

/* What smaps has as @name of the mapping at @map. */
static long kb_of(const char *map, const char *name)
{
	size_t len = strlen(name);
	FILE *f = fopen("/proc/self/smaps", "r");
	unsigned long start, end;
	bool here = false;
	char line[256];
	long kb, sum = 0;

	if (!f)
		die("/proc/self/smaps");
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			here = start <= (uintptr_t)map && (uintptr_t)map < end;
		else if (here && !strncmp(line, name, len) &&
			 sscanf(line + len, ": %ld", &kb) == 1)
			sum += kb;
	}
	fclose(f);
	return sum;
}

/* What was never written, as the page table has it. */
static long clean_kb(const char *map)
{
	return kb_of(map, "Private_Clean");
}

/* Fill a region in one go: how many pages does the largest folio have? */
static unsigned long fill_new(unsigned long pages)
{
	char *map = map_region(BIG);
	unsigned long most;

	fill(map, 0, pages);
	most = largest(map, pages);
	munmap(map, BIG);
	return most;
}

static void set_controls(const char *thp, const char *manual)
{
	write_file(THP "enabled", thp);
	write_file(SYSFS "manual_sizes", manual);
}

/* --- Which memory gets what ---------------------------------------------- */

static void test_forward(void)
{
	char *map = map_region(BIG);
	unsigned long before = faults(), n;

	fill(map, 0, COUNT);
	n = faults() - before;
	expect(n * 100 <= COUNT * 8, "%lu faults for %lu pages", n, COUNT);
	expect(largest(map, COUNT) == MOST, "the largest folio has %lu pages",
	       largest(map, COUNT));
	expect(there(map, COUNT) == COUNT, "%lu pages are there", there(map, COUNT));
	expect(clean_kb(map) == 0, "%ld kB are clean", clean_kb(map));
	verify(map, 0, COUNT, true, "forward");
}

static void test_backward(void)
{
	char *map = map_region(BIG);
	unsigned long before = faults(), n;

	for (unsigned long i = COUNT; i--;)
		put(map, i);
	n = faults() - before;
	expect(n * 100 <= COUNT * 8, "%lu faults for %lu pages", n, COUNT);
	expect(largest(map, COUNT) == MOST, "the largest folio has %lu pages",
	       largest(map, COUNT));
	verify(map, 0, COUNT, true, "backward");
}

static void test_steps(void)
{
	static const unsigned int sizes[][2] = {
		{ 0, 1 }, { 3, 1 }, { 4, 4 }, { 8, 8 }, { 16, 16 }, { 32, 16 }, { 48, 16 },
	};
	char *map = map_region(BIG);

	fill(map, 0, 64);
	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		expect(folio_pages_at(map + sizes[i][0] * PAGE) == sizes[i][1],
		       "page %u is in a folio of %u pages, not %u", sizes[i][0],
		       folio_pages_at(map + sizes[i][0] * PAGE), sizes[i][1]);
}

static void test_madvised(void)
{
	char *map = map_region(2 * BIG);
	unsigned long most;

	/* No huge pages, but up to half of one. */
	write_file(THP "hugepages-2048kB/enabled", "never");
	if (madvise(map, 2 * BIG, MADV_HUGEPAGE))
		die("MADV_HUGEPAGE");
	fill(map, 0, 2 * COUNT);
	most = largest(map, 2 * COUNT);
	expect(most > MOST && most <= 256, "the largest folio has %lu pages", most);
	verify(map, 0, 2 * COUNT, true, "madvised");
}

static void test_nohugepage(void)
{
	char *map = map_region(BIG);

	if (madvise(map, BIG, MADV_NOHUGEPAGE))
		die("MADV_NOHUGEPAGE");
	fill(map, 0, 256);
	expect(largest(map, 256) == 1, "a folio of %lu pages", largest(map, 256));
}

static void test_prctl(void)
{
	unsigned long most;

	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("PR_SET_THP_DISABLE");
	most = fill_new(256);
	expect(most == 1, "disabled: a folio of %lu pages", most);
	prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
	most = fill_new(256);
	expect(most == MOST, "enabled again: %lu pages", most);
}

static void test_never(void)
{
	unsigned long most;

	write_file(THP "enabled", "never");
	most = fill_new(256);
	expect(most == 1, "never: a folio of %lu pages", most);
	write_file(THP "enabled", "always");
	/* Smaller than a huge page, which it would be else. */
	{
		char *map = map_region(HUGE / 2);

		fill(map, 0, 256);
		expect(largest(map, 256) == MOST, "always: %lu pages", largest(map, 256));
	}
}

static void test_switch(void)
{
	unsigned long most;

	write_file(SYSFS "enabled", "0");
	most = fill_new(256);
	expect(most == 1, "off: a folio of %lu pages", most);
	write_file(SYSFS "enabled", "1");
	most = fill_new(256);
	expect(most == MOST, "on: %lu pages", most);
	/* What was allocated before is not lost. */
	{
		char *map = map_region(BIG);

		fill(map, 0, 33);
		write_file(SYSFS "enabled", "0");
		fill(map, 33, 256);
		verify(map, 0, 256, true, "switched off");
		munmap(map, BIG);
	}
}

static void test_manual(void)
{
	char text[128];
	unsigned long most;
	char *map;

	write_file(THP "hugepages-64kB/enabled", "never");
	most = fill_new(256);
	expect(most == 8, "64kB never: the largest has %lu pages", most);
	read_file(SYSFS "manual_sizes", text, sizeof(text));
	expect(!strcmp(text, "64\n"), "manual_sizes is %s", text);

	/* As in stock: the first fault gets it. */
	write_file(THP "hugepages-64kB/enabled", "always");
	map = map_region(BIG);
	put(map, 100);
	expect(folio_pages_at(map + 100 * PAGE) == 16, "64kB always: %u pages",
	       folio_pages_at(map + 100 * PAGE));
	expect(clean_kb(map) == 0, "64kB always: %ld kB are clean", clean_kb(map));
	munmap(map, BIG);

	write_file(THP "hugepages-64kB/enabled", "never");
	write_file(SYSFS "manual_sizes", "none");
	most = fill_new(256);
	expect(most == MOST, "given back: %lu pages", most);
	expect(!try_write(SYSFS "manual_sizes", "64"), "manual_sizes takes a size");
}

static void test_edges(void)
{
	unsigned long end = 27;
	char *map = map_region(end * PAGE);
	uint64_t behind;

	fill(map, 0, end);
	expect(there(map, end) == end, "%lu pages", there(map, end));
	expect(folio_pages_at(map + 16 * PAGE) == 8, "page 16: a folio of %u pages",
	       folio_pages_at(map + 16 * PAGE));
	expect(folio_pages_at(map + 24 * PAGE) == 1, "page 24: a folio of %u pages",
	       folio_pages_at(map + 24 * PAGE));
	pagemap_read(map + end * PAGE, 1, &behind);
	expect(!(behind & PM_PRESENT), "a page behind the mapping is there");

	/* A guard page in the middle. */
	map = map_region(BIG);
	if (mprotect(map + 40 * PAGE, PAGE, PROT_NONE))
		die("mprotect");
	fill(map, 0, 40);
	fill(map, 41, 64);
	pagemap_read(map + 40 * PAGE, 1, &behind);
	expect(!(behind & PM_PRESENT), "the guard page is there");
	verify(map, 0, 40, true, "before the guard page");
	verify(map, 41, 64, true, "behind the guard page");
}

static void test_partly_mapped(void)
{
	char *map = map_region(BIG);

	put(map, 24);
	fill(map, 0, 64);
	expect(folio_pages_at(map + 16 * PAGE) == 8, "page 16: a folio of %u pages",
	       folio_pages_at(map + 16 * PAGE));
	expect(folio_pages_at(map + 24 * PAGE) == 1, "page 24: a folio of %u pages",
	       folio_pages_at(map + 24 * PAGE));
	verify(map, 0, 64, true, "partly mapped");
}

static bool bind_to(unsigned int node)
{
	unsigned long nodes = 1UL << node;

	return !syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 8 * sizeof(nodes));
}

/* Whoever binds memory to a node gets large folios from there. */
static void test_bind(void)
{
	int bound = 0;

	for (unsigned int node = 0; node < MAX_NODES; node++) {
		unsigned long most;

		if (!bind_to(node))
			continue;
		bound++;
		most = fill_new(COUNT);
		expect(most == MOST, "the largest folio on node %u has %lu pages", node, most);
	}
	if (!bound)
		skip("NUMA");
}

static void test_stack(void)
{
	volatile char deep[512 * 1024];

	for (long i = sizeof(deep) - 1; i >= 0; i -= PAGE)
		deep[i] = 1;
	for (unsigned long i = 0; i < sizeof(deep); i += PAGE)
		expect(folio_pages_at((char *)deep + i) == 1, "%lu: a folio of %u pages", i,
		       folio_pages_at((char *)deep + i));
}

static void test_thread_stacks(void)
{
	char *map = map_region(BIG);
	unsigned long asked = 0;

	for (unsigned long top = 256; top <= COUNT; top += 256)
		for (unsigned long i = 1; i <= 3; i++, asked++)
			put(map, top - i);
	expect(there(map, COUNT) == asked, "%lu pages for %lu", there(map, COUNT), asked);
}

static void test_read_first(void)
{
	char *map = map_region(BIG);

	verify(map, 0, 256, false, "read first");
	fill(map, 0, 256);
	expect(largest(map, 256) == 1, "a folio of %lu pages", largest(map, 256));
}

static void test_locked(void)
{
	char *map = map_region(1UL << 20);

	if (mlock(map, 1UL << 20))
		return skip("mlock");
	expect(there(map, 256) == 256, "%lu pages", there(map, 256));
	expect(largest(map, 256) == MOST, "the largest folio has %lu pages",
	       largest(map, 256));
	expect(clean_kb(map) == 0, "%ld kB are clean", clean_kb(map));
	verify(map, 0, 256, false, "locked");
}

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED	24
#endif

/* Holes that are made in locked memory are not populated: who writes to one page wants one. */
static void test_locked_holes(void)
{
	int zero = open("/dev/zero", O_RDONLY), memory = open("/proc/self/mem", O_RDWR);
	unsigned long found;

	if (zero < 0 || memory < 0)
		die("open");
	/* Written to by the kernel, directly and by get_user_pages(). */
	for (int direct = 0; direct < 2; direct++) {
		char *map = map_region(1UL << 20);

		if (mlock(map, 1UL << 20))
			return skip("mlock");
		/* The page before the first one is there, and so it goes on. */
		if (madvise(map + MOST * PAGE, 240 * PAGE, MADV_DONTNEED_LOCKED))
			die("MADV_DONTNEED_LOCKED");
		for (unsigned long i = MOST; i < 256; i += MOST)
			if (direct ? read(zero, map + i * PAGE, 8) != 8 :
			    pwrite(memory, "written", 8, (uintptr_t)map + i * PAGE) != 8)
				die("write to a hole");
		found = there(map + MOST * PAGE, 240);
		/* One block may come as anywhere, and is counted. */
		expect(found < 15 + MOST, "%s: %lu pages for 15",
		       direct ? "read()" : "/proc/self/mem", found);
		munmap(map, 1UL << 20);
	}
	close(zero);
	close(memory);
}

/* One page in each block is populated again, of a VMA that has holes beside it. */
static void test_locked_pieces(void)
{
	char *map = map_region(1UL << 20);

	if (mlock(map, 1UL << 20))
		return skip("mlock");
	if (madvise(map, 1UL << 20, MADV_DONTNEED_LOCKED))
		die("MADV_DONTNEED_LOCKED");
	for (unsigned long i = 0; i < 256; i += MOST)
		if (mprotect(map + i * PAGE, PAGE, PROT_READ) ||
		    mprotect(map + i * PAGE, PAGE, PROT_READ | PROT_WRITE))
			die("mprotect");
	expect(there(map, 256) == 16, "%lu pages for 16", there(map, 256));
}

/* --- Waste, and the bound ------------------------------------------------ */

static void test_strided(void)
{
	for (unsigned long stride = 2; stride <= 64; stride *= 2) {
		char *map = map_region(BIG);
		unsigned long asked = 0, found;

		for (unsigned long i = 0; i < COUNT; i += stride, asked++)
			put(map, i);
		found = there(map, COUNT);
		expect(found * 100 <= asked * 102, "one in %lu: %lu pages for %lu", stride,
		       found, asked);
		munmap(map, BIG);
	}
}

static void test_random(void)
{
	static bool done[COUNT];
	char *map = map_region(BIG);
	unsigned long asked = 0, found, random = 1;

	for (unsigned long k = 0; k < COUNT / 2; k++) {
		unsigned long i;

		random = random * 6364136223846793005UL + 1442695040888963407UL;
		i = (random >> 33) % COUNT;
		asked += !done[i];
		done[i] = true;
		put(map, i);
	}
	found = there(map, COUNT);
	expect(found * 100 <= asked * 102, "%lu pages for %lu", found, asked);
	for (unsigned long i = 0; i < COUNT; i++)
		if (done[i])
			verify(map, i, i + 1, true, "random");
}

static void test_dense_then_strided(void)
{
	char *map = map_region(BIG);
	unsigned long asked = 1024, found;

	fill(map, 0, 1024);
	for (unsigned long i = 1024; i < COUNT; i += 16, asked++)
		put(map, i);
	found = there(map, COUNT);
	expect(found <= asked + 32, "%lu pages for %lu", found, asked);
}

/* No more than the share, or the slack, and what there was before. */
static void check_bound(unsigned long found, unsigned long asked, long before,
			unsigned int permille, const char *when)
{
	long rss = number_in("/proc/self/status", "RssAnon:");
	long share = rss * permille / 1000;
	long most = share > 128 ? share : 128, waste = (long)(found - asked) * 4;

	/* Each CPU keeps back some of what RssAnon is. */
	most += sysconf(_SC_NPROCESSORS_ONLN) * 32 * 4 * permille / 1000;
	expect(waste <= most, "%s: %ld kB are wasted of %ld, the bound is %ld", when, waste,
	       rss, most);
	expect(unasked_kb() >= waste, "%s: %ld kB are wasted, %ld unasked (%ld before)", when,
	       waste, unasked_kb(), before);
}

/* Uses as little as it can of what it gets. */
static void waste(unsigned int permille)
{
	static const unsigned int runs[] = { 4, 8, 16, 32 };
	long before = unasked_kb();

	for (unsigned int r = 0; r < sizeof(runs) / sizeof(runs[0]); r++) {
		char *map = map_region(BIG), when[32];
		unsigned long asked = 0;

		snprintf(when, sizeof(when), "runs of %u", runs[r]);
		for (unsigned long i = 0; i + 64 <= COUNT; i += 64) {
			fill(map, i, i + runs[r] + 1);
			asked += runs[r] + 1;
			if (i % 4096 == 0)
				check_bound(there(map, COUNT), asked, before, permille, when);
		}
		check_bound(there(map, COUNT), asked, before, permille, when);
		expect(clean_kb(map) == (long)(there(map, COUNT) - asked) * 4,
		       "%s: smaps has %ld kB, pagemap %ld", when, clean_kb(map),
		       (long)(there(map, COUNT) - asked) * 4);
		munmap(map, BIG);
	}
}

static void test_bound(void)
{
	long hits = vm_counter("folio_order_bound"), recounts = vm_counter("folio_order_recount");

	waste(20);
	hits = vm_counter("folio_order_bound") - hits;
	/* A recount is done in the background, and another one may be. */
	usleep(300000);
	for (int i = 0; i < 100 && vm_counter("folio_order_recount") == recounts; i++)
		usleep(100000);
	recounts = vm_counter("folio_order_recount") - recounts;
	expect(hits > 0, "the bound was never hit");
	expect(recounts > 0, "nothing was recounted, in %ld refusals", hits);
}

/*
 * What was asked for after all, with no fault beside it that would tell, is not held
 * against the process. Fewer refusals than a recount takes.
 */
static void test_settled(void)
{
	unsigned long got = 0;
	long recounts = -1;

	/* One of a process that has gone may be under way. */
	for (int i = 0; i < 50 && vm_counter("folio_order_recount") != recounts; i++) {
		recounts = vm_counter("folio_order_recount");
		usleep(500000);
	}
	for (int i = 0; i < 48; i++) {
		char *map = map_region(HUGE);

		fill(map, 0, MOST + 1);
		got += folio_pages_at(map + MOST * PAGE) == MOST;
		fill(map, MOST + 1, 2 * MOST);
	}
	expect(got > 40, "%lu of 48 mappings got a large folio", got);
	expect(vm_counter("folio_order_recount") == recounts, "there was a recount");
}

static void test_bound_raised(void)
{
	write_file(SYSFS "max_unasked_permille", "200");
	waste(200);
	expect(!try_write(SYSFS "max_unasked_permille", "1001"), "1001 is taken");
	expect(!try_write(SYSFS "slack_kb", "1025"), "a slack of 1025 is taken");
}

static void test_bound_zero(void)
{
	long before = vm_counter("folio_order_bound");
	unsigned long most;

	write_file(SYSFS "max_unasked_permille", "0");
	most = fill_new(256);
	expect(most == 1, "0: a folio of %lu pages", most);
	expect(vm_counter("folio_order_bound") == before, "0: it asks, to be refused");
	write_file(SYSFS "max_unasked_permille", "20");
	write_file(SYSFS "slack_kb", "0");
	most = fill_new(16);
	expect(most == 1, "no slack: a folio of %lu pages", most);
}

static void test_counter(void)
{
	long before, is;
	char *map = map_region(BIG);

	/* Twice: the first one may be the first to need memory for the text. */
	unasked_kb();
	before = unasked_kb();
	fill(map, 0, 33);
	is = unasked_kb();
	expect(is == before + 60, "a new block: from %ld to %ld kB", before, is);
	expect(clean_kb(map) == 60, "%ld kB are clean", clean_kb(map));
	/* Reading is not asking. */
	verify(map, 33, 48, false, "not asked for");
	expect(clean_kb(map) == 60, "read: %ld kB are clean", clean_kb(map));
	fill(map, 33, 49);
	is = unasked_kb();
	expect(is == before + 60, "the next block: from %ld to %ld kB", before, is);
	munmap(map, BIG);
	is = unasked_kb();
	expect(is == before, "unmapped: from %ld to %ld kB", before, is);
}

/* The size that a mapping gets sinks, and comes back. */
static void test_learns(void)
{
	long raised = vm_counter("folio_order_raised"), unused = vm_counter("folio_order_unused");
	char *map = map_region(BIG);

	/* Of each block the end is asked for, so that the next fault sees it. */
	for (unsigned long i = 0; i + 32 <= 512; i += 32) {
		fill(map, i, i + 17);
		fill(map, i + 28, i + 32);
	}
	expect(vm_counter("folio_order_raised") > raised, "nothing was raised");
	expect(vm_counter("folio_order_unused") > unused, "nothing was found unused");
	/* With time for a recount, which is a work of its own. */
	for (unsigned long i = 512; i < COUNT; i += 512) {
		fill(map, i, i + 512);
		usleep(20000);
	}
	expect(folio_pages_at(map + (COUNT - 1) * PAGE) == MOST, "the last folio has %u pages",
	       folio_pages_at(map + (COUNT - 1) * PAGE));
}

static char *two_map;

static void *fill_odd(void *arg)
{
	for (unsigned long i = (uintptr_t)arg; i < COUNT; i += 64)
		fill(two_map, i, i + 32);
	return NULL;
}

/* Threads fault in the same blocks, and next to each other. */
static void test_threads(void)
{
	long before = unasked_kb();

	for (int round = 0; round < 8; round++) {
		pthread_t thread[4];

		two_map = map_region(BIG);
		for (unsigned long i = 0; i < 4; i++)
			if (pthread_create(&thread[i], NULL, fill_odd,
					   (void *)(i % 2 * 32)))
				die("pthread_create");
		for (int i = 0; i < 4; i++)
			pthread_join(thread[i], NULL);
		verify(two_map, 0, COUNT, true, "threads");
		expect(clean_kb(two_map) == 0, "%ld kB are clean", clean_kb(two_map));
		munmap(two_map, BIG);
		expect(unasked_kb() >= 0 && unasked_kb() < before + 1024,
		       "from %ld to %ld kB", before, unasked_kb());
	}
}

static atomic_ulong filled[2];

static void *fill_at_once(void *arg)
{
	unsigned long me = (uintptr_t)arg;

	pin(me);
	for (unsigned long i = 0; i < COUNT; i++) {
		if (i % MOST == 0) {
			atomic_store(&filled[me], i);
			while (atomic_load(&filled[!me]) < i)
				;
		}
		put(two_map, i);
	}
	atomic_store(&filled[me], COUNT);
	return NULL;
}

/*
 * Two threads fault on the same page at the same time: who comes second has a folio
 * for nothing. If what was reserved for it were kept there would be no more large
 * folios soon.
 */
static void test_races(void)
{
	unsigned long most;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		return skip("two CPUs");
	for (int round = 0; round < 4; round++) {
		pthread_t thread[2];

		two_map = map_region(BIG);
		atomic_store(&filled[0], 0);
		atomic_store(&filled[1], 0);
		for (unsigned long i = 0; i < 2; i++)
			if (pthread_create(&thread[i], NULL, fill_at_once, (void *)i))
				die("pthread_create");
		for (int i = 0; i < 2; i++)
			pthread_join(thread[i], NULL);
		verify(two_map, 0, COUNT, true, "races");
		munmap(two_map, BIG);
		most = fill_new(256);
		expect(most == MOST, "%d: a folio of %lu pages, %ld kB are unasked", round,
		       most, unasked_kb());
	}
}

/* --- What happens to large folios ---------------------------------------- */

static void in_child(void (*func)(char *map), char *map)
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (!pid) {
		func(map);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	expect(!status, "the child ended with %#x", status);
}

static void child_writes(char *map)
{
	expect(unasked_kb() >= clean_kb(map), "child: %ld kB unasked, %ld clean",
	       unasked_kb(), clean_kb(map));
	verify(map, 0, 33, true, "child");
	verify(map, 33, 48, false, "child");
	for (unsigned long i = 0; i < 48; i += 2)
		*(volatile uint64_t *)(map + i * PAGE) = 7;
	fill(map, 48, 256);
	verify(map, 48, 256, true, "child, its own");
	for (unsigned long i = 1; i < 33; i += 2)
		verify(map, i, i + 1, true, "child, shared");
}

static void test_fork(void)
{
	char *map = map_region(BIG);

	fill(map, 0, 33);
	in_child(child_writes, map);
	verify(map, 0, 33, true, "parent");
	verify(map, 33, 48, false, "parent");
	fill(map, 33, 512);
	verify(map, 0, 512, true, "parent, later");
	expect(there(map, COUNT) <= 512 + MOST, "%lu pages", there(map, COUNT));
	/* Again and again, so that what is forgotten adds up. */
	for (int i = 0; i < 40; i++) {
		char *more = map_region(BIG);

		fill(more, 0, 33);
		in_child(child_writes, more);
		fill(more, 33, 64);
		verify(more, 0, 64, true, "parent, again");
		munmap(more, BIG);
	}
	expect(unasked_kb() <= 1024, "%ld kB are unasked", unasked_kb());
}

/* Refused so often that a recount is wanted, and has to come: after a second at most. */
static void child_recounts(char *map)
{
	long before;

	/* The parent's is over by then. */
	usleep(100000);
	before = vm_counter("folio_order_recount");
	for (int round = 0; round < 100; round++) {
		for (unsigned long i = 0; i + 64 <= COUNT; i += 64)
			fill(map, i, i + 33);
		if (vm_counter("folio_order_recount") != before)
			return;
		madvise(map, BIG, MADV_DONTNEED);
		usleep(10000);
	}
	expect(false, "a child's pages are not recounted");
}

/*
 * What the parent's recount is at, or what it has reserved, is nothing that the child
 * has: it would never have a recount of its own.
 */
static void test_fork_recount(void)
{
	long recounts = 0, bound = 0;

	for (int round = 0; round < 10; round++) {
		char *map = map_region(BIG), *own = map_region(BIG);

		/* A recount begins after so many refusals, or is over again by then. */
		for (unsigned long i = 0; i + 64 <= COUNT; i += 64) {
			fill(map, i, i + 33);
			if (vm_counter("folio_order_recount") != recounts) {
				recounts = vm_counter("folio_order_recount");
				bound = vm_counter("folio_order_bound");
			}
			if (vm_counter("folio_order_bound") - bound > 64 + (long)i / 32)
				break;
		}
		in_child(child_recounts, own);
		munmap(map, BIG);
		munmap(own, BIG);
	}
}

static void test_mremap(void)
{
	char *map = map_region(BIG), *to = map_region(BIG);
	long before = unasked_kb();

	fill(map, 0, 65);
	/* Not at a multiple of a folio. */
	if (mremap(map + 6 * PAGE, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
		   to + PAGE) == MAP_FAILED)
		die("mremap");
	for (unsigned long i = 0; i < 59; i++)
		expect(get(to + PAGE, i) == mark(i + 6), "moved page %lu is wrong", i);
	verify(to + PAGE, 59, 64, false, "moved");
	verify(map, 0, 6, true, "not moved");
	fill(to + 65 * PAGE, 0, 64);
	verify(to + 65 * PAGE, 0, 64, true, "behind it");
	munmap(map, BIG);
	munmap(to, BIG);
	expect(unasked_kb() >= before, "from %ld to %ld kB", before, unasked_kb());
}

/* linux/userfaultfd.h of 6.8 and later. */
#ifndef UFFDIO_MOVE
#define UFFD_FEATURE_MOVE	0x10000
#define UFFDIO_MOVE		_IOWR(UFFDIO, 0x05, struct uffdio_move)
struct uffdio_move {
	uint64_t dst, src, len, mode;
	int64_t move;
};
#endif

static struct mover {
	int fd;
	char *low, *high;
	atomic_bool stop;
	long moved;
} mover;

/* What nobody asked for, page by page. */
static void move_unasked(char *to, char *from)
{
	for (unsigned long i = 33; i < 48; i++) {
		struct uffdio_move move = {
			.dst = (uintptr_t)to + i * PAGE, .src = (uintptr_t)from + i * PAGE,
			.len = PAGE,
		};

		mover.moved += !ioctl(mover.fd, UFFDIO_MOVE, &move);
	}
}

static void *keep_moving(void *arg)
{
	(void)arg;
	pin(1);
	while (!atomic_load(&mover.stop)) {
		move_unasked(mover.low, mover.high);
		move_unasked(mover.high, mover.low);
	}
	return NULL;
}

static bool open_mover(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_MOVE };

	mover.fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	return mover.fd >= 0 && !ioctl(mover.fd, UFFDIO_API, &api);
}

static void watch(char *map)
{
	struct uffdio_register reg = {
		.range = { .start = (uintptr_t)map, .len = HUGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	if (ioctl(mover.fd, UFFDIO_REGISTER, &reg))
		die("UFFDIO_REGISTER");
}

/*
 * UFFDIO_MOVE holds no lock that a recount waits for, and leaves clean what is clean: a
 * page may go from where the recount has not been yet to where it has been.
 */
static void test_uffd_move(void)
{
	long recounts = vm_counter("folio_order_recount"), clean, kb;
	char *own = map_region(BIG), *all = map_region(2 * BIG);
	pthread_t thread;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		return skip("two CPUs");
	if (!open_mover())
		return skip("UFFDIO_MOVE");
	pin(0);
	mover.low = all;
	mover.high = all + 2 * BIG - HUGE;
	/* Of the last folio one page is asked for. */
	fill(mover.high, 0, 33);
	clean = clean_kb(all);
	expect(clean > 0, "all pages were asked for");
	/* Between them there is much for the recount to look at. */
	if (madvise(all + HUGE, BIG, MADV_NOHUGEPAGE))
		die("MADV_NOHUGEPAGE");
	fill(all + HUGE, 0, BIG / PAGE);
	/* Else the split of the folio would put the zero page where nothing was written. */
	if (mlock2(mover.low, HUGE, MLOCK_ONFAULT) || mlock2(mover.high, HUGE, MLOCK_ONFAULT))
		die("mlock2");
	watch(mover.low);
	watch(mover.high);
	if (pthread_create(&thread, NULL, keep_moving, NULL))
		die("pthread_create");
	for (int round = 0; round < 20 && !said->bad; round++) {
		/* For smaps they are dirty, as one page of the folio was when it was split. */
		for (unsigned long i = 0; i + 64 <= COUNT; i += 64) {
			fill(own, i, i + 33);
			/* The other CPU is for the moving. */
			usleep(100);
			kb = unasked_kb();
			expect(kb >= clean, "%d: %ld kB are clean, %ld unasked", round, clean, kb);
		}
		madvise(own, BIG, MADV_DONTNEED);
	}
	atomic_store(&mover.stop, true);
	pthread_join(thread, NULL);
	expect(vm_counter("folio_order_recount") > recounts, "no recount");
	expect(mover.moved > 1000, "%ld pages were moved", mover.moved);
	close(mover.fd);
}

static void test_partial_unmap(void)
{
	char *map = map_region(BIG);

	fill(map, 0, 256);
	for (unsigned long i = 0; i < 128; i += 2)
		if (madvise(map + i * PAGE, PAGE, MADV_DONTNEED))
			die("MADV_DONTNEED");
	munmap(map + 140 * PAGE, 40 * PAGE);
	for (unsigned long i = 1; i < 128; i += 2)
		verify(map, i, i + 1, true, "kept");
	verify(map, 128, 140, true, "before the hole");
	verify(map, 180, 256, true, "behind the hole");
	for (unsigned long i = 0; i < 128; i += 2)
		verify(map, i, i + 1, false, "dropped");
	fill(map, 0, 140);
	fill(map, 180, 300);
	verify(map, 0, 140, true, "filled again");
	verify(map, 180, 300, true, "filled further");
}

static void test_swap(void)
{
	char *map = map_region(BIG);
	uint64_t entry;

	if (!swap_on(RAM) && !swap_on(LOOP))
		return skip("a RAM disk or a loop device for swap");
	fill(map, 0, 1025);
	drain_lru();
	for (int tries = 0; tries < 5; tries++)
		madvise(map, BIG, MADV_PAGEOUT);
	entry = pagemap_at(map);
	expect(entry & PM_SWAP || !(entry & PM_PRESENT), "page 0 was not swapped out");
	verify(map, 0, 1025, true, "swapped");
	verify(map, 1025, 1040, false, "swapped, not asked for");
	fill(map, 1025, 2048);
	verify(map, 0, 2048, true, "filled further");
	madvise(map, BIG, MADV_PAGEOUT);
	verify(map, 0, 2048, true, "swapped again");
	munmap(map, BIG);
	expect(swap_off_in_time(RAM) && swap_off_in_time(LOOP), "swap entries are left");
}

/* Memory that was filled from one end, and is in swap, where it is read at once. */
static char *map_swapped(unsigned long pages)
{
	char *map = map_region(BIG);

	fill(map, 0, pages);
	drain_lru();
	for (int tries = 0; tries < 5 && there(map, pages); tries++)
		madvise(map, BIG, MADV_PAGEOUT);
	expect(!there(map, pages), "%lu pages were not swapped out", there(map, pages));
	return map;
}

/* With those that read. */
static unsigned long all_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt + usage.ru_majflt;
}

#define SWAPPED	4096UL		/* pages; half of the RAM disk */

static void test_swap_in(void)
{
	unsigned long before, n;
	char *map;

	if (!swap_on(RAM))
		return skip("a RAM disk for swap");
	map = map_swapped(SWAPPED);
	before = all_faults();
	verify(map, 0, SWAPPED, true, "read");
	n = all_faults() - before;
	expect(n * 100 <= SWAPPED * 12, "%lu faults to read %lu pages", n, SWAPPED);
	expect(largest(map, SWAPPED) == MOST, "the largest folio has %lu pages",
	       largest(map, SWAPPED));
	munmap(map, BIG);

	map = map_swapped(SWAPPED);
	before = all_faults();
	for (unsigned long i = SWAPPED; i--;)
		put(map, i);
	n = all_faults() - before;
	expect(n * 100 <= SWAPPED * 12, "%lu faults to write %lu pages", n, SWAPPED);
	verify(map, 0, SWAPPED, true, "written");
	munmap(map, BIG);

	map = map_swapped(SWAPPED);
	if (madvise(map, BIG, MADV_NOHUGEPAGE))
		die("MADV_NOHUGEPAGE");
	verify(map, 0, SWAPPED, true, "MADV_NOHUGEPAGE");
	expect(largest(map, SWAPPED) == 1, "MADV_NOHUGEPAGE: a folio of %lu pages",
	       largest(map, SWAPPED));
	munmap(map, BIG);
	expect(swap_off_in_time(RAM), "swap entries are left");
}

static void test_swap_in_bound(void)
{
	int bound = 0;

	if (!swap_on(RAM))
		return skip("a RAM disk for swap");
	for (unsigned int node = 0; node < MAX_NODES; node++) {
		char *map;

		if (!bind_to(node))
			continue;
		bound++;
		map = map_swapped(SWAPPED);
		verify(map, 0, SWAPPED, true, "read");
		expect(largest(map, SWAPPED) == MOST, "the largest folio on node %u has %lu pages",
		       node, largest(map, SWAPPED));
		munmap(map, BIG);
	}
	expect(swap_off_in_time(RAM), "swap entries are left");
	if (!bound)
		skip("NUMA");
}

/* What comes back and is not used leads to no more of it. */
static void test_swap_in_strided(void)
{
	unsigned long asked = 256, found;
	char *map;

	if (!swap_on(RAM))
		return skip("a RAM disk for swap");
	map = map_swapped(SWAPPED);
	verify(map, 0, asked, true, "in order");
	for (unsigned long i = asked; i < SWAPPED; i += 16, asked++)
		verify(map, i, i + 1, true, "one in 16");
	found = there(map, SWAPPED);
	expect(found <= asked + 2 * MOST, "%lu pages for %lu", found, asked);
	verify(map, 0, SWAPPED, true, "all");
	munmap(map, BIG);
	expect(swap_off_in_time(RAM), "swap entries are left");
}

/*
 * One page of a folio in the swap cache comes back, which nobody else has in swap any more:
 * the folio is taken out of the swap cache, and is mapped by that page alone.
 */
static void test_swap_in_part(void)
{
	for (int keep = 0; keep < 2; keep++) {
		unsigned long first = 32, kept = first + (keep ? MOST - 1 : 0);
		char *map;

		if (!swap_on(LOOP))
			return skip("a loop device for swap");
		map = map_swapped(128);
		if (madvise(map + first * PAGE, (kept - first) * PAGE, MADV_DONTNEED) ||
		    madvise(map + (kept + 1) * PAGE, (first + MOST - 1 - kept) * PAGE,
			    MADV_DONTNEED))
			die("MADV_DONTNEED");
		/* What is behind it has to stay as it is. */
		verify(map, first + MOST, first + 2 * MOST, true, "beside");
		put(map, kept);
		expect(there(map + first * PAGE, MOST) == 1, "%lu pages came",
		       there(map + first * PAGE, MOST));
		verify(map, 0, first, true, "before");
		verify(map, kept, kept + 1, true, "kept");
		verify(map, first + MOST, 128, true, "behind");
		for (unsigned long i = first; i < first + MOST; i++)
			if (i != kept)
				verify(map, i, i + 1, false, "dropped");
		munmap(map, BIG);
		expect(swap_off_in_time(LOOP), "swap entries are left");
	}
}

/* Parent and child have the same pages in swap, and each gets its own content. */
static void child_reads(char *map)
{
	verify(map, 0, SWAPPED / 2, true, "child");
	for (unsigned long i = SWAPPED / 2; i < SWAPPED; i++)
		*(volatile uint64_t *)(map + i * PAGE) = 7;
}

static void test_swap_in_shared(void)
{
	char *map;

	if (!swap_on(RAM))
		return skip("a RAM disk for swap");
	map = map_swapped(SWAPPED);
	/* Some are only the parent's by now. */
	verify(map, 64, 1024, true, "parent");
	in_child(child_reads, map);
	verify(map, 0, SWAPPED, true, "parent, later");
	munmap(map, BIG);
	expect(swap_off_in_time(RAM), "swap entries are left");
}

#define FAIL		"/sys/kernel/debug/fail_make_request/"
#define RAM_FAILS	"/sys/block/ram0/make-it-fail"

/* So many reads of the RAM disk fail from now on, -1: all. */
static void fail_reads(const char *times)
{
	try_write(FAIL "verbose", "0");
	try_write(FAIL "interval", "1");
	try_write(FAIL "probability", "100");
	try_write(FAIL "times", times);
	try_write(RAM_FAILS, "1");
}

/* The block that is read fails for another page of it; what is asked for can be read. */
static void test_unreadable(void)
{
	int status;
	char *map;
	pid_t pid;

	if (access(FAIL "times", W_OK))
		mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
	if (access(FAIL "times", W_OK) || access(RAM_FAILS, W_OK))
		return skip("fail_make_request");
	if (!swap_on(RAM))
		return skip("a RAM disk for swap");
	map = map_swapped(256);
	verify(map, 0, 64, true, "before");
	fail_reads("1");
	verify(map, 64, 65, true, "a read fails");
	try_write(RAM_FAILS, "0");
	expect(there(map + 64 * PAGE, 16) == 1, "%lu pages came", there(map + 64 * PAGE, 16));

	/* Where nothing can be read the program is told, as in stock. */
	verify(map, 65, 128, true, "between");
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid) {
		/* Its own, as what is shared goes another way. */
		map = map_swapped(128);
		verify(map, 0, 64, true, "the child's");
		alarm(10);
		fail_reads("-1");
		get(map, 64);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	try_write(RAM_FAILS, "0");
	expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, "it ended with %#x", status);
	verify(map, 0, 256, true, "afterwards");
	munmap(map, BIG);
	expect(swap_off_in_time(RAM), "swap entries are left");
}

static void test_free_lazily(void)
{
	char *map = map_region(BIG);

	fill(map, 0, 33);
	if (madvise(map, 48 * PAGE, MADV_FREE))
		die("MADV_FREE");
	put(map, 40);
	put(map, 3);
	drain_lru();
	madvise(map, BIG, MADV_PAGEOUT);
	verify(map, 40, 41, true, "written after MADV_FREE");
	verify(map, 3, 4, true, "written after MADV_FREE");
}

/* kB of the mapping at @map that MADV_FREE may take away. */
static void child_frees(char *map)
{
	long kb;

	if (madvise(map, MOST * PAGE, MADV_FREE))
		die("MADV_FREE");
	drain_lru();
	kb = kb_of(map, "LazyFree");
	expect(!kb, "%ld kB of the parent's may be taken away", kb);
}

/*
 * Who has pinned a page may write to it through no PTE. Reclaim of what one process
 * frees so would ask the other's PTE whether there is anything to lose, and of what was
 * never asked for that is clean.
 */
static void test_free_after_fork(void)
{
	char *map = map_region(BIG);
	long kb;

	fill(map, 0, 33);
	expect(folio_pages_at(map + 32 * PAGE) == MOST, "the folio has %u pages",
	       folio_pages_at(map + 32 * PAGE));
	in_child(child_frees, map + 32 * PAGE);
	/* What nobody else has is freed. */
	if (madvise(map + 32 * PAGE, MOST * PAGE, MADV_FREE))
		die("MADV_FREE");
	drain_lru();
	kb = kb_of(map, "LazyFree");
	expect(kb == MOST * 4, "%ld kB may be taken away of %d", kb, MOST * 4);
}

/* The same for single pages that are dirty here: that says nothing of the other process. */
static void test_free_shared(void)
{
	char *map = map_region(BIG);

	if (madvise(map, BIG, MADV_NOHUGEPAGE))
		die("MADV_NOHUGEPAGE");
	fill(map, 0, MOST);
	in_child(child_frees, map);
	verify(map, 0, MOST, true, "after the child's MADV_FREE");
}

static void test_limit(void)
{
	char path[256];

	if (!make_cgroup("folio_order") || !enter_cgroup())
		return skip("a memory cgroup");
	cgroup_path(path, sizeof(path), "memory.max");
	write_file(path, "4M");
	/* Close to the limit, and over again; what is behind is given back. */
	for (int round = 0; round < 4; round++) {
		char *map = map_region(BIG);

		for (unsigned long i = 0; i < 2048; i++) {
			put(map, i);
			if (i >= 820 && madvise(map + (i - 820) * PAGE, PAGE, MADV_DONTNEED))
				die("MADV_DONTNEED");
		}
		verify(map, 2048 - 820, 2048, true, "at the limit");
		munmap(map, BIG);
	}
	try_write(CGROUP_ROOT "cgroup.procs", "0");
	remove_cgroup();
}

/* --- The tests ----------------------------------------------------------- */

static const struct test {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "forward", test_forward },
	{ "backward", test_backward },
	{ "steps", test_steps },
	{ "MADV_HUGEPAGE", test_madvised },
	{ "MADV_NOHUGEPAGE", test_nohugepage },
	{ "PR_SET_THP_DISABLE", test_prctl },
	{ "never", test_never },
	{ "switch", test_switch },
	{ "manual", test_manual },
	{ "edges", test_edges },
	{ "partly mapped", test_partly_mapped },
	{ "bind", test_bind },
	{ "stack", test_stack },
	{ "thread stacks", test_thread_stacks },
	{ "read first", test_read_first },
	{ "mlock", test_locked },
	{ "mlock with holes", test_locked_holes },
	{ "mlock in pieces", test_locked_pieces },
	{ "strided", test_strided },
	{ "random", test_random },
	{ "dense then strided", test_dense_then_strided },
	{ "bound", test_bound },
	{ "settled", test_settled },
	{ "bound raised", test_bound_raised },
	{ "bound of 0", test_bound_zero },
	{ "counter", test_counter },
	{ "learns", test_learns },
	{ "threads", test_threads },
	{ "races", test_races },
	{ "fork", test_fork },
	{ "fork beside recounts", test_fork_recount },
	{ "mremap", test_mremap },
	{ "UFFDIO_MOVE", test_uffd_move },
	{ "partial unmap", test_partial_unmap },
	{ "swap", test_swap },
	{ "swap in", test_swap_in },
	{ "swap in, bound", test_swap_in_bound },
	{ "swap in, then strided", test_swap_in_strided },
	{ "swap in, in part", test_swap_in_part },
	{ "swap in, shared", test_swap_in_shared },
	{ "unreadable", test_unreadable },
	{ "MADV_FREE", test_free_lazily },
	{ "MADV_FREE after fork", test_free_after_fork },
	{ "MADV_FREE of shared pages", test_free_shared },
	{ "limit", test_limit },
};

/* What the tests change, as it was. */
static struct {
	const char *path;
	char text[16];
} saved[] = {
	{ .path = THP "enabled" }, { .path = SYSFS "enabled" },
	{ .path = SYSFS "max_unasked_permille" }, { .path = SYSFS "slack_kb" },
};

static void restore(void)
{
	if (getpid() != restorer)
		return;
	for (unsigned int i = 0; i < sizeof(saved) / sizeof(saved[0]); i++)
		try_write(saved[i].path, saved[i].text);
	try_write(SYSFS "manual_sizes", "none");
}

static void save(void)
{
	for (unsigned int i = 0; i < sizeof(saved) / sizeof(saved[0]); i++) {
		char text[64], *from;

		read_file(saved[i].path, text, sizeof(text));
		from = strchr(text, '[');
		from = from ? from + 1 : text;
		snprintf(saved[i].text, sizeof(saved[i].text), "%.*s",
			 (int)strcspn(from, "]\n"), from);
	}
	/* Before that of rmap.h, so after it: writing sizes makes them manual. */
	restorer = getpid();
	atexit(restore);
	save_system();
}

static void run_test(const struct test *test)
{
	const char *complaint;
	int status;
	pid_t pid;

	memset(said, 0, sizeof(*said));
	restore_thp();
	set_controls("madvise", "none");
	write_file(SYSFS "enabled", "1");
	write_file(SYSFS "max_unasked_permille", "20");
	write_file(SYSFS "slack_kb", "128");
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid) {
		alarm(240);
		test->run();
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	expect(!status, "it ended with %#x", status);
	complaint = kernel_complaint();
	expect(!complaint, "the kernel said: %s", complaint);
	if (said->skipped && !said->bad) {
		tap_skip(said->why, "folio_order %s", test->name);
		return;
	}
	tap_result(!said->bad, "folio_order %s: %d complaints", test->name, said->bad);
	for (int i = 0; i < said->lines; i++)
		printf("#   %s\n", said->line[i]);
}

int main(int argc, char **argv)
{
	const char *only = argc > 2 ? argv[2] : NULL;

	if (access(SYSFS, R_OK))
		tap_skip_all("this kernel has no folio_order");
	if (geteuid())
		tap_skip_all("root is needed");
	said = mmap(NULL, sizeof(*said), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		    -1, 0);
	if (said == MAP_FAILED)
		die("mmap");
	save();
	watch_kernel_log();
	for (unsigned int i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (!only || !strcmp(only, tests[i].name))
			run_test(&tests[i]);
	return tap_end();
}
