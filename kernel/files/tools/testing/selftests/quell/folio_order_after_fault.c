// SPDX-License-Identifier: GPL-2.0-only
/* Large folios after the fault, and how memory comes back. */
#include <sys/syscall.h>
#include <sys/wait.h>

#include "folio_order.h"

/* --- Large folios after the fault --------------------------------------- */

static void in_child(void (*func)(char *map), char *map)
{
	int status;
	pid_t pid = must_fork();

	if (!pid) {
		func(map);
		_exit(0);
	}
	status = must_wait(pid);
	expect(!status, "the child ended with %#x", status);
}

static void child_writes(char *map)
{
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
	/* Repeated, so that leaks add up. */
	for (int i = 0; i < 40; i++) {
		char *more = map_region(BIG);

		fill(more, 0, 33);
		in_child(child_writes, more);
		fill(more, 33, 64);
		verify(more, 0, 64, true, "parent, again");
		munmap(more, BIG);
	}
}

static void test_mremap(void)
{
	char *map = map_region(BIG), *to = map_region(BIG);

	fill(map, 0, 65);
	/* The distance is no multiple of a folio. */
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
}

static void test_partial_unmap(void)
{
	char *map = map_region(BIG);

	fill(map, 0, 256);
	for (unsigned long i = 0; i < 128; i += 2)
		must_advise(map + i * PAGE, PAGE, MADV_DONTNEED);
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

static void test_free_lazily(void)
{
	char *map = map_region(BIG);

	fill(map, 0, 33);
	must_advise(map, 48 * PAGE, MADV_FREE);
	put(map, 40);
	put(map, 3);
	drain_lru();
	madvise(map, BIG, MADV_PAGEOUT);
	verify(map, 40, 41, true, "written after MADV_FREE");
	verify(map, 3, 4, true, "written after MADV_FREE");
}

static void test_limit(void)
{
	char path[256], *map;
	long before;
	bool swap;

	if (!make_cgroup("folio_order"))
		return skip("a memory cgroup");
	/* Before: the cgroup is not charged for its swap. */
	swap = swap_on(RAM) || swap_on(LOOP);
	if (!enter_cgroup())
		die("the memory cgroup");
	cgroup_path(path, sizeof(path), "memory.max");
	write_text(path, "4M");
	/* Close to the limit: pages behind are given back. */
	for (int round = 0; round < 4; round++) {
		map = map_region(BIG);
		for (unsigned long i = 0; i < 2048; i++) {
			put(map, i);
			if (i >= 820 && madvise(map + (i - 820) * PAGE, PAGE, MADV_DONTNEED))
				die("MADV_DONTNEED");
		}
		verify(map, 2048 - 820, 2048, true, "close to the limit");
		expect_largest(map, 2048, MOST);
		munmap(map, BIG);
	}
	/* At the limit: reclaim makes room for a single page, not for a block. */
	if (swap) {
		before = vm_counter("folio_order_pressure");
		map = map_region(BIG);
		fill(map, 0, 2048);
		expect(vm_counter("folio_order_pressure") > before, "no single page at the limit");
		verify(map, 0, 2048, true, "at the limit");
		munmap(map, BIG);
		expect(swap_off_in_time(RAM) && swap_off_in_time(LOOP), "swap entries are left");
	}
	leave_cgroup();
}

/* --- How memory comes back ------------------------------------------------ */

/* Memory of the cgroup in kB, once it is at most @most or after 4 s. */
static long in_use_kb(long most)
{
	char path[256];
	long kb;

	cgroup_path(path, sizeof(path), "memory.current");
	for (int tries = 0;; tries++) {
		kb = number_in(path, "") / 1024;
		if (kb <= most || tries == 40)
			return kb;
		usleep(100000);
	}
}

static void test_give_back(void)
{
	long before = vm_counter("folio_order_split"), empty, kb;
	char *map;

	if (!make_cgroup("folio_order") || !enter_cgroup())
		return skip("a memory cgroup");
	map = map_region(BIG);
	put(map, COUNT - 1);
	empty = in_use_kb(0);
	fill(map, 0, COUNT);
	for (unsigned long i = 0; i < COUNT; i += 16)
		must_advise(map + (i + 1) * PAGE, 15 * PAGE, MADV_DONTNEED);
	kb = in_use_kb(empty + BIG / 1024 / 16 * 5 / 4);
	expect(kb <= empty + (long)(BIG / 1024 / 16 * 5 / 4), "from %ld to %ld kB", empty, kb);
	expect(vm_counter("folio_order_split") > before, "no folio was split");
	for (unsigned long i = 0; i < COUNT; i += 16)
		verify(map, i, i + 1, true, "given back");
	munmap(map, BIG);
	leave_cgroup();
}

static void child_nothing(char *map)
{
	verify(map, 0, COUNT, true, "child");
}

/* After the child's end a write copies nothing. */
static void test_reuse(void)
{
	long reused = vm_counter("folio_order_reuse");
	char *map = map_region(BIG);
	uint64_t before[64], after[64];
	unsigned long same = 0;

	fill(map, 0, COUNT);
	in_child(child_nothing, map);
	pagemap_read(map + 512 * PAGE, 64, before);
	for (unsigned long i = 0; i < COUNT; i += 16)
		for (unsigned long k = 0; k < 15; k++)
			*(volatile uint64_t *)(map + (i + k) * PAGE + 8) = 1;
	pagemap_read(map + 512 * PAGE, 64, after);
	for (unsigned int i = 0; i < 64; i++)
		same += PAGEMAP_PFN(before[i]) == PAGEMAP_PFN(after[i]);
	expect(same == 64, "%lu of 64 pages are where they were", same);
	/* Linux has reused them since 6.15, without a counter. */
	if (reused >= 0)
		expect(vm_counter("folio_order_reuse") - reused >= (long)(COUNT - 256) / 16 * 15,
		       "%ld pages were reused", vm_counter("folio_order_reuse") - reused);
	for (unsigned long i = 0; i < COUNT; i++)
		expect(get(map, i) == mark(i), "page %lu is wrong", i);
	munmap(map, BIG);
}

/* While the child lives, a write of the parent copies. */
static void test_no_reuse(void)
{
	char *map = map_region(BIG);
	int status, shared_pipe[2];
	pid_t pid;

	if (pipe(shared_pipe))
		die("pipe");
	fill(map, 0, 512);
	pid = must_fork();
	if (!pid) {
		/* The child maps fewer pages than the parent. */
		munmap(map + 512 * PAGE, BIG - 512 * PAGE);
		for (unsigned long i = 15; i < 512; i += 16)
			must_advise(map + i * PAGE, PAGE, MADV_DONTNEED);
		if (read(shared_pipe[0], &status, 1) != 1)
			die("read");
		for (unsigned long i = 0; i < 512; i++)
			if (i % 16 != 15)
				verify(map, i, i + 1, true, "child, after the parent wrote");
		_exit(said->bad ? 1 : 0);
	}
	usleep(50000);
	for (unsigned long i = 0; i < 512; i++)
		*(volatile uint64_t *)(map + i * PAGE) = 5;
	if (write(shared_pipe[1], "x", 1) != 1)
		die("write");
	status = must_wait(pid);
	expect(!status, "the child ended with %#x", status);
	for (unsigned long i = 0; i < 512; i++)
		expect(get(map, i) == 5, "page %lu is %#lx", i, (unsigned long)get(map, i));
	munmap(map, BIG);
}

/* Fills 2048 pages, zeroes all but each 16th, and asks for them to be written to swap. */
static char *map_zeroes_and_page_out(void)
{
	char *map = map_region(BIG);

	fill(map, 0, 2048);
	for (unsigned long i = 0; i < 2048; i++)
		if (i % 16)
			memset(map + i * PAGE, 0, PAGE);
	drain_lru();
	for (int tries = 0; tries < 5; tries++)
		madvise(map, BIG, MADV_PAGEOUT);
	return map;
}

/* Zeroed pages of a large folio do not go to swap. */
static void test_underused(void)
{
	long before = vm_counter("folio_order_underused"), out = vm_counter("pswpout");
	char *map;

	if (!swap_on(RAM) && !swap_on(LOOP))
		return skip("a RAM disk or a loop device for swap");
	map = map_zeroes_and_page_out();
	expect(vm_counter("folio_order_underused") > before, "no folio was split");
	expect(vm_counter("pswpout") - out <= 512, "%ld pages were written for 128",
	       vm_counter("pswpout") - out);
	for (unsigned long i = 0; i < 2048; i++)
		verify(map, i, i + 1, !(i % 16), "underused");
	fill(map, 0, 2048);
	verify(map, 0, 2048, true, "filled again");
	munmap(map, BIG);
	expect(swap_off_in_time(RAM) && swap_off_in_time(LOOP), "swap entries are left");
}

/* A size of the administrator's goes to swap as it is. */
static void test_underused_manual(void)
{
	long before;
	char *map;

	if (!swap_on(RAM) && !swap_on(LOOP))
		return skip("a RAM disk or a loop device for swap");
	write_text(THP "hugepages-64kB/enabled", "always");
	before = vm_counter("folio_order_underused");
	map = map_zeroes_and_page_out();
	expect(vm_counter("folio_order_underused") == before, "folios were split");
	munmap(map, BIG);
	write_text(THP "hugepages-64kB/enabled", "never");
	write_text(SYSFS "max_kb", "64");
	expect(swap_off_in_time(RAM) && swap_off_in_time(LOOP), "swap entries are left");
}

/* move_pages() puts each page where it is told, as single pages, also in a read-only mapping. */
static void test_move_pages(void)
{
	enum { MOVED = 256 };
	void *pages[MOVED];
	int nodes[MOVED], status[MOVED], there[MOVED];

	if (!two_nodes())
		return skip("a second node");
	/* All pages, every other one, every third, every fourth. */
	for (int step = 1; step <= 4; step++) {
		char *map = map_region(BIG);
		int wrong = 0;

		fill(map, 0, MOVED);
		memset(map + MOVED / 2 * PAGE, 0, MOVED / 2 * PAGE);
		if (step == 4 && mprotect(map, BIG, PROT_READ))
			die("mprotect");
		for (int i = 0; i < MOVED; i++) {
			pages[i] = map + i * PAGE;
			nodes[i] = i % step == 0;
		}
		if (syscall(SYS_move_pages, 0, (long)MOVED, pages, nodes, status, 0) ||
		    syscall(SYS_move_pages, 0, (long)MOVED, pages, NULL, there, 0))
			die("move_pages");
		for (int i = 0; i < MOVED; i++)
			wrong += status[i] != nodes[i] || there[i] != nodes[i];
		expect(!wrong, "%d of %d pages in step %d", wrong, MOVED, step);
		verify(map, 0, MOVED / 2, true, "moved");
		verify(map, MOVED / 2, MOVED, false, "moved");
		munmap(map, BIG);
	}
}

const struct test after_fault_tests[] = {
	{ "fork", test_fork },
	{ "mremap", test_mremap },
	{ "partial unmap", test_partial_unmap },
	{ "swap", test_swap },
	{ "MADV_FREE", test_free_lazily },
	{ "limit", test_limit },
	{ "give back", test_give_back },
	{ "reuse after fork", test_reuse },
	{ "no reuse beside a child", test_no_reuse },
	{ "underused", test_underused },
	{ "underused, manual", test_underused_manual },
	{ "move_pages", test_move_pages },
	{}
};
