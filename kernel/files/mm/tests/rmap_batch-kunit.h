/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit tests of runs: which PTEs make one, and that each page keeps its bits. They map a real
 * folio into a page table without users, of an mm that no CPU has loaded. Swapping out needs a
 * swap device and is not tested here.
 */
#include <kunit/test.h>
#include <linux/cpumask.h>
#include <linux/memcontrol.h>
#include <linux/sched/mm.h>

#define RMAP_TEST_START	((unsigned long)PMD_SIZE)

/* Of a file's VMA. */
static const struct vm_operations_struct rmap_test_ops;

struct rmap_test {
	spinlock_t ptl;			/* of @ptes */
	struct mm_struct *mm;
	struct vm_area_struct vma;
	struct anon_vma anon_vma;	/* only its reference count is read */
	struct folio *folio;
	pte_t ptes[PTRS_PER_PTE];
};

static int rmap_test_init(struct kunit *test)
{
	struct rmap_test *t = kunit_kzalloc(test, sizeof(*t), GFP_KERNEL);

	if (!t)
		return -ENOMEM;
	test->priv = t;
	spin_lock_init(&t->ptl);
	t->mm = mm_alloc();
	if (!t->mm)
		return -ENOMEM;
	t->vma.vm_mm = t->mm;
	t->vma.vm_start = RMAP_TEST_START;
	t->vma.vm_end = RMAP_TEST_START + 2 * PMD_SIZE;
	atomic_set(&t->anon_vma.refcount, 1);
	t->vma.anon_vma = &t->anon_vma;
	vm_flags_init(&t->vma, VM_READ | VM_WRITE | VM_MAYWRITE);
	return 0;
}

static void rmap_test_exit(struct kunit *test)
{
	struct rmap_test *t = test->priv;

	if (!t)
		return;
	if (t->folio)
		folio_put(t->folio);
	if (t->mm)
		mmput(t->mm);
}

static pte_t *rmap_test_ptep(struct rmap_test *t, unsigned long address)
{
	return &t->ptes[pte_index(address)];
}

/* Map a new folio at @at pages behind RMAP_TEST_START, read-only, old, clean. */
static struct folio *rmap_test_map(struct kunit *test, unsigned int order,
				   bool anon, unsigned int at)
{
	unsigned long address = RMAP_TEST_START + at * PAGE_SIZE;
	struct rmap_test *t = test->priv;
	int i, nr = 1 << order;
	struct folio *folio;

	folio = folio_alloc(GFP_KERNEL, order);
	t->folio = folio;
	KUNIT_ASSERT_NOT_NULL(test, folio);
	/* The rmap code expects a charged folio. */
	KUNIT_ASSERT_EQ(test, mem_cgroup_charge(folio, NULL, GFP_KERNEL), 0);

	spin_lock(&t->ptl);
	folio_ref_add(folio, nr);
	if (anon) {
		folio_add_new_anon_rmap(folio, &t->vma, address, RMAP_EXCLUSIVE);
	} else {
		t->vma.vm_ops = &rmap_test_ops;
		t->vma.vm_pgoff = 0;
		folio->index = at;
		folio_add_file_rmap_ptes(folio, &folio->page, nr, &t->vma);
	}
	add_mm_counter(t->mm, mm_counter(folio), nr);
	for (i = 0; i < nr; i++, address += PAGE_SIZE)
		set_pte_at(t->mm, address, rmap_test_ptep(t, address),
			   pte_mkold(mk_pte(folio_page(folio, i), PAGE_READONLY)));
	spin_unlock(&t->ptl);
	return folio;
}

static pte_t rmap_test_get(struct rmap_test *t, unsigned int at)
{
	return ptep_get(&t->ptes[at]);
}

static void rmap_test_set(struct rmap_test *t, unsigned int at, pte_t pte)
{
	set_pte_at(t->mm, RMAP_TEST_START + at * PAGE_SIZE, &t->ptes[at], pte);
}

/*
 * Call @func at the PTE of page @at. Returns the PTEs of the run, by the place where the walk
 * stands.
 */
static unsigned int rmap_test_run(struct rmap_test *t, unsigned int at,
				  bool (*func)(struct folio *folio,
					       struct page_vma_mapped_walk *pvmw,
					       enum ttu_flags flags),
				  enum ttu_flags flags)
{
	DEFINE_FOLIO_VMA_WALK(pvmw, t->folio, &t->vma,
			      RMAP_TEST_START + at * PAGE_SIZE, 0);
	unsigned long start = pvmw.address;
	bool done;

	pvmw.pte = rmap_test_ptep(t, start);
	spin_lock(&t->ptl);
	done = func(t->folio, &pvmw, flags);
	spin_unlock(&t->ptl);
	if (pvmw.pte - rmap_test_ptep(t, start) !=
	    (pvmw.address - start) >> PAGE_SHIFT)
		return UINT_MAX;
	return done ? pvmw.pte - rmap_test_ptep(t, start) + 1 : 0;
}

/* @nr PTEs and counts of rmap_test_map()'s are left. */
static void rmap_test_left(struct kunit *test, unsigned int nr)
{
	struct rmap_test *t = test->priv;

	KUNIT_EXPECT_EQ(test, folio_mapcount(t->folio), nr);
	KUNIT_EXPECT_EQ(test, folio_ref_count(t->folio), 1 + nr);
}

/* Clear the PTEs that a test left, one by one. */
static void rmap_test_clear(struct rmap_test *t)
{
	int i;

	spin_lock(&t->ptl);
	for (i = 0; i < PTRS_PER_PTE; i++) {
		pte_t pte = ptep_get_and_clear(t->mm, RMAP_TEST_START +
					       i * PAGE_SIZE, &t->ptes[i]);

		if (!pte_present(pte))
			continue;
		folio_remove_rmap_pte(t->folio, pte_page(pte), &t->vma);
		folio_put(t->folio);
		dec_mm_counter(t->mm, mm_counter(t->folio));
	}
	spin_unlock(&t->ptl);
}

/* The record of a run is writable if any PTE is, dirty if any is, and of the first page. */
static void rmap_merge_test(struct kunit *test)
{
	pte_t plain = pfn_pte(0x1000, PAGE_READONLY);
	pte_t write = pte_mkwrite_novma(pfn_pte(0x1001, PAGE_READONLY));
	pte_t dirty = pte_mkdirty(pfn_pte(0x1002, PAGE_READONLY));
	pte_t stale;

	stale = rmap_run_merge(plain, pfn_pte(0x1001, PAGE_READONLY));
	KUNIT_EXPECT_TRUE(test, pte_same(stale, plain));

	stale = rmap_run_merge(plain, write);
	KUNIT_EXPECT_TRUE(test, pte_write(stale) && !pte_dirty(stale));
	stale = rmap_run_merge(stale, dirty);
	KUNIT_EXPECT_TRUE(test, pte_write(stale) && pte_dirty(stale));
	stale = rmap_run_merge(stale, plain);
	KUNIT_EXPECT_TRUE(test, pte_write(stale) && pte_dirty(stale));
	KUNIT_EXPECT_EQ(test, pte_pfn(stale), pte_pfn(plain));

	stale = rmap_run_merge(rmap_run_merge(plain, dirty), plain);
	KUNIT_EXPECT_TRUE(test, !pte_write(stale) && pte_dirty(stale));
}

/* Runs of file folios and of lazily freed ones. */
static void rmap_test_needs_unmap(struct kunit *test)
{
	if (!QUELL_LINUX_6_12)
		kunit_skip(test, "Linux unmaps these by itself");
}

/* A folio of a file: all PTEs are cleared, and one dirty PTE makes it dirty. */
static void rmap_file_test(struct kunit *test)
{
	struct rmap_test *t = test->priv;
	struct folio *folio;
	int i;

	rmap_test_needs_unmap(test);
	folio = rmap_test_map(test, 4, false, 8);
	rmap_test_set(t, 11, pte_mkyoung(rmap_test_get(t, 11)));
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 8, __rmap_batch_unmap, 0), 16);
	for (i = 8; i < 24; i++)
		KUNIT_EXPECT_TRUE(test, pte_none(rmap_test_get(t, i)));
	rmap_test_left(test, 0);
	KUNIT_EXPECT_FALSE(test, folio_test_dirty(folio));
	KUNIT_EXPECT_EQ(test, get_mm_counter_sum(t->mm, MM_FILEPAGES), 0);
	folio_put(folio);

	folio = rmap_test_map(test, 4, false, 8);
	rmap_test_set(t, 20, pte_mkdirty(rmap_test_get(t, 20)));
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 8, __rmap_batch_unmap, 0), 16);
	rmap_test_left(test, 0);
	KUNIT_EXPECT_TRUE(test, folio_test_dirty(folio));
	folio_clear_dirty(folio);
}

/* Where a run ends. */
static void rmap_bounds_test(struct kunit *test)
{
	struct rmap_test *t = test->priv;

	rmap_test_needs_unmap(test);
	rmap_test_map(test, 4, false, 0);
	/* From the middle of the folio to the end of the VMA. */
	t->vma.vm_end = RMAP_TEST_START + 6 * PAGE_SIZE;
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 2, __rmap_batch_unmap, 0), 4);
	KUNIT_EXPECT_TRUE(test, pte_present(rmap_test_get(t, 6)));
	rmap_test_left(test, 12);
	t->vma.vm_end = RMAP_TEST_START + 2 * PMD_SIZE;

	/* One PTE before a hole makes no run, nor does the last one. */
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 15, __rmap_batch_unmap, 0), 0);
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 0, __rmap_batch_unmap, 0), 2);
	rmap_test_set(t, 7, __pte(0));
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 6, __rmap_batch_unmap, 0), 0);
	rmap_test_set(t, 7, mk_pte(folio_page(t->folio, 7), PAGE_READONLY));
	/* The next page is the one behind it. */
	rmap_test_set(t, 9, mk_pte(folio_page(t->folio, 10), PAGE_READONLY));
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 6, __rmap_batch_unmap, 0), 3);
	rmap_test_set(t, 9, mk_pte(folio_page(t->folio, 9), PAGE_READONLY));
	/* All are PROT_NONE, or none is. */
	rmap_test_set(t, 12, mk_pte(folio_page(t->folio, 12), PAGE_NONE));
	rmap_test_set(t, 13, mk_pte(folio_page(t->folio, 13), PAGE_NONE));
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 9, __rmap_batch_unmap, 0), 3);
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 12, __rmap_batch_unmap, 0), 2);
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 14, __rmap_batch_unmap,
					    TTU_HWPOISON), 0);
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 14, __rmap_batch_unmap, 0), 2);
	rmap_test_left(test, 0);
}

/* The folio lies in two page tables; the other one is missing. */
static void rmap_table_test(struct kunit *test)
{
	struct rmap_test *t = test->priv;

	rmap_test_needs_unmap(test);
	rmap_test_map(test, 4, false, PTRS_PER_PTE - 8);
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, PTRS_PER_PTE - 8,
					    __rmap_batch_unmap, 0), 8);
	KUNIT_EXPECT_TRUE(test, pte_none(rmap_test_get(t, PTRS_PER_PTE - 1)));
	/* rmap_test_map() wraps around. */
	KUNIT_EXPECT_TRUE(test, pte_present(rmap_test_get(t, 0)));
	rmap_test_left(test, 8);
	rmap_test_clear(t);
}

#ifdef CONFIG_MIGRATION
/* Each migration entry has the bits of its PTE. */
static void rmap_migrate_test(struct kunit *test)
{
	struct rmap_test *t = test->priv;
	struct folio *folio = rmap_test_map(test, 4, true, 0);
	unsigned int i;

	/* Bits of i: young, dirty, writable, shared. */
	for (i = 0; i < 16; i++) {
		pte_t pte = rmap_test_get(t, i);

		if (i & 1)
			pte = pte_mkyoung(pte);
		if (i & 2)
			pte = pte_mkdirty(pte);
		if (i & 4)
			pte = pte_mkwrite_novma(pte);
		else if (i & 8)
			ClearPageAnonExclusive(folio_page(folio, i));
		rmap_test_set(t, i, pte);
	}
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 0, __rmap_batch_migrate, 0), 16);
	rmap_test_left(test, 0);
	KUNIT_EXPECT_TRUE(test, folio_test_dirty(folio));
	KUNIT_EXPECT_EQ(test, get_mm_counter_sum(t->mm, MM_ANONPAGES), 16);

	for (i = 0; i < 16; i++) {
		swp_entry_t entry = softleaf_from_pte(rmap_test_get(t, i));
		bool write = i & 4;

		KUNIT_EXPECT_TRUE(test, softleaf_is_migration(entry));
		KUNIT_EXPECT_EQ(test, softleaf_to_pfn(entry), folio_pfn(folio) + i);
		KUNIT_EXPECT_EQ(test, softleaf_is_migration_write(entry), write);
		KUNIT_EXPECT_EQ(test, softleaf_is_migration_read_exclusive(entry),
				!write && !(i & 8));
		if (migration_entry_supports_ad()) {
			KUNIT_EXPECT_EQ(test, softleaf_is_migration_young(entry),
					!!(i & 1));
			KUNIT_EXPECT_EQ(test, softleaf_is_migration_dirty(entry),
					!!(i & 2));
		}
		KUNIT_EXPECT_FALSE(test, PageAnonExclusive(folio_page(folio, i)));
		rmap_test_set(t, i, __pte(0));
	}
	folio_clear_dirty(folio);
	add_mm_counter(t->mm, MM_ANONPAGES, -16);
}
#endif

/* No PTE of a pinned folio is cleared, and no bit is lost. */
static void rmap_pinned_test(struct kunit *test)
{
	struct rmap_test *t = test->priv;
	struct folio *folio = rmap_test_map(test, 1, true, 0);
	pte_t pte = pte_mkyoung(pte_mkdirty(pte_mkwrite_novma(rmap_test_get(t, 0))));

	rmap_test_set(t, 0, pte);
	atomic_inc(&folio->_pincount);
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 0, __rmap_batch_migrate, 0), 0);
	KUNIT_EXPECT_TRUE(test, pte_same(rmap_test_get(t, 0), pte));
	KUNIT_EXPECT_TRUE(test, PageAnonExclusive(folio_page(folio, 0)));
	rmap_test_left(test, 2);

	/* Shared pages have no pins to look for: the run ends at the exclusive one. */
	ClearPageAnonExclusive(folio_page(folio, 0));
	rmap_test_set(t, 0, mk_pte(folio_page(folio, 0), PAGE_READONLY));
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 0, __rmap_batch_migrate, 0), 1);
	KUNIT_EXPECT_TRUE(test, pte_present(rmap_test_get(t, 1)));
	KUNIT_EXPECT_TRUE(test, PageAnonExclusive(folio_page(folio, 1)));
	rmap_test_left(test, 1);

	atomic_dec(&folio->_pincount);
	ClearPageAnonExclusive(folio_page(folio, 1));
	rmap_test_set(t, 0, __pte(0));
	dec_mm_counter(t->mm, MM_ANONPAGES);
	rmap_test_clear(t);
}

/* A lazily freed folio: PTEs are cleared until one is dirty, or the folio has another reference. */
static void rmap_lazyfree_test(struct kunit *test)
{
	struct rmap_test *t = test->priv;
	struct folio *folio;
	pte_t pte;

	rmap_test_needs_unmap(test);
	folio = rmap_test_map(test, 1, true, 0);
	pte = pte_mkdirty(rmap_test_get(t, 1));
	folio_clear_swapbacked(folio);
	rmap_test_set(t, 1, pte);

	folio_get(folio);
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 0, __rmap_batch_unmap, 0), 0);
	KUNIT_EXPECT_TRUE(test, pte_present(rmap_test_get(t, 0)));
	folio_put(folio);
	rmap_test_left(test, 2);

	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 0, __rmap_batch_unmap, 0), 1);
	KUNIT_EXPECT_TRUE(test, pte_none(rmap_test_get(t, 0)));
	KUNIT_EXPECT_TRUE(test, pte_same(rmap_test_get(t, 1), pte));
	KUNIT_EXPECT_FALSE(test, folio_test_dirty(folio));
	KUNIT_EXPECT_EQ(test, get_mm_counter_sum(t->mm, MM_ANONPAGES), 1);
	rmap_test_left(test, 1);
	rmap_test_clear(t);
}

/*
 * A PTE in the middle of the run is dirty, or writable: the flush precedes I/O, and lazy unmap
 * flush does not defer it.
 */
static void rmap_record_test(struct kunit *test)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	struct rmap_test *t = test->priv;
	struct folio *folio;

	rmap_test_needs_unmap(test);
#ifdef CONFIG_QUELL_UNMAP_BATCH
	if (!quell_unmap_batch())
		kunit_skip(test, "unmap_batch is off");
#endif
	if (num_online_cpus() < 2)
		kunit_skip(test, "no flush is deferred");

	folio = rmap_test_map(test, 2, false, 0);
	rmap_test_set(t, 2, pte_mkdirty(rmap_test_get(t, 2)));
	cpumask_copy(mm_cpumask(t->mm), cpu_online_mask);
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 0, __rmap_batch_unmap,
					    TTU_BATCH_FLUSH), 4);
	KUNIT_EXPECT_TRUE(test, tlb_ubc->flush_required);
	KUNIT_EXPECT_TRUE(test, tlb_ubc->writable);
	try_to_unmap_flush();
	folio_clear_dirty(folio);
	folio_put(folio);

	folio = rmap_test_map(test, 2, true, 0);
	rmap_test_set(t, 2, pte_mkwrite_novma(rmap_test_get(t, 2)));
#ifdef CONFIG_QUELL_LUF
	tlb_ubc->luf_folio = folio;
	tlb_ubc->luf_state = LUF_UNMAPPING;
#endif
	KUNIT_EXPECT_EQ(test, rmap_test_run(t, 0, __rmap_batch_migrate,
					    TTU_BATCH_FLUSH), 4);
#ifdef CONFIG_QUELL_LUF
	KUNIT_EXPECT_FALSE(test, tlb_ubc->luf_state & LUF_OWED);
	tlb_ubc->luf_state &= ~LUF_UNMAPPING;
	tlb_ubc->luf_folio = NULL;
#endif
	KUNIT_EXPECT_TRUE(test, tlb_ubc->flush_required);
	try_to_unmap_flush();
	cpumask_clear(mm_cpumask(t->mm));
	add_mm_counter(t->mm, MM_ANONPAGES, -4);
}

static struct kunit_case rmap_batch_cases[] = {
	KUNIT_CASE(rmap_merge_test),
	KUNIT_CASE(rmap_file_test),
	KUNIT_CASE(rmap_bounds_test),
	KUNIT_CASE(rmap_table_test),
#ifdef CONFIG_MIGRATION
	KUNIT_CASE(rmap_migrate_test),
#endif
	KUNIT_CASE(rmap_pinned_test),
	KUNIT_CASE(rmap_lazyfree_test),
	KUNIT_CASE(rmap_record_test),
	{}
};

static struct kunit_suite rmap_batch_suite = {
	.name = "rmap_batch",
	.init = rmap_test_init,
	.exit = rmap_test_exit,
	.test_cases = rmap_batch_cases,
};

kunit_test_suite(rmap_batch_suite);
