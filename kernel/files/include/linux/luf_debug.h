/* SPDX-License-Identifier: GPL-2.0-only */
/* Lazy unmap flush: hooks of the checker of open stale-TLB windows. See mm/luf_debug.c. */
#ifndef _LINUX_LUF_DEBUG_H
#define _LINUX_LUF_DEBUG_H

#include <linux/types.h>
#include <asm/pgtable.h>

struct address_space;
struct mm_struct;
struct page;

#ifdef CONFIG_QUELL_LUF_DEBUG
void luf_debug_free(struct page *page, unsigned int order);
void luf_debug_set_ptes(struct mm_struct *mm, unsigned long address, pte_t pte,
			unsigned int nr);
void luf_debug_change(struct address_space *mapping, pgoff_t start, pgoff_t end);
#else
static inline void luf_debug_free(struct page *page, unsigned int order)
{
}

static inline void luf_debug_set_ptes(struct mm_struct *mm,
				      unsigned long address, pte_t pte,
				      unsigned int nr)
{
}

static inline void luf_debug_change(struct address_space *mapping,
				    pgoff_t start, pgoff_t end)
{
}
#endif

#endif /* _LINUX_LUF_DEBUG_H */
