/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * R3 (a): once a private copy is mapped over a deferred flush, no CPU reads the old frame.
 * Two pages of mm A under a page table lock each, a reclaimer for each, write faults,
 * drains.
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
#ifdef NO_LABEL_MAX		/* the mm's generation only grows */
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
#ifndef NO_FLUSH_CLOCK		/* later generations are greater */
				d_step { MB(me) -> clock = (label > clock -> label : clock) };
#endif
				/* flush_tlb_mm() */
				d_step { MB(me) -> tlb_gen++ };
				flush_cpus(me, mm_cpus)
			fi;
			d_step {
				if
#ifdef NO_FORGET_CMPXCHG	/* only the generation that was read is forgotten */
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
		/* set_pte_range(): the address denotes another frame */
		bad[n] = true
	fi;
	ptl[n] = false
}

proctype Drain(byte me)
{
	byte need;
	FLUSH_VARS;

	do
	:: clock < 3 ->
		need = clock + 1;
		luf_flush(me, need);
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
