/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the models share: memory with store buffers, the CPUs with their TLBs,
 * and the ledger of mm/luf.c. README.md says what stands for what.
 *
 * The including model says how many CPUs (NCPU), processes with a store buffer
 * (NPROC, the CPUs last if they are lazy) and pages (NPAGE) there are, and what the CPUs do
 * besides computing (SWITCH, LAZY).
 */

#define CPU_ME(c)	(NPROC - NCPU + (c))	/* the store buffer of CPU c */
#define BIT(n)		(1 << (n))

/* --- Memory ----------------------------------------------------------------- */

/* What all processes see. A store waits in its process's buffer first: TSO. */
bool	pte[NPAGE];		/* of mm A: maps page n read-only, or nothing */
byte	tlb_gen;		/* of mm A */
byte	mm_cpus;		/* of mm A: mm_cpumask() */
byte	owing;			/* luf.owing */
bool	owing_lock;		/* luf.lock */
bool	mutex;			/* luf.mutex */
byte	clock = 1;		/* luf_clock */
byte	luf_done = 1;	/* luf.done */
byte	seen[NCPU];		/* luf_seen */
bool	lazy[NCPU];		/* is_lazy */
byte	file_label;		/* the last flush that the file is owed */
byte	writecount;		/* i_writecount of the file */

/* Addresses of what is stored through a buffer. */
#define A_OWING		100	/* and luf.lock is free: the unlock comes after it */
#define A_FILE_LABEL	103	/* a compare and exchange: never lowers it */
#define A_WRITE_INC	102	/* an increment, as far as the others see */
#define A_LAZY		110

chan buffer[NPROC] = [2] of { byte, byte };

#define STORE(me, addr, value)	buffer[me]!addr,value
#define FENCED(me)		empty(buffer[me])
/* smp_mb(), and what every locked instruction starts with. */
#define MB(me)			FENCED(me)

inline commit(p)
{
	buffer[p]?addr,value;
	if
	:: addr < NPAGE -> pte[addr] = value
	:: addr == A_OWING -> owing = value; owing_lock = 0
#ifdef NO_FILE_MAX
	:: addr == A_FILE_LABEL -> file_label = value
#else
	:: addr == A_FILE_LABEL -> file_label = (value > file_label -> value : file_label)
#endif
	:: addr == A_WRITE_INC -> writecount++
	:: addr >= A_LAZY -> lazy[addr - A_LAZY] = value
	fi;
	addr = 0;
	value = 0
}

/* The buffers drain whenever they like. */
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

/* --- CPUs ---------------------------------------------------------------------- */

byte	tlb[NCPU];		/* a bit per page of mm A that is cached */
byte	gen[NCPU];		/* the tlb_gen of mm A that this CPU has reached */
bool	loaded[NCPU];		/* CR3 has mm A */
bool	user[NCPU];		/* may use entries of mm A: runs a thread of it */
byte	ipi[NCPU];		/* who waits for this CPU to flush: a bit each */
bool	bad[NPAGE];		/* nobody may read the frame that page n had */

/* Fills the TLB whenever it likes, and reads through it. */
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

/* Drop what is stale, if reached says that something is. */
inline catch_up()
{
	d_step {
		if
		:: gen[c] != reached -> tlb[c] = 0; gen[c] = reached
		:: else
		fi
	}
}

/* luf_caught_up(). Visible at once: later only means that more is flushed. */
inline caught_up()
{
	seen[c] = look;
	look = 0;
	reached = 0
}

/* luf_look_at_clock() comes before tlb_gen is read. */
#ifdef NO_LOOK_FIRST		/* smp_rmb() in luf_look_at_clock() */
#define LOOK_EARLY
#define LOOK_LATE	; look = clock
#else
#define LOOK_EARLY	; look = clock
#define LOOK_LATE
#endif

/* A CPU that computes, and takes interrupts. */
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
			d_step { MB(CPU_ME(c)) -> mm_cpus = mm_cpus & ~BIT(c); loaded[c] = false LOOK_LATE }
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
		MB(CPU_ME(c));
#endif
		mm_cpus = mm_cpus | BIT(c);
		d_step { reached = tlb_gen };
#ifdef NO_LOOK_FIRST
		look = clock;
#endif
#ifdef NO_SWITCH_COMPARE	/* Linux: a load of an mm compares tlb_gen */
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
		/* switch_mm_irqs_off() to the mm that is still loaded */
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

/* Interrupt the CPUs of flushing and wait for them. Sending is a full barrier. */
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

/* --- The ledger ------------------------------------------------------------------ */

#define LOCK(me, lock)	d_step { MB(me) && !(lock) -> lock = true }

/* luf_ledger_owe(), after arch_luf_unmapped(). Sets label; cpus is scratch. */
inline ledger_owe(me)
{
#ifdef NO_OWE_MB		/* smp_mb(): the mask before the clock */
	label = clock + 1;
#endif
#ifndef NO_OWE_ADD		/* the CPUs go into the mask */
	/* arch_luf_covered() */
	cpus = mm_cpus;
	if
	:: !(cpus & ~owing) -> cpus = 0
	:: else ->
		LOCK(me, owing_lock);
		/* With the unlock. */
		atomic { cpus = owing | mm_cpus; STORE(me, A_OWING, cpus); cpus = 0 }
	fi;
#endif
#ifndef NO_OWE_MB
#ifndef OWE_RMB
	MB(me);
#endif
	label = clock + 1
#endif
}

/* arch_luf_sort() for CPU c: a flush now, a place in the mask later, or neither. */
inline sort_cpu(c)
{
	if
	:: !(flushing & BIT(c))
	:: else ->
		/* arch_luf_behind() */
		if
		:: lazy[c] -> behind = false
		:: else -> behind = (seen[c] < need)
		fi;
		if
		:: behind -> behind = false
		:: else ->
			flushing = flushing & ~BIT(c);
#ifndef NO_LATER		/* who is not behind goes back into the mask: R5 */
			if
			:: lazy[c]
			:: else -> later = later | BIT(c)
			fi
#endif
		fi
	fi
}

/* luf_ledger_settle() */
inline ledger_settle(me, need)
{
	if
	:: luf_done >= need
	:: else ->
#ifndef NO_SETTLE_MUTEX		/* one drain at a time */
		LOCK(me, mutex);
#endif
		if
		:: luf_done >= need
		:: else ->
#ifndef NO_CLOCK_FIRST		/* the clock before the mask */
			d_step { MB(me) -> clock++; value = clock };
#endif
			atomic {
				MB(me) && !owing_lock -> owing_lock = true;
				flushing = owing;
				STORE(me, A_OWING, 0)
			};
#ifdef NO_CLOCK_FIRST
			d_step { MB(me) -> clock++; value = clock };
#endif
#ifndef NO_EMPTY_MB		/* smp_mb(): the mask is empty before anybody is left out */
			MB(me);
#endif
#ifdef NO_DONE_AFTER		/* smp_store_release() of luf.done after the flush */
			d_step { MB(me) -> luf_done = value };
#endif
			sort_cpu(0);
#if NCPU > 1
			sort_cpu(1);
#endif
#ifndef NO_FLUSH		/* who is behind is flushed */
			if
			:: flushing -> flush_cpus(me, flushing)
			:: else
			fi;
#endif
			flushing = 0;
			if
			:: later ->
				atomic {
					MB(me) && !owing_lock -> owing_lock = true;
					STORE(me, A_OWING, owing | later);
					later = 0
				};
#ifndef NO_LATER_DONE		/* then only what was asked for is done */
				value = need
#endif
			:: else
			fi;
			d_step { MB(me) -> luf_done = value; value = 0 }
		fi;
#ifndef NO_SETTLE_MUTEX
		mutex = false
#endif
	fi
}

/* Scratch of ledger_settle(). */
#define SETTLE_VARS byte value, flushing, later; bool behind

/* One CPU of arch_luf_least(). */
inline least_cpu(c)
{
	if
	:: c == here || !(owing & BIT(c))
	:: else ->
		if
		:: lazy[c]
		:: else ->
			if
			:: seen[c] < label -> d_step {
				if
				:: seen[c] < label -> label = seen[c]
				:: else
				fi }
			:: else
			fi
		fi
	fi
}

/* luf_ledger_settled() on CPU here, or elsewhere if that is NCPU. Sets label. */
inline ledger_settled(me, oldest)
{
	if
#ifndef NO_SETTLED_MUTEX	/* not while another drain flushes */
	:: d_step { MB(me) && !mutex -> mutex = true };
#else
	:: true ->
#endif
#ifdef NO_SETTLED_MB		/* smp_mb(): the clock before the mask */
		label = 200;
#else
		label = clock;
#endif
		least_cpu(0);
#if NCPU > 1
		least_cpu(1);
#endif
#ifdef NO_SETTLED_MB
		if
		:: label > clock -> label = clock
		:: else
		fi;
#endif
#ifdef HERE
		if
		:: here < NCPU && (owing & BIT(here)) && !lazy[here] && seen[here] < label ->
			if
			:: label >= oldest ->
#ifndef NO_HERE_FLUSH		/* this CPU is flushed, too */
				flush_cpus(me, BIT(here))
#else
				skip
#endif
			:: else -> label = 0
			fi
		:: else
		fi;
#endif
		label = (luf_done > label -> luf_done : label);
#ifndef NO_SETTLED_MUTEX
		mutex = false
#endif
#ifndef NO_SETTLED_MUTEX
	:: mutex -> label = luf_done
#endif
	fi
}

/* --- The lot, as far as labels go; drain.pml has the list ------------------------- */

#ifdef LOT

byte	parked[NPAGE];		/* the page's label, 0 if it is not in the lot */
byte	newest;			/* lot->newest */

inline lot_add(n)
{
	parked[n] = label;
	newest = (label > newest -> label : newest)
}

inline release_page(n, settled)
{
	if
	:: parked[n] && parked[n] <= settled -> parked[n] = 0; bad[n] = true
	:: else
	fi
}

inline oldest_page(n)
{
	if
	:: parked[n] && parked[n] < need -> need = parked[n]
	:: else
	fi
}

/* luf_release() */
inline release(settled)
{
	d_step {
		release_page(0, settled);
#if NPAGE > 1
		release_page(1, settled);
#endif
#if NPAGE > 2
		release_page(2, settled);
#endif
		skip
	}
}

/* With a flush, without one, or now the one and now the other. */
#define FULL	1
#define AGED	2

proctype Drain(byte me, what)
{
	byte need, label;
	byte here = NCPU;
	SETTLE_VARS;

end:	do
	:: d_step { newest && (what & FULL) -> need = newest };
		/* luf_drain_node() */
		ledger_settle(me, need);
		release(need);
		need = 0
	:: newest && (what & AGED) ->
		/* luf_drain_aged() */
#ifdef HERE
		d_step {
			need = 200;
			oldest_page(0);
#if NPAGE > 1
			oldest_page(1);
#endif
#if NPAGE > 2
			oldest_page(2);
#endif
			skip
		}
		if
		:: here = 0
		:: here = NCPU
		fi;
#endif
		ledger_settled(me, need);
		release(label);
		d_step { label = 0; need = 0; here = NCPU }
	od
}

#endif /* LOT */
