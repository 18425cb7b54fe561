// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lazy unmap flush: the deferred-free list of each node (struct luf_lot), and its drains. The head
 * of mm/luf.c has the terms and the rules. This file enforces the release half of R1, and R4.
 *
 *  - lot->lock is a leaf, taken in process context only.
 *  - lot->freeing is held for reading across the freeing. luf_drain_all() takes it for writing
 *    only to wait for the readers.
 *  - No flush is awaited under either.
 */
#include <linux/atomic.h>
#include <linux/init.h>
#include <linux/list.h>
#include <linux/memcontrol.h>
#include <linux/migrate.h>
#include <linux/moduleparam.h>
#include <linux/quell.h>
#include <linux/rwsem.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/swap.h>
#include <linux/sysfs.h>
#include <linux/workqueue.h>
#include <asm/luf.h>
#include "internal.h"
#include "quell_compat.h"
#include "luf.h"
#include "luf_lot.h"

enum luf_drain_reason {
	LUF_DRAIN_FULL, LUF_DRAIN_ALLOC, LUF_DRAIN_KSWAPD, LUF_DRAIN_STALE, LUF_DRAIN_OTHER,
};

#define CREATE_TRACE_POINTS
#include <trace/events/luf.h>

/* Folios that a node holds a reference to: as many as reclaim takes at once. */
#define LUF_HELD_MAX	32

/* The deferred-free list of a node. Estimates read the numbers without @lock. */
struct luf_lot {
	spinlock_t lock;		/* protects all below but @freeing */
	struct list_head folios;	/* by generation, which is in folio->private */
	unsigned long nr_pages;
	unsigned long nr_zone[MAX_NR_ZONES];
	struct rw_semaphore freeing;	/* read: from taking folios out until they are free */
	unsigned int nr_held;
	struct {			/* unmapped lazily, not freed; with a reference */
		struct folio *folio;
		u64 label;
	} held[LUF_HELD_MAX];
};

static struct luf_lot *luf_lots[MAX_NUMNODES] __read_mostly;

/* The largest list of a node, in pages, see luf_node_limit(); the parameter is for tests. */
#define LUF_LOT_MAX	16384UL
static unsigned long luf_lot_pages __read_mostly;
module_param_named(pages, luf_lot_pages, ulong, 0600);
/* For comparison: kswapd drains, with a flush, after each of its rounds. */
static bool luf_eager __read_mostly;
module_param_named(eager, luf_eager, bool, 0600);

/* Bounds of max_stale_ms, in ms: how long a stale-TLB window may last, on an idle machine too. */
#define LUF_STALE_MIN	2
#define LUF_STALE_MAX	60000
static unsigned int luf_max_stale_ms __read_mostly = 100;

static void luf_lot_init(struct luf_lot *lot)
{
	spin_lock_init(&lot->lock);
	INIT_LIST_HEAD(&lot->folios);
	init_rwsem(&lot->freeing);
}

/* Count @folio; out if @sign is -1. Returns its pages. Under lot->lock. */
static unsigned long luf_lot_count(struct luf_lot *lot, struct folio *folio, long sign)
{
	unsigned long nr = folio_nr_pages(folio), *zone = &lot->nr_zone[folio_zonenum(folio)];

	WRITE_ONCE(*zone, *zone + sign * nr);
	WRITE_ONCE(lot->nr_pages, lot->nr_pages + sign * nr);
	mod_node_page_state(folio_pgdat(folio), NR_LUF_PARKED, sign * nr);
	return nr;
}

/*
 * Put @list on the deferred-free list. Returns whether to move the clock: every 31 pages, as in a
 * batch of reclaim, not with each smaller folio. Context switches read its line.
 */
static bool luf_lot_add(struct luf_lot *lot, struct list_head *list, u64 label,
			unsigned long *nr_pages)
{
	struct folio *folio;
	unsigned long before;

	guard(spinlock)(&lot->lock);
	before = lot->nr_pages;
	*nr_pages = 0;
	list_for_each_entry(folio, list, lru) {
		folio->private = (void *)(unsigned long)label;
		*nr_pages += luf_lot_count(lot, folio, 1);
	}
	list_splice_tail_init(list, &lot->folios);
	return (before + *nr_pages) / FOLIO_BATCH_SIZE != before / FOLIO_BATCH_SIZE;
}

/*
 * Take folios of generations up to @done off the list. Returns their pages. A newer folio may
 * precede an older one, as the generation is read before lot->lock is taken. The older one then
 * waits for a later call.
 */
static unsigned long luf_lot_take(struct luf_lot *lot, u64 done, struct folio_batch *fbatch)
{
	struct folio *folio, *next;
	unsigned long nr_pages = 0;

	guard(spinlock)(&lot->lock);
	list_for_each_entry_safe(folio, next, &lot->folios, lru) {
		if ((unsigned long)folio->private > done && !quell_mutant(LUF_RELEASE_EARLY))
			break;
		list_del(&folio->lru);
		folio->private = NULL;
		nr_pages += luf_lot_count(lot, folio, -1);
		if (!folio_batch_add(fbatch, folio))
			break;
	}
	return nr_pages;
}

/* Drop the references to held folios of generations up to @done. Under lot->freeing. */
static void luf_lot_put_held(struct luf_lot *lot, u64 done)
{
	struct folio *folios[LUF_HELD_MAX];
	unsigned int i, nr = 0, left = 0;

	spin_lock(&lot->lock);
	for (i = 0; i < lot->nr_held; i++) {
		if (lot->held[i].label <= done)
			folios[nr++] = lot->held[i].folio;
		else
			lot->held[left++] = lot->held[i];
	}
	WRITE_ONCE(lot->nr_held, left);
	spin_unlock(&lot->lock);
	while (nr)
		folio_put(folios[--nr]);
}

/*
 * Pages that are worth a flush: 4 MB, less on a node (or zone) of less than 256 MB. @managed is
 * the size of the node or zone, in pages.
 */
static unsigned long luf_worth(unsigned long managed)
{
	return min(managed / 64, 1024UL);
}

/*
 * Return how many pages of @pgdat may wait: the parameter's value, or the distance between its
 * watermarks, low to high. That is at least the pages that are worth a flush, at most LUF_LOT_MAX.
 * @piece: how many pages kswapd may hold back while free pages are below low: a quarter of low -
 * min, but 128 (four batches of stock) to 4096. With 256 MB the quarter, 27, needs stock's flushes.
 */
static unsigned long luf_node_limit(struct pglist_data *pgdat, unsigned long *piece)
{
	unsigned long managed = 0, gap = 0;
	struct zone *zone;

	for (zone = pgdat->node_zones; zone < pgdat->node_zones + MAX_NR_ZONES; zone++) {
		managed += zone_managed_pages(zone);
		/* The same as from low to high. */
		gap += low_wmark_pages(zone) - min_wmark_pages(zone);
	}
	*piece = clamp(gap / 4, 128UL, LUF_LOT_MAX / 4);
	return min(READ_ONCE(luf_lot_pages), LUF_LOT_MAX) ?:
	       clamp(gap, luf_worth(managed), LUF_LOT_MAX);
}

/* Release the pages of generations up to @done on node @nid. Returns their number. May sleep. */
static unsigned long luf_release(int nid, u64 done)
{
	unsigned long nr_pages, released = 0;
	struct luf_lot *lot = luf_lots[nid];
	struct folio_batch fbatch;

	folio_batch_init(&fbatch);
	do {
		down_read(&lot->freeing);
		luf_lot_put_held(lot, done);
		nr_pages = luf_lot_take(lot, done, &fbatch);
		free_unref_folios(&fbatch);
		up_read(&lot->freeing);
		released += nr_pages;
		cond_resched();
	} while (nr_pages);
	return released;
}

static unsigned long luf_parked(int nid)
{
	return luf_lots[nid] ? READ_ONCE(luf_lots[nid]->nr_pages) : 0;
}

/* Does any folio wait for a flush on node @nid, to be freed or held? */
static bool luf_waits(int nid)
{
	return luf_parked(nid) || (luf_lots[nid] && READ_ONCE(luf_lots[nid]->nr_held));
}

/* Release the pages that need no IPI. Returns their number. May sleep. */
static unsigned long luf_drain_aged(int nid)
{
	unsigned long nr_pages = 0;

	if (luf_waits(nid) && !quell_mutant(LUF_HOARD))
		nr_pages = luf_release(nid, luf_aged());
	count_vm_events(LUF_RELEASE_AGED, nr_pages);
	return nr_pages;
}

/*
 * Release all pages that wait on node @nid, after a flush if one is due: to keep some would save no
 * IPI. Returns whether there were any; another drain may have released them first. May sleep.
 */
static bool luf_drain_node(int nid, enum luf_drain_reason reason)
{
	u64 newest = luf_now();
	unsigned long nr_pages;
	bool flushed;

	if (!luf_waits(nid) || (quell_mutant(LUF_HOARD) && reason != LUF_DRAIN_FULL))
		return false;
	flushed = luf_flush(newest);
	nr_pages = luf_release(nid, newest);
	if (!flushed)
		count_vm_events(LUF_RELEASE_AGED, nr_pages);
	if (nr_pages)
		trace_luf_drain(nid, nr_pages, reason);
	return true;
}

/* The same, but without a flush if at least @enough pages need none. */
static bool luf_drain_some(int nid, enum luf_drain_reason reason, unsigned long enough)
{
	return luf_drain_aged(nid) >= enough || luf_drain_node(nid, reason);
}

/* --- Every stale-TLB window ends --------------------------------------------- */

static struct workqueue_struct *luf_wq;

static void luf_close_windows(struct work_struct *work);
static DECLARE_DELAYED_WORK(luf_stale_work, luf_close_windows);

/*
 * Flushes that are deferred now happen in the second run from now, at the latest. The last third
 * of max_stale_ms is slack for a late workqueue.
 */
static void luf_arm(void)
{
	unsigned int ms = READ_ONCE(luf_max_stale_ms);

	queue_delayed_work(luf_wq, &luf_stale_work, max(1, msecs_to_jiffies(ms) / 3));
	/* max_stale_ms may have changed, and its immediate run have ended, in between. */
	if (unlikely(READ_ONCE(luf_max_stale_ms) != ms))
		mod_delayed_work(luf_wq, &luf_stale_work, 0);
}

/* Have luf_close_windows() run, after a flush was deferred, or a folio that waits for one. */
void luf_keep_closing(void)
{
	/* Pairs with the workqueue's, between clearing PENDING and the work: one sees the other. */
	smp_mb();
	if (unlikely(!delayed_work_pending(&luf_stale_work)))
		luf_arm();
}

/*
 * Flush for every generation when its age is between a third of max_stale_ms and all of it. Most
 * CPUs have caught up by then. Runs only while a flush is deferred or a folio waits.
 */
static void luf_close_windows(struct work_struct *work)
{
	static u64 stale;	/* the newest generation when this ran last */
	unsigned long nr_pages;
	bool more = false;
	int nid;

	luf_flush(stale);
	for_each_node_state(nid, N_MEMORY) {
		nr_pages = luf_waits(nid) ? luf_release(nid, stale) : 0;
		if (nr_pages)
			trace_luf_drain(nid, nr_pages, LUF_DRAIN_STALE);
		more |= luf_waits(nid);
	}
	/* Later generations are newer, and have a full period before them. */
	stale = atomic64_inc_return(&luf_clock);
	if (more || luf_done() < luf_now())
		luf_arm();
}

/* --- Hooks of reclaim, migration, allocation and compaction ------------------- */

/*
 * Keep a reference to @folio, which was unmapped lazily and is not freed: a later free would not
 * flush. The caller has it isolated until it has flushed for the PTEs that were not deferred. The
 * reference is dropped when no CPU is pending for the folio's generation, at the latest when its
 * stale-TLB window is closed. Returns false if there is no room: then the caller has to flush.
 */
bool luf_hold(struct folio *folio)
{
	struct luf_lot *lot = luf_lots[folio_nid(folio)];
	unsigned int i;
	bool room;

	count_vm_event(LUF_KEPT_FOLIO);
	if (quell_mutant(LUF_LOSE_KEPT))
		return true;
	if (folio_test_large(folio))
		return false;
	if (READ_ONCE(lot->nr_held) == LUF_HELD_MAX)
		count_vm_events(LUF_RELEASE_AGED, luf_release(folio_nid(folio), luf_done()));
	spin_lock(&lot->lock);
	for (i = 0; i < lot->nr_held; i++)
		if (lot->held[i].folio == folio)
			break;
	room = i < LUF_HELD_MAX;
	if (room) {
		if (i == lot->nr_held) {
			folio_get(folio);
			lot->held[i].folio = folio;
			WRITE_ONCE(lot->nr_held, i + 1);
		}
		lot->held[i].label = luf_now();
	}
	spin_unlock(&lot->lock);
	if (room)
		luf_keep_closing();
	return room;
}

/* Put the folios of @parked, all of @pgdat, on the deferred-free list. Drain that if it is full. */
static void luf_put_into_lot(struct list_head *parked, struct pglist_data *pgdat)
{
	unsigned long nr_pages, limit, piece;
	int nid = pgdat->node_id;
	u64 label = luf_now();

	if (luf_lot_add(luf_lots[nid], parked, label, &nr_pages))
		atomic64_inc(&luf_clock);
	count_vm_events(LUF_PARK, nr_pages);
	luf_keep_closing();
	trace_luf_park(nid, nr_pages, label);

	limit = luf_node_limit(pgdat, &piece);
	if (luf_parked(nid) > limit)
		luf_drain_some(nid, LUF_DRAIN_FULL, limit / 2 + 1);
}

/*
 * free_unref_folios() for reclaim, after try_to_unmap_flush(): folios that wait for their flush go
 * to the deferred-free list instead. See luf_end_unmap(). May sleep.
 */
void __luf_free_folios(struct folio_batch *fbatch, struct pglist_data *pgdat)
{
	bool more = !folio_batch_space(fbatch);
	unsigned int i, left = 0;
	LIST_HEAD(parked);

	current->tlb_ubc.luf_state &= ~LUF_PARKING;
	for (i = 0; i < folio_batch_count(fbatch); i++) {
		struct folio *folio = fbatch->folios[i];

		if (folio->private == (void *)LUF_PARKING)
			list_add_tail(&folio->lru, &parked);
		else
			fbatch->folios[left++] = folio;
	}
	fbatch->nr = left;
	free_unref_folios(fbatch);
	luf_put_into_lot(&parked, pgdat);
	/* At the end of reclaim's list, as allocations may wait for pages meanwhile. */
	if (current_is_kswapd() && !luf_eager && !more)
		luf_drain_for_kswapd(pgdat, 0, MAX_NR_ZONES - 1);
}

/* See luf_put_migrated(). @folio is unlocked and isolated, its content moved. May sleep. */
void __luf_put_migrated(struct folio *folio, enum migrate_reason reason)
{
	LIST_HEAD(parked);

	/* If no generation is pending, none of this task's folios has one. */
	if (luf_done() < luf_now() && !luf_wants_frame(reason) && !folio_test_hugetlb(folio) &&
	    !folio_has_movable_ops(folio) && !folio_test_mlocked(folio) &&
	    !quell_mutant(LUF_MIGRATE_FREE) && folio_ref_freeze(folio, 1)) {
		/* A folio that was freed meanwhile may still be queued, and charged. */
		folio_unqueue_deferred_split(folio);
		mem_cgroup_uncharge(folio);
		count_vm_events(LUF_MIGRATE, folio_nr_pages(folio));
		list_add(&folio->lru, &parked);
		luf_put_into_lot(&parked, folio_pgdat(folio));
		return;
	}
	/* For the other folios of this task as well. */
	if (!quell_mutant(LUF_MIGRATE_FREE) && !quell_mutant(LUF_LOSE_KEPT))
		luf_flush(luf_now());
	current->tlb_ubc.luf_state &= ~LUF_MOVING;
	if (reason != MR_MEMORY_FAILURE)
		folio_put(folio);
}

/* How many pages of @zone wait: allocations that may sleep can have them. */
unsigned long luf_zone_parked(struct zone *zone)
{
	struct luf_lot *lot = luf_lots[zone_to_nid(zone)];

	return lot ? READ_ONCE(lot->nr_zone[zone_idx(zone)]) : 0;
}

/*
 * Release waiting pages to an allocation that finds @zone below its watermark @mark. Not at the low
 * watermark, where kswapd is woken and drains, nor if it may not sleep. The high watermark is for
 * the last look of __alloc_pages_may_oom(). That may sleep whatever @gfp_mask says, and has to find
 * the pages of other drains as well. It holds oom_lock; luf_drain_all() waits for no allocation.
 * Returns whether @zone is not below @mark any more.
 */
bool luf_drain_for_alloc(struct zone *zone, gfp_t gfp_mask, unsigned int order,
			 unsigned long mark, int highest_zoneidx,
			 unsigned int alloc_flags)
{
	unsigned int wmark = alloc_flags & ALLOC_WMARK_MASK;
	int nid = zone_to_nid(zone);

	if (wmark == ALLOC_WMARK_HIGH) {
		luf_drain_all();
		return zone_watermark_ok(zone, order, mark, highest_zoneidx, alloc_flags);
	}
	if (wmark == ALLOC_WMARK_LOW || !(gfp_mask & __GFP_DIRECT_RECLAIM) ||
	    (current->flags & PF_MEMALLOC) || !luf_zone_parked(zone))
		return false;
	return (luf_drain_aged(nid) &&
		zone_watermark_ok(zone, order, mark, highest_zoneidx, alloc_flags)) ||
	       (luf_drain_node(nid, LUF_DRAIN_ALLOC) &&
		zone_watermark_ok(zone, order, mark, highest_zoneidx, alloc_flags));
}

/* Pages that compaction has moved away from form a larger block only in the page allocator. */
void luf_drain_for_compact(struct zone *zone)
{
	luf_drain_node(zone_to_nid(zone), LUF_DRAIN_OTHER);
}

/* Free pages of @zone, exact where the watermarks need that. */
static unsigned long luf_zone_free(struct zone *zone)
{
	unsigned long nr = zone_page_state(zone, NR_FREE_PAGES);

	return nr < zone->percpu_drift_mark ? zone_page_state_snapshot(zone, NR_FREE_PAGES) : nr;
}

/*
 * May kswapd rest although the free pages of @zone are short of @mark? Waiting pages count as free
 * above the low watermark, not below it: there kswapd wakes up and releases them. Free and waiting
 * pages together must reach @mark, and exceed the low watermark by twice the pages that are worth
 * a flush. On a large zone @mark is the higher one.
 */
bool luf_balanced(struct zone *zone, int order, unsigned long mark, int highest_zoneidx)
{
	unsigned long parked = luf_zone_parked(zone), low = low_wmark_pages(zone);
	unsigned long free;

	if (!parked || luf_eager)
		return false;
	free = luf_zone_free(zone);
	mark = max(mark, low + 2 * luf_worth(zone_managed_pages(zone)));
	return __zone_watermark_ok(zone, order, low, highest_zoneidx, 0, free) &&
	       __zone_watermark_ok(zone, order, mark, highest_zoneidx, 0, free + parked);
}

/*
 * kswapd releases the pages of @pgdat that need no IPI before it reclaims, and all if free pages
 * are below low and it holds back too many. Is another look at the watermarks due? May sleep.
 */
bool luf_drain_for_kswapd(struct pglist_data *pgdat, int order, int highest_zoneidx)
{
	int nid = pgdat->node_id;
	unsigned long piece;
	struct zone *zone;

	if (!luf_parked(nid))
		return false;
	if (luf_eager)
		return luf_drain_node(nid, LUF_DRAIN_KSWAPD);
	for (zone = pgdat->node_zones; zone <= &pgdat->node_zones[highest_zoneidx]; zone++)
		if (__zone_watermark_ok(zone, order, low_wmark_pages(zone), highest_zoneidx, 0,
					luf_zone_free(zone)))
			return luf_drain_aged(nid);
	luf_node_limit(pgdat, &piece);
	return luf_parked(nid) >= piece ? luf_drain_some(nid, LUF_DRAIN_KSWAPD, piece) :
					  luf_drain_aged(nid);
}

/* Release every page that waits now: the page allocator has all of them on return. */
void luf_drain_all(void)
{
	int nid;

	for_each_node_state(nid, N_MEMORY) {
		if (!luf_lots[nid])
			continue;
		luf_drain_node(nid, LUF_DRAIN_OTHER);
		/* Another drain may have taken folios that it has not freed yet. */
		down_write(&luf_lots[nid]->freeing);
		up_write(&luf_lots[nid]->freeing);
	}
}

/* --- The switch --------------------------------------------------------------- */

static ssize_t max_stale_ms_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(luf_max_stale_ms));
}

static ssize_t max_stale_ms_store(struct kobject *kobj, struct kobj_attribute *attr,
				  const char *buf, size_t count)
{
	unsigned int ms;
	int err = kstrtouint(buf, 10, &ms);

	if (err)
		return err;
	if (ms < LUF_STALE_MIN || ms > LUF_STALE_MAX)
		return -EINVAL;
	WRITE_ONCE(luf_max_stale_ms, ms);
	/* Stale-TLB windows that are open now were promised the old time. */
	luf_drain_all();
	luf_flush(luf_now());
	/* The timer may have been set by the old time, too. */
	mod_delayed_work(luf_wq, &luf_stale_work, 0);
	return count;
}

static ssize_t drain_store(struct kobject *kobj, struct kobj_attribute *attr,
			   const char *buf, size_t count)
{
	luf_drain_all();
	return count;
}

static struct kobj_attribute luf_max_stale_ms_attr = __ATTR_RW(max_stale_ms);
static struct kobj_attribute luf_drain_attr = __ATTR_WO(drain);
static const struct attribute * const luf_attrs[] = {
	&luf_max_stale_ms_attr.attr, &luf_drain_attr.attr, NULL
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

	/* max_stale_ms holds under memory pressure as well. */
	luf_wq = alloc_workqueue("luf", WQ_UNBOUND | WQ_MEM_RECLAIM, 1);
	if (!luf_wq)
		return -ENOMEM;

	for_each_node(nid) {
		int on = node_state(nid, N_MEMORY) ? nid : NUMA_NO_NODE;
		struct luf_lot *lot = kzalloc_node(sizeof(*lot), GFP_KERNEL, on);

		if (!lot)
			return -ENOMEM;
		luf_lot_init(lot);
		luf_lots[nid] = lot;
	}
	luf_mechanism.refused = arch_luf_refused();
	return quell_register(&luf_mechanism);
}
subsys_initcall(luf_init);

#ifdef CONFIG_QUELL_KUNIT_TEST
#include "tests/luf_lot-kunit.h"
#endif
