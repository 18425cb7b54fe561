/* SPDX-License-Identifier: GPL-2.0-only */
/* Common parts of the tests in this folder. Include after _GNU_SOURCE. */
#ifndef QUELL_UTIL_H
#define QUELL_UTIL_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define QUELL_SYSFS	"/sys/kernel/mm/quell/"
#define KSFT_SKIP	4

#ifndef MADV_COLD
#define MADV_COLD	20
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif

#define PAGES	64
#define PAGE	4096UL
#define SIZE	(PAGES * PAGE)

#define RAM_DISK	"/dev/ram0"
#define SWAP_MAGIC	"SWAPSPACE2"

/* /proc/self/pagemap */
#define FLAG(n)		(1ULL << (n))
#define PM_PFN(entry)	((entry) & (FLAG(55) - 1))
#define PM_SOFT_DIRTY	FLAG(55)
#define PM_UFFD_WP	FLAG(57)
#define PM_FILE		FLAG(61)
#define PM_SWAP		FLAG(62)
#define PM_PRESENT	FLAG(63)

static int tap_count, tap_failed;

/* A mix of @from and @to by bytes: rep movsb copies byte by byte. */
static inline bool changing(uint64_t value, uint64_t from, uint64_t to)
{
	for (int i = 0; i < 64; i += 8)
		if ((uint8_t)(value >> i) != (uint8_t)(from >> i) &&
		    (uint8_t)(value >> i) != (uint8_t)(to >> i))
			return false;
	return true;
}

/* @why: a requirement of the test. */
static inline void tap_skip(const char *why, const char *fmt, ...)
{
	va_list args;

	printf("ok %d ", ++tap_count);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf(" # SKIP needs %s\n", why);
	fflush(stdout);
}

static inline int tap_end(void)
{
	printf("1..%d\n", tap_count);
	return tap_failed ? 1 : 0;
}

static inline void tap_skip_all(const char *why)
{
	printf("1..0 # SKIP %s\n", why);
	exit(KSFT_SKIP);
}

static inline void die(const char *what)
{
	printf("Bail out! %s: %s\n", what, strerror(errno));
	exit(1);
}

static inline void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	if (!f || fputs(text, f) < 0 || fclose(f))
		die(path);
}

static inline void read_file(const char *path, char *buf, int size)
{
	FILE *f = fopen(path, "r");

	if (!f || !fgets(buf, size, f))
		die(path);
	fclose(f);
}

/*
 * @known: process and descriptor. After fork() the old descriptor shows the parent. A race
 * opens one file too many and closes none in use.
 */
static inline int proc_fd(const char *path, uint64_t *known)
{
	uint64_t was = __atomic_load_n(known, __ATOMIC_RELAXED);
	int fd;

	if (was >> 32 == (uint64_t)getpid())
		return (uint32_t)was;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die(path);
	__atomic_store_n(known, (uint64_t)getpid() << 32 | (uint32_t)fd, __ATOMIC_RELAXED);
	return fd;
}

static inline void pagemap_read(const volatile void *addr, unsigned long n, uint64_t *entries)
{
	static uint64_t known;
	int fd = proc_fd("/proc/self/pagemap", &known);

	if (pread(fd, entries, n * 8, (uintptr_t)addr / PAGE * 8) != (ssize_t)(n * 8))
		die("pagemap");
}

static inline uint64_t pagemap_at(const volatile void *addr)
{
	uint64_t entry;

	pagemap_read(addr, 1, &entry);
	return entry;
}

#define STALE_MS	QUELL_SYSFS "luf/max_stale_ms"
/* For tests: pages of a full deferred-free list; 0: by the watermarks. */
#define LOT_PAGES	"/sys/module/luf_lot/parameters/pages"

static char stale_ms[32];
static pid_t stale_ms_owner;

/* Undo hold_windows(): time closes stale-TLB windows again. */
static inline void release_windows(void)
{
	FILE *f;

	/* A child's exit changes nothing. */
	if (stale_ms_owner != getpid())
		return;
	stale_ms_owner = 0;
	f = fopen(STALE_MS, "w");
	if (!f || fputs(stale_ms, f) < 0 || fclose(f))
		printf("# " STALE_MS " is not as it was, %s", stale_ms);
}

/* No stale-TLB window ends by time before release_windows() or exit. */
static inline void hold_windows(void)
{
	static bool registered;

	if (!registered)
		atexit(release_windows);
	registered = true;
	read_file(STALE_MS, stale_ms, sizeof(stale_ms));
	stale_ms_owner = getpid();
	write_file(STALE_MS, "60000");
}

/* Complaints of CONFIG_QUELL_LUF_DEBUG's ledger. */
static inline long nr_violations(void)
{
	static const char ledger[] = "/sys/module/luf_debug/parameters/violations";
	char text[32];

	if (access(ledger, R_OK))
		return 0;
	read_file(ledger, text, sizeof(text));
	return atol(text);
}

static inline void tap_result(bool ok, const char *fmt, ...)
{
	va_list args;

	printf("%sok %d ", ok ? "" : "not ", ++tap_count);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
	tap_failed += !ok;
	/* Mutation testing needs the first finding only. */
	if (getenv("TAP_STOP") && (!ok || nr_violations()))
		exit(1);
}

/* Returns -1 if there is no such counter. */
static inline long counter_in(const char *path, const char *name)
{
	FILE *f = fopen(path, "r");
	char line[128], key[64];
	long value, found = -1;

	if (!f)
		die(path);
	while (found < 0 && fgets(line, sizeof(line), f))
		if (sscanf(line, "%63s %ld", key, &value) == 2 &&
		    !strcmp(key, name))
			found = value;
	fclose(f);
	return found;
}

static inline long vm_counter(const char *name)
{
	return counter_in("/proc/vmstat", name);
}

/* Does /proc/vmstat count flushes? Distributions leave CONFIG_DEBUG_TLBFLUSH out. */
static inline bool counts_flushes(void)
{
	return vm_counter("nr_tlb_remote_flush") >= 0;
}

/* A gauge, with per-CPU deltas folded in. */
static inline long vm_pages(const char *name)
{
	write_file("/proc/sys/vm/stat_refresh", "1");
	return vm_counter(name);
}

/* Since boot. */
static inline long luf_given_back(void)
{
	long parked = vm_pages("nr_luf_parked");

	return vm_counter("luf_park") - parked;
}

static inline void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("two CPUs are needed");
}

static inline void fill_file(const char *name, uint64_t value)
{
	uint64_t page[PAGE / 8];
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

	if (fd < 0)
		die(name);
	for (unsigned long i = 0; i < PAGE / 8; i++)
		page[i] = value;
	for (int i = 0; i < PAGES; i++)
		if (write(fd, page, PAGE) != (ssize_t)PAGE)
			die(name);
	if (fsync(fd) || close(fd))
		die(name);
}

/*
 * SIZE bytes aligned to SIZE, for MAP_FIXED. MADV_PAGEOUT splits a large folio that crosses
 * page tables and does not page it out.
 */
static inline void *find_room(void)
{
	char *all = mmap(NULL, 2 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;

	if (all == MAP_FAILED)
		die("mmap");
	at = (char *)(((uintptr_t)all + SIZE - 1) / SIZE * SIZE);
	if ((at != all && munmap(all, at - all)) || munmap(at + SIZE, all + SIZE - at))
		die("munmap");
	return at;
}

static inline void *map_file(const char *name, int flags)
{
	int fd = open(name, O_RDONLY);
	void *map;

	if (fd < 0)
		die(name);
	map = mmap(find_room(), SIZE, flags & MAP_PRIVATE ? PROT_READ | PROT_WRITE :
		   PROT_READ, flags | MAP_FIXED, fd, 0);
	if (map == MAP_FAILED)
		die("mmap");
	close(fd);
	return map;
}

/* Single pages; all words are @value. */
static inline void *map_anon(uint64_t value)
{
	uint64_t *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED)
		die("mmap");
	madvise(map, SIZE, MADV_NOHUGEPAGE);
	for (unsigned long i = 0; i < SIZE / 8; i++)
		map[i] = value;
	return map;
}

/* Cached by another CPU: a purely local flush is never deferred. */
static inline void *touch_thread(void *arg)
{
	volatile uint64_t *map = arg;

	pin(1);
	for (int i = 0; i < PAGES; i++)
		(void)map[i * PAGE / 8];
	return NULL;
}

static inline void touch_on_other_cpu(void *map)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, touch_thread, map))
		die("pthread_create");
	pthread_join(thread, NULL);
}

/* Returns the rise of @counter. */
static inline long pageout(void *map, const char *counter)
{
	long before = vm_counter(counter);

	if (madvise(map, SIZE, MADV_PAGEOUT))
		die("MADV_PAGEOUT");
	return vm_counter(counter) - before;
}

/* Drain the other CPU's folio batches. */
static inline void put_all_on_lru(void)
{
	write_file("/proc/sys/vm/drop_caches", "1");
}

struct companion {
	pthread_t thread;
	void *map;
	bool touched, stop;
};

static inline void *companion_thread(void *arg)
{
	struct companion *c = arg;

	touch_thread(c->map);
	__atomic_store_n(&c->touched, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE))
		;
	return NULL;
}

/*
 * Stay on the other CPU: it leaves the mm as soon as another task runs, and a local flush
 * is never deferred.
 */
static inline void companion_start(struct companion *c, void *map)
{
	*c = (struct companion) { .map = map };
	if (pthread_create(&c->thread, NULL, companion_thread, c))
		die("pthread_create");
	while (!__atomic_load_n(&c->touched, __ATOMIC_ACQUIRE))
		;
	put_all_on_lru();
}

/* May flush, as the end of any thread. */
static inline void companion_stop(struct companion *c)
{
	__atomic_store_n(&c->stop, true, __ATOMIC_RELEASE);
	pthread_join(c->thread, NULL);
}

/* The stale-TLB window may be over on return. */
static inline long pageout_shared(void *map, const char *counter)
{
	struct companion c;
	long rise;

	companion_start(&c, map);
	rise = pageout(map, counter);
	companion_stop(&c);
	return rise;
}

static inline void make_swap(int fd, unsigned long bytes)
{
	static char page[PAGE];
	uint32_t head[] = { 1, bytes / PAGE - 1, 0 };

	memset(page, 0, PAGE);
	memcpy(page + 1024, head, sizeof(head));
	memcpy(page + PAGE - 10, SWAP_MAGIC, 10);
	if (pwrite(fd, page, PAGE, 0) != (ssize_t)PAGE)
		die("cannot write a swap header");
}

/* Only a RAM disk of @least bytes that is unused and empty. */
static inline bool make_ram_swap(unsigned long least)
{
	int fd = open(RAM_DISK, O_RDWR | O_EXCL | O_CLOEXEC);
	bool empty = true;
	char head[PAGE];
	off_t bytes;

	if (fd < 0)
		return false;
	bytes = lseek(fd, 0, SEEK_END);
	if (bytes < (off_t)least || pread(fd, head, PAGE, 0) != (ssize_t)PAGE) {
		close(fd);
		return false;
	}
	if (memcmp(head + PAGE - 10, SWAP_MAGIC, 10))
		for (unsigned long i = 0; i < PAGE; i++)
			empty &= !head[i];
	if (empty) {
		make_swap(fd, bytes);
		fsync(fd);
	}
	/* swapon() fails with EBUSY else. */
	close(fd);
	return empty;
}

#endif /* QUELL_UTIL_H */
