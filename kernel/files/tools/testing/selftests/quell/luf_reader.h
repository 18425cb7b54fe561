/* SPDX-License-Identifier: GPL-2.0-only */
/* A reader on another CPU, whose TLB entries are hot when its pages are taken away. */
#ifndef QUELL_LUF_READER_H
#define QUELL_LUF_READER_H

#include "luf.h"

/* Content of pages: before a change, after it, and of freed frames. */
#define OLD	0x01d01d01d01d01d0UL
#define NEW	0x4e3e4e3e4e3e4e3eUL
#define POISON	0xdeaddeaddeaddeadUL
/* Rounds of a reader after the change. */
#define LOOKS	2000

struct reader {
	pthread_t thread;
	volatile uint64_t *map;
	bool zero_is_fine;
	bool on_first;			/* on CPU 0, not 1 */
	atomic_bool hot;		/* every page was read */
	atomic_bool changed;		/* old content is stale from now on */
	atomic_bool stop;
	atomic_ulong reads;
	atomic_ulong stale;		/* old content after @changed */
	atomic_ulong wrong;		/* neither old nor new content */
};

/* Returns once @r->map is in the TLB of the reader's CPU. A fault of the reader ends it. */
void reader_start(struct reader *r);
void reader_stop(struct reader *r);
/* Ends the reader after LOOKS looks at new content. @old_is_fine: after some time. */
void reader_look(struct reader *r, bool old_is_fine);

/* Freed frames hold POISON. @flags: further ones of mmap() */
void poison_frames(int flags);
/* Writes NEW to each page of an open file. */
void put_new(int fd);

#endif /* QUELL_LUF_READER_H */
