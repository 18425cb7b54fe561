// SPDX-License-Identifier: GPL-2.0-only
/*
 * The switches in /sys/kernel/mm/quell/ take 0 and 1 only, and switch. Those that this kernel
 * lacks are skipped. Usage:
 *
 *	switches DIR
 *
 * DIR is on a file system that lazy unmap flush supports (ext4). Needs root, and all
 * mechanisms on, as by default or with quell=on.
 */
#include "pages.h"
#include "system.h"

static const char * const names[] = {
	"unmap_batch", "concurrent", "zap_batch", "rmap_batch", "luf", "early_ack",
	"folio_order", "writeout_batch", "gather_range",
};

static char file[4096];

/* Packages leave out the switches of Linux's own mechanisms. */
static bool has_switch(const char *name)
{
	return get_switch(name) >= 0;
}

/* Pages cached by two CPUs. Returns the rise of @counter. */
static long try_pageout(const char *counter)
{
	void *map = map_file(file, MAP_SHARED);
	long rise;

	touch(map, SIZE);
	rise = pageout_shared(map, counter);
	munmap(map, SIZE);
	return rise;
}

/*
 * Returns the rise of @counter, the first of at least @least, else the last of ten. A CPU that
 * runs a kernel thread needs no flush, and the host may stop it there.
 */
static long pageout_until(const char *counter, long least)
{
	long rise = 0;

	for (int i = 0; i < 10 && rise < least; i++)
		rise = try_pageout(counter);
	return rise;
}

static volatile bool spin_stop;

static void *spin(void *arg __always_unused)
{
	pin(1);
	while (!spin_stop)
		;
	return NULL;
}

/* Zapped memory reads as zeroes. */
static bool zap_works(void)
{
	size_t size = 8UL << 20;
	char *map = map_private(size);
	bool right = true;

	madvise(map, size, MADV_HUGEPAGE);
	memset(map, 1, size);
	/* Split the huge pages' mapping, so that there are PTEs to batch. */
	mprotect(map + PAGE, PAGE, PROT_READ);
	must_advise(map, size, MADV_DONTNEED);
	for (size_t i = 0; i < size; i += PAGE)
		right &= map[i] == 0;
	munmap(map, size);
	return right;
}

/*
 * Returns the rise of @counter, or -1 for wrong memory. Repeats, as the other CPU may not
 * run.
 */
static long zap_until(const char *counter)
{
	long before = vm_counter(counter), rose = 0;

	for (int i = 0; i < 10 && !rose; i++) {
		if (!zap_works())
			return -1;
		rose = vm_counter(counter) - before;
	}
	return rose;
}

int main(int argc, char **argv)
{
	const char *some = NULL;
	pthread_t thread;

	if (argc < 2) {
		fprintf(stderr, "usage: switches DIR\n");
		return 2;
	}
	ksft_print_header();
	if (access(QUELL_SYSFS, R_OK))
		ksft_exit_skip("this is no Quell kernel\n");
	snprintf(file, sizeof(file), "%s/switches", argv[1]);
	fill_file(file, 1);
	pin(0);

	for (int i = 0; i < (int)ARRAY_SIZE(names); i++) {
		bool ok;

		if (!has_switch(names[i])) {
			test_skip("an option", "switches %s", names[i]);
			continue;
		}
		some = names[i];
		ok = get_switch(some) == 1;
		set_switch(names[i], false);
		ok &= get_switch(names[i]) == 0;
		set_switch(names[i], false);
		set_switch(names[i], true);
		ok &= get_switch(names[i]) == 1;
		test_result(ok, "switches %s: on, off, on", names[i]);
	}

	if (some) {
		char path[128];
		int fd;

		snprintf(path, sizeof(path), QUELL_SYSFS "%s/enabled", some);
		fd = open(path, O_WRONLY);
		test_result(fd >= 0 && write(fd, "maybe", 5) < 0 && errno == EINVAL,
			    "switches refuse all but 0 and 1");
		close(fd);
	}

	start_thread(&thread, spin, NULL);
	usleep(20000);

	if (has_switch("luf")) {
		long on = pageout_until("luf_park", PAGES / 2), off;

		set_switch("luf", false);
		off = try_pageout("luf_park");
		test_result(on >= PAGES / 2 && off == 0,
			    "switches luf: %ld pages deferred when on, %ld when off",
			    on, off);
		test_result(vm_pages("nr_luf_parked") == 0,
			    "switches luf: nothing stays deferred when off");
	}
	if (counts_flushes() && has_switch("unmap_batch")) {
		long on = pageout_until("nr_tlb_remote_flush", 1), off;

		set_switch("unmap_batch", false);
		off = pageout_until("nr_tlb_remote_flush", PAGES / 2);
		set_switch("unmap_batch", true);
		test_result(on > 0 && on < PAGES / 4 && off >= PAGES / 2,
			    "switches unmap_batch: %ld flushes for %d pages when on, %ld when off",
			    on, PAGES, off);
	}
	if (has_switch("luf"))
		set_switch("luf", true);
	if (counts_flushes() && has_switch("concurrent")) {
		set_switch("concurrent", false);
		test_result(zap_until("nr_tlb_remote_flush_received") > 0,
			    "switches concurrent: remote CPUs are flushed when off");
		set_switch("concurrent", true);
	}
	if (has_switch("early_ack")) {
		long on = zap_until("early_ack_acked"), acked, off;
		bool right;

		set_switch("early_ack", false);
		acked = vm_counter("early_ack_acked");
		right = zap_works();
		off = vm_counter("early_ack_acked") - acked;
		set_switch("early_ack", true);
		test_result(on > 0 && right && off == 0,
			    "switches early_ack: %ld acknowledged early when on, %ld when off",
			    on, off);
	}
	if (has_switch("zap_batch")) {
		set_switch("zap_batch", false);
		test_result(zap_works(), "switches zap_batch: MADV_DONTNEED works when off");
		set_switch("zap_batch", true);
	}
	test_result(zap_works(), "switches zap_batch: MADV_DONTNEED works when on");

	spin_stop = true;
	pthread_join(thread, NULL);
	unlink(file);
	test_end();
}
