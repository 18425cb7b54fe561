// SPDX-License-Identifier: GPL-2.0-only
/*
 * No CPU reads a frame or content through a stale TLB entry that a legal read could not
 * return. Attacks R1 to R5 of mm/luf.c, one case at a time. Usage:
 *
 *	luf_stale DIR [ROUNDS [TEST]]
 *	luf_stale --make DIR
 *
 * DIR is on a file system that lazy unmap flush supports. On a read-only one, the first two
 * tests use the file of --make. TEST is the beginning of test names. A reader spins over
 * pages that are hot in its TLB. The main thread pages them out once (MADV_PAGEOUT), so the
 * reader uses stale entries. Then it ends that:
 *
 *	release		R1: the frames are freed and refilled with a pattern
 *	full lot	R1: the same, as the deferred-free list is full
 *	older		R1: the same, with an older flush owed before the reader came
 *	write		R3: the file is opened for writing and written
 *	truncate	R3: the file is truncated and grown again
 *	swap-boot	R3: ext4 swaps the content with its boot loader inode
 *	reflink		R3: the file gets another one's blocks, with reflinks
 *	private		R3: a thread writes to its private mapping
 *	remap		R3: another file is mapped at the same address
 *	protect		R3: the mapping is made inaccessible
 *	guard		R3: guard regions are installed (files: Linux 6.14)
 *
 * Old content after the main thread's flag is a violation. Nothing else happens in the mm,
 * as a second madvise() or munmap() would flush. luf_park must show deferred folios.
 *
 * Races follow: an open for writing against page-out and drain (R3), two drains, and a
 * drain on the only CPU behind (R1, R5). The last two show only in the ledger of
 * CONFIG_QUELL_LUF_DEBUG. The rest covers R2 (folios that are not deferred) and R4
 * (accounting, and windows that end in time).
 *
 * Tests that run only if TEST names them:
 *
 *	swap in		R3: a page comes back from swap in the window (empty RAM_DISK)
 *	quota		R3: the file becomes a quota file (ext4 with usrquota)
 *	CMA		R4: all pages of a CMA area are taken, deferred or mapped (cma= of more
 *			than half of the memory, CONFIG_CMA_DEBUGFS)
 */
#include <linux/magic.h>
#include <sys/uio.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/quota.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "luf_reader.h"

#ifndef FICLONE
#define FICLONE			_IOW(0x94, 9, int)
#endif
#define EXT4_IOC_SWAP_BOOT	_IO('f', 17)
#define F2FS_IOC_START_ATOMIC_WRITE	_IO(0xf5, 1)
#define F2FS_IOC_COMMIT_ATOMIC_WRITE	_IO(0xf5, 2)
#define QFMT_VFS_V1	4
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL	102
#endif

#define HELD	8

static char path[4096], other_path[4096 + 8];
static int rounds = 20;
static bool read_only;
static const char *only = "";

static bool wanted(const char *name)
{
	return !strncmp(name, only, strlen(only));
}

/* Changes between page-out and flag. */

static void do_refill(struct reader *r)
{
	(void)r;
	poison_frames(0);
}

static void do_release(struct reader *r)
{
	drain_luf();
	do_refill(r);
}

/*
 * An older flush is owed. The switch to the reader settles it, but not the reader's
 * entries.
 */
static void prepare_older(void)
{
	static void *map;

	if (map)
		munmap(map, SIZE);
	map = map_file(other_path, MAP_SHARED);
	touch_on_other_cpu(map);
	pageout(map, "luf_park");
}

static void do_older(struct reader *r)
{
	int fd = must_open(other_path, O_RDWR);

	close(fd);
	do_release(r);
}

static void do_write(struct reader *r)
{
	int fd = open(path, O_RDWR);

	(void)r;
	if (fd < 0)
		die(path);
	put_new(fd);
	close(fd);
}

static void do_truncate(struct reader *r)
{
	(void)r;
	if (truncate(path, 0) || truncate(path, SIZE))
		die("truncate");
}

static void do_swap_boot(struct reader *r)
{
	int fd = open(path, O_RDWR);

	(void)r;
	if (fd < 0 || ioctl(fd, EXT4_IOC_SWAP_BOOT))
		die("EXT4_IOC_SWAP_BOOT");
	close(fd);
}

/* New content for the swap. */
static void prepare_swap_boot(void)
{
	fill_file(path, NEW);
	do_swap_boot(NULL);
}

static void do_reflink(struct reader *r)
{
	int from = open(other_path, O_RDONLY), fd = open(path, O_RDWR);

	(void)r;
	if (fd < 0 || from < 0 || ioctl(fd, FICLONE, from))
		die("FICLONE");
	close(fd);
	close(from);
}

static void do_private(struct reader *r)
{
	for (int i = 0; i < PAGES; i++)
		r->map[i * WORDS] = NEW;
}

static void do_remap(struct reader *r)
{
	int fd = must_open(other_path, O_RDONLY);

	if (mmap((void *)r->map, SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) ==
	    MAP_FAILED)
		die("mmap");
	close(fd);
}

static void do_protect(struct reader *r)
{
	if (mprotect((void *)r->map, SIZE, PROT_NONE))
		die("mprotect");
}

/* The PTEs are empty: nothing is unmapped, and nothing else flushes. */
static void do_guard(struct reader *r)
{
	if (madvise((void *)r->map, SIZE, MADV_GUARD_INSTALL))
		die("MADV_GUARD_INSTALL");
}

static bool with_guards(void)
{
	int fd = open(other_path, O_RDONLY);
	void *map = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	bool yes = map != MAP_FAILED && !madvise(map, PAGE, MADV_GUARD_INSTALL);

	munmap(map, PAGE);
	close(fd);
	return yes;
}

static bool on_ext4(void)
{
	struct statfs fs;

	return !statfs(path, &fs) && fs.f_type == EXT4_SUPER_MAGIC;
}

static bool on_reflinks(void)
{
	char copy[sizeof(other_path) + 8];
	int from = open(other_path, O_RDONLY), fd;
	bool yes;

	snprintf(copy, sizeof(copy), "%s.copy", other_path);
	fd = open(copy, O_RDWR | O_CREAT, 0600);
	yes = from >= 0 && fd >= 0 && !ioctl(fd, FICLONE, from);
	close(fd);
	close(from);
	unlink(copy);
	return yes;
}

static const struct test {
	const char *name;
	int flags;
	void (*change)(struct reader *r);
	void (*prepare)(void);
	bool (*possible)(void);
	const char *lot_pages;
	bool old_is_fine;
} tests[] = {
	{ .name = "release",	.flags = MAP_SHARED,	.change = do_release,
	  .old_is_fine = true },
	{ .name = "full lot",	.flags = MAP_SHARED,	.change = do_refill,
	  .old_is_fine = true,	.lot_pages = "1" },
	{ .name = "older",	.flags = MAP_SHARED,	.change = do_older,
	  .old_is_fine = true,	.prepare = prepare_older },
	{ .name = "write",	.flags = MAP_SHARED,	.change = do_write },
	{ .name = "truncate",	.flags = MAP_SHARED,	.change = do_truncate },
	{ .name = "swap-boot",	.flags = MAP_SHARED,	.change = do_swap_boot,
	  .prepare = prepare_swap_boot,	.possible = on_ext4 },
	{ .name = "reflink",	.flags = MAP_SHARED,	.change = do_reflink,
	  .possible = on_reflinks },
	{ .name = "private",	.flags = MAP_PRIVATE,	.change = do_private },
	{ .name = "remap",	.flags = MAP_SHARED,	.change = do_remap },
	{ .name = "protect",	.flags = MAP_SHARED,	.change = do_protect },
	{ .name = "guard",	.flags = MAP_SHARED,	.change = do_guard,
	  .possible = with_guards },
};

static void run(const struct test *t)
{
	unsigned long reads = 0, stale = 0, wrong = 0;
	char lot_pages[32];
	long parked = 0;

	if (!wanted(t->name) || (t->possible && !t->possible()))
		return;
	read_text(LOT_PAGES, lot_pages, sizeof(lot_pages));
	if (t->lot_pages)
		write_text(LOT_PAGES, t->lot_pages);
	/* The change flushes, not the time. */
	hold_windows();

	for (int i = 0; i < rounds; i++) {
		struct reader r = { .zero_is_fine = true };

		if (t->prepare)
			t->prepare();
		if (!read_only)
			fill_file(path, OLD);
		r.map = map_file(path, t->flags);
		reader_start(&r);
		parked += pageout((void *)r.map, "luf_park");
		t->change(&r);
		reader_look(&r, t->old_is_fine);
		reads += atomic_load(&r.reads);
		stale += atomic_load(&r.stale);
		wrong += atomic_load(&r.wrong);
		munmap((void *)r.map, SIZE);
	}
	release_windows();
	write_text(LOT_PAGES, lot_pages);
	/* A busy folio may be missed. */
	test_result(!stale && !wrong && parked >= rounds * PAGES / 2,
		    "luf_stale %s: %lu reads, %lu stale, %lu wrong, %ld of %d pages parked",
		    t->name, reads, stale, wrong, parked, rounds * (int)PAGES);
}

/* --- Races ---------------------------------------------------------------- */

static volatile uint64_t *race_map;
static atomic_ulong race_ready, race_written, race_seen, race_stale;
/* The last race; extended if nothing was deferred. */
static atomic_ulong race_end;
#define RACES	((unsigned long)rounds * 25)

/* This CPU's folio batch is not on the LRU and would not be reclaimed. */
static void put_on_lru(void)
{
	if (madvise((void *)(race_map + WORDS), PAGE, MADV_COLD))
		die("MADV_COLD");
}

static void *open_and_write(void *arg)
{
	(void)arg;
	pin(1);
	for (uint64_t i = 1; i <= atomic_load(&race_end); i++) {
		int fd;

		/* The open would settle an older flush together with this one. */
		drain_luf();
		put_on_lru();
		(void)race_map[0];
		atomic_store(&race_ready, i);
		/* At any point of the page-out. */
		for (uint64_t n = 0; n < i * 7919 % 400000 * (1 + i / RACES); n++)
			(void)race_map[0];
		fd = open(path, O_RDWR);
		/* A waiter for the folio would keep it from reclaim. */
		usleep(2000);
		if (fd < 0 || pwrite(fd, &i, sizeof(i), 0) != sizeof(i))
			die(path);
		atomic_store(&race_written, i);
		while (atomic_load(&race_seen) != i)
			;
		if (fsync(fd) || close(fd))
			die(path);
	}
	return NULL;
}

/*
 * R3: reclaim looks for writers while a writer comes, and one of them sees the other. The
 * initiator goes on reading: another madvise() would flush.
 */
static void race_open(void)
{
	long parked = vm_counter("luf_park");
	unsigned long stale = 0;
	pthread_t writer;

	fill_file(path, 0);
	race_map = map_file(path, MAP_SHARED);
	atomic_store(&race_end, RACES);
	start_thread(&writer, open_and_write, NULL);
	for (unsigned long i = 1; i <= atomic_load(&race_end); i++) {
		while (atomic_load(&race_ready) != i)
			;
		(void)race_map[0];
		if (madvise((void *)race_map, PAGE, MADV_PAGEOUT))
			die("MADV_PAGEOUT");
		do {
			/* Until then the word may be half written. */
			(void)race_map[0];
		} while (atomic_load(&race_written) != i);
		for (int looks = 0; looks < LOOKS; looks++)
			stale += race_map[0] < i;
		/* On a busy host all opens may come first. */
		if (i == atomic_load(&race_end) && i < 20 * RACES &&
		    vm_counter("luf_park") == parked)
			atomic_store(&race_end, i + RACES);
		atomic_store(&race_seen, i);
	}
	pthread_join(writer, NULL);
	parked = vm_counter("luf_park") - parked;
	test_result(!stale && parked > 0,
		    "luf_stale open race: %lu opens, %lu stale, %ld pages parked",
		    atomic_load(&race_end), stale, parked);
	munmap((void *)race_map, SIZE);
}

static void *park_and_drain(void *arg)
{
	int fd = open(QUELL_SYSFS "luf/drain", O_WRONLY);
	bool second = *(bool *)arg;
	void *map;

	if (fd < 0)
		die("drain");
	pin(second);
	map = map_file(second ? other_path : path, MAP_SHARED);
	for (int i = 0; i < rounds * 50; i++) {
		touch(map, SIZE);
		if (madvise(map, SIZE, MADV_PAGEOUT) || write(fd, "1", 1) != 1)
			die("drain");
	}
	munmap(map, SIZE);
	close(fd);
	return NULL;
}

/* R5: each drains behind the other's CPU, which is about to flush. */
static void race_drains(void)
{
	long before = nr_violations(), found;
	bool second[] = { false, true };
	pthread_t other;

	fill_file(path, OLD);
	start_thread(&other, park_and_drain, &second[1]);
	park_and_drain(&second[0]);
	pthread_join(other, NULL);
	pin(0);
	found = nr_violations() - before;
	test_result(!found, "luf_stale two drains: %d each, %ld violations",
		    rounds * 50, found);
}

static atomic_ulong drain_ready, drain_parked, drain_seen;

static void *write_beside_drain(void *arg)
{
	(void)arg;
	pin(1);
	for (uint64_t i = 1; i <= (uint64_t)rounds * 25; i++) {
		int fd;

		put_on_lru();
		(void)race_map[0];
		atomic_store(&drain_ready, i);
		while (atomic_load(&drain_parked) != i)
			;
		/* At any point of the drain. */
		for (uint64_t n = 0; n < i * 7919 % 20000; n++)
			(void)race_map[0];
		fd = open(path, O_RDWR);
		if (fd < 0 || pwrite(fd, &i, sizeof(i), 0) != sizeof(i))
			die(path);
		for (int looks = 0; looks < LOOKS; looks++)
			if (race_map[0] < i)
				atomic_fetch_add(&race_stale, 1);
		if (fsync(fd) || close(fd))
			die(path);
		atomic_store(&drain_seen, i);
	}
	return NULL;
}

/* R3: an open for writing relies on a flush that a drain carries out. */
static void race_drain_open(void)
{
	long parked = vm_counter("luf_park");
	pthread_t writer;

	fill_file(path, 0);
	race_map = map_file(path, MAP_SHARED);
	atomic_store(&race_stale, 0);
	start_thread(&writer, write_beside_drain, NULL);
	for (unsigned long i = 1; i <= (unsigned long)rounds * 25; i++) {
		while (atomic_load(&drain_ready) != i)
			;
		(void)race_map[0];
		if (madvise((void *)race_map, PAGE, MADV_PAGEOUT))
			die("MADV_PAGEOUT");
		atomic_store(&drain_parked, i);
		drain_luf();
		while (atomic_load(&drain_seen) != i)
			;
	}
	pthread_join(writer, NULL);
	parked = vm_counter("luf_park") - parked;
	test_result(!race_stale && parked > 0,
		    "luf_stale drain race: %d opens, %lu stale, %ld pages parked",
		    rounds * 25, race_stale, parked);
	munmap((void *)race_map, SIZE);
}

/*
 * R1: the drain's CPU alone is behind, as the other one is idle. It flushes without an IPI.
 */
static void drain_own(void)
{
	long before = nr_violations(), released = vm_counter("luf_release_aged"), found;
	char lot_pages[32];

	read_text(LOT_PAGES, lot_pages, sizeof(lot_pages));
	write_text(LOT_PAGES, "1");
	fill_file(path, OLD);
	for (int i = 0; i < rounds * 5; i++) {
		void *map = map_file(path, MAP_SHARED);

		touch_on_other_cpu(map);
		touch(map, SIZE);
		pageout(map, "luf_park");
		munmap(map, SIZE);
	}
	write_text(LOT_PAGES, lot_pages);
	found = nr_violations() - before;
	released = vm_counter("luf_release_aged") - released;
	test_result(!found && released,
		    "luf_stale own CPU: %ld pages released without an interrupt, %ld violations",
		    released, found);
}

/*
 * R1: pages held by a pipe are unmapped and stay. Later they are freed without an unmap,
 * and the reader's CPU must have flushed by then.
 */
static void keep_and_free(void)
{
	long before = nr_violations(), kept = vm_counter("luf_kept"), found;
	unsigned long wrong = 0;

	fill_file(path, OLD);
	for (int i = 0; i < rounds * 5; i++) {
		struct iovec first = { .iov_len = HELD * PAGE };
		struct reader r = { .zero_is_fine = true };
		int ends[2];

		r.map = map_file(path, MAP_SHARED);
		first.iov_base = (void *)r.map;
		reader_start(&r);
		drain_all_lru();
		if (pipe(ends) || vmsplice(ends[1], &first, 1, 0) != HELD * PAGE)
			die("vmsplice");
		if (madvise((void *)r.map, HELD * PAGE, MADV_PAGEOUT))
			die("MADV_PAGEOUT");
		close(ends[0]);
		close(ends[1]);
		/* Some pages are in folio batches. */
		drain_all_lru();
		reader_stop(&r);
		wrong += atomic_load(&r.wrong);
		munmap((void *)r.map, SIZE);
	}
	found = nr_violations() - before;
	kept = vm_counter("luf_kept") - kept;
	test_result(!found && !wrong && kept,
		    "luf_stale kept: %ld pages that stayed, %lu wrong, %ld violations",
		    kept, wrong, found);
}

static void try_to_park(const char *name, const char *file, bool writer,
			bool expected)
{
	int fd = writer ? open(file, O_RDWR) : -1;
	void *map = map_file(file, MAP_SHARED);
	long parked = 0;

	/* A busy large folio is many pages: try again. */
	for (int i = 0; i < (expected ? 5 : 1) && parked < PAGES / 2; i++)
		parked += pageout_shared(map, "luf_park");
	test_result(expected ? parked >= PAGES / 2 : parked == 0,
		    "luf_stale %s: %ld pages parked", name, parked);
	munmap(map, SIZE);
	if (fd >= 0)
		close(fd);
}

#define DEBUGFS	"/sys/kernel/debug/"
#define FAIL	DEBUGFS "fail_make_request/"

static void mount_debugfs(void)
{
	if (access(DEBUGFS "sleep_time", R_OK))
		mount("debugfs", DEBUGFS, "debugfs", 0, NULL);
}

/*
 * R3: after a failed write the page cache differs from the disk, so a later fault reads
 * other content. Needs fault injection.
 */
static void fail_a_write(void)
{
	char failing[64];
	struct stat st;
	bool failed;
	int fd;

	mount_debugfs();
	fd = open(path, O_RDWR);
	if (fd < 0 || fstat(fd, &st))
		die(path);
	snprintf(failing, sizeof(failing), "/sys/dev/block/%u:%u/make-it-fail",
		 major(st.st_dev), minor(st.st_dev));
	if (access(FAIL, R_OK) || access(failing, W_OK)) {
		close(fd);
		return;
	}
	put_new(fd);
	write_text(FAIL "verbose", "0");
	write_text(FAIL "interval", "1");
	write_text(FAIL "probability", "100");
	/* Data come first: the journal's write may not fail. */
	write_text(FAIL "times", "1");
	write_text(failing, "1");
	failed = fsync(fd);
	write_text(failing, "0");
	close(fd);
	test_result(failed, "luf_stale: a write fails");
	try_to_park("after a failed write", path, false, false);
	unlink(path);
	fill_file(path, OLD);
}

/* R3: f2fs aborts an atomic write without write access. */
static void write_atomically(void)
{
	int fd = must_open(path, O_RDWR);

	if (ioctl(fd, F2FS_IOC_START_ATOMIC_WRITE)) {
		close(fd);
		return;
	}
	put_new(fd);
	if (ioctl(fd, F2FS_IOC_COMMIT_ATOMIC_WRITE))
		die("F2FS_IOC_COMMIT_ATOMIC_WRITE");
	close(fd);
	try_to_park("after an atomic write", path, false, false);
	unlink(path);
	fill_file(path, OLD);
}

/* Page out beside a busy CPU. Returns the pages deferred. */
static long park_again(volatile uint64_t *map)
{
	long parked = 0;

	for (int i = 0; i < 10 && parked < PAGES / 2; i++) {
		touch(map, SIZE);
		drain_all_lru();
		parked = pageout((void *)map, "luf_park");
	}
	return parked;
}

static unsigned long frame_of(const volatile void *address)
{
	return PAGEMAP_PFN(pagemap_at(address));
}

/* R4: frames that are taken offline are found though they are deferred. */
static void offline_parked(const char *how)
{
	unsigned long frames[8];
	char offline[80];
	struct reader r = { .zero_is_fine = true };
	int fd, gone = 0, failed = 0;
	char text[32];
	long parked;

	snprintf(offline, sizeof(offline), "/sys/devices/system/memory/%s_offline_page", how);
	if (access(offline, W_OK))
		return;
	hold_windows();
	fill_file(path, OLD);
	r.map = map_file(path, MAP_SHARED);
	reader_start(&r);
	drain_all_lru();
	for (int i = 0; i < 8; i++)
		frames[i] = frame_of(r.map + i * 8 * WORDS);
	parked = pageout((void *)r.map, "luf_park");
	/* It would fault the pages in again. */
	reader_stop(&r);
	fd = open(offline, O_WRONLY);
	/* A page that the reader faulted in before is still present. */
	for (int i = 0; i < 8; i++)
		gone += frame_of(r.map + i * 8 * WORDS) != frames[i];
	for (int i = 0; i < 8; i++) {
		int len = snprintf(text, sizeof(text), "%#lx", frames[i] * PAGE);

		failed += write(fd, text, len) != len;
	}
	close(fd);
	munmap((void *)r.map, SIZE);
	release_windows();
	test_result(parked >= PAGES / 2 && gone && !failed,
		    "luf_stale offline, %s: %d of 8 frames were not found, %d were parked, of %ld",
		    how, failed, gone, parked);
}

#define LONG_PAGES	512UL

/* R4: folios of a long reclaim list reach the deferred-free list before the list ends. */
static void park_long_list(void)
{
	unsigned long bytes = LONG_PAGES * PAGE;
	char lot_pages[32], name[sizeof(path) + 8];
	struct reader r = { .zero_is_fine = true };
	long parked = 0, drains = 0;
	char *map;
	bool ok = false;
	int fd;

	snprintf(name, sizeof(name), "%s.long", path);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	map = reserve(bytes, bytes);
	if (fd < 0 || posix_fallocate(fd, 0, bytes) || fsync(fd) ||
	    close(fd))
		die(name);
	fd = open(name, O_RDONLY);
	if (fd < 0 || mmap(map, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
	    close(fd))
		die(name);
	/* Single pages: no readahead. */
	madvise(map, bytes, MADV_RANDOM);
	r.map = (void *)map;
	reader_start(&r);

	read_text(LOT_PAGES, lot_pages, sizeof(lot_pages));
	/* A reader's CPU that ran another task needs no flush. */
	for (int tries = 0; tries < 10 && !ok; tries++) {
		touch(map, bytes);
		drain_all_lru();
		write_text(LOT_PAGES, "1");
		parked = vm_counter("luf_park");
		drains = vm_counter("luf_flush");
		if (madvise(map, bytes, MADV_PAGEOUT))
			die("MADV_PAGEOUT");
		parked = vm_counter("luf_park") - parked;
		drains = vm_counter("luf_flush") - drains;
		write_text(LOT_PAGES, lot_pages);
		/* One may need no flush. */
		ok = parked >= 384 && drains >= parked / 128 - 1;
	}

	reader_stop(&r);
	munmap(map, bytes);
	unlink(name);
	test_result(ok, "luf_stale long list: %ld pages parked, %ld flushes as the lot was full",
		    parked, drains);
}

/*
 * A reader that never sleeps keeps its window open. Time closes it, and no flush follows.
 */
static void look_at_time(void)
{
	long parked, left, given, flushes, later;
	struct reader r = { .zero_is_fine = true };
	bool ok = false;

	hold_windows();
	fill_file(path, OLD);
	r.map = map_file(path, MAP_SHARED);
	reader_start(&r);
	/* Other parkers and drains (compaction) disturb: retry. */
	for (int i = 0; i < 10 && !ok; i++) {
		park_again(r.map);
		parked = vm_pages("nr_luf_parked");
		usleep(300000);
		left = vm_pages("nr_luf_parked");
		ok = parked >= PAGES / 2 && left >= parked;
	}
	test_result(ok,
		    "luf_stale accounting: %ld pages parked, %ld pages later",
		    parked, left);

	/* A new max_stale_ms gives back all that was deferred under the old one. */
	write_text(STALE_MS, "100");
	park_again(r.map);
	drain_luf();
	parked = park_again(r.map);
	write_text(STALE_MS, "60000");
	left = vm_pages("nr_luf_parked");
	test_result(parked && left * 4 < parked,
		    "luf_stale new time: of %ld pages %ld are left", parked, left);

	write_text(STALE_MS, "100");
	given = luf_given_back();
	/* The timer's vCPU may not run. */
	left = 1;
	for (int i = 0; i < 5 && left; i++) {
		park_again(r.map);
		usleep(300000);
		left = vm_pages("nr_luf_parked");
	}
	given = luf_given_back() - given;
	test_result(!left && given >= (long)PAGES / 2,
		    "luf_stale bound: %ld pages left after the time, %ld given back",
		    left, given);

	/* A late flush of the bound may fall into this. */
	for (int i = 0; i < 5; i++) {
		flushes = vm_counter("luf_flush");
		usleep(500000);
		later = vm_counter("luf_flush");
		if (flushes == later)
			break;
	}
	reader_stop(&r);
	test_result(flushes == later,
		    "luf_stale idle: %ld flushes while nothing was owed", later - flushes);
	munmap((void *)r.map, SIZE);
	release_windows();
}

/* In kB. */
static long not_free_but_available(void)
{
	return number_in("/proc/meminfo", "MemAvailable:") -
	       number_in("/proc/meminfo", "MemFree:");
}

static void park_some(void *map)
{
	for (int i = 0; i < 10; i++)
		pageout_shared(map, "luf_park");
}

/* R4: deferred pages count as available. */
static void look_at_available(void)
{
	bool right = false;
	long parked, available;
	void *map;

	hold_windows();
	fill_file(path, OLD);
	map = map_file(path, MAP_SHARED);
	park_some(map);
	/* Other readers disturb: retry. */
	for (int i = 0; i < 5 && !right; i++) {
		park_some(map);
		parked = vm_pages("nr_luf_parked");
		available = not_free_but_available();
		drain_luf();
		available -= not_free_but_available();
		right = parked >= PAGES / 2 && labs(available - parked * 4) < parked;
	}
	test_result(right, "luf_stale available: %ld pages parked, %ld kB more available",
		    parked, available);
	munmap(map, SIZE);
	release_windows();
}

/* --- Swap-in --------------------------------------------------------------------- */

static void *map_swapped(void)
{
	void *map = map_filled(OLD);

	if (madvise(map, SIZE, MADV_PAGEOUT))
		die("MADV_PAGEOUT");
	return map;
}

enum back { BY_READ, BY_SWAPOFF, NOT_YET };

/*
 * Memory comes back from swap while other pages are in their window. Returns the rise of
 * luf_write at the read, or at a private write after or before swapoff. -1: nothing was
 * swapped out, or no flush is owed, as when page-out kept a page.
 */
static long come_back(enum back how)
{
	volatile uint64_t *anon, *private, *map;
	long faults = -1, flushes;
	struct companion c;

	if (swapon(RAM_DISK, 0))
		die("swapon");
	anon = map_swapped();
	private = map_file(other_path, MAP_PRIVATE);
	map = map_file(path, MAP_SHARED);
	companion_start(&c, (void *)map);
	flushes = vm_counter("luf_flush");
	if (pageout((void *)map, "luf_park") >= PAGES / 2 && (pagemap_at(anon) & PM_SWAP) &&
	    vm_counter("luf_flush") == flushes) {
		if (how == BY_SWAPOFF && swapoff(RAM_DISK))
			die("swapoff");
		faults = vm_counter("luf_write");
		if (how == BY_READ)
			(void)*anon;
		else
			*private = NEW;
		faults = vm_counter("luf_write") - faults;
	}
	companion_stop(&c);
	munmap((void *)map, SIZE);
	munmap((void *)private, SIZE);
	munmap((void *)anon, SIZE);
	swapoff(RAM_DISK);
	return faults;
}

/*
 * R3: a stale entry may exist where a page comes back from swap. A fault that maps it
 * writable flushes. swapoff maps it read-only and flushes for later writes.
 */
static void come_back_in_window(void)
{
	long found[NOT_YET + 1] = { 0 }, tried[NOT_YET + 1] = { 0 };

	if (!make_ram_swap(4 * SIZE)) {
		test_skip("an empty " RAM_DISK, "luf_stale swap");
		return;
	}
	hold_windows();
	fill_file(path, OLD);
	fill_file(other_path, NEW);
	for (int i = 0; i < rounds; i++)
		for (enum back how = BY_READ; how <= NOT_YET; how++) {
			long faults = -1;

			for (int i = 0; i < 10 && faults < 0; i++)
				faults = come_back(how);
			if (faults < 0)
				continue;
			found[how] += faults;
			tried[how]++;
		}
	release_windows();
	test_result(tried[BY_READ] && found[BY_READ] == tried[BY_READ],
		    "luf_stale swap in: %ld flushes for %ld pages",
		    found[BY_READ], tried[BY_READ]);
	test_result(tried[BY_SWAPOFF] && !found[BY_SWAPOFF] &&
		    tried[NOT_YET] && found[NOT_YET] == tried[NOT_YET],
		    "luf_stale swapoff: %ld of %ld times a flush was still owed after it, %ld of %ld without",
		    found[BY_SWAPOFF], tried[BY_SWAPOFF], found[NOT_YET], tried[NOT_YET]);
}

/* --- A quota file ---------------------------------------------------------------- */

/* The device of @file. */
static bool find_device(const char *file, char *device, int size)
{
	char link[64], target[256];
	struct stat st;
	ssize_t len;

	if (stat(file, &st))
		return false;
	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(st.st_dev),
		 minor(st.st_dev));
	len = readlink(link, target, sizeof(target) - 1);
	if (len < 0)
		return false;
	target[len] = '\0';
	snprintf(device, size, "/dev/%s", strrchr(target, '/') + 1);
	return true;
}

/* R3: the kernel writes to it without write access. */
static void switch_quota_on(void)
{
	/* struct v2_disk_dqheader, v2_disk_dqinfo of version 1: two blocks, no users. */
	static const uint32_t head[] = { 0xd9c01f11, 1, 604800, 604800, 0, 2, 0, 0 };
	char device[64];
	long parked, flushes;
	struct companion c;
	void *map;
	int fd, err;

	if (!find_device(path, device, sizeof(device))) {
		test_skip("a disk", "luf_stale quota");
		return;
	}
	fill_file(path, 0);
	fd = open(path, O_RDWR);
	if (fd < 0 || pwrite(fd, head, sizeof(head), 0) != sizeof(head) || fsync(fd))
		die(path);
	close(fd);
	hold_windows();
	map = map_file(path, MAP_SHARED);
	companion_start(&c, map);
	for (int i = 0; i < 10; i++) {
		flushes = vm_counter("luf_flush");
		parked = park_again(map);
		if (vm_counter("luf_flush") == flushes)
			break;
	}
	flushes = vm_counter("luf_write");
	err = quotactl(QCMD(Q_QUOTAON, USRQUOTA), device, QFMT_VFS_V1, path);
	flushes = vm_counter("luf_write") - flushes;
	companion_stop(&c);
	if (!err)
		quotactl(QCMD(Q_QUOTAOFF, USRQUOTA), device, 0, NULL);
	test_result(!err && parked >= PAGES / 2 && flushes == 1,
		    "luf_stale quota: %ld pages parked, %ld flushes, error %d",
		    parked, flushes, err);
	release_windows();
	munmap(map, SIZE);
	unlink(path);
	fill_file(path, OLD);
}

/* --- CMA ------------------------------------------------------------------------- */

#define CMA	DEBUGFS "cma/reserved/"

static unsigned long cma_number(const char *file)
{
	char text[32];

	read_text(file, text, sizeof(text));
	return strtoul(text, NULL, 0);
}

static bool take_area(unsigned long nr)
{
	int fd = open(CMA "alloc", O_WRONLY), len;
	char text[32];
	bool ok;

	if (fd < 0)
		die(CMA "alloc");
	len = snprintf(text, sizeof(text), "%lu", nr);
	ok = write(fd, text, len) == len;
	close(fd);
	if (ok)
		write_text(CMA "free", text);
	return ok;
}

/* In one write, for large folios. */
static void fill_at_once(void)
{
	static uint64_t content[SIZE / 8];
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	for (unsigned long i = 0; i < SIZE / 8; i++)
		content[i] = OLD;
	if (fd < 0 || write(fd, content, SIZE) != (ssize_t)SIZE || fsync(fd) || close(fd))
		die(path);
}

/* R4: a CMA allocation finds deferred pages, and those that it defers itself. */
static void take_cma(bool park)
{
	unsigned long start, nr, inside = 0;
	long parked = 0, drains = 0, busy = 0;
	int tried = 0, failed = 0;
	struct companion c;

	mount_debugfs();
	if (access(CMA "alloc", W_OK)) {
		test_skip("cma= and CONFIG_CMA_DEBUGFS", "luf_stale CMA");
		return;
	}
	start = cma_number(CMA "base_pfn");
	nr = cma_number(CMA "count");
	hold_windows();
	for (int i = 0; i < rounds; i++) {
		long before = vm_counter("luf_park"), given;
		void *map;

		/* Empties the area, which serves the next allocations. */
		if (!take_area(nr))
			continue;
		tried++;
		fill_at_once();
		map = map_file(path, MAP_SHARED);
		companion_start(&c, map);
		for (unsigned long at = 0; at < SIZE; at += PAGE)
			inside += frame_of((char *)map + at) - start < nr;
		/* A busy large folio is the whole file. */
		for (int i = 0; park && i < 5 && vm_counter("luf_park") == before; i++)
			pageout(map, "luf_park");
		given = luf_given_back();
		/* A page with a short reference fails it. */
		failed += !take_area(nr) && !take_area(nr) && !take_area(nr);
		drains += luf_given_back() > given;
		companion_stop(&c);
		/* If all of it is busy, other pages move and nothing is deferred here. */
		busy += vm_counter("luf_park") == before;
		parked += vm_counter("luf_park") - before;
		munmap(map, SIZE);
		drain_luf();
	}
	release_windows();
	test_result(tried > busy && !failed && drains >= tried - busy &&
		    parked >= tried * PAGES / 2 &&
		    inside >= (unsigned long)tried * PAGES / 2,
		    "luf_stale CMA, %s: %d of %d failed, %lu pages in it, %ld parked, %ld drains",
		    park ? "parked before" : "parked meanwhile", failed, tried, inside,
		    parked, drains);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: luf_stale DIR [ROUNDS [TEST]] | --make DIR\n");
		return 2;
	}
	if (argc > 2 && !strcmp(argv[1], "--make")) {
		snprintf(path, sizeof(path), "%s/luf_stale", argv[2]);
		fill_file(path, OLD);
		return 0;
	}
	if (argc > 2)
		rounds = atoi(argv[2]);
	if (argc > 3)
		only = argv[3];
	ksft_print_header();
	need_luf();

	catch_faults();
	snprintf(path, sizeof(path), "%s/luf_stale", argv[1]);
	snprintf(other_path, sizeof(other_path), "%s.other", path);
	pin(0);
	if (access(argv[1], W_OK) && errno == EROFS) {
		read_only = true;
		run(&tests[0]);
		run(&tests[1]);
		test_end();
	}
	fill_file(path, OLD);
	fill_file(other_path, NEW);

	for (unsigned long i = 0; i < ARRAY_SIZE(tests); i++)
		run(&tests[i]);

	if (wanted("open race"))
		race_open();
	if (wanted("drain race"))
		race_drain_open();
	if (wanted("two drains"))
		race_drains();
	if (wanted("own CPU"))
		drain_own();
	if (wanted("kept"))
		keep_and_free();
	if (*only && wanted("swap in"))
		come_back_in_window();
	if (*only && wanted("quota"))
		switch_quota_on();
	if (wanted("after an atomic write"))
		write_atomically();
	/* Slow, and needs cma=. */
	if (*only && wanted("CMA, parked before"))
		take_cma(true);
	if (*only && wanted("CMA, parked meanwhile"))
		take_cma(false);
	if (*only)
		test_end();
	fill_file(path, OLD);
	try_to_park("open for reading", path, false, true);
	try_to_park("open for writing", path, true, false);
	fill_file("/dev/shm/luf_stale", OLD);
	try_to_park("tmpfs", "/dev/shm/luf_stale", false, false);
	unlink("/dev/shm/luf_stale");
	fail_a_write();
	offline_parked("soft");
	offline_parked("hard");
	park_long_list();
	look_at_time();
	look_at_available();
	unlink(path);
	unlink(other_path);
	test_end();
}
