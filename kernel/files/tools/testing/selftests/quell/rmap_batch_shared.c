// SPDX-License-Identifier: GPL-2.0-only
/* Shared and exclusive pages, and places of mappings. */
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#include "rmap_batch.h"

/* --- Shared and exclusive pages ------------------------------------------ */

/* The child waits, and then checks the content. */
struct child fork_child(struct region *r)
{
	struct child c;
	int go[2];
	char byte;

	if (pipe2(go, O_CLOEXEC))
		die("pipe2");
	c.pid = must_fork();
	if (!c.pid) {
		int before = results->bad;

		close(go[1]);
		if (read(go[0], &byte, 1) < 0)
			_exit(1);
		check_in_any_order(r, "in the child");
		_exit(results->bad != before);
	}
	close(go[0]);
	c.go = go[1];
	return c;
}

void end_child(struct child *c)
{
	int status;

	close(c->go);
	status = must_wait(c->pid);
	if (status)
		bad("the child ended with %#x", status);
}

static long minor_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

/* Since 6.15 Linux reuses the pages of a large folio that one process alone still maps. */
static bool linux_reuses(void)
{
	unsigned int major, minor;
	struct utsname name;

	if (uname(&name) || sscanf(name.release, "%u.%u", &major, &minor) != 2)
		die("uname");
	return major > 6 || (major == 6 && minor >= 15);
}

/*
 * A write to an exclusive page must not copy. A write to a shared page of a large folio must
 * copy if @must_copy. Only a page that is alone in its folio can become exclusive later.
 */
static void write_exclusive(struct region *r, unsigned int act, uint32_t gen, bool must_copy)
{
	for (unsigned long i = 0; i < r->pages; i++) {
		bool shared = in_pattern(r, i), reused;
		uint64_t before, after, flags;
		long faults;

		check(r, i, "before the write");
		before = pagemap_at(r->at[i]);
		flags = kpageflags_at(PAGEMAP_PFN(before));
		faults = minor_faults();
		put(r, i, gen);
		faults = minor_faults() - faults;
		after = pagemap_at(r->at[i]);
		reused = PAGEMAP_PFN(before) == PAGEMAP_PFN(after);
		if (!shared && !reused)
			bad("page %lu was exclusive and has been copied", i);
		if (must_copy && shared && reused &&
		    flags & (KPF_COMPOUND_HEAD | KPF_COMPOUND_TAIL) &&
		    (act == MIGRATE || flags & KPF_SWAPCACHE))
			bad("page %lu was shared and has not been copied", i);
		/* Migration must keep the PTE writable. */
		if (!shared && act == MIGRATE && faults)
			bad("page %lu was writable and has faulted", i);
	}
}

/* The child gets only the pattern's pages; the others stay exclusive. */
static struct child share_pattern(struct region *r)
{
	char *at[MAX_PAGES];
	struct child c;

	memcpy(at, r->at, sizeof(at));
	for (unsigned long i = 0; i < r->pages; i++)
		if (!in_pattern(r, i)) {
			must_advise(r->at[i], PAGE, MADV_DONTFORK);
			r->at[i] = NULL;
		}
	c = fork_child(r);
	memcpy(r->at, at, sizeof(at));
	/* One VMA again. */
	must_advise(r->map, r->pages * PAGE, MADV_DOFORK);
	return c;
}

static void case_exclusive_gone(struct region *r, unsigned int act)
{
	bool on = get_switch("folio_order") == 1;

	/* folio_order reuses folios without the exclusive bit. */
	if (on)
		set_switch("folio_order", false);
	for (unsigned int round = 0; round < 2; round++) {
		struct child c = share_pattern(r);

		end_child(&c);
		lose(r, act);
		write_exclusive(r, act, 2 + round, !linux_reuses());
		lose(r, act);
		check_in_any_order(r, "after the writes");
	}
	if (on)
		set_switch("folio_order", true);
}

static void case_exclusive_there(struct region *r, unsigned int act)
{
	struct child c = share_pattern(r);

	lose(r, act);
	lose(r, act);
	write_exclusive(r, act, 2, true);
	lose(r, act);
	check_in_any_order(r, "after the writes");
	/* The child must see the content from before the writes. */
	end_child(&c);
	put_all(r, 3);
	lose(r, act);
	check_in_any_order(r, "after the child");
}

/* Child and parent map different parts, and both write. */
static void case_parts(struct region *r, unsigned int act)
{
	unsigned int n = r->block;
	int go[2], ready[2], status;
	char byte = 0;
	pid_t pid;

	if (pipe2(go, O_CLOEXEC) || pipe2(ready, O_CLOEXEC))
		die("pipe2");
	pid = must_fork();
	if (!pid) {
		int before = results->bad;

		close(go[1]);
		for (unsigned long i = 0; i < r->pages; i++)
			if (i % n >= n * 3 / 4)
				forget(r, i);
		for (unsigned long i = 0; i < r->pages; i++)
			if (r->at[i] && i % n < n / 8)
				put(r, i, 7);
		if (write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) < 0)
			_exit(1);
		check_in_any_order(r, "in the child");
		for (unsigned long i = 0; i < r->pages; i++)
			if (r->at[i])
				put(r, i, 8);
		check_in_any_order(r, "in the child, written");
		_exit(results->bad != before);
	}
	if (read(ready[0], &byte, 1) != 1)
		die("the child");
	for (unsigned long i = 0; i < r->pages; i++)
		if (i % n < n / 4)
			forget(r, i);
	for (unsigned long i = 0; i < r->pages; i++)
		if (r->at[i] && i % n == n / 2)
			put(r, i, 2);
	lose(r, act);
	lose(r, act);
	check_in_any_order(r, "in the parent");
	lose(r, act);
	close(go[1]);
	status = must_wait(pid);
	if (status)
		bad("the child ended with %#x", status);
	check_in_any_order(r, "in the parent, after the child");
}

/* --- Places of mappings ----------------------------------------------------- */

static char *move_to(struct region *r, unsigned long i, unsigned long n, char *to)
{
	if (mremap(r->at[i], n * PAGE, n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) ==
	    MAP_FAILED)
		die("mremap");
	for (unsigned long k = 0; k < n; k++)
		r->at[i + k] = to + k * PAGE;
	return to + n * PAGE;
}

/* Each folio's second half is elsewhere. */
static void case_halves(struct region *r, unsigned int act)
{
	char *to = reserve_huge(r->pages * PAGE) + PAGE;
	unsigned int n = r->block;

	for (unsigned long i = 0; i < r->pages; i += n)
		to = move_to(r, i + n / 2, n / 2, to + PAGE);
	for (unsigned int round = 0; round < 2; round++) {
		lose(r, act);
		check_in_any_order(r, "in two halves");
		put_all(r, 2 + round);
	}
	lose(r, act);
	check_in_any_order(r, "in two halves, written");
}

/* A folio in two page tables, at an unaligned address. */
static void case_crossing(struct region *r, unsigned int act)
{
	char *border = reserve_huge(r->pages * PAGE + 2 * HUGE) + 2 * HUGE;
	unsigned long n = r->kind->kb / 4, before = r->pages / n / 2 * n + n / 2;

	move_to(r, 0, r->pages, border - before * PAGE);
	for (unsigned int round = 0; round < 2; round++) {
		lose(r, act);
		check_in_any_order(r, "across page tables");
		put_all(r, 2 + round);
	}
	lose(r, act);
	check_in_any_order(r, "across page tables, written");
}

static void case_middle(struct region *r, unsigned int act)
{
	unsigned int n = r->block;

	for (unsigned long i = 0; i < r->pages; i++)
		if (i % n < n / 4 || i % n >= n * 3 / 4)
			forget(r, i);
	lose(r, act);
	check_in_any_order(r, "of the middle");
	for (unsigned long i = 0; i < r->pages; i++)
		if (r->at[i])
			put(r, i, 2);
	lose(r, act);
	check_in_any_order(r, "of the middle, written");
}

/* Two VMAs of one mm map the folios. */
static void case_twice(struct region *r, unsigned int act)
{
	unsigned long bytes = r->pages * PAGE;
	char *second = reserve_huge(bytes + HUGE) + 3 * PAGE;
	uint64_t entries[MAX_PAGES];
	unsigned long left = 0;

	if (r->fd >= 0)
		second = mmap(second, bytes, PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_FIXED, r->fd, 0);
	else	/* Size 0 duplicates a shared mapping. */
		second = mremap(r->map, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, second);
	if (second == MAP_FAILED)
		die("the second mapping");
	for (unsigned int round = 0; round < 3; round++) {
		for (unsigned long i = 0; i < r->pages; i++) {
			if (!holds(second + i * PAGE, i, r->gen[i]))
				bad("page %lu is another one in the second mapping", i);
			if (in_pattern(r, (i + round) % r->pages)) {
				put_at(second + i * PAGE, i, 2 + round);
				r->gen[i] = 2 + round;
			}
		}
		lose(r, act);
		pagemap_read(second, r->pages, entries);
		for (unsigned long i = 0; i < r->pages; i++)
			left += !!(entries[i] & PM_PRESENT);
		check_in_any_order(r, "mapped twice");
	}
	if (act == RECLAIM && left > 3 * r->pages / 2)
		bad("%lu pages are left in the second mapping", left);
	munmap(second, bytes);
}

const struct property sharing_properties[] = {
	{ "exclusive, child gone", case_exclusive_gone, ALL_ANON, ANYHOW,
	  .flags = BATCHES | MOST | CACHE },
	{ "exclusive, child there", case_exclusive_there, ANON, RECLAIM | MIGRATE,
	  .flags = BATCHES | MOST | CACHE },
	{ "parts", case_parts, MID, RECLAIM | MIGRATE, .flags = CACHE },
	{ "halves", case_halves, MID | SHARED, ANYHOW, .flags = BATCHES | MOST | CACHE },
	{ "crossing", case_crossing, ALL_ANON | SHARED, ANYHOW, .flags = BATCHES | MOST },
	{ "middle", case_middle, MID | SHARED | DISK, ANYHOW, .flags = MOST },
	{ "twice", case_twice, SHARED | DISK, RECLAIM | MIGRATE, .flags = BATCHES },
	{}
};
