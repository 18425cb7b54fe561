// SPDX-License-Identifier: GPL-2.0-only
/*
 * Batched write-out: reclaim writes many swap-backed folios (anonymous memory, shmem) after one
 * flush.
 *
 * After its PTE was cleared, a CPU may still write to a folio through a dirty TLB entry. Data that
 * it writes after I/O began is lost. So shrink_folio_list() calls try_to_unmap_flush_dirty()
 * before it writes a dirty folio if a cleared PTE was dirty. Nearly every anonymous folio is such
 * a one, and stock flushes for each.
 *
 * Here such a folio is set aside once it is unmapped, still locked, and reclaim goes on with the
 * next one of its list. One flush serves all folios that are set aside. Then they are unlocked,
 * and each goes on where a folio does that was found unmapped. It is locked, pageout() is called,
 * and it is freed or put back.
 *
 * Mel Gorman's batched unmap flush ("mm: Send one IPI per CPU to TLB flush all entries after
 * unmapping pages", July 2015; Linux 4.3) left this open. Vinay Banakar and Rik van Riel
 * ("mm/vmscan: batch TLB flush during memory reclaim", v2, March 2025) and Zhang Peng ("mm: batch
 * TLB flushing for dirty folios in vmscan", v4, May 2026) differ in the locks. The first keeps
 * each folio locked until it is written, the second relocks a batch for the flush. Here it stays
 * locked until the flush, not longer.
 *
 * writeout_batch_add() sets a folio aside. writeout_batch_due() decides when writeout_batch_next()
 * flushes and returns the first one. writeout_batch_unlock() flushes before reclaim waits. All are
 * called in shrink_folio_list(), so every kind of reclaim has them.
 *
 * Invariants, with the enforcing function, and mutations in brackets; selftest writeout_batch
 * tests it:
 *
 *  - The flush precedes I/O. All folios of a batch are unmapped before it, and no I/O begins
 *    between the first one and the flush. Frames are freed as in stock, after
 *    try_to_unmap_flush(). writeout_batch_flush() [WRITEOUT_NO_FLUSH, WRITEOUT_FLUSH_LATE]
 *  - A folio is locked from its unmapping to the flush. Code that locks it and finds it unmapped
 *    may assume that no CPU writes to it. UFFDIO_MOVE of a swap entry gives it to another address.
 *    After hole punching in shmem no write may be lost. i915 and (7.3) TTM write shmem folios
 *    themselves. writeout_batch_flush()
 *  - At most WRITEOUT_BATCH_MAX pages are locked, and those of one more folio.
 *    writeout_batch_due()
 *  - These locks cause no deadlock. Meanwhile reclaim only trylocks other folios. It blocks on the
 *    locks of anon_vma and i_mmap, in MMU notifiers, and on locks of swap allocation (per CPU; in
 *    6.12 also swap_slots_cache_mutex). No holder of these waits for a folio that reclaim can
 *    have: migrate_pages_batch(), which has hundreds locked, depends on that, too. The exception
 *    is radeon's notifier: it waits for a buffer whose owner may fault, which may deadlock with
 *    its own reclaim in stock.
 *  - No batch is locked while reclaim waits for longer: for the end of I/O (cgroup v1), a file
 *    system that releases or writes a folio, swap's own I/O, the cond_resched() of its loop.
 *    User space may have to carry out such I/O (nbd, FUSE), with its own memory in the batch.
 *    Reclaim may still lose the CPU with a batch locked, as in stock with one folio: by
 *    preemption (7.3: the lazy flag is not asked), throttling, cond_resched() in rmap walks and
 *    swap allocation, and notifiers that wait for a device. Where a swap device discards
 *    clusters, the allocation of swap space waits for that: then no batch begins. Lazy unmap
 *    flush may drain a full list meanwhile, and wait for luf_mutex and lot->freeing: their
 *    holders wait for no folio. writeout_batch_unlock(), writeout_batch_due(),
 *    writeout_batch_may_wait()
 *  - After the flush a folio is like an unmapped one of the list: isolated, with reclaim's
 *    reference. A fault maps it again without a wait for I/O. writeout_batch_fits() has the cases.
 *  - Each folio that was set aside is written or put back, also if the switch moves meanwhile.
 *    writeout_batch_next() [WRITEOUT_FORGET]
 *
 * Differences from stock: a fault on a folio between unmapping and flush waits until the batch is
 * unmapped. If reclaim waits for one of the locks above, so does the fault. In stock it waits for
 * the flush of its own folio. Up to WRITEOUT_BATCH_MAX pages have swap space before the first is
 * written. A folio that is used between flush and I/O stays, where stock would have written it. It
 * keeps its swap space until reclaim comes by or swap is short, as after swap-in. Folios of files
 * are written as in stock: reclaim rarely does, and a file system may lock others for it.
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
#include "quell_compat.h"
#include "writeout_batch.h"

#define CREATE_TRACE_POINTS
#include <trace/events/writeout_batch.h>

/* Off until quell_apply_param(). */
DEFINE_STATIC_KEY_FALSE(writeout_batch_key);

/**
 * writeout_batch_may_wait - may the allocation of swap space wait for I/O?
 *
 * Any context.
 *
 * Return: true if a swap device discards the clusters that become free (swapon --discard, or
 * --discard=pages).
 */
bool writeout_batch_may_wait(void)
{
	struct swap_info_struct *si;
	int type;

	for (type = 0; type < MAX_SWAPFILES; type++) {
		si = quell_swap_info(type);
		/* Types are given out in order, and their structures stay. */
		if (!si)
			break;
		/* A swapon() of this moment may be missed. */
		if (data_race(si->flags & (SWP_USED | SWP_PAGE_DISCARD)) ==
		    (SWP_USED | SWP_PAGE_DISCARD))
			return true;
	}
	return false;
}

/**
 * writeout_batch_flush - flush, and unlock the folios of @batch
 * @batch:	at least one folio is set aside and locked
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

/*
 * May reclaim go on with @folio, which was set aside, flushed for, unlocked, and locked again?
 * Events since the unlock, and their results:
 *
 *	mapped		in use: put back.
 *	mapped, and unmapped again
 *			Not by reclaim or migration, as the folio is on no LRU list. Zap's
 *			mmu_gather has a reference until it has flushed: pageout() and
 *			__remove_mapping() fail, as in stock. All others (device migration,
 *			khugepaged on a page table) flush before they unlock the folio or the
 *			page table.
 *	pinned		activated, as a pinned folio that stock finds unmapped.
 *	under writeback	by i915 or TTM: put back. Once that has ended: clean, so freed.
 *	not in the swap cache any more, or truncated
 *			swapoff, exit, the OOM reaper, MADV_FREE of its swap entry, a hole in a
 *			shmem file: folio_mapping() is NULL, and the folio is put back, as in stock.
 *	without users, in the swap cache
 *			swap_writepage() frees the swap entry instead of writing.
 *	not evictable	SHM_LOCK: put back, as shmem would not write it, and warn.
 *	poisoned	put back: memory_failure() has voided the content, and a read of the
 *			swap entry must see that.
 *	locked		put back by writeout_batch_next(): reclaim does not wait.
 *	split, migrated	impossible: reclaim's reference is one too many.
 *	charged to another cgroup
 *			impossible: cgroup v1 moves only charges of folios that it can isolate.
 *
 * The freezer stops no task here: kernel threads freeze in their own loops, others on their way to
 * user space.
 */
static bool writeout_batch_fits(struct folio *folio)
{
	return !folio_mapped(folio) && !folio_test_writeback(folio) &&
	       folio_evictable(folio) && !folio_contain_hwpoisoned_page(folio);
}

/**
 * writeout_batch_next - return the next folio of @batch, after the flush for all
 * @batch:	writeout_batch_due() is true
 * @ret_folios:	receives the folios that are not written
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
	/* No folio is locked here. */
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
