/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The APIs of mm/ that differ between the supported versions of Linux, under mainline's names. See
 * docs/versions.md of the project.
 */
#ifndef _MM_QUELL_COMPAT_H
#define _MM_QUELL_COMPAT_H

#include <linux/huge_mm.h>
#include <linux/list_lru.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/rmap.h>
#include <linux/swap.h>
#include <linux/swapops.h>
#include <linux/version.h>
#include <linux/workqueue.h>
#include "internal.h"
#include "swap.h"

#define QUELL_LINUX_6_12	(LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0))

#if QUELL_LINUX_6_12
#include <linux/pagevec.h>
#define FOLIO_BATCH_SIZE	PAGEVEC_SIZE
#else
#include <linux/folio_batch.h>
#include <linux/leafops.h>
#include "page_alloc.h"
#endif

#if QUELL_LINUX_6_12
#define folio_has_movable_ops(folio)	__folio_test_movable(folio)
#else
#define folio_has_movable_ops(folio)	page_has_movable_ops(&(folio)->page)
#endif

/* --- Page table entries ------------------------------------------------------------ */

#if QUELL_LINUX_6_12
#define pte_uffd(pte)			pte_uffd_wp(pte)
#define pte_swp_mkuffd(pte)		pte_swp_mkuffd_wp(pte)
#define softleaf_from_pte(pte)		pte_to_swp_entry(pte)
#define softleaf_to_pfn(entry)		swp_offset_pfn(entry)
#define softleaf_is_migration(entry)	is_migration_entry(entry)
#define softleaf_is_migration_write(entry) is_writable_migration_entry(entry)
#define softleaf_is_migration_read_exclusive(entry) \
	is_readable_exclusive_migration_entry(entry)
#define softleaf_is_migration_young(entry) is_migration_entry_young(entry)
#define softleaf_is_migration_dirty(entry) is_migration_entry_dirty(entry)

static inline void cond_install_uffd_wp_ptes(struct vm_area_struct *vma, unsigned long addr,
					     pte_t *ptep, pte_t pte, unsigned int nr)
{
	pte_install_uffd_wp_if_needed(vma, addr, ptep, pte);
}
#endif

/* Does stock unmap runs of PTEs of @folio by itself? 7.3: of files and lazily freed memory. */
static inline bool stock_unmaps_runs(const struct folio *folio)
{
	return !QUELL_LINUX_6_12 && !(folio_test_anon(folio) && folio_test_swapbacked(folio));
}

#ifdef CONFIG_QUELL_RMAP_BATCH

/* --- Swap entries of a run of pages --------------------------------------------------- */

/* Add a user to the swap entries of @nr pages of @folio from @page on: to all, or to none. */
static inline bool folio_dup_swap_run(struct folio *folio, struct page *page, unsigned int nr)
{
#if QUELL_LINUX_6_12
	return swap_duplicate_nr(page_swap_entry(page), nr);
#else
	unsigned int i;

	if (nr == folio_nr_pages(folio))
		return folio_dup_swap(folio, NULL) >= 0;
	for (i = 0; i < nr && folio_dup_swap(folio, page + i) >= 0; i++)
		;
	if (i == nr)
		return true;
	while (i--)
		folio_put_swap(folio, page + i);
	return false;
#endif
}

/* Drop one user of them. */
static inline void folio_put_swap_run(struct folio *folio, struct page *page, unsigned int nr)
{
#if QUELL_LINUX_6_12
	swap_free_nr(page_swap_entry(page), nr);
#else
	while (nr--)
		folio_put_swap(folio, page++);
#endif
}

#if QUELL_LINUX_6_12
/* For swapoff; before the first swap entry is set. */
static inline void mm_prepare_for_swap_entries(struct mm_struct *mm)
{
	if (!list_empty(&mm->mmlist))
		return;
	spin_lock(&mmlist_lock);
	if (list_empty(&mm->mmlist))
		list_add(&mm->mmlist, &init_mm.mmlist);
	spin_unlock(&mmlist_lock);
}
#endif

#endif /* CONFIG_QUELL_RMAP_BATCH */

/* --- Batched write-out ------------------------------------------------------------ */

#ifdef CONFIG_QUELL_WRITEOUT_BATCH
/* The swap device of @type, in use or not; NULL if there never was one. */
static inline struct swap_info_struct *quell_swap_info(int type)
{
#if QUELL_LINUX_6_12
	return swp_swap_info(swp_entry(type, 0));
#else
	return READ_ONCE(swap_info[type]);
#endif
}
#endif

/* --- Large anonymous folios ------------------------------------------------------------ */

#ifdef CONFIG_QUELL_FOLIO_ORDER

#if QUELL_LINUX_6_12
#define TVA_PAGEFAULT			TVA_IN_PF
#define system_dfl_wq			system_unbound_wq
#define user_alloc_needs_zeroing()	true
#define folio_memcg_alloc_deferred(...)	0
#define vma_alloc_large_folio(gfp, order, vma, addr) \
	vma_alloc_folio(gfp, order, vma, addr, true)
#else
#define vma_alloc_large_folio(gfp, order, vma, addr) \
	vma_alloc_folio(gfp, order, vma, addr)
#endif

/* How many pages of @folio, which has no PMD mapping, are mapped. */
static inline int folio_mapped_pages(struct folio *folio)
{
#ifdef CONFIG_NO_PAGE_MAPCOUNT
	return folio_mapcount(folio);
#else
	return folio_nr_pages_mapped(folio);
#endif
}

typedef void (*deferred_split_cb)(struct folio *folio, void *arg);

#if QUELL_LINUX_6_12

/* A cgroup has one queue for all nodes. */
static inline struct deferred_split *deferred_split_queue(int nid, struct mem_cgroup *memcg)
{
#ifdef CONFIG_MEMCG
	if (memcg)
		return nid == first_memory_node ? &memcg->deferred_split_queue : NULL;
#endif
	return &NODE_DATA(nid)->deferred_split_queue;
}

static inline unsigned long deferred_split_count(int nid, struct mem_cgroup *memcg)
{
	struct deferred_split *queue = deferred_split_queue(nid, memcg);

	return queue ? READ_ONCE(queue->split_queue_len) : 0;
}

/* Call @cb for the next @nr folios, under the queue's lock. Returns how many there were. */
static inline unsigned long deferred_split_walk(int nid, struct mem_cgroup *memcg,
						deferred_split_cb cb, void *arg,
						unsigned long nr)
{
	struct deferred_split *queue = deferred_split_queue(nid, memcg);
	struct folio *folio, *next;
	unsigned long walked = 0;

	spin_lock_irq(&queue->split_queue_lock);
	nr = min(nr, queue->split_queue_len);
	list_for_each_entry_safe(folio, next, &queue->split_queue, _deferred_list) {
		if (walked++ == nr)
			break;
		list_move_tail(&folio->_deferred_list, &queue->split_queue);
		cb(folio, arg);
	}
	spin_unlock_irq(&queue->split_queue_lock);
	return min(walked, nr);
}

#else

extern struct list_lru deferred_split_lru;

struct deferred_split_arg {
	deferred_split_cb cb;
	void *arg;
};

static inline enum lru_status deferred_split_one(struct list_head *item,
						 struct list_lru_one *list, void *cb_arg)
{
	struct deferred_split_arg *arg = cb_arg;
	struct folio *folio = container_of(item, struct folio, _deferred_list);

	arg->cb(folio, arg->arg);
	return LRU_ROTATE;
}

/* A cgroup without a list of its own, as the root, would return that of memcg NULL. */
static inline unsigned long deferred_split_count(int nid, struct mem_cgroup *memcg)
{
	if (memcg && memcg_kmem_id(memcg) < 0)
		return 0;
	return list_lru_count_one(&deferred_split_lru, nid, memcg);
}

static inline unsigned long deferred_split_walk(int nid, struct mem_cgroup *memcg,
						deferred_split_cb cb, void *arg,
						unsigned long nr)
{
	struct deferred_split_arg cb_arg = { .cb = cb, .arg = arg };
	unsigned long left = nr;

	list_lru_walk_one_irq(&deferred_split_lru, nid, memcg, deferred_split_one, &cb_arg,
			      &left);
	return nr - left;
}

#endif

#endif /* CONFIG_QUELL_FOLIO_ORDER */

#endif /* _MM_QUELL_COMPAT_H */
