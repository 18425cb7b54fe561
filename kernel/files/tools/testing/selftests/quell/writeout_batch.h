/* SPDX-License-Identifier: GPL-2.0-only */
/* Parts of the test of batched write-out: see writeout_batch.c. */
#ifndef QUELL_WRITEOUT_BATCH_H
#define QUELL_WRITEOUT_BATCH_H

#include "pages.h"
#include "system.h"

#define LIST		512		/* pages per page table: one list of MADV_PAGEOUT */
#define BATCH		64		/* folios per flush */

enum kind { PRIVATE, SHARED, LARGE, KINDS };

/* writeout_batch.c */
extern const char * const kind_names[];
extern double seconds;

/* To a device or to zswap. */
long pages_out(void);
/* LIST pages in one page table. */
uint64_t *map_list(enum kind kind);
void fill_list(uint64_t *list, uint64_t value);
bool list_is(const uint64_t *list, uint64_t value);

/* writeout_batch_events.c */
void test_no_loss(enum swap swap);
void test_events(enum swap swap);

#endif /* QUELL_WRITEOUT_BATCH_H */
