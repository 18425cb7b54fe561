// SPDX-License-Identifier: GPL-2.0-only
/*
 * A lazily migrated page never shows a CPU a frame or content that it must not see. Attacks
 * R1 to R3 of mm/luf.c in migration. Usage:
 *
 *	luf_migrate DIR [ROUNDS]
 *
 * DIR is on a file system that lazy unmap flush supports; needs two NUMA nodes. A reader
 * spins over pages that are hot in its TLB. The main thread moves them by move_pages(), so
 * the reader uses stale entries. Then it ends that, with nothing else happening in the mm:
 *
 *	release		R1: the old frames are freed and refilled with a pattern
 *	write		R3: the file is opened for writing and written
 *	reuse		R3: written in place after fork, without the child
 *	cow		R3: copied by a write after fork, beside the child
 *	force		R3: written through /proc/self/mem, against the PTEs
 *	unmap		R3: the address range is replaced
 *
 * The last tests attack R2: pages that move are write protected with a later flush, while
 * they are written to. No write may be lost.
 */
#include <sys/wait.h>

#include "luf_reader.h"

static char path[4096];
static int rounds = 20;

/* Returns the rise of luf_migrate. */
static long move(volatile void *map, int node)
{
	long before = vm_counter("luf_migrate");

	move_to_node(map, PAGES, node);
	return vm_counter("luf_migrate") - before;
}

static void *map_old_file(void)
{
	fill_file(path, OLD);
	return map_file(path, MAP_SHARED);
}

static void by_fork(void)
{
	pid_t child = must_fork();

	if (!child)
		_exit(0);
	must_wait(child);
}

static void *map_forked(void)
{
	void *map = map_filled(OLD);

	by_fork();
	return map;
}

static pid_t sleeper;

static void *map_shared_with_child(void)
{
	void *map = map_filled(OLD);

	sleeper = must_fork();
	if (!sleeper) {
		pause();
		_exit(0);
	}
	return map;
}

static void *map_protected(void)
{
	void *map = map_filled(OLD);

	must_protect(map, SIZE, PROT_READ);
	return map;
}

static void do_release(struct reader *r __always_unused)
{
	drain_luf();
	poison_frames(MAP_POPULATE);
}

static void do_write_file(struct reader *r __always_unused)
{
	int fd = must_open(path, O_RDWR);

	put_new(fd);
	close(fd);
}

static void do_write(struct reader *r)
{
	for (int i = 0; i < PAGES; i++)
		r->map[i * WORDS] = NEW;
}

static void do_force(struct reader *r)
{
	int fd = must_open("/proc/self/mem", O_RDWR);
	uint64_t value = NEW;

	for (int i = 0; i < PAGES; i++)
		if (pwrite(fd, &value, sizeof(value),
			   (off_t)(r->map + i * WORDS)) != sizeof(value))
			die("/proc/self/mem");
	close(fd);
}

static void do_replace(struct reader *r)
{
	static uint64_t page[SIZE / 8];
	int fd;

	for (unsigned long i = 0; i < SIZE / 8; i++)
		page[i] = NEW;
	fd = memfd_create("luf_migrate", 0);
	if (fd < 0 || write(fd, page, SIZE) != (ssize_t)SIZE)
		die("memfd");
	must_map((void *)r->map, SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, fd);
	close(fd);
}

static const struct test {
	const char *name;
	void *(*map)(void);
	void (*change)(struct reader *r);
	bool old_is_fine;
} tests[] = {
	{ "release",		map_old_file,		do_release,	true },
	{ "release anon",	map_forked,		do_release,	true },
	{ "write",		map_old_file,		do_write_file,	false },
	{ "reuse",		map_forked,		do_write,	false },
	{ "cow",		map_shared_with_child,	do_write,	false },
	{ "force",		map_protected,		do_force,	false },
	{ "unmap",		map_forked,		do_replace,	false },
};

static void run(const struct test *t)
{
	unsigned long reads = 0, stale = 0, wrong = 0;
	long moved = 0;

	for (int i = 0; i < rounds; i++) {
		struct reader r = { 0 };

		r.map = t->map();
		move(r.map, 0);
		reader_start(&r);
		moved += move(r.map, 1);
		t->change(&r);
		reader_look(&r, t->old_is_fine);
		if (sleeper) {
			kill_and_wait(sleeper);
			sleeper = 0;
		}
		reads += atomic_load(&r.reads);
		stale += atomic_load(&r.stale);
		wrong += atomic_load(&r.wrong);
		munmap((void *)r.map, SIZE);
	}
	test_result(!stale && !wrong && moved >= rounds * PAGES / 2,
		    "luf_migrate %s: %lu reads, %lu stale, %lu wrong, %ld of %d pages moved lazily",
		    t->name, reads, stale, wrong, moved, rounds * (int)PAGES);
}

/* R2: the counters are protected first, and the pages behind them delay the flush. */
#define BEHIND	4096

static volatile uint64_t *counters;
static uint64_t counted[PAGES];
static atomic_bool counting;
static int uffd;

static void *count_all(void *arg __always_unused)
{
	pin(1);
	while (atomic_load(&counting))
		for (int i = 0; i < PAGES; i++) {
			counters[i * WORDS]++;
			counted[i]++;
		}
	return NULL;
}

static void *move_all(void *arg __always_unused)
{
	for (int node = 1; atomic_load(&counting); node = !node)
		move(counters, node);
	return NULL;
}

/* Compaction moves pages while fork() holds the mmap lock. */
static void *compact_all(void *arg __always_unused)
{
	while (atomic_load(&counting)) {
		move(counters, 1);
		move(counters, 0);
		for (int i = 0; i < 3; i++)
			write_text("/sys/devices/system/node/node0/compact", "1");
	}
	return NULL;
}

static void by_userfaultfd(void)
{
	if (!uffd_protect(uffd, counters, (PAGES + BEHIND) * PAGE, true))
		die("UFFDIO_WRITEPROTECT");
}

/* Asynchronous: a write fault lifts the protection itself. */
static bool register_userfaultfd(void)
{
	uffd = open_uffd(counters, (PAGES + BEHIND) * PAGE, UFFD_FEATURE_WP_ASYNC);
	return uffd >= 0;
}

static void lose_writes(const char *name, void (*protect)(void),
			void *(*mover_thread)(void *arg), int times)
{
	pthread_t writer, mover;
	long moved;
	int lost = 0;

	counters = map_private((PAGES + BEHIND) * PAGE);
	madvise((void *)counters, (PAGES + BEHIND) * PAGE, MADV_NOHUGEPAGE);
	for (int i = 0; i < PAGES + BEHIND; i++)
		counters[i * WORDS] = 0;
	memset(counted, 0, sizeof(counted));
	if (protect == by_userfaultfd && !register_userfaultfd()) {
		test_skip("CONFIG_PTE_MARKER_UFFD_WP", "luf_migrate lost writes, %s",
			  name);
		munmap((void *)counters, (PAGES + BEHIND) * PAGE);
		return;
	}

	moved = vm_counter("pgmigrate_success");
	atomic_store(&counting, true);
	start_thread(&writer, count_all, NULL);
	start_thread(&mover, mover_thread, NULL);
	for (int i = 0; i < times; i++)
		protect();
	atomic_store(&counting, false);
	pthread_join(writer, NULL);
	pthread_join(mover, NULL);
	moved = vm_counter("pgmigrate_success") - moved;
	for (int i = 0; i < PAGES; i++)
		lost += counters[i * WORDS] != counted[i];
	test_result(!lost && moved > 0,
		    "luf_migrate lost writes, %s: in %d of %d pages, %lu writes, protected %d times, moved %ld pages",
		    name, lost, (int)PAGES, (unsigned long)counted[0] * PAGES,
		    times, moved);
	munmap((void *)counters, (PAGES + BEHIND) * PAGE);
	if (protect == by_userfaultfd)
		close(uffd);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: luf_migrate DIR [ROUNDS]\n");
		return 2;
	}
	if (argc > 2)
		rounds = atoi(argv[2]);
	ksft_print_header();
	need_luf();
	if (!two_nodes())
		ksft_exit_skip("two NUMA nodes are needed\n");

	snprintf(path, sizeof(path), "%s/luf_migrate", argv[1]);
	pin(0);
	for (unsigned long i = 0; i < ARRAY_SIZE(tests); i++)
		run(&tests[i]);
	lose_writes("userfaultfd", by_userfaultfd, move_all, rounds * 25);
	lose_writes("fork", by_fork, compact_all, rounds * 25);
	unlink(path);
	test_end();
}
