// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lazy unmap flush (LUF): reclaim and migration unmap folios without a TLB flush.
 * The flush happens once for many, before their frames can be used again.
 *
 * Stock reclaim clears the PTEs of some 31 folios, interrupts every CPU that may have
 * cached them, and frees the folios. Here the folios wait in a list, the lot of their
 * node. A drain flushes the CPUs that are still behind, and frees the lot in bulk. In
 * between a CPU may read a folio through an entry that it cached: it is still there, and
 * has the content that a fault would bring back. Migration is the same: the old frame
 * waits, and has the content of the new one.
 *
 * The *window* of a PTE runs from its clearing until every CPU that may have cached it
 * has flushed; that flush is *owed* meanwhile. A *parked* folio is in a lot: unmapped,
 * out of the page cache, uncharged, with no reference. A *label* is a value that
 * luf_clock reaches after the PTE was cleared, tlb_gen raised and its CPUs noted.
 *
 * R1, frames: no frame reaches the page allocator inside a window. Its label is settled
 * first. The full barriers let one see the other:
 *
 *	unmap				drain of a label
 *	  clear the PTE, tlb_gen++	  the clock is at the label, or moves there
 *	  luf_owed[CPUs] = clock + 1	  full barrier
 *	  full barrier			  flush who has seen less than that
 *	  label = clock + 1		    and than what he is owed
 *					  luf.done = label
 *
 * R2, writes: only read-only PTEs are deferred, of files only clean ones. No entry that
 * may be written is left by others either:
 *
 *	mprotect, fork, ...		unmap
 *	  mm_tlb_flush_pending++	  clear the PTE: it is read-only
 *	  write protect the PTE		  mm_tlb_flush_pending? then as stock
 *	  flush, mm_tlb_flush_pending--
 *
 * R3, reads: what (mm, address) denotes changes only after a flush of what is owed.
 * (a) The page table changes under the lock under which mm->luf_label was raised. (b) The
 * file changes only by who has write access:
 *
 *	unmap				get_write_access(), luf_exclude()
 *	  the file's label is raised	  i_writecount++, or AS_LUF_NEVER
 *	  full barrier			  full barrier
 *	  luf_content_fixed()?		  the file's label > luf.done? then flush
 *	    else as stock
 *
 * R4, progress: parked pages are the first to be given back, and count as free:
 *
 *	free pages	kswapd			allocations that may wait
 *	  above low	what needs no interrupt	-
 *	  below low	all, in pieces		what needs no interrupt
 *	  below min	all, in pieces		all, before and after they reclaim
 *
 * R5, nothing hidden: a CPU is left out by the evidence of tlb_gen, never by time:
 *
 *	CPU, at a switch or a flush	unmap			drain
 *	  look = luf_clock		  tlb_gen++
 *	  compare tlb_gen, catch up	  label > look or seen
 *	  luf_seen = look					  luf_seen >= label?
 *
 * Locks: lot->lock is a leaf, taken in process context only. luf.mutex is held across
 * the flush and never across the freeing; lot->freeing is held across the freeing only,
 * for reading but by luf_drain_all(), which only passes through. Neither is held when
 * anything but the flush or these is waited for.
 *
 * Documentation/mm/lazy_unmap_flush.rst has the argument in full, and what an
 * architecture must promise. mm/luf_debug.c checks R1 and R3 at run time.
 */
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/export.h>
#include <linux/fs.h>
#include <linux/init.h>
#include <linux/jump_label.h>
#include <linux/list.h>
#include <linux/memcontrol.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
#include <linux/pagevec.h>
#include <linux/quell.h>
#include <linux/quell_mutants.h>
#include <linux/rwsem.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/swap.h>
#include <linux/sysfs.h>
#include <linux/vmstat.h>
#include <linux/workqueue.h>
#include <asm/luf.h>
#include <asm/tlbflush.h>
#include "internal.h"
#include "luf.h"
#include "luf_debug.h"

enum luf_drain_reason {
	LUF_DRAIN_FULL,
	LUF_DRAIN_ALLOC,
	LUF_DRAIN_KSWAPD,
	LUF_DRAIN_STALE,
	LUF_DRAIN_OTHER,
};

#define CREATE_TRACE_POINTS
#include <trace/events/luf.h>

/* Off until luf_init(): the lots must exist. */
DEFINE_STATIC_KEY_FALSE(luf_key);

DEFINE_PER_CPU_SHARED_ALIGNED(u64, luf_seen);
atomic64_t luf_clock __cacheline_aligned_in_smp = ATOMIC64_INIT(0);

/* The last label that each CPU is owed a flush for: it only rises. */
static atomic64_t luf_owed[NR_CPUS];

/**
 * struct luf_ledger - which CPU is owed which flush
 * @clock:	moves after many folios were parked, and at flushes
 * @owed:	by CPU: the last label that it is owed a flush for; only rises
 * @done:	all labels up to this one are flushed
 * @mutex:	held while CPUs are flushed, so that nobody flushes them for the same
 * @flushing:	the CPUs that are being flushed; under @mutex
 */
struct luf_ledger {
	atomic64_t *clock;
	atomic64_t *owed;
	u64 done;
	struct mutex mutex;		/* of those who flush */
	struct arch_tlbflush_unmap_batch flushing;
};

static struct luf_ledger luf = {
	.clock	= &luf_clock,
	.owed	= luf_owed,
	.mutex	= __MUTEX_INITIALIZER(luf.mutex),
};

/* Folios that a node holds a reference to: as many as reclaim takes at once. */
#define LUF_HELD_MAX	32

/**
 * struct luf_lot - the parked folios of a node
 * @lock:	guards all of it; who only wants to know about how much there is reads
 *		@nr_pages and @nr_zone without
 * @folios:	by label, which is in folio->private, oldest first
 * @newest:	the newest label among them
 * @nr_pages:	all of them, in pages
 * @nr_zone:	those of each zone, in pages
 * @draining:	set while somebody does who wants memory, see luf_drain_some()
 * @freeing:	held for reading from taking folios out until they are free
 * @nr_held:	how many of @held there are
 * @held:	folios that were unmapped lazily and not freed, and their labels
 */
struct luf_lot {
	spinlock_t lock;		/* of the folios, and what counts them */
	struct list_head folios;
	u64 newest;
	unsigned long nr_pages;
	unsigned long nr_zone[MAX_NR_ZONES];
	atomic_t draining;
	struct rw_semaphore freeing;
	unsigned int nr_held;
	struct {
		struct folio *folio;
		u64 label;
	} held[LUF_HELD_MAX];
};

static struct luf_lot *luf_lots[MAX_NUMNODES] __read_mostly;

/* Pages that a lot holds at the most; 0: see luf_node_limit(). */
#define LUF_LOT_MAX	16384UL
static unsigned long luf_lot_pages __read_mostly;
/* Pages that reclaim holds back from the lot; most of its lists are shorter. */
#define LUF_LIST_MAX	128UL

/* A stale window is closed after so many milliseconds, on an idle machine too. */
#define LUF_STALE_MIN	2
#define LUF_STALE_MAX	60000
static unsigned int luf_max_stale_ms __read_mostly = 100;

/* --- The ledger of owed flushes ------------------------------------------ */

/* No label is lost to a lesser one. Returns whether @at was less. */
static bool luf_raise(atomic64_t *at, s64 label)
{
	s64 old = atomic64_read(at);

	while (old < label)
		if (atomic64_try_cmpxchg(at, &old, label))
			return true;
	return false;
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

/*
 * The CPUs of @mm are owed a flush. After a PTE of @mm was cleared and tlb_gen
 * raised, under its page table lock. Returns the label, which may be greater than what
 * the CPUs are owed: they have caught up once they have seen that. So that everything
 * up to a label is done does not mean that a CPU which is owed no more is not behind.
 */
static u64 luf_ledger_owe(struct luf_ledger *ledger, struct mm_struct *mm)
{
	u64 label = luf_ledger_now(ledger);
	unsigned int cpu;

	if (!quell_mutant(LUF_NO_OWING))
		for_each_cpu(cpu, mm_cpumask(mm))
			luf_raise(&ledger->owed[cpu], label);
	/* The CPUs before the clock: pairs with luf_ledger_settle(). */
	smp_mb();
	return luf_ledger_now(ledger);
}

/*
 * Up to which label, @label at the most, does @cpu use no entry that became stale with
 * it? Less than @label means that it is behind: see R5.
 */
static u64 luf_reached(struct luf_ledger *ledger, unsigned int cpu, u64 label)
{
	u64 owed = atomic64_read(&ledger->owed[cpu]);
	u64 seen = arch_luf_seen(cpu);

	return seen < min(owed, label) && arch_luf_may_use(cpu) ? seen : label;
}

/*
 * Up to which label is everything settled, or is so without an interrupt? Anything
 * less than @oldest counts as nothing. If only this CPU is behind that, it is flushed.
 */
static u64 luf_ledger_settled(struct luf_ledger *ledger, u64 oldest)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	u64 label = atomic64_read(ledger->clock);
	unsigned int cpu, here;

	if (quell_mutant(LUF_AGED_UNCHECKED))
		return label;
	/* The clock before the CPUs: pairs with luf_ledger_owe(). */
	smp_mb();
	here = get_cpu();
	for_each_online_cpu(cpu) {
		if (label < oldest)
			break;
		if (cpu != here)
			label = luf_reached(ledger, cpu, label);
	}
	if (label >= oldest && luf_reached(ledger, here, label) < label) {
		if (tlb_ubc->flush_required)
			label = 0;
		else if (!quell_mutant(LUF_AGED_NOT_LOCAL))
			arch_luf_flush_here(&tlb_ubc->arch, here);
	}
	put_cpu();
	if (label < oldest)
		label = 0;
	/* As in luf_ledger_done(). */
	return max(label, smp_load_acquire(&ledger->done));
}

/*
 * Settle all labels up to @need, by flushing the CPUs that are behind. May
 * sleep, and waits for the CPUs. Returns whether there were any.
 */
static bool luf_ledger_settle(struct luf_ledger *ledger, u64 need)
{
	unsigned int cpu;
	bool behind;

	if (luf_ledger_done(ledger, need))
		return false;

	mutex_lock(&ledger->mutex);
	if (luf_ledger_done(ledger, need)) {
		mutex_unlock(&ledger->mutex);
		return false;
	}

	/* Labels that are given out from now on are greater. */
	luf_raise(ledger->clock, need);
	/* The clock before the CPUs: pairs with luf_ledger_owe(). */
	smp_mb();
	for_each_online_cpu(cpu)
		if (luf_reached(ledger, cpu, need) < need)
			arch_luf_add_cpu(&ledger->flushing, cpu);
	behind = !arch_luf_empty(&ledger->flushing);
	if (quell_mutant(LUF_DONE_EARLY)) {
		/* Before the flush. */
		smp_store_release(&ledger->done, need);
		mdelay(1);
	}
	if (behind && !quell_mutant(LUF_SKIP_FLUSH))
		arch_tlbbatch_flush(&ledger->flushing);
	/* Pairs with luf_ledger_done(): after the flush. */
	smp_store_release(&ledger->done, need);
	mutex_unlock(&ledger->mutex);
	return behind;
}

/* Returns whether a CPU had to be flushed. */
static bool luf_settle_all(u64 need)
{
	might_sleep();
	if (!luf_ledger_settle(&luf, need))
		return false;
	count_vm_event(LUF_FLUSH);
	trace_luf_flush(need);
	return true;
}

/* --- The lot -------------------------------------------------------------- */

static void luf_lot_init(struct luf_lot *lot)
{
	spin_lock_init(&lot->lock);
	INIT_LIST_HEAD(&lot->folios);
	init_rwsem(&lot->freeing);
}

/* Give the folios of @list their label. Returns how many pages they are. */
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

/* Park the folios of @list: what luf_label() was asked about. */
static void luf_lot_add(struct luf_lot *lot, struct list_head *list, u64 label,
			const unsigned long *nr_zone, unsigned long nr_pages)
{
	int i;

	spin_lock(&lot->lock);
	list_splice_tail_init(list, &lot->folios);
	lot->newest = max(lot->newest, label);
	for (i = 0; i < MAX_NR_ZONES; i++)
		WRITE_ONCE(lot->nr_zone[i], lot->nr_zone[i] + nr_zone[i]);
	WRITE_ONCE(lot->nr_pages, lot->nr_pages + nr_pages);
	spin_unlock(&lot->lock);
}

/* The first label in the lot, or less, or one that never comes. */
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
 * Take out folios whose labels are settled up to @settled, until these are @want
 * pages. Returns how many they are. Parking is not atomic with reading the clock,
 * so a newer folio may stand before an older one: that one waits for the next time.
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

/* Drop the references to folios whose labels are settled up to @settled. May sleep. */
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

/* The sum of what @mark() says of the zones of a node. */
static unsigned long luf_sum_zones(struct pglist_data *pgdat,
				   unsigned long (*mark)(struct zone *zone))
{
	unsigned long sum = 0;
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++)
		sum += mark(&pgdat->node_zones[i]);
	return sum;
}

static unsigned long luf_low_to_high(struct zone *zone)
{
	return high_wmark_pages(zone) - low_wmark_pages(zone);
}

static unsigned long luf_min_to_low(struct zone *zone)
{
	return low_wmark_pages(zone) - min_wmark_pages(zone);
}

/* How many pages are worth a flush: 4 MB, less on a node of less than 256 MB. */
#define LUF_WORTH	1024UL

static unsigned long luf_worth(unsigned long managed)
{
	return min(managed / 64, LUF_WORTH);
}

/*
 * How many pages may be parked: as many as kswapd reclaims in one go, or as are worth a
 * flush, or as was set.
 */
static unsigned long luf_node_limit(struct pglist_data *pgdat)
{
	return READ_ONCE(luf_lot_pages) ?:
	       clamp(luf_sum_zones(pgdat, luf_low_to_high),
		     luf_worth(luf_sum_zones(pgdat, zone_managed_pages)), LUF_LOT_MAX);
}

/*
 * How many pages kswapd may hold back from a node that is short of free ones: no more
 * than anybody else who reclaims, or a quarter of what lies below the low watermark.
 */
static unsigned long luf_node_piece(struct pglist_data *pgdat)
{
	return clamp(luf_sum_zones(pgdat, luf_min_to_low) / 4, LUF_LIST_MAX,
		     LUF_LOT_MAX / 4);
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
}

/* What is freed before anybody else may run. */
#define LUF_RELEASE_BATCH	256

static void luf_release_rest(struct work_struct *work);
static DECLARE_WORK(luf_rest_work, luf_release_rest);
static struct workqueue_struct *luf_wq;

/*
 * Give back @want pages, or a bit more, that are settled up to @settled on node
 * @nid; a worker gives back the rest, since nothing is saved by holding pages that
 * are settled. Returns how many these are. May sleep.
 */
static unsigned long luf_release(int nid, u64 settled, unsigned long want)
{
	unsigned long nr_pages, released = 0;
	struct luf_lot *lot = luf_lots[nid];
	LIST_HEAD(list);

	luf_lot_put_held(lot, settled);
	do {
		down_read(&lot->freeing);
		nr_pages = luf_lot_take(lot, settled,
					min(want - released, LUF_RELEASE_BATCH),
					&list);
		if (nr_pages) {
			mod_node_page_state(NODE_DATA(nid), NR_LUF_PARKED,
					    -nr_pages);
			count_vm_events(LUF_RELEASE, nr_pages);
			luf_for_batches(&list, luf_free_batch);
		}
		up_read(&lot->freeing);
		released += nr_pages;
		cond_resched();
	} while (nr_pages && released < want);
	if (nr_pages)
		queue_work(luf_wq, &luf_rest_work);
	return released;
}

static unsigned long luf_parked(int nid)
{
	struct luf_lot *lot = luf_lots[nid];

	return lot ? READ_ONCE(lot->nr_pages) : 0;
}

/* Is there anything that waits for a flush, parked or held? */
static bool luf_waits(int nid)
{
	return luf_parked(nid) || (luf_lots[nid] && READ_ONCE(luf_lots[nid]->nr_held));
}

/*
 * Give back @want pages of node @nid that need no interrupt, if there are so
 * many. Returns how many these are. May sleep.
 */
static unsigned long luf_drain_aged(int nid, unsigned long want)
{
	unsigned long nr_pages;
	u64 settled;

	if (!luf_waits(nid))
		return 0;
	settled = luf_ledger_settled(&luf, luf_lot_oldest(luf_lots[nid]));
	nr_pages = luf_release(nid, settled, want);
	count_vm_events(LUF_RELEASE_AGED, nr_pages);
	return nr_pages;
}

static void luf_release_rest(struct work_struct *work)
{
	int nid;

	for_each_node_state(nid, N_MEMORY)
		luf_drain_aged(nid, ULONG_MAX);
}

/*
 * Give back @want pages of node @nid, with a flush if there is one owed: for
 * everything that is parked. Returns whether there was something; another drain
 * may have been faster to free it. May sleep.
 */
static bool luf_drain_node(int nid, enum luf_drain_reason reason,
			   unsigned long want)
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
	flushed = luf_settle_all(newest);
	nr_pages = luf_release(nid, newest, want);
	if (!flushed)
		count_vm_events(LUF_RELEASE_AGED, nr_pages);
	if (nr_pages) {
		count_vm_event(LUF_DRAIN_BY_FULL + reason);
		trace_luf_drain(nid, nr_pages, reason);
	}
	return true;
}

/*
 * The same for who wants memory: @enough pages that need no interrupt will do. Of
 * several at once one drains, and the others do not wait for it: it may have to
 * wait for a CPU longer than it takes to reclaim.
 */
static bool luf_drain_some(int nid, enum luf_drain_reason reason,
			   unsigned long enough, unsigned long want)
{
	struct luf_lot *lot = luf_lots[nid];
	bool drained;

	if (atomic_cmpxchg_acquire(&lot->draining, 0, 1))
		return false;
	drained = luf_drain_aged(nid, want) >= enough ||
		  luf_drain_node(nid, reason, want);
	atomic_set_release(&lot->draining, 0);
	return drained;
}

/* --- No window stays open for long ------------------------------------------- */

/* What was owed when luf_close_windows() ran last. */
static u64 luf_stale_label;
/* The newest label that was given out. */
static atomic64_t luf_newest;
static bool luf_stale_armed;

static void luf_close_windows(struct work_struct *work);
static DECLARE_DELAYED_WORK(luf_stale_work, luf_close_windows);

/*
 * What is owed is flushed in the second run from now on, at the latest; the last
 * third is for the workqueue to be late.
 */
static void luf_arm(void)
{
	unsigned int ms = READ_ONCE(luf_max_stale_ms);

	queue_delayed_work(luf_wq, &luf_stale_work,
			   max(1, msecs_to_jiffies(ms) / 3));
	/* A new time may have come, and its run gone by, in between. */
	if (unlikely(READ_ONCE(luf_max_stale_ms) != ms))
		mod_delayed_work(luf_wq, &luf_stale_work, 0);
}

/* After something is owed or parked: luf_close_windows() shall run. */
static void luf_keep_closing(void)
{
	/* Pairs with luf_close_windows(): one sees the other. */
	smp_mb();
	if (unlikely(!READ_ONCE(luf_stale_armed))) {
		WRITE_ONCE(luf_stale_armed, true);
		luf_arm();
	}
}

/*
 * Each window is at least a third of the time old before its label is flushed,
 * and at most all of it: most CPUs have caught up meanwhile. Runs only while there
 * is something owed or parked.
 */
static void luf_close_windows(struct work_struct *work)
{
	u64 stale = luf_stale_label;
	unsigned long nr_pages;
	bool more;
	int nid;

	if (luf_settle_all(stale))
		count_vm_event(LUF_FLUSH_STALE);
	for_each_node_state(nid, N_MEMORY) {
		if (!luf_waits(nid))
			continue;
		nr_pages = luf_release(nid, stale, ULONG_MAX);
		if (nr_pages) {
			count_vm_event(LUF_DRAIN_BY_FULL + LUF_DRAIN_STALE);
			trace_luf_drain(nid, nr_pages, LUF_DRAIN_STALE);
		}
	}
	/* What is owed from now on has a greater label, and its time before it. */
	luf_stale_label = atomic64_inc_return(&luf_clock);

	WRITE_ONCE(luf_stale_armed, false);
	/* Pairs with luf_keep_closing(). */
	smp_mb();
	more = !luf_ledger_done(&luf, atomic64_read(&luf_newest));
	for_each_node_state(nid, N_MEMORY)
		more |= luf_waits(nid);
	if (more) {
		WRITE_ONCE(luf_stale_armed, true);
		luf_arm();
	}
}

/* The CPUs of @mm are owed a flush; see luf_ledger_owe(). */
static u64 luf_owe(struct mm_struct *mm)
{
	u64 label = luf_ledger_owe(&luf, mm);

	/* Whoever raises it sees to it that what is less is flushed, too. */
	if (luf_raise(&luf_newest, label))
		luf_keep_closing();
	return label;
}

/* --- Hooks of reclaim and migration ------------------------------------------- */

/* Can only who has write access change the content of the file? R3 (b). */
static __always_inline bool luf_content_fixed(struct address_space *mapping)
{
	struct inode *inode = mapping->host;

	return (!inode_is_open_for_write(inode) || quell_mutant(LUF_IGNORE_WRITER)) &&
	       !(READ_ONCE(inode->i_flags) & (S_DAX | S_NOQUOTA)) &&
	       !test_bit(AS_LUF_NEVER, &mapping->flags) &&
	       !READ_ONCE(mapping->wb_err);
}

static bool luf_may_defer_file(struct folio *folio)
{
	struct address_space *mapping = folio->mapping;

	if (folio_test_swapbacked(folio) || !mapping || !mapping->host)
		return false;
	if (folio_test_dirty(folio) || folio_test_writeback(folio) ||
	    !folio_test_uptodate(folio))
		return false;
	return S_ISREG(mapping->host->i_mode) &&
	       (mapping->host->i_sb->s_iflags & SB_I_LUF) &&
	       luf_content_fixed(mapping);
}

/*
 * @folio was unmapped lazily and is not freed; the caller has it isolated. Who frees it
 * later does not know what it is owed, so the lot keeps a reference until that is
 * settled. Returns false if it has to be flushed instead: for want of room, or if a
 * memory cgroup at its limit reclaims, which may want just this folio next.
 */
static bool luf_hold(struct folio *folio)
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
		/* As in luf_ledger_done(). */
		luf_lot_put_held(lot, smp_load_acquire(&luf.done));
	/* A full barrier: after all that it is owed. */
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
 * The PTEs of @folio are about to be cleared; defer their flushes if possible. @more
 * is LUF_MAY_HOLD or nothing.
 */
static void luf_begin(struct folio *folio, unsigned char more)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	unsigned char state = tlb_ubc->luf_state;

	/* What an earlier folio is owed is not forgotten. */
	if ((state & LUF_OWED) && !luf_hold(tlb_ubc->luf_folio))
		state |= LUF_KEPT;
	tlb_ubc->luf_state = (state & (LUF_KEPT | LUF_MOVING)) | LUF_UNMAPPING | more;
	tlb_ubc->luf_folio = folio;
}

static void luf_end(void)
{
	current->tlb_ubc.luf_state &= ~LUF_UNMAPPING;
}

/**
 * __luf_try_to_unmap - try_to_unmap(), lazily where that is safe
 * @folio:	not anonymous, locked, isolated from the LRU
 * @flags:	of try_to_unmap()
 * @memcg:	the memory cgroup that reclaims, or NULL
 *
 * For reclaim only: the caller ends with luf_park() or try_to_unmap_flush().
 * May sleep.
 */
void __luf_try_to_unmap(struct folio *folio, enum ttu_flags flags,
			struct mem_cgroup *memcg)
{
	if (!luf_may_defer_file(folio)) {
		try_to_unmap(folio, flags);
		return;
	}
	luf_begin(folio, memcg ? 0 : LUF_MAY_HOLD);
	try_to_unmap(folio, flags);
	luf_end();
}

/* These want the frame itself, or hand it to somebody else. */
static bool luf_wants_frame(enum migrate_reason reason)
{
	return reason == MR_MEMORY_FAILURE || reason == MR_CONTIG_RANGE ||
	       reason == MR_MEMORY_HOTPLUG || reason == MR_LONGTERM_PIN;
}

/**
 * __luf_try_to_migrate - try_to_migrate(), lazily where that is safe
 * @folio:	locked, isolated from the LRU
 * @flags:	of try_to_migrate()
 * @reason:	of the migration
 *
 * For migrate_pages_batch() only: its source folios end in luf_put_migrated()
 * or are mapped again where they were. May sleep.
 */
void __luf_try_to_migrate(struct folio *folio, enum ttu_flags flags,
			  enum migrate_reason reason)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;

	if (luf_wants_frame(reason) || folio_test_hugetlb(folio) ||
	    folio_contain_hwpoisoned_page(folio) ||
	    !(folio_test_anon(folio) || luf_may_defer_file(folio))) {
		try_to_migrate(folio, flags);
		return;
	}
	luf_begin(folio, 0);
	try_to_migrate(folio, flags);
	luf_end();
	/* Not for the end of the batch, like LUF_OWED and LUF_KEPT. */
	if (tlb_ubc->luf_state & LUF_OWED) {
		tlb_ubc->luf_state &= ~LUF_OWED;
		tlb_ubc->luf_state |= LUF_MOVING;
	}
}

/* See luf_defer(): luf_folio is being unmapped and may be done lazily. */
bool __luf_defer(struct mm_struct *mm, pte_t pteval, unsigned long address,
		 unsigned int nr)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	struct folio *folio = tlb_ubc->luf_folio;
	struct address_space *mapping = folio->mapping;
	u64 label, stamp;

	if (pte_write(pteval) && !quell_mutant(LUF_DEFER_WRITABLE))
		return false;
	if (folio_test_anon(folio)) {
		/* A write protection that was not flushed yet: R2. */
		if (mm_tlb_flush_pending(mm) && !quell_mutant(LUF_MIGRATE_PROTECTED))
			return false;
	} else if (pte_dirty(pteval) && !quell_mutant(LUF_DEFER_WRITABLE)) {
		return false;
	}

	if (!quell_mutant(LUF_NO_TLB_GEN))
		arch_luf_unmapped(mm);
	stamp = luf_debug_stamp();
	label = luf_owe(mm);
	if (!folio_test_anon(folio)) {
		if (quell_mutant(LUF_CHECK_FIRST)) {
			if (!luf_content_fixed(mapping))
				return false;
			mdelay(1);
		}
		if (!quell_mutant(LUF_NO_FILE_LABEL))
			luf_raise(&mapping->host->i_luf_label, label);
		/* Pairs with luf_write_access(): R3 (b). */
		smp_mb();
		if (!quell_mutant(LUF_CHECK_FIRST) && !luf_content_fixed(mapping))
			return false;
	}
	/* For luf_flush_pending(): R3 (a). */
	if (!quell_mutant(LUF_NO_MM_LABEL))
		luf_raise(&mm->luf_label, label);
	luf_debug_open(folio, mm, address, pteval, nr, stamp);

	tlb_ubc->luf_state |= LUF_OWED;
	return true;
}

/* See luf_settle(). */
void __luf_settle(void)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;

	if (((tlb_ubc->luf_state & LUF_OWED) && !luf_hold(tlb_ubc->luf_folio)) ||
	    (tlb_ubc->luf_state & LUF_KEPT))
		luf_settle_all(luf_ledger_now(&luf));
	tlb_ubc->luf_state &= LUF_MOVING;
}

/*
 * After many folios were parked, not after each: the CPUs that look at the clock from
 * now on have caught up with them.
 */
static void luf_tick(void)
{
	atomic64_inc(&luf_clock);
}

/*
 * Uncharge the folios of @parked, all of @pgdat, put them into the lot, and drain
 * that if it is full.
 */
static void luf_put_into_lot(struct list_head *parked, struct pglist_data *pgdat)
{
	int nid = pgdat->node_id;
	unsigned long nr_zone[MAX_NR_ZONES] = {};
	unsigned long nr_pages, limit;
	u64 label;

	luf_for_batches(parked, mem_cgroup_uncharge_folios);
	/* Not less than that of any flush which these folios are owed. */
	label = luf_ledger_now(&luf);
	nr_pages = luf_label(parked, label, nr_zone);
	/* Counted first: a drain on another CPU may take them at once. */
	mod_node_page_state(pgdat, NR_LUF_PARKED, nr_pages);
	count_vm_events(LUF_PARK, nr_pages);
	luf_lot_add(luf_lots[nid], parked, label, nr_zone, nr_pages);
	/* In migration once for all of its folios: luf_end_migrate(). */
	if (!(current->tlb_ubc.luf_state & LUF_MOVING))
		luf_tick();
	luf_keep_closing();
	trace_luf_park(nid, nr_pages, label);

	limit = luf_node_limit(pgdat);
	if (luf_parked(nid) > limit &&
	    !luf_drain_some(nid, LUF_DRAIN_FULL, limit / 2 + 1, ULONG_MAX) &&
	    luf_parked(nid) > 2 * limit)
		/* Whoever drains is slow, and all others park: it ends here. */
		luf_drain_node(nid, LUF_DRAIN_FULL, ULONG_MAX);
}

/**
 * __luf_park - shall this folio wait for its flush in the lot?
 * @folio:	unmapped last of all, out of the page cache, unlocked, no reference
 * @parked:	the caller's list, for luf_park_list(), all of one node; empty again
 *		where it has become long
 *
 * May sleep.
 *
 * Return: true if @folio went to @parked; else it is the caller's to free, after
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
	/* Counted where the label will be. */
	if (!list_empty(parked))
		nr += (unsigned long)list_last_entry(parked, struct folio, lru)->private;
	folio->private = (void *)nr;
	list_add_tail(&folio->lru, parked);
	if (nr >= LUF_LIST_MAX) {
		/* As stock before it frees in mid-list; see also R1. */
		try_to_unmap_flush();
		luf_put_into_lot(parked, folio_pgdat(folio));
	}
	return true;
}

/*
 * kswapd gives back what needs no interrupt, and with one what is more than it may
 * hold back while free pages are short. Returns whether it was any.
 */
static bool luf_kswapd_drains(struct pglist_data *pgdat, bool is_short)
{
	unsigned long piece = luf_node_piece(pgdat);
	int nid = pgdat->node_id;

	if (quell_mutant(LUF_HOARD))
		return false;
	if (is_short && luf_parked(nid) >= piece)
		return luf_drain_some(nid, LUF_DRAIN_KSWAPD, piece, ULONG_MAX);
	return luf_drain_aged(nid, ULONG_MAX);
}

/**
 * luf_park_list - put what luf_park() took into the lot
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
	/* It takes its time; somebody may be waiting for pages meanwhile. */
	if (current_is_kswapd())
		luf_kswapd_drains(pgdat, !zone_watermark_ok(zone, 0, low_wmark_pages(zone),
							    zone_idx(zone), 0));
}

/**
 * __luf_put_migrated - folio_put() for a folio whose content lives elsewhere now
 * @folio:	the source of a migration, unlocked, isolated; LUF_MOVING is set
 * @reason:	of the migration
 *
 * May sleep.
 */
void __luf_put_migrated(struct folio *folio, enum migrate_reason reason)
{
	LIST_HEAD(parked);

	if (quell_mutant(LUF_MIGRATE_FREE))
		goto put;
	if (luf_wants_frame(reason) || folio_test_hugetlb(folio) ||
	    __folio_test_movable(folio) || folio_test_mlocked(folio) ||
	    !folio_ref_freeze(folio, 1))
		goto settle;

	/* One that was freed under us has not been taken off yet. */
	folio_unqueue_deferred_split(folio);
	count_vm_events(LUF_MIGRATE, folio_nr_pages(folio));
	list_add(&folio->lru, &parked);
	luf_put_into_lot(&parked, folio_pgdat(folio));
	return;

settle:
	if (!quell_mutant(LUF_LOSE_KEPT))
		luf_settle_all(luf_ledger_now(&luf));
put:
	if (reason != MR_MEMORY_FAILURE)
		folio_put(folio);
}

/**
 * luf_begin_migrate - migrate_pages_batch() starts
 *
 * To allocate where the folios go may reclaim or compact, and so migrate: then
 * the outer migration still has folios that are owed a flush.
 *
 * Return: for luf_end_migrate().
 */
bool luf_begin_migrate(void)
{
	return current->tlb_ubc.luf_state & LUF_MOVING;
}

/**
 * luf_end_migrate - all folios of migrate_pages_batch() are where they belong
 * @outer: what luf_begin_migrate() returned
 */
void luf_end_migrate(bool outer)
{
	if (outer || !(current->tlb_ubc.luf_state & LUF_MOVING))
		return;
	current->tlb_ubc.luf_state &= ~LUF_MOVING;
	luf_tick();
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
	s64 label;

	might_sleep();
	/* Pairs with __luf_defer(): R3 (b). */
	smp_mb__after_atomic();
	label = atomic64_read(&inode->i_mapping->host->i_luf_label);
	if (likely(!label) || luf_ledger_done(&luf, label) ||
	    quell_mutant(LUF_NO_WRITE_ACCESS))
		return;
	count_vm_event(LUF_WRITE_ACCESS);
	luf_settle_all(label);
}
EXPORT_SYMBOL(luf_write_access);

/**
 * luf_exclude - the content of this file changes without write access
 * @inode:	its folios are never unmapped lazily again, until it is evicted
 *
 * Returns when no CPU can read old content through a stale entry. May sleep.
 */
void luf_exclude(struct inode *inode)
{
	if (!test_and_set_bit(AS_LUF_NEVER, &inode->i_mapping->flags))
		trace_luf_exclude(inode);
	luf_write_access(inode);
}
EXPORT_SYMBOL_GPL(luf_exclude);

/* See luf_flush_pending(). Returns whether there was something to flush. */
bool __luf_flush_pending(struct mm_struct *mm)
{
	s64 label = atomic64_read(&mm->luf_label);

	if (quell_mutant(LUF_NO_PENDING) || !label)
		return false;
	if (luf_ledger_done(&luf, label)) {
		/* A label never comes back. */
		atomic64_cmpxchg(&mm->luf_label, label, 0);
		return false;
	}
	/* Labels that are given out from now on are greater. */
	luf_raise(&luf_clock, label);
	/* The PTEs of all others were cleared, and tlb_gen raised, before the flush. */
	smp_mb();
	arch_flush_tlb_batched_pending(mm);
	atomic64_cmpxchg(&mm->luf_label, label, 0);
	return true;
}

/* See luf_write_fault(). */
void __luf_write_fault(struct mm_struct *mm)
{
	if (!quell_mutant(LUF_NO_WRITE_FAULT) && __luf_flush_pending(mm))
		count_vm_event(LUF_WRITE_FAULT);
}

/* --- Hooks of what wants memory --------------------------------------------- */

/* An allocation of one page does not free more; luf_rest_work does. */
#define LUF_ALLOC_BATCH	128

/**
 * luf_drain_for_alloc - give back parked pages to an allocation that is short
 * @gfp_mask:	of the allocation
 * @order:	its order
 * @ac:		its zones
 * @reclaimed:	it has reclaimed or compacted; if not, it rather does that than
 *		have CPUs interrupted for a few pages
 *
 * May sleep if @gfp_mask may reclaim.
 *
 * Return: true if it is worth looking at the free lists again.
 */
bool luf_drain_for_alloc(gfp_t gfp_mask, unsigned int order,
			 const struct alloc_context *ac, bool reclaimed)
{
	unsigned long want = order ? ULONG_MAX : LUF_ALLOC_BATCH;
	bool drained = false;
	struct zoneref *z;
	struct zone *zone;

	if (!(gfp_mask & __GFP_DIRECT_RECLAIM) || (current->flags & PF_MEMALLOC) ||
	    quell_mutant(LUF_HOARD))
		return false;

	for_each_zone_zonelist_nodemask(zone, z, ac->zonelist,
					ac->highest_zoneidx, ac->nodemask) {
		int nid = zone_to_nid(zone);

		if (!luf_lots[nid] ||
		    !READ_ONCE(luf_lots[nid]->nr_zone[zone_idx(zone)]))
			continue;
		if (!reclaimed && !order && luf_parked(nid) < LUF_ALLOC_BATCH)
			drained |= luf_drain_aged(nid, want);
		else if (luf_drain_some(nid, LUF_DRAIN_ALLOC, 1, want))
			drained = true;
		else if (reclaimed)
			drained |= luf_drain_node(nid, LUF_DRAIN_ALLOC, want);
	}
	return drained;
}

/**
 * luf_drain_for_compact - give back what compaction has moved away
 * @zone: that is being compacted
 *
 * It is worth something only in one piece, with the page allocator. May sleep.
 */
void luf_drain_for_compact(struct zone *zone)
{
	int nid = zone_to_nid(zone);

	if (luf_waits(nid) && !quell_mutant(LUF_HOARD))
		luf_drain_node(nid, LUF_DRAIN_OTHER, ULONG_MAX);
}

/**
 * luf_balanced - zone_watermark_ok_safe() for kswapd: may it rest?
 * @zone:		of its node
 * @order:		that is wanted
 * @mark:		that kswapd wants to reach, in pages
 * @highest_zoneidx:	of the allocation
 *
 * Parked pages count as free ones, but not to reach the low watermark: there kswapd wakes
 * up, and gives back what is parked. It rests when as much is parked again, and free above
 * that watermark, as is worth a flush; from some 4 GB on stock's own mark is higher.
 */
bool luf_balanced(struct zone *zone, int order, unsigned long mark,
		  int highest_zoneidx)
{
	struct luf_lot *lot = luf_lots[zone_to_nid(zone)];
	unsigned long parked = lot ? READ_ONCE(lot->nr_zone[zone_idx(zone)]) : 0;
	unsigned long low = low_wmark_pages(zone);

	if (!parked)
		return zone_watermark_ok_safe(zone, order, mark, highest_zoneidx);
	mark = max(mark, low + 2 * luf_worth(zone_managed_pages(zone)));
	return zone_watermark_ok_safe(zone, order, low, highest_zoneidx) &&
	       __zone_watermark_ok(zone, order, mark, highest_zoneidx, 0,
				   zone_page_state(zone, NR_FREE_PAGES) + parked);
}

/**
 * luf_drain_for_kswapd - give parked pages back before kswapd reclaims
 * @pgdat:		its node, not balanced
 * @order:		that is wanted
 * @highest_zoneidx:	up to this zone
 *
 * With a flush only if free pages are short, and it is worth it. May sleep.
 *
 * Return: true if it is worth looking at the watermarks again.
 */
bool luf_drain_for_kswapd(struct pglist_data *pgdat, int order,
			  int highest_zoneidx)
{
	int i;

	if (!luf_parked(pgdat->node_id))
		return false;
	for (i = 0; i <= highest_zoneidx; i++) {
		struct zone *zone = &pgdat->node_zones[i];

		if (zone_watermark_ok_safe(zone, order, low_wmark_pages(zone),
					   highest_zoneidx))
			return luf_kswapd_drains(pgdat, false);
	}
	return luf_kswapd_drains(pgdat, true);
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
		luf_drain_node(nid, LUF_DRAIN_OTHER, ULONG_MAX);
		/* Somebody else may have taken folios and not freed them yet. */
		down_write(&luf_lots[nid]->freeing);
		up_write(&luf_lots[nid]->freeing);
	}
}

/**
 * luf_let_go - drop the references to folios that reclaim has kept
 * @failed: folios that could not be migrated, as one of them may be such; may be empty
 *
 * May sleep.
 */
void luf_let_go(const struct list_head *failed)
{
	int nid;

	if (list_empty(failed))
		return;
	for_each_node_state(nid, N_MEMORY)
		if (luf_lots[nid] && READ_ONCE(luf_lots[nid]->nr_held))
			luf_drain_node(nid, LUF_DRAIN_OTHER, ULONG_MAX);
}

/* --- Where parked pages are shown ---------------------------------------------- */

/**
 * luf_nr_parked - how many pages are parked, on all nodes
 *
 * They are available: whoever is short of memory gets them first.
 */
unsigned long luf_nr_parked(void)
{
	return global_node_page_state(NR_LUF_PARKED);
}

/* A line of /proc/meminfo. */
void luf_report_meminfo(struct seq_file *m)
{
	seq_printf(m, "LufParked:      %8lu kB\n", K(luf_nr_parked()));
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
	/* What is parked or open now was promised the old time. */
	luf_drain_all();
	luf_settle_all(luf_ledger_now(&luf));
	/* And the timer may have been set by it. */
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
	&luf_lot_pages_attr.attr,
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

	/* The bound holds under memory pressure, too. */
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
	return quell_register(&luf_mechanism);
}
subsys_initcall(luf_init);

#ifdef CONFIG_QUELL_KUNIT_TEST
#include "tests/luf-kunit.h"
#endif
