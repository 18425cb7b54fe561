// SPDX-License-Identifier: GPL-2.0-only
/*
 * No CPU uses an old translation after the call that removed it has returned. Attacks A1 to
 * A3 of arch/x86/mm/early_ack.c. Usage:
 *
 *	early_ack [ROUNDS]
 *
 * An initiator takes access to 1, 8, 33 or 100 pages away, publishes that, and
 * gives it back, ROUNDS times in all. Watchers on the other CPUs keep the pages hot in
 * their TLBs:
 *
 *	dontneed	MADV_DONTNEED; they read
 *	unmap		munmap(), then mmap(); they read
 *	move		mremap() to another address and back; they read
 *	protect		mprotect() against writing; they write
 *	uffd		userfaultfd's protection against writing; they write
 *
 * Every page holds its number and its round. A round that was taken away before the read is
 * stale, and so are zeroes of a written page. Another page's number is wrong. A write to a
 * protected page is stale.
 *
 * The initiators are one thread, two threads, or two processes; their requests meet at a
 * third CPU where there is one. Then the switch moves, and one of three CPUs goes offline
 * and online. Then two hugetlb mappings share a page table. Their flushes must not be
 * acknowledged early, as the table may be freed through the other mapping. Then kprobes in
 * the handler read user memory.
 *
 * Every kernel must pass. With early_ack on, early_ack_acked of /proc/vmstat must rise.
 */
#include <sys/wait.h>

#include "early_ack.h"

#define MAX_PAGES	100
#define MAX_INITIATORS	2
/* A region lies in the middle of such a space. */
#define SPACE		(8UL << 20)
#define MIDDLE		(3UL << 20)

#define MAGIC		0xacedUL

static const char * const op_names[] = { "dontneed", "unmap", "move", "protect", "uffd" };

struct region {
	volatile uint64_t *map;
	uint64_t *aside;		/* the other address of MOVE */
	int uffd;
	int number;
	int pages;
	/* Rounds: all pages are written; about to be taken away; taken away. */
	atomic_ulong written, going, gone;
	atomic_bool away;		/* a fault is certain until it is false */
	atomic_ulong passes;		/* of watchers; a fault ends one */
};

struct group {
	struct region regions[MAX_INITIATORS];
	int initiators, watchers;
	int initiator_cpu[MAX_INITIATORS], watcher_cpu[MAX_CPUS];
	enum op op;
	unsigned long rounds;
	atomic_int next_initiator, next_watcher, ready;
	atomic_bool stop;
	struct totals *totals;
};

int cpus[MAX_CPUS], nr_cpus;

static uint64_t value(const struct region *r, int page, uint64_t round)
{
	return MAGIC << 48 | (uint64_t)r->number << 44 | (uint64_t)page << 36 | round;
}

/* --- Watchers -------------------------------------------------------------------- */

static void read_region(struct group *g, struct region *r)
{
	for (int i = 0; i < r->pages; i++) {
		unsigned long written = atomic_load(&r->written);
		unsigned long gone = atomic_load(&r->gone);
		uint64_t v = r->map[i * WORDS], round;
		unsigned long going;

		atomic_signal_fence(memory_order_seq_cst);
		going = atomic_load(&r->going);
		round = v & 0xfffffffffUL;
		if (!v) {
			if (going < written)
				atomic_fetch_add(&g->totals->stale, 1);
		} else if (v != value(r, i, round)) {
			atomic_fetch_add(&g->totals->wrong, 1);
		} else if (round < written || round <= gone) {
			atomic_fetch_add(&g->totals->stale, 1);
		}
	}
	atomic_fetch_add(&g->totals->reads, r->pages);
}

static char cpu_online[64];		/* of the CPU that goes offline */

/* A CPU that is offline takes no thread: any CPU will do then. */
static void pin_watcher(int cpu)
{
	if (!try_pin(cpu) && !cpu_online[0])
		die("two CPUs are needed");
}

/* Do watchers write? */
static bool writes(enum op op)
{
	return op == PROTECT || op == UFFD;
}

/* One word per watcher and page. */
static void write_region(struct group *g, struct region *r, int me)
{
	for (int i = 0; i < r->pages; i++)
		r->map[i * WORDS + 1 + me]++;
	atomic_fetch_add(&g->totals->reads, r->pages);
}

static void *watch(void *arg)
{
	struct group *g = arg;
	int me = atomic_fetch_add(&g->next_watcher, 1);
	volatile int which = 0;
	sigjmp_buf jump;

	pin_watcher(g->watcher_cpu[me]);
	if (sigsetjmp(jump, 1)) {
		struct region *r = &g->regions[which];

		atomic_fetch_add(&r->passes, 1);
		while (atomic_load(&r->away) && !atomic_load(&g->stop) &&
		       g->initiators == 1)
			;
		which = (which + 1) % g->initiators;
	} else {
		jump_on_fault(&jump);
		atomic_fetch_add(&g->ready, 1);
	}
	while (!atomic_load(&g->stop)) {
		struct region *r = &g->regions[which];

		if (writes(g->op))
			write_region(g, r, me);
		else
			read_region(g, r);
		atomic_fetch_add(&r->passes, 1);
		which = (which + 1) % g->initiators;
	}
	jump_on_fault(NULL);
	return NULL;
}

/* --- Initiators ------------------------------------------------------------------ */

/* Bounded: the watchers may not be running. */
static void let_pass(struct group *g, struct region *r)
{
	unsigned long until = atomic_load(&r->passes) + 2 * g->watchers;

	for (int i = 0; i < PATIENCE && atomic_load(&r->passes) < until; i++)
		;
}

static void map_pages(struct region *r)
{
	must_map((void *)r->map, r->pages * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
}

/*
 * Neighbors on both sides keep the page table: freeing it would forbid early
 * acknowledgment.
 */
static void make_region(struct region *r, int number, int pages)
{
	char *space = must_map(NULL, 2 * SPACE, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);

	memset(r, 0, sizeof(*r));
	r->number = number;
	r->uffd = -1;
	r->pages = pages;
	r->map = (void *)(space + MIDDLE);
	r->aside = (void *)(space + SPACE + MIDDLE);
	map_pages(r);
}

static void drop_region(struct region *r)
{
	munmap((char *)r->map - MIDDLE, 2 * SPACE);
	if (r->uffd >= 0)
		close(r->uffd);
}

static void move_pages(void *from, void *to, int pages)
{
	if (mremap(from, pages * PAGE, pages * PAGE,
		   MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED)
		die("mremap");
}

static void protect_pages(struct region *r, int prot)
{
	must_protect((void *)r->map, r->pages * PAGE, prot);
}

/* A write to a protected page raises SIGBUS. */
static int watch_writes(volatile void *map, size_t bytes)
{
	return open_uffd(map, bytes, UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_SIGBUS);
}

static void write_protect(struct region *r, bool on)
{
	if (!uffd_protect(r->uffd, r->map, r->pages * PAGE, on))
		die("UFFDIO_WRITEPROTECT");
}

static uint64_t sum_of(const struct group *g, const struct region *r)
{
	uint64_t sum = 0;

	for (int i = 0; i < r->pages; i++)
		for (int w = 0; w < g->watchers; w++)
			sum += r->map[i * WORDS + 1 + w];
	return sum;
}

static void take_away(struct group *g, struct region *r)
{
	switch (g->op) {
	case DONTNEED:
		must_advise((void *)r->map, r->pages * PAGE, MADV_DONTNEED);
		break;
	case UNMAP:
		if (munmap((void *)r->map, r->pages * PAGE))
			die("munmap");
		break;
	case MOVE:
		move_pages((void *)r->map, r->aside, r->pages);
		break;
	case UFFD:
		write_protect(r, true);
		break;
	default:
		protect_pages(r, PROT_READ);
	}
}

static void give_back(struct group *g, struct region *r, unsigned long next)
{
	switch (g->op) {
	case DONTNEED:
		break;
	case UNMAP:
		map_pages(r);
		break;
	case MOVE:
		for (int i = 0; i < r->pages; i++)
			r->aside[i * WORDS] = value(r, i, next);
		move_pages(r->aside, (void *)r->map, r->pages);
		break;
	case UFFD:
		write_protect(r, false);
		break;
	default:
		protect_pages(r, PROT_READ | PROT_WRITE);
	}
}

bool found(const struct totals *totals)
{
	return atomic_load(&totals->stale) || atomic_load(&totals->wrong);
}

static void *send(void *arg)
{
	struct group *g = arg;
	int me = atomic_fetch_add(&g->next_initiator, 1);
	struct region *r = &g->regions[me];

	pin(g->initiator_cpu[me]);
	/* The first violation is enough. */
	for (unsigned long n = 1; n <= g->rounds && !found(g->totals); n++) {
		uint64_t sum;

		for (int i = 0; i < r->pages; i++)
			r->map[i * WORDS] = value(r, i, n);
		atomic_store(&r->written, n);
		let_pass(g, r);

		atomic_store(&r->going, n);
		atomic_store(&r->away, true);
		take_away(g, r);
		atomic_store(&r->gone, n);
		sum = writes(g->op) ? sum_of(g, r) : 0;
		let_pass(g, r);
		if (writes(g->op) && sum_of(g, r) != sum)
			atomic_fetch_add(&g->totals->stale, 1);
		give_back(g, r, n + 1);
		atomic_store(&r->away, false);
	}
	return NULL;
}

/* --- Tests ----------------------------------------------------------------------- */

/* Initiators take the CPUs from @first on. */
void run_group(struct totals *totals, enum op op, int initiators, int first, int keep_free,
	       int pages, unsigned long rounds)
{
	pthread_t initiator[MAX_INITIATORS], watcher[MAX_CPUS];
	struct group g = {
		.initiators = initiators, .op = op, .rounds = rounds, .totals = totals,
	};

	for (int i = 0; i < initiators; i++) {
		g.initiator_cpu[i] = cpus[(first + i) % nr_cpus];
		make_region(&g.regions[i], i, pages);
		if (op != UFFD)
			continue;
		g.regions[i].uffd = watch_writes(g.regions[i].map, pages * PAGE);
		if (g.regions[i].uffd < 0)
			die("userfaultfd");
	}
	/* Watchers and initiators share no CPU if there are enough. */
	for (int i = nr_cpus > keep_free ? keep_free : 0; i < nr_cpus; i++)
		g.watcher_cpu[g.watchers++] = cpus[i];

	for (int i = 0; i < g.watchers; i++)
		start_thread(&watcher[i], watch, &g);
	while (atomic_load(&g.ready) < g.watchers)
		sched_yield();
	for (int i = 0; i < initiators; i++)
		start_thread(&initiator[i], send, &g);
	for (int i = 0; i < initiators; i++)
		pthread_join(initiator[i], NULL);
	atomic_store(&g.stop, true);
	for (int i = 0; i < g.watchers; i++)
		pthread_join(watcher[i], NULL);
	for (int i = 0; i < initiators; i++)
		drop_region(&g.regions[i]);
}

enum who { ONE, THREADS, PROCESSES, NR_WHO };

static const char * const who_names[] = { "one", "two threads", "two processes" };

static void run_who(struct totals *totals, enum op op, enum who who, int pages,
		    unsigned long rounds)
{
	pid_t child[MAX_INITIATORS];
	int status;

	if (who != PROCESSES) {
		run_group(totals, op, who == THREADS ? 2 : 1, 0,
			  who == THREADS ? 2 : 1, pages, rounds);
		return;
	}
	for (int i = 0; i < MAX_INITIATORS; i++) {
		child[i] = must_fork();
		if (!child[i]) {
			run_group(totals, op, 1, i, 2, pages, rounds);
			_exit(0);
		}
	}
	for (int i = 0; i < MAX_INITIATORS; i++)
		if (waitpid(child[i], &status, 0) < 0 || status)
			atomic_fetch_add(&totals->wrong, 1);
}

/* Rounds with many pages are slow: a limit for them. */
#define MOST_LARGE	2000UL

static const struct {
	int pages, share;
} sizes[] = { { 1, 8 }, { 8, 4 }, { 33, 2 }, { MAX_PAGES, 1 } };

#define NR_SIZES	((int)ARRAY_SIZE(sizes))
#define SHARES		15

static void run(struct totals *totals, enum op op, enum who who,
		unsigned long rounds, bool early)
{
	long acked = vm_counter("early_ack_acked"), merged = vm_counter("early_ack_merged");
	unsigned long done = 0, n;

	memset(totals, 0, sizeof(*totals));
	for (int i = NR_SIZES - 1; i >= 0; i--) {
		n = rounds * sizes[i].share / SHARES + 1;
		if (n > MOST_LARGE)
			n = i ? MOST_LARGE : rounds - done;
		run_who(totals, op, who, sizes[i].pages, n);
		done += n;
	}
	acked = vm_counter("early_ack_acked") - acked;
	merged = vm_counter("early_ack_merged") - merged;
	/* mremap() flushes as if page tables were freed. */
	test_result(!found(totals) &&
		    (!early || op == MOVE || acked > (long)(who == ONE ? done / 4 : 0)),
		    "early_ack %s by %s: %lu rounds, %lu accesses, %lu stale, %lu wrong, %ld acknowledged early, %ld merged",
		    op_names[op], who_names[who], done, atomic_load(&totals->reads),
		    atomic_load(&totals->stale), atomic_load(&totals->wrong), acked, merged);
}

/* With two CPUs the requests of two initiators have no third CPU to meet at. */
static unsigned long rounds_of(unsigned long rounds, enum who who)
{
	unsigned long each = rounds / NR_OPS;

	if (nr_cpus > 2 || rounds < MOST_LARGE * NR_OPS * NR_WHO)
		return each / NR_WHO;
	return who == ONE ? each - each / 10 : each / 20;
}

/* --- While the switch moves and a CPU goes offline ------------------------------------ */

#define ENABLED		QUELL_SYSFS "early_ack/enabled"

/* Runs until the parent kills it. */
static void disturb(atomic_ulong *times)
{
	for (unsigned long n = 0;; n++) {
		if (cpu_online[0])
			write_text(cpu_online, n & 1 ? "1" : "0");
		for (int i = 0; i < 16; i++) {
			write_text(ENABLED, i & 1 ? "1" : "0");
			usleep(500);
		}
		atomic_fetch_add(times, 1);
	}
}

/* A counter follows @totals. */
static void run_disturbed(struct totals *totals, enum op op, unsigned long rounds)
{
	atomic_ulong *times = (atomic_ulong *)(totals + 1);
	pid_t child;

	memset(totals, 0, sizeof(*totals));
	atomic_store(times, 0);
	child = must_fork();
	if (!child)
		disturb(times);
	/* A slow child must have acted, too. */
	for (int i = 0; i < 1000 && !found(totals) &&
	     (i < 4 || atomic_load(times) < 8); i++)
		run_group(totals, op, 1, 0, 1, i & 1 ? 33 : 1, rounds / 4 + 1);
	kill_and_wait(child);
	restore_settings();
	test_result(!found(totals) && atomic_load(times) >= 8,
		    "early_ack %s while the switch moves%s: %lu accesses, %lu stale, %lu wrong, %lu times",
		    op_names[op], cpu_online[0] ? ", and a CPU goes and comes" : "",
		    atomic_load(&totals->reads), atomic_load(&totals->stale),
		    atomic_load(&totals->wrong), 8 * atomic_load(times));
}

static void run_beside(struct totals *totals, unsigned long rounds)
{
	if (access(ENABLED, W_OK))
		return test_skip("early_ack, and root", "early_ack while the switch moves");
	save_setting(ENABLED);
	/* A CPU without an initiator. */
	if (nr_cpus > 2)
		snprintf(cpu_online, sizeof(cpu_online),
			 "/sys/devices/system/cpu/cpu%d/online", cpus[nr_cpus - 1]);
	if (access(cpu_online, W_OK))
		cpu_online[0] = 0;
	save_setting(cpu_online);
	run_disturbed(totals, DONTNEED, rounds);
	run_disturbed(totals, PROTECT, rounds);
}

/* --- All of them ----------------------------------------------------------------- */

static void find_cpus(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		die("sched_getaffinity");
	for (int i = 0; i < CPU_SETSIZE && nr_cpus < MAX_CPUS; i++)
		if (CPU_ISSET(i, &set))
			cpus[nr_cpus++] = i;
}

int main(int argc, char **argv)
{
	unsigned long rounds = 12000;
	struct totals *totals;
	bool early;
	int uffd;

	/* The last argument: the runner passes a folder first. */
	if (argc > 1 && atol(argv[argc - 1]) > 0)
		rounds = atol(argv[argc - 1]);
	ksft_print_header();
	early = get_switch("early_ack") == 1;
	find_cpus();
	if (nr_cpus < 2)
		ksft_exit_skip("two CPUs are needed\n");
	totals = map_shared(PAGE);
	catch_faults();

	uffd = watch_writes(map_private(PAGE), PAGE);
	if (uffd < 0)
		test_skip("userfaultfd's write protection", "early_ack uffd");
	else
		close(uffd);
	for (int op = 0; op < (uffd < 0 ? UFFD : NR_OPS); op++)
		for (int who = 0; who < NR_WHO; who++)
			run(totals, op, who, rounds_of(rounds, who), early);
	rounds /= NR_OPS * NR_WHO;
	if (rounds > MOST_LARGE)
		rounds = MOST_LARGE;
	run_beside(totals, rounds + 20);
	run_shared(rounds + 20, early);
	run_probes(totals, rounds + 20, early);
	test_end();
}
