// SPDX-License-Identifier: GPL-2.0-only
/* A worker's actions on its arenas, and on memory that all share. */
#include "rmap_torture.h"

/* --- Ranges -------------------------------------------------------------- */

/* Pages with consecutive addresses. */
unsigned int run_length(const struct arena *a, unsigned int first, unsigned int n)
{
	unsigned int k = 0;

	while (k < n && first + k < ARENA_PAGES && a->pages[first + k].at &&
	       a->pages[first + k].at == a->pages[first].at + k * PAGE)
		k++;
	return k;
}

/* Mostly whole folios or parts, sometimes many. */
unsigned int pick_length(void)
{
	switch (pick(6)) {
	case 0:
		return 1;
	case 1:
		return 1 + pick(8);
	case 2:
		return 16;
	case 3:
		return 1 + pick(64);
	case 4:
		return 4 << pick(5);
	default:
		return ARENA_PAGES / (1 + pick(4));
	}
}

unsigned int pick_first(unsigned int n)
{
	unsigned int first = pick(ARENA_PAGES);

	return pick(2) ? first & -16U : n > 64 ? first / 4 : first;
}

struct page *page_of(int arena, unsigned int i)
{
	return &arenas[arena].pages[i];
}

void forget_clean(int arena)
{
	for (unsigned int i = 0; i < ARENA_PAGES; i++)
		page_of(arena, i)->clean = false;
}

/* --- A worker's actions -------------------------------------------------- */

void do_write(int arena, unsigned int first, unsigned int n)
{
	unsigned int every = pick(3) ? 1 : 1 + pick(5);

	note("write", arena, first, n, every);
	for (unsigned int i = first; i < first + n && i < ARENA_PAGES; i += every) {
		struct page *p = page_of(arena, i);
		uint32_t gen = ++generation;
		bool wrote;

		if (!p->at)
			continue;
		/* The protection of a lazily freed page is unknown. */
		if (p->protected && p->lazy)
			continue;
		wrote = try_put(p->at, arena, i, gen);
		if (wrote != (p->writable && !p->protected))
			violated(arena, i, "page can%s be written", wrote ? "" : "not");
		if (!wrote)
			continue;
		p->gen = gen;
		p->lazy = false;
		p->own = true;
		p->dirty = true;
		p->clean = false;
		p->changed = steps;
	}
}

void do_read(int arena, unsigned int first, unsigned int n)
{
	note("read", arena, first, n, 0);
	for (unsigned int i = first; i < first + n && i < ARENA_PAGES; i++)
		check_page(arena, i);
}

/*
 * Not while soft-dirty bits are cleared: entries of moving pages stay writable, and the
 * next write is missed (in stock, too).
 */
void move_pages_to(char *at, unsigned long n, int node)
{
	pthread_rwlock_rdlock(&sh->moving);
	move_to_node(at, n, node);
	pthread_rwlock_unlock(&sh->moving);
}

static void take(int arena, unsigned int first, unsigned int n, bool move)
{
	struct arena *a = &arenas[arena];
	int node = pick(2);

	note(move ? "move" : "page out", arena, first, n, node);
	for (unsigned int i = first, k; i < first + n && i < ARENA_PAGES; i += k ? k : 1) {
		k = run_length(a, i, first + n - i);
		if (k && move)
			move_pages_to(a->pages[i].at, k, node);
		else if (k)
			madvise(a->pages[i].at, k * PAGE, MADV_PAGEOUT);
	}
	atomic_fetch_add_explicit(&sh->takes, 1, memory_order_relaxed);
}

void do_take(int arena, unsigned int first, unsigned int n)
{
	take(arena, first, n, nodes && pick(2));
}

/*
 * Pages in swap that were read back unchanged. One or two are written, and only their dirty
 * bits tell that the folio must be written again.
 */
void do_take_again(int arena, unsigned int first, unsigned int n)
{
	struct timespec pause = { .tv_nsec = 5000000 };

	first &= -16U;
	n = 16 << pick(3);
	for (int round = 0; round < 3; round++) {
		take(arena, first, n, false);
		/* A page under writeback cannot go again. */
		nanosleep(&pause, NULL);
		do_read(arena, first, n);
		if (round == 2)
			break;
		steps++;
		do_write(arena, first + pick(n), 1 + pick(2));
		steps++;
		if (nodes && !pick(4))
			take(arena, first, n, true);
	}
}

void do_protect(int arena, unsigned int first, unsigned int n)
{
	static const int prots[] = {
		PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE,
	};
	struct arena *a = &arenas[arena];
	int prot = prots[pick(4)];

	note("mprotect", arena, first, n, prot);
	forget_clean(arena);
	for (unsigned int i = first, k; i < first + n && i < ARENA_PAGES; i += k ? k : 1) {
		k = run_length(a, i, first + n - i);
		if (!k)
			continue;
		if (mprotect(a->pages[i].at, k * PAGE, prot))
			violated(arena, i, "mprotect: %s", strerror(errno));
		for (unsigned int j = i; j < i + k; j++) {
			page_of(arena, j)->readable = prot & PROT_READ;
			page_of(arena, j)->writable = prot & PROT_WRITE;
		}
	}
}

void do_lock(int arena, unsigned int first, unsigned int n)
{
	struct arena *a = &arenas[arena];
	bool lock = pick(2);

	note(lock ? "mlock" : "munlock", arena, first, n, 0);
	/* mlock() populates. */
	forget_clean(arena);
	for (unsigned int i = first, k; i < first + n && i < ARENA_PAGES; i += k ? k : 1) {
		k = run_length(a, i, first + n - i);
		/* It faults for writing where it may. */
		for (unsigned int j = i; lock && j < i + k; j++)
			if (!page_of(arena, j)->readable || page_of(arena, j)->protected)
				k = j - i;
		if (!k)
			continue;
		if (lock ? mlock(a->pages[i].at, k * PAGE) :
			   munlock(a->pages[i].at, k * PAGE))
			violated(arena, i, "mlock: %s", strerror(errno));
		for (unsigned int j = i; j < i + k; j++)
			page_of(arena, j)->locked = lock;
	}
}

void do_discard(int arena, unsigned int first, unsigned int n)
{
	struct arena *a = &arenas[arena];
	bool lazily = pick(2) && arena != UFFD_ARENA;

	note(lazily ? "MADV_FREE" : "MADV_DONTNEED", arena, first, n, 0);
	for (unsigned int i = first, k; i < first + n && i < ARENA_PAGES; i += k ? k : 1) {
		k = run_length(a, i, first + n - i);
		/*
		 * A clean page that is shared since fork() goes for all sharers (in stock,
		 * too). It may be clean after a synchronous swap-in.
		 */
		for (unsigned int j = i; j < i + k; j++) {
			struct page *p = page_of(arena, j);

			if (p->locked || (lazily && p->gen && !p->own))
				k = j - i;
		}
		if (!k)
			continue;
		if (madvise(a->pages[i].at, k * PAGE, lazily ? MADV_FREE : MADV_DONTNEED))
			violated(arena, i, "madvise: %s", strerror(errno));
		for (unsigned int j = i; j < i + k; j++) {
			struct page *p = page_of(arena, j);

			p->lazy = lazily && p->gen;
			if (!lazily) {
				p->gen = 0;
				p->protected = false;
			}
			p->dirty = false;
			p->clean = false;
			p->changed = steps;
		}
	}
}

static void mark_slots(struct arena *a, char *at, unsigned int n, bool used)
{
	for (unsigned int k = 0; k < n; k++)
		a->used[(at - a->base) / PAGE + k] = used;
}

/* PROT_NONE keeps the addresses reserved. */
static void leave(struct arena *a, char *at, unsigned int n)
{
	if (mmap(at, n * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
		 MAP_FIXED, -1, 0) != at)
		die("mmap");
	mark_slots(a, at, n, false);
}

void do_unmap(int arena, unsigned int first, unsigned int n)
{
	struct arena *a = &arenas[arena];

	if (arena == UFFD_ARENA)
		return;
	note("munmap", arena, first, n, 0);
	for (unsigned int i = first, k; i < first + n && i < ARENA_PAGES; i += k ? k : 1) {
		k = run_length(a, i, first + n - i);
		if (!k)
			continue;
		leave(a, a->pages[i].at, k);
		for (unsigned int j = i; j < i + k; j++)
			a->pages[j] = (struct page){ .changed = steps };
	}
}

/* Free slots, or the home slots. */
static char *find_slots(struct arena *a, unsigned int first, unsigned int n, bool home)
{
	unsigned int at = home ? first : pick(ARENA_SLOTS - n + 1), k = 0;

	while (k < n && !a->used[at + k])
		k++;
	return k == n ? a->base + at * PAGE : NULL;
}

void do_map(int arena, unsigned int first, unsigned int n)
{
	struct arena *a = &arenas[arena];
	unsigned int end = first + n < ARENA_PAGES ? first + n : ARENA_PAGES;
	char *at;

	while (first < end && a->pages[first].at)
		first++;
	for (n = 0; first + n < end && !a->pages[first + n].at; n++)
		;
	at = n ? find_slots(a, first, n, pick(2)) : NULL;
	if (!at)
		return;
	note("mmap", arena, first, n, (at - a->base) / PAGE);
	if (mmap(at, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS |
		 MAP_FIXED, -1, 0) != at)
		violated(arena, first, "mmap: %s", strerror(errno));
	madvise(at, n * PAGE, MADV_HUGEPAGE);
	mark_slots(a, at, n, true);
	a->fresh = true;
	forget_clean(arena);
	for (unsigned int i = 0; i < n; i++)
		a->pages[first + i] = (struct page){
			.at = at + i * PAGE, .readable = true, .writable = true,
			.changed = steps,
		};
}

void do_remap(int arena, unsigned int first, unsigned int n)
{
	struct arena *a = &arenas[arena];
	char *from, *to;

	n = run_length(a, first, n);
	if (!n || arena == UFFD_ARENA)
		return;
	/* One VMA only. */
	for (unsigned int k = 1; k < n; k++) {
		struct page *p = page_of(arena, first), *q = page_of(arena, first + k);

		if (p->readable != q->readable || p->writable != q->writable ||
		    p->locked != q->locked)
			n = k;
	}
	to = find_slots(a, first, n, false);
	if (!to)
		return;
	note("mremap", arena, first, n, (to - a->base) / PAGE);
	from = page_of(arena, first)->at;
	if (mremap(from, n * PAGE, n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) {
		/* Neighbors that did not merge are several VMAs. */
		if (errno != EFAULT)
			violated(arena, first, "mremap: %s", strerror(errno));
		return;
	}
	leave(a, from, n);
	mark_slots(a, to, n, true);
	a->fresh = true;
	forget_clean(arena);
	for (unsigned int k = 0; k < n; k++) {
		page_of(arena, first + k)->at = to + k * PAGE;
		page_of(arena, first + k)->changed = steps;
	}
}

void do_write_protect(int arena, unsigned int first, unsigned int n)
{
	struct arena *a = &arenas[arena];
	bool on = pick(3);

	if (a->uffd < 0)
		return;
	note(on ? "write protect" : "write unprotect", arena, first, n, 0);
	for (unsigned int i = first; i < first + n && i < ARENA_PAGES; i++) {
		struct page *p = page_of(arena, i);

		/* An empty page may have no entry to protect. */
		if (!p->at || !p->gen || (on && pick(3) == 0))
			continue;
		if (!uffd_protect(a->uffd, p->at, PAGE, on)) {
			if (errno == EAGAIN)
				continue;
			violated(arena, i, "UFFDIO_WRITEPROTECT: %s", strerror(errno));
		}
		p->protected = on;
		p->changed = steps;
	}
}

void do_clear_soft_dirty(void)
{
	bool cleared;

	note("clear soft-dirty", -1, 0, 0, 0);
	if (pthread_rwlock_trywrlock(&sh->moving))
		return;
	cleared = try_write("/proc/self/clear_refs", "4");
	pthread_rwlock_unlock(&sh->moving);
	if (!cleared)
		return;
	for (int arena = 0; arena < ARENAS; arena++) {
		arenas[arena].fresh = false;
		for (unsigned int i = 0; i < ARENA_PAGES; i++) {
			struct page *p = page_of(arena, i);

			p->dirty = false;
			/* Without an entry the bit may appear. */
			p->clean = p->at && p->gen && !p->lazy;
		}
	}
}

/* --- Shared areas --------------------------------------------------------- */

void check_shared(int area, unsigned int i)
{
	struct window *w = &sh->windows[area][i];
	unsigned int lo = atomic_load(&w->lo), hi;
	uint64_t found[LOOKED_AT];

	if (!try_get(areas[area] + i * PAGE, found))
		violated(-1, 0, "page %u of shared area %d cannot be read", i, area);
	hi = atomic_load(&w->hi);
	for (int k = 0; k < LOOKED_AT; k++) {
		unsigned int gen = found[k];

		if (found[k] != word_of(ARENAS + area, i, gen) || gen < lo || gen > hi)
			violated(-1, 0,
				 "word %u of page %u, shared area %d, is %#llx, not of generation %u to %u",
				 looked_at[k], i, area, (unsigned long long)found[k], lo,
				 hi);
	}
	atomic_fetch_add_explicit(&sh->checks, 1, memory_order_relaxed);
}

void do_shared(void)
{
	int area = pick(AREAS), node = pick(2);
	unsigned int first = pick(SHARED_PAGES), n = 1 + pick(64), what = pick(8);
	char *at = areas[area] + first * PAGE;

	if (first + n > SHARED_PAGES)
		n = SHARED_PAGES - first;
	note("shared area", area, first, n, what);
	if (what == 0)
		madvise(at, n * PAGE, MADV_PAGEOUT);
	else if (what == 1 && nodes)
		move_pages_to(at, n, node);
	else if (what == 2)
		madvise(at, n * PAGE, MADV_DONTNEED);
	for (unsigned int i = first; i < first + n; i++) {
		struct window *w = &sh->windows[area][i];
		unsigned int gen;

		/* Children do not write. */
		if (what > 4 && !depth && i % nr_workers == (unsigned int)worker) {
			gen = atomic_fetch_add(&w->hi, 1) + 1;
			if (!try_put(areas[area] + i * PAGE, ARENAS + area, i, gen))
				violated(-1, 0, "page %u of shared area %d cannot be written",
					 i, area);
			atomic_store(&w->lo, gen);
		} else {
			check_shared(area, i);
		}
	}
}
