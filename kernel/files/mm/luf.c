// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lazy unmap flush (LUF): reclaim unmaps clean file folios without a TLB flush.
 * The flush happens once for many, before their frames can be used again.
 *
 * Stock reclaim clears the PTEs of up to 31 folios, interrupts every CPU that
 * may have cached them, and frees the folios. Here the folios go to a lot
 * instead, one per node, and the CPUs into one global mask of those that owe a
 * flush. A drain flushes that mask once and then frees the lot in bulk. In
 * between, a CPU may still read a folio through an entry that it cached; the
 * folio is still there and still has the content that a fault would bring back.
 *
 * Words
 * -----
 * The *stale window* of a folio runs from the clearing of a PTE that mapped it
 * until every CPU that may have cached that PTE has flushed. *Owed* is a flush
 * that has not happened yet. *Parked* is a folio in a lot: unmapped, out of the
 * page cache, uncharged, with no reference, not yet given to the page allocator.
 * The *clock* counts lists of folios that were parked, and flushes. What is owed
 * has a *label*: a value that the clock reaches only after the PTE was cleared,
 * tlb_gen was raised and the CPUs were noted. A folio's label is not less than
 * that of any flush it is owed. Everything with a label up to luf.done has been
 * flushed.
 *
 * What may be parked
 * ------------------
 * Folios of a regular file, on a file system that set FS_LUF, without DAX, no
 * quota file, that nobody has open for writing; and only if every PTE that mapped
 * the folio was read-only and clean when it was cleared, and its flush could be
 * deferred.
 *
 * R1: no frame reaches the page allocator inside its stale window
 * ---------------------------------------------------------------
 * __luf_defer() runs after the PTE was cleared and puts the CPUs of the mm into
 * luf.owing. A folio leaves the lot only in luf_lot_take(), when its label is
 * settled: because it is not greater than luf.done, which moves only after
 * arch_tlbbatch_flush() has returned; or because no CPU in luf.owing is behind
 * it, or those that were have been flushed.
 *
 *  - Two drains: CPUs leave luf.owing under luf.mutex, which is held until the
 *    flush has returned, and both ways of settling look at luf.owing under it.
 *    A second drain never finds a mask without the CPUs that the first one is
 *    still flushing. A CPU leaves for good only by a flush, or because it is
 *    lazy, both after the mask was emptied; see R5 for why not otherwise.
 *  - The mask is looked at without a lock before CPUs are added. A bit that is
 *    seen set there has not left yet: the PTE was cleared before the look, with
 *    a full barrier between (arch_luf_unmapped()), and the drain clears the
 *    bit before it flushes, with a full barrier between. So that flush comes
 *    after the PTE was cleared.
 *  - The label is read from the clock after the look at the mask, and a flush
 *    moves the clock before it takes the mask, full barriers between. So a flush
 *    that took the mask without these CPUs has a smaller value than the label.
 *  - A CPU that is not in mm_cpumask() and loads the mm later sees the new
 *    tlb_gen, as in stock.
 *  - A folio that is unmapped lazily and then not freed (referenced again,
 *    redirtied, mixed with PTEs that had to be flushed as usual) is not
 *    forgotten: LUF_OWED stays set until the folio is parked, turns into
 *    LUF_KEPT when the next folio is unmapped, and either of them makes
 *    try_to_unmap_flush() flush what is owed. Reclaim calls that before it frees
 *    any folio as usual and at the end of each list, as in stock.
 *
 * R2: no writes through stale entries
 * -----------------------------------
 * Only read-only, clean entries are deferred; anything else is flushed by the
 * ordinary batch, before I/O and before the folio is freed, as in stock.
 *
 * R3: a stale read returns what a legal read could return now
 * -----------------------------------------------------------
 * What (mm, address) denotes can change in two ways.
 *
 *  (a) The page table changes. munmap, mmap over it, mremap, mprotect and
 *    madvise call flush_tlb_batched_pending() under the page table lock, or
 *    flush the range anyhow; __luf_defer()'s caller marks the mm pending as it
 *    does for the ordinary batch, and that mark does not go away before the mm
 *    was flushed. Replacing a present PTE flushes its address on every CPU of
 *    the mm (ptep_clear_flush(): write faults on a mapped page, uprobes). The
 *    case that stock needs no flush for is a cleared PTE that becomes a private
 *    copy: finish_fault() calls luf_write_fault() before it sets the PTE, under
 *    the page table lock. The mm's label says whether a flush was faster.
 *  (b) The content of the file changes. On a file system with FS_LUF only those
 *    who have write access change it: get_write_access() has returned to them.
 *    Quota files are the exception, and are not parked.
 *
 *	reclaim				get_write_access()
 *	  clear the PTE			  i_writecount++
 *	  CPUs into luf.owing		  full barrier
 *	  set AS_LUF			  AS_LUF set?
 *	  full barrier			    flush what is owed
 *	  i_writecount > 0?		    clear AS_LUF
 *	    flush as usual, no parking	  return
 *	  AS_LUF still set? else again
 *
 *    At least one of them sees the other. All of it on reclaim's side happens
 *    while the folio is locked and in the page cache, so the inode is there.
 *    AS_LUF is cleared after the flush only: a second opener that finds it clear
 *    has nothing to wait for. A first opener that is through with all of it,
 *    i_writecount lowered again, between reclaim's setting of AS_LUF and its look
 *    at i_writecount has cleared AS_LUF: hence the second look. While
 *    i_writecount is raised nothing of the file is deferred.
 *    What changes a mounted file system's device from outside is not covered:
 *    stale entries are then one more cache that shows the old content for a
 *    while.
 *
 * R4: progress
 * ------------
 * The lot is drained by reclaim when it is full; by an allocation that may wait,
 * before it compacts or reclaims, after it reclaimed, and before it calls the OOM
 * killer; by kswapd when the parked pages would balance the node; for CMA, memory
 * offline and memory failure, which want certain frames, and by whoever calls
 * drain_all_pages(). All of these may sleep and have interrupts on. GFP_ATOMIC
 * and PF_MEMALLOC allocations never drain; kswapd serves them.
 * luf_drain_all() also waits for those who are just freeing: lot->freeing.
 *
 * R5: which CPUs are behind
 * -------------------------
 * An owed flush is settled by a flush, or by the evidence of tlb_gen that a CPU
 * needs none; never by time. The evidence: a CPU that switches to another mm,
 * comes back from lazy TLB mode, or carries out any flush, compares the tlb_gen
 * that it has reached with that of the mm it goes on with, and catches up. It
 * cannot use an entry of a former mm before it has loaded that again, and then
 * compares again. If it looked at the clock before it read tlb_gen, it uses no
 * entry that became stale with a label up to that value: the label's bump of the
 * clock comes after tlb_gen was raised. That value is luf_seen. A lazy CPU uses
 * no user entry before it has compared; a CPU that computes without ever
 * switching is behind, and flushed.
 *
 * That a CPU has caught up with a label does not take it out of luf.owing. What
 * it saw may be older than the emptying of the mask, and a reclaimer in between
 * has found it there and relies on it, for an entry that the CPU has cached since:
 *
 *	drain			CPU X			reclaim
 *	clock = c
 *				sees c, loads mm
 *							clear PTE, label c + 1
 *							X is in the mask: fine
 *	empty the mask
 *	X has seen c: leave it out?
 *
 * So it goes back into the mask.
 *
 * With PTI the flush of the user's half is done on return to user space, as for
 * any other flush. luf_seen needs no barrier against the use of the entries: the
 * PTEs are gone, so what was dropped does not come back.
 *
 * Locks
 * -----
 * luf.lock and lot->lock are leaves, taken in process context only; luf.lock also
 * under page table locks. luf.mutex is held across the flush and never across the
 * freeing; lot->freeing is held across the freeing only.
 *
 * What the architecture must promise (ARCH_SUPPORTS_LUF)
 * ------------------------------------------------------
 *  - What tlbflush_unmap_batch promises, and that a flush of a batch reaches
 *    CPUs that were added any time before.
 *  - Setting the dirty bit through a cached clean entry re-walks the page table
 *    and faults if the PTE is gone (x86: yes; here the entries are read-only,
 *    too).
 *  - Adding to a batch does not flush (arm64 broadcasts there: nothing to gain).
 */
#include <linux/cpumask.h>
#include <linux/export.h>
#include <linux/fs.h>
#include <linux/init.h>
#include <linux/jump_label.h>
#include <linux/list.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
#include <linux/pagevec.h>
#include <linux/quell.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/swap.h>
#include <linux/sysfs.h>
#include <linux/vmstat.h>
#include <asm/luf.h>
#include "internal.h"
#include "luf.h"

enum luf_drain_reason {
	LUF_DRAIN_FULL,
	LUF_DRAIN_ALLOC,
	LUF_DRAIN_KSWAPD,
	LUF_DRAIN_OTHER,
};

#define CREATE_TRACE_POINTS
#include <trace/events/luf.h>

/* Off until luf_init(): the lots must exist. */
DEFINE_STATIC_KEY_FALSE(luf_key);

/* Both for arch_luf_behind(). */
DEFINE_PER_CPU_SHARED_ALIGNED(u64, luf_seen);
atomic64_t luf_clock __cacheline_aligned_in_smp = ATOMIC64_INIT(0);

/**
 * struct luf_ledger - who owes a flush
 * @lock:	guards @owing
 * @owing:	the CPUs that may owe a flush with a label greater than @done
 * @clock:	see "Words"
 * @done:	all labels up to this one are flushed; moves under @mutex
 * @mutex:	held from taking CPUs out of @owing until they have flushed
 * @flushing:	the CPUs that are being flushed; under @mutex
 * @later:	those that go back to @owing; under @mutex
 */
struct luf_ledger {
	spinlock_t lock;		/* of @owing */
	struct arch_tlbflush_unmap_batch owing;
	atomic64_t *clock;
	u64 done;
	struct mutex mutex;		/* of those who settle */
	struct arch_tlbflush_unmap_batch flushing;
	struct arch_tlbflush_unmap_batch later;
};

static struct luf_ledger luf = {
	.lock	= __SPIN_LOCK_UNLOCKED(luf.lock),
	.clock	= &luf_clock,
	.mutex	= __MUTEX_INITIALIZER(luf.mutex),
};

/**
 * struct luf_lot - the parked folios of a node
 * @lock:	guards all of it
 * @folios:	by label, which is in folio->private, oldest first
 * @newest:	the newest label among them
 * @nr_pages:	all of them, in pages
 * @nr_zone:	those of each zone, in pages
 * @freeing:	held from taking folios out until they are free
 */
struct luf_lot {
	spinlock_t lock;		/* of all but @freeing */
	struct list_head folios;
	u64 newest;
	unsigned long nr_pages;
	unsigned long nr_zone[MAX_NR_ZONES];
	struct mutex freeing;		/* of those who free */
};

static struct luf_lot *luf_lots[MAX_NUMNODES] __read_mostly;

/* Pages that a lot holds at the most; see luf_lot_limit(). A drain walks them. */
#define LUF_LOT_MAX	16384
static unsigned long luf_lot_pages __read_mostly = 2048;

/* --- The ledger of owed flushes ------------------------------------------ */

/*
 * The CPUs of @mm owe a flush. After a PTE of @mm was cleared, under its page
 * table lock. Returns the label. See R1 for the look without a lock.
 */
static u64 luf_ledger_owe(struct luf_ledger *ledger, struct mm_struct *mm)
{
	if (!arch_luf_covered(&ledger->owing, mm)) {
		spin_lock(&ledger->lock);
		arch_luf_add_mm(&ledger->owing, mm);
		spin_unlock(&ledger->lock);
	}
	/* The mask before the clock: pairs with luf_ledger_settle(). */
	smp_mb();
	return atomic64_read(ledger->clock) + 1;
}

/* A label that is not less than any given out so far. */
static u64 luf_ledger_now(struct luf_ledger *ledger)
{
	return atomic64_read(ledger->clock) + 1;
}

static bool luf_ledger_done(struct luf_ledger *ledger, u64 label)
{
	/* Pairs with luf_ledger_settle(): what is freed next was flushed. */
	return smp_load_acquire(&ledger->done) >= label;
}

/* Up to which label is everything settled, or needs no flush to be? */
static u64 luf_ledger_settled(struct luf_ledger *ledger)
{
	u64 label;

	/* Who holds it is just flushing. */
	if (!mutex_trylock(&ledger->mutex))
		return READ_ONCE(ledger->done);
	label = atomic64_read(ledger->clock);
	/* The clock before the mask: a label up to it has its CPUs there. */
	smp_mb();
	label = arch_luf_least(&ledger->owing, label);
	label = max(label, ledger->done);
	mutex_unlock(&ledger->mutex);
	return label;
}

/*
 * Settle all labels up to @need, by flushing the CPUs that are behind. May
 * sleep, and waits for the CPUs. Returns whether there were any.
 */
static bool luf_ledger_settle(struct luf_ledger *ledger, u64 need)
{
	bool behind;
	u64 clock;

	if (luf_ledger_done(ledger, need))
		return false;

	mutex_lock(&ledger->mutex);
	if (luf_ledger_done(ledger, need)) {
		mutex_unlock(&ledger->mutex);
		return false;
	}

	/* A full barrier: the clock before the mask. */
	clock = atomic64_inc_return(ledger->clock);
	spin_lock(&ledger->lock);
	ledger->flushing = ledger->owing;
	memset(&ledger->owing, 0, sizeof(ledger->owing));
	spin_unlock(&ledger->lock);
	/* The mask is empty for all before anybody is flushed or left out: R1. */
	smp_mb();

	memset(&ledger->later, 0, sizeof(ledger->later));
	arch_luf_sort(&ledger->flushing, &ledger->later, need);
	behind = !arch_luf_empty(&ledger->flushing);
	if (behind)
		arch_tlbbatch_flush(&ledger->flushing);
	if (!arch_luf_empty(&ledger->later)) {
		/* Not behind what is needed now, but maybe what follows: R5. */
		spin_lock(&ledger->lock);
		arch_luf_add(&ledger->owing, &ledger->later);
		spin_unlock(&ledger->lock);
		clock = need;
	}
	/* Pairs with luf_ledger_done(): after the flush. */
	smp_store_release(&ledger->done, clock);
	mutex_unlock(&ledger->mutex);
	return behind;
}

static void luf_settle_all(u64 need)
{
	might_sleep();
	if (luf_ledger_settle(&luf, need)) {
		count_vm_event(LUF_FLUSH);
		trace_luf_flush(need);
	}
}

/* --- The lot -------------------------------------------------------------- */

static void luf_lot_init(struct luf_lot *lot)
{
	spin_lock_init(&lot->lock);
	INIT_LIST_HEAD(&lot->folios);
	mutex_init(&lot->freeing);
}

/* Park the folios of @list, all of the lot's node. */
static void luf_lot_add(struct luf_lot *lot, struct list_head *list, u64 label)
{
	unsigned long nr_zone[MAX_NR_ZONES] = {};
	unsigned long nr_pages = 0;
	struct folio *folio;
	int i;

	list_for_each_entry(folio, list, lru) {
		folio->private = (void *)(unsigned long)label;
		nr_zone[folio_zonenum(folio)] += folio_nr_pages(folio);
		nr_pages += folio_nr_pages(folio);
	}

	spin_lock(&lot->lock);
	list_splice_tail_init(list, &lot->folios);
	lot->newest = max(lot->newest, label);
	for (i = 0; i < MAX_NR_ZONES; i++)
		lot->nr_zone[i] += nr_zone[i];
	WRITE_ONCE(lot->nr_pages, lot->nr_pages + nr_pages);
	spin_unlock(&lot->lock);
}

/*
 * Take out the folios whose labels are settled up to @settled. Returns their
 * pages. Parking is not atomic with reading the clock, so a newer folio may
 * stand before an older one: that one waits for the next time.
 */
static unsigned long luf_lot_take(struct luf_lot *lot, u64 settled,
				  struct list_head *list)
{
	unsigned long nr_pages = 0;
	struct folio *folio, *next;

	spin_lock(&lot->lock);
	list_for_each_entry_safe(folio, next, &lot->folios, lru) {
		if ((unsigned long)folio->private > settled)
			break;
		folio->private = NULL;
		lot->nr_zone[folio_zonenum(folio)] -= folio_nr_pages(folio);
		nr_pages += folio_nr_pages(folio);
	}
	list_cut_before(list, &lot->folios, &folio->lru);
	WRITE_ONCE(lot->nr_pages, lot->nr_pages - nr_pages);
	spin_unlock(&lot->lock);
	return nr_pages;
}

/*
 * How much the lot of a node may hold: luf_lot_pages, but no more than 1/64 of
 * the node, so that small nodes keep their memory.
 */
static unsigned long luf_lot_limit(unsigned long managed)
{
	return min(READ_ONCE(luf_lot_pages), managed / 64);
}

static unsigned long luf_node_managed(struct pglist_data *pgdat)
{
	unsigned long managed = 0;
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++)
		managed += zone_managed_pages(&pgdat->node_zones[i]);
	return managed;
}

/* What free_unref_folios() and mem_cgroup_uncharge_folios() want. */
static void luf_for_batches(struct list_head *list,
			    void (*func)(struct folio_batch *fbatch))
{
	struct folio_batch fbatch;
	struct folio *folio, *next;

	folio_batch_init(&fbatch);
	list_for_each_entry_safe(folio, next, list, lru) {
		if (folio_batch_add(&fbatch, folio))
			continue;
		func(&fbatch);
		folio_batch_init(&fbatch);
	}
	if (folio_batch_count(&fbatch))
		func(&fbatch);
}

static void luf_free_batch(struct folio_batch *fbatch)
{
	unsigned int i;

	for (i = 0; i < folio_batch_count(fbatch); i++)
		list_del(&fbatch->folios[i]->lru);
	free_unref_folios(fbatch);
	cond_resched();
}

/* Give back what is settled up to @settled on node @nid. Returns its pages. */
static unsigned long luf_release(int nid, u64 settled)
{
	struct luf_lot *lot = luf_lots[nid];
	unsigned long nr_pages;
	LIST_HEAD(list);

	mutex_lock(&lot->freeing);
	nr_pages = luf_lot_take(lot, settled, &list);
	if (nr_pages) {
		mod_node_page_state(NODE_DATA(nid), NR_LUF_PARKED, -nr_pages);
		count_vm_events(LUF_RELEASE, nr_pages);
		luf_for_batches(&list, luf_free_batch);
	}
	mutex_unlock(&lot->freeing);
	return nr_pages;
}

static unsigned long luf_parked(int nid)
{
	struct luf_lot *lot = luf_lots[nid];

	return lot ? READ_ONCE(lot->nr_pages) : 0;
}

/*
 * Give back what is parked on node @nid and needs no flush. Returns its pages,
 * which may be 0. May sleep.
 */
static unsigned long luf_drain_aged(int nid)
{
	unsigned long nr_pages;

	if (!luf_parked(nid))
		return 0;
	nr_pages = luf_release(nid, luf_ledger_settled(&luf));
	count_vm_events(LUF_RELEASE_AGED, nr_pages);
	return nr_pages;
}

/*
 * Give back what is parked on node @nid, with a flush if there is one owed.
 * Returns whether there was something; another drain may have been faster to
 * free it. May sleep.
 */
static bool luf_drain_node(int nid, enum luf_drain_reason reason)
{
	struct luf_lot *lot = luf_lots[nid];
	unsigned long nr_pages;
	u64 newest;

	if (!luf_parked(nid))
		return false;

	spin_lock(&lot->lock);
	newest = lot->newest;
	spin_unlock(&lot->lock);
	luf_settle_all(newest);
	nr_pages = luf_release(nid, newest);
	if (nr_pages) {
		count_vm_event(LUF_DRAIN_BY_FULL + reason);
		trace_luf_drain(nid, nr_pages, reason);
	}
	return true;
}

/* The same, but what needs no flush is enough if it is @want pages. */
static bool luf_drain_some(int nid, enum luf_drain_reason reason,
			   unsigned long want)
{
	return luf_drain_aged(nid) >= want || luf_drain_node(nid, reason);
}

/* --- Hooks of reclaim ------------------------------------------------------ */

static bool luf_may_defer(struct folio *folio)
{
	struct address_space *mapping = folio->mapping;
	struct inode *inode;

	if (folio_test_anon(folio) || folio_test_hugetlb(folio) ||
	    folio_test_swapcache(folio) || !mapping)
		return false;
	if (folio_test_dirty(folio) || folio_test_writeback(folio))
		return false;

	inode = mapping->host;
	return inode && S_ISREG(inode->i_mode) && !IS_DAX(inode) &&
	       !IS_NOQUOTA(inode) &&
	       (inode->i_sb->s_type->fs_flags & FS_LUF) &&
	       !inode_is_open_for_write(inode);
}

/**
 * luf_try_to_unmap - try_to_unmap(), lazily where that is safe
 * @folio:	locked, isolated from the LRU
 * @flags:	of try_to_unmap()
 *
 * For reclaim only: the caller ends with luf_park() or try_to_unmap_flush().
 * May sleep.
 */
void luf_try_to_unmap(struct folio *folio, enum ttu_flags flags)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;

	if (static_branch_likely(&luf_key) && luf_may_defer(folio)) {
		if (tlb_ubc->luf_state & (LUF_OWED | LUF_KEPT))
			tlb_ubc->luf_state = LUF_KEPT;
		else
			tlb_ubc->luf_state = 0;
		tlb_ubc->luf_state |= LUF_UNMAPPING;
		tlb_ubc->luf_folio = folio;
	}
	try_to_unmap(folio, flags);
	tlb_ubc->luf_state &= ~LUF_UNMAPPING;
}

/* See luf_defer(): luf_folio is being unmapped and may be done lazily. */
bool __luf_defer(struct mm_struct *mm, pte_t pteval)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	struct address_space *mapping = tlb_ubc->luf_folio->mapping;
	u64 label, old;

	if (pte_dirty(pteval) || pte_write(pteval))
		goto usual;

	arch_luf_unmapped(mm);
	label = luf_ledger_owe(&luf, mm);
	do {
		if (!test_bit(AS_LUF, &mapping->flags))
			set_bit(AS_LUF, &mapping->flags);
		/* Pairs with luf_write_access(): R3 (b). */
		smp_mb();
		if (inode_is_open_for_write(mapping->host))
			goto usual;
		/* The writer that cleared it may have come and gone. */
		smp_rmb();
	} while (!test_bit(AS_LUF, &mapping->flags));

	/* For luf_write_fault(): R3 (a). Page table locks do not order these. */
	old = atomic64_read(&mm->luf_label);
	while (old < label &&
	       !atomic64_try_cmpxchg(&mm->luf_label, (s64 *)&old, label))
		;

	tlb_ubc->luf_state |= LUF_OWED;
	return true;

usual:
	tlb_ubc->luf_state |= LUF_MIXED;
	return false;
}

/* See luf_settle(). */
void __luf_settle(void)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;

	count_vm_event(LUF_KEPT_FLUSH);
	luf_settle_all(luf_ledger_now(&luf));
	tlb_ubc->luf_state = 0;
}

/**
 * luf_park - shall this folio wait for its flush in the lot?
 * @folio:	unmapped, out of the page cache, unlocked, no reference
 * @parked:	the caller's list, for luf_park_list()
 *
 * Return: true if @folio went to @parked; else it is the caller's to free, after
 * try_to_unmap_flush().
 */
bool luf_park(struct folio *folio, struct list_head *parked)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;

	if (tlb_ubc->luf_folio != folio ||
	    (tlb_ubc->luf_state & (LUF_OWED | LUF_MIXED)) != LUF_OWED)
		return false;

	tlb_ubc->luf_state &= ~LUF_OWED;
	tlb_ubc->luf_folio = NULL;
	list_add_tail(&folio->lru, parked);
	return true;
}

/**
 * luf_park_list - put what luf_park() took into the lot
 * @parked:	folios of @pgdat; empty afterwards
 * @pgdat:	their node
 *
 * Uncharges them, and drains the lot if it is full. May sleep.
 */
void luf_park_list(struct list_head *parked, struct pglist_data *pgdat)
{
	int nid = pgdat->node_id;
	unsigned long nr_pages = 0;
	struct folio *folio;
	unsigned long limit;
	u64 label;

	if (list_empty(parked))
		return;

	luf_for_batches(parked, mem_cgroup_uncharge_folios);
	/* A full barrier: after all that these folios are owed. */
	label = atomic64_inc_return(&luf_clock);
	/* Counted first: a drain on another CPU may take them at once. */
	list_for_each_entry(folio, parked, lru)
		nr_pages += folio_nr_pages(folio);
	mod_node_page_state(pgdat, NR_LUF_PARKED, nr_pages);
	count_vm_events(LUF_PARK, nr_pages);
	luf_lot_add(luf_lots[nid], parked, label);
	trace_luf_park(nid, nr_pages, label);

	limit = luf_lot_limit(luf_node_managed(pgdat));
	if (luf_parked(nid) > limit)
		luf_drain_some(nid, LUF_DRAIN_FULL, limit / 2 + 1);
}

/* --- Hooks of what changes the content that an address denotes -------------- */

/**
 * luf_write_access - somebody may write to the file from now on
 * @inode:	i_writecount is raised
 *
 * Returns when no CPU can read old content through a stale entry. May sleep.
 * Exported because get_write_access() is inline.
 */
void luf_write_access(struct inode *inode)
{
	struct address_space *mapping = inode->i_mapping;

	might_sleep();
	/* Pairs with __luf_defer(): R3 (b). */
	smp_mb__after_atomic();
	if (likely(!test_bit(AS_LUF, &mapping->flags)))
		return;
	/* The bit before the clock. */
	smp_rmb();

	count_vm_event(LUF_WRITE_ACCESS);
	luf_settle_all(luf_ledger_now(&luf));
	clear_bit(AS_LUF, &mapping->flags);
	/* Pairs with __luf_defer(): before i_writecount is lowered again. */
	smp_mb__after_atomic();
}
EXPORT_SYMBOL(luf_write_access);

/**
 * luf_write_fault - a private copy is about to be mapped at a cleared PTE
 * @mm:	its mm
 *
 * Under the page table lock, before the PTE is set.
 */
void luf_write_fault(struct mm_struct *mm)
{
	u64 label = atomic64_read(&mm->luf_label);

	if (likely(!label || luf_ledger_done(&luf, label)))
		return;
	count_vm_event(LUF_WRITE_FAULT);
	flush_tlb_batched_pending(mm);
}

/* --- Hooks of what wants memory --------------------------------------------- */

/**
 * luf_drain_for_alloc - give back parked pages to an allocation that is short
 * @gfp_mask:	of the allocation
 * @ac:		its zones
 *
 * May sleep if @gfp_mask may reclaim.
 *
 * Return: true if it is worth looking at the free lists again.
 */
bool luf_drain_for_alloc(gfp_t gfp_mask, const struct alloc_context *ac)
{
	bool drained = false;
	struct zoneref *z;
	struct zone *zone;

	if (!(gfp_mask & __GFP_DIRECT_RECLAIM) || (current->flags & PF_MEMALLOC))
		return false;

	for_each_zone_zonelist_nodemask(zone, z, ac->zonelist,
					ac->highest_zoneidx, ac->nodemask) {
		struct luf_lot *lot = luf_lots[zone_to_nid(zone)];

		if (lot && READ_ONCE(lot->nr_zone[zone_idx(zone)]))
			drained |= luf_drain_some(zone_to_nid(zone),
						  LUF_DRAIN_ALLOC,
						  SWAP_CLUSTER_MAX);
	}
	return drained;
}

/* Would what is parked on @pgdat lift a zone over its high watermark? */
static bool luf_parked_balances(struct pglist_data *pgdat, int highest_zoneidx)
{
	struct luf_lot *lot = luf_lots[pgdat->node_id];
	int i;

	for (i = 0; i <= highest_zoneidx; i++) {
		struct zone *zone = &pgdat->node_zones[i];
		unsigned long parked = READ_ONCE(lot->nr_zone[i]);
		unsigned long free = zone_page_state(zone, NR_FREE_PAGES);

		if (parked && __zone_watermark_ok(zone, 0, high_wmark_pages(zone),
						  highest_zoneidx, 0,
						  free + parked))
			return true;
	}
	return false;
}

/**
 * luf_drain_for_kswapd - give parked pages back before kswapd reclaims
 * @pgdat:		its node, not balanced
 * @highest_zoneidx:	up to this zone
 *
 * With a flush only if that ends kswapd's work; more often would only be more
 * flushes. May sleep.
 *
 * Return: true if it is worth looking at the watermarks again.
 */
bool luf_drain_for_kswapd(struct pglist_data *pgdat, int highest_zoneidx)
{
	int nid = pgdat->node_id;
	bool drained;

	if (!luf_parked(nid))
		return false;

	drained = luf_drain_aged(nid);
	if (luf_parked_balances(pgdat, highest_zoneidx))
		drained |= luf_drain_node(nid, LUF_DRAIN_KSWAPD);
	return drained;
}

/**
 * luf_drain_all - give back every page that is parked now
 *
 * They are with the page allocator when it returns. May sleep.
 */
void luf_drain_all(void)
{
	int nid;

	for_each_node_state(nid, N_MEMORY) {
		if (!luf_lots[nid])
			continue;
		luf_drain_node(nid, LUF_DRAIN_OTHER);
		/* Somebody else may have taken folios and not freed them yet. */
		mutex_lock(&luf_lots[nid]->freeing);
		mutex_unlock(&luf_lots[nid]->freeing);
	}
}

/* --- The switch --------------------------------------------------------------- */

static ssize_t lot_pages_show(struct kobject *kobj, struct kobj_attribute *attr,
			      char *buf)
{
	return sysfs_emit(buf, "%lu\n", READ_ONCE(luf_lot_pages));
}

static ssize_t lot_pages_store(struct kobject *kobj, struct kobj_attribute *attr,
			       const char *buf, size_t count)
{
	unsigned long pages;
	int err = kstrtoul(buf, 10, &pages);

	if (err)
		return err;
	if (pages > LUF_LOT_MAX)
		return -EINVAL;
	WRITE_ONCE(luf_lot_pages, pages);
	return count;
}

static struct kobj_attribute luf_lot_pages_attr = __ATTR_RW(lot_pages);

static ssize_t drain_store(struct kobject *kobj, struct kobj_attribute *attr,
			   const char *buf, size_t count)
{
	luf_drain_all();
	return count;
}

static struct kobj_attribute luf_drain_attr = __ATTR_WO(drain);

static const struct attribute * const luf_attrs[] = {
	&luf_lot_pages_attr.attr,
	&luf_drain_attr.attr,
	NULL,
};

static struct quell_mechanism luf_mechanism = {
	.name	= "luf",
	.key	= &luf_key.key,
	.attrs	= luf_attrs,
	.off	= luf_drain_all,
};

static int __init luf_init(void)
{
	int nid;

	for_each_node(nid) {
		int on = node_state(nid, N_MEMORY) ? nid : NUMA_NO_NODE;
		struct luf_lot *lot = kzalloc_node(sizeof(*lot), GFP_KERNEL, on);

		if (!lot)
			return -ENOMEM;
		luf_lot_init(lot);
		luf_lots[nid] = lot;
	}
	return quell_register(&luf_mechanism);
}
subsys_initcall(luf_init);

#ifdef CONFIG_QUELL_KUNIT_TEST
#include "tests/luf-kunit.h"
#endif
