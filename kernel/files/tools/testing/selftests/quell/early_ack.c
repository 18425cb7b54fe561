// SPDX-License-Identifier: GPL-2.0-only
/*
 * Does a CPU ever use an old translation after the call that took it away has
 * returned? Usage:
 *
 *	early_ack [ROUNDS]
 *
 * A sender takes the right to access 1, 8, 33 or 100 pages away, publishes that,
 * and gives it back, ROUNDS times in all. Watchers, pinned to the other CPUs, have
 * these pages hot in their TLBs and never cease to access them:
 *
 *	dontneed	MADV_DONTNEED; they read
 *	unmap		munmap(), then mmap(); they read
 *	move		mremap() to another address and back; they read
 *	protect		mprotect() against writing; they write
 *
 * Every page says for which round and which page it was written. A watcher that
 * reads what was taken away before it looked, or what belongs to another page, has
 * used an old translation: its frame may be somebody else's by now. So has one that
 * reads zeroes where it knows that something was written. A page that changes
 * after it was protected was written through an old translation.
 *
 * One sender; two at once, as threads of one process; two, as two processes. Two
 * requests meet at a CPU that is neither's only where there are three CPUs. Any
 * kernel has to pass; one that acknowledges flushes early, and has that switched on,
 * must also show that it did, in early_ack_sent of /proc/vmstat.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "util.h"

#define WORDS		(PAGE / 8)
#define MAX_PAGES	100
#define MAX_CPUS	8
#define MAX_SENDERS	2
/* Each region is somewhere in the middle of one of this size. */
#define SPACE		(8UL << 20)
#define MIDDLE		(3UL << 20)

#define MAGIC		0xacedUL
/* What a sender waits for the watchers at the most, in looks. */
#define PATIENCE	500

enum op { DONTNEED, UNMAP, MOVE, PROTECT, NR_OPS };

static const char * const op_names[] = { "dontneed", "unmap", "move", "protect" };

/* What a sender works on. */
struct region {
	volatile uint64_t *map;
	uint64_t *aside;		/* where MOVE moves it */
	int number;
	int pages;
	/* Rounds: all pages are written; about to be taken away; taken away. */
	atomic_ulong written, going, gone;
	atomic_bool away;		/* who faults need not try before it is false */
	atomic_ulong passes;		/* of watchers, over all pages or to a fault */
};

struct totals {
	atomic_ulong reads, stale, wrong;
};

struct group {
	struct region regions[MAX_SENDERS];
	int senders, watchers;
	int sender_cpu[MAX_SENDERS], watcher_cpu[MAX_CPUS];
	enum op op;
	unsigned long rounds;
	atomic_int next_sender, next_watcher, ready;
	atomic_bool stop;
	struct totals *totals;
};

static int cpus[MAX_CPUS], nr_cpus;
static __thread sigjmp_buf *fault_jump;

static void on_fault(int sig)
{
	if (fault_jump)
		siglongjmp(*fault_jump, 1);
	signal(sig, SIG_DFL);
	raise(sig);
}

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

/* Each watcher has a word of its own in every page. */
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

	pin(g->watcher_cpu[me]);
	if (sigsetjmp(jump, 1)) {
		struct region *r = &g->regions[which];

		atomic_fetch_add(&r->passes, 1);
		while (atomic_load(&r->away) && !atomic_load(&g->stop) &&
		       g->senders == 1)
			;
		which = (which + 1) % g->senders;
	} else {
		fault_jump = &jump;
		atomic_fetch_add(&g->ready, 1);
	}
	while (!atomic_load(&g->stop)) {
		struct region *r = &g->regions[which];

		if (g->op == PROTECT)
			write_region(g, r, me);
		else
			read_region(g, r);
		atomic_fetch_add(&r->passes, 1);
		which = (which + 1) % g->senders;
	}
	fault_jump = NULL;
	return NULL;
}

/* --- Senders --------------------------------------------------------------------- */

/* Let the watchers pass over the region, if they are running at all. */
static void let_pass(struct group *g, struct region *r)
{
	unsigned long until = atomic_load(&r->passes) + 2 * g->watchers;

	for (int i = 0; i < PATIENCE && atomic_load(&r->passes) < until; i++)
		__builtin_ia32_pause();
}

static void map_pages(struct region *r)
{
	if (mmap((void *)r->map, r->pages * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		die("mmap");
}

/*
 * Have neighbours on both sides, so that the page table stays when the region
 * goes, and the flush is one that may be acknowledged early.
 */
static void make_region(struct region *r, int number, int pages)
{
	char *space = mmap(NULL, 2 * SPACE, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (space == MAP_FAILED)
		die("mmap");
	memset(r, 0, sizeof(*r));
	r->number = number;
	r->pages = pages;
	r->map = (void *)(space + MIDDLE);
	r->aside = (void *)(space + SPACE + MIDDLE);
	map_pages(r);
}

static void drop_region(struct region *r)
{
	munmap((char *)r->map - MIDDLE, 2 * SPACE);
}

static void move_pages(void *from, void *to, int pages)
{
	if (mremap(from, pages * PAGE, pages * PAGE,
		   MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED)
		die("mremap");
}

static void protect_pages(struct region *r, int prot)
{
	if (mprotect((void *)r->map, r->pages * PAGE, prot))
		die("mprotect");
}

/* What all watchers have written so far. */
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
		if (madvise((void *)r->map, r->pages * PAGE, MADV_DONTNEED))
			die("MADV_DONTNEED");
		break;
	case UNMAP:
		if (munmap((void *)r->map, r->pages * PAGE))
			die("munmap");
		break;
	case MOVE:
		move_pages((void *)r->map, r->aside, r->pages);
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
	default:
		protect_pages(r, PROT_READ | PROT_WRITE);
	}
}

static bool found(const struct totals *totals)
{
	return atomic_load(&totals->stale) || atomic_load(&totals->wrong);
}

static void *send(void *arg)
{
	struct group *g = arg;
	int me = atomic_fetch_add(&g->next_sender, 1);
	struct region *r = &g->regions[me];

	pin(g->sender_cpu[me]);
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
		sum = g->op == PROTECT ? sum_of(g, r) : 0;
		let_pass(g, r);
		if (g->op == PROTECT && sum_of(g, r) != sum)
			atomic_fetch_add(&g->totals->stale, 1);
		give_back(g, r, n + 1);
		atomic_store(&r->away, false);
	}
	return NULL;
}

/* --- Tests ----------------------------------------------------------------------- */

/* Senders and watchers of one process; the senders are on the CPUs from @first on. */
static void run_group(struct totals *totals, enum op op, int senders, int first,
		      int keep_free, int pages, unsigned long rounds)
{
	pthread_t sender[MAX_SENDERS], watcher[MAX_CPUS];
	struct group g = {
		.senders = senders, .op = op, .rounds = rounds, .totals = totals,
	};

	for (int i = 0; i < senders; i++) {
		g.sender_cpu[i] = cpus[(first + i) % nr_cpus];
		make_region(&g.regions[i], i, pages);
	}
	/* Where there are so many CPUs they do not share one with a sender. */
	for (int i = nr_cpus > keep_free ? keep_free : 0; i < nr_cpus; i++)
		g.watcher_cpu[g.watchers++] = cpus[i];

	for (int i = 0; i < g.watchers; i++)
		if (pthread_create(&watcher[i], NULL, watch, &g))
			die("pthread_create");
	while (atomic_load(&g.ready) < g.watchers)
		sched_yield();
	for (int i = 0; i < senders; i++)
		if (pthread_create(&sender[i], NULL, send, &g))
			die("pthread_create");
	for (int i = 0; i < senders; i++)
		pthread_join(sender[i], NULL);
	atomic_store(&g.stop, true);
	for (int i = 0; i < g.watchers; i++)
		pthread_join(watcher[i], NULL);
	for (int i = 0; i < senders; i++)
		drop_region(&g.regions[i]);
}

enum who { ONE, THREADS, PROCESSES, NR_WHO };

static const char * const who_names[] = { "one", "two threads", "two processes" };

static void run_who(struct totals *totals, enum op op, enum who who, int pages,
		    unsigned long rounds)
{
	pid_t child[MAX_SENDERS];
	int status;

	if (who != PROCESSES) {
		run_group(totals, op, who == THREADS ? 2 : 1, 0,
			  who == THREADS ? 2 : 1, pages, rounds);
		return;
	}
	fflush(stdout);
	for (int i = 0; i < MAX_SENDERS; i++) {
		child[i] = fork();
		if (child[i] < 0)
			die("fork");
		if (!child[i]) {
			run_group(totals, op, 1, i, 2, pages, rounds);
			_exit(0);
		}
	}
	for (int i = 0; i < MAX_SENDERS; i++)
		if (waitpid(child[i], &status, 0) < 0 || status)
			atomic_fetch_add(&totals->wrong, 1);
}

/* Few of the rounds are with many pages, as these take long. */
static const struct {
	int pages, share;
} sizes[] = { { 1, 8 }, { 8, 4 }, { 33, 2 }, { MAX_PAGES, 1 } };

#define NR_SIZES	((int)(sizeof(sizes) / sizeof(sizes[0])))
#define SHARES		15

static void run(struct totals *totals, enum op op, enum who who,
		unsigned long rounds, bool early)
{
	long sent = vm_counter("early_ack_sent"), merged = vm_counter("early_ack_merged");
	unsigned long done = 0;

	memset(totals, 0, sizeof(*totals));
	for (int i = 0; i < NR_SIZES; i++) {
		unsigned long n = rounds * sizes[i].share / SHARES + 1;

		run_who(totals, op, who, sizes[i].pages, n);
		done += n;
	}
	sent = vm_counter("early_ack_sent") - sent;
	merged = vm_counter("early_ack_merged") - merged;
	/* What moves is flushed as if page tables were freed. */
	tap_result(!found(totals) &&
		   (!early || op == MOVE || sent > (long)(who == ONE ? done / 4 : 0)),
		   "early_ack %s by %s: %lu rounds, %lu accesses, %lu stale, %lu wrong, %ld sent, %ld merged",
		   op_names[op], who_names[who], done, atomic_load(&totals->reads),
		   atomic_load(&totals->stale), atomic_load(&totals->wrong), sent,
		   merged);
}

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
	static const char enabled[] = QUELL_SYSFS "early_ack/enabled";
	struct sigaction fault = { .sa_handler = on_fault };
	unsigned long rounds = 12000;
	struct totals *totals;
	char on[8] = "0";

	/* The last argument: other tests here are given a folder first. */
	if (argc > 1 && atol(argv[argc - 1]) > 0)
		rounds = atol(argv[argc - 1]);
	if (!access(enabled, R_OK))
		read_file(enabled, on, sizeof(on));
	find_cpus();
	if (nr_cpus < 2)
		tap_skip_all("two CPUs are needed");
	totals = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		      -1, 0);
	if (totals == MAP_FAILED)
		die("mmap");
	sigaction(SIGSEGV, &fault, NULL);
	sigaction(SIGBUS, &fault, NULL);

	for (int op = 0; op < NR_OPS; op++)
		for (int who = 0; who < NR_WHO; who++)
			run(totals, op, who, rounds / (NR_OPS * NR_WHO), on[0] == '1');
	return tap_end();
}
