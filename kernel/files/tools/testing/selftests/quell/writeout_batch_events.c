// SPDX-License-Identifier: GPL-2.0-only
/* Batched write-out beside a thread that writes, and beside events: see writeout_batch.c. */
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "writeout_batch.h"

#define WRITTEN		64		/* pages that are written all the time */
#define PINNED		16		/* pages in a pipe, which holds as many */

#define PRINTK		"/proc/sys/kernel/printk"
#define OOM_SCORE	"/proc/self/oom_score_adj"

#ifndef MADV_HWPOISON
#define MADV_HWPOISON	100
#endif

/* --- Nothing is lost ----------------------------------------------------- */

struct writer {
	pthread_t thread;
	volatile uint64_t *list;
	uint64_t value[WRITTEN];
	unsigned long rounds;
	long lost;		/* page, or -1 */
	uint64_t found;
	bool punch, stop;
};

/* Each page keeps its last value. A page that is given back is zero. */
static void *write_thread(void *arg)
{
	struct writer *w = arg;

	pin(1);
	while (w->lost < 0 && !__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
		for (unsigned long i = 0; i < WRITTEN; i++) {
			volatile uint64_t *word = &w->list[i * WORDS];

			if (*word != w->value[i]) {
				w->found = *word;
				w->lost = i;
				break;
			}
			*word = ++w->value[i];
		}
		if (w->punch && w->rounds % 8 == 0) {
			/* 64 kB, so that large folios come again. */
			unsigned long nr = w->rounds / 8 / WRITTEN % 2 ? 16 : 1;
			unsigned long i = w->rounds / 8 % WRITTEN / nr * nr;
			void *hole = (void *)&w->list[i * WORDS];

			/* In shared memory: a hole in the file. */
			if (madvise(hole, nr * PAGE, MADV_REMOVE) &&
			    madvise(hole, nr * PAGE, MADV_DONTNEED))
				die("MADV_DONTNEED");
			memset(&w->value[i], 0, nr * sizeof(*w->value));
		}
		w->rounds++;
	}
	return NULL;
}

static void write_start(struct writer *w, uint64_t *list, bool punch)
{
	*w = (struct writer) { .list = list, .lost = -1, .punch = punch };
	start_thread(&w->thread, write_thread, w);
}

static void write_stop(struct writer *w)
{
	__atomic_store_n(&w->stop, true, __ATOMIC_RELEASE);
	pthread_join(w->thread, NULL);
}

static void no_loss(enum swap swap, enum kind kind)
{
	long out_before = pages_out(), aside_before = vm_counter("writeout_batch_folios");
	uint64_t *list = map_list(kind);
	double end = now() + seconds, last = end + 30;
	long out = 0, aside = 0;
	struct writer w;

	write_start(&w, list, false);
	/* A busy host may need longer. */
	while ((now() < end || ((!out || !aside) && now() < last)) &&
	       __atomic_load_n(&w.lost, __ATOMIC_RELAXED) < 0) {
		madvise(list, WRITTEN * PAGE, MADV_PAGEOUT);
		out = pages_out() - out_before;
		aside = vm_counter("writeout_batch_folios") - aside_before;
	}
	write_stop(&w);
	/* A folio that is written to while it is aside is not written out. */
	test_result(w.lost < 0 && out > 0 && aside > 0,
		    "nothing lost, %s, %s: %lu rounds, %ld pages out, %ld aside",
		    swap_names[swap], kind_names[kind], w.rounds, out, aside);
	if (w.lost >= 0)
		ksft_print_msg("page %ld: %llu was written, %llu is there\n", w.lost,
			       (unsigned long long)w.value[w.lost], (unsigned long long)w.found);
	munmap(list, HUGE);
}

void test_no_loss(enum swap swap)
{
	for (int kind = 0; kind < KINDS; kind++)
		no_loss(swap, kind);
}

/* --- Events beside it ---------------------------------------------------- */

/*
 * Each returns whether it happened, or CANNOT. Another thread pages out @list, of which one writes
 * to the first WRITTEN pages.
 */
#define CANNOT	-1

static const char *wrong;	/* found by one of them */

struct pager {
	pthread_t thread;
	void *list;
	bool stop;
};

static void *page_out_thread(void *arg)
{
	struct pager *p = arg;

	while (!__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE))
		madvise(p->list, HUGE, MADV_PAGEOUT);
	return NULL;
}

static void page_out_stop(struct pager *p)
{
	__atomic_store_n(&p->stop, true, __ATOMIC_RELEASE);
	pthread_join(p->thread, NULL);
}

/*
 * Pages of a process that runs on one CPU need no flush of others, and are not set aside. So a
 * child pages out on CPU 0 what it writes on CPU 1.
 */
static void *dirty_thread(void *list)
{
	volatile uint64_t *words = list;

	pin(1);
	for (;;)
		/* Others write to those before. */
		for (unsigned long i = WRITTEN; i < LIST; i++)
			words[i * WORDS] = i;
	return NULL;
}

static void child_writes(void *list)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, dirty_thread, list))
		_exit(1);
}

/* It ends with this process. */
static pid_t fork_child(void)
{
	pid_t pid = must_fork();

	if (!pid)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

static int swap_goes(void *list __always_unused, enum swap swap)
{
	/* Others may need the memory. */
	if (!swap_off(swap))
		return false;
	if (!swap_on(swap))
		die("swapon");
	/* Time to page out, which may need this CPU. */
	usleep(10000);
	return true;
}

static int pages_move(void *list, enum swap swap __always_unused)
{
	long moved = vm_counter("pgmigrate_success");
	static int node;

	if (two_nodes())
		move_to_node(list, WRITTEN, node = !node);
	try_write("/proc/sys/vm/compact_memory", "1");
	moved = vm_counter("pgmigrate_success") - moved;
	return moved || two_nodes() ? moved > 0 : CANNOT;
}

/* A child pages out. Every second one is killed meanwhile, and its memory taken as on OOM. */
static int processes_end(void *list, enum swap swap __always_unused)
{
	static unsigned int times;
	bool taken = false;
	int ready[2], fd;
	pid_t pid;
	char c;

	if (pipe(ready))
		die("pipe");
	pid = fork_child();
	if (!pid) {
		child_writes(list);
		madvise(list, HUGE, MADV_POPULATE_WRITE);
		if (write(ready[1], "", 1) != 1)
			_exit(1);
		do
			madvise(list, HUGE, MADV_PAGEOUT);
		while (times % 2);
		_exit(0);
	}
	close(ready[1]);
	if (times++ % 2) {
		/* An emulated CPU takes long to populate. */
		if (read(ready[0], &c, 1) == 1)
			usleep(3000);
		fd = syscall(SYS_pidfd_open, pid, 0);
		kill(pid, SIGKILL);
		taken = !syscall(SYS_process_mrelease, fd, 0);
		close(fd);
	}
	must_wait(pid);
	close(ready[0]);
	return taken;
}

static int cgroup_freezes(void *list, enum swap swap __always_unused)
{
	char freeze[256], events[256];
	bool happened = false;
	pid_t pid;

	if (!cgroup[0])
		return CANNOT;
	pid = fork_child();
	if (!pid) {
		if (!enter_cgroup())
			_exit(1);
		child_writes(list);
		for (;;)
			madvise(list, HUGE, MADV_PAGEOUT);
	}
	cgroup_path(freeze, sizeof(freeze), "cgroup.freeze");
	cgroup_path(events, sizeof(events), "cgroup.events");
	for (int i = 0; i < 4; i++) {
		bool frozen = i % 2;

		usleep(5000);
		try_write(freeze, i % 2 ? "0" : "1");
		reclaim_cgroup(HUGE, true);
		/* It stops on its way to user space. */
		for (int tries = 0; !frozen && tries < 100; tries++) {
			usleep(1000);
			frozen = number_in(events, "populated ") == 1 &&
				 number_in(events, "frozen ") == 1;
			happened |= frozen;
		}
	}
	kill_and_wait(pid);
	return happened;
}

/* A read of a failed page gets SIGBUS, or its old content from swap. */
static int memory_fails(void *list __always_unused, enum swap swap)
{
	enum { FAILED, CHANGED, REFUSED, IMPOSSIBLE };
	static int failures[SWAPS];
	int status;
	pid_t pid;

	/* Each one costs a page until reboot. */
	if (failures[swap] > 10) {
		usleep(10000);
		return false;
	}
	pid = fork_child();
	if (!pid) {
		struct pager p = { .list = map_list(PRIVATE) };
		/* Not the first one: that begins a batch only if it was written to. */
		volatile uint64_t *word = (uint64_t *)p.list + BATCH / 2 * WORDS;
		double end = now() + (1 + failures[swap] * .1) / 1000;

		fill_list(p.list, 77);
		if (pthread_create(&p.thread, NULL, page_out_thread, &p))
			_exit(REFUSED);
		/* See dirty_thread(). */
		pin(1);
		do
			fill_list(p.list, 77);
		while (now() < end);
		status = FAILED;
		/* Refused while it is isolated, as in a batch: it has failed all the same. */
		if (madvise((void *)word, PAGE, MADV_HWPOISON))
			status = errno == EINVAL || errno == EPERM ? IMPOSSIBLE : REFUSED;
		_exit(*word != 77 + BATCH / 2 ? CHANGED : status);
	}
	status = must_wait(pid);
	status = WIFEXITED(status) ? WEXITSTATUS(status) : FAILED;
	if (status == CHANGED)
		wrong = "a page that has failed has changed";
	failures[swap] += status == FAILED;
	return status == IMPOSSIBLE ? CANNOT : status == FAILED;
}

/* The references of a pipe, and of process_vm_readv() for a moment. */
static int pages_are_held(void *list, enum swap swap __always_unused)
{
	static uint64_t value, entries[PINNED], piped[WORDS], seen[WORDS];
	uint64_t *pages = (uint64_t *)list + WRITTEN * WORDS;
	struct iovec all = { pages, PINNED * PAGE }, to = { seen, PAGE };
	int fds[2], out = 0;

	for (int i = 0; i < PINNED; i++)
		pages[i * WORDS] = ++value;
	if (pipe(fds) || vmsplice(fds[1], &all, 1, 0) != (ssize_t)all.iov_len)
		die("vmsplice");
	madvise(pages, all.iov_len, MADV_PAGEOUT);
	pagemap_read(pages, PINNED, entries);
	for (int i = 0; i < PINNED; i++) {
		struct iovec from = { pages + i * WORDS, PAGE };

		out += !(entries[i] & PM_PRESENT);
		if (read(fds[0], piped, PAGE) != (ssize_t)PAGE ||
		    process_vm_readv(getpid(), &to, 1, &from, 1, 0) != (ssize_t)PAGE)
			die("process_vm_readv");
		if (piped[0] != value - PINNED + 1 + i || memcmp(piped, seen, PAGE))
			wrong = "a pinned page has changed";
	}
	close(fds[0]), close(fds[1]);
	return out > 0;
}

/* The OOM killer ends a process whose cgroup is swapped out; another one stays there. */
static int memory_is_short(void *list __always_unused, enum swap swap)
{
	static const char * const files[] = { "memory.max", "memory.swap.max" };
	static int kills[SWAPS];
	char path[256], level[32];
	pid_t stays, victim;
	int status, ended;

	if (!cgroup[0])
		return CANNOT;
	if (kills[swap] > 2) {
		usleep(10000);
		return false;
	}
	for (int i = 0; i < 2; i++) {
		cgroup_path(path, sizeof(path), files[i]);
		write_text(path, "6M");
	}
	/* Its report is long, and no complaint. */
	save_setting(PRINTK);
	read_text(PRINTK, level, sizeof(level));
	if (atoi(level) > 4)
		write_text(PRINTK, "4");
	stays = fork_child();
	if (!stays) {
		uint64_t *own = map_list(PRIVATE);

		/* In this order: a cgroup that is full may refuse to open a file. */
		if (!try_write(OOM_SCORE, "-1000") || !enter_cgroup())
			_exit(1);
		/* See dirty_thread(). */
		pin(1);
		for (uint64_t value = 99;; value++) {
			fill_list(own, value);
			if (!list_is(own, value))
				_exit(2);
		}
	}
	victim = fork_child();
	if (!victim) {
		/* Whatever this process has. */
		if (!try_write(OOM_SCORE, "1000"))
			_exit(1);
		usleep(10000);
		while (enter_cgroup())
			fill_list(map_list(PRIVATE), 1);
		_exit(1);
	}
	status = must_wait(victim);
	if (!waitpid(stays, &ended, WNOHANG))
		kill_and_wait(stays);
	else if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 1)
		wrong = "memory beside a process that was killed has changed";
	write_text(PRINTK, level);
	for (int i = 0; i < 2; i++) {
		cgroup_path(path, sizeof(path), files[i]);
		write_text(path, "max");
	}
	kills[swap] += WIFSIGNALED(status);
	return WIFSIGNALED(status);
}

/* UFFDIO_MOVE gives a page away that is just paged out. A write to its old address is too late. */
static int pages_are_given(void *list __always_unused, enum swap swap __always_unused)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_MOVE };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	uint64_t *from = map_list(PRIVATE), *to = map_list(PRIVATE);
	struct pager p = { .list = from };
	double last = now() + 30;
	int given = 0;
	bool can = fd >= 0 && !ioctl(fd, UFFDIO_API, &api) &&
		   !uffd_register(fd, to, HUGE, true, false, false);
	uint64_t before;

	start_thread(&p.thread, page_out_thread, &p);
	pin(1);
	for (unsigned long i = 0; can && i < LIST; i += BATCH, given++) {
		volatile uint64_t *old = from + i * WORDS, *new = to + i * WORDS;
		struct uffdio_move move = { (uintptr_t)new, (uintptr_t)old, PAGE, 0, 0 };

		/* One batch, whose first page it is. */
		for (unsigned long k = BATCH; k--;)
			old[k * WORDS] = 1;
		do {
			*old = 1;
			/* Without the thread that writes it may stay in this CPU's folio batch. */
			if (now() > last)
				goto end;
		} while (pagemap_at(old) & PM_PRESENT);
		while (ioctl(fd, UFFDIO_MOVE, &move))
			if (errno != EAGAIN && errno != EBUSY)
				die("UFFDIO_MOVE");
		before = *new;
		*old = 2;
		if (before != 1 || *new != 1)
			wrong = "a page that was given away has changed";
	}
end:
	pin(0);
	page_out_stop(&p);
	close(fd);
	munmap(to, HUGE);
	munmap(from, HUGE);
	return can ? given > 0 : CANNOT;
}

static const struct {
	const char *name, *needs;
	int (*happen)(void *list, enum swap swap);
	int kinds;
} events[] = {
	{ "swapoff", "", swap_goes, KINDS },
	{ "pages move", "two NUMA nodes", pages_move, KINDS },
	{ "processes end", "", processes_end, KINDS },
	{ "frozen", "a memory cgroup", cgroup_freezes, KINDS },
	/* A large folio would be split for a file, which its users prevent. */
	{ "pinned", "", pages_are_held, LARGE },
	/* Their memory is their own. */
	{ "memory fails", "CONFIG_MEMORY_FAILURE", memory_fails, 1 },
	{ "memory is short", "a memory cgroup", memory_is_short, 1 },
	{ "pages are given away", "UFFDIO_MOVE", pages_are_given, 1 },
};

static void beside(enum swap swap, enum kind kind, unsigned int event)
{
	long aside = 0, before = vm_counter("writeout_batch_folios");
	struct pager p = { .list = map_list(kind) };
	double end = now() + seconds, last = end + 30;
	unsigned long rounds = 0;
	unsigned int times = 0;
	const char *complaint;
	struct writer w;
	int did = 0;

	wrong = NULL;
	write_start(&w, p.list, true);
	start_thread(&p.thread, page_out_thread, &p);
	/* A busy host may need longer. */
	while ((now() < end || ((!aside || !times || !rounds) && now() < last)) &&
	       did != CANNOT && !wrong &&
	       __atomic_load_n(&w.lost, __ATOMIC_RELAXED) < 0) {
		did = events[event].happen(p.list, swap);
		times += did > 0;
		aside = vm_counter("writeout_batch_folios") - before;
		rounds = __atomic_load_n(&w.rounds, __ATOMIC_RELAXED);
	}
	page_out_stop(&p);
	write_stop(&w);
	munmap(p.list, HUGE);
	if (did == CANNOT && w.lost < 0 && !wrong) {
		test_skip(events[event].needs, "%s, %s, %s", events[event].name, swap_names[swap],
			  kind_names[kind]);
		return;
	}
	complaint = wrong ?: kernel_complaint();
	test_result(w.lost < 0 && !complaint && aside > 0 && times > 0 && w.rounds > 0,
		    "%s, %s, %s: %u times, %ld aside, %lu holes%s%s", events[event].name,
		    swap_names[swap], kind_names[kind], times, aside, (w.rounds + 7) / 8,
		    complaint ? ": " : "", complaint ?: "");
}

void test_events(enum swap swap)
{
	for (unsigned int i = 0; i < ARRAY_SIZE(events); i++)
		for (int kind = 0; kind < events[i].kinds; kind++)
			beside(swap, kind, i);
}
