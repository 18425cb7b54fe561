/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Bounded stale-TLB windows: the work that closes them runs while a flush is owed.
 * Reclaimers owe a flush each. When nothing moves any more, all of them are done.
 */
#define NRECLAIM	2
#define WORK		NRECLAIM	/* its store buffer */

bool	queued;			/* luf_stale_work is pending */
bool	owed[NRECLAIM];		/* its flush, part of luf_newest */
bool	flushed[NRECLAIM];
bool	stale[NRECLAIM];	/* owed at the last run */

/* TSO: stores wait in their process's buffer. */
#define A_QUEUED	10
chan buffer[NRECLAIM + 1] = [2] of { byte, bool };

#define STORE(me, addr, value)	buffer[me]!addr,value
#define MB(me)			empty(buffer[me])

inline commit(p)
{
	buffer[p]?addr,value;
	if
	:: addr == A_QUEUED -> queued = value
	:: else -> owed[addr] = value
	fi;
	addr = 0;
	value = false
}

active proctype Memory()
{
	byte addr;
	bool value;

end:	do
	:: d_step { nempty(buffer[0]) -> commit(0) }
	:: d_step { nempty(buffer[1]) -> commit(1) }
	:: d_step { nempty(buffer[2]) -> commit(2) }
	od
}

/* luf_owe(), then luf_keep_closing() */
proctype Reclaim(byte me)
{
	STORE(me, me, true);
#ifndef NO_KEEP_MB
	MB(me);
#endif
	if
	:: queued
	:: !queued ->
		/* luf_arm(): a locked instruction */
		d_step { MB(me) -> queued = true }
	fi
}

/* luf_close_windows() */
proctype Work()
{
	byte i;
	bool more;

end:	do
	:: queued ->
		/* set_work_pool_and_clear_pending() */
		STORE(WORK, A_QUEUED, false);
#ifndef NO_CLOSE_MB
		MB(WORK);
#endif
		d_step {
			for (i : 0 .. NRECLAIM - 1) {
				flushed[i] = flushed[i] || stale[i];
				stale[i] = owed[i]
			}
			i = 0
		};
#ifndef NO_MORE
		more = (owed[0] && !flushed[0]) || (owed[1] && !flushed[1]);
		if
		:: more -> d_step { MB(WORK) -> queued = true }
		:: else
		fi;
		more = false
#endif
	od
}

/* Nothing else can move. */
active proctype End()
{
	timeout;
	assert((!owed[0] || flushed[0]) && (!owed[1] || flushed[1]))
}

init
{
	atomic {
		run Reclaim(0);
		run Reclaim(1);
		run Work()
	}
}
