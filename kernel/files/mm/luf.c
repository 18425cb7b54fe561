// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lazy unmap flush (LUF): reclaim and migration unmap folios without a TLB flush.
 * The flush happens once for many, before their frames can be used again.
 *
 * Stock reclaim clears the PTEs of up to 31 folios, interrupts every CPU that
 * may have cached them, and frees the folios. Here the folios go to a lot
 * instead, one per node, and the CPUs into one global mask of those that owe a
 * flush. A drain flushes that mask once and then frees the lot in bulk. In
 * between, a CPU may still read a folio through an entry that it cached; the
 * folio is still there and still has the content that a fault would bring back.
 * Migration is the same: the old frame goes to the lot, and has the content of
 * the new one.
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
 * The flush for a PTE is *deferred* if that was read-only when it was cleared, for
 * files also clean, of a folio of a regular file, on a file system that set SB_I_LUF,
 * whose content is fixed (see R3 (b)); by migration, of anonymous folios, too. A folio
 * is parked if the flush for one of its PTEs at least was deferred; in migration, if
 * that is so of any in the batch. The others are flushed before, with the ordinary batch.
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
 *    redirtied) is not forgotten. LUF_OWED stays set until it is parked, or is not:
 *    then kswapd has the lot hold a reference (luf_hold()), dropped when a label that is
 *    given out now is settled. Whoever takes the folio from the page cache meanwhile does
 *    not free it. Else LUF_KEPT makes try_to_unmap_flush() flush what is owed. Reclaim
 *    calls that while it still has the folio isolated: before it frees any folio as
 *    usual, at the end of each list, as in stock, and before it puts parked folios into
 *    the lot, at the end of the list or when there are LUF_LIST_MAX: the flushes of
 *    those PTEs that were not deferred are done by then.
 *  - Migration unmaps many folios before it moves the first. LUF_MOVING stays
 *    set until all are where they belong. While it is, every source is parked,
 *    whether it was unmapped lazily or not, or freed after a flush
 *    (luf_put_migrated()). One that cannot be moved is mapped again where it was:
 *    a stale entry is right, and whoever takes the new PTE away flushes it. PTEs
 *    that were not deferred are flushed before the first folio is copied, as in
 *    stock.
 *
 * R2: no writes through stale entries
 * -----------------------------------
 * Only read-only entries are deferred, of files only clean ones; anything else is
 * flushed by the ordinary batch, before I/O, before the folio is copied and
 * before it is freed, as in stock.
 *
 * That a PTE is read-only does not mean that the entries are. Files that nobody
 * has open for writing have no writable PTEs, nor has a private mapping of the
 * page cache. Anonymous PTEs are write protected by mprotect(), userfaultfd,
 * soft-dirty, NUMA balancing and fork, which flush later, with mm_tlb_flush_pending()
 * raised from before until after: __luf_defer() then leaves it to the ordinary
 * batch (fork did not raise it, a hook in dup_mmap() does). KSM and userfaultfd's
 * asynchronous write protection flush under the page table lock. Swapoff maps
 * read-only what reclaim unmapped and may not have flushed: unuse_pte() calls
 * flush_tlb_batched_pending(). do_swap_page() maps it writable, where it was.
 *
 * R3: a stale read returns what a legal read could return now
 * -----------------------------------------------------------
 * What (mm, address) denotes can change in two ways.
 *
 *  (a) The page table changes. munmap, mmap over it, mremap, mprotect and
 *    madvise call flush_tlb_batched_pending() under the page table lock, or
 *    flush the range anyhow. It asks luf_flush_pending(), and so do those that
 *    stock needs no flush for:
 *     - finish_fault(), where a cleared PTE becomes a private copy,
 *     - do_wp_page(), where the PTE of a folio that has moved becomes writable,
 *     - do_swap_page(), where it does after a swap-out that has not flushed yet,
 *     - do_numa_page(), where it does before the flush that follows a look of NUMA
 *       balancing; the look itself changes nothing that an address denotes, and
 *       flushes each address whose PTE it changes: luf_only_looks(),
 *     - follow_page_pte(), where the kernel writes to it against its PTE.
 *    mm->luf_label says whether there is anything to flush. Whoever clears a PTE
 *    raises it under the same page table lock. Replacing a present PTE flushes
 *    its address on every CPU of the mm (ptep_clear_flush(): copies on write,
 *    KSM, uprobes, UFFDIO_MOVE), and so does collapsing it.
 *  (b) The content of the file changes. On a file system with SB_I_LUF only those
 *    who have write access change it: get_write_access() has returned to them.
 *    luf_content_fixed() says where that does not hold: DAX, quota files, files
 *    with a failed writeback (the page cache is not what the disk has), and
 *    those for which luf_exclude() was called. A file system that is shut down, or
 *    whose journal is aborted, may lose what was written before and is clean here,
 *    and not say so of the file: a page that is read again is then older than a
 *    stale entry, for as long as that lives.
 *
 *	reclaim				get_write_access(), luf_exclude()
 *	  clear the PTE			  i_writecount++, or AS_LUF_NEVER
 *	  CPUs into luf.owing		  full barrier
 *	  raise the file's label	  the file's label > luf.done?
 *	  full barrier			    flush what is owed up to it
 *	  luf_content_fixed()?		  return
 *	    else flush as usual
 *
 *    At least one of them sees the other. All of it on reclaim's side happens
 *    while the folio is locked and in the page cache, so the inode is there. The
 *    label is never lowered: a bit that the writer clears after its flush would
 *    be lost between reclaimers and openers that come and go. While i_writecount
 *    is raised nothing of the file is deferred.
 *    A page that somebody pinned may change without write access, but as it is
 *    pinned it stays in the page cache, and the stale entry is right.
 *    What changes a mounted file system's device from outside is not covered:
 *    stale entries are then one more cache that shows the old content for a
 *    while.
 *
 * No window is longer than luf_max_stale_ms, or six ticks, even on a machine that has
 * nothing to do: luf_owe() arms a timer, see luf_close_windows().
 *
 * R4: progress
 * ------------
 * The lot is drained by reclaim when it is full; one at a time does, and the others
 * go on until it holds twice of that. It is drained by an allocation that may wait,
 * before it compacts or reclaims (unless it wants one page, and these are a few for
 * which a CPU would have to be interrupted), after either, and before it calls the OOM
 * killer; by compaction, block by block; by kswapd when it wakes up because free pages
 * are short; for CMA, memory offline and memory failure (before it marks the frame: the
 * page allocator takes no marked one), which want certain frames, and by whoever calls
 * drain_all_pages() for a zone, as soft offlining does.
 * All of these may sleep and have interrupts on. GFP_ATOMIC and PF_MEMALLOC
 * allocations never drain; kswapd serves them. luf_drain_all() also waits for
 * those who are just freeing: lot->freeing. kswapd counts parked pages as free
 * (luf_balanced()). While most of what it reclaims is parked it keeps a reserve,
 * twice what the lot may hold; beyond that none is reclaimed because others are parked.
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
 * no user entry before it has compared (a probe in a kernel thread that reads user
 * memory without asking nmi_uaccess_okay() does, in stock as well); a CPU that
 * computes without ever switching is behind, and flushed. So is the CPU that asks:
 * it needs no interrupt.
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
 * freeing; lot->freeing is held across the freeing only, for reading but by
 * luf_drain_all(), which only passes through. Neither is held when anything but the
 * flush or these is waited for.
 *
 * What the architecture must promise (ARCH_SUPPORTS_LUF)
 * ------------------------------------------------------
 *  - What tlbflush_unmap_batch promises, and that a flush of a batch reaches
 *    CPUs that were added any time before. When it has returned no CPU may use
 *    an entry; it need not have dropped it yet (arch/x86/mm/early_ack.c).
 *  - Setting the dirty bit through a cached clean entry re-walks the page table
 *    and faults if the PTE is gone (x86: yes; here the entries are read-only,
 *    too).
 *  - Adding to a batch does not flush (arm64 broadcasts there: nothing to gain).
 *
 * mm/luf_debug.c checks R1 and R3 at run time; include/linux/quell_mutants.h has a
 * deliberate fault for most of what is said here.
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
 * @share:	how much of what kswapd reclaims is parked, of LUF_SHARE; it alone
 *		writes it
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
	unsigned int share;
	unsigned int nr_held;
	struct {
		struct folio *folio;
		u64 label;
	} held[LUF_HELD_MAX];
};

#define LUF_SHARE	64

static struct luf_lot *luf_lots[MAX_NUMNODES] __read_mostly;

/* Pages that a lot holds at the most; 0: see luf_lot_limit(). */
#define LUF_LOT_MAX	16384
/* Folios that reclaim holds back from the lot; its own lists are shorter. */
#define LUF_LIST_MAX	128
static unsigned long luf_lot_pages __read_mostly;

/* A stale window is closed after so many milliseconds, on an idle machine too. */
#define LUF_STALE_MIN	2
#define LUF_STALE_MAX	60000
static unsigned int luf_max_stale_ms __read_mostly = 100;

/* --- The ledger of owed flushes ------------------------------------------ */

/*
 * The CPUs of @mm owe a flush. After a PTE of @mm was cleared, under its page
 * table lock. Returns the label. See R1 for the look without a lock.
 */
static u64 luf_ledger_owe(struct luf_ledger *ledger, struct mm_struct *mm)
{
	if (!arch_luf_covered(&ledger->owing, mm) && !quell_mutant(LUF_NO_OWING)) {
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

/*
 * Up to which label is everything settled, or is so without an interrupt? This
 * CPU is flushed if that settles @oldest.
 */
static u64 luf_ledger_settled(struct luf_ledger *ledger, u64 oldest)
{
	unsigned int cpu;
	u64 label;

	/* Who holds it is just flushing. */
	if (!mutex_trylock(&ledger->mutex))
		return smp_load_acquire(&ledger->done);	/* as in luf_ledger_done() */
	label = atomic64_read(ledger->clock);
	/* The clock before the mask: a label up to it has its CPUs there. */
	smp_mb();
	cpu = get_cpu();
	if (!quell_mutant(LUF_AGED_UNCHECKED))
		/* CPUs are added meanwhile, for greater labels; none leaves. */
		label = data_race(arch_luf_least(&ledger->owing, label, cpu));
	if (arch_luf_owes(&ledger->owing, cpu) && arch_luf_behind(cpu, label)) {
		if (label >= oldest) {
			arch_luf_only(&ledger->flushing, cpu);
			if (!quell_mutant(LUF_AGED_NOT_LOCAL))
				arch_tlbbatch_flush(&ledger->flushing);
		} else {
			label = 0;
		}
	}
	put_cpu();
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
	if (quell_mutant(LUF_DONE_EARLY)) {
		/* Before the flush. */
		smp_store_release(&ledger->done, clock);
		mdelay(1);
	}
	if (behind && !quell_mutant(LUF_SKIP_FLUSH))
		arch_tlbbatch_flush(&ledger->flushing);
	if (!arch_luf_empty(&ledger->later) && !quell_mutant(LUF_DROP_LATER)) {
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

/* The least label in the lot, or one that never comes. */
static u64 luf_lot_oldest(struct luf_lot *lot)
{
	struct folio *folio;
	u64 label = U64_MAX;

	spin_lock(&lot->lock);
	folio = list_first_entry_or_null(&lot->folios, struct folio, lru);
	if (folio)
		label = (unsigned long)folio->private;
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

/*
 * How many pages the lot of a node may hold that has @managed pages: as many as
 * kswapd reclaims in one go, @high, the sum of the high watermarks, or what the
 * administrator set; but no more than 1/64 of the node, so that small nodes keep
 * their memory. kswapd's reserve is twice that.
 */
static unsigned long luf_lot_limit(unsigned long managed, unsigned long high)
{
	unsigned long limit = READ_ONCE(luf_lot_pages);

	if (!limit)
		limit = min(high, LUF_LOT_MAX);
	return min(limit, managed / 64);
}

static unsigned long luf_node_limit(struct pglist_data *pgdat)
{
	unsigned long managed = 0, low = 0, high = 0, limit;
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++) {
		struct zone *zone = &pgdat->node_zones[i];

		managed += zone_managed_pages(zone);
		low += low_wmark_pages(zone);
		high += high_wmark_pages(zone);
	}
	limit = luf_lot_limit(managed, high);
	/* What kswapd reclaims from one watermark to the other may wait for one flush. */
	return READ_ONCE(luf_lot_pages) ? limit : clamp(high - low, limit, LUF_LOT_MAX);
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
static u64 luf_owed;
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

	if (!luf_ledger_done(&luf, stale) && luf_settle_all(stale))
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
	luf_stale_label = luf_ledger_now(&luf);

	WRITE_ONCE(luf_stale_armed, false);
	/* Pairs with luf_keep_closing(). */
	smp_mb();
	more = !luf_ledger_done(&luf, READ_ONCE(luf_owed));
	for_each_node_state(nid, N_MEMORY)
		more |= luf_waits(nid);
	if (more) {
		WRITE_ONCE(luf_stale_armed, true);
		luf_arm();
	}
}

/* @mm owes a flush; see luf_ledger_owe(). */
static u64 luf_owe(struct mm_struct *mm)
{
	u64 label = luf_ledger_owe(&luf, mm);

	/* One that is lost to a lesser one is settled when its folio leaves the lot. */
	if (READ_ONCE(luf_owed) < label)
		WRITE_ONCE(luf_owed, label);
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
 * settled. Returns false if it has to be flushed instead: for want of room, or if
 * somebody other than kswapd reclaims, who may want just this folio next, as a memory
 * cgroup at its limit does.
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
	if (!current_is_kswapd() || folio_test_large(folio))
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

/* The PTEs of @folio are about to be cleared; defer their flushes if possible. */
static void luf_begin(struct folio *folio)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	unsigned char state = tlb_ubc->luf_state;

	/* What an earlier folio is owed is not forgotten. */
	if ((state & LUF_OWED) && !luf_hold(tlb_ubc->luf_folio))
		state |= LUF_KEPT;
	tlb_ubc->luf_state = (state & (LUF_KEPT | LUF_MOVING)) | LUF_UNMAPPING;
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
 *
 * For reclaim only: the caller ends with luf_park() or try_to_unmap_flush().
 * May sleep.
 */
void __luf_try_to_unmap(struct folio *folio, enum ttu_flags flags)
{
	if (!luf_may_defer_file(folio)) {
		try_to_unmap(folio, flags);
		return;
	}
	luf_begin(folio);
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
	luf_begin(folio);
	try_to_migrate(folio, flags);
	luf_end();
	/* Not for the end of the batch, like LUF_OWED and LUF_KEPT. */
	if (tlb_ubc->luf_state & LUF_OWED) {
		tlb_ubc->luf_state &= ~LUF_OWED;
		tlb_ubc->luf_state |= LUF_MOVING;
	}
}

/* Locks do not order those who raise it: one label is not lost to a lesser one. */
static void luf_raise(atomic64_t *at, s64 label)
{
	s64 old = atomic64_read(at);

	while (old < label && !atomic64_try_cmpxchg(at, &old, label))
		;
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
 * Uncharge the folios of @parked, all of @pgdat, put them into the lot, and drain
 * that if it is full. Returns how many pages these were.
 */
static unsigned long luf_put_into_lot(struct list_head *parked,
				      struct pglist_data *pgdat)
{
	int nid = pgdat->node_id;
	unsigned long nr_zone[MAX_NR_ZONES] = {};
	unsigned long nr_pages, limit;
	u64 label;

	luf_for_batches(parked, mem_cgroup_uncharge_folios);
	/* A full barrier: after all that these folios are owed. */
	label = atomic64_inc_return(&luf_clock);
	nr_pages = luf_label(parked, label, nr_zone);
	/* Counted first: a drain on another CPU may take them at once. */
	mod_node_page_state(pgdat, NR_LUF_PARKED, nr_pages);
	count_vm_events(LUF_PARK, nr_pages);
	luf_lot_add(luf_lots[nid], parked, label, nr_zone, nr_pages);
	luf_keep_closing();
	trace_luf_park(nid, nr_pages, label);

	limit = luf_node_limit(pgdat);
	if (luf_parked(nid) > limit &&
	    !luf_drain_some(nid, LUF_DRAIN_FULL, limit / 2 + 1, ULONG_MAX) &&
	    luf_parked(nid) > 2 * limit)
		/* Whoever drains is slow, and all others park: it ends here. */
		luf_drain_node(nid, LUF_DRAIN_FULL, ULONG_MAX);
	return nr_pages;
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
	unsigned long nr = 1;

	if (!(tlb_ubc->luf_state & LUF_OWED))
		return false;

	tlb_ubc->luf_state &= ~LUF_OWED;
	tlb_ubc->luf_folio = NULL;
	/* Counted where the label will be. */
	if (!list_empty(parked))
		nr += (unsigned long)list_last_entry(parked, struct folio, lru)->private;
	folio->private = (void *)nr;
	list_add_tail(&folio->lru, parked);
	if (nr == LUF_LIST_MAX) {
		/* As stock before it frees in mid-list; see also R1. */
		try_to_unmap_flush();
		luf_put_into_lot(parked, folio_pgdat(folio));
	}
	return true;
}

/*
 * kswapd gives back what needs no interrupt; with one, too, if free pages
 * are short and it is worth it. Returns whether it was any.
 */
static bool luf_kswapd_drains(struct pglist_data *pgdat, bool is_short)
{
	unsigned long enough = luf_node_limit(pgdat) / 2;
	int nid = pgdat->node_id;

	if (quell_mutant(LUF_HOARD))
		return false;
	if (is_short && luf_parked(nid) >= enough)
		return luf_drain_some(nid, LUF_DRAIN_KSWAPD, enough, ULONG_MAX);
	return luf_drain_aged(nid, ULONG_MAX);
}

/**
 * luf_park_list - put what luf_park() took into the lot
 * @parked:		folios of @pgdat; empty afterwards
 * @pgdat:		their node
 * @nr_reclaimed:	pages that were reclaimed with them, and they
 *
 * May sleep.
 */
void luf_park_list(struct list_head *parked, struct pglist_data *pgdat,
		   unsigned int nr_reclaimed)
{
	unsigned long nr_pages = 0;
	struct zone *zone = NULL;
	struct luf_lot *lot;
	unsigned int share;

	if (!list_empty(parked)) {
		zone = folio_zone(list_first_entry(parked, struct folio, lru));
		nr_pages = luf_put_into_lot(parked, pgdat);
	} else if (!static_branch_likely(&luf_key)) {
		return;
	}
	if (!current_is_kswapd() || !nr_reclaimed)
		return;
	lot = luf_lots[pgdat->node_id];
	share = lot->share - lot->share / 8;
	if (2 * nr_pages >= nr_reclaimed)
		share += LUF_SHARE / 8;
	/* Who wakes kswapd looks at it, too. */
	WRITE_ONCE(lot->share, share);
	/* It takes its time; somebody may be waiting for pages meanwhile. */
	if (zone)
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
	if (!outer)
		current->tlb_ubc.luf_state &= ~LUF_MOVING;
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
	/*
	 * A full barrier. Labels that are given out from now on are greater; the
	 * PTEs of all others are cleared, and tlb_gen raised, before the flush.
	 */
	atomic64_inc_return(&luf_clock);
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
 * Parked pages count as free ones; but kswapd wakes up when free pages are below
 * the low watermark, and with one flush there shall then be many. So it fills the
 * lot, and rests when there is as much in free pages above that watermark, where
 * these come from the last flush: then it has the time until these are used up
 * for the next. Only where most of what it reclaims is parked.
 */
bool luf_balanced(struct zone *zone, int order, unsigned long mark,
		  int highest_zoneidx)
{
	struct luf_lot *lot = luf_lots[zone_to_nid(zone)];
	unsigned long parked = lot ? READ_ONCE(lot->nr_zone[zone_idx(zone)]) : 0;
	unsigned long low = low_wmark_pages(zone);
	unsigned long free;

	if (!parked)
		return zone_watermark_ok_safe(zone, order, mark, highest_zoneidx);
	if (!zone_watermark_ok_safe(zone, order, low, highest_zoneidx))
		return false;
	free = zone_page_state(zone, NR_FREE_PAGES);
	if (READ_ONCE(lot->share) > LUF_SHARE / 2)
		mark = max(mark, low + 2 * luf_lot_limit(zone_managed_pages(zone),
							 high_wmark_pages(zone)));
	return __zone_watermark_ok(zone, order, mark, highest_zoneidx, 0,
				   free + parked);
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

/* A line of a node's meminfo in sysfs. */
int luf_report_node_meminfo(char *buf, int len, int nid)
{
	return sysfs_emit_at(buf, len, "Node %d LufParked:      %8lu kB\n", nid,
			     K(node_page_state(NODE_DATA(nid), NR_LUF_PARKED)));
}

/* A line of show_mem(). */
void luf_show_meminfo_node(int nid)
{
	pr_info("Node %d luf_parked:%lukB\n", nid,
		K(node_page_state(NODE_DATA(nid), NR_LUF_PARKED)));
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
