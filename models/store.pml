/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * R2: no store through a stale entry. A CPU with one entry stores through it; an
 * mprotect() takes away the right to write and has not flushed yet; a reclaimer
 * clears the PTE, and defers its flush if it is read-only and clean.
 */
bool	present = true, writable, dirty;		/* the PTE */
bool	cached, cached_writable, cached_dirty;		/* the CPU's entry */
bool	deferred;		/* the PTE is cleared and its flush is deferred */
bool	flush;			/* the CPU is asked to flush */
bool	ptl;

proctype Cpu()
{
end:	do
	:: d_step { present && !cached ->
		cached = true; cached_writable = writable; cached_dirty = dirty }
	:: d_step { flush -> cached = false; flush = false }
	:: d_step { cached && cached_writable && cached_dirty -> assert(!deferred) }
#ifdef NO_WALK			/* the CPU: the first store walks the page table again */
	:: d_step { cached && cached_writable && !cached_dirty -> assert(!deferred) }
#else
	:: d_step { cached && cached_writable && !cached_dirty && present && writable ->
		cached_dirty = true; dirty = true }
	:: d_step { cached && cached_writable && !cached_dirty && !(present && writable) ->
		cached = false }	/* a fault */
#endif
	od
}

proctype Mprotect()
{
	d_step { !ptl -> ptl = true };
	if
	:: present ->
		writable = false;
		ptl = false;
		flush = true;
		!flush
	:: else -> ptl = false
	fi
}

proctype Reclaim()
{
	bool was_writable, was_dirty;

	d_step { !ptl -> ptl = true };
	/* ptep_get_and_clear() */
	d_step { present = false; was_writable = writable; was_dirty = dirty };
	/* __luf_defer() */
	if
#ifndef NO_DIRTY_CHECK		/* dirty PTEs are flushed as usual */
	:: was_dirty
#endif
#ifndef NO_WRITE_CHECK	/* writable PTEs are flushed as usual */
	:: was_writable
#endif
	:: else -> deferred = true
	fi;
	ptl = false
}

init
{
	atomic {
		if
		:: writable = true
		:: writable = false
		fi;
		run Cpu();
		run Mprotect();
		run Reclaim()
	}
}
