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
#include <sys/vfs.h>

#include "luf_stale.h"

#ifndef FICLONE
#define FICLONE			_IOW(0x94, 9, int)
#endif
#define EXT4_IOC_SWAP_BOOT	_IO('f', 17)
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL	102
#endif

char path[4096], other_path[4096 + 8];
int rounds = 20;
static bool read_only;

/* Changes between page-out and flag. */

static void do_refill(struct reader *r __always_unused)
{
	poison_frames(0);
}

static void do_release(struct reader *r)
{
	drain_luf();
	do_refill(r);
}

/*
 * An older flush is pending. The switch to the reader completes it, but does not flush the
 * reader's entries.
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

static void do_write(struct reader *r __always_unused)
{
	int fd = must_open(path, O_RDWR);

	put_new(fd);
	close(fd);
}

static void do_truncate(struct reader *r __always_unused)
{
	if (truncate(path, 0) || truncate(path, SIZE))
		die("truncate");
}

static void do_swap_boot(struct reader *r __always_unused)
{
	int fd = must_open(path, O_RDWR);

	if (ioctl(fd, EXT4_IOC_SWAP_BOOT))
		die("EXT4_IOC_SWAP_BOOT");
	close(fd);
}

/* New content for the swap. */
static void prepare_swap_boot(void)
{
	fill_file(path, NEW);
	do_swap_boot(NULL);
}

static void do_reflink(struct reader *r __always_unused)
{
	int from = must_open(other_path, O_RDONLY), fd = must_open(path, O_RDWR);

	if (ioctl(fd, FICLONE, from))
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

	must_map((void *)r->map, SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, fd);
	close(fd);
}

static void do_protect(struct reader *r)
{
	must_protect((void *)r->map, SIZE, PROT_NONE);
}

/* The PTEs are empty: nothing is unmapped, and nothing else flushes. */
static void do_guard(struct reader *r)
{
	must_advise((void *)r->map, SIZE, MADV_GUARD_INSTALL);
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
	{ "release", MAP_SHARED, .change = do_release, .old_is_fine = true },
	{ "full lot", MAP_SHARED, .change = do_refill, .old_is_fine = true, .lot_pages = "1" },
	{ "older", MAP_SHARED, .change = do_older, .old_is_fine = true, .prepare = prepare_older },
	{ "write", MAP_SHARED, .change = do_write },
	{ "truncate", MAP_SHARED, .change = do_truncate },
	{ "swap-boot", MAP_SHARED, .change = do_swap_boot, .prepare = prepare_swap_boot,
	  .possible = on_ext4 },
	{ "reflink", MAP_SHARED, .change = do_reflink, .possible = on_reflinks },
	{ "private", MAP_PRIVATE, .change = do_private },
	{ "remap", MAP_SHARED, .change = do_remap },
	{ "protect", MAP_SHARED, .change = do_protect },
	{ "guard", MAP_SHARED, .change = do_guard, .possible = with_guards },
};

static void run(const struct test *t)
{
	unsigned long reads = 0, stale = 0, wrong = 0;
	long parked = 0;

	if (!wanted(t->name) || (t->possible && !t->possible()))
		return;
	if (t->lot_pages)
		set_lot_pages(t->lot_pages);
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
	if (t->lot_pages)
		restore_lot_pages();
	/* A busy folio may be missed. */
	test_result(!stale && !wrong && parked >= rounds * PAGES / 2,
		    "luf_stale %s: %lu reads, %lu stale, %lu wrong, %ld of %d pages deferred",
		    t->name, reads, stale, wrong, parked, rounds * (int)PAGES);
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
	if (*only && wanted("CMA, deferred before"))
		take_cma(true);
	if (*only && wanted("CMA, deferred meanwhile"))
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
	write_bitmap();
	offline_parked("soft");
	offline_parked("hard");
	park_long_list();
	look_at_time();
	look_at_available();
	unlink(path);
	unlink(other_path);
	test_end();
}
