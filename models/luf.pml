/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Common parts of the models: memory with store buffers, CPUs with TLBs, the ledger of
 * mm/luf.c. README.md maps names to the kernel's. The including model defines NCPU, NPROC
 * (processes with a store buffer, lazy CPUs last), NPAGE, and the CPUs' work besides
 * computing (SWITCH, LAZY).
 */

#define CPU_ME(c)	(NPROC - NCPU + (c))	/* its store buffer */
#define BIT(n)		(1 << (n))

/* --- Memory ----------------------------------------------------------------- */

/* Seen by all processes. TSO: a store waits in its process's buffer first. */
bool	pte[NPAGE];		/* of mm A: maps page n read-only, or nothing */
byte	tlb_gen;		/* of mm A */
byte	mm_cpus;		/* of mm A: mm_cpumask() */
byte	cpu_owed[NCPU];		/* luf.owed */
bool	mutex;			/* luf.mutex */
byte	clock = 1;		/* luf_clock */
byte	luf_done = 1;	/* luf.done */
byte	seen[NCPU];		/* luf_seen */
bool	lazy[NCPU];		/* is_lazy */
bool	init_mm[NCPU];		/* loaded_mm is init_mm */
byte	file_label;		/* generation of the file (i_luf_label) */
byte	writecount;		/* the file's i_writecount */

/* Addresses of buffered stores. */
#define A_FILE_LABEL	103	/* a compare and exchange: never lowers it */
#define A_WRITE_INC	102	/* an increment, for the others */
#define A_LAZY		110
#define A_INIT_MM	120

chan buffer[NPROC] = [2] of { byte, byte };

#define STORE(me, addr, value)	buffer[me]!addr,value
#define FENCED(me)		empty(buffer[me])
/* smp_mb(), and the first part of every locked instruction. */
#define MB(me)			FENCED(me)

inline commit(p)
{
	buffer[p]?addr,value;
	if
	:: addr < NPAGE -> pte[addr] = value
#ifdef NO_FILE_MAX
	:: addr == A_FILE_LABEL -> file_label = value
#else
	:: addr == A_FILE_LABEL -> file_label = (value > file_label -> value : file_label)
#endif
	:: addr == A_WRITE_INC -> writecount++
	:: addr >= A_INIT_MM -> init_mm[addr - A_INIT_MM] = value
	:: addr >= A_LAZY && addr < A_INIT_MM -> lazy[addr - A_LAZY] = value
	fi;
	addr = 0;
	value = 0
}

/* Buffers drain at any time. */
active proctype Memory()
{
	byte addr, value;

end:	do
	:: d_step { nempty(buffer[0]) -> commit(0) }
#if NPROC > 1
	:: d_step { nempty(buffer[1]) -> commit(1) }
#endif
#if NPROC > 2
	:: d_step { nempty(buffer[2]) -> commit(2) }
#endif
#if NPROC > 3
	:: d_step { nempty(buffer[3]) -> commit(3) }
#endif
#if NPROC > 4
	:: d_step { nempty(buffer[4]) -> commit(4) }
#endif
#if NPROC > 5
	:: d_step { nempty(buffer[5]) -> commit(5) }
#endif
#if NPROC > 6
	:: d_step { nempty(buffer[6]) -> commit(6) }
#endif
	od
}

/* --- CPUs --------------------------------------------------------------------- */

byte	tlb[NCPU];		/* a bit per cached page of mm A */
byte	gen[NCPU];		/* the tlb_gen of mm A that it has reached */
bool	loaded[NCPU];		/* CR3 has mm A */
bool	user[NCPU];		/* may use entries of mm A: runs a thread of it */
byte	ipi[NCPU];		/* initiators that wait for its flush, a bit each */
bool	bad[NPAGE];		/* no CPU may read page n's old frame */

/* Fills the TLB and reads through it at any time. */
proctype Walker(byte c)
{
end:	do
	:: d_step { loaded[c] && pte[0] && !(tlb[c] & 1) -> tlb[c] = tlb[c] | 1 }
	:: d_step { user[c] && (tlb[c] & 1) && bad[0] -> assert(false) }
#if NPAGE > 1
	:: d_step { loaded[c] && pte[1] && !(tlb[c] & 2) -> tlb[c] = tlb[c] | 2 }
	:: d_step { user[c] && (tlb[c] & 2) && bad[1] -> assert(false) }
#endif
#if NPAGE > 2
	:: d_step { loaded[c] && pte[2] && !(tlb[c] & 4) -> tlb[c] = tlb[c] | 4 }
	:: d_step { user[c] && (tlb[c] & 4) && bad[2] -> assert(false) }
#endif
	od
}

/* Drops the TLB if reached differs. */
inline catch_up()
{
	d_step {
		if
		:: gen[c] != reached -> tlb[c] = 0; gen[c] = reached
		:: else
		fi
	}
}

/* luf_caught_up(). Visible at once: a delay means more flushes. */
inline caught_up()
{
	seen[c] = look;
	look = 0;
	reached = 0
}

/* luf_look_at_clock() precedes the read of tlb_gen. */
#ifdef NO_LOOK_FIRST		/* smp_rmb() in luf_look_at_clock() */
#define LOOK_EARLY
#define LOOK_LATE	; look = clock
#else
#define LOOK_EARLY	; look = clock
#define LOOK_LATE
#endif

/* Computes and takes interrupts. */
proctype Cpu(byte c)
{
	byte look, reached, who;
#ifdef LAZY
	bool is_lazy;
#endif

end:	do
	:: d_step { ipi[c] -> who = ipi[c] LOOK_EARLY };
		/* flush_tlb_func() */
		if
#ifdef LAZY
		:: is_lazy ->
			/* switch_mm_irqs_off(init_mm) */
			atomic { is_lazy = false; STORE(CPU_ME(c), A_LAZY + c, 0) };
			d_step { MB(CPU_ME(c)) -> mm_cpus = mm_cpus & ~BIT(c); loaded[c] = false LOOK_LATE };
			STORE(CPU_ME(c), A_INIT_MM + c, 1)
		:: !is_lazy && loaded[c] ->
#else
		:: loaded[c] ->
#endif
			d_step { reached = tlb_gen };
#ifdef NO_LOOK_FIRST
			look = clock;
#endif
#ifdef NO_SEEN_LAST		/* luf_caught_up() after the flush */
			seen[c] = look;
#endif
			catch_up()
#if defined(SWITCH) || defined(LAZY)
		:: !loaded[c]
#endif
		fi;
		d_step { caught_up(); ipi[c] = ipi[c] & ~who; who = 0 }
#ifdef SWITCH
	:: d_step { user[c] -> user[c] = false LOOK_EARLY };
		/* switch_mm_irqs_off() to another mm */
		mm_cpus = mm_cpus & ~BIT(c);
		d_step { loaded[c] = false LOOK_LATE; caught_up() }
#endif
#if defined(SWITCH) || defined(LAZY)
	:: d_step { !loaded[c] LOOK_EARLY };
		/* switch_mm_irqs_off() to mm A */
#ifdef LAZY
		/* LOADED_MM_SWITCHING */
		STORE(CPU_ME(c), A_INIT_MM + c, 0);
#ifndef NO_SWITCH_MB		/* Linux: the bit in mm_cpumask() is a full barrier */
		MB(CPU_ME(c));
#endif
#endif
		mm_cpus = mm_cpus | BIT(c);
		d_step { reached = tlb_gen };
#ifdef NO_LOOK_FIRST
		look = clock;
#endif
#ifdef NO_SWITCH_COMPARE	/* Linux: loading an mm compares tlb_gen */
		reached = gen[c];
#endif
		d_step { catch_up(); loaded[c] = true };
		d_step { caught_up(); user[c] = true }
#endif
#ifdef LAZY
	:: user[c] ->
		/* enter_lazy_tlb() */
		atomic { user[c] = false; is_lazy = true; STORE(CPU_ME(c), A_LAZY + c, 1) }
	:: d_step { is_lazy LOOK_EARLY };
		/* switch_mm_irqs_off() to the mm that is loaded */
		atomic { is_lazy = false; STORE(CPU_ME(c), A_LAZY + c, 0) };
#ifndef NO_LAZY_MB		/* Linux: smp_mb() in switch_mm_irqs_off() */
		MB(CPU_ME(c));
#endif
		d_step { reached = tlb_gen };
#ifdef NO_LOOK_FIRST
		look = clock;
#endif
#ifdef NO_LAZY_COMPARE		/* Linux: a lazy CPU compares tlb_gen */
		reached = gen[c];
#endif
		catch_up();
		d_step { caught_up(); user[c] = true }
#endif
	od
}

/* Interrupt the CPUs and wait for them. An IPI is a full barrier. */
inline flush_cpus(me, cpus)
{
	MB(me);
	d_step {
		if
		:: (cpus & 1) && !lazy[0] -> ipi[0] = ipi[0] | BIT(me)
		:: else
		fi;
#if NCPU > 1
		if
		:: (cpus & 2) && !lazy[1] -> ipi[1] = ipi[1] | BIT(me)
		:: else
		fi
#endif
	}
#if NCPU > 1
	!((ipi[0] | ipi[1]) & BIT(me))
#else
	!(ipi[0] & BIT(me))
#endif
}

/* --- The ledger ----------------------------------------------------------------- */

#define LOCK(me, lock)	d_step { MB(me) && !(lock) -> lock = true }

/* luf_raise() for a CPU of the mm */
inline owe_cpu(c)
{
	if
	:: !(cpus & BIT(c)) || cpu_owed[c] >= label
	:: else -> d_step {
		MB(me) ->
		if
		:: cpu_owed[c] < label -> cpu_owed[c] = label
		:: else
		fi }
	fi
}

#ifdef LOT
byte	newest;			/* luf_newest */
#endif

/* luf_owe(), after arch_luf_unmapped(). Sets label. */
inline ledger_owe(me)
{
	label = clock + 1;
	cpus = mm_cpus;
#ifndef NO_OWE_ADD		/* CPUs are noted as pending */
	owe_cpu(0);
#if NCPU > 1
	owe_cpu(1);
#endif
#endif
	cpus = 0;
#ifndef NO_OWE_LAST		/* the generation is read after that */
	label = clock + 1;
#endif
#ifdef LOT
	d_step {
		MB(me) -> newest = (label > newest -> label : newest)
	}
#else
	skip
#endif
}

/* luf_reached(): may the CPU use an entry that went stale up to upto? */
inline look_behind(c, upto)
{
#ifndef NO_OWED			/* only flushes that the CPU is owed */
	behind = (seen[c] < upto && seen[c] < cpu_owed[c]);
#else
	behind = (seen[c] < upto);
#endif
	if
	:: behind && lazy[c] -> behind = false
	:: else
	fi;
	if
	:: behind && init_mm[c] -> behind = false
	:: else
	fi
}

inline flush_if_behind(c)
{
	look_behind(c, need);
	d_step {
		if
		:: behind -> flushing = flushing | BIT(c); behind = false
		:: else
		fi
	}
}

/* luf_flush() */
inline luf_flush(me, need)
{
	if
	:: luf_done >= need
	:: else ->
#ifndef NO_FLUSH_MUTEX		/* one drain at a time */
		LOCK(me, mutex);
#endif
		if
		:: luf_done >= need
		:: else ->
#ifndef NO_CLOCK_FIRST		/* flushes up to need are all noted */
			d_step {
				MB(me) ->
				if
				:: clock < need -> clock++
				:: else
				fi };
#endif
#ifdef NO_DONE_AFTER		/* luf_completed moves after the flush */
			d_step { MB(me) -> luf_done = need };
#endif
			flush_if_behind(0);
#if NCPU > 1
			flush_if_behind(1);
#endif
#ifdef NO_CLOCK_FIRST
			d_step {
				MB(me) ->
				if
				:: clock < need -> clock++
				:: else
				fi };
#endif
#ifndef NO_FLUSH		/* pending CPUs are flushed */
			if
			:: flushing -> flush_cpus(me, flushing)
			:: else
			fi;
#endif
			d_step { MB(me) -> luf_done = need; flushing = 0 }
		fi;
#ifndef NO_FLUSH_MUTEX
		mutex = false
#endif
	fi
}

/* Scratch. */
#define FLUSH_VARS byte flushing; bool behind

/* One CPU of luf_aged() */
inline aged_cpu(c)
{
	if
	:: c == here
	:: else ->
		look_behind(c, label);
		d_step {
			if
			:: behind && seen[c] < label -> label = seen[c]
			:: else
			fi;
			behind = false
		}
	fi
}

/* luf_aged() on CPU here, or elsewhere for NCPU. Sets label. */
inline luf_aged(me)
{
#ifdef NO_AGED_MB		/* smp_mb(): the clock before the CPUs */
	label = 200;
#else
	label = clock;
#endif
	aged_cpu(0);
#if NCPU > 1
	aged_cpu(1);
#endif
#ifdef NO_AGED_MB
	if
	:: label > clock -> label = clock
	:: else
	fi;
#endif
#ifdef HERE
	if
	:: here < NCPU ->
		look_behind(0, label);
		if
		:: behind && label > luf_done ->
#ifndef NO_HERE_FLUSH		/* this CPU is flushed, too */
			flush_cpus(me, BIT(here));
#endif
			behind = false
		:: behind && label <= luf_done -> behind = false
		:: else
		fi
	:: else
	fi;
#endif
	label = (luf_done > label -> luf_done : label)
}

/* --- The deferred-free list (lot), by generations; drain.pml has the list --------- */

#ifdef LOT

byte	parked[NPAGE];		/* the page's generation; 0: not deferred */
bool	isolated[NPAGE];	/* reclaim has a reference, too */
inline lot_add(n)
{
	parked[n] = label
}

inline release_page(n, done)
{
	if
	:: parked[n] && parked[n] <= done -> parked[n] = 0; bad[n] = !isolated[n]
	:: else
	fi
}

/* luf_release() */
inline release(done)
{
	d_step {
		release_page(0, done);
#if NPAGE > 1
		release_page(1, done);
#endif
#if NPAGE > 2
		release_page(2, done);
#endif
		skip
	}
}

/* With a flush, without one, or either. */
#define FULL	1
#define AGED	2

proctype Drain(byte me, what)
{
	byte need, label;
	byte here = NCPU;
	FLUSH_VARS;

end:	do
	:: d_step { newest && (what & FULL) -> need = newest };
		/* luf_drain_node() */
		luf_flush(me, need);
		release(need);
		need = 0
	:: newest && (what & AGED) ->
		/* luf_drain_aged() */
#ifdef HERE
		if
		:: here = 0
		:: here = NCPU
		fi;
#endif
		luf_aged(me);
		release(label);
		d_step { label = 0; here = NCPU }
	od
}

#endif /* LOT */
