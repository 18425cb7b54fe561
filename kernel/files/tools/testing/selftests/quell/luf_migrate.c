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
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "util.h"

#define OLD	0x01d01d01d01d01d0UL
#define NEW	0x4e3e4e3e4e3e4e3eUL
#define POISON	0xdeaddeaddeaddeadUL
#define LOOKS	2000
#define REFILL	(32UL << 20)
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC	0x8000
#endif
#define MOVE_ALL	4		/* MPOL_MF_MOVE_ALL */

struct reader {
	pthread_t thread;
	volatile uint64_t *map;
	atomic_bool hot, changed, stop;
	atomic_ulong reads, stale, wrong;
};

static char path[4096];
static int rounds = 20;

static void *read_all(void *arg)
{
	struct reader *r = arg;
	unsigned long looks = 0;

	pin(1);
	while (!atomic_load(&r->stop) && looks < LOOKS) {
		for (int i = 0; i < PAGES; i++) {
			bool changed = atomic_load(&r->changed);
			uint64_t v = r->map[i * PAGE / 8];

			if (!changing(v, OLD, NEW))
				atomic_fetch_add(&r->wrong, 1);
			else if (changed && v == OLD)
				atomic_fetch_add(&r->stale, 1);
		}
		looks += atomic_load(&r->changed);
		atomic_fetch_add(&r->reads, PAGES);
		atomic_store(&r->hot, true);
	}
	return NULL;
}

/* Returns the rise of luf_migrate. */
static long move(volatile void *map, int node)
{
	long before = vm_counter("luf_migrate");
	int nodes[PAGES], status[PAGES];
	void *pages[PAGES];

	for (int i = 0; i < PAGES; i++) {
		pages[i] = (char *)map + i * PAGE;
		nodes[i] = node;
	}
	if (syscall(SYS_move_pages, 0, PAGES, pages, nodes, status, MOVE_ALL) < 0)
		die("move_pages");
	return vm_counter("luf_migrate") - before;
}

static void *map_old_file(void)
{
	fill_file(path, OLD);
	return map_file(path, MAP_SHARED);
}

static void *map_forked(void)
{
	void *map = map_anon(OLD);
	pid_t child = fork();

	if (child < 0)
		die("fork");
	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
	return map;
}

static pid_t sleeper;

static void *map_shared_with_child(void)
{
	void *map = map_anon(OLD);

	sleeper = fork();
	if (sleeper < 0)
		die("fork");
	if (!sleeper) {
		pause();
		_exit(0);
	}
	return map;
}

static void *map_protected(void)
{
	void *map = map_anon(OLD);

	if (mprotect(map, SIZE, PROT_READ))
		die("mprotect");
	return map;
}

static void do_release(struct reader *r)
{
	uint64_t *fill;

	(void)r;
	write_file(QUELL_SYSFS "luf/drain", "1");
	fill = mmap(NULL, REFILL, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (fill == MAP_FAILED)
		die("mmap");
	for (unsigned long i = 0; i < REFILL / 8; i++)
		fill[i] = POISON;
	usleep(20000);
	munmap(fill, REFILL);
}

static void do_write_file(struct reader *r)
{
	uint64_t value = NEW;
	int fd = open(path, O_RDWR);

	(void)r;
	if (fd < 0)
		die(path);
	for (int i = 0; i < PAGES; i++)
		if (pwrite(fd, &value, sizeof(value), i * PAGE) != sizeof(value))
			die("pwrite");
	close(fd);
}

static void do_write(struct reader *r)
{
	for (int i = 0; i < PAGES; i++)
		r->map[i * PAGE / 8] = NEW;
}

static void do_force(struct reader *r)
{
	int fd = open("/proc/self/mem", O_RDWR);
	uint64_t value = NEW;

	if (fd < 0)
		die("/proc/self/mem");
	for (int i = 0; i < PAGES; i++)
		if (pwrite(fd, &value, sizeof(value),
			   (off_t)(r->map + i * PAGE / 8)) != sizeof(value))
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
	if (mmap((void *)r->map, SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) ==
	    MAP_FAILED)
		die("mmap");
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
		if (pthread_create(&r.thread, NULL, read_all, &r))
			die("pthread_create");
		while (!atomic_load(&r.hot))
			;
		moved += move(r.map, 1);
		t->change(&r);
		if (t->old_is_fine) {
			usleep(5000);
			atomic_store(&r.stop, true);
		}
		atomic_store(&r.changed, true);
		pthread_join(r.thread, NULL);
		if (sleeper) {
			kill(sleeper, SIGKILL);
			waitpid(sleeper, NULL, 0);
			sleeper = 0;
		}
		reads += atomic_load(&r.reads);
		if (!t->old_is_fine)
			stale += atomic_load(&r.stale);
		wrong += atomic_load(&r.wrong);
		munmap((void *)r.map, SIZE);
	}
	tap_result(!stale && !wrong && moved >= rounds * PAGES / 2,
		   "luf_migrate %s: %lu reads, %lu stale, %lu wrong, %ld of %d pages moved lazily",
		   t->name, reads, stale, wrong, moved, rounds * (int)PAGES);
}

/* R2: the counters are protected first, and the pages behind them delay the flush. */
#define BEHIND	4096

static volatile uint64_t *counters;
static uint64_t counted[PAGES];
static atomic_bool counting;
static int uffd;

static void *count_all(void *arg)
{
	(void)arg;
	pin(1);
	while (atomic_load(&counting))
		for (int i = 0; i < PAGES; i++) {
			counters[i * PAGE / 8]++;
			counted[i]++;
		}
	return NULL;
}

static void *move_all(void *arg)
{
	(void)arg;
	for (int node = 1; atomic_load(&counting); node = !node)
		move(counters, node);
	return NULL;
}

/* Compaction moves pages while fork() holds the mmap lock. */
static void *compact_all(void *arg)
{
	(void)arg;
	while (atomic_load(&counting)) {
		move(counters, 1);
		move(counters, 0);
		for (int i = 0; i < 3; i++)
			write_file("/sys/devices/system/node/node0/compact", "1");
	}
	return NULL;
}

static void by_fork(void)
{
	pid_t child = fork();

	if (child < 0)
		die("fork");
	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
}

static void by_userfaultfd(void)
{
	struct uffdio_writeprotect protect = {
		.range.start = (unsigned long)counters,
		.range.len = (PAGES + BEHIND) * PAGE,
		.mode = UFFDIO_WRITEPROTECT_MODE_WP,
	};

	if (ioctl(uffd, UFFDIO_WRITEPROTECT, &protect))
		die("UFFDIO_WRITEPROTECT");
}

/* Asynchronous: a write fault lifts the protection itself. */
static bool register_userfaultfd(void)
{
	struct uffdio_api api = {
		.api = UFFD_API, .features = UFFD_FEATURE_WP_ASYNC,
	};
	struct uffdio_register area = {
		.range.start = (unsigned long)counters,
		.range.len = (PAGES + BEHIND) * PAGE,
		.mode = UFFDIO_REGISTER_MODE_WP,
	};

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	return uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api) &&
	       !ioctl(uffd, UFFDIO_REGISTER, &area);
}

static void lose_writes(const char *name, void (*protect)(void),
			void *(*mover_thread)(void *arg), int times)
{
	pthread_t writer, mover;
	long moved;
	int lost = 0;

	counters = mmap(NULL, (PAGES + BEHIND) * PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (counters == MAP_FAILED)
		die("mmap");
	madvise((void *)counters, (PAGES + BEHIND) * PAGE, MADV_NOHUGEPAGE);
	for (int i = 0; i < PAGES + BEHIND; i++)
		counters[i * PAGE / 8] = 0;
	memset(counted, 0, sizeof(counted));
	if (protect == by_userfaultfd && !register_userfaultfd()) {
		tap_skip("CONFIG_PTE_MARKER_UFFD_WP", "luf_migrate lost writes, %s",
			 name);
		munmap((void *)counters, (PAGES + BEHIND) * PAGE);
		close(uffd);
		return;
	}

	moved = vm_counter("pgmigrate_success");
	atomic_store(&counting, true);
	if (pthread_create(&writer, NULL, count_all, NULL) ||
	    pthread_create(&mover, NULL, mover_thread, NULL))
		die("pthread_create");
	for (int i = 0; i < times; i++)
		protect();
	atomic_store(&counting, false);
	pthread_join(writer, NULL);
	pthread_join(mover, NULL);
	moved = vm_counter("pgmigrate_success") - moved;
	for (int i = 0; i < PAGES; i++)
		lost += counters[i * PAGE / 8] != counted[i];
	tap_result(!lost && moved > 0,
		   "luf_migrate lost writes, %s: in %d of %d pages, %lu writes, protected %d times, moved %ld pages",
		   name, lost, (int)PAGES, (unsigned long)counted[0] * PAGES,
		   times, moved);
	munmap((void *)counters, (PAGES + BEHIND) * PAGE);
	if (protect == by_userfaultfd)
		close(uffd);
}

int main(int argc, char **argv)
{
	char on[8];

	if (argc < 2) {
		fprintf(stderr, "usage: luf_migrate DIR [ROUNDS]\n");
		return 2;
	}
	if (argc > 2)
		rounds = atoi(argv[2]);
	if (access(QUELL_SYSFS "luf/enabled", R_OK))
		tap_skip_all("this kernel has no lazy unmap flush");
	read_file(QUELL_SYSFS "luf/enabled", on, sizeof(on));
	if (on[0] != '1')
		tap_skip_all("lazy unmap flush is switched off");
	if (access("/sys/devices/system/node/node1", R_OK))
		tap_skip_all("two NUMA nodes are needed");

	snprintf(path, sizeof(path), "%s/luf_migrate", argv[1]);
	pin(0);
	for (unsigned long i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		run(&tests[i]);
	lose_writes("userfaultfd", by_userfaultfd, move_all, rounds * 25);
	lose_writes("fork", by_fork, compact_all, rounds * 5);
	unlink(path);
	return tap_end();
}
