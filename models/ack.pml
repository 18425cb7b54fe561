/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Early acknowledgment (A1 to A4 of arch/x86/mm/early_ack.c, kernel/smp_early_ack.h).
 * Initiators continue once the target has acknowledged. Then the target neither
 * reads nor writes freed frames, and no walk meets a freed page table. A message that is
 * queued without an interrupt is found. Any message may be sent as in stock instead.
 *
 * The target computes, takes interrupts and NMIs, pins a page by GUP-fast (GUP), is lazy
 * (LAZY), switches to another mm (SWITCH) and goes offline (HOTPLUG). Each of two initiators
 * has a page of mm A and a message. One of them also flushes another mm that the target had
 * loaded, which uses its message twice (AGAIN), or frees a page table (TABLES).
 */
#define NSENDER		2
#define NPROC		(NSENDER + 1)
#define TARGET		NSENDER		/* its store buffer */
#define BIT(n)		(1 << (n))

/* --- Memory ----------------------------------------------------------------------- */

bool	pte[NSENDER] = true;	/* of mm A: maps page n, or nothing */
bool	pde = true;		/* of mm A: leads to a page table */
byte	tlb_gen = 1;		/* of mm A */
bool	in_mask = true;		/* in mm_cpumask() of mm A */
bool	online = true;

/* Freed: no CPU may use them. */
bool	free[NSENDER];		/* the frame of page n */
bool	free_table;

/* Messages. A list is the first message's number plus 1, or 0. */
bool	locked[NSENDER];	/* CSD_FLAG_LOCK */
byte	next[NSENDER];
bool	early[NSENDER];		/* CSD_FLAG_EARLY */
bool	other_mm[NSENDER];	/* the request is not for mm A */
byte	req_gen[NSENDER];	/* its new_tlb_gen; the range is page n */
bool	info[NSENDER];		/* the initiator's flush_tlb_info is valid */
byte	queue;			/* the target's call_single_queue */
bool	ipi;
bool	looking;		/* early_ack_looking */

/* TSO: stores wait in a buffer, in order. */
#define A_PTE		0
#define A_CONTENT	10	/* the target's store to page n */
#define A_ACK		20	/* csd_unlock() of message n */
#define A_PDE		30
#define A_LOOKING	31	/* = true */

chan buffer[NPROC] = [2] of { byte };

#define STORE(me, addr)		buffer[me]!addr
#define MB(me)			empty(buffer[me])

inline commit(p)
{
	buffer[p]?addr;
	if
	:: addr < A_CONTENT -> pte[addr] = false
	:: addr >= A_CONTENT && addr < A_ACK -> assert(!free[addr - A_CONTENT])
	:: addr >= A_ACK && addr < A_PDE ->
		assert(locked[addr - A_ACK]);
		locked[addr - A_ACK] = false
#ifdef TABLES
	:: addr == A_PDE -> pde = false
#endif
	:: addr == A_LOOKING -> looking = true
	fi;
	addr = 0
}

active proctype Memory()
{
	byte addr;

end:	do
	:: d_step { nempty(buffer[0]) -> commit(0) }
	:: d_step { nempty(buffer[1]) -> commit(1) }
	:: d_step { nempty(buffer[2]) -> commit(2) }
	od
}

/* --- The target --------------------------------------------------------------------- */

byte	tlb;			/* a bit per cached page of mm A */
bool	upper;			/* a cached upper entry leads to the page table */
byte	gen = 1;		/* the tlb_gen of mm A that it has reached */
bool	loaded = true;		/* CR3 has mm A */
bool	user = true;		/* runs a thread of mm A, interrupts on */
bool	switching;		/* LOADED_MM_SWITCHING */
bool	owed;			/* early_ack_owed */
bool	stopping;		/* stop_machine() keeps initiators away */
byte	sending;		/* initiators between cpu_online_mask and the interrupt */
bool	lazy;			/* cpu_tlbstate_shared.is_lazy */

/* nmi_uaccess_okay() */
#ifdef NO_OWED			/* it looks at early_ack_owed */
#define MAY_READ		(loaded && !lazy && !switching)
#else
#define MAY_READ		(loaded && !lazy && !switching && !owed)
#endif

/* Fills the TLB at any time and uses it: the program, an NMI, a walk. */
active proctype Walker()
{
end:	do
	:: d_step { loaded && pte[0] && !(tlb & 1) -> tlb = tlb | 1 }
	:: d_step { loaded && pte[1] && !(tlb & 2) -> tlb = tlb | 2 }
	:: d_step { user && (tlb & 1) && MB(TARGET) -> STORE(TARGET, A_CONTENT) }
	:: d_step { user && (tlb & 2) && MB(TARGET) -> STORE(TARGET, A_CONTENT + 1) }
	:: d_step { (user || MAY_READ) && (tlb & 1) && free[0] -> assert(false) }
	:: d_step { (user || MAY_READ) && (tlb & 2) && free[1] -> assert(false) }
#ifdef TABLES
	:: d_step { loaded && pde && !upper -> upper = true }
	:: d_step { loaded && upper && free_table -> assert(false) }
#endif
	od
}

inline drop(which)
{
	tlb = tlb & ~(which);
	upper = false
}

/* A range is flushed only if nothing else is missing. */
#ifdef NO_GEN_NEXT		/* Linux: nothing before it */
#define NOTHING_BEFORE(g)	true
#else
#define NOTHING_BEFORE(g)	(g == gen + 1)
#endif
#ifdef NO_GEN_LAST		/* Linux: nothing after it */
#define NOTHING_AFTER(g)	true
#else
#define NOTHING_AFTER(g)	(g == reached)
#endif

/* flush_tlb_func() of page n for gen g; g == 0: everything */
inline flush(other, n, g)
{
	if
	:: !loaded || other
	:: loaded && !other && lazy -> d_step { loaded = false; in_mask = false; lazy = false }
	:: loaded && !other && !lazy ->
		if
		:: g && g <= gen
		:: else ->
			reached = tlb_gen;
			d_step {
				if
				:: reached == gen
				:: reached != gen && g && NOTHING_BEFORE(g) && NOTHING_AFTER(g) ->
					drop(BIT(n))
				:: else -> drop(3)
				fi;
				gen = reached;
				reached = 0
			}
		fi
	fi
}

#ifdef NO_RELEASE		/* the acknowledgment follows earlier stores */
#define ACK(n)			locked[n] = false
#else
#define ACK(n)			STORE(TARGET, A_ACK + (n))
#endif

/* early_ack_take() of message n */
inline take(n)
{
	d_step {
		nr++;
		acked[n] = true;
		work_other[n] = other_mm[n];
		work_gen[n] = req_gen[n]
	}
#ifndef NO_OWED_FIRST		/* owed before the acknowledgment */
	owed = true
#endif
}

/* Message n leaves the list. */
inline unlink(n)
{
	d_step {
		after = next[n];
#ifndef NO_UNLINK		/* run and acknowledged once */
		if
		:: prev -> next[prev - 1] = after
		:: else -> entry = after
		fi
#endif
	}
}

/* early_ack_run() of message n */
inline run_one(n)
{
	if
	:: acked[n] ->
#ifdef NO_COPY			/* copied before the acknowledgment */
		d_step { work_other[n] = other_mm[n]; work_gen[n] = req_gen[n] };
#endif
#ifndef NO_FLUSH		/* the flush */
		flush(work_other[n], n, work_gen[n]);
#endif
		d_step { acked[n] = false; work_other[n] = false; work_gen[n] = 0 }
	:: else
	fi
}

/* early_ack_run_inline() */
inline run_inline()
{
	c = entry;
	prev = 0;
	do
	:: c ->
		c--;
		if
		:: early[c] ->
#ifndef NO_NEXT_FIRST		/* off the list before the acknowledgment */
			unlink(c);
#endif
			take(c);
			ACK(c);
#ifdef NO_OWED_FIRST
			owed = true;
#endif
#ifdef NO_NEXT_FIRST
			unlink(c);
#endif
		:: else -> d_step { prev = c + 1; after = next[c] }
		fi;
		d_step { c = after; after = 0 }
	:: else -> break
	od;
	if
	:: nr ->
#ifdef NO_OWED_LAST		/* owed until the flush */
		owed = false;
#endif
#ifdef NO_RETURN_LAST		/* nothing else runs before the flush */
		user = loaded;
#endif
		run_one(0);
		run_one(1);
		owed = false;
		nr = 0
	:: else
	fi
}

/* __flush_smp_call_function_queue() */
inline handler()
{
	d_step { entry = queue; queue = 0 };
	/* early_ack_receive() */
	if
	:: entry && early[entry - 1] ->
		STORE(TARGET, A_LOOKING);
		run_inline();
		/* smp_store_mb() */
#ifndef NO_LOOK_AGAIN		/* then the queue is read again */
		d_step { MB(TARGET); looking = false };
		d_step { more = queue; queue = 0 };
#else
		d_step { more = queue; queue = 0 };
		d_step { MB(TARGET); looking = false };
#endif
		if
		:: more ->
			/* In the kernel the rest of the first round comes first. */
			rest = entry;
			entry = more;
			more = 0;
			run_inline();
			d_step {
				if
				:: rest -> next[rest - 1] = entry; entry = rest; rest = 0
				:: else
				fi
			}
		:: else
		fi
	:: else -> run_inline()
	fi;
	/* The rest is as in stock: nothing is owed. */
	do
	:: entry ->
		d_step {
			assert(!owed);
			c = entry - 1;
			entry = next[c];
			prev = 0
		};
#ifdef NO_ACK_LAST		/* acknowledged after the flush */
		d_step { acked[c] = true; work_other[c] = other_mm[c]; work_gen[c] = req_gen[c] };
		ACK(c);
		run_one(c);
#elif defined(NO_INFO_FIRST)	/* the initiator's info is read before */
		owed = true;
		ACK(c);
		flush(other_mm[c], c, req_gen[c]);
		assert(info[c]);
		owed = false;
#else
		flush(other_mm[c], c, req_gen[c]);
		assert(info[c]);
		ACK(c);
#endif
		c = 0
	:: else -> break
	od;
	skip
}

active proctype Target()
{
	byte entry, more, rest, prev, c, after, nr, reached;
	byte work_gen[NSENDER];
	bool acked[NSENDER], work_other[NSENDER], was_user;

end:	do
	:: d_step { ipi && online -> ipi = false; was_user = user; user = false };
		handler();
		d_step { user = was_user && loaded; was_user = false }
	:: d_step { online && queue && !ipi && !sending -> assert(false) }
#ifdef GUP
	:: d_step { user && pte[0] -> user = false };
		/* Interrupts off between the PTE and the reference. */
#ifdef NO_GUP_OFF
		if
		:: d_step { ipi -> ipi = false };
			handler()
		:: skip
		fi;
#endif
		d_step { assert(!free[0]); user = loaded }
#endif
#ifdef LAZY
	:: d_step { user -> user = false };
		/* enter_lazy_tlb(): a store after the program's */
		d_step { MB(TARGET); lazy = true }
	:: d_step { loaded && lazy && !ipi -> switching = true };
		/* switch_mm_irqs_off() back to mm A; an NMI still finds a kernel thread */
#ifndef NO_LAZY_FIRST		/* Linux: leaves lazy mode, then reads tlb_gen */
		d_step { MB(TARGET); lazy = false };
		reached = tlb_gen;
#else
		reached = tlb_gen;
		d_step { MB(TARGET); lazy = false };
#endif
		d_step {
			if
			:: gen != reached -> drop(3); gen = reached
			:: else
			fi;
			switching = false;
			user = true;
			reached = 0
		}
#endif
#ifdef SWITCH
	:: d_step { user -> user = false; switching = true };
		/* switch_mm_irqs_off() to another mm */
		d_step { MB(TARGET) -> in_mask = false };
		d_step { loaded = false; switching = false }
	:: d_step { online && !loaded && !ipi };
		/* switch_mm_irqs_off() to mm A */
		in_mask = true;
		reached = tlb_gen;
#ifdef NO_SWITCH_COMPARE	/* Linux: loading an mm compares tlb_gen */
		reached = gen;
#endif
		d_step {
			if
			:: gen != reached -> drop(3); gen = reached
			:: else
			fi;
			loaded = true;
			user = true;
			reached = 0
		}
#endif
#ifdef HOTPLUG
	:: d_step { user && !sending -> user = false; stopping = true };
#ifndef NO_DYING		/* Linux: smpcfd_dying_cpu() empties the queue */
		handler();
#endif
		d_step {
			MB(TARGET);
			assert(!owed);
			loaded = false;
			in_mask = false;
			online = false;
			ipi = false;
			stopping = false
		}
#endif
	od
}

/* --- Initiators ------------------------------------------------------------------------- */

/* native_flush_tlb_multi(); possible: early_ack_possible() with the switch on */
inline send(other, g, possible)
{
	d_step {
		!stopping;
#ifdef NO_TABLES_LAZY		/* freed page tables: should_flush_tlb() is not asked */
		sent = online && (other || (in_mask && !lazy));
#else
		sent = online && (other || (in_mask && (!lazy || !possible)));
#endif
		sending = sending + sent
	};
	if
	:: sent ->
		/* csd_lock() */
		!locked[me];
		locked[me] = true;
		info[me] = true;
		/* early_ack_post(): the switch is on or off */
		if
		:: early[me] = possible
		:: early[me] = false
		fi;
		other_mm[me] = other;
		req_gen[me] = g;
		/* llist_add(), a full barrier */
		d_step {
			MB(me);
			was_empty = !queue;
			next[me] = queue;
			queue = me + 1
		};
		/* An interrupt if it was empty and early_ack_looks() is false */
		d_step {
			if
			:: was_empty && !looking -> ipi = true
			:: else
			fi;
			was_empty = false;
			sending--
		};
		/* csd_lock_wait(): the info may be gone then. */
		d_step { !locked[me]; info[me] = false; sent = false }
	:: else
	fi
}

inline unmap()
{
	STORE(me, A_PTE + me);
	/* inc_mm_tlb_gen() */
	d_step { MB(me); tlb_gen++; new_gen = tlb_gen };
	send(false, new_gen, true);
	d_step { free[me] = true; new_gen = 0 }
}

proctype Initiator(byte me)
{
	byte new_gen;
	bool sent, was_empty;

	unmap()
}

/* Uses its message twice. */
proctype Again(byte me)
{
	byte new_gen;
	bool sent, was_empty;

	if
	:: send(true, 1, true); unmap()
	:: unmap(); send(true, 1, true)
	fi
}

#ifdef TABLES
proctype Tables(byte me)
{
	byte new_gen;
	bool sent, was_empty;

	STORE(me, A_PDE);
	d_step { MB(me); tlb_gen++; new_gen = tlb_gen };
#ifdef NO_TABLES_SYNC		/* freed page tables: as in stock */
	send(false, new_gen, true);
#else
	send(false, new_gen, false);
#endif
	free_table = true
}
#endif

init
{
	atomic {
		run Initiator(0);
#ifdef TABLES
		run Tables(1);
#elif defined(AGAIN)
		run Again(1);
#else
		run Initiator(1);
#endif
	}
}
