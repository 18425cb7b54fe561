// SPDX-License-Identifier: GPL-2.0-only
/* Features of mainline that Linux 6.12 lacks, for the mechanisms of CONFIG_QUELL. */
#include <linux/mm.h>
#include <linux/quell_mutants.h>
#include <linux/vmstat.h>
#include "internal.h"
#include "quell_compat.h"

#if QUELL_LINUX_6_12

/*
 * Does this process alone map @folio, whose page faults? The page table is locked.
 *
 * Each PTE has a reference, which it keeps while the page table is locked. If the references are
 * as many as the PTEs found there, no other process has one, nor a PTE to get one from.
 *
 * After David Hildenbrand's reuse of large folios (Linux 6.15), which keeps a count in the folio;
 * this looks at the page table instead.
 */
bool folio_order_reuse(struct vm_fault *vmf, struct folio *folio)
{
	long at = pte_index(vmf->address), page = folio_page_idx(folio, vmf->page);
	long nr = folio_nr_pages(folio), i;
	int mapped = 0;

	if (!folio_test_large(folio) || folio_test_swapcache(folio) || folio_entire_mapcount(folio))
		return false;
	for (i = max(0L, page - at); i < min(nr, page + (long)PTRS_PER_PTE - at); i++) {
		pte_t pte = ptep_get(vmf->pte + (i - page));

		mapped += pte_present(pte) && !pte_special(pte) &&
			  pte_pfn(pte) == folio_pfn(folio) + i;
	}
	/* Pairs with the release of other references, after their last access. */
	if (folio_ref_count(folio) != mapped && !quell_mutant(FOLIO_REUSE_SHARED))
		return false;
	smp_acquire__after_ctrl_dep();
	count_vm_event(FOLIO_ORDER_REUSE);
	return true;
}

#endif
