// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faults on anonymous memory get large folios beside used memory only, and unused memory
 * comes back. Attacks the policy, the splits and the reuse of mm/folio_order.c. Usage:
 *
 *	folio_order [DIR [TEST]]
 *
 * DIR is ignored. Needs root; some tests need swap or a memory cgroup. Settings are
 * restored, but mTHP sizes that were set by hand are left to folio_order again.
 */
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "pages.h"
#include "system.h"

#define SYSFS		QUELL_SYSFS "folio_order/"
#define BIG		(32UL << 20)	/* of most regions */
#define COUNT		(BIG / PAGE)
#define MOST		16UL		/* pages of a folio without advice */
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

/* Private anonymous memory, aligned to 2 MB, without neighbors. */
static char *map_region(unsigned long bytes)
{
	char *at = reserve(bytes + 2 * HUGE, HUGE) + HUGE;

	return must_map(at, bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1);
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

/* Pages hold mark(), or 0 if not @written. */
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

/* Returns the pages of the largest folio. */
static unsigned long fill_new(unsigned long pages)
{
	char *map = map_region(BIG);
	unsigned long most;

	fill(map, 0, pages);
	most = largest(map, pages);
	munmap(map, BIG);
	return most;
}

/* --- The size of a folio -------------------------------------------------- */

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
	for (unsigned int i = 0; i < ARRAY_SIZE(sizes); i++)
		expect(folio_pages_at(map + sizes[i][0] * PAGE) == sizes[i][1],
		       "page %u is in a folio of %u pages, not %u", sizes[i][0],
		       folio_pages_at(map + sizes[i][0] * PAGE), sizes[i][1]);
}

static void test_madvised(void)
{
	char *map = map_region(2 * BIG);
	unsigned long most;

	/* No huge pages: the largest size is half of one. */
	write_text(THP "hugepages-2048kB/enabled", "never");
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

	write_text(THP "enabled", "never");
	most = fill_new(256);
	expect(most == 1, "never: a folio of %lu pages", most);
	write_text(THP "enabled", "always");
	/* A huge page does not fit. */
	{
		char *map = map_region(HUGE / 2);

		fill(map, 0, 256);
		expect(largest(map, 256) == MOST, "always: %lu pages", largest(map, 256));
	}
}

static void test_switch(void)
{
	unsigned long most;

	write_text(SYSFS "enabled", "0");
	most = fill_new(256);
	expect(most == 1, "off: a folio of %lu pages", most);
	write_text(SYSFS "enabled", "1");
	most = fill_new(256);
	expect(most == MOST, "on: %lu pages", most);
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
	unsigned long most;
	char *map;

	write_text(THP "hugepages-64kB/enabled", "never");
	most = fill_new(256);
	expect(most == 8, "64kB never: the largest has %lu pages", most);

	/* As in stock: the first fault gets it. */
	write_text(THP "hugepages-64kB/enabled", "always");
	map = map_region(BIG);
	put(map, 100);
	expect(folio_pages_at(map + 100 * PAGE) == 16, "64kB always: %u pages",
	       folio_pages_at(map + 100 * PAGE));
	munmap(map, BIG);

	write_text(THP "hugepages-64kB/enabled", "never");
	write_text(SYSFS "max_kb", "64");
	most = fill_new(256);
	expect(most == MOST, "given back: %lu pages", most);
}

static void test_max_kb(void)
{
	static const struct {
		const char *kb;
		unsigned long most;
	} good[] = { { "0", 1 }, { "32", 8 }, { "256", 64 } };
	static const char * const bad[] = { "-1", "x", "64kB", "2048" };

	for (unsigned int i = 0; i < ARRAY_SIZE(good); i++) {
		unsigned long most;

		write_text(SYSFS "max_kb", good[i].kb);
		most = fill_new(512);
		expect(most == good[i].most, "%s: a folio of %lu pages", good[i].kb, most);
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
	expect(folio_pages_at(map + 16 * PAGE) == 8, "page 16: a folio of %u pages",
	       folio_pages_at(map + 16 * PAGE));
	expect(folio_pages_at(map + 24 * PAGE) == 1, "page 24: a folio of %u pages",
	       folio_pages_at(map + 24 * PAGE));
	pagemap_read(map + end * PAGE, 1, &behind);
	expect(!(behind & PM_PRESENT), "a page behind the mapping is there");

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

/* A NUMA policy does not keep large folios away. */
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
		if (madvise(map + MOST * PAGE, 240 * PAGE, MADV_DONTNEED_LOCKED))
			die("MADV_DONTNEED_LOCKED");
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

/* Unused blocks lower the score of a VMA, full ones raise it. */
static void test_learns(void)
{
	long unused = vm_counter("folio_order_unused");
	char *map = map_region(BIG);
	unsigned long asked = 0, found;

	/* The fifth page has a run of four beside it. */
	for (unsigned long i = 0; i + 64 <= COUNT / 2; i += 64, asked += 5)
		fill(map, i, i + 5);
	found = there(map, COUNT);
	expect(vm_counter("folio_order_unused") > unused, "nothing was found unused");
	expect(found * 100 <= asked * 125, "%lu pages for %lu", found, asked);
	fill(map, COUNT / 2, COUNT);
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

/* Threads fault in the same blocks and next to each other. */
static void test_threads(void)
{
	for (int round = 0; round < 8; round++) {
		pthread_t thread[4];

		two_map = map_region(BIG);
		for (unsigned long i = 0; i < 4; i++)
			start_thread(&thread[i], fill_odd, (void *)(i % 2 * 32));
		for (int i = 0; i < 4; i++)
			pthread_join(thread[i], NULL);
		verify(two_map, 0, COUNT, true, "threads");
		munmap(two_map, BIG);
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

/* Both threads fault on one page: one of two allocated folios is dropped. */
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
			start_thread(&thread[i], fill_at_once, (void *)i);
		for (int i = 0; i < 2; i++)
			pthread_join(thread[i], NULL);
		verify(two_map, 0, COUNT, true, "races");
		munmap(two_map, BIG);
		most = fill_new(256);
		expect(most == MOST, "%d: a folio of %lu pages", round, most);
	}
}

/* --- Large folios after the fault --------------------------------------- */

static void in_child(void (*func)(char *map), char *map)
{
	int status;
	pid_t pid = must_fork();

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

static void test_limit(void)
{
	char path[256];

	if (!make_cgroup("folio_order") || !enter_cgroup())
		return skip("a memory cgroup");
	cgroup_path(path, sizeof(path), "memory.max");
	write_text(path, "4M");
	/* Close to the limit: pages behind are given back. */
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
		if (madvise(map + (i + 1) * PAGE, 15 * PAGE, MADV_DONTNEED))
			die("MADV_DONTNEED");
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
			if (madvise(map + i * PAGE, PAGE, MADV_DONTNEED))
				die("MADV_DONTNEED");
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
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	expect(!status, "the child ended with %#x", status);
	for (unsigned long i = 0; i < 512; i++)
		expect(get(map, i) == 5, "page %lu is %#lx", i, (unsigned long)get(map, i));
	munmap(map, BIG);
}

/* Zeroed pages of a large folio do not go to swap. */
static void test_underused(void)
{
	long before = vm_counter("folio_order_underused"), out = vm_counter("pswpout");
	char *map;

	if (!swap_on(RAM) && !swap_on(LOOP))
		return skip("a RAM disk or a loop device for swap");
	map = map_region(BIG);
	fill(map, 0, 2048);
	for (unsigned long i = 0; i < 2048; i++)
		if (i % 16)
			memset(map + i * PAGE, 0, PAGE);
	drain_lru();
	for (int tries = 0; tries < 5; tries++)
		madvise(map, BIG, MADV_PAGEOUT);
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
	{ "max_kb", test_max_kb },
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
	{ "learns", test_learns },
	{ "threads", test_threads },
	{ "races", test_races },
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
};

static void run_test(const struct test *test)
{
	const char *complaint;
	int status;
	pid_t pid;

	memset(said, 0, sizeof(*said));
	restore_settings();
	write_text(THP "enabled", "madvise");
	write_text(SYSFS "enabled", "1");
	write_text(SYSFS "max_kb", "64");
	pid = must_fork();
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
		test_skip(said->why, "folio_order %s", test->name);
		return;
	}
	test_result(!said->bad, "folio_order %s: %d complaints", test->name, said->bad);
	for (int i = 0; i < said->lines; i++)
		ksft_print_msg("  %s\n", said->line[i]);
}

int main(int argc, char **argv)
{
	const char *only = argc > 2 ? argv[2] : NULL;

	ksft_print_header();
	if (access(SYSFS, R_OK))
		ksft_exit_skip("this kernel has no folio_order\n");
	if (geteuid())
		ksft_exit_skip("root is needed\n");
	said = map_shared(sizeof(*said));
	save_setting(THP "enabled");
	save_setting(SYSFS "enabled");
	save_system();
	watch_kernel_log();
	for (unsigned int i = 0; i < ARRAY_SIZE(tests); i++)
		if (!only || !strcmp(only, tests[i].name))
			run_test(&tests[i]);
	test_end();
}
