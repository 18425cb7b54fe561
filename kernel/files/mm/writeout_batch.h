/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Batched write-out: the hooks in shrink_folio_list(). The head of mm/writeout_batch.c says why
 * they are safe.
 */
#ifndef _MM_WRITEOUT_BATCH_H
#define _MM_WRITEOUT_BATCH_H

#include <linux/jump_label.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/page-flags.h>
#include <linux/sched.h>

/**
 * struct writeout_batch - folios that shrink_folio_list() has unmapped and set aside
 * @unmapped:		locked, a flush is due
 * @nr_unmapped:	pages of @unmapped
 * @flushed:		unlocked, they wait for I/O
 *
 * Each list has the latest folio first.
 */
struct writeout_batch {
	struct list_head unmapped;
	unsigned int nr_unmapped;
	struct list_head flushed;
};

static inline void writeout_batch_init(struct writeout_batch *batch)
{
	INIT_LIST_HEAD(&batch->unmapped);
	INIT_LIST_HEAD(&batch->flushed);
	batch->nr_unmapped = 0;
}

#ifdef CONFIG_QUELL_WRITEOUT_BATCH

/*
 * The most pages that are locked at once, but for those of one more folio. MGLRU's lists have as
 * many, the classic ones half.
 */
#define WRITEOUT_BATCH_MAX	64

DECLARE_STATIC_KEY_FALSE(writeout_batch_key);

struct folio *writeout_batch_next(struct writeout_batch *batch,
				  struct list_head *ret_folios);
void writeout_batch_flush(struct writeout_batch *batch);
bool writeout_batch_may_wait(void);

/*
 * @folio is locked, unmapped and dirty, and would be written now. Returns whether it was set aside:
 * if a flush is due before it is written, or others are set aside and locked.
 */
static inline bool writeout_batch_add(struct writeout_batch *batch, struct folio *folio)
{
	if (list_empty(&batch->unmapped) &&
	    (!static_branch_likely(&writeout_batch_key) || !current->tlb_ubc.writable ||
	     writeout_batch_may_wait()))
		return false;
	if (!folio_test_swapbacked(folio))
		return false;
	list_add(&folio->lru, &batch->unmapped);
	batch->nr_unmapped += folio_nr_pages(folio);
	return true;
}

/* Must shrink_folio_list() go on although its list is empty? */
static inline bool writeout_batch_waits(const struct writeout_batch *batch)
{
	return !list_empty(&batch->unmapped) || !list_empty(&batch->flushed);
}

/*
 * Is writeout_batch_next() due, not the next folio of @folio_list? Where reclaim is asked to
 * reschedule, or a file system may take long to release the next folio, no folio stays locked.
 */
static inline bool writeout_batch_due(const struct writeout_batch *batch,
				      struct list_head *folio_list)
{
	if (!list_empty(&batch->flushed))
		return true;
	if (list_empty(&batch->unmapped))
		return false;
	return batch->nr_unmapped >= WRITEOUT_BATCH_MAX || list_empty(folio_list) ||
	       need_resched() || !folio_test_swapbacked(lru_to_folio(folio_list));
}

/* Reclaim is about to wait for I/O: unlock the folios that are set aside. */
static inline void writeout_batch_unlock(struct writeout_batch *batch)
{
	if (!list_empty(&batch->unmapped))
		writeout_batch_flush(batch);
}

#else

static inline bool writeout_batch_add(struct writeout_batch *batch, struct folio *folio)
{
	return false;
}

static inline bool writeout_batch_waits(const struct writeout_batch *batch)
{
	return false;
}

static inline bool writeout_batch_due(const struct writeout_batch *batch,
				      struct list_head *folio_list)
{
	return false;
}

static inline void writeout_batch_unlock(struct writeout_batch *batch)
{
}

static inline struct folio *writeout_batch_next(struct writeout_batch *batch,
						struct list_head *ret_folios)
{
	return NULL;
}

#endif /* CONFIG_QUELL_WRITEOUT_BATCH */

#endif /* _MM_WRITEOUT_BATCH_H */
