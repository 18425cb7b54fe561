// SPDX-License-Identifier: GPL-2.0-only
/*
 * Batched PTE clearing: try_to_unmap() and try_to_migrate() clear the PTEs of a large folio in
 * runs, as zap has done since 6.9.
 *
 * Stock clears them one by one, each with a record of the deferred flush, an update of the rmap
 * and of a counter, and a reference. In 7.3 try_to_unmap() has runs for files and for lazily
 * freed memory; these stay with stock (stock_unmaps_runs()).
 *
 * First published by Ryan Roberts for zap ("mm: Batch-clear PTE ranges during zap_pte_range()",
 * v4, December 2023; a later form in Linux 6.9). Here reclaim and migration do it, where each page
 * keeps the bits of its PTE in its swap or migration entry.
 *
 * A *run* is a sequence of consecutive PTEs, in one page table and one VMA, that map consecutive
 * pages of one folio. Each PTE is cleared and replaced by itself, as in stock. All work for the
 * folio, the mm or the TLB is done once per run: one record of the deferred flush, or one flush,
 * one folio_remove_rmap_ptes(), one update of the counters, one folio_put_refs().
 *
 * rmap_batch_unmap() and rmap_batch_migrate() are called by mm/rmap.c at a PTE of the folio. They
 * take a run away that begins there, or do nothing and leave the PTE to stock's code.
 *
 * Invariants, with the enforcing function, and KUnit tests, properties of selftest rmap_batch and
 * mutations in brackets. Selftest rmap_torture attacks all of it.
 *
 *  - Only present PTEs make a run. mm/rmap.c keeps hugetlb, PMDs, device entries, VM_LOCKED,
 *    TTU_HWPOISON, poisoned pages, unused PTEs, and a folio that should be in the swap cache and
 *    is not. rmap_run_begin(), rmap_run_fits() [rmap_bounds_test; mlock, poison; RMAP_POISONED,
 *    RMAP_MLOCKED]
 *  - A run is in one page table and before vma_address_end(), so in the range that MMU notifiers
 *    were told. page_vma_mapped_walk() continues behind its last PTE. rmap_run_begin(),
 *    rmap_run_end() [rmap_table_test, rmap_bounds_test; crossing, middle]
 *  - Failures have stock's path only. If a page cannot be unmapped its PTE is put back unchanged
 *    and the run ends before it. If the run would be empty nothing was done; stock's code tries
 *    again, and aborts the walk if it fails, too. rmap_run_put_back() [rmap_pinned_test; pinned]
 *  - The bits of a PTE stay its page's. Each PTE is read as it is cleared, atomically, so no bit
 *    that hardware sets is lost. Young, dirty, writable, exclusive, soft-dirty and uffd-wp go to
 *    the entry or the marker of that page, so PTEs that differ make one run. Only the folio's
 *    dirty flag is set once, under the folio lock and before the references are dropped, if any
 *    PTE was dirty. rmap_swap_out(), rmap_migrate(), rmap_discard(), rmap_run_end()
 *    [rmap_migrate_test, rmap_file_test; young, dirty, soft-dirty, uffd-wp, exclusive;
 *    RMAP_LOSE_*, RMAP_ALL_*]
 *  - The record of the run is writable if any PTE was, and dirty if any was. A dirty record is
 *    flushed before I/O, and mm/luf.c defers only records that are not writable and, for files,
 *    not dirty. With a record of the first PTE, a CPU could write to a page through another one
 *    after its I/O or lazy unmap. rmap_run_merge() [rmap_merge_test, rmap_record_test;
 *    RMAP_FIRST_ONLY]
 *  - pte_accessible() is true of all PTEs of a run or of none. It is false for a PROT_NONE PTE
 *    unless a flush is pending in the mm, and all PTEs are PROT_NONE or none is. It is called
 *    after the last one was cleared. A flush that was pending before, and is not any more, has
 *    covered these entries. rmap_run_fits(), rmap_run_end() [rmap_bounds_test]
 *  - One record after the last PTE is enough. flush_tlb_batched_pending(), luf_flush_pending() and
 *    luf_write_fault(), which read it, take the same page table lock. A fault that sees an entry
 *    of the run before the record waits for that lock or for the folio's. The CPUs to interrupt,
 *    tlb_gen and the generations of mm/luf.c are read after the last PTE was cleared.
 *    rmap_run_end()
 *  - No pin is missed. The PTE is cleared, then folio_try_share_anon_rmap_pte() looks for pins,
 *    then the new entry is set, with stock's barriers. A PTE that is put back is unchanged, with
 *    PG_anon_exclusive set, so cached entries are right and need no flush. References and mappings
 *    change when the run is complete, so rmap_may_drop() finds both for the PTEs that are gone.
 *    GUP-fast depends on the PTE, not the TLB. rmap_may_share(), rmap_may_drop()
 *    [rmap_pinned_test, rmap_lazyfree_test; RMAP_SHARE_PINNED, RMAP_DROP_USED]
 *  - Counts are right when the page table is unlocked. In mid-run the folio has more mappings than
 *    PTEs; code that compares them holds the page table lock or the folio's, or tolerates it.
 *    rmap_run_end(), __rmap_batch_unmap() [counters; RMAP_ONE_COUNTED, RMAP_SWAP_LEAK]
 *
 * Differences from stock: a folio that is unmapped in one run is never partially mapped, so it is
 * not queued for splitting. If its flush may not be deferred, a run has one. mlock() in mid-run
 * finds the whole run gone, and reads it again. x86 only: see QUELL_RMAP_BATCH in
 * mm/Kconfig.quell.
 */
#include <linux/init.h>
#include <linux/jump_label.h>
#include <linux/list.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/pgtable.h>
#include <linux/quell.h>
#include <linux/quell_mutants.h>
#include <linux/rmap.h>
#include <linux/sched/mm.h>
#include <linux/spinlock.h>
#include <linux/swap.h>
#include <linux/swapops.h>
#include <linux/vmstat.h>
#include <asm/tlbflush.h>
#include <trace/events/migrate.h>
#include "internal.h"
#include "quell_compat.h"

/* Off until quell_apply_param(). */
DEFINE_STATIC_KEY_FALSE(rmap_batch_key);

/**
 * struct rmap_run - a run, and how far it has been cleared
 * @folio:	that it maps
 * @vma:	that maps it
 * @mm:		@vma's
 * @page:	the next page
 * @ptep:	the next PTE
 * @address:	the next address
 * @max:	the PTEs that make the run; the page table lock fixes all but their young and
 *		dirty bits
 * @nr:		the PTEs that were taken away
 * @stale:	for the record: the first PTE, and see rmap_run_merge()
 */
struct rmap_run {
	struct folio *folio;
	struct vm_area_struct *vma;
	struct mm_struct *mm;
	struct page *page;
	pte_t *ptep;
	unsigned long address;
	unsigned int max;
	unsigned int nr;
	pte_t stale;
};

/* May @pte follow @first? It maps @page if it is in the run. */
static bool rmap_run_fits(pte_t pte, pte_t first, struct page *page)
{
	return pte_present(pte) && pte_pfn(pte) == page_to_pfn(page) &&
	       !((pte_flags(pte) ^ pte_flags(first)) & _PAGE_PRESENT) &&
	       !pte_unused(pte) &&
	       (!PageHWPoison(page) || quell_mutant(RMAP_POISONED));
}

/*
 * Do at least two PTEs make a run where the walk stands? Under the page table lock;
 * page_vma_mapped_walk() has checked that the PTE maps a page of the folio.
 *
 * Not in VM_LOCKED VMAs: folio->mlock_count may exceed their number when munlock() races with
 * isolation. A munlock per PTE corrects that, one per run might leave the folio mlocked.
 */
static bool rmap_run_begin(struct rmap_run *run, struct folio *folio,
			   struct page_vma_mapped_walk *pvmw)
{
	unsigned long address = pvmw->address;
	unsigned long end, idx, max;
	pte_t first;

	if (folio_test_hugetlb(folio) || folio_is_zone_device(folio) ||
	    ((pvmw->vma->vm_flags & VM_LOCKED) && !quell_mutant(RMAP_MLOCKED)))
		return false;
	first = ptep_get(pvmw->pte);
	if (!pte_present(first))
		return false;

	end = pmd_addr_end(address, vma_address_end(pvmw));
	idx = pte_pfn(first) - folio_pfn(folio);
	*run = (struct rmap_run) {
		.folio		= folio,
		.vma		= pvmw->vma,
		.mm		= pvmw->vma->vm_mm,
		.page		= folio_page(folio, idx),
		.ptep		= pvmw->pte,
		.address	= address,
		.stale		= first,
	};
	max = min((end - address) >> PAGE_SHIFT, folio_nr_pages(folio) - idx);
	while (run->max < max &&
	       rmap_run_fits(ptep_get(run->ptep + run->max), first,
			     run->page + run->max))
		run->max++;
	return run->max > 1;
}

static bool rmap_run_more(const struct rmap_run *run)
{
	return run->nr < run->max;
}

/* Merge one more PTE into the record of a run, @stale so far. */
static __always_inline pte_t rmap_run_merge(pte_t stale, pte_t pte)
{
	if (quell_mutant(RMAP_FIRST_ONLY))
		return stale;
	if (pte_write(pte))
		stale = pte_mkwrite_novma(stale);
	if (pte_dirty(pte))
		stale = pte_mkdirty(stale);
	return stale;
}

/* should_defer_flush(), which stock inlines at its single PTE. */
static bool rmap_run_may_defer(struct mm_struct *mm, enum ttu_flags flags)
{
#ifdef CONFIG_QUELL_UNMAP_BATCH
	if (!quell_unmap_batch())
		return false;
#endif
	return (flags & TTU_BATCH_FLUSH) && arch_tlbbatch_should_defer(mm);
}

static pte_t rmap_run_clear(struct rmap_run *run)
{
	flush_cache_page(run->vma, run->address, page_to_pfn(run->page));
	return ptep_get_and_clear(run->mm, run->address, run->ptep);
}

/* The page stays mapped. Hardware sets no bit of a PTE that is cleared. */
static void rmap_run_put_back(struct rmap_run *run, pte_t pte)
{
	set_pte_at(run->mm, run->address, run->ptep, pte);
}

/* The next PTE, @pte, was taken away. */
static void rmap_run_took(struct rmap_run *run, pte_t pte)
{
	run->stale = rmap_run_merge(run->stale, pte);
	run->nr++;
	run->page++;
	run->ptep++;
	run->address += PAGE_SIZE;
}

/* The checker of lazy unmap flush is told how many PTEs the record covers. */
static void rmap_run_record(struct rmap_run *run, unsigned long start, unsigned long end)
{
#ifdef CONFIG_QUELL_LUF_DEBUG
	luf_debug_run(run->nr);
#endif
	rmap_run_flush_pending(run->mm, run->stale, start, end);
#ifdef CONFIG_QUELL_LUF_DEBUG
	luf_debug_run(0);
#endif
}

/*
 * All PTEs of the run are cleared: do the work that is due once. The folio may lose its last
 * mapping, but not its last reference, which is the caller's.
 */
static void rmap_run_end(struct rmap_run *run, struct page_vma_mapped_walk *pvmw,
			 bool defer)
{
	unsigned long end = run->address;
	unsigned long start = end - run->nr * PAGE_SIZE;

	if (defer)
		rmap_run_record(run, start, end);
	else if (pte_accessible(run->mm, run->stale))
		/* No page table is freed: lazy CPUs are spared, as in flush_tlb_page(). */
		flush_tlb_mm_range(run->mm, start, end, PAGE_SHIFT, false);

	if (pte_dirty(run->stale) && !quell_mutant(RMAP_LOSE_DIRTY))
		folio_mark_dirty(run->folio);
	folio_remove_rmap_ptes(run->folio, run->page - run->nr, run->nr,
			       run->vma);
	folio_put_refs(run->folio, run->nr);
	count_vm_event(RMAP_BATCH_RUNS);
	count_vm_events(RMAP_BATCH_PAGES, run->nr);

	pvmw->pte = run->ptep - 1;
	pvmw->address = end - PAGE_SIZE;
}

/* Has a lazily freed folio no references but its mappings' and ours? Its PTE was @pte. */
static bool rmap_may_drop(struct rmap_run *run, pte_t pte)
{
	int refs, maps;

	/* GUP-fast takes a reference and reads the PTE again. */
	smp_mb();
	refs = folio_ref_count(run->folio);
	maps = folio_mapcount(run->folio);
	/* The references before the dirty flag: see __remove_mapping(). */
	smp_rmb();

	if (refs != 1 + maps)
		return false;
	return (run->vma->vm_flags & VM_DROPPABLE) ||
	       (!pte_dirty(pte) && !folio_test_dirty(run->folio));
}

/* Take one PTE of a file folio, or of a lazily freed anonymous one, away. */
static bool rmap_discard(struct rmap_run *run, bool lazyfree)
{
	pte_t pte = rmap_run_clear(run);

	if (!quell_mutant(RMAP_LOSE_MARKER))
		cond_install_uffd_wp_ptes(run->vma, run->address, run->ptep, pte, 1);
	if (lazyfree && !quell_mutant(RMAP_DROP_USED) &&
	    !rmap_may_drop(run, pte)) {
		rmap_run_put_back(run, pte);
		return false;
	}
	rmap_run_took(run, pte);
	return true;
}

/*
 * The PTE is cleared: may the page lose PG_anon_exclusive, if it had that, and does the
 * architecture agree?
 */
static __always_inline bool rmap_may_share(struct rmap_run *run, pte_t pte,
					   bool exclusive)
{
	return arch_unmap_one(run->mm, run->vma, run->address, pte) >= 0 &&
	       !(exclusive && !quell_mutant(RMAP_SHARE_PINNED) &&
		 folio_try_share_anon_rmap_pte(run->folio, run->page));
}

static bool rmap_swap_out(struct rmap_run *run, swp_entry_t entry)
{
	bool exclusive = PageAnonExclusive(run->page);
	pte_t pte, swp_pte;

	pte = rmap_run_clear(run);
	if (!rmap_may_share(run, pte, exclusive)) {
		rmap_run_put_back(run, pte);
		return false;
	}

	swp_pte = swp_entry_to_pte(entry);
	if ((exclusive && !quell_mutant(RMAP_LOSE_EXCLUSIVE)) ||
	    quell_mutant(RMAP_ALL_EXCLUSIVE))
		swp_pte = pte_swp_mkexclusive(swp_pte);
	if (pte_soft_dirty(pte) && !quell_mutant(RMAP_LOSE_SOFT_DIRTY))
		swp_pte = pte_swp_mksoft_dirty(swp_pte);
	if (pte_uffd(pte) && !quell_mutant(RMAP_LOSE_UFFD_WP))
		swp_pte = pte_swp_mkuffd(swp_pte);
	set_pte_at(run->mm, run->address, run->ptep, swp_pte);
	rmap_run_took(run, pte);
	return true;
}

/**
 * __rmap_batch_unmap - try_to_unmap_one() for a run
 * @folio:	large; locked by the caller of try_to_unmap()
 * @pvmw:	stands on a PTE that maps a page of @folio
 * @flags:	of try_to_unmap()
 *
 * Under the page table lock. The swap entries are duplicated before the first PTE is cleared, so a
 * failure leaves nothing to put back. Code that acts on their counts locks the folio
 * (folio_free_swap(), swapin, swapoff).
 *
 * Return: true if a run was unmapped, and @pvmw stands on its last PTE; false if nothing was done.
 */
bool __rmap_batch_unmap(struct folio *folio, struct page_vma_mapped_walk *pvmw,
			enum ttu_flags flags)
{
	bool anon = folio_test_anon(folio);
	bool swap = anon && folio_test_swapbacked(folio);
	struct rmap_run run;
	bool defer;

	if ((flags & TTU_HWPOISON) || stock_unmaps_runs(folio) ||
	    (anon && swap != folio_test_swapcache(folio)) ||
	    !rmap_run_begin(&run, folio, pvmw))
		return false;

	/* Read the switch once, before the first PTE is cleared. */
	defer = rmap_run_may_defer(run.mm, flags);
	if (swap) {
		swp_entry_t entry = page_swap_entry(run.page);

		if (!folio_dup_swap_run(folio, run.page, run.max))
			return false;
		mm_prepare_for_swap_entries(run.mm);
		for (; rmap_run_more(&run) && rmap_swap_out(&run, entry); entry.val++)
			;
		if (rmap_run_more(&run) && !quell_mutant(RMAP_SWAP_LEAK))
			folio_put_swap_run(folio, run.page, run.max - run.nr);
	} else {
		while (rmap_run_more(&run) && rmap_discard(&run, anon))
			;
	}
	if (!run.nr)
		return false;

	rmap_run_end(&run, pvmw, defer);
	/* Before rss is lowered. */
	update_hiwater_rss(run.mm);
	add_mm_counter(run.mm, mm_counter(folio),
		       quell_mutant(RMAP_ONE_COUNTED) ? -1L : -(long)run.nr);
	if (swap)
		add_mm_counter(run.mm, MM_SWAPENTS, run.nr);
	return true;
}

static bool rmap_migrate(struct rmap_run *run)
{
	bool exclusive = folio_test_anon(run->folio) &&
			 PageAnonExclusive(run->page);
	unsigned long pfn = page_to_pfn(run->page);
	swp_entry_t entry;
	pte_t pte, swp_pte;

	pte = rmap_run_clear(run);
	VM_WARN_ON_ONCE_PAGE(pte_write(pte) && !exclusive &&
			     folio_test_anon(run->folio), run->page);
	if (!rmap_may_share(run, pte, exclusive)) {
		rmap_run_put_back(run, pte);
		return false;
	}

	if (pte_write(pte) || quell_mutant(RMAP_ALL_WRITABLE))
		entry = make_writable_migration_entry(pfn);
	else if (exclusive)
		entry = make_readable_exclusive_migration_entry(pfn);
	else
		entry = make_readable_migration_entry(pfn);
	if (pte_young(pte) && !quell_mutant(RMAP_LOSE_YOUNG))
		entry = make_migration_entry_young(entry);
	if (pte_dirty(pte) && !quell_mutant(RMAP_LOSE_PTE_DIRTY))
		entry = make_migration_entry_dirty(entry);
	swp_pte = swp_entry_to_pte(entry);
	if (pte_soft_dirty(pte) && !quell_mutant(RMAP_LOSE_SOFT_DIRTY))
		swp_pte = pte_swp_mksoft_dirty(swp_pte);
	if (pte_uffd(pte) && !quell_mutant(RMAP_LOSE_UFFD_WP))
		swp_pte = pte_swp_mkuffd(swp_pte);
	set_pte_at(run->mm, run->address, run->ptep, swp_pte);
	trace_set_migration_pte(run->address, pte_val(swp_pte),
				folio_order(run->folio));
	rmap_run_took(run, pte);
	return true;
}

/**
 * __rmap_batch_migrate - try_to_migrate_one() for a run
 * @folio:	large; locked by the caller of try_to_migrate()
 * @pvmw:	stands on a PTE that maps a page of @folio
 * @flags:	of try_to_migrate()
 *
 * Under the page table lock.
 *
 * Return: true if migration entries replace a run, and @pvmw stands on its last PTE; false if
 * nothing was done.
 */
bool __rmap_batch_migrate(struct folio *folio,
			  struct page_vma_mapped_walk *pvmw,
			  enum ttu_flags flags)
{
	struct rmap_run run;
	bool defer;

	if (!rmap_run_begin(&run, folio, pvmw))
		return false;

	/* Read the switch once, before the first PTE is cleared. */
	defer = rmap_run_may_defer(run.mm, flags);
	while (rmap_run_more(&run) && rmap_migrate(&run))
		;
	if (!run.nr)
		return false;

	/* A migration entry counts as the page did: no counter changes. */
	rmap_run_end(&run, pvmw, defer);
	return true;
}

static struct quell_mechanism rmap_batch_mechanism = {
	.name	= "rmap_batch",
	.key	= &rmap_batch_key.key,
};

static int __init rmap_batch_init(void)
{
	return quell_register(&rmap_batch_mechanism);
}
subsys_initcall(rmap_batch_init);

#ifdef CONFIG_QUELL_KUNIT_TEST
#include "tests/rmap_batch-kunit.h"
#endif
