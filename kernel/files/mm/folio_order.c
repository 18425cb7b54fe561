// SPDX-License-Identifier: GPL-2.0-only
/*
 * Large anonymous folios by default, sized by the faults of each VMA.
 *
 * Linux can back anonymous memory with folios of 16 KB and more. A size that is on serves every
 * fault that it fits, so sparse memory pays for unused pages. Here the page table decides.
 *
 * First published by Ryan Roberts ("LARGE_ANON_FOLIO", v4, July/August 2023, with Yu Zhao's and
 * Yin Fengwei's review). The allocator part is in Linux 6.8 as mTHP, where the administrator
 * selects sizes. The scan for underused huge pages is Usama Arif's (6.12), the reuse of large
 * folios after fork David Hildenbrand's (6.15).
 *
 * A *block* is an aligned range of 2^k pages of the VMA in which nothing is mapped. A *used* page
 * has a young PTE. A fault gets the largest block around it that has a *run* beside it: as many
 * used pages as the block has, without a gap, directly before or behind it. An allocator of many
 * sizes leaves gaps: for up to 64 KB it is enough if most of the 96 pages before are used. Random
 * accesses to half of the memory get single pages. folio_order.h has the hooks.
 *
 * Invariants, with the enforcing function; KUnit tests, tests of selftest folio_order and
 * mutations in brackets:
 *
 *  - Untouched pages are no evidence. All PTEs of a block are young at first but its *probes*: a
 *    page in each four (above 64 KB: in each quarter) at a place that a hash chooses, so no pattern
 *    of accesses misses or meets them all. The CPU sets their accessed bits at the first access:
 *    four such assists per block. Reclaim and fork clear accessed bits, too; then runs are shorter.
 *    get_user_pages() behind a page counts old ones, too: MAP_POPULATE and mlock() access nothing.
 *    folio_order_probe(), folio_order_used() [probes_test, random_test, strided_test,
 *    filled_then_strided_test, worst_test, populate_test; random, strided, bursts, mlock]
 *  - A VMA with isolated faults gets fewer. Its *score* rises with faults that get a block or are
 *    beside the last page, and falls with isolated ones. From SCORE_COLD down twice a run is
 *    needed, from SCORE_RANDOM down two of 16 pages are looked at. An isolated fault also looks at
 *    the last block: if all its probes are old that costs SCORE_UNUSED. folio_order_note()
 *    [score_test, unused_test, filled_later_test; learns]
 *  - The hint is never trusted. Score and place of the last block are one word: vm_private_data,
 *    which is vm_ops' to use, and anonymous VMAs have none. Faults hold their VMA or the mmap lock
 *    for reading. Updates may be lost; fork, split and merge copy it or not. The page table has the
 *    last word on any address. folio_order_unused() [races, threads, fork]
 *  - No fault reclaims or compacts memory for these folios. Single pages are used where free memory
 *    is at the min watermark or fragmented, or the cgroup at its limit. kswapd is woken early.
 *    folio_order_get() [limit]
 *  - The administrator's and the program's choices win, also the place of a page by move_pages().
 *    folio_order_orders(), folio_order_get(), folio_order_move_page() [manual, never,
 *    MADV_NOHUGEPAGE, PR_SET_THP_DISABLE, max_kb, userfaultfd]
 *  - Memory comes back. A work item splits a folio that is mapped in part, within half a second
 *    for each 4096 folios of its queue. Stock waits for reclaim. Reclaim splits a folio of which a
 *    quarter is zeroes before it goes to swap. Before 6.15 a write after fork reuses a page of a
 *    folio that this process alone maps. folio_order_split(), _underused(), _reuse() [partial
 *    unmap, give back, underused, reuse after fork, no reuse beside a child; FOLIO_REUSE_SHARED]
 *  - Added pages are zeroes. folio_order_get() [security zeroes; FOLIO_NOT_ZEROED]
 */
#include <linux/hash.h>
#include <linux/pagewalk.h>
#include <linux/quell.h>
#include <linux/quell_mutants.h>
#include <linux/sched/mm.h>
#include <linux/sysfs.h>
#include <linux/userfaultfd_k.h>
#include "internal.h"
#include "quell_compat.h"

/* Off until quell_apply_param(). */
DEFINE_STATIC_KEY_FALSE(folio_order_key);

/* The largest folio of memory without MADV_HUGEPAGE, in kB; 0: none. */
static unsigned int folio_order_max_kb __read_mostly;
/* Orders whose mTHP control was written to: this mechanism leaves them alone. */
unsigned long folio_order_manual __read_mostly;

/* The largest order for which dense memory before it is enough, and how many pages of that. */
#define FOLIO_ORDER_DENSE	4
#define FOLIO_ORDER_BEFORE	96UL

#define SCORE_MAX		8
#define SCORE_COLD		(-4)
#define SCORE_RANDOM		(-12)
#define SCORE_MIN		(-16)
#define SCORE_UNUSED		16

/*
 * The word of a VMA: its score, and the last allocation; 0 at first. Faults read and write it as a
 * word, without a lock. On x86-64 a dereference of it would fault.
 */
union folio_order_hint {
	void *word;
	struct {
		long score : 8;
		unsigned long order : 4;
		unsigned long page : BITS_PER_LONG - 13;
		unsigned long no_pointer : 1;
	};
};

/* Each so many pages of a block of @nr pages have a probe. */
#define FOLIO_ORDER_STEP(nr)	max((nr) / 4, 4UL)

/* The probe from page @at of a block on: not page @fault, which is touched anyway. */
static unsigned long folio_order_probe_of(unsigned long at, unsigned long nr, unsigned long fault)
{
	at += hash_long(at, 16) & (FOLIO_ORDER_STEP(nr) - 1);
	return at ^ (at == fault);
}

/* A fault, and its page table. */
struct folio_order_fault {
	struct vm_area_struct *vma;
	pte_t *table;			/* of the fault, mapped */
	unsigned long start, end;	/* pages of the VMA in this page table */
	unsigned long page;
	union folio_order_hint hint;	/* before the fault */
	bool old_counts;		/* untouched pages are evidence, too */
	bool beside, unused;		/* a used page is next to it; the last block is unused */
};

static bool folio_order_used(const struct folio_order_fault *fault, pte_t pte)
{
	return pte_present(pte) && (pte_young(pte) || fault->old_counts) &&
	       !is_zero_pfn(pte_pfn(pte));
}

static pte_t folio_order_pte(const struct folio_order_fault *fault, unsigned long page)
{
	return ptep_get_lockless(fault->table + (page & (PTRS_PER_PTE - 1)));
}

/* Is nothing mapped in the block of @order around the fault, and is it in the VMA? */
static bool folio_order_free(const struct folio_order_fault *fault, unsigned int order)
{
	unsigned long page = fault->page & -BIT(order), end = page + BIT(order);

	if (page < fault->start || end > fault->end)
		return false;
	while (page < end && pte_none(folio_order_pte(fault, page)))
		page++;
	return page == end;
}

/* Are @nr pages from @page on (@step 1), or down from it (-1), used? */
static bool folio_order_run_at(const struct folio_order_fault *fault, unsigned long page,
			       int step, unsigned int nr)
{
	while (nr--) {
		if (page < fault->start || page >= fault->end ||
		    !folio_order_used(fault, folio_order_pte(fault, page)))
			return false;
		page += step;
	}
	return true;
}

/* The same in the page table before that of the fault, whose end is the run's. */
static bool folio_order_run_before(const struct folio_order_fault *fault, unsigned int nr)
{
	unsigned long addr = (fault->page & -(unsigned long)PTRS_PER_PTE) << PAGE_SHIFT;
	struct folio_order_fault before = *fault;
	bool good;
	pmd_t *pmd;

	if (addr <= fault->vma->vm_start)
		return false;
	pmd = mm_find_pmd(fault->vma->vm_mm, addr - PAGE_SIZE);
	before.table = pmd ? pte_offset_map(pmd, addr - PMD_SIZE) : NULL;
	if (!before.table)
		return false;
	before.end = addr >> PAGE_SHIFT;
	before.start = max(addr - PMD_SIZE, fault->vma->vm_start) >> PAGE_SHIFT;
	good = folio_order_run_at(&before, before.end - 1, -1, nr);
	pte_unmap(before.table);
	return good;
}

/* Is there a run on either side of the block of @order around the fault? */
static bool folio_order_has_run(const struct folio_order_fault *fault, unsigned int order)
{
	unsigned long first = fault->page & -BIT(order);
	unsigned int nr = BIT(order) << (fault->hint.score <= SCORE_COLD);

	if (folio_order_run_at(fault, first + BIT(order), 1, nr))
		return true;
	return first & (PTRS_PER_PTE - 1) ? folio_order_run_at(fault, first - 1, -1, nr) :
					    folio_order_run_before(fault, nr);
}

/*
 * Are the 96 pages before the fault's 64 KB used? Three eighths of them may be unmapped: an
 * allocator's gaps. It fills blocks of several sizes at once, so ten of 24 probes may be old.
 */
static bool folio_order_dense(const struct folio_order_fault *fault)
{
	unsigned long page = fault->page & -BIT(FOLIO_ORDER_DENSE);
	unsigned int nr = min(page - min(page, fault->start), FOLIO_ORDER_BEFORE);
	unsigned int none = 0, old = 0, i;

	if (nr < FOLIO_ORDER_BEFORE / 3)	/* too near to the begin of the page table */
		return false;
	for (i = 1; i <= nr && none * 8 <= nr * 3 && old * 9 <= nr; i++) {
		pte_t pte = folio_order_pte(fault, page - i);

		if (!pte_present(pte))
			none++;
		else if (!folio_order_used(fault, pte))
			old++;
	}
	return none * 8 <= nr * 3 && old * 9 <= nr;
}

/* Random accesses: look at two of 16 pages, changing, where filling begins the next four. */
static bool folio_order_passes(int score, unsigned long page)
{
	return score <= SCORE_RANDOM && (page & 15) - (page & 16 ? 3 : 7) > 1;
}

/* Are as many PTEs of the last block old as it has probes? */
static bool folio_order_unused(const struct folio_order_fault *fault)
{
	unsigned long nr = BIT(fault->hint.order), page = fault->hint.page, end = page + nr;
	unsigned int old = 0;

	if (nr == 1 || page < fault->start || end > fault->end)
		return false;
	for (; page < end; page++) {
		pte_t pte = folio_order_pte(fault, page);

		if (!pte_present(pte))
			return false;
		old += !pte_young(pte);
	}
	return old * FOLIO_ORDER_STEP(nr) == nr;
}

/* The largest of @orders with a block, and a run or dense memory; or 0. Sets ->beside, ->unused. */
static unsigned int folio_order_choose(struct folio_order_fault *fault, unsigned long orders)
{
	bool cold = fault->hint.score <= SCORE_COLD, good;
	int order, dense = -1;		/* not looked at yet */

	/* Populating goes upwards. Direct I/O may touch pages here and there. */
	if (fault->old_counts && fault->page != fault->start)
		fault->old_counts = folio_order_run_at(fault, fault->page - 1, -1, 1);
	fault->beside = folio_order_run_at(fault, fault->page - 1, -1, 1) ||
			folio_order_run_at(fault, fault->page + 1, 1, 1);
	orders = cold && !fault->beside ? 0 : orders;
	for (order = highest_order(orders); orders; order = next_order(&orders, order)) {
		/* Most faults fail here at the first page. */
		good = folio_order_has_run(fault, order);
		if (!good && order <= FOLIO_ORDER_DENSE && !cold && !fault->old_counts) {
			if (dense < 0)
				dense = folio_order_dense(fault);
			good = dense;
		}
		if (good && folio_order_free(fault, order))
			return order;
	}
	fault->unused = !fault->beside && folio_order_unused(fault);
	return 0;
}

/* The hint after the fault, which got @order. A page beside the last single page counts, too. */
static union folio_order_hint folio_order_note(const struct folio_order_fault *fault,
					       unsigned int order)
{
	union folio_order_hint hint = fault->hint;
	unsigned long last = hint.page, page = fault->page;
	int score = hint.score;

	if (order || (!hint.order && (page == last + 1 || page + 1 == last)))
		score = score <= SCORE_RANDOM ? 0 : score + 1;	/* few faults look there */
	else if (!fault->beside)
		score -= fault->unused ? SCORE_UNUSED : 1;
	/* Random accesses: do not dirty the cache line of other faults. */
	if (!order && score < SCORE_MIN && hint.score == SCORE_MIN)
		return hint;
	hint.score = clamp(score, SCORE_MIN, SCORE_MAX);
	hint.page = page & -BIT(order);
	hint.order = order;
	hint.no_pointer = 1;
	return hint;
}

/* Faults without these are of get_user_pages(), or futexes; most populate memory. KVM sets two. */
#define FOLIO_ORDER_ACCESS \
	(FAULT_FLAG_USER | FAULT_FLAG_INTERRUPTIBLE | FAULT_FLAG_REMOTE | FAULT_FLAG_RETRY_NOWAIT)

/* The orders that the administrator leaves to this mechanism. */
static unsigned long folio_order_left(void)
{
	return THP_ORDERS_ALL_ANON & (BIT(PMD_ORDER) - 1) & ~READ_ONCE(folio_order_manual) &
	       ~READ_ONCE(huge_anon_orders_always) & ~READ_ONCE(huge_anon_orders_madvise) &
	       ~READ_ONCE(huge_anon_orders_inherit);
}

static unsigned long folio_order_orders(struct vm_area_struct *vma)
{
	unsigned long pages = READ_ONCE(folio_order_max_kb) * SZ_1K / PAGE_SIZE;
	unsigned long orders = pages ? BIT(ilog2(pages) + 1) - 1 : 0;

	/* The first: transparent_hugepage/enabled is "never". */
	if (!hugepage_global_enabled() || !(vma->vm_flags & VM_WRITE) ||
	    (vma->vm_flags & (VM_STACK | VM_SHADOW_STACK)) || userfaultfd_armed(vma))
		return 0;
	return (vma->vm_flags & VM_HUGEPAGE ? -1UL : orders) & folio_order_left();
}

/* Blocks use up memory faster: wake kswapd if no node is above the middle of low and high. */
static void folio_order_wake_kswapd(unsigned int order)
{
	struct zonelist *zones = node_zonelist(numa_mem_id(), GFP_HIGHUSER_MOVABLE);
	struct zoneref *at, *first = first_zones_zonelist(zones, ZONE_MOVABLE, NULL);
	struct zone *zone;

	for_each_zone_zonelist(zone, at, zones, ZONE_MOVABLE)
		if (zone_watermark_ok(zone, 0, BIT(order) + low_wmark_pages(zone) / 2 +
				      high_wmark_pages(zone) / 2, ZONE_MOVABLE, 0))
			return;
	wakeup_kswapd(zonelist_zone(first), GFP_HIGHUSER_MOVABLE, 0, ZONE_MOVABLE);
}

/* Allocate the largest of @orders that can be had at the fault. */
static struct folio *folio_order_get(struct vm_fault *vmf, unsigned long orders)
{
	const gfp_t gfp = GFP_TRANSHUGE_LIGHT;
	struct vm_area_struct *vma = vmf->vma;
	struct folio *folio;
	unsigned int order;

	/* VM_NOHUGEPAGE, PR_SET_THP_DISABLE, and other VMAs without large folios. */
	orders = __thp_vma_allowable_orders(vma, vma->vm_flags, TVA_PAGEFAULT, orders);
	if (!orders)
		return NULL;
	folio_order_wake_kswapd(highest_order(orders));
	/* Without __GFP_RECLAIM: not below the min watermark. */
	for (order = highest_order(orders); orders; order = next_order(&orders, order)) {
		folio = vma_alloc_large_folio(gfp, order, vma,
					      ALIGN_DOWN(vmf->address, PAGE_SIZE << order));
		if (folio && !mem_cgroup_charge(folio, vma->vm_mm, gfp) &&
		    !folio_memcg_alloc_deferred(folio)) {
			folio_throttle_swaprate(folio, gfp);
			if (user_alloc_needs_zeroing() && !quell_mutant(FOLIO_NOT_ZEROED))
				folio_zero_user(folio, vmf->address);
			count_vm_event(FOLIO_ORDER_ALLOC);
			return folio;
		}
		if (folio) {
			count_mthp_stat(order, MTHP_STAT_ANON_FAULT_FALLBACK_CHARGE);
			folio_put(folio);
		}
		count_mthp_stat(order, MTHP_STAT_ANON_FAULT_FALLBACK);
	}
	count_vm_event(FOLIO_ORDER_PRESSURE);
	return NULL;
}

static noinline struct folio *folio_order_look(struct vm_fault *vmf, union folio_order_hint hint)
{
	struct vm_area_struct *vma = vmf->vma;
	unsigned long table = vmf->address & PMD_MASK, orders = folio_order_orders(vma);
	struct folio_order_fault fault = {
		.vma		= vma,
		.table		= orders ? pte_offset_map(vmf->pmd, table) : NULL,
		.start		= max(table, vma->vm_start) >> PAGE_SHIFT,
		.end		= min(table + PMD_SIZE - 1, vma->vm_end - 1) / PAGE_SIZE + 1,
		.page		= vmf->address >> PAGE_SHIFT,
		.hint		= hint,
		.old_counts	= !(vmf->flags & FOLIO_ORDER_ACCESS),
	};
	struct folio *folio = NULL;
	unsigned int order;

	if (!fault.table)
		return NULL;
	order = folio_order_choose(&fault, orders);
	pte_unmap(fault.table);
	if (order)
		folio = folio_order_get(vmf, orders & (BIT(order + 1) - 1));
	count_vm_events(FOLIO_ORDER_UNUSED, fault.unused);
	hint = folio_order_note(&fault, folio ? folio_order(folio) : 0);
	if (hint.word != READ_ONCE(vma->vm_private_data))
		WRITE_ONCE(vma->vm_private_data, hint.word);
	return folio;
}

struct folio *folio_order_alloc(struct vm_fault *vmf)
{
	union folio_order_hint hint = { .word = READ_ONCE(vmf->vma->vm_private_data) };

	return folio_order_passes(hint.score, vmf->address >> PAGE_SHIFT) ? NULL :
	       folio_order_look(vmf, hint);
}

void folio_order_probe(struct vm_fault *vmf, unsigned long addr, unsigned int nr)
{
	unsigned long from = addr >> PAGE_SHIFT, end = from + (folio_order_left() & nr), at, probe;

	for (at = from; at < end; at += FOLIO_ORDER_STEP(nr)) {
		probe = folio_order_probe_of(at, nr, vmf->address >> PAGE_SHIFT);
		ptep_test_and_clear_young(vmf->vma, probe << PAGE_SHIFT, vmf->pte + probe - from);
	}
}

/* Others may write to @folio meanwhile: the split looks again at each page, when unmapped. */
bool folio_order_underused(struct folio *folio)
{
	long nr = folio_nr_pages(folio), zero = 0, i;

	if (!(folio_order_left() & nr) || folio_contain_hwpoisoned_page(folio))
		return false;
	for (i = 0; i < nr && zero * 4 < nr; i++)
		zero += pages_identical(folio_page(folio, i), ZERO_PAGE(0));
	count_vm_events(FOLIO_ORDER_UNDERUSED, zero * 4 >= nr);
	return zero * 4 >= nr;
}

/* Split @folio, and put the caller's reference, which keeps it large until then. */
static bool folio_order_split_folio(struct folio *folio)
{
	bool locked = folio_trylock(folio), done = locked && !split_folio(folio);

	count_vm_events(FOLIO_ORDER_SPLIT, done);
	if (locked)
		folio_unlock(folio);
	folio_put(folio);
	return done;
}

struct folio *folio_order_move_page(struct folio *folio, struct folio_walk *fw,
				    struct vm_area_struct *vma, unsigned long addr)
{
	unsigned int flags;

	if (!folio_test_anon(folio) || folio_test_hugetlb(folio) ||
	    !(folio_order_left() & folio_nr_pages(folio)))
		return folio;
	folio_get(folio);
	folio_walk_end(fw, vma);
	flags = memalloc_pin_save();	/* pages of zeroes stay pages */
	folio_order_split_folio(folio);
	memalloc_pin_restore(flags);
	return folio_walk_start(fw, vma, addr, FW_ZEROPAGE);
}

/* Folios of a queue that a run looks at: stock queues each new huge page, too. */
#define FOLIO_ORDER_SPLIT_WALK	4096UL
/* Runs after a failed split. A reference may be held for long; reclaim tries again. */
#define FOLIO_ORDER_SPLIT_TRIES	4UL

/* Runs that are left; ULONG_MAX: as many as the queues need, since a folio was queued. */
static unsigned long folio_order_split_left;

/* Migration may leave the flag set on a folio that is mapped as a whole. */
static void folio_order_take(struct folio *folio, void *batch)
{
	if (folio_test_partially_mapped(folio) && !folio_entire_mapcount(folio) &&
	    folio_mapped_pages(folio) < folio_nr_pages(folio) && folio_try_get(folio))
		folio_batch_add(batch, folio);
}

/* Split the partially mapped folios at the head of a queue. Returns how many runs are to follow. */
static unsigned long folio_order_split_queue(int nid, struct mem_cgroup *memcg)
{
	unsigned long count = deferred_split_count(nid, memcg), left, walked;
	unsigned long again = count / FOLIO_ORDER_SPLIT_WALK;
	struct folio_batch batch;
	struct folio *folio;

	/* A walk moves folios to the end, so the next run gets the others. */
	for (left = min(count, FOLIO_ORDER_SPLIT_WALK); left; left -= walked) {
		folio_batch_init(&batch);
		walked = deferred_split_walk(nid, memcg, folio_order_take, &batch,
					     min(left, folio_batch_space(&batch)));
		if (!walked)
			break;
		while ((folio = folio_batch_next(&batch)))
			if (!folio_order_split_folio(folio))
				again = max(again, FOLIO_ORDER_SPLIT_TRIES);
		cond_resched();
	}
	return again;
}

static void folio_order_split(struct work_struct *work)
{
	/* Before the queues: a folio that is queued later asks for a run of its own. */
	unsigned long left = xchg(&folio_order_split_left, 0), again = 0;
	struct mem_cgroup *memcg = NULL;
	int nid;

	for_each_node_state(nid, N_MEMORY) {
		do {	/* the node's own queue, then those of the cgroups */
			again = max(again, folio_order_split_queue(nid, memcg));
			cond_resched();
			memcg = mem_cgroup_iter(NULL, memcg, NULL);
		} while (memcg);
	}
	again = min(again, left ? left - 1 : 0);
	if (again && static_branch_likely(&folio_order_key)) {
		/* Not over the ULONG_MAX of a folio that was queued meanwhile. */
		cmpxchg(&folio_order_split_left, 0, again);
		queue_delayed_work(system_dfl_wq, to_delayed_work(work), HZ / 2);
	}
}

static DECLARE_DELAYED_WORK(folio_order_split_work, folio_order_split);

void folio_order_split_soon(void)
{
	/* The work sees the folio, or this sees that the work has begun. */
	smp_mb();
	if (READ_ONCE(folio_order_split_left) != ULONG_MAX)
		xchg(&folio_order_split_left, ULONG_MAX);
	if (!delayed_work_pending(&folio_order_split_work))
		queue_delayed_work(system_dfl_wq, &folio_order_split_work, HZ / 2);
}

static ssize_t max_kb_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(folio_order_max_kb));
}

static ssize_t max_kb_store(struct kobject *kobj, struct kobj_attribute *attr,
			    const char *buf, size_t count)
{
	ssize_t ret = quell_store_uint(buf, count, &folio_order_max_kb, PMD_SIZE / SZ_1K / 2);

	/* A choice here is for all sizes. */
	if (ret > 0)
		WRITE_ONCE(folio_order_manual, 0);
	return ret;
}

static struct kobj_attribute max_kb_attr = __ATTR_RW(max_kb);

static struct quell_mechanism folio_order_mechanism = {
	.name	= "folio_order",
	.key	= &folio_order_key.key,
	.attrs	= (const struct attribute * const []){ &max_kb_attr.attr, NULL },
};

static int __init folio_order_init(void)
{
	folio_order_max_kb = arch_wants_anon_folio_size() / SZ_1K;
	return quell_register(&folio_order_mechanism);
}
subsys_initcall(folio_order_init);

#ifdef CONFIG_QUELL_KUNIT_TEST
#include "tests/folio_order-kunit.h"
#endif
