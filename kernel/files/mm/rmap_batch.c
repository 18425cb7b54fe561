// SPDX-License-Identifier: GPL-2.0-only
/*
 * try_to_unmap() and try_to_migrate() take the PTEs of a large folio away in
 * runs, as zap does, and not one by one. Since 6.18 Linux does so in try_to_unmap()
 * for files and lazily freed memory, and is left to it (stock_unmaps_runs()).
 *
 * A *run* is a sequence of PTEs, one behind the other, in one page table and one
 * VMA, that map consecutive pages of one folio. Each PTE of a run is cleared by
 * itself, and gets what stock puts there. What concerns the folio, the mm or the
 * TLB happens once: one record of the deferred flush, or one flush, one
 * folio_remove_rmap_ptes(), one update of the counters, one folio_put_refs().
 *
 * Which PTEs make a run
 * ---------------------
 * Only present ones. mm/rmap.c stays the place where everything else is handled:
 * hugetlb, PMDs, device entries, VM_LOCKED, TTU_HWPOISON and poisoned pages,
 * unused PTEs, a folio that should be in the swap cache and is not. And all that
 * goes wrong: when a page cannot be unmapped, its PTE is put back as it was, the
 * run ends before it, and the walk comes to it next. If the run would be empty,
 * nothing was done and stock's code tries again, and aborts the walk if it fails,
 * too. So there is no second way to fail.
 *
 * Folios of VM_LOCKED VMAs are counted by folio->mlock_count, which may be more than
 * there are such VMAs when munlock() races with what isolates the folio. A munlock for
 * each PTE takes that off again, one for a run might not: the folio would stay mlocked.
 *
 * A run ends with the page table and with vma_address_end(), so it is within the
 * range that the MMU notifiers were told, and the walk finds itself where it would
 * be after the last PTE: page_vma_mapped_walk() goes on from pvmw->address and
 * pvmw->pte, and looks for the end of the page table and of the range itself.
 *
 * Nothing is merged but what belongs to the folio
 * -----------------------------------------------
 * Each PTE is read when it is cleared, atomically, so that bits which the hardware
 * sets until then are seen. Young, dirty, writable, exclusive, soft-dirty and
 * uffd-wp of a page go to the swap or migration entry, or to the marker, of that
 * page: PTEs that differ are in one run and stay different. To end a run where
 * they differ would cost more, as the young bits of a folio that is about to be
 * reclaimed do differ. Only the folio's own dirty flag is set once, if any PTE was
 * dirty; before the references are dropped, and while the folio is locked, as in
 * stock.
 *
 * One record for all
 * ------------------
 * The record of the deferred flush is made from a PTE: a dirty one makes sure that
 * the flush comes before I/O, and mm/luf.c leaves only those to the lot that are
 * not writable and, for files, not dirty. So the PTE that the record is made from
 * must be writable if any of the run was, and dirty if any was: rmap_run_merge().
 * This is what everything rests on. A record made from the first PTE would let
 * a CPU write to a page through another one after its I/O, or after a lazy unmap.
 *
 * pte_accessible() says no of a PROT_NONE PTE unless a flush is pending in the mm.
 * All PTEs of a run are PROT_NONE, or none is, so that this is true of all or of
 * none. It is asked after all of them were cleared. If a flush was pending when
 * one of them was, and is not any more, then it has happened meanwhile, and those
 * are the entries that it was for.
 *
 * The record, or the flush, comes behind the last PTE of the run and not behind
 * each, but under the same page table lock, which whoever depends on either takes:
 * flush_tlb_batched_pending(), luf_flush_pending() and luf_write_fault(). A fault
 * that sees an entry of the run before it is recorded waits for that lock, or for
 * the folio's. GUP-fast depends on the PTE and not on the TLB. The CPUs that are
 * interrupted, tlb_gen and the labels of mm/luf.c are looked at after the last PTE
 * was cleared, so they are right for all of them.
 *
 * Against GUP-fast
 * ----------------
 * A page is taken away in stock's order: its PTE is cleared, then
 * folio_try_share_anon_rmap_pte() looks whether the folio is pinned, with the
 * barriers that are explained there, then the new entry is set. A PTE that is put
 * back is the same as before: PG_anon_exclusive is still set, no flush is due for
 * it, as what is cached is what is there. Likewise for lazily freed folios: PTE,
 * barrier, references and mappings, page by page. Neither changes until the run is
 * complete, so those of the PTEs that were taken away before are still counted on
 * both sides.
 *
 * The swap entries are duplicated before the first PTE is cleared: if that fails,
 * there is nothing to put back; those of PTEs that stay are given up again. Nobody
 * can tell from the counts that the PTEs are still there, as whoever acts on these
 * has locked the folio (folio_free_swap(), swapin, swapoff).
 *
 * Between the first PTE and the last the folio has more mappings than PTEs. Those
 * who compare the two hold the page table lock or the folio's, or expect it to be
 * wrong.
 *
 * What differs from stock
 * -----------------------
 * A folio that is unmapped in one run is never partially mapped, so it is not put
 * on the list of those to be split. Where the flush may not be deferred, there is
 * one for the run. mlock() in mid-run finds the whole run gone, and reads it again.
 * The architecture: see QUELL_RMAP_BATCH in mm/Kconfig.quell.
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

/* Off until rmap_batch_init(). */
DEFINE_STATIC_KEY_FALSE(rmap_batch_key);

/**
 * struct rmap_run - a run, and how far it has come
 * @folio:	that it maps
 * @vma:	where
 * @mm:		@vma's
 * @page:	the next page
 * @ptep:	the next PTE
 * @address:	the next address
 * @max:	so many PTEs make it at the most; under the page table lock only their
 *		young and dirty bits change
 * @nr:		so many were taken away
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

/* May @pte, which maps @page if it is in the run at all, follow @first? */
static bool rmap_run_fits(pte_t pte, pte_t first, struct page *page)
{
	return pte_present(pte) && pte_pfn(pte) == page_to_pfn(page) &&
	       !((pte_flags(pte) ^ pte_flags(first)) & _PAGE_PRESENT) &&
	       !pte_unused(pte) &&
	       (!PageHWPoison(page) || quell_mutant(RMAP_POISONED));
}

/*
 * Is there a run of two at least where the walk stands? Under the page table
 * lock; page_vma_mapped_walk() has seen that the PTE maps a page of the folio.
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

/* The record of a run that was @stale so far, with one more PTE. */
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

/* should_defer_flush(), which is to be inlined where there is one PTE. */
static bool rmap_run_may_defer(struct mm_struct *mm, enum ttu_flags flags)
{
	return (flags & TTU_BATCH_FLUSH) && quell_unmap_batch() &&
	       arch_tlbbatch_should_defer(mm);
}

static pte_t rmap_run_clear(struct rmap_run *run)
{
	flush_cache_page(run->vma, run->address, page_to_pfn(run->page));
	return ptep_get_and_clear(run->mm, run->address, run->ptep);
}

/* The page stays where it was. Hardware sets no bit of a PTE that is cleared. */
static void rmap_run_put_back(struct rmap_run *run, pte_t pte)
{
	set_pte_at(run->mm, run->address, run->ptep, pte);
}

/* The next PTE was @pte, and is taken away. */
static void rmap_run_took(struct rmap_run *run, pte_t pte)
{
	run->stale = rmap_run_merge(run->stale, pte);
	run->nr++;
	run->page++;
	run->ptep++;
	run->address += PAGE_SIZE;
}

/*
 * All PTEs of the run are cleared: do the rest, which is for all of them. The folio
 * may lose its last mapping, but not its last reference, which is the caller's.
 */
static void rmap_run_end(struct rmap_run *run, struct page_vma_mapped_walk *pvmw,
			 bool defer)
{
	unsigned long end = run->address;
	unsigned long start = end - run->nr * PAGE_SIZE;

	if (defer)
		rmap_run_flush_pending(run->mm, run->stale, start, end);
	else if (pte_accessible(run->mm, run->stale))
		/* No page table is freed: not lazy CPUs, as flush_tlb_page(). */
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

/* Has nobody but us, and who maps it, a lazily freed folio? Its PTE was @pte. */
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

/* File folios, and anonymous ones that are lazily freed. */
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
 * PTE cleared: can the page do without PG_anon_exclusive, if it had that, and
 * has the architecture nothing against it?
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
 * Under the page table lock.
 *
 * Return: true if a run was unmapped, and @pvmw stands on its last PTE; false if
 * nothing was done.
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

	/* Before the first PTE is cleared, and once: it looks at a switch. */
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
 * Return: true if a run was replaced by migration entries, and @pvmw stands on its
 * last PTE; false if nothing was done.
 */
bool __rmap_batch_migrate(struct folio *folio,
			  struct page_vma_mapped_walk *pvmw,
			  enum ttu_flags flags)
{
	struct rmap_run run;
	bool defer;

	if (!rmap_run_begin(&run, folio, pvmw))
		return false;

	/* Before the first PTE is cleared, and once: it looks at a switch. */
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
