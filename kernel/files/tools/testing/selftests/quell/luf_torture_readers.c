// SPDX-License-Identifier: GPL-2.0-only
/* Readers that spin over a small mapping, one on each CPU. */
#include <limits.h>
#include <linux/futex.h>

#include "luf_torture.h"

#define PATIENCE	0.3

struct job job;

struct reader readers[MAX_CPUS];
static __thread struct reader *me;

void on_fault(int sig, siginfo_t *info __always_unused, void *context __always_unused)
{
	struct window *w = &job.window;
	unsigned int hi;

	if (!me || !me->armed) {
		signal(sig, SIG_DFL);
		raise(sig);
		return;
	}
	hi = atomic_load(&w->hi);
	if (sig == SIGSEGV || sig == SIGBUS)
		for (unsigned int i = me->lo; i <= hi; i++)
			if (faults(state_at(w, i), me->word))
				siglongjmp(me->jump, 1);
	violated(sig == SIGBUS ? "SIGBUS" : sig == SIGSEGV ? "SIGSEGV" :
		 "executed data", doing, w, me->lo, hi, me->word, me->addr, 0);
	siglongjmp(me->jump, 1);
}

static void check(struct reader *r, uint64_t v, const char *what)
{
	struct window *w = &job.window;
	unsigned int hi = atomic_load(&w->hi);

	if (!legal(w, r->lo, hi, r->word, v))
		violated(what, doing, w, r->lo, hi, r->word, r->addr, v);
}

/* The word has no other writer: its last value must be there. */
static void rewrite(struct reader *r)
{
	uint64_t v;

	r->word = (r->page + 1) * WORDS - 1 - r->cpu;
	r->addr = job.map + r->word;
	v = *r->addr;
	if (r->wrote[r->page] && v != r->wrote[r->page])
		violated("lost a write", doing, &job.window, 0, 0, r->word, r->addr, v);
	r->wrote[r->page] = 0x4dUL << 56 | (uint64_t)r->cpu << 48 | ++r->token;
	*r->addr = r->wrote[r->page];
}

static void look(struct reader *r, unsigned int number)
{
	uint64_t v;

	r->page = 0;
	r->offset = 0;
	memset(r->wrote, 0, sizeof(r->wrote));
	if (sigsetjmp(r->jump, 0)) {
		r->page++;
		atomic_fetch_add(&r->faults, 1);
	}
	r->armed = true;
	while (atomic_load(&job.number) == number) {
		for (; r->page < job.pages; r->page++) {
			r->word = r->page * WORDS + r->offset;
			r->addr = job.map + r->word;
			r->lo = atomic_load(&job.window.lo);
			v = *r->addr;
			check(r, v, "read");
			r->reads++;
			if (job.write)
				rewrite(r);
			if (!job.execute)
				continue;
			r->word = r->page * WORDS;
			r->addr = job.map + r->word;
			r->lo = atomic_load(&job.window.lo);
			v = ((unsigned int (*)(void))r->addr)();
			v = v << 8 | (expected(state_at(&job.window, r->lo), r->word) &
				      ~(0xffffffffUL << 8));
			check(r, v, "executed");
			r->reads++;
		}
		r->page = 0;
		r->offset = (r->offset + 37) % (WORDS - MAX_CPUS);
		atomic_fetch_add(&r->passes, 1);
		atomic_store(&sh->reads[r->cpu], r->reads);
	}
	r->armed = false;
}

void *reader_thread(void *arg)
{
	const struct timespec nap = { .tv_nsec = 50000000 };
	struct reader *r = arg;

	me = r;
	while (!stopped()) {
		unsigned int number = atomic_load(&job.number);

		if (!(number & 1) || !(job.readers >> r->cpu & 1)) {
			/* Bounded: stop may have been set just now. */
			syscall(SYS_futex, &job.number, FUTEX_WAIT_PRIVATE, number,
				&nap, NULL, 0);
			continue;
		}
		/* job.readers belongs to the job while the number is the same. */
		atomic_store(&r->job, number);
		if (atomic_load(&job.number) == number) {
			if (sched_getcpu() != r->cpu)
				try_pin(r->cpu);
			look(r, number);
		}
		atomic_store(&r->job, 0);
	}
	return NULL;
}

/* Waits for @passes of all readers, for PATIENCE at most. */
bool await_passes(int passes)
{
	double limit = now() + PATIENCE;
	unsigned long from[MAX_CPUS];
	bool all;

	for (int cpu = 0; cpu < nr_cpus; cpu++)
		from[cpu] = atomic_load(&readers[cpu].passes);
	do {
		all = true;
		for (int cpu = 0; cpu < nr_cpus; cpu++)
			if (job.readers >> cpu & 1)
				all &= atomic_load(&readers[cpu].passes) >=
				       from[cpu] + passes;
		if (!all)
			sched_yield();
	} while (!all && now() < limit && !stopped());
	return all;
}

void job_start(void)
{
	atomic_fetch_add(&job.number, 1);
	syscall(SYS_futex, &job.number, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void job_end(void)
{
	unsigned int number = atomic_fetch_add(&job.number, 1);

	for (int cpu = 0; cpu < nr_cpus; cpu++)
		while (atomic_load(&readers[cpu].job) == number)
			sched_yield();
}
