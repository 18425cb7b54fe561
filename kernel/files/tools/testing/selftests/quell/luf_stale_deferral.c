// SPDX-License-Identifier: GPL-2.0-only
/* R2: folios that are not deferred. R4: accounting, and windows that end in time. */
#include <linux/major.h>
#include <linux/raid/md_u.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "luf_stale.h"

#define F2FS_IOC_START_ATOMIC_WRITE	_IO(0xf5, 1)
#define F2FS_IOC_COMMIT_ATOMIC_WRITE	_IO(0xf5, 2)

void try_to_park(const char *name, const char *file, bool writer, bool expected)
{
	int fd = writer ? open(file, O_RDWR) : -1;
	void *map = map_file(file, MAP_SHARED);
	long parked = 0;

	/* A busy large folio is many pages: try again. */
	for (int i = 0; i < (expected ? 5 : 1) && parked < PAGES / 2; i++)
		parked += pageout_shared(map, "luf_park");
	test_result(expected ? parked >= PAGES / 2 : parked == 0,
		    "luf_stale %s: %ld pages deferred", name, parked);
	munmap(map, SIZE);
	if (fd >= 0)
		close(fd);
}

/* The file is excluded until its inode is gone: go on with a new one. */
static void not_parked(const char *name)
{
	try_to_park(name, path, false, false);
	unlink(path);
	fill_file(path, OLD);
}

#define FAIL	DEBUGFS "fail_make_request/"

void mount_debugfs(void)
{
	if (access(DEBUGFS "sleep_time", R_OK))
		mount("debugfs", DEBUGFS, "debugfs", 0, NULL);
}

/*
 * R3: after a failed write the page cache differs from the disk, so a later fault reads
 * other content. Needs fault injection.
 */
void fail_a_write(void)
{
	char failing[64];
	struct stat st;
	bool failed;
	int fd;

	mount_debugfs();
	fd = must_open(path, O_RDWR);
	if (fstat(fd, &st))
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
	not_parked("after a failed write");
}

/* R3: f2fs aborts an atomic write without write access. */
void write_atomically(void)
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
	not_parked("after an atomic write");
}

/* R3: md writes the blocks of a bitmap file, so a later fault reads other content. */
void write_bitmap(void)
{
	char array[sizeof(path) + 8];
	mdu_array_info_t info;
	int fd, md;

	snprintf(array, sizeof(array), "%s.md", path);
	/* mdadm takes lower numbers. */
	if (mknod(array, S_IFBLK | 0600, makedev(MD_MAJOR, 511)))
		die("mknod");
	md = open(array, O_RDWR);
	unlink(array);
	fd = must_open(path, O_RDWR);
	if (md < 0 || !ioctl(md, GET_ARRAY_INFO, &info) || ioctl(md, SET_BITMAP_FILE, fd)) {
		test_skip("an unused /dev/md511 with MD_BITMAP_FILE", "luf_stale bitmap of md");
		close(fd);
		close(md);
		return;
	}
	close(fd);
	if (ioctl(md, STOP_ARRAY, 0))
		die("STOP_ARRAY");
	close(md);
	not_parked("after a bitmap of md");
}

/* Page out beside a busy CPU. Returns the pages deferred. */
long park_again(volatile uint64_t *map)
{
	long parked = 0;

	for (int i = 0; i < 10 && parked < PAGES / 2; i++) {
		touch(map, SIZE);
		drain_all_lru();
		parked = pageout((void *)map, "luf_park");
	}
	return parked;
}

unsigned long frame_of(const volatile void *address)
{
	return PAGEMAP_PFN(pagemap_at(address));
}

/* R4: frames that are taken offline are found though they are deferred. */
void offline_parked(const char *how)
{
	unsigned long frames[8];
	char offline[80];
	struct reader r = { .zero_is_fine = true };
	int fd, gone = 0, failed = 0;
	char text[32];
	long parked = 0;

	snprintf(offline, sizeof(offline), "/sys/devices/system/memory/%s_offline_page", how);
	if (access(offline, W_OK))
		return;
	hold_windows();
	fill_file(path, OLD);
	r.map = map_file(path, MAP_SHARED);
	reader_start(&r);
	/* The reader's CPU may run something else, which needs no flush. */
	for (int tries = 0; tries < 10 && parked < PAGES / 2; tries++) {
		touch(r.map, SIZE);
		drain_all_lru();
		for (int i = 0; i < 8; i++)
			frames[i] = frame_of(r.map + i * 8 * WORDS);
		parked = pageout((void *)r.map, "luf_park");
	}
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
		    "luf_stale offline, %s: %d of 8 frames were not found, %d were deferred, of %ld",
		    how, failed, gone, parked);
}

#define LONG_PAGES	512UL

/* R4: folios of a long reclaim list reach the deferred-free list before the list ends. */
void park_long_list(void)
{
	unsigned long bytes = LONG_PAGES * PAGE;
	char name[sizeof(path) + 8];
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

	/* A reader's CPU that ran another task needs no flush. */
	for (int tries = 0; tries < 10 && !ok; tries++) {
		touch(map, bytes);
		drain_all_lru();
		set_lot_pages("1");
		parked = vm_counter("luf_park");
		drains = vm_counter("luf_flush");
		must_advise(map, bytes, MADV_PAGEOUT);
		parked = vm_counter("luf_park") - parked;
		drains = vm_counter("luf_flush") - drains;
		restore_lot_pages();
		/* One may need no flush. */
		ok = parked >= 384 && drains >= parked / 128 - 1;
	}

	reader_stop(&r);
	munmap(map, bytes);
	unlink(name);
	test_result(ok, "luf_stale long list: %ld pages deferred, %ld flushes as the list was full",
		    parked, drains);
}

/*
 * A reader that never sleeps keeps its window open. Time closes it, and no flush follows.
 */
void look_at_time(void)
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
		    "luf_stale accounting: %ld pages deferred, %ld pages later",
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
void look_at_available(void)
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
	test_result(right, "luf_stale available: %ld pages deferred, %ld kB more available",
		    parked, available);
	munmap(map, SIZE);
	release_windows();
}
