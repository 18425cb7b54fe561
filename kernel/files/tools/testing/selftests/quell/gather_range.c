// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two threads change the same page table entries at once (mm/gather_range.c). A call that
 * finds entries changed but not flushed returns only after no CPU uses an old one. Usage:
 *
 *	gather_range [ROUNDS]
 *
 * One thread changes a large region. Meanwhile the other changes its first page, and looks:
 *
 *	dontneed	MADV_DONTNEED: the page must be zero
 *	uffd		userfaultfd's write protection: a write must fault
 *
 * Needs two CPUs. Every kernel must pass. With a switch each runs off and on, and
 * gather_range_flush must count ranges while it is on.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <linux/userfaultfd.h>

#include "util.h"

#define SWITCH		QUELL_SYSFS "gather_range/enabled"
/* Several page tables: the first is done while the call goes on. */
#define REGION		(8 * HUGE)
#define HUGE		(2UL << 20)
#define WORDS		(PAGE / 8)

enum op { DONTNEED, UFFD, NR_OPS };

static const char * const op_names[] = { "dontneed", "uffd" };

static volatile uint64_t *region;
static enum op op;
static int uffd = -1;
/* Rounds: the large call begins; has returned. */
static atomic_long begins, returned;
static atomic_bool stop;
static sigjmp_buf fault_jump;

static void on_fault(int sig)
{
	(void)sig;
	siglongjmp(fault_jump, 1);
}

static bool protect(volatile void *at, unsigned long bytes, bool on)
{
	struct uffdio_writeprotect wp = {
		.range = { .start = (uintptr_t)at, .len = bytes },
		.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};

	return !ioctl(uffd, UFFDIO_WRITEPROTECT, &wp);
}

static void change(unsigned long bytes)
{
	bool ok;

	if (op == UFFD)
		ok = protect(region, bytes, true);
	else
		ok = !madvise((void *)region, bytes, MADV_DONTNEED);
	if (!ok)
		die(op_names[op]);
}

static void *large_thread(void *arg)
{
	long round = 0;

	(void)arg;
	pin(1);
	for (;;) {
		while (atomic_load(&begins) == round)
			if (atomic_load(&stop))
				return NULL;
		round++;
		change(REGION);
		atomic_store(&returned, round);
	}
}

static bool is_stale(long round)
{
	if (op == DONTNEED)
		return region[0] != 0;
	if (sigsetjmp(fault_jump, 1))
		return false;
	region[0] = -round;
	return true;
}

static void run(enum op which, bool on, long rounds)
{
	long ranges = vm_counter("gather_range_flush"), stale = 0, beside = 0;
	bool has_switch = !access(SWITCH, W_OK);
	pthread_t thread;

	op = which;
	if (has_switch)
		write_file(SWITCH, on ? "1" : "0");
	atomic_store(&begins, 0);
	atomic_store(&returned, 0);
	atomic_store(&stop, false);
	if (pthread_create(&thread, NULL, large_thread, NULL))
		die("pthread_create");
	for (long round = 1; round <= rounds; round++) {
		if (op == UFFD && !protect(region, REGION, false))
			die("UFFDIO_WRITEPROTECT");
		for (unsigned long i = 0; i < REGION / PAGE; i++)
			region[i * WORDS] = round;
		atomic_store(&begins, round);
		/* A different point of the large call each time. */
		for (volatile long i = 0; i < round % 64 * 100; i++)
			;
		change(PAGE);
		beside += atomic_load(&returned) < round;
		stale += is_stale(round);
		while (atomic_load(&returned) < round)
			;
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	ranges = vm_counter("gather_range_flush") - ranges;
	if (has_switch)
		write_file(SWITCH, "1");
	tap_result(!stale && beside && (!has_switch || (on ? ranges > 0 : !ranges)),
		   "overlapping %s, %s: %ld of %ld rounds beside, %ld stale, %ld ranges",
		   op_names[op], on ? "on" : "off", beside, rounds, stale, ranges);
}

static bool open_uffd(void)
{
	struct uffdio_api api = {
		.api = UFFD_API,
		.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_SIGBUS,
	};
	struct uffdio_register reg = {
		.range = { .start = (uintptr_t)region, .len = REGION },
		.mode = UFFDIO_REGISTER_MODE_WP,
	};

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	return uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api) &&
	       !ioctl(uffd, UFFDIO_REGISTER, &reg);
}

int main(int argc, char **argv)
{
	struct sigaction fault = { .sa_handler = on_fault };
	long rounds = 300;

	/* The last argument: the runner passes a folder first. */
	if (argc > 1 && atol(argv[argc - 1]) > 0)
		rounds = atol(argv[argc - 1]);
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		tap_skip_all("two CPUs are needed");
	sigaction(SIGBUS, &fault, NULL);
	pin(0);
	region = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (region == MAP_FAILED || madvise((void *)region, REGION, MADV_NOHUGEPAGE))
		die("mmap");
	for (int which = 0; which < NR_OPS; which++) {
		if (which == UFFD && !open_uffd()) {
			tap_skip("userfaultfd's write protection", "overlapping uffd");
			continue;
		}
		for (int on = access(SWITCH, W_OK) ? 1 : 0; on <= 1; on++)
			run(which, on, rounds);
	}
	return tap_end();
}
