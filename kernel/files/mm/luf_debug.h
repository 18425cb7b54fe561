/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lazy unmap flush: the ledger of open stale windows, and deliberate faults to
 * show that it and the tests find them. See mm/luf_debug.c.
 */
#ifndef _MM_LUF_DEBUG_H
#define _MM_LUF_DEBUG_H

#include <linux/compiler.h>
#include <linux/pgtable.h>

struct folio;
struct mm_struct;

#ifdef CONFIG_QUELL_LUF_DEBUG

/* Each takes away one thing that the argument in mm/luf.c rests on. */
#define LUF_MUTANTS(M)							\
	M(NO_OWING)		/* CPUs are not noted */		\
	M(NO_TLB_GEN)		/* tlb_gen is not raised */		\
	M(SKIP_FLUSH)		/* a drain flushes nobody */		\
	M(DONE_EARLY)		/* done moves before the flush */	\
	M(DROP_LATER)		/* CPUs that caught up are forgotten */	\
	M(AGED_UNCHECKED)	/* everybody has caught up */		\
	M(AGED_NOT_LOCAL)	/* but for this CPU */			\
	M(RELEASE_EARLY)	/* the lot's labels do not matter */	\
	M(LOSE_KEPT)		/* unmapped and kept: no flush */	\
	M(DEFER_WRITABLE)	/* writable and dirty PTEs, too */	\
	M(IGNORE_WRITER)	/* files that are open for writing */	\
	M(CHECK_FIRST)		/* writers looked for, then marked */	\
	M(NO_FILE_LABEL)	/* the file does not know */		\
	M(NO_WRITE_ACCESS)	/* writers do not wait */		\
	M(NO_MM_LABEL)		/* the mm does not know */		\
	M(NO_PENDING)		/* munmap() and others do not ask */	\
	M(NO_WRITE_FAULT)	/* write faults do not ask */		\
	M(MIGRATE_FREE)		/* the source is freed at once */	\
	M(MIGRATE_PROTECTED)	/* write protected, not flushed yet */

#define LUF_MUTANT_ENUM(name)	LUF_MUTANT_##name,
enum luf_mutant {
	LUF_MUTANT_NONE,
	LUF_MUTANTS(LUF_MUTANT_ENUM)
	LUF_NR_MUTANTS
};

extern enum luf_mutant luf_mutant_on;
#define luf_mutant(name) unlikely(READ_ONCE(luf_mutant_on) == LUF_MUTANT_##name)

u64 luf_debug_stamp(void);
void luf_debug_open(struct folio *folio, struct mm_struct *mm,
		    unsigned long address, pte_t pte, unsigned int nr,
		    u64 stamp);

#else

#define luf_mutant(name)	false

static inline u64 luf_debug_stamp(void)
{
	return 0;
}

static inline void luf_debug_open(struct folio *folio, struct mm_struct *mm,
				  unsigned long address, pte_t pte,
				  unsigned int nr, u64 stamp)
{
}

#endif /* CONFIG_QUELL_LUF_DEBUG */

#endif /* _MM_LUF_DEBUG_H */
