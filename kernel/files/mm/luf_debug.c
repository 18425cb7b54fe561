// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lazy unmap flush, debugging: a checker that has a record of each open stale-TLB window.
 *
 * mm/luf.c argues that stale-TLB windows are harmless. This checker complains at the moment of an
 * access that would break a rule:
 *
 *  - R1: a frame goes back to the page allocator (luf_debug_free()).
 *  - R3 (a): a PTE is set at (mm, address) for another frame, and is writable or the frame has
 *    other content (luf_debug_set_ptes()).
 *  - R3 (b): the content of (mapping, index) changes, as a folio becomes dirty, is truncated or
 *    invalidated for direct I/O (luf_debug_change()).
 *
 * It shares no state with mm/luf.c. A record has the CPUs that had the mm loaded, and a stamp of
 * the checker's own clock. Each CPU notes that clock before it compares tlb_gen (luf_debug_look(),
 * luf_debug_caught_up()). A stale-TLB window is open while one of its CPUs has the same mm loaded,
 * is not lazy, and has not compared since.
 *
 * A complaint starts with "luf_debug: VIOLATION". Parameters, below
 * /sys/module/luf_debug/parameters/ or luf_debug.NAME=VALUE at boot:
 *
 *	violations	complaints so far; read only
 *	windows		stale-TLB windows recorded so far; read only
 *	lost		open ones that were dropped for lack of records; read only
 *	fatal		panic at the first complaint; 0 or 1, default 0
 */
#include <linux/early_ack.h>
#include <linux/export.h>
#include <linux/hash.h>
#include <linux/highmem.h>
#include <linux/init.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <asm/luf.h>
#include <asm/tlbflush.h>
#include "luf_debug.h"

/* An open stale-TLB window of one PTE. */
struct luf_window {
	struct hlist_node by_pfn;
	struct hlist_node by_address;
	struct hlist_node by_index;
	struct list_head list;		/* records in use, oldest first, or free ones */
	struct mm_struct *mm;		/* never dereferenced */
	unsigned long address;
	struct address_space *mapping;	/* never dereferenced; NULL if anonymous */
	pgoff_t index;
	unsigned long pfn;
	u64 stamp;
	cpumask_t cpus;
};

#define LUF_DEBUG_WINDOWS	32768
#define LUF_DEBUG_BITS		14

static DEFINE_RAW_SPINLOCK(luf_debug_lock);
static struct luf_window *luf_windows;
static LIST_HEAD(luf_windows_free);
static LIST_HEAD(luf_windows_used);
static struct hlist_head luf_by_pfn[1 << LUF_DEBUG_BITS];
static struct hlist_head luf_by_address[1 << LUF_DEBUG_BITS];
static struct hlist_head luf_by_index[1 << LUF_DEBUG_BITS];

static unsigned int luf_debug_violations;
static unsigned long luf_debug_opened;
static unsigned long luf_debug_lost;
static bool luf_debug_fatal;

atomic64_t luf_debug_clock = ATOMIC64_INIT(0);
DEFINE_PER_CPU(struct luf_debug_cpu, luf_debug_cpu);

/* A complaint: filled in under the lock, printed after it is dropped. */
struct luf_violation {
	const char *what;
	struct luf_window window;
	unsigned long pfn;
};

static struct hlist_head *luf_pfn_bucket(unsigned long pfn)
{
	return &luf_by_pfn[hash_long(pfn, LUF_DEBUG_BITS)];
}

static struct hlist_head *luf_address_bucket(struct mm_struct *mm,
					     unsigned long address)
{
	return &luf_by_address[hash_long((unsigned long)mm ^
					 (address >> PAGE_SHIFT),
					 LUF_DEBUG_BITS)];
}

/* By mapping only, as luf_debug_change() looks for ranges. */
static struct hlist_head *luf_index_bucket(struct address_space *mapping)
{
	return &luf_by_index[hash_ptr(mapping, LUF_DEBUG_BITS)];
}

static void luf_window_close(struct luf_window *w)
{
	hlist_del_init(&w->by_pfn);
	hlist_del_init(&w->by_address);
	hlist_del_init(&w->by_index);
	list_move(&w->list, &luf_windows_free);
}

/* May @cpu use the stale entry? */
static bool luf_cpu_behind(unsigned int cpu, const struct luf_window *w)
{
	struct luf_debug_cpu *state = per_cpu_ptr(&luf_debug_cpu, cpu);
	unsigned long patience = 1000000;

	if (!arch_luf_may_use(cpu))
		return false;
	/*
	 * It is leaving lazy TLB mode or init_mm, or has acknowledged a flush: it compares tlb_gen
	 * before it uses an entry.
	 */
	while ((READ_ONCE(state->busy) || early_ack_cpu_owes(cpu)) && --patience)
		cpu_relax();
	/* The host may have preempted this virtual CPU: no violation. */
	if (!patience && early_ack_cpu_owes(cpu))
		return false;
	/* Pairs with luf_debug_caught_up() and early_ack_run(). */
	smp_rmb();
	return READ_ONCE(state->seen) < w->stamp &&
	       READ_ONCE(per_cpu(cpu_tlbstate.loaded_mm, cpu)) == w->mm;
}

static bool luf_window_open(const struct luf_window *w)
{
	unsigned int cpu;

	for_each_cpu(cpu, &w->cpus)
		if (luf_cpu_behind(cpu, w))
			return true;
	return false;
}

static void luf_complain(const struct luf_violation *v)
{
	const struct luf_window *w = &v->window;

	WRITE_ONCE(luf_debug_violations, luf_debug_violations + 1);
	pr_err_ratelimited("luf_debug: VIOLATION: %s: mm %p address %#lx, mapping %p index %lu, frame %#lx, now %#lx, CPUs %*pbl\n",
			   v->what, w->mm, w->address, w->mapping, w->index,
			   w->pfn, v->pfn, cpumask_pr_args(&w->cpus));
	if (luf_debug_fatal)
		panic("luf_debug: %s in a stale-TLB window", v->what);
	if (luf_debug_violations < 4)
		dump_stack();
}

/*
 * The CPUs of the next record. One that loads the mm later compares tlb_gen after it was raised,
 * but may have noted the clock before the stamp.
 */
static DEFINE_PER_CPU(cpumask_t, luf_debug_cpus);

/**
 * luf_debug_stamp - tlb_gen was raised: CPUs that compare from now on have caught up
 *
 * Under the page table lock, before luf_owe().
 *
 * Return: a stamp for luf_debug_open().
 */
u64 luf_debug_stamp(void)
{
	cpumask_clear(this_cpu_ptr(&luf_debug_cpus));
	/* A full barrier: a CPU reads the clock, then tlb_gen. */
	return atomic64_inc_return(&luf_debug_clock);
}

/**
 * luf_debug_pending - luf_owe() makes a CPU pending, or should
 * @cpu:	the CPU
 *
 * Under the page table lock.
 */
void luf_debug_pending(unsigned int cpu)
{
	cpumask_set_cpu(cpu, this_cpu_ptr(&luf_debug_cpus));
}

static void luf_window_add(struct folio *folio, struct mm_struct *mm,
			   unsigned long address, unsigned long pfn, u64 stamp)
{
	struct luf_window *w;

	if (list_empty(&luf_windows_free)) {
		w = list_first_entry(&luf_windows_used, struct luf_window, list);
		if (luf_window_open(w))
			luf_debug_lost++;
		luf_window_close(w);
	}
	w = list_first_entry(&luf_windows_free, struct luf_window, list);
	w->mm = mm;
	w->address = address & PAGE_MASK;
	w->mapping = folio_test_anon(folio) ? NULL : folio->mapping;
	w->pfn = pfn;
	w->index = folio->index + (w->pfn - folio_pfn(folio));
	w->stamp = stamp;
	cpumask_copy(&w->cpus, this_cpu_ptr(&luf_debug_cpus));
	hlist_add_head(&w->by_pfn, luf_pfn_bucket(w->pfn));
	hlist_add_head(&w->by_address, luf_address_bucket(mm, w->address));
	hlist_add_head(&w->by_index, luf_index_bucket(w->mapping));
	list_move_tail(&w->list, &luf_windows_used);
	luf_debug_opened++;
}

static DEFINE_PER_CPU(unsigned int, luf_debug_run_nr);

/**
 * luf_debug_run - the next record of a flush covers several PTEs
 * @nr:	how many; 0 after the record was made
 *
 * Under the page table lock. 6.12 makes a record of one address.
 */
void luf_debug_run(unsigned int nr)
{
	this_cpu_write(luf_debug_run_nr, nr);
}

/**
 * luf_debug_open - PTEs were cleared and their flush deferred
 * @folio:	that they mapped
 * @mm:		their mm
 * @address:	of the first
 * @pte:	value of the first, before
 * @nr:		how many, for consecutive pages of @folio
 * @stamp:	from luf_debug_stamp()
 *
 * Under the page table lock.
 */
void luf_debug_open(struct folio *folio, struct mm_struct *mm,
		    unsigned long address, pte_t pte, unsigned int nr, u64 stamp)
{
	unsigned long flags;
	unsigned int i;

	if (!luf_windows)
		return;

	nr = max(nr, this_cpu_read(luf_debug_run_nr));
	raw_spin_lock_irqsave(&luf_debug_lock, flags);
	for (i = 0; i < nr; i++)
		luf_window_add(folio, mm, address + i * PAGE_SIZE,
			       pte_pfn(pte) + i, stamp);
	raw_spin_unlock_irqrestore(&luf_debug_lock, flags);
}

/**
 * luf_debug_free - frames go back to the page allocator
 * @page:	the first
 * @order:	log2 of their number
 */
void luf_debug_free(struct page *page, unsigned int order)
{
	struct luf_violation v = {};
	struct luf_window *w;
	struct hlist_node *n;
	unsigned long flags;
	unsigned long pfn;

	/* Linux 7.3 also frees in NMIs, which may have interrupted a holder of the lock. */
	if (in_nmi())
		return;
	for (pfn = page_to_pfn(page); pfn < page_to_pfn(page) + (1UL << order); pfn++) {
		if (hlist_empty(luf_pfn_bucket(pfn)))
			continue;
		raw_spin_lock_irqsave(&luf_debug_lock, flags);
		hlist_for_each_entry_safe(w, n, luf_pfn_bucket(pfn), by_pfn) {
			if (w->pfn != pfn)
				continue;
			if (luf_window_open(w)) {
				v.what = "a frame is freed";
				v.window = *w;
				v.pfn = pfn;
			}
			luf_window_close(w);
		}
		raw_spin_unlock_irqrestore(&luf_debug_lock, flags);
	}
	if (v.what)
		luf_complain(&v);
}

static const char *luf_pte_wrong(const struct luf_window *w, pte_t pte)
{
	unsigned long pfn = pte_pfn(pte);

	if (pfn == w->pfn)
		return NULL;
	if (pte_write(pte))
		return "a writable PTE is set";
	if (!pfn_valid(pfn) || memcmp(page_address(pfn_to_page(pfn)),
				      page_address(pfn_to_page(w->pfn)),
				      PAGE_SIZE))
		return "a PTE is set for other content";
	return NULL;
}

/**
 * luf_debug_set_ptes - PTEs are about to be set
 * @mm:		their mm
 * @address:	of the first
 * @pte:	new value of the first
 * @nr:		how many
 *
 * Under the page table lock.
 */
void luf_debug_set_ptes(struct mm_struct *mm, unsigned long address, pte_t pte,
			unsigned int nr)
{
	struct luf_violation v = {};
	struct luf_window *w;
	struct hlist_node *n;
	unsigned long flags;
	const char *what;

	if (mm == &init_mm || !pte_present(pte))
		return;

	for (; nr; nr--, address += PAGE_SIZE, pte = pte_next_pfn(pte)) {
		if (hlist_empty(luf_address_bucket(mm, address & PAGE_MASK)))
			continue;
		raw_spin_lock_irqsave(&luf_debug_lock, flags);
		hlist_for_each_entry_safe(w, n,
					  luf_address_bucket(mm, address & PAGE_MASK),
					  by_address) {
			if (w->mm != mm || w->address != (address & PAGE_MASK))
				continue;
			if (!luf_window_open(w)) {
				luf_window_close(w);
				continue;
			}
			what = luf_pte_wrong(w, pte);
			if (what) {
				v.what = what;
				v.window = *w;
				v.pfn = pte_pfn(pte);
			}
		}
		raw_spin_unlock_irqrestore(&luf_debug_lock, flags);
	}
	if (v.what)
		luf_complain(&v);
}
EXPORT_SYMBOL(luf_debug_set_ptes);	/* for drivers that set PTEs, such as i915 */

/**
 * luf_debug_change - the content of a file changes in the page cache
 * @mapping:	the file, or NULL
 * @start:	the first page
 * @end:	the last page, inclusive
 */
void luf_debug_change(struct address_space *mapping, pgoff_t start, pgoff_t end)
{
	struct luf_violation v = {};
	struct luf_window *w;
	struct hlist_node *n;
	unsigned long flags;

	if (!mapping || hlist_empty(luf_index_bucket(mapping)))
		return;
	raw_spin_lock_irqsave(&luf_debug_lock, flags);
	hlist_for_each_entry_safe(w, n, luf_index_bucket(mapping), by_index) {
		if (w->mapping != mapping || w->index < start || w->index > end)
			continue;
		if (luf_window_open(w)) {
			v.what = "a file changes";
			v.window = *w;
		}
		luf_window_close(w);
	}
	raw_spin_unlock_irqrestore(&luf_debug_lock, flags);
	if (v.what)
		luf_complain(&v);
}

#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "luf_debug."
module_param_named(violations, luf_debug_violations, uint, 0444);
module_param_named(windows, luf_debug_opened, ulong, 0444);
module_param_named(lost, luf_debug_lost, ulong, 0444);
module_param_named(fatal, luf_debug_fatal, bool, 0600);

static int __init luf_debug_init(void)
{
	struct luf_window *windows;
	int i;

	windows = kvcalloc(LUF_DEBUG_WINDOWS, sizeof(*windows), GFP_KERNEL);
	if (!windows)
		return -ENOMEM;
	for (i = 0; i < LUF_DEBUG_WINDOWS; i++) {
		INIT_HLIST_NODE(&windows[i].by_pfn);
		INIT_HLIST_NODE(&windows[i].by_address);
		INIT_HLIST_NODE(&windows[i].by_index);
		list_add(&windows[i].list, &luf_windows_free);
	}
	luf_windows = windows;
	return 0;
}
core_initcall(luf_debug_init);
