// SPDX-License-Identifier: GPL-2.0-only
/*
 * No CPU uses an old translation after the call that removed it has returned. Attacks A1 to
 * A3 of arch/x86/mm/early_ack.c. Usage:
 *
 *	early_ack [ROUNDS]
 *
 * An initiator (sender) takes access to 1, 8, 33 or 100 pages away, publishes that, and
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
 * Every kernel must pass. With early_ack on, early_ack_sent and early_ack_acked of
 * /proc/vmstat must rise.
 */
#include <sys/mount.h>
#include <sys/wait.h>

#include "pages.h"
#include "system.h"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB	(21U << 26)
#endif

#define MAX_PAGES	100
#define MAX_CPUS	8
#define MAX_SENDERS	2
/* A region lies in the middle of such a space. */
#define SPACE		(8UL << 20)
#define MIDDLE		(3UL << 20)

#define MAGIC		0xacedUL
/*
 * Looks of a sender before it goes on without the watchers. PAUSE is too slow under
 * emulation.
 */
#define PATIENCE	20000

enum op { DONTNEED, UNMAP, MOVE, PROTECT, UFFD, NR_OPS };

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
		       g->senders == 1)
			;
		which = (which + 1) % g->senders;
	} else {
		fault_jump = &jump;
		atomic_fetch_add(&g->ready, 1);
	}
	while (!atomic_load(&g->stop)) {
		struct region *r = &g->regions[which];

		if (writes(g->op))
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

/* Bounded: the watchers may not be running. */
static void let_pass(struct group *g, struct region *r)
{
	unsigned long until = atomic_load(&r->passes) + 2 * g->watchers;

	for (int i = 0; i < PATIENCE && atomic_load(&r->passes) < until; i++)
		;
}

static void map_pages(struct region *r)
{
	if (mmap((void *)r->map, r->pages * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		die("mmap");
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
	if (mprotect((void *)r->map, r->pages * PAGE, prot))
		die("mprotect");
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

/* Senders take the CPUs from @first on. */
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
		if (op != UFFD)
			continue;
		g.regions[i].uffd = watch_writes(g.regions[i].map, pages * PAGE);
		if (g.regions[i].uffd < 0)
			die("userfaultfd");
	}
	/* Watchers and senders share no CPU if there are enough. */
	for (int i = nr_cpus > keep_free ? keep_free : 0; i < nr_cpus; i++)
		g.watcher_cpu[g.watchers++] = cpus[i];

	for (int i = 0; i < g.watchers; i++)
		start_thread(&watcher[i], watch, &g);
	while (atomic_load(&g.ready) < g.watchers)
		sched_yield();
	for (int i = 0; i < senders; i++)
		start_thread(&sender[i], send, &g);
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
	long sent = vm_counter("early_ack_sent"), acked = vm_counter("early_ack_acked");
	long merged = vm_counter("early_ack_merged");
	unsigned long done = 0, n;

	memset(totals, 0, sizeof(*totals));
	for (int i = NR_SIZES - 1; i >= 0; i--) {
		n = rounds * sizes[i].share / SHARES + 1;
		if (n > MOST_LARGE)
			n = i ? MOST_LARGE : rounds - done;
		run_who(totals, op, who, sizes[i].pages, n);
		done += n;
	}
	sent = vm_counter("early_ack_sent") - sent;
	acked = vm_counter("early_ack_acked") - acked;
	merged = vm_counter("early_ack_merged") - merged;
	/* mremap() flushes as if page tables were freed. */
	test_result(!found(totals) &&
		    (!early || op == MOVE ||
		     (sent > (long)(who == ONE ? done / 4 : 0) && acked > 0)),
		    "early_ack %s by %s: %lu rounds, %lu accesses, %lu stale, %lu wrong, %ld sent, %ld acknowledged early, %ld merged",
		    op_names[op], who_names[who], done, atomic_load(&totals->reads),
		    atomic_load(&totals->stale), atomic_load(&totals->wrong), sent, acked,
		    merged);
}

/* With two CPUs the requests of two senders have no third CPU to meet at. */
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
	/* A CPU without a sender. */
	if (nr_cpus > 2)
		snprintf(cpu_online, sizeof(cpu_online),
			 "/sys/devices/system/cpu/cpu%d/online", cpus[nr_cpus - 1]);
	if (access(cpu_online, W_OK))
		cpu_online[0] = 0;
	save_setting(cpu_online);
	run_disturbed(totals, DONTNEED, rounds);
	run_disturbed(totals, PROTECT, rounds);
}

/* --- Page tables that hugetlb shares --------------------------------------------- */

#define HUGE_POOL	"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
#define HUGE_PAGES	4		/* touched in each mapping */
#define TABLE		(512 * HUGE)	/* span of a table of huge pages */

struct shared {
	char *mine, *other;		/* mappings of one file */
	int fd;
	atomic_ulong gone;		/* round in which @mine was unmapped, or 0 */
	atomic_ulong passes, stale;
	atomic_int next;
	atomic_bool stop;
};

/* A page that only @other has touched is present in @mine: they share a table. */
static bool is_shared(const struct shared *s)
{
	return pagemap_at(s->mine + (HUGE_PAGES - 1) * HUGE) & PM_PRESENT;
}

static void touch_huge(char *map, int pages)
{
	for (int i = 0; i < pages; i++)
		(void)*(volatile char *)(map + i * HUGE);
}

static void map_huge(const struct shared *s, char *at)
{
	if (mmap(at, TABLE, PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_FIXED | MAP_NORESERVE, s->fd, 0) == MAP_FAILED)
		die("mmap of huge pages");
}

static void *watch_huge(void *arg)
{
	struct shared *s = arg;
	sigjmp_buf jump;

	pin(cpus[1 + atomic_fetch_add(&s->next, 1)]);
	sigsetjmp(jump, 1);
	fault_jump = &jump;
	while (!atomic_load(&s->stop)) {
		unsigned long gone = atomic_load(&s->gone);

		atomic_fetch_add(&s->passes, 1);
		touch_huge(s->mine, HUGE_PAGES - 1);
		/* Unmapped before and after the access. */
		if (gone && gone == atomic_load(&s->gone))
			atomic_fetch_add(&s->stale, 1);
	}
	fault_jump = NULL;
	return NULL;
}

/* Longer than let_pass(): a watcher that sleeps in a fault gets no interrupt. */
static void wait_for_pass(struct shared *s)
{
	unsigned long until = atomic_load(&s->passes) + 2 * (nr_cpus - 1);

	for (int i = 0; i < 1000 * PATIENCE && atomic_load(&s->passes) < until; i++)
		;
}

static void lose_huge(struct shared *s, bool unmap, bool early, unsigned long rounds)
{
	/*
	 * A short range where flushes are expected. With page table isolation and without
	 * PCID any interrupt drops a watcher's entries. It faults, sleeps until the table
	 * is done, and is sent no flush.
	 */
	size_t size = early ? HUGE_PAGES * HUGE : TABLE;

	for (unsigned long n = 1; n <= rounds; n++) {
		touch_huge(s->mine, HUGE_PAGES - 1);
		wait_for_pass(s);
		if (!unmap) {
			if (madvise(s->mine, size, MADV_DONTNEED))
				die("MADV_DONTNEED");
			continue;
		}
		if (munmap(s->mine, TABLE))
			die("munmap");
		atomic_store(&s->gone, n);
		wait_for_pass(s);
		atomic_store(&s->gone, 0);
		map_huge(s, s->mine);
	}
}

/* @early: early acknowledgments are expected. */
static void run_huge(struct shared *s, const char *what, bool unmap, bool early,
		     unsigned long rounds)
{
	pthread_t watcher[MAX_CPUS];
	long sent;

	atomic_store(&s->stop, false);
	atomic_store(&s->stale, 0);
	atomic_store(&s->next, 0);
	for (int i = 1; i < nr_cpus; i++)
		start_thread(&watcher[i], watch_huge, s);
	sent = vm_counter("early_ack_sent");
	lose_huge(s, unmap, early, rounds);
	sent = vm_counter("early_ack_sent") - sent;
	atomic_store(&s->stop, true);
	for (int i = 1; i < nr_cpus; i++)
		pthread_join(watcher[i], NULL);
	/* Some flushes are foreign (NUMA balancing), and a watcher is absent at times. */
	test_result(!atomic_load(&s->stale) && early == (sent > (long)rounds / 4),
		    "early_ack %s: %lu rounds, %lu stale, %ld sent", what, rounds,
		    atomic_load(&s->stale), sent);
}

static void run_shared(unsigned long rounds, bool early)
{
	static const char name[] = "early_ack of a shared page table of hugetlb";
	struct shared s = { 0 };
	char *space, more[32];
	long wanted;

	s.fd = memfd_create("huge", MFD_HUGETLB | MFD_HUGE_2MB | MFD_CLOEXEC);
	if (s.fd < 0 || access(HUGE_POOL, W_OK))
		return test_skip("hugetlb, and root", name);
	save_setting(HUGE_POOL);
	wanted = number_in(HUGE_POOL, "") + HUGE_PAGES;
	snprintf(more, sizeof(more), "%ld", wanted);
	write_text(HUGE_POOL, more);
	if (number_in(HUGE_POOL, "") < wanted)
		return test_skip("memory for huge pages", name);

	space = reserve(2 * TABLE, TABLE);
	if (ftruncate(s.fd, TABLE))
		die("a file of huge pages");
	s.mine = space;
	s.other = s.mine + TABLE;
	pin(cpus[0]);
	map_huge(&s, s.mine);
	if (early)
		run_huge(&s, "of a page table of its own", false, true, rounds);
	map_huge(&s, s.other);
	touch_huge(s.mine, 1);
	touch_huge(s.other, HUGE_PAGES);
	if (is_shared(&s)) {
		run_huge(&s, "dontneed of a shared page table", false, false, rounds);
		run_huge(&s, "unmap of a shared page table", true, false, rounds);
	} else {
		test_skip("CONFIG_HUGETLB_PMD_PAGE_TABLE_SHARING", name);
	}
	munmap(space, 2 * TABLE);
	close(s.fd);
}

/* --- Probes in the window --------------------------------------------------------- */

#define TRACING		"/sys/kernel/tracing/"
#define PROBES		TRACING "kprobe_events"
#define PROBES_ON	TRACING "events/quell_test/enable"

static char probed[16];

/* O_APPEND: O_TRUNC removes all probes. fopen() seeks. */
static void change_probes(const char *line)
{
	int fd = open(PROBES, O_WRONLY | O_APPEND);

	if (fd < 0 || write(fd, line, strlen(line)) < 0)
		die(line);
	close(fd);
}

static void remove_probes(void)
{
	write_text(PROBES_ON, "0");
	change_probes("-:quell_test/take");
	change_probes("-:quell_test/owe");
}

static long traced(const char *one, const char *other)
{
	FILE *trace = fopen(TRACING "trace", "r");
	char line[512];
	long lines = 0;

	if (!trace)
		die(TRACING "trace");
	while (fgets(line, sizeof(line), trace))
		lines += strstr(line, one) && strstr(line, other);
	fclose(trace);
	return lines;
}

static void add_probe(const char *name, const char *function)
{
	char probe[160];

	/* A string shows "(fault)"; a number does not. */
	snprintf(probe, sizeof(probe), "p:quell_test/%s %s v=+u0(\\0x%lx):string", name,
		 function, (unsigned long)probed);
	change_probes(probe);
}

/*
 * The first probe may read the interrupted program's memory. The second one may not: the
 * flush is owed by then.
 */
static void run_probes(struct totals *totals, unsigned long rounds, bool early)
{
	static const char name[] = "early_ack while a flush is owed no probe reads user memory";
	long before, in_window, refused;

	if (access(PROBES, F_OK))
		mount("tracefs", TRACING, "tracefs", 0, NULL);
	if (!early || access(PROBES, W_OK))
		return test_skip("CONFIG_KPROBE_EVENTS, and early_ack", name);
	/* Present once it is written. */
	snprintf(probed, sizeof(probed), "of the program");
	add_probe("take", "early_ack_take");
	add_probe("owe", "early_ack_run");
	atexit(remove_probes);
	write_text(TRACING "trace", "");
	write_text(PROBES_ON, "1");
	memset(totals, 0, sizeof(*totals));
	run_group(totals, DONTNEED, 1, 0, 1, 1, rounds);
	write_text(PROBES_ON, "0");

	before = traced(" take: ", probed);
	in_window = traced(" owe: ", probed);
	refused = traced(" owe: ", "v=(fault)");
	test_result(!found(totals) && before > 0 && refused > 0 && !in_window,
		    "%s: %ld before, %ld in the window, %ld refused", name, before,
		    in_window, refused);
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
