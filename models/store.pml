/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * R2: no store goes through an entry with a deferred flush. A CPU stores through its entry,
 * an mprotect() has not flushed yet, and a reclaimer defers the flush of a read-only, clean
 * PTE.
 */
bool	present = true, writable, dirty;		/* the PTE */
bool	cached, cached_writable, cached_dirty;		/* the CPU's entry */
bool	deferred;		/* the PTE is cleared, its flush deferred */
bool	flush;			/* a flush request to the CPU */
bool	ptl;

proctype Cpu()
{
end:	do
	:: d_step { present && !cached ->
		cached = true; cached_writable = writable; cached_dirty = dirty }
	:: d_step { flush -> cached = false; flush = false }
	:: d_step { cached && cached_writable && cached_dirty -> assert(!deferred) }
#ifdef NO_WALK			/* CPU: the first store walks the page table */
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
#ifndef NO_DIRTY_CHECK		/* dirty PTEs are flushed as in stock */
	:: was_dirty
#endif
#ifndef NO_WRITE_CHECK	/* writable PTEs are flushed as in stock */
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
