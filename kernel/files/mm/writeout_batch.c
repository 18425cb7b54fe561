// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reclaim writes swap-backed folios (anonymous memory, shmem) to swap after one flush
 * for many of them, and not after one for each.
 *
 * A CPU may write to a folio through a TLB entry that is dirty already, after its PTE
 * was cleared, and nothing tells of it: what is written after I/O began is lost. So
 * shrink_folio_list() flushes before it writes a dirty folio if a PTE that it has cleared
 * was dirty, with try_to_unmap_flush_dirty(). Nearly every anonymous folio is such a one,
 * so that the batched unmap flush is one of one folio.
 *
 * Here such a folio is set aside once it is unmapped, locked as it is, and reclaim looks at
 * the next one of the list. Then comes the flush, all of them are unlocked, and each goes
 * on where a folio does that was found unmapped: it is locked, pageout() is called, and
 * it is freed or put back. The hooks are in shrink_folio_list(), so this is so for all
 * kinds of reclaim.
 *
 * Locked until the flush
 * ----------------------
 * Code that locks a folio and finds it unmapped may assume that no CPU writes to it,
 * because reclaim has had the lock from the unmapping to the flush. UFFDIO_MOVE of a swap
 * entry relies on that (the folio belongs to another address then), and so do hole punching
 * in shmem (what is written after it returned must not be lost) and i915, which writes
 * shmem folios itself. That stays.
 *
 * At most WRITEOUT_BATCH_MAX pages are locked at once, and those of one more folio.
 * Meanwhile reclaim only tries to lock other folios. It blocks on the locks of anon_vma and
 * i_mmap, in MMU notifiers, and where swap space is allocated, on a per-CPU lock under which
 * a discard may run. None of those that hold these wait for a folio that reclaim can have,
 * as migrate_pages_batch() needs, too, which has hundreds locked. The exception is
 * radeon's notifier: it waits for a buffer whose owner may fault, which may deadlock with
 * its own reclaim in stock.
 *
 * Before reclaim waits for longer, the batch is flushed and unlocked: before the end of I/O
 * (cgroup v1), a file system that releases or writes a folio, swap's own I/O, and before
 * reclaim gives the CPU away by cond_resched(). User space may have to carry out such I/O
 * (nbd, FUSE), and its memory may be among what is set aside.
 *
 * Unlocked after the flush
 * ------------------------
 * From then on a folio is like one of the list that is not mapped: isolated, with reclaim's
 * reference. A fault does not wait for the I/O of those before it: it finds the folio in
 * the swap cache, or in the shmem mapping, and maps it again. What else may happen to it,
 * and what follows when it is locked again:
 *
 *	mapped		it is in use, and is put back.
 *	mapped, and unmapped again
 *			Reclaim and migration are excluded, as it is on no LRU list. Zap's
 *			mmu_gather has a reference until it has flushed, with which pageout()
 *			and __remove_mapping() fail, as in stock. All others (device migration,
 *			khugepaged on a page table) flush before they unlock the folio, or the
 *			page table.
 *	pinned		as found unmapped in stock: activated.
 *	under writeback	by i915 or zswap: put back. If that has ended it is clean, and freed.
 *	not in the swap cache any more, or truncated
 *			swapoff, exit, MADV_FREE of its swap entry, a hole in a shmem file:
 *			folio_mapping() is NULL, and it is kept and put back, as in stock.
 *	without users, in the swap cache
 *			swap_writepage() gives the swap entry up instead of writing.
 *	not evictable	SHM_LOCK: put back. shmem does not write it, and warns.
 *	poisoned	memory_failure() has made its content void, and a read of the swap
 *			entry must see that: put back.
 *	locked		put back: reclaim does not wait.
 *	split, migrated	neither: reclaim's reference is one too many.
 *
 * The flush
 * ---------
 * A folio is set aside where stock would flush now (current->tlb_ubc.writable), or where
 * others are set aside already. All of them are unmapped before the flush. No I/O begins
 * between the first one and the flush. Frames are freed as in stock, after
 * try_to_unmap_flush(), which has less to do. If free_folios was full and flushed the batch
 * meanwhile, that costs no second flush.
 *
 * The switch may be moved at any time: folios that are set aside go on.
 *
 * What differs from stock
 * -----------------------
 * A fault that needs a folio between unmapping and flush waits for the others of the batch
 * to be unmapped, too, and so for the locks above if reclaim waits for one of them. In
 * stock it waits for the flush of its own folio only. Up to WRITEOUT_BATCH_MAX pages have
 * swap space before the first is written. A folio that is used again between flush and I/O
 * stays, where stock would have written it, and its swap space with it, until reclaim comes
 * by or swap is short, as after swap-in.
 *
 * Folios of files are written as in stock: reclaim hardly does, and a file system may
 * lock others to write one.
 *
 * After Mel Gorman's batched unmap flush (2015), which left this open. Published since:
 * Vinay Banakar and Rik van Riel (2025), Zhang Peng (2026). Both unlock the folios before
 * the flush.
 */
#include <linux/hugetlb.h>
#include <linux/init.h>
#include <linux/jump_label.h>
#include <linux/mm.h>
#include <linux/page-flags.h>
#include <linux/pagemap.h>
#include <linux/quell.h>
#include <linux/quell_mutants.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/swap.h>
#include <linux/vmstat.h>
#include "internal.h"
#include "writeout_batch.h"

#define CREATE_TRACE_POINTS
#include <trace/events/writeout_batch.h>

/* Off until writeout_batch_register(). */
DEFINE_STATIC_KEY_FALSE(writeout_batch_key);

/**
 * writeout_batch_flush - flush, and unlock all that was set aside
 * @batch:	something is set aside
 *
 * In shrink_folio_list(). Waits until other CPUs have flushed.
 */
void writeout_batch_flush(struct writeout_batch *batch)
{
	struct folio *folio;

	if (quell_mutant(WRITEOUT_NO_FLUSH))
		memset(&current->tlb_ubc.arch, 0, sizeof(current->tlb_ubc.arch));
	if (quell_mutant(WRITEOUT_FLUSH_LATE))
		current->tlb_ubc.writable = false;
	try_to_unmap_flush_dirty();
	count_vm_event(WRITEOUT_BATCH_FLUSH);
	trace_writeout_batch_flush(batch->nr_unmapped);
	list_for_each_entry(folio, &batch->unmapped, lru) {
		count_vm_event(WRITEOUT_BATCH_FOLIOS);
		folio_unlock(folio);
	}
	list_splice_init(&batch->unmapped, &batch->flushed);
	batch->nr_unmapped = 0;
}

/* @folio, just locked, was set aside: may reclaim go on with it? */
static bool writeout_batch_fits(struct folio *folio)
{
	return !folio_mapped(folio) && !folio_test_writeback(folio) &&
	       folio_evictable(folio) && !folio_contain_hwpoisoned_page(folio);
}

/**
 * writeout_batch_next - the next folio that was set aside, after the flush for all of them
 * @batch:	writeout_batch_due()
 * @ret_folios:	where those go that are not to be written any more
 *
 * In shrink_folio_list(). May sleep.
 *
 * Return: a folio, locked, not mapped; NULL if none is left that may be written.
 */
struct folio *writeout_batch_next(struct writeout_batch *batch,
				  struct list_head *ret_folios)
{
	struct folio *folio;

	if (list_empty(&batch->flushed))
		writeout_batch_flush(batch);
	/* With no folio locked. */
	cond_resched();
	while (!list_empty(&batch->flushed)) {
		folio = list_last_entry(&batch->flushed, struct folio, lru);
		list_del(&folio->lru);
		if (list_empty(&batch->flushed) && quell_mutant(WRITEOUT_FORGET))
			break;
		if (folio_trylock(folio)) {
			if (writeout_batch_fits(folio))
				return folio;
			folio_unlock(folio);
		}
		list_add(&folio->lru, ret_folios);
	}
	return NULL;
}

static struct quell_mechanism writeout_batch_mechanism = {
	.name	= "writeout_batch",
	.key	= &writeout_batch_key.key,
};

static int __init writeout_batch_register(void)
{
	return quell_register(&writeout_batch_mechanism);
}
subsys_initcall(writeout_batch_register);
