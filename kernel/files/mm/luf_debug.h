/* SPDX-License-Identifier: GPL-2.0-only */
/* Lazy unmap flush: the checker of open stale-TLB windows. See mm/luf_debug.c. */
#ifndef _MM_LUF_DEBUG_H
#define _MM_LUF_DEBUG_H

#include <linux/compiler.h>
#include <linux/pgtable.h>

struct folio;
struct mm_struct;

#ifdef CONFIG_QUELL_LUF_DEBUG

u64 luf_debug_stamp(void);
void luf_debug_open(struct folio *folio, struct mm_struct *mm,
		    unsigned long address, pte_t pte, unsigned int nr,
		    u64 stamp);
void luf_debug_run(unsigned int nr);

#else

static inline u64 luf_debug_stamp(void)
{
	return 0;
}

static inline void luf_debug_open(struct folio *folio, struct mm_struct *mm,
				  unsigned long address, pte_t pte,
				  unsigned int nr, u64 stamp)
{
}

static inline void luf_debug_run(unsigned int nr)
{
}

#endif /* CONFIG_QUELL_LUF_DEBUG */

#endif /* _MM_LUF_DEBUG_H */
