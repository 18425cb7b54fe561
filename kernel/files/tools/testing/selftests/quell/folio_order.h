/* SPDX-License-Identifier: GPL-2.0-only */
/* Parts of the test of folio sizes: see folio_order.c. */
#ifndef QUELL_FOLIO_ORDER_H
#define QUELL_FOLIO_ORDER_H

#include "pages.h"
#include "system.h"

#define SYSFS		QUELL_SYSFS "folio_order/"
#define BIG		(32UL << 20)	/* of most regions */
#define COUNT		(BIG / PAGE)
#define MOST		16UL		/* pages of a folio without advice */
#define LINES		12

struct outcome {
	int bad, lines;
	bool skipped;
	char why[80];
	char line[LINES][160];
};

struct test {
	const char *name;
	void (*run)(void);
};

/* folio_order.c */
extern struct outcome *said;

void __printf(2, 3) expect(bool ok, const char *fmt, ...);
void skip(const char *why);
char *map_region(unsigned long bytes);
uint64_t mark(unsigned long i);
void put(char *map, unsigned long i);
uint64_t get(char *map, unsigned long i);
void fill(char *map, unsigned long from, unsigned long to);
void verify(char *map, unsigned long from, unsigned long to, bool written,
	    const char *when);
unsigned long there(const char *map, unsigned long pages);
unsigned long faults(void);
unsigned long largest(const char *map, unsigned long pages);
/* Page @i is in a folio of @right pages. */
void expect_folio(const char *map, unsigned long i, unsigned int right);
/* The largest folio of a mapping, or of new memory that is filled. */
void expect_largest(const char *map, unsigned long pages, unsigned long right);
void expect_new(unsigned long pages, unsigned long right, const char *when);

/* folio_order_size.c */
extern const struct test size_tests[];

/* folio_order_waste.c */
extern const struct test waste_tests[];

/* folio_order_after_fault.c */
extern const struct test after_fault_tests[];

#endif /* QUELL_FOLIO_ORDER_H */
