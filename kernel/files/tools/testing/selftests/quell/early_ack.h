/* SPDX-License-Identifier: GPL-2.0-only */
/* Parts of the test of early acknowledgment: see early_ack.c. */
#ifndef QUELL_EARLY_ACK_H
#define QUELL_EARLY_ACK_H

#include "pages.h"
#include "system.h"

#define MAX_CPUS	8

/*
 * Looks of an initiator before it goes on without the watchers. PAUSE is too slow under
 * emulation.
 */
#define PATIENCE	20000

enum op { DONTNEED, UNMAP, MOVE, PROTECT, UFFD, NR_OPS };

struct totals {
	atomic_ulong reads, stale, wrong;
};

/* early_ack.c */
extern int cpus[MAX_CPUS], nr_cpus;

bool found(const struct totals *totals);
void run_group(struct totals *totals, enum op op, int initiators, int first, int keep_free,
	       int pages, unsigned long rounds);

/* early_ack_huge.c */
void run_shared(unsigned long rounds, bool early);

/* early_ack_probes.c */
void run_probes(struct totals *totals, unsigned long rounds, bool early);

#endif /* QUELL_EARLY_ACK_H */
