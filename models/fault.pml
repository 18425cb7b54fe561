/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * R3 (a): once a private copy is mapped where reclaim cleared a PTE, no CPU reads
 * the frame that was there. Two pages of mm A, each under a page table lock of its
 * own; a reclaimer for each; write faults; drains.
 */
#define NPAGE		2
#define NPROC		5

#include "luf.pml"

bool	ptl[NPAGE];
byte	mm_label;		/* mm->luf_label */

proctype Reclaim(byte me)
{
	byte label, cpus;

	LOCK(me, ptl[me]);
	/* try_to_unmap() */
	STORE(me, me, 0);
	d_step { MB(me) -> tlb_gen++ };
	/* __luf_defer() */
	ledger_owe(me);
#ifdef NO_LABEL_MAX		/* the mm's label only grows */
	mm_label = label;
#else
	mm_label = (label > mm_label -> label : mm_label);
#endif
	label = 0;
	d_step { MB(me) -> ptl[me] = false }
}

/* finish_fault() for page n */
proctype Fault(byte me, n)
{
	byte label;

	LOCK(me, ptl[n]);
	if
	:: pte[n]
	:: else ->
#ifndef NO_WRITE_FAULT		/* luf_flush_pending() */
		label = mm_label;
		if
		:: !label
		:: else ->
			if
			:: luf_done >= label
			:: else ->
#ifndef NO_FLUSH_CLOCK		/* labels that are given out from now on are greater */
				d_step { MB(me) -> clock = (label > clock -> label : clock) };
#endif
				/* arch_flush_tlb_batched_pending() */
				d_step { MB(me) -> tlb_gen++ };
				flush_cpus(me, mm_cpus)
			fi;
			d_step {
				if
#ifdef NO_FORGET_CMPXCHG	/* only the label that was looked at is forgotten */
				:: true -> mm_label = 0
#else
				:: mm_label == label -> mm_label = 0
				:: else
#endif
				fi
			}
		fi;
		label = 0;
#endif
		/* set_pte_range(): what the address denotes is another frame */
		bad[n] = true
	fi;
	ptl[n] = false
}

proctype Drain(byte me)
{
	byte need;
	SETTLE_VARS;

	do
	:: clock < 3 ->
		need = clock + 1;
		ledger_settle(me, need);
		need = 0
	:: break
	od
}

init
{
	byte i;

	atomic {
		for (i : 0 .. NCPU - 1) {
			loaded[i] = true;
			user[i] = true;
			mm_cpus = mm_cpus | BIT(i);
			run Walker(i);
			run Cpu(i)
		}
		for (i : 0 .. NPAGE - 1) {
			pte[i] = true;
			run Reclaim(i)
		}
		run Fault(2, 0);
#if NFAULT > 1
		run Fault(3, 1);
#endif
#ifdef DRAIN
		run Drain(4);
#endif
		skip
	}
}
