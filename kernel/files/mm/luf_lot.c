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
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/moduleparam.h>
#include <linux/quell.h>
#include <linux/quell_mutants.h>
#include <linux/rwsem.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/swap.h>
#include <linux/sysfs.h>
#include <linux/vmstat.h>
#include <linux/workqueue.h>
#include <asm/luf.h>
#include "internal.h"
#include "quell_compat.h"
#include "luf.h"
#include "luf_lot.h"

enum luf_drain_reason {
	LUF_DRAIN_FULL,
	LUF_DRAIN_ALLOC,
	LUF_DRAIN_KSWAPD,
	LUF_DRAIN_STALE,
	LUF_DRAIN_OTHER,
};

#define CREATE_TRACE_POINTS
#include <trace/events/luf.h>

/* Folios that a node holds a reference to: as many as reclaim takes at once. */
#define LUF_HELD_MAX	32

/**
 * struct luf_lot - the deferred-free list of a node
 * @lock:	protects all but @freeing; estimates read @nr_pages, @nr_zone without it
 * @folios:	parked folios, oldest generation first; folio->private has the generation
 * @newest:	the newest generation that was added
 * @nr_pages:	pages in @folios
 * @nr_zone:	the same by zone
 * @nr_since:	pages parked since the last parking that moved the clock
 * @freeing:	held for reading from taking folios out until they are free
 * @nr_held:	used entries of @held
 * @held:	folios that were unmapped lazily and not freed, and their generations
 */
struct luf_lot {
	spinlock_t lock;		/* protects all below but @freeing */
	struct list_head folios;
	u64 newest;
	unsigned long nr_pages;
	unsigned long nr_zone[MAX_NR_ZONES];
	unsigned long nr_since;
	struct rw_semaphore freeing;
	unsigned int nr_held;
	struct {
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
/* Pages that reclaim collects before it parks them; most of its lists are shorter. */
#define LUF_LIST_MAX	128UL

/* Bounds of max_stale_ms, in ms: how long a stale-TLB window may last, on an idle machine too. */
#define LUF_STALE_MIN	2
#define LUF_STALE_MAX	60000
static unsigned int luf_max_stale_ms __read_mostly = 100;

/* --- The deferred-free list ----------------------------------------------- */

static void luf_lot_init(struct luf_lot *lot)
{
	spin_lock_init(&lot->lock);
	INIT_LIST_HEAD(&lot->folios);
	init_rwsem(&lot->freeing);
}

/* Note @label in the folios of @list. Returns their pages, and adds them to @nr_zone. */
static unsigned long luf_label(struct list_head *list, u64 label,
			       unsigned long *nr_zone)
{
	unsigned long nr_pages = 0;
	struct folio *folio;

	list_for_each_entry(folio, list, lru) {
		unsigned long nr = folio_nr_pages(folio);

		folio->private = (void *)(unsigned long)label;
		nr_zone[folio_zonenum(folio)] += nr;
		nr_pages += nr;
	}
	return nr_pages;
}

/*
 * Park the folios of @list, after luf_label(). Returns whether the caller should move the clock:
 * not after each folio, as every context switch reads its cache line.
 */
static bool luf_lot_add(struct luf_lot *lot, struct list_head *list, u64 label,
			const unsigned long *nr_zone, unsigned long nr_pages)
{
	bool tick;
	int i;

	spin_lock(&lot->lock);
	list_splice_tail_init(list, &lot->folios);
	lot->newest = max(lot->newest, label);
	for (i = 0; i < MAX_NR_ZONES; i++)
		WRITE_ONCE(lot->nr_zone[i], lot->nr_zone[i] + nr_zone[i]);
	WRITE_ONCE(lot->nr_pages, lot->nr_pages + nr_pages);
	lot->nr_since += nr_pages;
	tick = lot->nr_since >= SWAP_CLUSTER_MAX;
	if (tick)
		lot->nr_since = 0;
	spin_unlock(&lot->lock);
	return tick;
}

/* Return the generation of the first parked folio, or of an older held one, or U64_MAX. */
static u64 luf_lot_oldest(struct luf_lot *lot)
{
	struct folio *folio;
	u64 label = U64_MAX;
	unsigned int i;

	spin_lock(&lot->lock);
	folio = list_first_entry_or_null(&lot->folios, struct folio, lru);
	if (folio)
		label = (unsigned long)folio->private;
	for (i = 0; i < lot->nr_held; i++)
		label = min(label, lot->held[i].label);
	spin_unlock(&lot->lock);
	return label;
}

/*
 * Take folios of generations up to @settled off the list, until they have @want pages. Returns
 * their pages. A newer folio may precede an older one, as the generation is read before lot->lock
 * is taken: the older one then waits for a later call.
 */
static unsigned long luf_lot_take(struct luf_lot *lot, u64 settled,
				  unsigned long want, struct list_head *list)
{
	unsigned long nr, nr_pages = 0;
	struct folio *folio, *next;
	int zone;

	spin_lock(&lot->lock);
	list_for_each_entry_safe(folio, next, &lot->folios, lru) {
		if (nr_pages >= want)
			break;
		if ((unsigned long)folio->private > settled &&
		    !quell_mutant(LUF_RELEASE_EARLY))
			break;
		nr = folio_nr_pages(folio);
		folio->private = NULL;
		zone = folio_zonenum(folio);
		WRITE_ONCE(lot->nr_zone[zone], lot->nr_zone[zone] - nr);
		nr_pages += nr;
	}
	list_cut_before(list, &lot->folios, &folio->lru);
	WRITE_ONCE(lot->nr_pages, lot->nr_pages - nr_pages);
	spin_unlock(&lot->lock);
	return nr_pages;
}

/* Drop the references to held folios of generations up to @settled. May sleep. */
static void luf_lot_put_held(struct luf_lot *lot, u64 settled)
{
	struct folio *folios[LUF_HELD_MAX];
	unsigned int i, nr = 0, left = 0;

	if (!READ_ONCE(lot->nr_held))
		return;
	down_read(&lot->freeing);
	spin_lock(&lot->lock);
	for (i = 0; i < lot->nr_held; i++) {
		if (lot->held[i].label <= settled)
			folios[nr++] = lot->held[i].folio;
		else
			lot->held[left++] = lot->held[i];
	}
	WRITE_ONCE(lot->nr_held, left);
	spin_unlock(&lot->lock);
	while (nr)
		folio_put(folios[--nr]);
	up_read(&lot->freeing);
}

/*
 * Pages that are worth a flush: 4 MB, less on a node (or zone) of less than 256 MB. @managed is
 * the size of the node or zone, in pages.
 */
#define LUF_WORTH	1024UL

static unsigned long luf_worth(unsigned long managed)
{
	return min(managed / 64, LUF_WORTH);
}

/*
 * Return how many pages of @pgdat may be parked: the distance between its watermarks, low to high,
 * but at least the pages that are worth a flush and at most LUF_LOT_MAX; or the parameter's value.
 * @piece: how many pages kswapd may hold back while free pages are below low. That is a quarter of
 * this distance, and at least LUF_LIST_MAX, which any reclaimer may hold.
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
	*piece = clamp(gap / 4, LUF_LIST_MAX, LUF_LOT_MAX / 4);
	return min(READ_ONCE(luf_lot_pages), LUF_LOT_MAX) ?:
	       clamp(gap, luf_worth(managed), LUF_LOT_MAX);
}

/* Call @func for the folios of @list in batches, as the page allocator and memcg take them. */
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
}

/* Pages that are freed before this task may be rescheduled. */
#define LUF_RELEASE_BATCH	256

/*
 * Release the pages of generations up to @settled on node @nid: holding them saves nothing.
 * Returns their number. May sleep.
 */
static unsigned long luf_release(int nid, u64 settled)
{
	unsigned long nr_pages, released = 0;
	struct luf_lot *lot = luf_lots[nid];
	LIST_HEAD(list);

	luf_lot_put_held(lot, settled);
	do {
		down_read(&lot->freeing);
		nr_pages = luf_lot_take(lot, settled, LUF_RELEASE_BATCH, &list);
		if (nr_pages) {
			mod_node_page_state(NODE_DATA(nid), NR_LUF_PARKED,
					    -nr_pages);
			luf_for_batches(&list, luf_free_batch);
		}
		up_read(&lot->freeing);
		released += nr_pages;
		cond_resched();
	} while (nr_pages);
	return released;
}

static unsigned long luf_parked(int nid)
{
	struct luf_lot *lot = luf_lots[nid];

	return lot ? READ_ONCE(lot->nr_pages) : 0;
}

/* Does any folio wait for a flush on node @nid, parked or held? */
static bool luf_waits(int nid)
{
	return luf_parked(nid) || (luf_lots[nid] && READ_ONCE(luf_lots[nid]->nr_held));
}

/* Release the pages that need no IPI. Returns their number. May sleep. */
static unsigned long luf_drain_aged(int nid)
{
	unsigned long nr_pages;

	if (!luf_waits(nid))
		return 0;
	nr_pages = luf_release(nid, luf_aged(luf_lot_oldest(luf_lots[nid])));
	count_vm_events(LUF_RELEASE_AGED, nr_pages);
	return nr_pages;
}

/*
 * Release all pages that are parked on node @nid, after a flush if one is due. Returns whether
 * there were any; another drain may have released them first. May sleep.
 */
static bool luf_drain_node(int nid, enum luf_drain_reason reason)
{
	struct luf_lot *lot = luf_lots[nid];
	unsigned long nr_pages;
	bool flushed;
	u64 newest;

	if (!luf_waits(nid))
		return false;

	spin_lock(&lot->lock);
	newest = lot->newest;
	spin_unlock(&lot->lock);
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
/* The newest generation when luf_close_windows() ran last. */
static u64 luf_stale_label;
static bool luf_stale_armed;

static void luf_close_windows(struct work_struct *work);
static DECLARE_DELAYED_WORK(luf_stale_work, luf_close_windows);

/*
 * Flushes that are deferred now happen in the second run from now, at the latest. The last third
 * of max_stale_ms is slack for a late workqueue.
 */
static void luf_arm(void)
{
	unsigned int ms = READ_ONCE(luf_max_stale_ms);

	queue_delayed_work(luf_wq, &luf_stale_work,
			   max(1, msecs_to_jiffies(ms) / 3));
	/* max_stale_ms may have changed, and its immediate run have ended, in between. */
	if (unlikely(READ_ONCE(luf_max_stale_ms) != ms))
		mod_delayed_work(luf_wq, &luf_stale_work, 0);
}

/* Have luf_close_windows() run, after a flush was deferred or a folio parked or held. */
void luf_keep_closing(void)
{
	/* Pairs with luf_close_windows(): one sees the other. */
	smp_mb();
	if (unlikely(!READ_ONCE(luf_stale_armed))) {
		WRITE_ONCE(luf_stale_armed, true);
		luf_arm();
	}
}

/*
 * Complete every generation when its age is between a third of max_stale_ms and all of it. Most
 * CPUs have caught up by then. Runs only while a flush is deferred or a folio waits.
 */
static void luf_close_windows(struct work_struct *work)
{
	u64 stale = luf_stale_label;
	unsigned long nr_pages;
	bool more;
	int nid;

	luf_flush(stale);
	for_each_node_state(nid, N_MEMORY) {
		if (!luf_waits(nid))
			continue;
		nr_pages = luf_release(nid, stale);
		if (nr_pages)
			trace_luf_drain(nid, nr_pages, LUF_DRAIN_STALE);
	}
	/* Later generations are newer, and have a full period before them. */
	luf_stale_label = atomic64_inc_return(&luf_clock);

	WRITE_ONCE(luf_stale_armed, false);
	/* Pairs with luf_keep_closing(). */
	smp_mb();
	more = luf_owes();
	for_each_node_state(nid, N_MEMORY)
		more |= luf_waits(nid);
	if (more) {
		WRITE_ONCE(luf_stale_armed, true);
		luf_arm();
	}
}

/* --- Hooks of reclaim and migration ------------------------------------------- */

/*
 * Keep a reference to @folio, which was unmapped lazily and is not freed: a later free would not
 * flush. The caller has it isolated. The reference is dropped when the folio's generation is
 * complete, at the latest when its stale-TLB window is closed. Returns false if there is no room,
 * or none is allowed: then the caller has to flush.
 */
bool luf_hold(struct folio *folio)
{
	struct luf_lot *lot = luf_lots[folio_nid(folio)];
	unsigned int i;
	bool room;
	u64 label;

	count_vm_event(LUF_KEPT_FOLIO);
	if (quell_mutant(LUF_LOSE_KEPT))
		return true;
	if (!(current->tlb_ubc.luf_state & LUF_MAY_HOLD) || folio_test_large(folio))
		return false;
	if (READ_ONCE(lot->nr_held) == LUF_HELD_MAX)
		luf_lot_put_held(lot, luf_done());
	/* A full barrier: after all deferred flushes of this folio. */
	label = atomic64_inc_return(&luf_clock);
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
		lot->held[i].label = label;
		lot->newest = max(lot->newest, label);
	}
	spin_unlock(&lot->lock);
	if (room)
		luf_keep_closing();
	return room;
}

/*
 * Uncharge the folios of @parked, all of @pgdat, and put them on the deferred-free list. Drain
 * that if it is full.
 */
static void luf_put_into_lot(struct list_head *parked, struct pglist_data *pgdat)
{
	int nid = pgdat->node_id;
	unsigned long nr_zone[MAX_NR_ZONES] = {};
	unsigned long nr_pages, limit, piece;
	u64 label;

	luf_for_batches(parked, mem_cgroup_uncharge_folios);
	/* Not older than any generation of these folios. */
	label = luf_now();
	nr_pages = luf_label(parked, label, nr_zone);
	/* Counted first: a drain on another CPU may take them at once. */
	mod_node_page_state(pgdat, NR_LUF_PARKED, nr_pages);
	count_vm_events(LUF_PARK, nr_pages);
	if (luf_lot_add(luf_lots[nid], parked, label, nr_zone, nr_pages))
		atomic64_inc(&luf_clock);
	luf_keep_closing();
	trace_luf_park(nid, nr_pages, label);

	limit = luf_node_limit(pgdat, &piece);
	if (luf_parked(nid) > limit)
		luf_drain_some(nid, LUF_DRAIN_FULL, limit / 2 + 1);
}

/**
 * __luf_park - should this folio wait for its flush on the deferred-free list?
 * @folio:	the last to be unmapped, out of the page cache, unlocked, no reference
 * @parked:	the caller's list, for luf_park_list(), all of one node; emptied here at
 *		LUF_LIST_MAX pages
 *
 * May sleep.
 *
 * Return: true if @folio went to @parked; false if the caller has to free it, after
 * try_to_unmap_flush().
 */
bool __luf_park(struct folio *folio, struct list_head *parked)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	unsigned long nr = folio_nr_pages(folio);

	if (!(tlb_ubc->luf_state & LUF_OWED))
		return false;

	tlb_ubc->luf_state &= ~LUF_OWED;
	tlb_ubc->luf_folio = NULL;
	/* The last folio has the pages of @parked, until it gets a generation. */
	if (!list_empty(parked))
		nr += (unsigned long)list_last_entry(parked, struct folio, lru)->private;
	folio->private = (void *)nr;
	list_add_tail(&folio->lru, parked);
	if (nr >= LUF_LIST_MAX) {
		/* As in stock before it frees in mid-list; see also R1. */
		try_to_unmap_flush();
		luf_put_into_lot(parked, folio_pgdat(folio));
	}
	return true;
}

/*
 * kswapd releases the pages that need no IPI. If @is_short, and more pages are parked than it may
 * hold back, it flushes for the others. Returns whether it released any.
 */
static bool luf_kswapd_drains(struct pglist_data *pgdat, bool is_short)
{
	int nid = pgdat->node_id;
	unsigned long piece;

	if (quell_mutant(LUF_HOARD))
		return false;
	luf_node_limit(pgdat, &piece);
	if (is_short && luf_parked(nid) >= piece)
		return luf_drain_some(nid, LUF_DRAIN_KSWAPD, piece);
	return luf_drain_aged(nid);
}

/**
 * luf_park_list - put folios of luf_park() on the deferred-free list
 * @parked:	folios of @pgdat; empty afterwards
 * @pgdat:	their node
 *
 * May sleep.
 */
void luf_park_list(struct list_head *parked, struct pglist_data *pgdat)
{
	struct zone *zone;

	if (list_empty(parked))
		return;
	zone = folio_zone(list_first_entry(parked, struct folio, lru));
	luf_put_into_lot(parked, pgdat);
	/* Reclaim of a long list takes time; allocations may wait for pages meanwhile. */
	if (current_is_kswapd())
		luf_kswapd_drains(pgdat, !zone_watermark_ok(zone, 0, low_wmark_pages(zone),
							    zone_idx(zone), 0));
}

/**
 * __luf_put_migrated - folio_put() for the source of a migration
 * @folio:	unlocked, isolated, its content is in the destination; LUF_MOVING is set
 * @reason:	of the migration
 *
 * May sleep.
 */
void __luf_put_migrated(struct folio *folio, enum migrate_reason reason)
{
	LIST_HEAD(parked);

	if (!luf_owes())
		/* No generation is pending, so none of this task's folios has one. */
		current->tlb_ubc.luf_state &= ~LUF_MOVING;
	else if (luf_wants_frame(reason) || folio_test_hugetlb(folio) ||
		 folio_has_movable_ops(folio) || folio_test_mlocked(folio) ||
		 quell_mutant(LUF_MIGRATE_FREE) || !folio_ref_freeze(folio, 1)) {
		if (!quell_mutant(LUF_MIGRATE_FREE) && !quell_mutant(LUF_LOSE_KEPT)) {
			luf_flush(luf_now());
			/* The flush was for the other folios of this task as well. */
			current->tlb_ubc.luf_state &= ~LUF_MOVING;
		}
	} else {
		/* A folio that was freed meanwhile may still be queued. */
		folio_unqueue_deferred_split(folio);
		count_vm_events(LUF_MIGRATE, folio_nr_pages(folio));
		list_add(&folio->lru, &parked);
		luf_put_into_lot(&parked, folio_pgdat(folio));
		return;
	}
	if (reason != MR_MEMORY_FAILURE)
		folio_put(folio);
}

/* --- Hooks of allocation and compaction --------------------------------------- */

/**
 * luf_zone_parked - how many pages of @zone are parked
 * @zone: any
 *
 * Allocations that may wait can have them, see luf_nr_parked().
 *
 * Return: pages.
 */
unsigned long luf_zone_parked(struct zone *zone)
{
	struct luf_lot *lot = luf_lots[zone_to_nid(zone)];

	return lot ? READ_ONCE(lot->nr_zone[zone_idx(zone)]) : 0;
}

/**
 * luf_drain_for_alloc - release parked pages to an allocation below its watermark
 * @zone:		below @mark
 * @gfp_mask:		of the allocation
 * @order:		of the allocation
 * @mark:		the watermark that @alloc_flags selects, in pages
 * @highest_zoneidx:	of the allocation
 * @alloc_flags:	of the allocation; does nothing at the low watermark, where kswapd is woken
 *			and drains
 *
 * May sleep if @gfp_mask may reclaim; else it does nothing.
 *
 * Return: true if @zone is not below @mark any more.
 */
bool luf_drain_for_alloc(struct zone *zone, gfp_t gfp_mask, unsigned int order,
			 unsigned long mark, int highest_zoneidx,
			 unsigned int alloc_flags)
{
	int nid = zone_to_nid(zone);

	if ((alloc_flags & ALLOC_WMARK_MASK) == ALLOC_WMARK_LOW ||
	    !(gfp_mask & __GFP_DIRECT_RECLAIM) || (current->flags & PF_MEMALLOC) ||
	    !luf_zone_parked(zone) || quell_mutant(LUF_HOARD))
		return false;
	return (luf_drain_aged(nid) &&
		zone_watermark_ok(zone, order, mark, highest_zoneidx, alloc_flags)) ||
	       (luf_drain_node(nid, LUF_DRAIN_ALLOC) &&
		zone_watermark_ok(zone, order, mark, highest_zoneidx, alloc_flags));
}

/**
 * luf_drain_for_compact - release the pages that compaction has moved away from
 * @zone: that is being compacted
 *
 * They form a larger block only in the page allocator. May sleep.
 */
void luf_drain_for_compact(struct zone *zone)
{
	int nid = zone_to_nid(zone);

	if (luf_waits(nid) && !quell_mutant(LUF_HOARD))
		luf_drain_node(nid, LUF_DRAIN_OTHER);
}

/* Free pages of @zone, exact where the watermarks need that. */
static unsigned long luf_zone_free(struct zone *zone)
{
	unsigned long free = zone_page_state(zone, NR_FREE_PAGES);

	if (zone->percpu_drift_mark && free < zone->percpu_drift_mark)
		free = zone_page_state_snapshot(zone, NR_FREE_PAGES);
	return free;
}

/**
 * luf_balanced - may kswapd rest although a zone's free pages are short?
 * @zone:		of kswapd's node
 * @order:		of the allocation that woke it
 * @mark:		the watermark that kswapd wants to reach, in pages
 * @highest_zoneidx:	of the allocation
 *
 * Parked pages count as free above the low watermark, not below it: there kswapd wakes up and
 * releases them. Free and parked pages together must reach @mark, and exceed the low watermark
 * by twice the pages that are worth a flush. From about 8 GB on @mark is the higher one.
 *
 * Return: true if kswapd may rest.
 */
bool luf_balanced(struct zone *zone, int order, unsigned long mark,
		  int highest_zoneidx)
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

/**
 * luf_drain_for_kswapd - release parked pages before kswapd reclaims
 * @pgdat:		its node, not balanced
 * @order:		of the allocation that woke it
 * @highest_zoneidx:	up to this zone
 *
 * Flushes only if free pages are below low and enough pages are parked. May sleep.
 *
 * Return: true if the watermarks are worth another look.
 */
bool luf_drain_for_kswapd(struct pglist_data *pgdat, int order,
			  int highest_zoneidx)
{
	int i;

	if (!luf_parked(pgdat->node_id))
		return false;
	if (luf_eager)
		return luf_drain_node(pgdat->node_id, LUF_DRAIN_KSWAPD);
	for (i = 0; i <= highest_zoneidx; i++) {
		struct zone *zone = &pgdat->node_zones[i];

		if (__zone_watermark_ok(zone, order, low_wmark_pages(zone), highest_zoneidx, 0,
					luf_zone_free(zone)))
			return luf_kswapd_drains(pgdat, false);
	}
	return luf_kswapd_drains(pgdat, true);
}

/**
 * luf_drain_all - release every page that is parked now
 *
 * The page allocator has all of them when this returns. May sleep.
 */
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

/**
 * luf_let_go - drop the references to held folios before a migration
 * @reason:	of the migration; does nothing unless that wants the frames themselves
 *
 * May sleep.
 */
void luf_let_go(enum migrate_reason reason)
{
	int nid;

	if (!luf_wants_frame(reason))
		return;
	for_each_node_state(nid, N_MEMORY)
		if (luf_lots[nid] && READ_ONCE(luf_lots[nid]->nr_held))
			luf_drain_node(nid, LUF_DRAIN_OTHER);
}

/* --- Accounting ----------------------------------------------------------------- */

/**
 * luf_nr_parked - how many pages are parked, on all nodes
 *
 * Allocations that may wait get them before they reclaim.
 *
 * Return: pages.
 */
unsigned long luf_nr_parked(void)
{
	return global_node_page_state(NR_LUF_PARKED);
}

/* --- The switch --------------------------------------------------------------- */

static ssize_t max_stale_ms_show(struct kobject *kobj,
				 struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(luf_max_stale_ms));
}

static ssize_t max_stale_ms_store(struct kobject *kobj,
				  struct kobj_attribute *attr,
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

static struct kobj_attribute luf_max_stale_ms_attr = __ATTR_RW(max_stale_ms);

static ssize_t drain_store(struct kobject *kobj, struct kobj_attribute *attr,
			   const char *buf, size_t count)
{
	luf_drain_all();
	return count;
}

static struct kobj_attribute luf_drain_attr = __ATTR_WO(drain);

static const struct attribute * const luf_attrs[] = {
	&luf_max_stale_ms_attr.attr,
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
