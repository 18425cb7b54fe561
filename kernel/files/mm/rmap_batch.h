/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Batched PTE clearing: the hooks in mm/rmap.c. The head of mm/rmap_batch.c says why they are
 * safe.
 */
#ifndef _MM_RMAP_BATCH_H
#define _MM_RMAP_BATCH_H

#include <linux/jump_label.h>
#include <linux/mm_types.h>
#include <linux/page-flags.h>
#include <linux/rmap.h>

/* In mm/rmap.c: record the deferred flush of a run's PTEs, from @start up to @end. */
void rmap_run_flush_pending(struct mm_struct *mm, pte_t pteval,
			    unsigned long start, unsigned long end);

/* In mm/swapfile.c of 6.12. */
#ifdef CONFIG_SWAP
bool swap_duplicate_nr(swp_entry_t entry, int nr);
#else
static inline bool swap_duplicate_nr(swp_entry_t entry, int nr)
{
	return true;
}
#endif

#ifdef CONFIG_QUELL_RMAP_BATCH

DECLARE_STATIC_KEY_FALSE(rmap_batch_key);

bool __rmap_batch_unmap(struct folio *folio, struct page_vma_mapped_walk *pvmw,
			enum ttu_flags flags);
bool __rmap_batch_migrate(struct folio *folio,
			  struct page_vma_mapped_walk *pvmw,
			  enum ttu_flags flags);

/*
 * For try_to_unmap_one(), at a PTE that maps @folio: was a run unmapped that starts there? Then
 * the walk stands on its last PTE. Else nothing was done.
 */
static inline bool rmap_batch_unmap(struct folio *folio,
				    struct page_vma_mapped_walk *pvmw,
				    enum ttu_flags flags)
{
	return static_branch_likely(&rmap_batch_key) &&
	       unlikely(folio_test_large(folio)) &&
	       __rmap_batch_unmap(folio, pvmw, flags);
}

/* The same for try_to_migrate_one(). */
static inline bool rmap_batch_migrate(struct folio *folio,
				      struct page_vma_mapped_walk *pvmw,
				      enum ttu_flags flags)
{
	return static_branch_likely(&rmap_batch_key) &&
	       unlikely(folio_test_large(folio)) &&
	       __rmap_batch_migrate(folio, pvmw, flags);
}

#else

static inline bool rmap_batch_unmap(struct folio *folio,
				    struct page_vma_mapped_walk *pvmw,
				    enum ttu_flags flags)
{
	return false;
}

static inline bool rmap_batch_migrate(struct folio *folio,
				      struct page_vma_mapped_walk *pvmw,
				      enum ttu_flags flags)
{
	return false;
}

#endif /* CONFIG_QUELL_RMAP_BATCH */

#endif /* _MM_RMAP_BATCH_H */
