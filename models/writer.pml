/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * R3 (b): after an open for writing and a write, no CPU reads older content. Reclaimers
 * unmap one page of the file each. Openers open, write and close.
 */
#define NRECLAIM	2
#ifndef NOPEN
#define NOPEN		2
#endif
#define NPAGE		NRECLAIM
#define NPROC		(NRECLAIM + NOPEN + 1)

#include "luf.pml"

/* Pages are alike: CPUs read this one, the other stands for the rest. */
#define OBSERVED	1

bool	gone[NPAGE];		/* out of the page cache: writers get another frame */
bool	dirty[NPAGE];		/* written, and stays in the page cache */

proctype Reclaim(byte me)
{
	byte label, cpus;
	bool deferred;

	/* try_to_unmap() */
	STORE(me, me, 0);
	d_step { MB(me) -> tlb_gen++ };
	/* __luf_defer() */
	ledger_owe(me);
#ifdef NO_FILE_MAX		/* the file's generation only grows */
	STORE(me, A_FILE_LABEL, label);
#elif !defined(NO_FILE_LABEL)	/* the file's generation is raised */
	if
	:: file_label >= label
	:: else -> STORE(me, A_FILE_LABEL, label)
	fi;
#endif
	label = 0;
#ifndef NO_DEFER_MB		/* smp_mb(): the generation before i_writecount */
	MB(me);
#endif
#ifndef NO_WRITECOUNT		/* the look at i_writecount */
	deferred = !writecount;
#else
	deferred = true;
#endif
	/* The usual batch is flushed here, as in stock. */
	if
	:: !deferred -> flush_cpus(me, mm_cpus)
	:: else
	fi;
	/* remove_mapping() */
	d_step {
		if
		:: !dirty[me] -> gone[me] = true
		:: else
		fi
	}
}

inline write(n)
{
	if
	:: d_step { gone[n] -> bad[n] = true }
	:: d_step { !gone[n] -> dirty[n] = true }
	:: true			/* another page, or none */
	fi
}

proctype Opener(byte me)
{
	byte need;
	FLUSH_VARS;

	/* get_write_access() */
#ifdef NO_WRITER_MB		/* smp_mb__after_atomic(): i_writecount before the generation */
	STORE(me, A_WRITE_INC, 0);
#else
	d_step { MB(me) -> writecount++ };
#endif
	/* luf_write_access() */
#ifndef NO_WRITER_FLUSH		/* deferred flushes of the file */
	need = file_label;
	luf_flush(me, need);
#endif
	need = 0;
	/* write() */
	write(OBSERVED);
	/* put_write_access(): orders nothing */
	writecount--
}

#ifdef DRAIN
/* A foreign flush. */
proctype Drain(byte me)
{
	byte need;
	FLUSH_VARS;

	need = clock + 1;
	luf_flush(me, need);
	need = 0
}
#endif

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
		for (i : 0 .. NRECLAIM - 1) {
			run Reclaim(i)
		}
		pte[OBSERVED] = true;
		for (i : 0 .. NOPEN - 1) {
			run Opener(NRECLAIM + i)
		}
#ifdef DRAIN
		run Drain(NRECLAIM + NOPEN);
#endif
		skip
	}
}
