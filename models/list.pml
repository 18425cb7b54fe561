/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * R1, folios unmapped with a deferred flush but kept: no CPU reads a frame that the page
 * allocator has. A reclaimer has two folios, the first of two pages. Each is kept, freed or
 * deferred, beside a drain.
 */
#define NPAGE		3	/* 0, 1: the first folio; 2: the second */
#define NPROC		2
#define LOT

#include "luf.pml"

#define NONE		3

/* current->tlb_ubc */
bool	owed, kept, unmapping;
byte	luf_folio = NONE;
byte	batch;			/* CPUs of the usual batch */

/*
 * luf_hold() of the last unmapped folio: the list has a reference and drops it like a
 * deferred page, or has no room. Reclaim has the folio isolated until it has flushed the usual
 * batch. (The kernel holds small folios only.)
 */
inline hold()
{
	if
	:: kept = true
#ifndef NO_KEPT
#ifdef NO_HOLD_LABEL		/* not older than any of this task's */
	:: label = clock;
#else
	:: label = newest;
#endif
	   d_step {
		if
		:: luf_folio == 0 -> lot_add(0); lot_add(1); isolated[0] = true; isolated[1] = true
		:: luf_folio == 2 -> lot_add(2); isolated[2] = true
		fi;
		label = 0 }
#endif
	fi;
	owed = false
}

/* luf_try_to_unmap() before try_to_unmap() */
inline begin_unmap(f)
{
	if
	:: true ->
		if
		:: owed -> hold()	/* an earlier folio's deferred flush */
		:: else
		fi;
		d_step {
#ifdef NO_KEPT			/* is forgotten */
			kept = false;
#endif
			unmapping = true;
			luf_folio = f }
	:: skip			/* not luf_may_defer_file() */
	fi
}

/* One PTE in try_to_unmap(), deferred or not. */
inline unmap(n)
{
	STORE(me, n, 0);
	d_step { MB(me) -> tlb_gen++ };
	if
	:: unmapping ->
		ledger_owe(me);
		d_step { label = 0; owed = true }
	:: batch = batch | mm_cpus
	fi
}

/* try_to_unmap_flush() */
inline unmap_flush()
{
#ifndef NO_KEPT_FLUSH		/* luf_end_batch() */
	if
	:: owed -> hold()
	:: else
	fi;
	if
	:: kept ->
		need = newest;
		luf_flush(me, need);
		d_step { kept = false; need = 0 }
	:: else
	fi;
#endif
	if
	:: batch -> flush_cpus(me, batch)
	:: else
	fi;
	batch = 0
}

#define FREE		1
#define PARK		2
#define KEEP		3

/* shrink_folio_list() after unmapping. */
inline dispose(f, fate)
{
	unmapping = false;
	if
	:: fate = KEEP
	:: true ->
		d_step {
			/* luf_end_unmap(), which looks before the next folio or with the batch */
			if
#ifdef NO_PARK_FOLIO		/* only the folio with the deferred flush */
			:: owed ->
#else
			:: owed && luf_folio == f ->
#endif
				owed = false; luf_folio = NONE; fate = PARK
			:: else -> fate = FREE
			fi
		}
	fi
}

/* free_unref_folios() */
inline free_batch()
{
	d_step {
		if
		:: fate0 == FREE -> bad[0] = true; bad[1] = true; fate0 = 0
		:: else
		fi;
		if
		:: fate1 == FREE -> bad[2] = true; fate1 = 0
		:: else
		fi
	}
}

/* shrink_folio_list() */
proctype Reclaim(byte me)
{
	byte label, cpus, need, fate0, fate1;
	FLUSH_VARS;

	begin_unmap(0);
	unmap(0);
	unmap(1);
	dispose(0, fate0);
	if
	:: fate0 == FREE ->	/* the batch is full */
		unmap_flush();
		free_batch()
	:: true
	fi;
	if
	:: pte[2] ->
		begin_unmap(2);
		unmap(2)
	:: else			/* not mapped */
	fi;
	dispose(2, fate1);
	unmap_flush();
	free_batch();
	/* luf_put_into_lot() */
	if
	:: fate0 == PARK || fate1 == PARK ->
		label = newest;
		d_step {
			if
			:: fate0 == PARK -> lot_add(0); lot_add(1)
			:: else
			fi;
			if
			:: fate1 == PARK -> lot_add(2)
			:: else
			fi;
			label = 0
		}
	:: else
	fi;
	/* Back on the LRU list, truncated and freed. */
	d_step {
		if
		:: fate0 == KEEP ->
			bad[0] = !parked[0];
			bad[1] = !parked[1];
			isolated[0] = false;
			isolated[1] = false
		:: else
		fi;
		if
		:: fate1 == KEEP -> bad[2] = !parked[2]; isolated[2] = false
		:: else
		fi
	}
}

init
{
	atomic {
		pte[0] = true;
		pte[1] = true;
		if
		:: pte[2] = true
		:: skip
		fi;
		loaded[0] = true;
		user[0] = true;
		mm_cpus = 1;
		run Walker(0);
		run Cpu(0);
		run Reclaim(0);
		run Drain(1, FULL | AGED)
	}
}
