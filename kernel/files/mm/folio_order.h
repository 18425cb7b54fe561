/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Large anonymous folios sized by faults: the hooks. The policy is at the head of
 * mm/folio_order.c.
 */
#ifndef _MM_FOLIO_ORDER_H
#define _MM_FOLIO_ORDER_H

#include <linux/jump_label.h>
#include <linux/mm.h>
#include <linux/sizes.h>

#ifndef arch_wants_anon_folio_size
/*
 * Bytes of the largest folio of memory without MADV_HUGEPAGE. An architecture may return another
 * power of two, such as the size from which on its TLB gains no more.
 */
static inline unsigned int arch_wants_anon_folio_size(void)
{
	return SZ_64K;
}

#define arch_wants_anon_folio_size arch_wants_anon_folio_size
#endif

#ifdef CONFIG_QUELL_FOLIO_ORDER

DECLARE_STATIC_KEY_FALSE(folio_order_key);

struct folio *__folio_order_alloc(struct vm_fault *vmf);
void __folio_order_probe(struct vm_fault *vmf, unsigned long addr, unsigned int nr);
bool __folio_order_reuse(struct vm_fault *vmf, struct folio *folio);
bool __folio_order_underused(struct folio *folio);
void __folio_order_split_soon(void);
void folio_order_set_manual(unsigned int order);

/*
 * For alloc_anon_folio(), when no size that the administrator selected can be had. Returns a large
 * folio, or NULL for a single page.
 */
static inline struct folio *folio_order_alloc(struct vm_fault *vmf)
{
	if (!static_branch_likely(&folio_order_key))
		return NULL;
	return __folio_order_alloc(vmf);
}

/* After @nr PTEs of a new folio were set, from vmf->pte on. */
static inline void folio_order_probe(struct vm_fault *vmf, unsigned long addr,
				     unsigned int nr)
{
	if (nr > 1 && static_branch_likely(&folio_order_key))
		__folio_order_probe(vmf, addr, nr);
}

/* May a write fault after fork reuse a page of @folio? */
static inline bool folio_order_reuse(struct vm_fault *vmf, struct folio *folio)
{
	return folio_test_large(folio) && static_branch_likely(&folio_order_key) &&
	       __folio_order_reuse(vmf, folio);
}

/* Should @folio, which goes to swap, be split because a large part of it is zeroes? */
static inline bool folio_order_underused(struct folio *folio)
{
	return folio_test_large(folio) && !folio_test_pmd_mappable(folio) &&
	       static_branch_likely(&folio_order_key) && __folio_order_underused(folio);
}

/* A folio was queued for splitting; @partially_mapped: only a part of it is mapped. */
static inline void folio_order_split_soon(bool partially_mapped)
{
	if (partially_mapped && static_branch_likely(&folio_order_key))
		__folio_order_split_soon();
}

#else

#define folio_order_alloc(...)		((struct folio *)NULL)
#define folio_order_probe(...)		((void)0)
#define folio_order_reuse(...)		false
#define folio_order_underused(...)	false
#define folio_order_split_soon(...)	((void)0)
#define folio_order_set_manual(...)	((void)0)

#endif /* CONFIG_QUELL_FOLIO_ORDER */

#endif /* _MM_FOLIO_ORDER_H */
