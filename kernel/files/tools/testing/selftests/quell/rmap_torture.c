// SPDX-License-Identifier: GPL-2.0-only
/*
 * Torture of unmapping by reclaim and migration: pages of large folios that are taken away
 * come back unchanged. Attacks mm/rmap_batch.c in random combinations. Usage:
 *
 *	rmap_torture DIR [--seconds N] [--seed N] [--workers N]
 *
 * DIR is on a file system. Two NUMA nodes, a RAM disk of 32 MB for swap (see rmap.h) and
 * large file folios (xfs) add tests.
 *
 * Each worker is a process with anonymous memory (arenas) in folios of changing sizes. It
 * writes, unmaps, moves, locks, frees and protects pages, clears soft-dirty bits and forks;
 * a child goes on with a copy. Its actions follow from the seed. Meanwhile mappings are
 * taken away: by the worker, by its second thread (MADV_PAGEOUT, move_pages(), compaction),
 * and by memory.reclaim of the common cgroup. A file and shared memory are common to all
 * workers. Each of their pages has one writer, and the readers know the generations that it
 * may hold (struct window).
 *
 * The checker knows each page's content (two are possible after MADV_FREE), address and
 * rights. It reads all the time, tries forbidden accesses, and compares /proc/self/pagemap:
 * a page with content has an entry, a locked page is not in swap, soft-dirty and write
 * protection are exact.
 *
 * A violation prints the worker's last operations. At the end no swap and no memory of the
 * cgroup may be left, and the kernel's log must be clean: wrong counters of an mm show
 * there.
 */
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "pages.h"
#include "system.h"

#define MAX_WORKERS	8
#define ARENAS		4
#define UFFD_ARENA	2		/* never moves */
#define ARENA_PAGES	512
#define ARENA_SLOTS	1024
#define SHARED_PAGES	256
#define MAX_CHILDREN	2
#define CHILD_STEPS	60
#define HISTORY		40
#define PATIENCE	60		/* seconds for the workers' end */
#define REAL_SWAP	16		/* first type that is not swap (migration entries) */

/* --- Shared by all processes -------------------------------------------- */

struct window {
	atomic_uint lo, hi;	/* generations that a page may hold */
};

enum { FILE_AREA, MEMORY_AREA, AREAS };

static struct shared {
	atomic_bool stop;
	atomic_uint nonce;
	atomic_ulong steps, checks, forks, takes;
	atomic_int violations;
	/* Read: moving pages. Write: clearing soft-dirty bits. */
	pthread_rwlock_t moving;
	char report[8192];
	struct window windows[AREAS][SHARED_PAGES];
} *sh;

static char *areas[AREAS];
static int nr_workers = 2;
static bool nodes, soft_dirty;
static bool huge;		/* folios of 2 MB, too, with one soft-dirty bit */
static uint64_t seed;

/* --- This process -------------------------------------------------------- */

struct page {
	char *at;		/* NULL: unmapped */
	uint32_t gen;		/* of the content; 0: empty */
	uint32_t changed;	/* in this step */
	bool lazy;		/* may be empty since MADV_FREE */
	bool own;		/* written since the last fork(): exclusive */
	bool readable, writable, locked, protected;
	bool dirty, clean;	/* soft-dirty, or clean, for sure */
};

static struct arena {
	char *base;
	int uffd;
	bool fresh;		/* new VMAs since soft-dirty bits were cleared */
	struct page pages[ARENA_PAGES];
	bool used[ARENA_SLOTS];
} arenas[ARENAS];

struct operation {
	uint32_t step;
	const char *what;
	int arena;
	unsigned int first, n;
	long arg;
};

static struct operation history[HISTORY];
static uint32_t steps, generation;
static int worker, depth, nr_children;
static uint64_t random_state;
static __thread volatile bool fault_expected;
static __thread sigjmp_buf expected_jump;

static unsigned int pick(unsigned int n)
{
	return next_random(&random_state) % n;
}

static bool stopped(void)
{
	return atomic_load(&sh->stop);
}

static void note(const char *what, int arena, unsigned int first, unsigned int n, long arg)
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

static void violated(int arena, unsigned int i, const char *fmt, ...)
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

static uint64_t word_of(int arena, unsigned int i, uint32_t gen)
{
	return gen ? (uint64_t)(0x50 + arena) << 56 | (uint64_t)i << 32 | gen : 0;
}

static const unsigned int looked_at[] = { 0, WORDS / 2, WORDS - 1 };

#define LOOKED_AT	3

static void on_fault(int sig, siginfo_t *info, void *context)
{
	(void)context;
	if (fault_expected)
		siglongjmp(expected_jump, 1);
	violated(-1, 0, "signal %d at %p, where none is expected", sig, info->si_addr);
}

/* False if it faults. */
static bool try_put(char *at, int arena, unsigned int i, uint32_t gen)
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
static bool try_get(const char *at, uint64_t *found)
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

static void check_page(int arena, unsigned int i)
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

static void check_arena(int arena)
{
	for (unsigned int i = 0; i < ARENA_PAGES; i++)
		check_page(arena, i);
}

/* --- Ranges -------------------------------------------------------------- */

/* Pages with consecutive addresses. */
static unsigned int run_length(const struct arena *a, unsigned int first, unsigned int n)
{
	unsigned int k = 0;

	while (k < n && first + k < ARENA_PAGES && a->pages[first + k].at &&
	       a->pages[first + k].at == a->pages[first].at + k * PAGE)
		k++;
	return k;
}

/* Mostly whole folios or parts, sometimes many. */
static unsigned int pick_length(void)
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

static unsigned int pick_first(unsigned int n)
{
	unsigned int first = pick(ARENA_PAGES);

	return pick(2) ? first & -16U : n > 64 ? first / 4 : first;
}

static struct page *page_of(int arena, unsigned int i)
{
	return &arenas[arena].pages[i];
}

static void forget_clean(int arena)
{
	for (unsigned int i = 0; i < ARENA_PAGES; i++)
		page_of(arena, i)->clean = false;
}

/* --- A worker's actions -------------------------------------------------- */

static void do_write(int arena, unsigned int first, unsigned int n)
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

static void do_read(int arena, unsigned int first, unsigned int n)
{
	note("read", arena, first, n, 0);
	for (unsigned int i = first; i < first + n && i < ARENA_PAGES; i++)
		check_page(arena, i);
}

/*
 * Not while soft-dirty bits are cleared: entries of moving pages stay writable, and the
 * next write is missed (in stock, too).
 */
static void move_pages_to(char *at, unsigned long n, int node)
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

static void do_take(int arena, unsigned int first, unsigned int n)
{
	take(arena, first, n, nodes && pick(2));
}

/*
 * Pages in swap that were read back unchanged: one or two are written, and only their dirty
 * bits tell that the folio must be written again.
 */
static void do_take_again(int arena, unsigned int first, unsigned int n)
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

static void do_protect(int arena, unsigned int first, unsigned int n)
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

static void do_lock(int arena, unsigned int first, unsigned int n)
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

static void do_discard(int arena, unsigned int first, unsigned int n)
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

static void do_unmap(int arena, unsigned int first, unsigned int n)
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

static void do_map(int arena, unsigned int first, unsigned int n)
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

static void do_remap(int arena, unsigned int first, unsigned int n)
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

static void do_write_protect(int arena, unsigned int first, unsigned int n)
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

static void do_clear_soft_dirty(void)
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

static void check_shared(int area, unsigned int i)
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

static void do_shared(void)
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

/* --- Processes ----------------------------------------------------------- */

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

static void work(int number)
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

/* --- Main ----------------------------------------------------------------- */

static char path[4096];

static void make_areas(void)
{
	unsigned long bytes = SHARED_PAGES * PAGE;
	int fd;

	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	areas[MEMORY_AREA] = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (fd < 0 || areas[MEMORY_AREA] == MAP_FAILED)
		die(path);
	madvise(areas[MEMORY_AREA], bytes, MADV_HUGEPAGE);
	for (unsigned int i = 0; i < SHARED_PAGES; i++)
		for (int area = 0; area < AREAS; area++) {
			atomic_store(&sh->windows[area][i].lo, 1);
			atomic_store(&sh->windows[area][i].hi, 1);
		}
	for (unsigned int i = 0; i < SHARED_PAGES; i++)
		try_put(areas[MEMORY_AREA] + i * PAGE, ARENAS + FILE_AREA, i, 1);
	/* One write: the file system chooses folios by its size. */
	if (write(fd, areas[MEMORY_AREA], bytes) != (ssize_t)bytes || fsync(fd))
		die(path);
	for (unsigned int i = 0; i < SHARED_PAGES; i++)
		try_put(areas[MEMORY_AREA] + i * PAGE, ARENAS + MEMORY_AREA, i, 1);
	areas[FILE_AREA] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (areas[FILE_AREA] == MAP_FAILED)
		die(path);
	close(fd);
}

/* After fsync(). */
static void check_file(void)
{
	int fd = open(path, O_RDWR | O_CLOEXEC), wrong = 0;
	uint64_t words[WORDS];

	munmap(areas[FILE_AREA], SHARED_PAGES * PAGE);
	if (fd < 0 || fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
		die(path);
	for (unsigned int i = 0; i < SHARED_PAGES; i++) {
		unsigned int gen = atomic_load(&sh->windows[FILE_AREA][i].hi);

		if (pread(fd, words, PAGE, i * PAGE) != (ssize_t)PAGE)
			die(path);
		for (int k = 0; k < LOOKED_AT; k++)
			wrong += words[looked_at[k]] != word_of(ARENAS + FILE_AREA, i, gen);
	}
	close(fd);
	unlink(path);
	test_result(!wrong, "rmap_torture file: %d words are wrong on disk", wrong);
}

/* Folio sizes change, memory is reclaimed, and the switch moves. */
static void control(double seconds)
{
	struct timespec pause = { .tv_nsec = 20000000 };
	bool has_switch = get_switch("rmap_batch") >= 0;
	uint64_t random = seed * 2 + 1;
	double end = now() + seconds;
	int off = 0;

	while (!stopped() && now() < end) {
		unsigned int r = next_random(&random) % 1024;

		if (r < 128)
			choose_thp(((next_random(&random) & 0xff) * 16 | (r & 32 ? 64 : 0)) &
				   (huge ? ~0 : 2047));
		else if (r < 640 && cgroup[0])
			reclaim_cgroup((1 + r % 256) * PAGE, r & 1);
		/* Off for a moment. */
		if (has_switch && (off || r > 1010)) {
			off = !off;
			set_switch("rmap_batch", !off);
		}
		nanosleep(&pause, NULL);
	}
	if (has_switch)
		set_switch("rmap_batch", true);
}

static void on_patience(int sig)
{
	static const char text[] = "# a worker does not end\n";

	(void)sig;
	if (write(STDOUT_FILENO, text, sizeof(text) - 1) < 0)
		_exit(3);
	alarm(5);
}

static void torture(double seconds)
{
	struct sigaction patience = { .sa_handler = on_patience };
	long batches = vm_counter("rmap_batch_runs"), in_batches = vm_counter("rmap_batch_pages");
	long out = vm_counter("pswpout"), moved = vm_counter("pgmigrate_success");
	pid_t pids[MAX_WORKERS];
	int status, bad = 0;
	const char *said;

	for (int i = 0; i < nr_workers; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			die("fork");
		if (!pids[i])
			work(i);
	}
	control(seconds);
	atomic_store(&sh->stop, true);
	sigaction(SIGALRM, &patience, NULL);
	alarm(PATIENCE);
	for (int i = 0; i < nr_workers; i++) {
		if (waitpid(pids[i], &status, 0) != pids[i]) {
			kill(pids[i], SIGKILL);
			waitpid(pids[i], &status, 0);
		}
		if (status)
			ksft_print_msg("worker %d ended with %#x\n", i, status);
		bad += !!status;
	}
	alarm(0);
	batches = vm_counter("rmap_batch_runs") - batches;
	in_batches = vm_counter("rmap_batch_pages") - in_batches;
	out = vm_counter("pswpout") - out;
	moved = vm_counter("pgmigrate_success") - moved;

	if (atomic_load(&sh->violations)) {
		ksft_print_msg("VIOLATION, with --seed %llu:\n", (unsigned long long)seed);
		for (char *line = strtok(sh->report, "\n"); line; line = strtok(NULL, "\n"))
			ksft_print_msg("%s\n", line);
	}
	ksft_print_msg("%lu steps, %lu forks, %lu times taken away,", atomic_load(&sh->steps),
	       atomic_load(&sh->forks), atomic_load(&sh->takes));
	printf(" %ld pages swapped out, %ld moved, %ld in %ld batches\n", out, moved, in_batches,
	       batches);
	test_result(!bad && !atomic_load(&sh->violations),
		    "rmap_torture pages: %lu checked, %d violations", atomic_load(&sh->checks),
		    atomic_load(&sh->violations));
	if (get_switch("rmap_batch") >= 0)
		test_result(in_batches > batches && batches > 0,
			    "rmap_torture batches: %ld pages in %ld", in_batches, batches);
	check_file();
	munmap(areas[MEMORY_AREA], SHARED_PAGES * PAGE);
	for (int i = 0; i < SWAPS; i++)
		if (swap_is_on(i))
			test_result(swap_off_in_time(i),
				    "rmap_torture swap (%s): all entries are free at the end",
				    swap_names[i]);
	if (cgroup[0]) {
		const char *rest = cgroup_rest();

		test_result(!rest[0], "rmap_torture memory cgroup: left in it: %s",
			    rest[0] ? rest : "nothing");
	}
	said = kernel_complaint();
	test_result(!said, "rmap_torture kernel log: %s", said ? said : "no complaint");
}

int main(int argc, char **argv)
{
	double seconds = 10;
	pthread_rwlockattr_t shared;
	char text[8];

	seed = time(NULL);
	for (int i = 2; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--seconds"))
			seconds = atof(argv[i + 1]);
		else if (!strcmp(argv[i], "--seed"))
			seed = strtoull(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--workers"))
			nr_workers = atoi(argv[i + 1]);
		else
			argc = 0;
	}
	if (argc < 2 || argc % 2 || nr_workers < 1 || nr_workers > MAX_WORKERS) {
		fprintf(stderr,
			"usage: rmap_torture DIR [--seconds N] [--seed N] [--workers N]\n");
		return 2;
	}
	ksft_print_header();
	if (geteuid())
		ksft_exit_skip("root is needed\n");
	if (!try_read(THP "hugepages-64kB/enabled", text, sizeof(text)))
		ksft_exit_skip("this kernel has no large folios of several sizes\n");
	/* Not charged to the cgroup. */
	sh = must_map(NULL, sizeof(*sh), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1);
	pthread_rwlockattr_init(&shared);
	pthread_rwlockattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_rwlock_init(&sh->moving, &shared);
	save_system();
	watch_kernel_log();
	nodes = two_nodes();
	huge = seed & 1;
	soft_dirty = softdirty_supported();
	snprintf(path, sizeof(path), "%s/rmap_torture", argv[1]);
	choose_thp(64 | 16);
	for (int i = 0; i < SWAPS; i++)
		if (!swap_on(i))
			ksft_print_msg("no swap: %s\n", swap_names[i]);
	make_cgroup("rmap_torture");
	make_areas();
	ksft_print_msg("seed %llu, %d workers, %d nodes%s%s\n", (unsigned long long)seed, nr_workers,
	       nodes + 1, soft_dirty ? ", soft-dirty" : "", cgroup[0] ? ", cgroup" : "");
	torture(seconds);
	test_end();
}
