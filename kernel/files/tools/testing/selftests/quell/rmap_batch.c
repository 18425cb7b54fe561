// SPDX-License-Identifier: GPL-2.0-only
/*
 * Unmapping a large folio by runs of PTEs leaves the state that unmapping PTE by PTE
 * leaves. Attacks the merging of a run in mm/rmap_batch.c. Usage:
 *
 *	rmap_batch DIR [ROUNDS] [PROPERTY]
 *
 * DIR is on a file system; large file folios need one that has them (xfs). Migration needs
 * two NUMA nodes, synchronous swap a RAM disk of 32 MB or more (brd.rd_size=32768).
 *
 * Each test checks one property of a PTE, a page or a counter. Its cases combine kinds of
 * memory (anonymous folios of 16K, 64K and 2M mapped by PTEs, shared memory, a file) with
 *
 *	pageout		MADV_PAGEOUT: only folios that are mapped whole
 *	reclaim		memory.reclaim of a cgroup: any folio
 *	migrate		move_pages() to the other node
 *
 * Properties follow a pattern within a folio (in_pattern()), so a mix-up shows. Each case
 * is a process: the kernel's log shows wrong counters at its end.
 *
 * Every kernel must pass. With a switch, all tests run on and a part of them off.
 * rmap_batch_pages rises in tests with long runs while it is on, and never while it is off.
 *
 * The poison test loses a few pages of memory (CONFIG_MEMORY_FAILURE).
 */
#include <sys/wait.h>

#include "rmap_batch.h"

#define CASE_SECONDS	120

/* --- Kinds of memory, and results ------------------------------------------ */

static const struct kind kinds[] = {
	{ SMALL,	"16K",		16,	64 },
	{ MID,		"64K",		64,	128 },
	{ BIG,		"2M",		2048,	512 },
	{ SHARED,	"shared 64K",	64,	128 },
	{ DISK,		"file",		0,	256 },
};

static const char * const act_names[] = {
	[PAGEOUT] = "pageout", [RECLAIM] = "reclaim", [MIGRATE] = "migrate",
};

struct results *results;
const char *dir;
enum swap swap_now;
static uint64_t random_state;
unsigned int pattern_seed;

unsigned int pick(unsigned int n)
{
	return next_random(&random_state) % n;
}

void bad(const char *fmt, ...)
{
	va_list args;

	results->bad++;
	if (results->lines == 4)
		return;
	va_start(args, fmt);
	vsnprintf(results->line[results->lines++], sizeof(results->line[0]), fmt, args);
	va_end(args);
}

/* The system lacks a requirement of the case. */
void skip(void)
{
	results->skipped = true;
	_exit(0);
}

/* --- The tests ----------------------------------------------------------- */

static enum swap main_swap;
static long gone, there;	/* pages, in all cases */

static void run_case(const struct property *p, const struct kind *kind, unsigned int act,
		     const char *pass)
{
	static struct region r;
	int status, before;
	const char *said;
	pid_t pid;

	before = results->bad;
	pattern_seed = pick(256);
	results->skipped = false;
	results->taken = 0;
	results->possible = 0;
	choose_thp(kind->kb);
	pid = must_fork();
	if (!pid) {
		alarm(CASE_SECONDS);
		catch_faults();
		enter_cgroup();
		populate(&r, kind);
		p->run(&r, act);
		drop(&r);
		_exit(0);
	}
	status = must_wait(pid);
	if (status)
		bad("it ended with %#x", status);
	if (p->flags & MOST && !results->skipped && results->taken * 2 < results->possible)
		ksft_print_msg("%s, %s, %s, %s: only %ld of %ld pages went\n", p->name, kind->name,
			       act_names[act], pass, results->taken, results->possible);
	gone += results->taken;
	there += results->possible;
	said = kernel_complaint();
	if (said)
		bad("the kernel said: %s", said);
	if (results->bad == before)
		return;
	ksft_print_msg("%s, %s, %s, %s: %d complaints\n", p->name, kind->name, act_names[act], pass,
		       results->bad - before);
	for (int i = 0; i < results->lines; i++)
		ksft_print_msg("  %s\n", results->line[i]);
	results->lines = 0;
}

/* Slow cases without a difference are left out. */
static bool wanted_in_background(const struct kind *kind, unsigned int act)
{
	return kind->bit & (SMALL | MID | SHARED) &&
	       (act == PAGEOUT || kind->bit == MID);
}

static void run_property(const struct property *p, int enabled, const char *pass)
{
	double started = now();
	long batches = vm_counter("rmap_batch_runs"), in_batches = vm_counter("rmap_batch_pages");
	int cases = 0, skipped = 0;
	bool ok;

	if (p->possible && !p->possible()) {
		test_skip(p->needs, "rmap_batch %s (%s)", p->name, pass);
		return;
	}
	memset(results, 0, sizeof(*results));
	gone = 0;
	there = 0;
	for (unsigned long k = 0; k < ARRAY_SIZE(kinds); k++)
		for (unsigned int act = PAGEOUT; act <= MIGRATE; act <<= 1) {
			if (!(p->kinds & kinds[k].bit && p->acts & act) ||
			    (act == RECLAIM && !cgroup[0]) ||
			    (act == MIGRATE && !two_nodes()) ||
			    (swap_now != main_swap && !wanted_in_background(&kinds[k], act)) ||
			    (!enabled && !(kinds[k].bit & (MID | SHARED | DISK))))
				continue;
			run_case(p, &kinds[k], act, pass);
			skipped += results->skipped;
			cases++;
		}
	if (cases == skipped) {
		test_skip(p->needs ? p->needs : "large folios", "rmap_batch %s (%s)",
			  p->name, pass);
		return;
	}
	batches = vm_counter("rmap_batch_runs") - batches;
	in_batches = vm_counter("rmap_batch_pages") - in_batches;
	ok = !results->bad && (!(p->flags & MOST) || gone * 2 >= there);
	if (enabled > 0 && p->flags & BATCHES)
		ok &= batches > 0 && in_batches > batches;
	if (enabled <= 0)
		ok &= !batches && !in_batches;
	test_result(ok,
		    "rmap_batch %s (%s): %d cases in %.1f s, %d complaints, %ld of %ld pages gone, %ld in %ld batches",
		    p->name, pass, cases - skipped, now() - started, results->bad,
		    gone, there, in_batches, batches);
}

/* --- A pass: all tests, one switch setting, one swap device -------------- */

/* No memory and no swap entry may be left. */
static void look_at_the_rest(const char *pass)
{
	const char *rest;

	test_result(swap_off_in_time(swap_now),
		    "rmap_batch swap (%s): all entries are free at the end", pass);
	if (!cgroup[0])
		return;
	rest = cgroup_rest();
	test_result(!rest[0], "rmap_batch memory cgroup (%s): left in it: %s", pass,
		    rest[0] ? rest : "nothing");
}

static const struct property * const properties[] = {
	content_properties, bit_properties, sharing_properties, page_properties,
};

static void run_pass(int enabled, enum swap swap, const char *only)
{
	char pass[64];

	snprintf(pass, sizeof(pass), "%s, %s", enabled < 0 ? "stock" : enabled ? "on" : "off",
		 swap_names[swap]);
	if (!swap_on(swap)) {
		test_skip(swap == RAM ? "a free RAM disk of 32 MB" : "a loop device",
			  "rmap_batch (%s)", pass);
		/* The loop device runs all tests. */
		main_swap = LOOP;
		return;
	}
	swap_now = swap;
	if (enabled >= 0)
		set_switch("rmap_batch", enabled);
	if (!make_cgroup("rmap_batch"))
		ksft_print_msg("no memory cgroup: nothing is tested with memory.reclaim\n");
	for (unsigned int i = 0; i < ARRAY_SIZE(properties); i++)
		for (const struct property *p = properties[i]; p->name; p++)
			if ((!only || !strcmp(only, p->name)) &&
			    (swap == main_swap || p->flags & CACHE))
				run_property(p, enabled, pass);
	look_at_the_rest(pass);
	remove_cgroup();
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[2]) : 1, enabled;
	const char *only = argc > 3 ? argv[3] : NULL;

	if (argc < 2) {
		fprintf(stderr, "usage: rmap_batch DIR [ROUNDS] [PROPERTY]\n");
		return 2;
	}
	dir = argv[1];
	ksft_print_header();
	if (geteuid())
		ksft_exit_skip("root is needed\n");
	if (access(THP "hugepages-64kB/enabled", R_OK))
		ksft_exit_skip("this kernel has no large folios of several sizes\n");
	if (!two_nodes())
		ksft_print_msg("one NUMA node: nothing is tested with migration\n");
	results = map_shared(sizeof(*results));
	save_system();
	/* A case may die before it has restored it. */
	save_setting(QUELL_SYSFS "folio_order/enabled");
	/* Its hints fault, and pages go back to the first node. */
	save_setting(NUMA_BALANCING);
	try_write(NUMA_BALANCING, "0");
	watch_kernel_log();
	/* No case pays for this program's page faults. */
	mlockall(MCL_CURRENT);
	munlockall();
	random_state = 88172645463325252ULL;
	enabled = get_switch("rmap_batch");
	for (int i = 0; i < rounds; i++) {
		for (int on = 1; on >= (enabled < 0 ? 1 : 0); on--) {
			main_swap = RAM;
			run_pass(enabled < 0 ? -1 : on, RAM, only);
			/* Off is stock: a part suffices. */
			if (on || main_swap == LOOP)
				run_pass(enabled < 0 ? -1 : on, LOOP, only);
		}
		random_state += 0x9e3779b97f4a7c15ULL;
	}
	test_end();
}
