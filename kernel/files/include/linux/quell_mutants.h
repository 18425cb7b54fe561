/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Mutations, of which a debug kernel can switch one on to see whether the tests fail. See
 * mm/quell_mutants.c.
 */
#ifndef _LINUX_QUELL_MUTANTS_H
#define _LINUX_QUELL_MUTANTS_H

#ifdef CONFIG_QUELL_MUTANTS

#include <linux/compiler.h>

/* Each disables one step that the argument of a mechanism needs. */
#define QUELL_MUTANTS(M)						\
	/* mm/luf.c */							\
	M(LUF_NO_OWING)		/* CPUs are not recorded */		\
	M(LUF_NO_TLB_GEN)	/* tlb_gen is not raised */		\
	M(LUF_SKIP_FLUSH)	/* a drain sends no flush */		\
	M(LUF_DONE_EARLY)	/* done moves before the flush */	\
	M(LUF_AGED_UNCHECKED)	/* no CPU counts as pending */		\
	M(LUF_AGED_NOT_LOCAL)	/* this CPU is not flushed */		\
	M(LUF_RELEASE_EARLY)	/* generations are ignored */		\
	M(LUF_LOSE_KEPT)	/* unmapped and kept: no flush */	\
	M(LUF_DEFER_WRITABLE)	/* writable and dirty PTEs, too */	\
	M(LUF_IGNORE_WRITER)	/* files that are open for writing */	\
	M(LUF_CHECK_FIRST)	/* writers looked for, then marked */	\
	M(LUF_NO_FILE_LABEL)	/* i_luf_label is not raised */		\
	M(LUF_NO_WRITE_ACCESS)	/* writers do not wait */		\
	M(LUF_NO_MM_LABEL)	/* mm->luf_label is not raised */	\
	M(LUF_NO_PENDING)	/* munmap() and others do not flush */	\
	M(LUF_NO_WRITE_FAULT)	/* write faults do not flush */		\
	M(LUF_MIGRATE_FREE)	/* the source is freed at once */	\
	M(LUF_MIGRATE_PROTECTED) /* write protected, not flushed yet */	\
	M(LUF_HOARD)		/* a full list and the timer drain */	\
	/* mm/rmap_batch.c: of a run of PTEs */				\
	M(RMAP_FIRST_ONLY)	/* the record is of the first PTE */	\
	M(RMAP_LOSE_DIRTY)	/* the folio stays clean */		\
	M(RMAP_LOSE_EXCLUSIVE)	/* swap entries are shared */		\
	M(RMAP_ALL_EXCLUSIVE)	/* swap entries are exclusive */	\
	M(RMAP_LOSE_SOFT_DIRTY)						\
	M(RMAP_LOSE_UFFD_WP)						\
	M(RMAP_LOSE_MARKER)	/* uffd-wp of files */			\
	M(RMAP_LOSE_YOUNG)	/* in migration entries */		\
	M(RMAP_LOSE_PTE_DIRTY)	/* in migration entries */		\
	M(RMAP_ALL_WRITABLE)	/* migration entries */			\
	M(RMAP_POISONED)	/* poisoned pages are in it, too */	\
	M(RMAP_MLOCKED)		/* VM_LOCKED is ignored */		\
	M(RMAP_DROP_USED)	/* lazily freed, and written again */	\
	M(RMAP_SHARE_PINNED)	/* pins are ignored */			\
	M(RMAP_ONE_COUNTED)	/* rss */				\
	M(RMAP_SWAP_LEAK)	/* entries that a short run left */	\
	/* kernel/smp_early_ack.h */					\
	M(EARLY_ACK_NO_FLUSH)	/* acknowledged, never flushed */	\
	M(EARLY_ACK_FLUSH_LATER) /* with the next timer interrupt */	\
	M(EARLY_ACK_NOT_OWED)	/* NMIs may touch user memory */	\
	/* mm/gather_range.c */						\
	M(GATHER_OWN_ONLY)	/* the range of the gather alone */	\
	/* mm/folio_order.c */						\
	M(FOLIO_NOT_ZEROED)	/* the frame's former content shows */	\
	M(FOLIO_REUSE_SHARED)	/* others may map the folio, too */	\
	/* mm/writeout_batch.c */					\
	M(WRITEOUT_NO_FLUSH)	/* no CPU flushes */			\
	M(WRITEOUT_FLUSH_LATE)	/* after the batch's I/O began */	\
	M(WRITEOUT_FORGET)	/* the last folio of a batch */

#define QUELL_MUTANT_ENUM(name)	QUELL_MUTANT_##name,
enum quell_mutant {
	QUELL_MUTANT_NONE,
	QUELL_MUTANTS(QUELL_MUTANT_ENUM)
	QUELL_NR_MUTANTS
};

extern enum quell_mutant quell_mutant_on;
#define quell_mutant(name)						\
	unlikely(READ_ONCE(quell_mutant_on) == QUELL_MUTANT_##name)

#else

#define quell_mutant(name)	false

#endif /* CONFIG_QUELL_MUTANTS */

#endif /* _LINUX_QUELL_MUTANTS_H */
