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
 *	free		MADV_FREE: the page must be zero or as it was written
 *
 * Needs two CPUs. Every kernel must pass. With a switch each runs off and on, and
 * gather_range_flush must count ranges while it is on.
 */
#include "pages.h"
#include "system.h"

#define SWITCH		QUELL_SYSFS "gather_range/enabled"
/* Several page tables: the first is done while the call goes on. */
#define REGION		(8 * HUGE)

enum op { DONTNEED, FREE, UFFD, NR_OPS };

static const char * const op_names[] = { "dontneed", "free", "uffd" };

static volatile uint64_t *region;
static enum op op;
static int uffd = -1;
/* Rounds: the large call begins; has returned. */
static atomic_long begins, returned;
static atomic_bool stop;

static void change(unsigned long bytes)
{
	bool ok;

	if (op == UFFD)
		ok = uffd_protect(uffd, region, bytes, true);
	else
		ok = !madvise((void *)region, bytes, op == FREE ? MADV_FREE : MADV_DONTNEED);
	if (!ok)
		die(op_names[op]);
}

static void *large_thread(void *arg __always_unused)
{
	long round = 0;

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
	sigjmp_buf jump;

	if (op == DONTNEED)
		return region[0] != 0;
	if (op == FREE)
		return region[0] && region[0] != (uint64_t)round;
	if (sigsetjmp(jump, 1)) {
		jump_on_fault(NULL);
		return false;
	}
	jump_on_fault(&jump);
	region[0] = -round;
	jump_on_fault(NULL);
	return true;
}

static void run(enum op which, bool on, long rounds)
{
	long ranges = vm_counter("gather_range_flush"), stale = 0, beside = 0;
	bool has_switch = !access(SWITCH, W_OK);
	pthread_t thread;

	op = which;
	if (has_switch)
		set_switch("gather_range", on);
	atomic_store(&begins, 0);
	atomic_store(&returned, 0);
	atomic_store(&stop, false);
	start_thread(&thread, large_thread, NULL);
	for (long round = 1; round <= rounds; round++) {
		if (op == UFFD && !uffd_protect(uffd, region, REGION, false))
			die("UFFDIO_WRITEPROTECT");
		for (unsigned long i = 0; i < REGION / PAGE; i++)
			region[i * WORDS] = round;
		atomic_store(&begins, round);
		/* A different point of the large call each time, also where all is slow. */
		for (volatile long i = 1L << round % 20; i; i--)
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
		set_switch("gather_range", true);
	test_result(!stale && beside && (!has_switch || (on ? ranges > 0 : !ranges)),
		    "overlapping %s, %s: %ld of %ld rounds beside, %ld stale, %ld ranges",
		    op_names[op], on ? "on" : "off", beside, rounds, stale, ranges);
}

int main(int argc, char **argv)
{
	long rounds = 300;

	/* The last argument: the runner passes a folder first. */
	if (argc > 1 && atol(argv[argc - 1]) > 0)
		rounds = atol(argv[argc - 1]);
	ksft_print_header();
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		ksft_exit_skip("two CPUs are needed\n");
	catch_faults();
	pin(0);
	region = map_private(REGION);
	must_advise((void *)region, REGION, MADV_NOHUGEPAGE);
	for (int which = 0; which < NR_OPS; which++) {
		if (which == UFFD) {
			uffd = open_uffd(region, REGION, UFFD_FEATURE_PAGEFAULT_FLAG_WP |
					 UFFD_FEATURE_SIGBUS);
			if (uffd < 0) {
				test_skip("userfaultfd's write protection", "overlapping uffd");
				continue;
			}
		}
		for (int on = access(SWITCH, W_OK) ? 1 : 0; on <= 1; on++)
			run(which, on, rounds);
	}
	test_end();
}
