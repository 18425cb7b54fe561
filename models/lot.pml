/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * R1 and R5: no CPU reads a frame that the page allocator has. Reclaimers defer one page
 * each, drains free with and without a flush, and CPUs compute, switch to another mm and
 * back, and are lazy.
 */
#ifndef NRECLAIM
#define NRECLAIM	2
#endif
#ifndef NDRAIN
#define NDRAIN		2
#endif
#ifndef DRAIN0
#define DRAIN0		(FULL | AGED)
#endif
#ifndef DRAIN1
#define DRAIN1		(FULL | AGED)
#endif
#define NPAGE		NRECLAIM
#define LOT
#ifdef LAZY
#define NPROC		(NRECLAIM + NDRAIN + NCPU)
#else
#define NPROC		(NRECLAIM + NDRAIN + 1)
#endif

#include "luf.pml"

proctype Reclaim(byte me)
{
	byte label, cpus;

	/* try_to_unmap(), with the page table lock held */
	STORE(me, me, 0);
	/* arch_luf_unmapped() */
#ifdef NO_TLB_GEN		/* tlb_gen is raised: a later load of the mm sees it */
	MB(me);
#elif defined(NO_UNMAP_MB)	/* a full barrier between the PTE and mm_cpumask() */
	tlb_gen++;
#else
	d_step { MB(me) -> tlb_gen++ };
#endif
	ledger_owe(me);
	/* luf_put_into_lot(); there the clock moves once per many pages */
#ifdef NO_PARK_LABEL		/* not older than any of this task's */
	label = clock;
#else
	label = newest;
#endif
	d_step { lot_add(me); label = 0 };
	d_step { MB(me) -> clock++ }
}

#ifdef OTHER_FLUSH
/* A foreign flush of mm A: flush_tlb_mm_range(). */
proctype Other(byte me)
{
	tlb_gen++;
	flush_cpus(me, mm_cpus)
}
#endif

init
{
	byte i;

	atomic {
		for (i : 0 .. NPAGE - 1) {
			pte[i] = true
		}
		for (i : 0 .. NCPU - 1) {
			loaded[i] = true;
			user[i] = true;
			mm_cpus = mm_cpus | BIT(i);
			run Walker(i);
			run Cpu(i)
		}
		for (i : 0 .. NRECLAIM - 1) {
			run Reclaim(i)
		}
		run Drain(NRECLAIM, DRAIN0);
#if NDRAIN > 1
		run Drain(NRECLAIM + 1, DRAIN1);
#endif
#ifdef OTHER_FLUSH
		run Other(NRECLAIM + NDRAIN);
#endif
		skip
	}
}
