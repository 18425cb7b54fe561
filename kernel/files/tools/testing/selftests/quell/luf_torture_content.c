// SPDX-License-Identifier: GPL-2.0-only
/* Content of words, the states that an address may show, and violations. */
#include "luf_torture.h"

/*
 * The first word of a page is code, too: mov $gen:page, %eax; ret. It is not executed while
 * it changes, as the CPU would have to serialize.
 */
uint64_t word_of(unsigned int file, unsigned int gen, unsigned long word)
{
	uint64_t page = word / WORDS;

	if (word % WORDS == 0)
		return 0xb8 | (page & 0xffff) << 8 | (uint64_t)(gen & 0xffff) << 24 |
		       0xc3UL << 40 | (uint64_t)file << 48 |
		       (uint64_t)(gen >> 16 & 0xff) << 56;
	return 0x4cUL << 56 | (uint64_t)file << 48 |
	       (uint64_t)(gen & 0xffffff) << 24 | (word & 0xffffff);
}

bool faults(const struct state *s, unsigned long word)
{
	return s->content == FAULT || (s->pages && word / WORDS >= s->pages);
}

uint64_t expected(const struct state *s, unsigned long word)
{
	if (s->content == ZERO)
		return 0;
	return word_of(s->file, s->gen, word + s->shift * WORDS);
}

void window_init(struct window *w, struct state first)
{
	w->states[0] = first;
	atomic_store(&w->hi, 0);
	atomic_store(&w->lo, 0);
}

void may_change(struct window *w, struct state new)
{
	unsigned int hi = atomic_load(&w->hi) + 1;

	w->states[hi % MAX_STATES] = new;
	atomic_store(&w->hi, hi);
}

void has_changed(struct window *w)
{
	atomic_store(&w->lo, atomic_load(&w->hi));
}

struct state *state_at(struct window *w, unsigned int i)
{
	return &w->states[i % MAX_STATES];
}

bool legal(struct window *w, unsigned int lo, unsigned int hi, unsigned long word,
	   uint64_t v)
{
	uint64_t missing = ~0UL, differ;

	for (unsigned int i = lo; i <= hi; i++) {
		struct state *s = state_at(w, i);

		if (faults(s, word))
			continue;
		differ = expected(s, word) ^ v;
		if (!differ)
			return true;
		for (int byte = 0; byte < 64; byte += 8)
			if (!(differ >> byte & 0xff))
				missing &= ~(0xffUL << byte);
	}
	if (!missing)
		return true;
	/* The reader slept: the states from before its read are overwritten. */
	return atomic_load(&w->hi) - lo >= MAX_STATES - 1;
}

void violated(const char *what, const char *by, struct window *w, unsigned int lo,
	      unsigned int hi, unsigned long word, volatile uint64_t *addr,
	      uint64_t found)
{
	struct violation *v = &sh->violation;

	if (atomic_exchange(&v->claimed, 1))
		return;
	v->when = now() - started;
	snprintf(v->what, sizeof(v->what), "%s", what);
	snprintf(v->by, sizeof(v->by), "%s", by);
	v->found = found;
	v->word = word;
	v->addr = (void *)addr;
	v->cpu = sched_getcpu();
	v->lo = lo;
	v->hi = hi;
	v->first = *state_at(w, lo);
	v->last = *state_at(w, hi);
	atomic_store(&v->complete, 1);
	atomic_store(&sh->stop, true);
}

static void print_state(const char *name, const struct state *s)
{
	if (s->content == CONTENT)
		ksft_print_msg("  %s: generation %u of file %u, %u cut out, %u pages (0: all)\n",
			       name, s->gen, s->file, s->shift, s->pages);
	else
		ksft_print_msg("  %s: %s\n", name, s->content == ZERO ? "zeros" : "no access");
}

void print_violation(struct violation *v)
{
	uint64_t f = v->found;

	ksft_print_msg("VIOLATION: by user half after %.3f s: %s (%s)\n", v->when, v->by, v->what);
	ksft_print_msg("  word %lu at %p on CPU %d is %016lx", v->word, v->addr, v->cpu, f);
	if (f >> 56 == 0x4c)
		printf(": generation %lu of file %lu, word %lu", f >> 24 & 0xffffff,
		       f >> 48 & 0xff, f & 0xffffff);
	else if (f == POISON)
		printf(": poison, the frame has been given to somebody else");
	printf("\n#   states %u to %u were possible:\n", v->lo, v->hi);
	print_state("oldest", &v->first);
	print_state("newest", &v->last);
}
