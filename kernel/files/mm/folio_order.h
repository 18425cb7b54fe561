/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The order of anonymous folios: hooks for the fault, zap, fork and what shows and
 * sets it. The policy, and why the bound on unasked memory holds, is at the head
 * of mm/folio_order.c.
 */
#ifndef _MM_FOLIO_ORDER_H
#define _MM_FOLIO_ORDER_H

#include <linux/folio_order.h>
#include <linux/jump_label.h>
#include <linux/mm.h>
#include <linux/sizes.h>

#ifndef arch_wants_anon_folio_order
/*
 * The order of anonymous folios that the architecture likes best where the program
 * said nothing: the one from which on its TLB gains no more, for example. More than
 * 64 KB is taken for 64 KB, less than 16 KB means single pages.
 */
static inline unsigned int arch_wants_anon_folio_order(void)
{
	return ilog2(SZ_64K) - min(PAGE_SHIFT, ilog2(SZ_64K));
}

#define arch_wants_anon_folio_order arch_wants_anon_folio_order
#endif

/* Addresses: what a task populates, see folio_order_populate_begin(). */
struct folio_order_range {
	unsigned long start;
	unsigned long end;
};

typedef bool folio_order_swap_check(struct vm_fault *vmf, pte_t *pte, int nr_pages);

#ifdef CONFIG_QUELL_FOLIO_ORDER

DECLARE_STATIC_KEY_FALSE(folio_order_key);

struct folio *__folio_order_alloc(struct vm_fault *vmf);
unsigned int __folio_order_charge(struct folio *folio);
void __folio_order_set_ptes(struct vm_fault *vmf, unsigned long addr, pte_t entry,
			    unsigned int nr, unsigned int charge);
void __folio_order_release(struct mm_struct *mm, struct folio *folio);
void __folio_order_zap(struct mm_struct *mm, struct folio *folio, unsigned int nr);
void folio_order_set_manual(unsigned long orders);

struct folio *__folio_order_swapin(struct vm_fault *vmf, folio_order_swap_check *check);
bool folio_order_swap_ptes(struct vm_fault *vmf, struct folio *folio, unsigned long addr,
			   pte_t *pte, pte_t entry, unsigned int nr);
bool folio_order_unreadable(struct vm_area_struct *vma, struct folio *folio);
bool folio_order_mixed(struct vm_area_struct *vma, struct folio *folio, swp_entry_t entry);
void folio_order_populate_begin(struct folio_order_range *range, unsigned long start,
				unsigned long end);
void folio_order_populate_end(struct folio_order_range *range);

/*
 * For alloc_anon_folio(), when none of the sizes that the administrator chose can be
 * had: a large folio, or NULL for a single page.
 */
static inline struct folio *folio_order_alloc(struct vm_fault *vmf)
{
	if (!static_branch_likely(&folio_order_key))
		return NULL;
	return __folio_order_alloc(vmf);
}

/* The same for alloc_swap_folio(), with its own test of PTEs: see the kernel-doc. */
static inline struct folio *folio_order_swapin(struct vm_fault *vmf,
					       folio_order_swap_check *check)
{
	if (!static_branch_likely(&folio_order_key))
		return NULL;
	return __folio_order_swapin(vmf, check);
}

/* Does a hinting fault of NUMA balancing say that the page at @addr was used? */
static inline bool folio_order_hinted(struct vm_fault *vmf, unsigned long addr)
{
	return addr == vmf->address || !static_branch_likely(&folio_order_key);
}

/*
 * What is to be told folio_order_set_ptes(). Not behind the switch: what was allocated
 * before it was switched off comes here.
 */
static inline unsigned int folio_order_charge(struct folio *folio)
{
	return folio_test_large(folio) ? __folio_order_charge(folio) : 0;
}

/* Returns false if nothing is charged, and nothing was done. */
static inline bool folio_order_set_ptes(struct vm_fault *vmf, unsigned long addr,
					pte_t entry, unsigned int nr,
					unsigned int charge)
{
	if (charge)
		__folio_order_set_ptes(vmf, addr, entry, nr, charge);
	return charge;
}

/* The fault does not use the folio that it allocated. */
static inline void folio_order_release(struct mm_struct *mm, struct folio *folio)
{
	if (folio_test_large(folio))
		__folio_order_release(mm, folio);
}

/*
 * May a folio have been written to, and no PTE of others that map it say so? Who frees it
 * lazily has to lock it, and to see that there are none.
 */
static inline bool folio_order_may_hide(void)
{
	return true;
}

/*
 * A PTE of anonymous memory is about to be moved, under the page table locks of both
 * places: maybe behind the back of a recount.
 */
static inline void folio_order_moved(struct mm_struct *mm)
{
	atomic_long_inc(&mm->folio_order.added);
}

/* Before @nr PTEs of a large folio are zapped. */
static inline void folio_order_zap(struct mm_struct *mm, struct folio *folio,
				   unsigned int nr)
{
	if (static_branch_likely(&folio_order_key))
		__folio_order_zap(mm, folio, nr);
}

#else

static inline struct folio *folio_order_alloc(struct vm_fault *vmf)
{
	return NULL;
}

static inline struct folio *folio_order_swapin(struct vm_fault *vmf,
					       folio_order_swap_check *check)
{
	return NULL;
}

static inline bool folio_order_swap_ptes(struct vm_fault *vmf, struct folio *folio,
					 unsigned long addr, pte_t *pte, pte_t entry,
					 unsigned int nr)
{
	return false;
}

static inline bool folio_order_unreadable(struct vm_area_struct *vma, struct folio *folio)
{
	return false;
}

static inline bool folio_order_mixed(struct vm_area_struct *vma, struct folio *folio,
				     swp_entry_t entry)
{
	return false;
}

static inline bool folio_order_hinted(struct vm_fault *vmf, unsigned long addr)
{
	return true;
}

static inline void folio_order_populate_begin(struct folio_order_range *range,
					      unsigned long start, unsigned long end)
{
}

static inline void folio_order_populate_end(struct folio_order_range *range)
{
}

static inline unsigned int folio_order_charge(struct folio *folio)
{
	return 0;
}

static inline bool folio_order_set_ptes(struct vm_fault *vmf, unsigned long addr,
					pte_t entry, unsigned int nr,
					unsigned int charge)
{
	return false;
}

static inline void folio_order_release(struct mm_struct *mm, struct folio *folio)
{
}

static inline bool folio_order_may_hide(void)
{
	return false;
}

static inline void folio_order_moved(struct mm_struct *mm)
{
}

static inline void folio_order_zap(struct mm_struct *mm, struct folio *folio,
				   unsigned int nr)
{
}

static inline void folio_order_set_manual(unsigned long orders)
{
}

#endif /* CONFIG_QUELL_FOLIO_ORDER */

#endif /* _MM_FOLIO_ORDER_H */
