// SPDX-License-Identifier: GPL-2.0-only
/* Workers: steps, children, and a second thread that takes mappings away. */
#include <sys/prctl.h>
#include <sys/wait.h>

#include "rmap_torture.h"

#define MAX_CHILDREN	2
#define CHILD_STEPS	60

static void steps_of(unsigned int n);

static void wait_for_child(bool all)
{
	int status;

	while (nr_children && waitpid(-1, &status, all ? 0 : WNOHANG) > 0) {
		nr_children--;
		if (status && !stopped())
			violated(-1, 0, "a child ended with %#x", status);
	}
}

static void do_fork(void)
{
	uint64_t childs_random = next_random(&random_state) << 1 | 1;
	unsigned int nonce;
	pid_t pid;

	wait_for_child(false);
	if (depth > 1 || nr_children == MAX_CHILDREN)
		return;
	nonce = atomic_fetch_add(&sh->nonce, 1) % 0xfff + 1;
	note("fork", -1, 0, 0, nonce);
	for (int arena = 0; arena < ARENAS; arena++)
		for (unsigned int i = 0; i < ARENA_PAGES; i++)
			page_of(arena, i)->own = false;
	pid = fork();
	if (pid < 0)
		return;
	if (pid) {
		nr_children++;
		atomic_fetch_add(&sh->forks, 1);
		return;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	random_state = childs_random;
	depth++;
	nr_children = 0;
	generation = nonce << 20;
	for (int arena = 0; arena < ARENAS; arena++) {
		if (arenas[arena].uffd >= 0)
			close(arenas[arena].uffd);
		arenas[arena].uffd = -1;
		for (unsigned int i = 0; i < ARENA_PAGES; i++) {
			page_of(arena, i)->locked = false;
			page_of(arena, i)->protected = false;
			page_of(arena, i)->clean = false;
		}
	}
	steps_of(1 + pick(CHILD_STEPS));
	wait_for_child(true);
	for (int arena = 0; arena < ARENAS; arena++)
		check_arena(arena);
	_exit(0);
}

/* Without it all pages end up locked, unmapped or inaccessible, in small folios. */
static void renew(int arena)
{
	struct arena *a = &arenas[arena];

	steps++;
	if (arena != UFFD_ARENA && pick(2))
		do_unmap(arena, 0, ARENA_PAGES);
	for (int i = 0; i < 8; i++)
		do_map(arena, 0, ARENA_PAGES);
	note("renew", arena, 0, ARENA_PAGES, 0);
	forget_clean(arena);
	for (unsigned int i = 0, k; i < ARENA_PAGES; i += k ? k : 1) {
		k = run_length(a, i, ARENA_PAGES);
		if (k && (munlock(a->pages[i].at, k * PAGE) ||
			  mprotect(a->pages[i].at, k * PAGE, PROT_READ | PROT_WRITE)))
			violated(arena, i, "renewing: %s", strerror(errno));
		for (unsigned int j = i; j < i + k; j++) {
			a->pages[j].locked = false;
			a->pages[j].readable = true;
			a->pages[j].writable = true;
		}
	}
}

static void one_step(void)
{
	unsigned int n = pick_length(), first = pick_first(n), what = pick(100);
	int arena = pick(ARENAS);

	steps++;
	if (what < 24)
		do_write(arena, first, n);
	else if (what < 34)
		do_read(arena, first, n);
	else if (what < 49)
		do_take(arena, first, n);
	else if (what < 54)
		do_take_again(arena, first, n);
	else if (what < 60)
		do_protect(arena, first, n);
	else if (what < 64)
		do_lock(arena, first, n);
	else if (what < 69)
		do_discard(arena, first, n);
	else if (what < 72)
		do_unmap(arena, first, n);
	else if (what < 77)
		do_map(arena, first, n);
	else if (what < 81)
		do_remap(arena, first, n);
	else if (what < 85)
		do_write_protect(UFFD_ARENA, first, n);
	else if (what < 88)
		do_clear_soft_dirty();
	else if (what < 90)
		do_fork();
	else
		do_shared();
	for (int k = 0; k < 8; k++)
		check_page(pick(ARENAS), pick(ARENA_PAGES));
	if (steps % 128 == 0)
		check_arena(pick(ARENAS));
	if (steps % 64 == 0)
		renew(pick(ARENAS));
	atomic_fetch_add_explicit(&sh->steps, 1, memory_order_relaxed);
}

static void steps_of(unsigned int n)
{
	while (n-- && !stopped())
		one_step();
}

/* Takes mappings away beside the worker. */
static void *help(void *arg)
{
	uint64_t random = (uintptr_t)arg;
	struct timespec pause = { 0 };

	while (!stopped()) {
		unsigned int r = next_random(&random) % 64, n = 1 + next_random(&random) % 128;
		struct arena *a = &arenas[next_random(&random) % ARENAS];
		char *at = a->base + next_random(&random) % (ARENA_SLOTS - n) * PAGE;

		if (r < 28) {
			madvise(at, n * PAGE, MADV_PAGEOUT);
		} else if (r < 56 && nodes) {
			move_pages_to(at, n, r & 1);
		} else if (r < 58) {
			pthread_rwlock_rdlock(&sh->moving);
			try_write("/proc/sys/vm/compact_memory", "1");
			pthread_rwlock_unlock(&sh->moving);
		} else if (r < 60) {
			try_write("/proc/self/clear_refs", "1");
		} else {
			at = areas[r & 1];
			n = 1 + next_random(&random) % SHARED_PAGES;
			madvise(at, n * PAGE, MADV_PAGEOUT);
		}
		atomic_fetch_add_explicit(&sh->takes, 1, memory_order_relaxed);
		pause.tv_nsec = next_random(&random) % 300000;
		nanosleep(&pause, NULL);
	}
	return NULL;
}

static void make_arena(int arena)
{
	struct arena *a = &arenas[arena];

	a->base = reserve(ARENA_SLOTS * PAGE, HUGE);
	a->uffd = -1;
	while (!a->pages[0].at)
		do_map(arena, 0, ARENA_PAGES);
	if (arena != UFFD_ARENA)
		return;
	/* In large folios: registered memory gets small ones. */
	do_write(arena, 0, ARENA_PAGES);
	a->uffd = open_uffd(a->pages[0].at, ARENA_PAGES * PAGE, UFFD_FEATURE_SIGBUS);
}

void work(int number)
{
	struct sigaction fault = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	pthread_t helper;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	worker = number;
	/* Each process writes its own generations. */
	generation = (atomic_fetch_add(&sh->nonce, 1) % 0xfff + 1) << 20;
	random_state = seed * 0x9e3779b97f4a7c15ULL + (number + 1) * 0xbf58476d1ce4e5b9ULL;
	for (int i = 0; i < 4; i++)
		pick(2);
	sigaction(SIGBUS, &fault, NULL);
	sigaction(SIGSEGV, &fault, NULL);
	enter_cgroup();
	for (int arena = 0; arena < ARENAS; arena++)
		make_arena(arena);
	start_thread(&helper, help, (void *)(uintptr_t)(random_state | 1));
	while (!stopped())
		one_step();
	pthread_join(helper, NULL);
	wait_for_child(true);
	for (int arena = 0; arena < ARENAS; arena++)
		check_arena(arena);
	for (unsigned int i = 0; i < SHARED_PAGES; i++) {
		check_shared(FILE_AREA, i);
		check_shared(MEMORY_AREA, i);
	}
	_exit(0);
}
