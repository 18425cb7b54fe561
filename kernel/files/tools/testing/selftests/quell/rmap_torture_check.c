// SPDX-License-Identifier: GPL-2.0-only
/* Content of pages and their page table entries, and violations. */
#include "rmap_torture.h"

#define REAL_SWAP	16		/* first type that is not swap (migration entries) */

/* --- This process -------------------------------------------------------- */

struct arena arenas[ARENAS];

static struct operation history[HISTORY];
uint32_t steps, generation;
int worker, depth, nr_children;
uint64_t random_state;
static __thread volatile bool fault_expected;
static __thread sigjmp_buf expected_jump;

unsigned int pick(unsigned int n)
{
	return next_random(&random_state) % n;
}

bool stopped(void)
{
	return atomic_load(&sh->stop);
}

void note(const char *what, int arena, unsigned int first, unsigned int n, long arg)
{
	history[steps % HISTORY] = (struct operation){ steps, what, arena, first, n, arg };
}

static int add_text(char *to, int room, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(to, room, fmt, args);
	va_end(args);
	return n < room ? n : room - 1;
}

void violated(int arena, unsigned int i, const char *fmt, ...)
{
	int at = 0, room = sizeof(sh->report);
	char *text = sh->report;
	va_list args;

	/* The first one counts. */
	if (atomic_fetch_add(&sh->violations, 1))
		_exit(1);
	at += add_text(text + at, room - at, "worker %d, fork depth %d, step %u: ", worker,
		       depth, steps);
	va_start(args, fmt);
	at += vsnprintf(text + at, room - at, fmt, args);
	va_end(args);
	if (arena >= 0) {
		struct page *p = &arenas[arena].pages[i];
		uint64_t entry = p->at ? pagemap_at(p->at) : 0;

		at += add_text(text + at, room - at,
			       "\n  arena %d page %u at %p: generation %u%s, changed in step %u,%s%s%s%s%s%s; pagemap %#llx, folio of %u",
			       arena, i, (void *)p->at, p->gen, p->lazy ? " or empty" : "",
			       p->changed, p->readable ? " readable" : "",
			       p->writable ? " writable" : "", p->locked ? " locked" : "",
			       p->protected ? " protected" : "", p->dirty ? " dirty" : "",
			       p->clean ? " clean" : "", (unsigned long long)entry,
			       p->at ? folio_pages_at(p->at) : 0);
	}
	for (uint32_t s = steps < HISTORY ? 0 : steps - HISTORY + 1; s <= steps; s++) {
		struct operation *o = &history[s % HISTORY];

		if (o->what && o->step == s)
			at += add_text(text + at, room - at,
				       "\n  step %u: %s arena %d, %u pages from %u (%ld)",
				       o->step, o->what, o->arena, o->n, o->first, o->arg);
	}
	atomic_store(&sh->stop, true);
	_exit(1);
}

/* --- Content ------------------------------------------------------------- */

uint64_t word_of(int arena, unsigned int i, uint32_t gen)
{
	return gen ? (uint64_t)(0x50 + arena) << 56 | (uint64_t)i << 32 | gen : 0;
}

const unsigned int looked_at[] = { 0, WORDS / 2, WORDS - 1 };

void on_fault(int sig, siginfo_t *info, void *context __always_unused)
{
	if (fault_expected)
		siglongjmp(expected_jump, 1);
	violated(-1, 0, "signal %d at %p, where none is expected", sig, info->si_addr);
}

/* False if it faults. */
bool try_put(char *at, int arena, unsigned int i, uint32_t gen)
{
	volatile uint64_t *words = (uint64_t *)at;

	if (sigsetjmp(expected_jump, 1)) {
		fault_expected = false;
		return false;
	}
	fault_expected = true;
	for (int k = 0; k < LOOKED_AT; k++)
		words[looked_at[k]] = word_of(arena, i, gen);
	fault_expected = false;
	return true;
}

/* False if it faults. */
bool try_get(const char *at, uint64_t *found)
{
	const volatile uint64_t *words = (const uint64_t *)at;

	if (sigsetjmp(expected_jump, 1)) {
		fault_expected = false;
		return false;
	}
	fault_expected = true;
	for (int k = 0; k < LOOKED_AT; k++)
		found[k] = words[looked_at[k]];
	fault_expected = false;
	return true;
}

/* As the kernel reads for others, not by this CPU's TLB. */
static bool get_from_behind(const char *at, uint64_t *found)
{
	static uint64_t known;
	int fd = proc_fd("/proc/self/mem", &known);
	bool read = true;

	for (int k = 0; k < LOOKED_AT; k++)
		read &= pread(fd, &found[k], 8, (uintptr_t)at + looked_at[k] * 8) == 8;
	return read;
}

static void check_content(int arena, unsigned int i)
{
	struct page *p = &arenas[arena].pages[i];
	bool emptied = false, read;
	uint64_t found[LOOKED_AT];

	if (!p->at)
		return;
	if (p->readable && !pick(8))
		read = get_from_behind(p->at, found);
	else
		read = try_get(p->at, found);
	if (read != p->readable)
		violated(arena, i, "page can%s be read", read ? "" : "not");
	if (!read)
		return;
	for (int k = 0; k < LOOKED_AT; k++) {
		if (found[k] == word_of(arena, i, p->gen))
			continue;
		if (!p->lazy || found[k])
			violated(arena, i, "word %u is %#llx, not %#llx", looked_at[k],
				 (unsigned long long)found[k],
				 (unsigned long long)word_of(arena, i, p->gen));
		emptied = true;
	}
	/* It stays empty. */
	if (emptied) {
		p->gen = 0;
		p->lazy = false;
	}
}

static void check_entry(int arena, unsigned int i)
{
	struct page *p = &arenas[arena].pages[i];
	uint64_t entry;
	bool there;

	if (!p->at)
		return;
	entry = pagemap_at(p->at);
	there = entry & (PM_PRESENT | PM_SWAP);
	/* Unwritten memory may map the huge zero page. */
	if (p->gen && !p->lazy && entry & PM_PRESENT && entry & (PM_FILE | PM_SWAP))
		violated(arena, i, "entry %#llx is of anonymous memory",
			 (unsigned long long)entry);
	if (p->gen && !p->lazy && !there)
		violated(arena, i, "page has content, and no entry");
	if (p->gen && p->locked && entry & PM_SWAP && (entry & 31) < REAL_SWAP)
		violated(arena, i, "page is locked, and in swap (%#llx)",
			 (unsigned long long)entry);
	/*
	 * All pages of a new VMA are soft-dirty by a flag of the VMA, and a merge loses it.
	 */
	if (soft_dirty && !arenas[arena].fresh && there && p->dirty && !(entry & PM_SOFT_DIRTY))
		violated(arena, i, "page was written, and is not soft-dirty (%#llx)",
			 (unsigned long long)entry);
	if (soft_dirty && !huge && p->clean && entry & PM_SOFT_DIRTY)
		violated(arena, i, "page was not written, and is soft-dirty (%#llx)",
			 (unsigned long long)entry);
	if (there && !p->lazy && p->gen && p->protected != !!(entry & PM_UFFD_WP))
		violated(arena, i, "write protection is not as it was set (%#llx)",
			 (unsigned long long)entry);
}

void check_page(int arena, unsigned int i)
{
	if (pick(2)) {
		check_entry(arena, i);
		check_content(arena, i);
	} else {
		check_content(arena, i);
		check_entry(arena, i);
	}
	atomic_fetch_add_explicit(&sh->checks, 1, memory_order_relaxed);
}

void check_arena(int arena)
{
	for (unsigned int i = 0; i < ARENA_PAGES; i++)
		check_page(arena, i);
}
