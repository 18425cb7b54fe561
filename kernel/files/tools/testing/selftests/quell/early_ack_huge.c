// SPDX-License-Identifier: GPL-2.0-only
/* Page tables that hugetlb shares: no early acknowledgment. */
#include "early_ack.h"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB	(21U << 26)
#endif

#define HUGE_POOL	"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
#define HUGE_PAGES	4		/* touched in each mapping */
#define TABLE		(512 * HUGE)	/* span of a table of huge pages */

struct shared {
	char *mine, *other;		/* mappings of one file */
	int fd;
	atomic_ulong gone;		/* round in which @mine was unmapped, or 0 */
	atomic_ulong passes, stale;
	atomic_int next;
	atomic_bool stop;
};

/* A page that only @other has touched is present in @mine: they share a table. */
static bool is_shared(const struct shared *s)
{
	return pagemap_at(s->mine + (HUGE_PAGES - 1) * HUGE) & PM_PRESENT;
}

static void touch_huge(char *map, int pages)
{
	for (int i = 0; i < pages; i++)
		(void)*(volatile char *)(map + i * HUGE);
}

static void map_huge(const struct shared *s, char *at)
{
	must_map(at, TABLE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, s->fd);
}

static void *watch_huge(void *arg)
{
	struct shared *s = arg;
	sigjmp_buf jump;

	pin(cpus[1 + atomic_fetch_add(&s->next, 1)]);
	sigsetjmp(jump, 1);
	jump_on_fault(&jump);
	while (!atomic_load(&s->stop)) {
		unsigned long gone = atomic_load(&s->gone);

		atomic_fetch_add(&s->passes, 1);
		touch_huge(s->mine, HUGE_PAGES - 1);
		/* Unmapped before and after the access. */
		if (gone && gone == atomic_load(&s->gone))
			atomic_fetch_add(&s->stale, 1);
	}
	jump_on_fault(NULL);
	return NULL;
}

/* Longer than let_pass(): a watcher that sleeps in a fault gets no interrupt. */
static void wait_for_pass(struct shared *s)
{
	unsigned long until = atomic_load(&s->passes) + 2 * (nr_cpus - 1);

	for (int i = 0; i < 1000 * PATIENCE && atomic_load(&s->passes) < until; i++)
		;
}

static void lose_huge(struct shared *s, bool unmap, bool early, unsigned long rounds)
{
	/*
	 * A short range where flushes are expected. With page table isolation and without
	 * PCID any interrupt drops a watcher's entries. It faults, sleeps until the table
	 * is done, and is sent no flush.
	 */
	size_t size = early ? HUGE_PAGES * HUGE : TABLE;

	for (unsigned long n = 1; n <= rounds; n++) {
		touch_huge(s->mine, HUGE_PAGES - 1);
		wait_for_pass(s);
		if (!unmap) {
			must_advise(s->mine, size, MADV_DONTNEED);
			continue;
		}
		if (munmap(s->mine, TABLE))
			die("munmap");
		atomic_store(&s->gone, n);
		wait_for_pass(s);
		atomic_store(&s->gone, 0);
		map_huge(s, s->mine);
	}
}

/* @early: early acknowledgments are expected. */
static void run_huge(struct shared *s, const char *what, bool unmap, bool early,
		     unsigned long rounds)
{
	pthread_t watcher[MAX_CPUS];
	long acked;

	atomic_store(&s->stop, false);
	atomic_store(&s->stale, 0);
	atomic_store(&s->next, 0);
	for (int i = 1; i < nr_cpus; i++)
		start_thread(&watcher[i], watch_huge, s);
	acked = vm_counter("early_ack_acked");
	lose_huge(s, unmap, early, rounds);
	acked = vm_counter("early_ack_acked") - acked;
	atomic_store(&s->stop, true);
	for (int i = 1; i < nr_cpus; i++)
		pthread_join(watcher[i], NULL);
	/* A watcher is absent at times. */
	test_result(!atomic_load(&s->stale) && early == (acked > (long)rounds / 4),
		    "early_ack %s: %lu rounds, %lu stale, %ld acknowledged early", what, rounds,
		    atomic_load(&s->stale), acked);
}

void run_shared(unsigned long rounds, bool early)
{
	static const char name[] = "early_ack of a shared page table of hugetlb";
	struct shared s = { 0 };
	char *space, more[32];
	long wanted;

	s.fd = memfd_create("huge", MFD_HUGETLB | MFD_HUGE_2MB | MFD_CLOEXEC);
	if (s.fd < 0 || access(HUGE_POOL, W_OK))
		return test_skip("hugetlb, and root", name);
	save_setting(HUGE_POOL);
	wanted = number_in(HUGE_POOL, "") + HUGE_PAGES;
	snprintf(more, sizeof(more), "%ld", wanted);
	write_text(HUGE_POOL, more);
	if (number_in(HUGE_POOL, "") < wanted)
		return test_skip("memory for huge pages", name);

	/* Its flushes are acknowledged early, more than one in four rounds on a slow host. */
	save_setting(NUMA_BALANCING);
	try_write(NUMA_BALANCING, "0");
	space = reserve(2 * TABLE, TABLE);
	if (ftruncate(s.fd, TABLE))
		die("a file of huge pages");
	s.mine = space;
	s.other = s.mine + TABLE;
	pin(cpus[0]);
	map_huge(&s, s.mine);
	if (early)
		run_huge(&s, "of a page table of its own", false, true, rounds);
	map_huge(&s, s.other);
	touch_huge(s.mine, 1);
	touch_huge(s.other, HUGE_PAGES);
	if (is_shared(&s)) {
		run_huge(&s, "dontneed of a shared page table", false, false, rounds);
		run_huge(&s, "unmap of a shared page table", true, false, rounds);
	} else {
		test_skip("CONFIG_HUGETLB_PMD_PAGE_TABLE_SHARING", name);
	}
	munmap(space, 2 * TABLE);
	close(s.fd);
}
