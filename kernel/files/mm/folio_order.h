/* SPDX-License-Identifier: GPL-2.0-only */
/* Hooks of large anonymous folios sized by faults: mm/folio_order.c has the policy. */
#ifndef _MM_FOLIO_ORDER_H
#define _MM_FOLIO_ORDER_H

#include <linux/jump_label.h>
#include <linux/mm.h>
#include <linux/sizes.h>

#ifndef arch_wants_anon_folio_size
/* Bytes of the largest folio of memory without MADV_HUGEPAGE: a power of two. */
static inline unsigned int arch_wants_anon_folio_size(void)
{
	return SZ_64K;
}
#endif

struct folio_walk;
DECLARE_STATIC_KEY_FALSE(folio_order_key);
extern unsigned long folio_order_manual;

/* The hooks ask this before they call a function below. */
static inline bool folio_order_on(void)
{
	return IS_ENABLED(CONFIG_QUELL_FOLIO_ORDER) && static_branch_likely(&folio_order_key);
}

/* A charged, zeroed folio of order 2 or more, or NULL. vmf->pmd has a table, unlocked. Sleeps. */
struct folio *folio_order_alloc(struct vm_fault *vmf);

/* After @nr PTEs of a new large folio were set, from vmf->pte on. */
void folio_order_probe(struct vm_fault *vmf, unsigned long addr, unsigned int nr);

/* May a write fault after fork reuse a page of @folio? For Linux 6.12: mm/quell_compat.c. */
bool folio_order_reuse(struct vm_fault *vmf, struct folio *folio);

/* Should @folio, which goes to swap, be split because a large part of it is zeroes? */
bool folio_order_underused(struct folio *folio);

/* move_pages() places single pages: split the @folio of one. Returns the page's folio, or NULL. */
struct folio *folio_order_move_page(struct folio *folio, struct folio_walk *fw,
				    struct vm_area_struct *vma, unsigned long addr);

/* A partially mapped folio was queued for splitting. Any context. */
void folio_order_split_soon(void);

/* The size of @order is the administrator's: its control was written to, or thp_anon= names it. */
static inline void folio_order_set_manual(unsigned int order)
{
	if (IS_ENABLED(CONFIG_QUELL_FOLIO_ORDER))
		set_bit(order, &folio_order_manual);
}

#endif /* _MM_FOLIO_ORDER_H */
