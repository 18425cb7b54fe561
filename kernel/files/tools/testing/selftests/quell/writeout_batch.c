// SPDX-License-Identifier: GPL-2.0-only
/*
 * One flush suffices for many swap-backed folios, comes before I/O, and loses no write.
 * Attacks mm/writeout_batch.c between unmapping and I/O. Usage:
 *
 *	writeout_batch [SECONDS [FILE]]
 *
 * Needs two CPUs. Swap is on a RAM disk of 32 MB (synchronous), on a loop device (in the
 * background), and on FILE, which stays; see system.h. zswap.enabled=1 compresses first. With
 * two NUMA nodes pages move. SECONDS is the time of each test that waits for a race (default 2).
 */
#include <sys/swap.h>
#include <sys/wait.h>

#include "writeout_batch.h"

double seconds = 2;

long pages_out(void)
{
	return vm_pages("pswpout") + vm_pages("zswpout");
}

/* --- Memory -------------------------------------------------------------- */

const char * const kind_names[] = { "anonymous", "shmem", "64 kB folios" };

uint64_t *map_list(enum kind kind)
{
	char *at = must_map(reserve(HUGE, HUGE), HUGE, PROT_READ | PROT_WRITE, MAP_FIXED |
			    MAP_ANONYMOUS | (kind == SHARED ? MAP_SHARED : MAP_PRIVATE), -1);

	madvise(at, HUGE, kind == LARGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	return (uint64_t *)at;
}

void fill_list(uint64_t *list, uint64_t value)
{
	for (unsigned long i = 0; i < LIST; i++)
		list[i * WORDS] = value + i;
}

bool list_is(const uint64_t *list, uint64_t value)
{
	for (unsigned long i = 0; i < LIST; i++)
		if (((volatile const uint64_t *)list)[i * WORDS] != value + i)
			return false;
	return true;
}

static unsigned long swapped(const uint64_t *list)
{
	static uint64_t entries[LIST];
	unsigned long n = 0;

	pagemap_read(list, LIST, entries);
	for (unsigned long i = 0; i < LIST; i++)
		n += !(entries[i] & PM_PRESENT);
	return n;
}

/* Present pages on no LRU list: lost by reclaim. */
static unsigned long forgotten(const uint64_t *list)
{
	static uint64_t entries[LIST];
	unsigned long n = 0;

	for (int tries = 0; tries < 20; tries++) {
		drain_all_lru();
		drain_lru();
		pagemap_read(list, LIST, entries);
		n = 0;
		for (unsigned long i = 0; i < LIST; i++)
			n += (entries[i] & PM_PRESENT) &&
			     !(kpageflags_at(PAGEMAP_PFN(entries[i])) & KPF_LRU);
		if (!n)
			break;
		usleep(50000);
	}
	return n;
}

/* --- One flush ----------------------------------------------------------- */

/*
 * NUMA balancing makes PTEs inaccessible and flushes for that. Page-out of such a page needs no
 * flush, so it is off where flushes are counted.
 */
static void numa_balancing(bool on)
{
	static char before[32];

	if (!on && !try_read(NUMA_BALANCING, before, sizeof(before)))
		before[0] = 0;
	if (before[0])
		write_text(NUMA_BALANCING, on ? before : "0");
}

/*
 * Repeats, as the host may stop a CPU. The other one may run a kernel thread then, and need no
 * flush; this one ends a batch early.
 */
static void one_flush(enum swap swap, enum kind kind, bool on)
{
	/* A few flushes belong to others: thread creation, timers, the split of a large folio. */
	long most = LIST / (swap == SWAP_FILE && kind == LARGE ? 8 : 16);
	long least = LIST / (kind == LARGE ? 64 : 4);
	bool same, sound = true, ok = false;
	long flushes, batches, folios;
	unsigned long out, lost;

	if (!counts_flushes()) {
		test_skip("CONFIG_DEBUG_TLBFLUSH", "one flush, %s, %s, %s", swap_names[swap],
			  kind_names[kind], on ? "on" : "off");
		return;
	}
	numa_balancing(false);
	for (int i = 0; i < 10 && sound && !ok; i++) {
		uint64_t *list = map_list(kind);
		struct companion c;

		fill_list(list, 1000);
		set_switch("writeout_batch", on);
		companion_start(&c, list);
		flushes = vm_counter("nr_tlb_remote_flush");
		batches = vm_counter("writeout_batch_flush");
		folios = vm_counter("writeout_batch_folios");
		madvise(list, HUGE, MADV_PAGEOUT);
		flushes = vm_counter("nr_tlb_remote_flush") - flushes;
		folios = vm_counter("writeout_batch_folios") - folios;
		batches = vm_counter("writeout_batch_flush") - batches;
		companion_stop(&c);
		set_switch("writeout_batch", true);
		/* I/O in the background is not finished. */
		out = swapped(list);
		same = list_is(list, 1000);
		lost = forgotten(list);
		sound = out > LIST * 9 / 10 && same && !lost &&
			(on ? batches >= 1 && folios <= BATCH * batches : !batches);
		ok = sound && (on ? batches <= LIST / BATCH + 4 && flushes <= most :
				    flushes >= least);
		munmap(list, HUGE);
	}
	numa_balancing(true);
	test_result(ok,
		    "one flush, %s, %s, %s: %ld flushes, %ld batches of %ld folios, %lu out, %lu lost%s",
		    swap_names[swap], kind_names[kind], on ? "on" : "off", flushes, batches,
		    folios, out, lost, same ? "" : ", not as they were");
}

/* --- Discards ------------------------------------------------------------ */

#ifndef SWAP_FLAG_DISCARD_PAGES
#define SWAP_FLAG_DISCARD_PAGES	0x40000
#endif

/* Where swap space may have to wait for a discard, no folio waits locked. */
static void no_batch(void)
{
	uint64_t *list = map_list(PRIVATE);
	struct companion c;
	unsigned long out;
	long batches;

	if (!swap_on_with(LOOP, SWAP_FLAG_DISCARD | SWAP_FLAG_DISCARD_PAGES)) {
		test_skip("a loop device to swap to", "discards");
		return;
	}
	fill_list(list, 1000);
	companion_start(&c, list);
	batches = vm_counter("writeout_batch_flush");
	madvise(list, HUGE, MADV_PAGEOUT);
	batches = vm_counter("writeout_batch_flush") - batches;
	companion_stop(&c);
	out = swapped(list);
	test_result(!batches && out > LIST * 9 / 10 && list_is(list, 1000),
		    "discards: %ld batches, %lu of %d pages went out", batches, out, LIST);
	munmap(list, HUGE);
	if (!swap_off_in_time(LOOP))
		die("swapoff");
}

/* --- DAMON --------------------------------------------------------------- */

#define DAMON		"/sys/kernel/mm/damon/admin/kdamonds/"

/*
 * DAMON's files in order: physical memory, and a scheme for all that is cold for 0.1 s. The fewest
 * regions possible: a list has the pages of one.
 */
static const struct {
	const char *file, *value;
} damon[] = {
	{ "nr_kdamonds", "1" },
	{ "0/contexts/nr_contexts", "1" },
	{ "0/contexts/0/operations", "paddr" },
	{ "0/contexts/0/monitoring_attrs/intervals/sample_us", "5000" },
	{ "0/contexts/0/monitoring_attrs/intervals/aggr_us", "50000" },
	{ "0/contexts/0/monitoring_attrs/nr_regions/max", "10" },
	{ "0/contexts/0/targets/nr_targets", "1" },
	{ "0/contexts/0/targets/0/regions/nr_regions", "1" },
	{ "0/contexts/0/targets/0/regions/0/start", NULL },
	{ "0/contexts/0/targets/0/regions/0/end", NULL },
	{ "0/contexts/0/schemes/nr_schemes", "1" },
	{ "0/contexts/0/schemes/0/action", "pageout" },
	{ "0/contexts/0/schemes/0/access_pattern/sz/max", "1099511627776" },
	{ "0/contexts/0/schemes/0/access_pattern/age/min", "2" },
	{ "0/contexts/0/schemes/0/access_pattern/age/max", "1000000" },
	{ "0/state", "on" },
};

/* The largest range of memory in /proc/iomem, as two decimal numbers. */
static void largest_ram(char range[2][32])
{
	unsigned long start, end, most = 0;
	FILE *f = fopen("/proc/iomem", "r");
	char line[128];

	if (!f)
		die("/proc/iomem");
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%lx-%lx : System RAM", &start, &end) == 2 &&
		    strstr(line, "System RAM") && end - start > most) {
			most = end - start;
			sprintf(range[0], "%lu", start);
			sprintf(range[1], "%lu", end);
		}
	fclose(f);
}

/* DAMON's page-out takes lists of its own. */
static void damon_pages_out(enum swap swap)
{
	char range[2][32], path[128], known[32] = "";
	uint64_t *list = map_list(PRIVATE);
	double end = now() + 60;
	unsigned long out = 0;
	long batches, folios;
	struct companion c;
	bool same;

	if (!access(DAMON "nr_kdamonds", W_OK))
		read_text(DAMON "nr_kdamonds", known, sizeof(known));
	if (strcmp(known, "0\n")) {
		test_skip("a kernel with DAMON that nobody uses", "DAMON, %s", swap_names[swap]);
		return;
	}
	numa_balancing(false);
	fill_list(list, 1000);
	companion_start(&c, list);
	batches = vm_counter("writeout_batch_flush");
	folios = vm_counter("writeout_batch_folios");
	largest_ram(range);
	for (unsigned long i = 0, n = 0; i < ARRAY_SIZE(damon); i++) {
		snprintf(path, sizeof(path), DAMON "%s", damon[i].file);
		write_text(path, damon[i].value ?: range[n++]);
	}
	while (out <= LIST * 9 / 10 && now() < end) {
		usleep(10000);
		out = swapped(list);
	}
	/* Until it is off, it goes on with pages from faults, a few each time. */
	batches = vm_counter("writeout_batch_flush") - batches;
	folios = vm_counter("writeout_batch_folios") - folios;
	write_text(DAMON "0/state", "off");
	write_text(DAMON "nr_kdamonds", "0");
	companion_stop(&c);
	numa_balancing(true);
	same = list_is(list, 1000);
	test_result(out > LIST * 9 / 10 && same && folios >= LIST * 3 / 4 && folios >= 8 * batches,
		    "DAMON, %s: %ld batches of %ld folios, %lu of %d pages went out%s",
		    swap_names[swap], batches, folios, out, LIST, same ? "" : ", not as they were");
	munmap(list, HUGE);
}

/* --- Counters of reclaim ------------------------------------------------- */

static const char * const counts[] = {
	"workingset_refault_anon", "pgscan_anon", "pgsteal_anon", "pgactivate", "out"
};

#define COUNTS	ARRAY_SIZE(counts)
#define OUT	(COUNTS - 1)	/* pages_out(); the others are in /proc/vmstat */

/*
 * Reclaim half of a process's 8 MB. Returns whether its content stays. Refaults are those of the
 * process as it reads all, the other counts are those of the reclaim.
 */
static bool reclaim_half(bool on, long *rise)
{
	int ready[2], go[2];
	long refaults;
	int status;
	pid_t pid;
	char c;

	if (pipe(ready) || pipe(go))
		die("pipe");
	pid = must_fork();
	if (!pid) {
		uint64_t *lists[4];

		if (!enter_cgroup())
			_exit(1);
		for (int i = 0; i < 4; i++)
			fill_list(lists[i] = map_list(PRIVATE), 1);
		if (write(ready[1], "", 1) != 1 || read(go[0], &c, 1) != 1)
			_exit(1);
		for (int i = 0; i < 4; i++)
			if (!list_is(lists[i], 1))
				_exit(1);
		_exit(0);
	}
	if (read(ready[0], &c, 1) != 1)
		die("a process");
	drain_all_lru();
	drain_lru();
	set_switch("writeout_batch", on);
	for (unsigned long i = 0; i < OUT; i++)
		rise[i] = vm_pages(counts[i]);
	rise[OUT] = pages_out();
	reclaim_cgroup(4 << 20, true);
	for (unsigned long i = 0; i < OUT; i++)
		rise[i] = vm_pages(counts[i]) - rise[i];
	rise[OUT] = pages_out() - rise[OUT];
	set_switch("writeout_batch", true);
	refaults = vm_pages(counts[0]);
	if (write(go[1], "", 1) != 1)
		die("a process");
	status = must_wait(pid);
	rise[0] = vm_pages(counts[0]) - refaults;
	close(ready[0]), close(ready[1]), close(go[0]), close(go[1]);
	return !status;
}

static int by_value(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;

	return (x > y) - (x < y);
}

/*
 * While I/O is slow, folios are scanned again, and more are written before the first are free. So
 * the least of three rounds counts, or of up to twelve: a difference that stays is none of I/O.
 * Refaults are also fewer, where shadow entries were reclaimed: there the median counts.
 */
static void same_counts(enum swap swap)
{
	long all[2][COUNTS][12], chosen[2][COUNTS], rise[COUNTS];
	const long *off = chosen[0], *on = chosen[1];
	char text[256] = "";
	bool kept = true, same = false;

	for (int round = 0; round < 12 && (round < 3 || !same); round++) {
		for (int i = 0; i < 2; i++) {
			kept &= reclaim_half(i, rise);
			for (unsigned long j = 0; j < COUNTS; j++) {
				all[i][j][round] = rise[j];
				qsort(all[i][j], round + 1, sizeof(long), by_value);
				chosen[i][j] = all[i][j][j ? 0 : round / 2];
			}
		}
		same = true;
		for (unsigned long j = 0; j < COUNTS; j++)
			same &= labs(on[j] - off[j]) <= off[j] / 8 + 64;
	}
	for (unsigned long i = 0; i < COUNTS; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), " %s %ld %ld",
			 counts[i], off[i], on[i]);
	test_result(kept && same && on[OUT] > 500, "same counts, %s, off and on:%s",
		    swap_names[swap], text);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		seconds = atof(argv[1]);
	if (argc > 2)
		swap_file = argv[2];
	if (argc > 3 || seconds <= 0) {
		fprintf(stderr, "usage: writeout_batch [SECONDS [FILE]]\n");
		return 2;
	}
	ksft_print_header();
	if (geteuid())
		ksft_exit_skip("root is needed\n");
	if (get_switch("writeout_batch") < 0)
		ksft_exit_skip("this kernel has no writeout_batch\n");
	save_system();
	save_setting(NUMA_BALANCING);
	watch_kernel_log();
	/* It may be off, as with quell=off. */
	set_switch("writeout_batch", true);
	choose_thp(64);
	pin(0);
	make_cgroup("writeout_batch");
	for (int swap = 0; swap < SWAPS; swap++) {
		if (swap == SWAP_FILE && !swap_file)
			continue;
		if (!swap_on(swap)) {
			test_skip("a free device to swap to", "%s", swap_names[swap]);
			continue;
		}
		test_no_loss(swap);
		for (int kind = 0; kind < KINDS; kind++) {
			one_flush(swap, kind, false);
			one_flush(swap, kind, true);
		}
		if (cgroup[0])
			same_counts(swap);
		else
			test_skip("a memory cgroup", "same counts, %s", swap_names[swap]);
		test_events(swap);
		test_result(swap_off_in_time(swap), "nothing is left, %s", swap_names[swap]);
	}
	no_batch();
	/* Last: it pages out the memory of others, too. */
	for (int swap = 0; swap < SWAPS; swap++) {
		if (swap_on(swap))
			damon_pages_out(swap);
		else
			test_skip("a device or a file to swap to", "DAMON, %s", swap_names[swap]);
		swap_off_in_time(swap);
	}
	test_end();
}
