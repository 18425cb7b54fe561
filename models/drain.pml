/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * R4: luf_drain_all() returns once all pages that were deferred before it are free.
 * Reclaimers defer a page each, beside drains of all kinds.
 */
#define NRECLAIM	2
#define NDRAIN		2

byte	clock, luf_done, newest;
byte	freeing;		/* readers of lot->freeing */
bool	passing;		/* its writer, which waits for them and keeps others out */
bool	parked[NRECLAIM];	/* luf_lot_add() has returned */
bool	free[NRECLAIM];		/* with the page allocator */
chan lot = [NRECLAIM] of { byte, byte };	/* page, label */

/* luf_put_into_lot() */
proctype Reclaim(byte n)
{
	byte label;

	/* luf_owe() */
	d_step { clock++; label = clock };
#ifdef NO_NEWEST_MAX		/* newest only grows */
	newest = label;
#else
	newest = (label > newest -> label : newest);
#endif
	/* luf_now() */
	label = newest;
	/* luf_lot_add(), under lot->lock */
	d_step { lot!n,label; parked[n] = true }
}

/* luf_release() */
inline release(done)
{
#ifndef NO_FREEING		/* held from the list to the page allocator */
	d_step { !passing -> freeing++ };
#endif
	/* luf_lot_take(), under lot->lock */
	d_step {
		do
		:: nempty(lot) ->
			lot?<page,label>;
			if
			:: label > done -> break
			:: else -> lot?page,label; taken = taken | (1 << page)
			fi
		:: empty(lot) -> break
		od;
		page = 0;
		label = 0
	}
	/* free_unref_folios() */
	d_step {
		for (page : 0 .. NRECLAIM - 1) {
			if
			:: taken & (1 << page) -> free[page] = true
			:: else
			fi
		}
		page = 0;
		taken = 0
	};
#ifndef NO_FREEING
	freeing--
#endif
}

/* luf_drain_node() */
inline drain_node()
{
	need = newest;
	if
	:: empty(lot)
	:: nempty(lot) ->
		/* luf_flush() */
		luf_done = (need > luf_done -> need : luf_done);
		release(need)
	fi;
	need = 0
}

/* luf_drain_all() */
proctype Drain_all()
{
	byte page, label, taken, need, before;

	d_step {
		for (page : 0 .. NRECLAIM - 1) {
			if
			:: parked[page] -> before = before | (1 << page)
			:: else
			fi
		}
		page = 0
	};
	drain_node();
#ifndef NO_FREEING_WAIT		/* waits for other drains */
	d_step { !passing -> passing = true };
	!freeing;
	passing = false;
#endif
	d_step {
		for (page : 0 .. NRECLAIM - 1) {
			assert(!(before & (1 << page)) || free[page])
		}
		page = 0
	}
}

/* With a flush or without. */
proctype Drain()
{
	byte page, label, taken, need;

end:	do
	:: nempty(lot) -> drain_node()
	:: nempty(lot) ->
		/* luf_drain_aged(): any generation, as CPUs may have caught up */
		if
		:: need = luf_done
		:: need = clock
		fi;
		release(need);
		need = 0
	od
}

init
{
	byte i;

	atomic {
		for (i : 0 .. NRECLAIM - 1) {
			run Reclaim(i)
		}
		for (i : 0 .. NDRAIN - 1) {
			run Drain_all()
		}
		run Drain()
	}
}
