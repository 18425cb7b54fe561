// SPDX-License-Identifier: GPL-2.0-only
/* The size of a folio. */
#include <sys/prctl.h>

#include "folio_order.h"

#define MAX_NODES	8U

static void test_forward(void)
{
	char *map = map_region(BIG);
	unsigned long before = faults(), n;

	fill(map, 0, COUNT);
	n = faults() - before;
	expect(n * 100 <= COUNT * 8, "%lu faults for %lu pages", n, COUNT);
	expect_largest(map, COUNT, MOST);
	/* The run before them is in another page table. */
	for (unsigned long i = 512; i < COUNT; i += 512)
		expect_folio(map, i, MOST);
	expect(there(map, COUNT) == COUNT, "%lu pages are there", there(map, COUNT));
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
	expect_largest(map, COUNT, MOST);
	verify(map, 0, COUNT, true, "backward");
}

static void test_steps(void)
{
	static const unsigned int sizes[][2] = {
		{ 0, 1 }, { 3, 1 }, { 4, 4 }, { 8, 8 }, { 16, 16 }, { 32, 16 }, { 48, 16 },
	};
	char *map = map_region(BIG);

	fill(map, 0, 64);
	for (unsigned int i = 0; i < ARRAY_SIZE(sizes); i++)
		expect_folio(map, sizes[i][0], sizes[i][1]);
}

static void test_madvised(void)
{
	char *map = map_region(2 * BIG);
	unsigned long most;

	/* No huge pages: the largest size is half of one. */
	write_text(THP "hugepages-2048kB/enabled", "never");
	must_advise(map, 2 * BIG, MADV_HUGEPAGE);
	fill(map, 0, 2 * COUNT);
	most = largest(map, 2 * COUNT);
	expect(most > MOST && most <= 256, "the largest folio has %lu pages", most);
	verify(map, 0, 2 * COUNT, true, "madvised");
}

static void test_nohugepage(void)
{
	char *map = map_region(BIG);

	must_advise(map, BIG, MADV_NOHUGEPAGE);
	fill(map, 0, 256);
	expect_largest(map, 256, 1);
}

static void test_prctl(void)
{
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("PR_SET_THP_DISABLE");
	expect_new(256, 1, "disabled");
	prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
	expect_new(256, MOST, "enabled again");
}

static void test_never(void)
{
	write_text(THP "enabled", "never");
	expect_new(256, 1, "never");
	write_text(THP "enabled", "always");
	/* A huge page does not fit. */
	{
		char *map = map_region(HUGE / 2);

		fill(map, 0, 256);
		expect_largest(map, 256, MOST);
	}
}

static void test_switch(void)
{
	write_text(SYSFS "enabled", "0");
	expect_new(256, 1, "off");
	write_text(SYSFS "enabled", "1");
	expect_new(256, MOST, "on");
	/* Memory from before the switch stays. */
	{
		char *map = map_region(BIG);

		fill(map, 0, 33);
		write_text(SYSFS "enabled", "0");
		fill(map, 33, 256);
		verify(map, 0, 256, true, "switched off");
		munmap(map, BIG);
	}
}

static void test_manual(void)
{
	char *map;

	write_text(THP "hugepages-64kB/enabled", "never");
	expect_new(256, 8, "64kB never");

	/* As in stock: the first fault gets it. */
	write_text(THP "hugepages-64kB/enabled", "always");
	map = map_region(BIG);
	put(map, 100);
	expect_folio(map, 100, 16);
	munmap(map, BIG);

	write_text(THP "hugepages-64kB/enabled", "never");
	write_text(SYSFS "max_kb", "64");
	expect_new(256, MOST, "given back");
}

static void test_max_kb(void)
{
	static const struct {
		const char *kb;
		unsigned long most;
	} good[] = { { "0", 1 }, { "32", 8 }, { "256", 64 } };
	static const char * const bad[] = { "-1", "x", "64kB", "2048" };

	for (unsigned int i = 0; i < ARRAY_SIZE(good); i++) {
		write_text(SYSFS "max_kb", good[i].kb);
		expect_new(512, good[i].most, good[i].kb);
	}
	for (unsigned int i = 0; i < ARRAY_SIZE(bad); i++)
		expect(!try_write(SYSFS "max_kb", bad[i]), "max_kb takes \"%s\"", bad[i]);
	expect(number_in(SYSFS "max_kb", "") == 256, "max_kb is %ld",
	       number_in(SYSFS "max_kb", ""));
}

static void test_edges(void)
{
	unsigned long end = 27;
	char *map = map_region(end * PAGE);
	uint64_t behind;

	fill(map, 0, end);
	expect(there(map, end) == end, "%lu pages", there(map, end));
	expect_folio(map, 16, 8);
	expect_folio(map, 24, 1);
	pagemap_read(map + end * PAGE, 1, &behind);
	expect(!(behind & PM_PRESENT), "a page behind the mapping is there");

	map = map_region(BIG);
	must_protect(map + 40 * PAGE, PAGE, PROT_NONE);
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
	expect_folio(map, 16, 8);
	expect_folio(map, 24, 1);
	verify(map, 0, 64, true, "partly mapped");
}

/* Each page of a registered region faults for itself. */
static void test_userfaultfd(void)
{
	char *map = map_region(BIG);
	int uffd = open_uffd(map, BIG, UFFD_FEATURE_PAGEFAULT_FLAG_WP);

	if (uffd < 0)
		return skip("userfaultfd's write protection");
	fill(map, 0, 256);
	expect_largest(map, 256, 1);
	close(uffd);
	fill(map, 256, 512);
	expect_folio(map, 256, MOST);
	verify(map, 0, 512, true, "userfaultfd");
}

static bool bind_to(unsigned int node)
{
	unsigned long nodes = 1UL << node;

	return !syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 8 * sizeof(nodes));
}

/* A NUMA policy does not keep large folios away. */
static void test_bind(void)
{
	char when[16];
	int bound = 0;

	for (unsigned int node = 0; node < MAX_NODES; node++) {
		if (!bind_to(node))
			continue;
		bound++;
		snprintf(when, sizeof(when), "node %u", node);
		expect_new(COUNT, MOST, when);
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
	expect_largest(map, 256, 1);
}

static void test_locked(void)
{
	char *map = map_region(1UL << 20);

	if (mlock(map, 1UL << 20))
		return skip("mlock");
	expect(there(map, 256) == 256, "%lu pages", there(map, 256));
	expect_largest(map, 256, MOST);
	verify(map, 0, 256, false, "locked");
}

/* A hole in locked memory stays a hole: a write to one page populates one page. */
static void test_locked_holes(void)
{
	int zero = open("/dev/zero", O_RDONLY), memory = open("/proc/self/mem", O_RDWR);
	unsigned long found;

	if (zero < 0 || memory < 0)
		die("open");
	/* Writes by the kernel, directly and by get_user_pages(). */
	for (int direct = 0; direct < 2; direct++) {
		char *map = map_region(1UL << 20);

		if (mlock(map, 1UL << 20))
			return skip("mlock");
		/* The page before the hole is present: a run would continue. */
		must_advise(map + MOST * PAGE, 240 * PAGE, MADV_DONTNEED_LOCKED);
		for (unsigned long i = MOST; i < 256; i += MOST)
			if (direct ? read(zero, map + i * PAGE, 8) != 8 :
			    pwrite(memory, "written", 8, (uintptr_t)map + i * PAGE) != 8)
				die("write to a hole");
		found = there(map + MOST * PAGE, 240);
		/* get_user_pages() counts as populating: one block may come. */
		expect(found < 15 + MOST, "%s: %lu pages for 15",
		       direct ? "read()" : "/proc/self/mem", found);
		munmap(map, 1UL << 20);
	}
	close(zero);
	close(memory);
}

/* mprotect() populates a locked page of a VMA with holes beside it. */
static void test_locked_pieces(void)
{
	char *map = map_region(1UL << 20);

	if (mlock(map, 1UL << 20))
		return skip("mlock");
	must_advise(map, 1UL << 20, MADV_DONTNEED_LOCKED);
	for (unsigned long i = 0; i < 256; i += MOST)
		if (mprotect(map + i * PAGE, PAGE, PROT_READ) ||
		    mprotect(map + i * PAGE, PAGE, PROT_READ | PROT_WRITE))
			die("mprotect");
	expect(there(map, 256) == 16, "%lu pages for 16", there(map, 256));
}

const struct test size_tests[] = {
	{ "forward", test_forward },
	{ "backward", test_backward },
	{ "steps", test_steps },
	{ "MADV_HUGEPAGE", test_madvised },
	{ "MADV_NOHUGEPAGE", test_nohugepage },
	{ "PR_SET_THP_DISABLE", test_prctl },
	{ "never", test_never },
	{ "switch", test_switch },
	{ "manual", test_manual },
	{ "max_kb", test_max_kb },
	{ "edges", test_edges },
	{ "partly mapped", test_partly_mapped },
	{ "userfaultfd", test_userfaultfd },
	{ "bind", test_bind },
	{ "stack", test_stack },
	{ "thread stacks", test_thread_stacks },
	{ "read first", test_read_first },
	{ "mlock", test_locked },
	{ "mlock with holes", test_locked_holes },
	{ "mlock in pieces", test_locked_pieces },
	{}
};
