// SPDX-License-Identifier: GPL-2.0-only
/*
 * Large anonymous folios by default, sized by each VMA's own faults.
 *
 * Linux can back anonymous memory with folios of 16 KB and more, but each size is
 * off by default, as a size that serves one program wastes the memory of another.
 * Here an anonymous write fault gets a large folio where the pages beside it say that
 * the rest of it will be needed, and the memory that was populated and never asked
 * for is counted and bounded per process.
 *
 * Asked for
 * ---------
 * A page is *asked for* once it was written: without large folios it would be there
 * as well (a page that is only read is the zero page). The hardware tells: of a folio
 * that is allocated here, only the PTE that faulted is dirty, the others are clean
 * and writable, and the CPU sets the dirty bit with the first write. That bit is not
 * lost while the page is mapped: wrprotect, fork and migration keep it (but migration
 * where CPUs are limited by L1TF: there a page counts as unasked again). So the pages
 * that are *unasked* are the clean PTEs of anonymous folios, and anybody can count
 * them: /proc/PID/smaps shows them as Private_Clean, or Shared_Clean where fork shares
 * them. Clean PTEs of anonymous memory are nothing new to reclaim (add_to_swap() marks
 * the folio dirty) nor to anything else, as KSM, MADV_FREE and reads of swapped memory
 * make them.
 *
 * Kconfig asks for x86, where the hardware sets dirty bits. Elsewhere a write may be a
 * fault, which is what is to be saved.
 *
 * Which order
 * -----------
 * The *run* is what was asked for directly before the faulting page (or behind it,
 * for those who go backwards), page after page, as the page table tells. A block of
 * 2^k pages that starts at the faulting page (or ends there) is allocated if the run is
 * as long as the block: what is populated ahead is never more than what was just
 * used. So memory that is filled from one end gets single pages, 16 KB, 32 KB and
 * 64 KB within its first 64 KB; and as the page table is asked, and not what happened
 * last, many streams in one VMA do not disturb each other. What does not fill memory
 * page by page gets single pages: random and strided accesses, stacks, sparse arenas.
 *
 * The VMA's own history, its *score*, moves that by one order. Faults next to what was
 * last allocated in the VMA, and those with a run, raise it: half of a run is enough
 * then. Isolated ones lower it: twice a run is needed, as in a VMA that is touched at
 * random runs come about by chance. If the block that the run should consist of was
 * mostly not asked for, the score falls by twice its greatest value: after two of them
 * at the latest the VMA gets single pages, until many faults in a row have been
 * neighbours.
 *
 * Races: the score and what was last allocated are one word of the VMA, that faults
 * read and write under the VMA's lock or the mmap lock for reading, that is: at the
 * same time. An update may be lost, and a fault may see that of another one. That is
 * harmless: the word is only a hint for how long a run has to be. It is never used
 * as an address, and the bound does not depend on it. fork, split and merge copy it, or
 * not.
 *
 * The bound
 * ---------
 * For each process (mm): unasked pages never are more than a share of its anonymous
 * memory, or a fixed slack if that is more, at any time when a folio is allocated
 * here. Later they only become fewer, by being written or unmapped, while the process
 * may unmap what it asked for. By construction, as follows.
 *
 * mm->folio_order.unasked is at least the number of unasked pages that are mapped. For
 * a folio of n pages n - 1 are *charged*; the charge is written into folio->private
 * (the *token*; its bit 63 is in no swap entry, which is what that field has
 * while the folio is in the swap cache). Before the allocation they are reserved: one
 * atomic addition, whose result is compared with the bound, so that concurrent faults
 * cannot pass it together. With the PTEs, under the page table lock, the reservation
 * becomes a charge: first the charge is added, then the reservation is taken off,
 * and those who reserve look at them in the other order.
 *
 * A charge is only taken off when it was seen that it is not due, and only by
 * whoever changes the token with cmpxchg(), under the page table lock of a PTE that
 * maps the folio, so that it cannot be freed:
 *
 * - A fault next to the folio counts how many pages of it were asked for. The token
 *   keeps the charge of the others.
 * - A fault that the bound would refuse a folio does the same for the last few blocks
 *   that the process got. Memory that is not filled from one end (a heap, tables)
 *   otherwise keeps the charge of what was long written to, as no fault comes beside
 *   it any more, and the bound would be spent on that. Where these are is only a
 *   hint, written without a lock: what is there is found out under the page table
 *   lock, in a VMA that is locked or is tried to be.
 * - zap of all of the folio in one go. If somebody else maps it (fork), or a part of
 *   it is left or went before, then nothing is taken off: the rest may be
 *   migration entries, which come back.
 *
 * Whatever else may happen to a folio (split, migration, swap, copy on write, a part
 * of it unmapped) loses the token and not the charge. So the error is on the safe
 * side, and it adds up; when the bound has refused many allocations, a *recount*
 * walks the page tables, under the mmap lock for reading:
 *
 *	take the mmap lock
 *	a0 = added
 *	under each page table lock: count clean anonymous PTEs
 *	epoch++
 *	release the mmap lock; wait for an RCU grace period
 *	unasked = counted + added - a0
 *
 * "added" is the sum of all charges there ever were, and is raised before "unasked"
 * and before the PTEs are set, under the page table lock. A page that is unasked in the
 * end was counted, or its PTE was set behind the walker's back: then it is in added -
 * a0. It may be in both: the safe side. mremap() and fork are kept out by the mmap
 * lock; UFFDIO_MOVE is not, and raises "added" for each page, under both page table
 * locks.
 *
 * What is not counted must not be taken off later either. A token is stamped with the
 * process's *epoch* when the folio is allocated, and is worth nothing in another one.
 * So whatever was stamped before the end of the walk is dead, whether the walker saw
 * it or not. It did not see what a munmap() that began before is still zapping, as that
 * holds the mmap lock for reading only by then, and its VMAs are out of the tree. The
 * grace period is for those who compared the epochs before; they hold a page table
 * lock, which is an RCU reader. What they take off until then lowers the old number,
 * and the new one does not depend on that. What is stamped since is charged since, so it
 * is in added - a0.
 *
 * The walk is given up when somebody waits for the mmap lock: then all stays as it was,
 * and unasked still is an upper bound.
 *
 * The bound is for what was not swapped out since. A recount finds no swapped pages, and
 * when one is read again, others of a folio that still is in the swap cache are mapped
 * with it, as swapoff maps all, for nobody's asking.
 *
 * fork: the child maps what the parent maps, so it gets the parent's charges and its
 * epoch, once all page tables were copied. A token is worth one charge in each of
 * them, until a recount of theirs; who drops it leaves the other one's in place.
 * Nobody sees a token with a later epoch than he had when he was forked, but his own.
 *
 * Not seen as asked for are writes that do not go through the process's page table:
 * of devices, and of a guest of KVM; and MAP_POPULATE, which writes nothing. Such
 * memory gets single pages, mostly.
 *
 * mlock() populates the whole VMA, so all of that is asked for from the beginning: while
 * it does, such VMAs get the largest folio that fits into what is populated, and nothing
 * is charged. Other faults of the kernel's in such a VMA, on holes that were made later,
 * are like any. So what a task populates is noted, on its stack, with a pointer to it in
 * a table of a few places that is written without a lock. The task takes it out again
 * before it returns, and what is in its place counts if it is on its own stack: what
 * another task populates is never taken for its own.
 *
 * Swap-in
 * -------
 * Where a page is read at once from a swap device (RAM disk, zram), not by way of the swap
 * cache, and a run of pages beside it was used, a block of at most 64 KB comes back in one
 * go, if the run is as long. All of it was asked for once, so nothing is charged; that it
 * is asked for again is what the run says. Used means young here: who reads again asks as
 * well. All PTEs but the one that faulted are old and clean, so what nobody uses is no run
 * for the next block, and what comes back for nothing is less than what was used beside
 * it, and less than 64 KB on either side of it. (What Linux maps as a whole from the swap
 * cache is young as a whole: that is good for one block more.) A hinting fault of NUMA
 * balancing makes only the page young that it is for: folio_order_hinted(). Only blocks next
 * to what came last raise the VMA's score, others lower it, so that one that comes back
 * again and again for nothing needs a longer run each time, up to twice. In a recount clean
 * PTEs of what was read so count as unasked: the safe side.
 *
 * Only block devices: of a swap file, neighbours need not be neighbours on the disk, and a
 * folio is read in one piece. Only pages that nobody else has in swap, as what is
 * shared comes back once for all through the swap cache. Not with version 1 of memory
 * cgroups: do_swap_page() uncharges the entries of a block there as those of one owner,
 * before it sees that one of them is somebody else's by now.
 *
 * Where a block cannot be read, nobody knows which page it is. The VMA gets single pages
 * then, and the fault comes again. Who faults beside it may have read the score before;
 * he does not store what he makes of it if it has changed since, so that it takes SCORE_BURNT
 * - SCORE_MIN faults until a block is tried again. The sizes that the administrator chose
 * are as in Linux, SIGBUS included. do_swap_page() comes to this only if it found no folio
 * in the swap cache: one that was in it may be mapped in part, and may have been taken out
 * of it in the meantime.
 *
 * What else looks at these folios
 * -------------------------------
 * A device, or whoever else has pinned a page, may write to it through no PTE, and need
 * not set the folio's dirty flag in time. In stock another process that shares the page
 * after fork has a dirty PTE, so that MADV_FREE of the one does not lose what the other
 * has. Here that may be clean, too, whatever the PTE of the one says; so MADV_FREE
 * leaves folios alone that others map. It asks so under the folio lock, for every folio
 * (folio_order_may_hide()): without it the others' PTEs may be migration entries, which
 * are not counted.
 * add_to_swap_cache() sets folio->swap before the flag that says that it is there,
 * as a token is no swap entry.
 *
 * The bound is as exact as get_mm_counter(), which may be off by some pages for
 * each CPU.
 */
#include <linux/atomic.h>
#include <linux/bitfield.h>
#include <linux/bitops.h>
#include <linux/cgroup.h>
#include <linux/gfp.h>
#include <linux/hash.h>
#include <linux/init.h>
#include <linux/jump_label.h>
#include <linux/kobject.h>
#include <linux/memcontrol.h>
#include <linux/mempolicy.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmap_lock.h>
#include <linux/mmzone.h>
#include <linux/pagewalk.h>
#include <linux/pgtable.h>
#include <linux/quell.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/sched/task_stack.h>
#include <linux/seq_file.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/swap.h>
#include <linux/swapops.h>
#include <linux/sysfs.h>
#include <linux/userfaultfd_k.h>
#include <linux/vmstat.h>
#include <linux/workqueue.h>
#include <linux/zswap.h>
#include "internal.h"
#include "folio_order.h"
#include "swap.h"

/* Off until folio_order_init(). */
DEFINE_STATIC_KEY_FALSE(folio_order_key);

/* Unasked pages of a process: so many of 1000 of its anonymous pages. */
static unsigned int folio_order_permille __read_mostly = 20;
/* ... or so many kB, if that is more. */
static unsigned int folio_order_slack_kb __read_mostly = 128;
/* The orders whose mTHP control the administrator has set: not ours. */
static unsigned long folio_order_manual __read_mostly;

/* --- The policy: no side effects, see tests/folio_order-kunit.h ------------ */

/* The smallest large order of anonymous memory, and the largest without an opt-in. */
#define FOLIO_ORDER_MIN		2
#define FOLIO_ORDER_64K		((unsigned int)ilog2(SZ_64K) - PAGE_SHIFT)

/* A VMA's score. */
#define SCORE_MAX		8
#define SCORE_WARM		2	/* from here on half a run is enough */
#define SCORE_COLD		(-4)	/* from here down twice a run is needed */
#define SCORE_BURNT		(-8)	/* below, there are only single pages */
#define SCORE_MIN		(-64)
#define SCORE_UNUSED		16	/* what a block that was not used costs */

/*
 * The word of a VMA: its score, and the order and first page of what was last
 * allocated in it. 0 is a new VMA.
 */
#define STATE_ORDER_SHIFT	8
#define STATE_PAGE_SHIFT	12

enum folio_order_side {
	FOLIO_ORDER_NONE,	/* no block begins or ends here */
	FOLIO_ORDER_FORWARD,	/* blocks begin here: the run is before */
	FOLIO_ORDER_BACKWARD,	/* blocks end here: the run is behind */
};

static int state_score(unsigned long state)
{
	return (s8)state;
}

static unsigned int state_order(unsigned long state)
{
	return (state >> STATE_ORDER_SHIFT) & 0xf;
}

static unsigned long state_page(unsigned long state)
{
	return state >> STATE_PAGE_SHIFT;
}

static unsigned long state_make(int score, unsigned long page, unsigned int order)
{
	return page << STATE_PAGE_SHIFT | (unsigned long)order << STATE_ORDER_SHIFT |
	       (u8)score;
}

/* Is @page next to what was last allocated? */
static bool state_near(unsigned long state, unsigned long page)
{
	unsigned long first = state_page(state);

	return page == first + BIT(state_order(state)) || page + 1 == first;
}

static enum folio_order_side folio_order_side(unsigned long page)
{
	unsigned long mask = BIT(FOLIO_ORDER_MIN) - 1;

	if (!(page & mask))
		return FOLIO_ORDER_FORWARD;
	if (!((page + 1) & mask))
		return FOLIO_ORDER_BACKWARD;
	return FOLIO_ORDER_NONE;
}

/* The highest of @orders that is below @order; 0 if there is none. */
static unsigned int folio_order_below(unsigned long orders, unsigned int order)
{
	orders &= BIT(order) - 1;
	return orders ? __fls(orders) : 0;
}

/* So long a run says all, if @orders are allowed. */
static unsigned int folio_order_longest(int score, unsigned long orders)
{
	return BIT(__fls(orders) + (score <= SCORE_COLD));
}

/* The first page of a block of @order at @page. */
static unsigned long folio_order_first(unsigned long page, unsigned int order,
				       enum folio_order_side side)
{
	return side == FOLIO_ORDER_FORWARD ? page : page + 1 - BIT(order);
}

/*
 * The order for a fault on @page, whose neighbours on @side are a run of @run pages.
 * 0, or one of @orders.
 */
static unsigned int folio_order_choose(int score, unsigned long page, unsigned int run,
				       enum folio_order_side side, unsigned long orders)
{
	unsigned int aligned, order;

	if (!run || side == FOLIO_ORDER_NONE || score < SCORE_BURNT)
		return 0;
	order = __fls(run);
	if (score >= SCORE_WARM)
		order++;
	else if (score <= SCORE_COLD)
		order -= min(order, 1U);
	/* Page 0 is never mapped by such a VMA, but it is not defined what this is. */
	aligned = __ffs((side == FOLIO_ORDER_FORWARD ? page : page + 1) |
			BIT(BITS_PER_LONG - 1));
	return folio_order_below(orders, min(order, aligned) + 1);
}

/*
 * The word after a fault on @page, which got @order from @first on. @run: a run beside it
 * raises the score by itself; without, only what is next to what was allocated last.
 * @unused: the block beside it was mostly not asked for.
 */
static unsigned long folio_order_note(unsigned long state, unsigned long page,
				      unsigned long first, unsigned int order,
				      bool run, bool unused)
{
	int score = state_score(state);

	if (unused)
		score = max(score - SCORE_UNUSED, SCORE_MIN);
	else if ((run && order) || state_near(state, page))
		score = min(score + 1, SCORE_MAX);
	else if (score > SCORE_COLD)
		score--;
	else if (score == SCORE_COLD && !order)
		/* Random: spare the others the cache line. Runs lead out of here. */
		return state;
	return state_make(score, first, order);
}

/* May a process with @rss anonymous pages have @unasked that it did not ask for? */
static bool folio_order_fits(unsigned long unasked, unsigned long rss,
			     unsigned int permille, unsigned int slack_kb)
{
	unsigned long share = rss * permille / 1000;

	if (!permille)
		return false;
	return unasked <= max(share, (unsigned long)slack_kb * SZ_1K / PAGE_SIZE);
}

/* --- Charges ------------------------------------------------------------- */

/* folio->private: a charge, of so many pages, of a folio that had this order. */
#define TOKEN			BIT(BITS_PER_LONG - 1)
#define TOKEN_UNUSED		BIT(BITS_PER_LONG - 2)	/* held against the VMA */
/* Enough for a recount per millisecond for eight years. */
#define TOKEN_EPOCH		GENMASK(BITS_PER_LONG - 3, 24)
#define TOKEN_ORDER		GENMASK(23, 16)
#define TOKEN_CHARGE		GENMASK(15, 0)

static unsigned long token_make(unsigned long epoch, unsigned int order,
				unsigned int charge)
{
	return TOKEN | FIELD_PREP(TOKEN_EPOCH, epoch) | FIELD_PREP(TOKEN_ORDER, order) |
	       charge;
}

static unsigned long folio_token(struct folio *folio)
{
	unsigned long token = (unsigned long)READ_ONCE(folio->private);

	return token & TOKEN ? token : 0;
}

static bool folio_change_token(struct folio *folio, unsigned long token,
			       unsigned long new)
{
	return cmpxchg(&folio->private, (void *)token, (void *)new) == (void *)token;
}

/* Reserve @nr pages, if the process may have them unasked. */
static bool folio_order_reserve(struct mm_struct *mm, unsigned int nr)
{
	long unasked = atomic_long_add_return(nr, &mm->folio_order.reserved);

	unasked += atomic_long_read(&mm->folio_order.unasked);
	if (folio_order_fits(unasked, get_mm_counter(mm, MM_ANONPAGES),
			     READ_ONCE(folio_order_permille),
			     READ_ONCE(folio_order_slack_kb)))
		return true;
	atomic_long_sub(nr, &mm->folio_order.reserved);
	return false;
}

static void folio_order_unreserve(struct mm_struct *mm, unsigned int nr)
{
	atomic_long_sub(nr, &mm->folio_order.reserved);
}

/*
 * Lower the charge of @folio from that in @token to @charge. Under the page table
 * lock of a PTE that maps it. Does nothing if that is not lower.
 */
static void folio_order_settle(struct mm_struct *mm, struct folio *folio,
			       unsigned long token, unsigned int charge)
{
	unsigned int was = token & TOKEN_CHARGE;
	unsigned long new = 0;

	/* That of a folio that was split is for the other pieces as well. */
	if (charge >= was || FIELD_GET(TOKEN_ORDER, token) != folio_order(folio) ||
	    FIELD_GET(TOKEN_EPOCH, token) != READ_ONCE(mm->folio_order.epoch))
		return;
	if (charge)
		new = (token & ~TOKEN_CHARGE) | charge;
	if (folio_change_token(folio, token, new))
		atomic_long_sub(was - charge, &mm->folio_order.unasked);
}

/**
 * __folio_order_charge - what a fault has reserved for a folio
 * @folio:	a large one that the fault has allocated; not on an LRU list, as reclaim
 *		may put a swap entry over the token
 *
 * Return: pages; 0 if it is none of ours, or was asked for as a whole.
 */
unsigned int __folio_order_charge(struct folio *folio)
{
	return folio_token(folio) & TOKEN_CHARGE;
}

/**
 * __folio_order_set_ptes - set_ptes() for a folio of __folio_order_alloc()
 * @vmf:	the fault; its page table is locked, and vmf->pte is @addr's
 * @addr:	where the folio starts
 * @entry:	for the page that was asked for, but with the folio's first page in it
 * @nr:		the folio's pages
 * @charge:	of folio_order_charge(), more than 0
 */
void __folio_order_set_ptes(struct vm_fault *vmf, unsigned long addr, pte_t entry,
			    unsigned int nr, unsigned int charge)
{
	unsigned int at = (vmf->address - addr) >> PAGE_SHIFT;
	struct mm_struct *mm = vmf->vma->vm_mm;
	unsigned int at_recent;
	pte_t clean;

	at_recent = READ_ONCE(mm->folio_order.next);
	WRITE_ONCE(mm->folio_order.recent[at_recent % FOLIO_ORDER_RECENT], addr);
	WRITE_ONCE(mm->folio_order.next, at_recent + 1);

	atomic_long_add(charge, &mm->folio_order.added);
	/* Pairs with that of a recount: see the head comment. */
	smp_mb__after_atomic();
	atomic_long_add(charge, &mm->folio_order.unasked);
	/* Pairs with atomic_long_add_return() in folio_order_reserve(). */
	smp_mb__after_atomic();
	folio_order_unreserve(mm, charge);

	/* Old, too: what was not used is no run when it comes back from swap. */
	clean = pte_mkold(pte_mkclean(entry));
	if (at)
		set_ptes(mm, addr, vmf->pte, clean, at);
	set_ptes(mm, addr + at * PAGE_SIZE, vmf->pte + at,
		 pte_advance_pfn(entry, at), 1);
	at++;
	if (at < nr)
		set_ptes(mm, addr + at * PAGE_SIZE, vmf->pte + at,
			 pte_advance_pfn(clean, at), nr - at);
}

/**
 * __folio_order_release - a folio of __folio_order_alloc() is not used
 * @mm:		the process
 * @folio:	any large folio that the fault allocated
 */
void __folio_order_release(struct mm_struct *mm, struct folio *folio)
{
	folio_order_unreserve(mm, __folio_order_charge(folio));
}

/**
 * __folio_order_zap - PTEs of a large folio are about to be zapped
 * @mm:		the process
 * @folio:	the folio
 * @nr:		so many PTEs
 *
 * Under the page table lock.
 */
void __folio_order_zap(struct mm_struct *mm, struct folio *folio, unsigned int nr)
{
	unsigned long token;

	if (!folio_test_anon(folio) || nr != folio_nr_pages(folio) ||
	    folio_mapcount(folio) != nr)
		return;
	token = folio_token(folio);
	if (token)
		folio_order_settle(mm, folio, token, 0);
}

/**
 * folio_order_dup - the child's charges after fork
 * @mm:		the child's; nobody else knows it
 * @oldmm:	the parent's; its page tables were copied, the mmap lock is held for writing
 */
void folio_order_dup(struct mm_struct *mm, struct mm_struct *oldmm)
{
	atomic_long_set(&mm->folio_order.unasked,
			atomic_long_read(&oldmm->folio_order.unasked));
	atomic_long_set(&mm->folio_order.reserved, 0);
	atomic_long_set(&mm->folio_order.added, 0);
	mm->folio_order.epoch = READ_ONCE(oldmm->folio_order.epoch);
	mm->folio_order.refused = 0;
	mm->folio_order.busy = 0;
	mm->folio_order.next = 0;
	mm->folio_order.wait = 0;
	memset(mm->folio_order.recent, 0, sizeof(mm->folio_order.recent));
}

/**
 * folio_order_status - the process's line in /proc/PID/status
 * @m:		the file
 * @mm:		the process
 */
void folio_order_status(struct seq_file *m, struct mm_struct *mm)
{
	long unasked = atomic_long_read(&mm->folio_order.unasked);

	seq_put_decimal_ull_width(m, "AnonUnasked:\t",
				  max(unasked, 0L) << (PAGE_SHIFT - 10), 8);
	seq_puts(m, " kB\n");
}

/* --- Recount ------------------------------------------------------------- */

struct folio_order_recount {
	struct work_struct work;
	struct mm_struct *mm;
	unsigned long unasked;		/* pages, so far */
	unsigned long vma_unasked;	/* of folios with a token, in this VMA */
	unsigned long vma_large;	/* PTEs of such folios */
};

/* Under the page table lock. */
static void folio_order_count(struct folio_order_recount *recount,
			      struct vm_area_struct *vma, unsigned long addr, pte_t pte)
{
	struct folio *folio;
	bool clean;

	if (pte_present(pte)) {
		folio = vm_normal_folio(vma, addr, pte);
		clean = !pte_dirty(pte);
	} else {
		swp_entry_t entry;

		if (pte_none(pte))
			return;
		entry = pte_to_swp_entry(pte);
		if (!is_migration_entry(entry) &&
		    !is_device_exclusive_entry(entry))
			return;
		folio = pfn_swap_entry_folio(entry);
		clean = !is_migration_entry(entry) ||
			!is_migration_entry_dirty(entry);
	}
	if (!folio || !folio_test_anon(folio) || folio_test_ksm(folio))
		return;
	if (folio_test_large(folio)) {
		if (folio_token(folio)) {
			recount->vma_large++;
			recount->vma_unasked += clean;
		}
	} else if (!folio_test_swapbacked(folio) ||
		   (folio_test_swapcache(folio) && !folio_test_dirty(folio))) {
		/* Freed lazily, or swapped out and read again; dirty: not yet out. */
		return;
	}
	recount->unasked += clean;
}

static int folio_order_recount_pmd(pmd_t *pmd, unsigned long addr, unsigned long end,
				   struct mm_walk *walk)
{
	struct folio_order_recount *recount = walk->private;
	spinlock_t *ptl;	/* of @pmd */
	pte_t *start, *pte;

	/* Somebody waits; or there is nobody left, and it is torn down after this. */
	if (mmap_lock_is_contended(walk->mm) || atomic_read(&walk->mm->mm_users) == 1)
		return -EAGAIN;
	start = pte_offset_map_lock(walk->mm, pmd, addr, &ptl);
	/* Nothing, or huge; and that is never clean. */
	if (!start)
		return 0;
	for (pte = start; addr != end; pte++, addr += PAGE_SIZE)
		folio_order_count(recount, walk->vma, addr, ptep_get(pte));
	pte_unmap_unlock(start, ptl);
	cond_resched();
	return 0;
}

static int folio_order_recount_test(unsigned long start, unsigned long end,
				    struct mm_walk *walk)
{
	return !vma_is_anonymous(walk->vma) || !walk->vma->anon_vma;
}

static int folio_order_recount_pre(unsigned long start, unsigned long end,
				   struct mm_walk *walk)
{
	struct folio_order_recount *recount = walk->private;

	recount->vma_unasked = 0;
	recount->vma_large = 0;
	return 0;
}

/* The VMA learns from what was found. */
static void folio_order_recount_post(struct mm_walk *walk)
{
	struct folio_order_recount *recount = walk->private;
	unsigned long state = READ_ONCE(walk->vma->folio_order);

	if (recount->vma_unasked * 2 <= recount->vma_large || !recount->vma_large)
		return;
	state = state_make(SCORE_MIN, state_page(state), state_order(state));
	WRITE_ONCE(walk->vma->folio_order, state);
	count_vm_event(FOLIO_ORDER_UNUSED);
}

static const struct mm_walk_ops folio_order_recount_ops = {
	.test_walk	= folio_order_recount_test,
	.pre_vma	= folio_order_recount_pre,
	.post_vma	= folio_order_recount_post,
	.pmd_entry	= folio_order_recount_pmd,
	.walk_lock	= PGWALK_RDLOCK,
};

/* Drops the reference that keeps @recount->mm's page tables. */
static void folio_order_recount(struct folio_order_recount *recount)
{
	struct mm_struct *mm = recount->mm;
	long a0, old, new;
	int err;

	mmap_read_lock(mm);
	a0 = atomic_long_read(&mm->folio_order.added);
	/* A charge is in a0, or its PTEs are set after the walker came by. */
	smp_mb();
	err = walk_page_range(mm, 0, -1, &folio_order_recount_ops, recount);
	/* Nobody else does this: see folio_order_refused(). */
	if (!err)
		WRITE_ONCE(mm->folio_order.epoch, mm->folio_order.epoch + 1);
	mmap_read_unlock(mm);
	mmput(mm);
	if (err)
		return;

	/* Those who have not seen the new epoch are done then. */
	synchronize_rcu();
	old = atomic_long_read(&mm->folio_order.unasked);
	do {
		/* Pairs with smp_mb__after_atomic() where both are raised. */
		smp_mb();
		new = recount->unasked + atomic_long_read(&mm->folio_order.added) - a0;
		/* That there are no more is known already. */
		new = min(new, old);
	} while (!atomic_long_try_cmpxchg(&mm->folio_order.unasked, &old, new));
	count_vm_event(FOLIO_ORDER_RECOUNT);
}

static void folio_order_recount_work(struct work_struct *work)
{
	struct folio_order_recount *recount =
		container_of(work, struct folio_order_recount, work);
	struct mm_struct *mm = recount->mm;

	if (mmget_not_zero(mm)) {
		folio_order_recount(recount);
		WRITE_ONCE(mm->folio_order.refused, 0);
		/* After the new number: one at a time. */
		smp_store_release(&mm->folio_order.busy, 0);
	}
	mmdrop(mm);
	kfree(recount);
}

/*
 * The bound refused a folio. What a recount costs is made up for by single faults:
 * one for each few pages that it looks at.
 */
static void folio_order_refused(struct mm_struct *mm)
{
	unsigned int refused = READ_ONCE(mm->folio_order.refused) + 1;
	struct folio_order_recount *recount;

	count_vm_event(FOLIO_ORDER_BOUND);
	WRITE_ONCE(mm->folio_order.refused, refused);
	if (refused < 64 + get_mm_counter(mm, MM_ANONPAGES) / 16 ||
	    READ_ONCE(mm->folio_order.busy) || cmpxchg(&mm->folio_order.busy, 0, 1))
		return;
	recount = kzalloc(sizeof(*recount), GFP_NOWAIT | __GFP_NOWARN);
	if (!recount) {
		WRITE_ONCE(mm->folio_order.busy, 0);
		return;
	}
	INIT_WORK(&recount->work, folio_order_recount_work);
	recount->mm = mm;
	mmgrab(mm);
	queue_work(system_unbound_wq, &recount->work);
}

/* --- Faults -------------------------------------------------------------- */

/* The orders that this VMA may have from here. */
static unsigned long folio_order_allowed(struct vm_area_struct *vma)
{
	unsigned int most = min(arch_wants_anon_folio_order(), FOLIO_ORDER_64K);
	unsigned long orders;

	/* transparent_hugepage/enabled is "never". */
	if (!hugepage_global_enabled())
		return 0;
	if (vma->vm_flags & VM_HUGEPAGE)
		most = PMD_ORDER - 1;
	orders = (BIT(most + 1) - 1) & THP_ORDERS_ALL_ANON &
		 ~READ_ONCE(folio_order_manual);
	if (!orders)
		return 0;
	/* VM_NOHUGEPAGE, PR_SET_THP_DISABLE, and what else is not to have any. */
	return __thp_vma_allowable_orders(vma, vma->vm_flags, TVA_IN_PF, orders);
}

/* Reclaim is at work, or will be soon: kswapd goes on until this is false. */
static bool folio_order_pressure(int nid, unsigned int order)
{
	pg_data_t *pgdat = NODE_DATA(nid);
	int i;

	for (i = gfp_zone(GFP_HIGHUSER_MOVABLE); i >= 0; i--) {
		struct zone *zone = &pgdat->node_zones[i];

		if (managed_zone(zone) &&
		    zone_watermark_ok(zone, 0, high_wmark_pages(zone) + BIT(order),
				      gfp_zone(GFP_HIGHUSER_MOVABLE), 0))
			return false;
	}
	return true;
}

/* The VMA's policy may want another node: is reclaim at work there? */
static bool folio_order_far_pressure(struct folio *folio)
{
	if (folio_nid(folio) == numa_mem_id() ||
	    !folio_order_pressure(folio_nid(folio), folio_order(folio)))
		return false;
	count_vm_event(FOLIO_ORDER_PRESSURE);
	return true;
}

/*
 * A large folio is not worth it if single pages are nearer. A policy that binds says itself
 * how far it may be, and Linux warns if one node of it is asked for; it need not be this.
 */
static gfp_t folio_order_gfp(struct vm_area_struct *vma)
{
	gfp_t gfp = GFP_TRANSHUGE_LIGHT | __GFP_THISNODE;
#ifdef CONFIG_NUMA
	struct mempolicy *pol;
	pgoff_t ilx;

	/* Of all of the VMA, as it is anonymous, and not changed while that is locked. */
	pol = get_vma_policy(vma, vma->vm_start, 0, &ilx);
	if (pol->mode == MPOL_BIND)
		gfp &= ~__GFP_THISNODE;
	mpol_cond_put(pol);
#endif
	return gfp;
}

static bool folio_order_asked(pte_t pte)
{
	return pte_present(pte) && pte_dirty(pte);
}

/* What comes back from swap is asked for by reading it, too. */
static bool folio_order_used(pte_t pte)
{
	return pte_present(pte) && pte_young(pte);
}

/*
 * @pte, a present one, may be that of the last page of a block of ours, or of the first
 * (@side as seen from a fault beside it): count how many pages of the block were
 * asked for, and charge the others only. Returns the folio, or NULL if there is no
 * such block, or not in one piece. Under the page table lock.
 */
static struct folio *folio_order_resettle(struct vm_area_struct *vma, unsigned long addr,
					  pte_t *pte, enum folio_order_side side,
					  unsigned int *unasked)
{
	struct folio *folio = vm_normal_folio(vma, addr, ptep_get(pte));
	unsigned long token, nr, i, asked = 0, index = pte_index(addr);
	pte_t *first;

	if (!folio || !folio_test_anon(folio) || !folio_test_large(folio))
		return NULL;
	token = folio_token(folio);
	if (!token)
		return NULL;

	nr = folio_nr_pages(folio);
	if (side == FOLIO_ORDER_FORWARD) {
		if (index + 1 < nr)
			return NULL;
		first = pte - (nr - 1);
	} else {
		if (index + nr > PTRS_PER_PTE)
			return NULL;
		first = pte;
	}
	/* Is it there in one piece? */
	if (!pte_present(ptep_get(first)) ||
	    pte_pfn(ptep_get(first)) != folio_pfn(folio) ||
	    !pte_present(ptep_get(first + nr - 1)) ||
	    pte_pfn(ptep_get(first + nr - 1)) != folio_pfn(folio) + nr - 1)
		return NULL;
	/* A page of it may have been moved away, and another one be there. */
	for (i = 0; i < nr; i++) {
		pte_t one = ptep_get(first + i);

		asked += folio_order_asked(one) && pte_pfn(one) == folio_pfn(folio) + i;
	}
	*unasked = nr - asked;
	folio_order_settle(vma->vm_mm, folio, token, *unasked);
	return folio;
}

/*
 * The same for the page beside the faulting one. Returns whether it is for the first
 * time that less than half of the block is asked for.
 */
static bool folio_order_inspect(struct vm_area_struct *vma, unsigned long addr,
				pte_t *pte, enum folio_order_side side)
{
	struct folio *folio;
	unsigned int unasked;
	unsigned long token;

	folio = folio_order_resettle(vma, addr, pte, side, &unasked);
	if (!folio || unasked * 2 <= folio_nr_pages(folio))
		return false;
	token = folio_token(folio);
	return token && !(token & TOKEN_UNUSED) &&
	       folio_change_token(folio, token, token | TOKEN_UNUSED);
}

/* Is there no page beside the fault, as far as can be told without a lock? */
static bool folio_order_alone(struct vm_fault *vmf, enum folio_order_side side)
{
	unsigned long addr = vmf->address & PAGE_MASK;
	bool alone;
	pte_t *pte;

	addr += side == FOLIO_ORDER_FORWARD ? -PAGE_SIZE : PAGE_SIZE;
	if (addr < vmf->vma->vm_start || addr >= vmf->vma->vm_end)
		return true;
	/* In another page table: look. */
	if ((addr ^ vmf->address) & PMD_MASK)
		return false;
	pte = pte_offset_map(vmf->pmd, addr);
	if (!pte)
		return true;
	alone = !pte_present(ptep_get_lockless(pte));
	pte_unmap(pte);
	return alone;
}

/*
 * The run of pages beside the fault for which @is is true, counted up to @longest or a
 * bit more, and no further than its page table. @unused: the block there was mostly not
 * asked for; NULL if that does not matter.
 */
static unsigned int folio_order_look(struct vm_fault *vmf, enum folio_order_side side,
				     unsigned int longest, bool (*is)(pte_t pte),
				     bool *unused)
{
	bool forward = side == FOLIO_ORDER_FORWARD;
	unsigned long addr = vmf->address & PAGE_MASK;
	struct vm_area_struct *vma = vmf->vma;
	pmd_t *pmd = vmf->pmd;
	unsigned int run = 0;
	unsigned long room;
	spinlock_t *ptl;	/* of @pmd */
	pte_t *pte;

	if (forward) {
		if (addr == vma->vm_start)
			return 0;
		addr -= PAGE_SIZE;
		room = min((addr - vma->vm_start) / PAGE_SIZE, pte_index(addr)) + 1;
	} else {
		addr += PAGE_SIZE;
		if (addr >= vma->vm_end)
			return 0;
		room = min((vma->vm_end - addr) / PAGE_SIZE,
			   PTRS_PER_PTE - pte_index(addr));
	}
	room = min(room, (unsigned long)longest);

	if ((addr ^ vmf->address) & PMD_MASK) {
		pmd = mm_find_pmd(vma->vm_mm, addr);
		if (!pmd)
			return 0;
	}
	pte = pte_offset_map_lock(vma->vm_mm, pmd, addr, &ptl);
	if (!pte)
		return 0;
	if (forward) {
		while (run < room && is(ptep_get(pte - run)))
			run++;
	} else {
		while (run < room && is(ptep_get(pte + run)))
			run++;
	}
	if (unused && pte_present(ptep_get(pte)))
		*unused = folio_order_inspect(vma, addr, pte, side);
	pte_unmap_unlock(pte, ptl);
	return run;
}

/*
 * Settle the block that was allocated at @addr, if it still is there. Returns whether
 * it is worth another look later. @vma or the mm is locked, for reading.
 */
static bool folio_order_settle_block(struct vm_area_struct *vma, unsigned long addr)
{
	unsigned int unasked = 0;
	spinlock_t *ptl;	/* of @pmd */
	pmd_t *pmd;
	pte_t *pte;

	pmd = mm_find_pmd(vma->vm_mm, addr);
	if (!pmd)
		return false;
	pte = pte_offset_map_lock(vma->vm_mm, pmd, addr, &ptl);
	if (!pte)
		return false;
	if (pte_present(ptep_get(pte)))
		folio_order_resettle(vma, addr, pte, FOLIO_ORDER_BACKWARD, &unasked);
	pte_unmap_unlock(pte, ptl);
	return unasked;
}

/* The same for a block of any VMA of the process. */
static bool folio_order_settle_at(struct vm_fault *vmf, unsigned long addr)
{
	struct vm_area_struct *vma = vmf->vma;
	bool later;

	if (addr >= vma->vm_start && addr < vma->vm_end)
		return folio_order_settle_block(vma, addr);
	if (!(vmf->flags & FAULT_FLAG_VMA_LOCK)) {
		vma = vma_lookup(vma->vm_mm, addr);
		return vma && vma_is_anonymous(vma) &&
		       folio_order_settle_block(vma, addr);
	}
	/* It only tries to lock, so who waits for the one VMA may hold the other. */
	vma = lock_vma_under_rcu(vma->vm_mm, addr);
	if (!vma)
		return false;
	/* Others may have huge entries above the PMD, and nothing of ours. */
	later = vma_is_anonymous(vma) && folio_order_settle_block(vma, addr);
	vma_end_read(vma);
	return later;
}

/*
 * The bound refuses a folio: what was allocated lately may have been asked for in the
 * meantime, with no fault beside it that would have told. Returns whether that made
 * room. Others may note blocks and settle them at the same time: what they lose is
 * a hint, as the charge is in the folio.
 */
static bool folio_order_settle_recent(struct vm_fault *vmf)
{
	struct mm_struct *mm = vmf->vma->vm_mm;
	unsigned int i, wait = READ_ONCE(mm->folio_order.wait);
	long before;

	/* It was in vain the last times. */
	if (wait & 0xff) {
		WRITE_ONCE(mm->folio_order.wait, wait - 1);
		return false;
	}
	before = atomic_long_read(&mm->folio_order.unasked);
	for (i = 0; i < FOLIO_ORDER_RECENT; i++) {
		unsigned long addr = READ_ONCE(mm->folio_order.recent[i]);

		if (addr && !folio_order_settle_at(vmf, addr))
			WRITE_ONCE(mm->folio_order.recent[i], 0);
	}
	if (atomic_long_read(&mm->folio_order.unasked) < before) {
		WRITE_ONCE(mm->folio_order.wait, 0);
		return true;
	}
	/* 1, 3, 7 ... 63: so many refusals until the next look, also kept in bits 8 on. */
	wait = min((wait >> 8) * 2 + 1, 63U);
	WRITE_ONCE(mm->folio_order.wait, wait << 8 | wait);
	return false;
}

/* Is nothing mapped in the @nr PTEs from @pte on? */
static bool folio_order_free(pte_t *pte, unsigned int nr)
{
	while (nr--)
		if (!pte_none(ptep_get_lockless(pte + nr)))
			return false;
	return true;
}

/* Is the block of @order from page @first on within @start to @end? */
static bool folio_order_inside(unsigned long start, unsigned long end,
			       unsigned long first, unsigned int order)
{
	unsigned long at = first << PAGE_SHIFT;

	return at >= start && at + (PAGE_SIZE << order) <= end;
}

/*
 * Allocate @order at the fault, or the next smaller one of @orders that can be had.
 * @asked: all of that was asked for, if not NULL. Returns NULL if only a single page can
 * be had.
 *
 * No reclaim and no compaction, not even in the background, whatever
 * transparent_hugepage/defrag allows: a smaller folio does as well.
 */
static struct folio *folio_order_get(struct vm_fault *vmf, enum folio_order_side side,
				     unsigned long orders, unsigned int order,
				     const struct folio_order_range *asked)
{
	unsigned long page = vmf->address >> PAGE_SHIFT, first;
	struct vm_area_struct *vma = vmf->vma;
	struct mm_struct *mm = vma->vm_mm;
	gfp_t gfp = folio_order_gfp(vma);
	bool refused = false;
	struct folio *folio;
	pte_t *pte;

	pte = pte_offset_map(vmf->pmd, vmf->address & PMD_MASK);
	if (!pte)
		return NULL;
	for (; order; order = folio_order_below(orders, order)) {
		first = asked ? page & -BIT(order) : folio_order_first(page, order, side);
		if (folio_order_inside(vma->vm_start, vma->vm_end, first, order) &&
		    (!asked || folio_order_inside(asked->start, asked->end, first, order)) &&
		    folio_order_free(pte + pte_index(first << PAGE_SHIFT), BIT(order)))
			break;
		count_vm_event(FOLIO_ORDER_FALLBACK);
	}
	pte_unmap(pte);

	for (; order; order = folio_order_below(orders, order)) {
		unsigned int charge = asked ? 0 : BIT(order) - 1;

		first = asked ? page & -BIT(order) : folio_order_first(page, order, side);
		if (charge && !folio_order_reserve(mm, charge) &&
		    (refused || !folio_order_settle_recent(vmf) ||
		     !folio_order_reserve(mm, charge))) {
			refused = true;
			continue;
		}
		folio = vma_alloc_folio(gfp, order, vma, first << PAGE_SHIFT, true);
		if (folio && folio_order_far_pressure(folio)) {
			folio_put(folio);
			folio = NULL;
		}
		if (folio && !mem_cgroup_charge(folio, mm, gfp)) {
			if (charge) {
				unsigned long epoch = READ_ONCE(mm->folio_order.epoch);

				folio->private = (void *)token_make(epoch, order, charge);
			}
			folio_throttle_swaprate(folio, gfp);
			folio_zero_user(folio, vmf->address);
			return folio;
		}
		if (folio) {
			count_mthp_stat(order, MTHP_STAT_ANON_FAULT_FALLBACK_CHARGE);
			folio_put(folio);
		}
		count_mthp_stat(order, MTHP_STAT_ANON_FAULT_FALLBACK);
		count_vm_event(FOLIO_ORDER_FALLBACK);
		if (charge)
			folio_order_unreserve(mm, charge);
	}
	if (refused)
		folio_order_refused(mm);
	return NULL;
}

/*
 * What tasks populate at the moment, each in the place of its hash: a hint, as two may
 * have the same. Then one of them gets single pages.
 */
static struct folio_order_range *folio_order_populating[64];

static struct folio_order_range **folio_order_populator(void)
{
	return &folio_order_populating[hash_ptr(current,
						ilog2(ARRAY_SIZE(folio_order_populating)))];
}

/**
 * folio_order_populate_begin - this task populates memory of its own accord
 * @range:	on the stack; to be given to folio_order_populate_end()
 * @start:	where
 * @end:	to where, exclusive
 *
 * Until the end all faults of this task are those of what is populated. It may sleep.
 */
void folio_order_populate_begin(struct folio_order_range *range, unsigned long start,
				unsigned long end)
{
	range->start = start;
	range->end = end;
	WRITE_ONCE(*folio_order_populator(), range);
}

/**
 * folio_order_populate_end - this task has populated memory
 * @range:	as of folio_order_populate_begin()
 */
void folio_order_populate_end(struct folio_order_range *range)
{
	struct folio_order_range **at = folio_order_populator();

	if (READ_ONCE(*at) == range)
		WRITE_ONCE(*at, NULL);
}

/* What of the VMA mlock() populates, or what comes to the same; NULL: this is another fault. */
static const struct folio_order_range *folio_order_populates(struct vm_fault *vmf)
{
	const struct folio_order_range *range;

	if ((vmf->vma->vm_flags & (VM_LOCKED | VM_LOCKONFAULT)) != VM_LOCKED ||
	    (vmf->flags & FAULT_FLAG_USER))
		return NULL;
	range = READ_ONCE(*folio_order_populator());
	/* Another task's is not on our stack. */
	return range && object_is_on_stack(range) ? range : NULL;
}

/* After a fault: @next is what folio_order_note() made of @state. */
static void folio_order_learn(struct vm_area_struct *vma, unsigned long state,
			      unsigned long next)
{
	/* What somebody else has learned in the meantime is newer: see "Swap-in" above. */
	if (next == state || READ_ONCE(vma->folio_order) != state)
		return;
	if (state_order(next) > state_order(state))
		count_vm_event(FOLIO_ORDER_RAISED);
	else if (state_order(next) < state_order(state))
		count_vm_event(FOLIO_ORDER_LOWERED);
	WRITE_ONCE(vma->folio_order, next);
}

/*
 * @range is what mlock() populates. Where the fault stands in its block does not matter,
 * and there is nothing to learn.
 */
static struct folio *folio_order_locked(struct vm_fault *vmf,
					const struct folio_order_range *range)
{
	unsigned long orders = folio_order_allowed(vmf->vma);

	if (!orders || folio_order_pressure(numa_mem_id(), __fls(orders)))
		return NULL;
	return folio_order_get(vmf, FOLIO_ORDER_FORWARD, orders, __fls(orders), range);
}

/**
 * __folio_order_alloc - a large folio for an anonymous write fault
 * @vmf:	the fault; vmf->pmd has a page table, nothing is locked but the VMA or
 *		the mm, for reading
 *
 * May not be called for a VMA with ops. The folio is charged and zeroed.
 *
 * Return: a folio of order 2 at least, or NULL if a single page is to be used.
 */
struct folio *__folio_order_alloc(struct vm_fault *vmf)
{
	unsigned long page = vmf->address >> PAGE_SHIFT, first = page;
	const struct folio_order_range *range;
	struct vm_area_struct *vma = vmf->vma;
	enum folio_order_side side;
	unsigned long state, orders;
	struct folio *folio = NULL;
	unsigned int order = 0;
	bool unused = false;

	/* Who may not write cannot ask. Stacks are too shallow to tell. */
	if (!(vma->vm_flags & VM_WRITE) ||
	    (vma->vm_flags & (VM_STACK | VM_SHADOW_STACK)) ||
	    unlikely(userfaultfd_armed(vma)))
		return NULL;
	range = folio_order_populates(vmf);
	if (unlikely(range))
		return folio_order_locked(vmf, range);
	/* Nothing may be unasked. */
	if (!READ_ONCE(folio_order_permille))
		return NULL;

	state = READ_ONCE(vma->folio_order);
	side = folio_order_side(page);
	/* Most faults that are not near anything end here, for little. */
	if (side != FOLIO_ORDER_NONE &&
	    (state_near(state, page) || !folio_order_alone(vmf, side))) {
		int score = state_score(state);
		unsigned int run;

		orders = folio_order_allowed(vma);
		if (!orders)
			return NULL;
		run = folio_order_look(vmf, side, folio_order_longest(score, orders),
				       folio_order_asked, &unused);
		order = folio_order_choose(score, page, run, side, orders);
		if (order && folio_order_pressure(numa_mem_id(), order)) {
			count_vm_event(FOLIO_ORDER_PRESSURE);
			order = 0;
		}
		if (order)
			folio = folio_order_get(vmf, side, orders, order, NULL);
		order = 0;
		if (folio) {
			order = folio_order(folio);
			first = folio_order_first(page, order, side);
		}
		if (unused)
			count_vm_event(FOLIO_ORDER_UNUSED);
	}

	folio_order_learn(vma, state,
			  folio_order_note(state, page, first, order, true, unused));
	return folio;
}

/* --- Swap-in ------------------------------------------------------------- */

/* Does memory of this kind come back in blocks at all? */
static bool folio_order_may_swapin(struct vm_area_struct *vma, swp_entry_t entry)
{
	/* Parts of a block may be in zswap. */
	if (!vma_is_anonymous(vma) || (vma->vm_flags & (VM_STACK | VM_SHADOW_STACK)) ||
	    userfaultfd_armed(vma) || !zswap_never_enabled())
		return false;
	/* The other flags may change meanwhile; this one stays while there are entries. */
	if (!(data_race(swp_swap_info(entry)->flags) & SWP_BLKDEV))
		return false;
#ifdef CONFIG_MEMCG
	if (!mem_cgroup_disabled() && !cgroup_subsys_on_dfl(memory_cgrp_subsys))
		return false;
#endif
	return true;
}

/*
 * Is the block of @order at @addr in swap as a whole, in one piece, and nobody else's?
 * @pte is @addr's, under the page table lock.
 */
static bool folio_order_swapped(struct vm_fault *vmf, unsigned long addr, pte_t *pte,
				unsigned int order, folio_order_swap_check *check)
{
	swp_entry_t entry;
	unsigned int i;

	if (!folio_order_inside(vmf->vma->vm_start, vmf->vma->vm_end, addr >> PAGE_SHIFT,
				order) ||
	    !check(vmf, pte, BIT(order)))
		return false;
	entry = pte_to_swp_entry(ptep_get(pte));
	for (i = 0; i < BIT(order); i++, entry.val++)
		if (__swap_count(entry) != 1)
			return false;
	return true;
}

/* Allocate @order at the fault, or the next smaller one that is in swap as a whole. */
static struct folio *folio_order_get_swapped(struct vm_fault *vmf,
					     enum folio_order_side side,
					     unsigned long orders, unsigned int order,
					     folio_order_swap_check *check)
{
	unsigned long page = vmf->address >> PAGE_SHIFT, offset, addr;
	swp_entry_t entry = pte_to_swp_entry(vmf->orig_pte);
	struct vm_area_struct *vma = vmf->vma;
	gfp_t gfp = folio_order_gfp(vma);
	struct folio *folio;
	spinlock_t *ptl;	/* of vmf->pmd */
	pte_t *pte;

	pte = pte_offset_map_lock(vma->vm_mm, vmf->pmd, vmf->address & PMD_MASK, &ptl);
	if (!pte)
		return NULL;
	/* A large folio was swapped out to a place that is aligned alike. */
	offset = swp_offset(entry);
	for (; order; order = folio_order_below(orders, order)) {
		addr = folio_order_first(page, order, side) << PAGE_SHIFT;
		if (!((offset ^ page) & (BIT(order) - 1)) &&
		    folio_order_swapped(vmf, addr, pte + pte_index(addr), order, check))
			break;
	}
	pte_unmap_unlock(pte, ptl);

	for (; order; order = folio_order_below(orders, order)) {
		addr = folio_order_first(page, order, side) << PAGE_SHIFT;
		folio = vma_alloc_folio(gfp, order, vma, addr, true);
		if (folio && !folio_order_far_pressure(folio) &&
		    !mem_cgroup_swapin_charge_folio(folio, vma->vm_mm, gfp, entry))
			return folio;
		if (folio)
			folio_put(folio);
		count_vm_event(FOLIO_ORDER_FALLBACK);
	}
	return NULL;
}

/**
 * __folio_order_swapin - a large folio for memory that comes back from swap
 * @vmf:	the fault; vmf->orig_pte is a swap entry that nobody else has, not in the
 *		swap cache, of a device that is read at once and is not switched off
 *		meanwhile. Nothing is locked but the VMA or the mm, for reading
 * @check:	are so many PTEs swap entries that can be read as one folio?
 *
 * The folio is charged and not yet read.
 *
 * Return: a folio of order 2 at least, or NULL if a single page is to be used.
 */
struct folio *__folio_order_swapin(struct vm_fault *vmf, folio_order_swap_check *check)
{
	unsigned long page = vmf->address >> PAGE_SHIFT, first = page;
	struct vm_area_struct *vma = vmf->vma;
	enum folio_order_side side;
	unsigned long state, orders;
	struct folio *folio = NULL;
	unsigned int order = 0;

	if (!folio_order_may_swapin(vma, pte_to_swp_entry(vmf->orig_pte)))
		return NULL;

	state = READ_ONCE(vma->folio_order);
	side = folio_order_side(page);
	if (side != FOLIO_ORDER_NONE && !folio_order_alone(vmf, side)) {
		/* No more than was used: nothing bounds it but that. */
		int score = min(state_score(state), SCORE_WARM - 1);
		unsigned int run;

		/* Whoever advised huge pages used all of them when they were written to. */
		orders = folio_order_allowed(vma) & (BIT(FOLIO_ORDER_64K + 1) - 1);
		if (!orders)
			return NULL;
		run = folio_order_look(vmf, side, folio_order_longest(score, orders),
				       folio_order_used, NULL);
		order = folio_order_choose(score, page, run, side, orders);
		if (order && folio_order_pressure(numa_mem_id(), order)) {
			count_vm_event(FOLIO_ORDER_PRESSURE);
			order = 0;
		}
		if (order)
			folio = folio_order_get_swapped(vmf, side, orders, order, check);
		order = 0;
		if (folio) {
			order = folio_order(folio);
			first = folio_order_first(page, order, side);
		}
	}
	folio_order_learn(vma, state,
			  folio_order_note(state, page, first, order, false, false));
	return folio;
}

/* Is @folio, a large one that did not come by the swap cache, of a size chosen here? */
static bool folio_order_from_swap(struct vm_area_struct *vma, struct folio *folio)
{
	return folio_test_large(folio) &&
	       !thp_vma_allowable_orders(vma, vma->vm_flags, TVA_IN_PF | TVA_ENFORCE_SYSFS,
					 BIT(folio_order(folio)));
}

/**
 * folio_order_mixed - are the entries of a block no longer what they were?
 * @vma:	where it is to go
 * @folio:	the folio that is to be read, not by way of the swap cache
 * @entry:	the first one's; all are pinned by the flag of the swap cache
 *
 * They may have been freed, and be another's, between the look at the page table and the
 * pin. Then the PTEs differ, too, which is seen after the read; but that one warns of
 * what it cannot read as a whole.
 *
 * Return: true if the fault is to come again.
 */
bool folio_order_mixed(struct vm_area_struct *vma, struct folio *folio, swp_entry_t entry)
{
	int nr = folio_nr_pages(folio);

	return folio_order_from_swap(vma, folio) &&
	       (!zswap_never_enabled() || swap_zeromap_batch(entry, nr, NULL) != nr);
}

/**
 * folio_order_swap_ptes - set_ptes() for what __folio_order_swapin() allocated
 * @vmf:	the fault; its page table is locked
 * @folio:	the folio to map, which did not come by the swap cache
 * @addr:	where it starts
 * @pte:	that of @addr
 * @entry:	for the page that was asked for, but with the folio's first page in it
 * @nr:		so many pages of it are mapped: all
 *
 * The others become old, so that who comes next sees which of them were used: what
 * nobody uses must not lead to more of it.
 *
 * Return: false if it is not ours, and nothing was done.
 */
bool folio_order_swap_ptes(struct vm_fault *vmf, struct folio *folio, unsigned long addr,
			   pte_t *pte, pte_t entry, unsigned int nr)
{
	unsigned int at = ((vmf->address & PAGE_MASK) - addr) >> PAGE_SHIFT;
	pte_t other = pte_mkold(pte_mkclean(entry));
	struct mm_struct *mm = vmf->vma->vm_mm;

	if (!folio_order_from_swap(vmf->vma, folio) ||
	    WARN_ON_ONCE(nr != folio_nr_pages(folio)))
		return false;
	if (at)
		set_ptes(mm, addr, pte, other, at);
	set_ptes(mm, addr + at * PAGE_SIZE, pte + at, pte_advance_pfn(entry, at), 1);
	at++;
	if (at < nr)
		set_ptes(mm, addr + at * PAGE_SIZE, pte + at, pte_advance_pfn(other, at),
			 nr - at);
	return true;
}

/**
 * folio_order_unreadable - a folio could not be read from swap
 * @vma:	where it was to go
 * @folio:	the folio, which did not come by the swap cache
 *
 * Another page of it may be what cannot be read, and nobody asked for that.
 *
 * Return: true if the fault is to come again: it gets a single page then, as the VMA
 * does, until many faults have been neighbours. False if the folio is not ours.
 */
bool folio_order_unreadable(struct vm_area_struct *vma, struct folio *folio)
{
	unsigned long state = READ_ONCE(vma->folio_order);

	if (!folio_order_from_swap(vma, folio))
		return false;
	state = state_make(SCORE_MIN, state_page(state), state_order(state));
	WRITE_ONCE(vma->folio_order, state);
	return true;
}

/* --- Controls ------------------------------------------------------------ */

/**
 * folio_order_set_manual - the administrator chose for these orders
 * @orders:	as bits
 */
void folio_order_set_manual(unsigned long orders)
{
	unsigned long old = READ_ONCE(folio_order_manual);

	while (!try_cmpxchg(&folio_order_manual, &old, old | orders))
		;
}

static ssize_t manual_sizes_show(struct kobject *kobj, struct kobj_attribute *attr,
				 char *buf)
{
	unsigned long orders = READ_ONCE(folio_order_manual) & THP_ORDERS_ALL_ANON;
	unsigned int order;
	int len = 0;

	for_each_set_bit(order, &orders, BITS_PER_LONG)
		len += sysfs_emit_at(buf, len, "%s%lu", len ? " " : "",
				     (PAGE_SIZE << order) / SZ_1K);
	return len + sysfs_emit_at(buf, len, "\n");
}

static ssize_t manual_sizes_store(struct kobject *kobj, struct kobj_attribute *attr,
				  const char *buf, size_t count)
{
	if (!sysfs_streq(buf, "none"))
		return -EINVAL;
	WRITE_ONCE(folio_order_manual, 0);
	return count;
}

static ssize_t max_unasked_permille_show(struct kobject *kobj,
					 struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(folio_order_permille));
}

static ssize_t max_unasked_permille_store(struct kobject *kobj,
					  struct kobj_attribute *attr, const char *buf,
					  size_t count)
{
	return quell_store_uint(buf, count, &folio_order_permille, 1000);
}

static ssize_t slack_kb_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(folio_order_slack_kb));
}

static ssize_t slack_kb_store(struct kobject *kobj, struct kobj_attribute *attr,
			      const char *buf, size_t count)
{
	return quell_store_uint(buf, count, &folio_order_slack_kb, SZ_1M / SZ_1K);
}

static struct kobj_attribute manual_sizes_attr = __ATTR_RW(manual_sizes);
static struct kobj_attribute max_unasked_permille_attr =
	__ATTR_RW(max_unasked_permille);
static struct kobj_attribute slack_kb_attr = __ATTR_RW(slack_kb);

static const struct attribute * const folio_order_attrs[] = {
	&manual_sizes_attr.attr,
	&max_unasked_permille_attr.attr,
	&slack_kb_attr.attr,
	NULL,
};

static struct quell_mechanism folio_order_mechanism = {
	.name	= "folio_order",
	.key	= &folio_order_key.key,
	.attrs	= folio_order_attrs,
};

static int __init folio_order_init(void)
{
	return quell_register(&folio_order_mechanism);
}
subsys_initcall(folio_order_init);

#ifdef CONFIG_QUELL_KUNIT_TEST
#include "tests/folio_order-kunit.h"
#endif
