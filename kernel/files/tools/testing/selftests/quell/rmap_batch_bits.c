// SPDX-License-Identifier: GPL-2.0-only
/* Bits of PTEs: soft-dirty, write protection. */
#include "rmap_batch.h"

static void compare_bits(struct region *r, const uint64_t *expected, uint64_t bit,
			 const char *what, const char *when)
{
	uint64_t found[MAX_PAGES];

	pagemap_of(r, found);
	for (unsigned long i = 0; i < r->pages; i++)
		if (r->at[i] && (found[i] ^ expected[i]) & bit)
			bad("%s: page %lu is%s %s (%#lx)", when, i,
			    found[i] & bit ? "" : " not", what, found[i]);
}

static void case_soft_dirty(struct region *r, unsigned int act)
{
	uint64_t bits[MAX_PAGES];

	for (unsigned int round = 0; round < 3; round++) {
		clear_softdirty();
		put_pattern(r, round, 2 + round);
		pagemap_of(r, bits);
		for (unsigned long i = 0; i < r->pages; i++)
			if (r->gen[i] == 2 + round && !(bits[i] & PM_SOFT_DIRTY))
				bad("page %lu was written and is not soft-dirty", i);
		lose(r, act);
		compare_bits(r, bits, PM_SOFT_DIRTY, "soft-dirty", "while it is away");
		/* The second round clears bits while it is away. */
		if (round == 1)
			continue;
		check_in_any_order(r, "soft-dirty");
		compare_bits(r, bits, PM_SOFT_DIRTY, "soft-dirty", "back");
	}
}

static int watch_writes(struct region *r)
{
	uint64_t features = UFFD_FEATURE_SIGBUS;

	if (r->kind->bit == SHARED)
		features |= UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
	if (r->kind->bit == DISK)
		features = UFFD_FEATURE_WP_ASYNC;
	return open_uffd(r->map, r->pages * PAGE, features);
}

static void case_uffd_wp(struct region *r, unsigned int act)
{
	uint64_t bits[MAX_PAGES], found;
	int fd = watch_writes(r);

	if (fd < 0)
		skip();
	for (unsigned long i = 0; i < r->pages; i++) {
		bits[i] = in_pattern(r, i) ? PM_UFFD_WP : 0;
		if (bits[i] && !uffd_protect(fd, r->at[i], PAGE, true))
			die("UFFDIO_WRITEPROTECT");
	}
	compare_bits(r, bits, PM_UFFD_WP, "write-protected", "before");
	for (unsigned int round = 0; round < 2; round++) {
		lose(r, act);
		compare_bits(r, bits, PM_UFFD_WP, "write-protected", "while it is away");
		check_in_any_order(r, "write-protected");
		compare_bits(r, bits, PM_UFFD_WP, "write-protected", "back");
	}
	lose(r, act);
	/* The bit alone is not enough: a write must fault. */
	for (unsigned long i = 0; i < r->pages; i++) {
		bool wrote = try_put(r, i, 2);

		found = pagemap_at(r->at[i]) & PM_UFFD_WP;
		if (r->kind->bit == DISK ? found != 0 : wrote != !bits[i])
			bad("a write to page %lu was%s noticed (%s)", i,
			    wrote ? " not" : "", bits[i] ? "protected" : "not protected");
	}
	check_all(r, "after writes");
	close(fd);
}

static void case_protected(struct region *r, unsigned int act)
{
	for (unsigned int round = 0; round < 2; round++) {
		for (unsigned long i = 0; i < r->pages; i++)
			if (in_pattern(r, i) && mprotect(r->at[i], PAGE, PROT_READ))
				die("mprotect");
		lose(r, act);
		check_in_any_order(r, "partly read-only");
		lose(r, act);
		for (unsigned long i = 0; i < r->pages; i++)
			if (try_put(r, i, 2 + round) == in_pattern(r, i))
				bad("page %lu can%s be written", i,
				    in_pattern(r, i) ? "" : "not");
		lose(r, act);
		if (mprotect(r->map, r->pages * PAGE, PROT_READ | PROT_WRITE))
			die("mprotect");
		put_all(r, 10 + round);
		check_all(r, "writable again");
	}
}

const struct property bit_properties[] = {
	{ "soft-dirty", case_soft_dirty, ALL_ANON, ANYHOW, .flags = BATCHES | MOST | CACHE,
	  .possible = softdirty_supported, .needs = "CONFIG_MEM_SOFT_DIRTY" },
	{ "soft-dirty shared", case_soft_dirty, SHARED, MIGRATE, .flags = BATCHES | MOST,
	  .possible = softdirty_supported, .needs = "CONFIG_MEM_SOFT_DIRTY" },
	{ "uffd-wp", case_uffd_wp, ALL_ANON, ANYHOW, .flags = MOST | CACHE,
	  .needs = "CONFIG_USERFAULTFD" },
	{ "uffd-wp shared", case_uffd_wp, SHARED, ANYHOW, .flags = MOST,
	  .needs = "CONFIG_PTE_MARKER_UFFD_WP" },
	{ "uffd-wp file", case_uffd_wp, DISK, ANYHOW, .flags = MOST,
	  .needs = "CONFIG_PTE_MARKER_UFFD_WP and large file folios" },
	{ "protected", case_protected, MID | SHARED, ANYHOW, .flags = MOST },
	{}
};
