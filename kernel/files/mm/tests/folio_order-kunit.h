/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit tests of the policy of anonymous folios: simulated programs touch pages of one page table
 * that no process has.
 *
 * Memory that is filled from one end gets four single pages, then 16 KB, 32 KB, 64 KB, and 64 KB
 * from there on: 7 faults for the first 32 pages, and 30 for the other 480.
 */
#include <kunit/test.h>
#include <linux/string.h>

#define SIM_ORDERS	(BIT(2) | BIT(3) | BIT(4))
/* The first page's number: that of a page table. */
#define SIM_BASE	(0x7fUL << (PMD_SHIFT - PAGE_SHIFT))
#define SIM_PAGES	((unsigned int)PTRS_PER_PTE)

struct sim {
	struct vm_area_struct vma;
	pte_t table[MAX_PTRS_PER_PTE];
	bool touched[MAX_PTRS_PER_PTE];
	union folio_order_hint hint;
	unsigned long orders;
	bool populates;
	unsigned int faults, there, nr_touched, unused;
	u32 random;
};

static u32 sim_random(struct sim *sim, u32 below)
{
	sim->random = sim->random * 1664525 + 1013904223;
	return (u32)(((u64)sim->random * below) >> 32);
}

static struct sim *sim_new(struct kunit *test)
{
	struct sim *sim = kunit_kzalloc(test, sizeof(*sim), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, sim);
	if (SIM_PAGES < 256)
		kunit_skip(test, "a page table has %u pages", SIM_PAGES);
	sim->vma.vm_start = SIM_BASE << PAGE_SHIFT;
	sim->vma.vm_end = (SIM_BASE + SIM_PAGES) << PAGE_SHIFT;
	sim->orders = SIM_ORDERS;
	sim->random = 1;
	return sim;
}

/* A frame that is not the zero page's. */
static pte_t sim_pte(bool young)
{
	pte_t pte = pfn_pte(is_zero_pfn(1) ? 2 : 1, PAGE_SHARED);

	return young ? pte_mkyoung(pte) : pte_mkold(pte);
}

static void sim_touch(struct sim *sim, unsigned int page)
{
	struct folio_order_fault fault = {
		.vma	= &sim->vma,
		.table	= sim->table,
		.start	= sim->vma.vm_start >> PAGE_SHIFT,
		.end	= sim->vma.vm_end >> PAGE_SHIFT,
		.page	= SIM_BASE + page,
		.hint	= sim->hint,
		.old_counts = sim->populates,
	};
	unsigned int order = 0, nr, first, i;
	unsigned long probe;

	sim->nr_touched += !sim->touched[page];
	sim->touched[page] = true;
	if (pte_present(sim->table[page])) {
		sim->table[page] = pte_mkyoung(sim->table[page]);
		return;
	}
	if (!folio_order_passes(sim->hint.score, fault.page)) {
		order = folio_order_choose(&fault, sim->orders);
		sim->hint = folio_order_note(&fault, order);
		sim->unused += fault.unused;
	}
	sim->faults++;

	nr = BIT(order);
	first = page & -nr;
	sim->there += nr;
	for (i = first; i < first + nr; i++)
		sim->table[i] = sim_pte(true);
	for (i = first; order && i < first + nr; i += FOLIO_ORDER_STEP(nr)) {
		probe = folio_order_probe_of(SIM_BASE + i, nr, fault.page);
		sim->table[probe - SIM_BASE] = sim_pte(false);
	}
}

static void forward_test(struct kunit *test)
{
	struct sim *sim = sim_new(test);
	unsigned int i;

	for (i = 0; i < SIM_PAGES; i++)
		sim_touch(sim, i);
	KUNIT_EXPECT_EQ(test, sim->faults, 7 + (SIM_PAGES - 32) / 16);
	KUNIT_EXPECT_EQ(test, sim->there, SIM_PAGES);
}

static void backward_test(struct kunit *test)
{
	struct sim *sim = sim_new(test);
	unsigned int i;

	for (i = SIM_PAGES; i--;)
		sim_touch(sim, i);
	KUNIT_EXPECT_EQ(test, sim->faults, 7 + (SIM_PAGES - 32) / 16);
}

/* The VMA begins and ends within the page table, and within blocks. */
static void edges_test(struct kunit *test)
{
	struct sim *sim = sim_new(test);
	unsigned int i;

	sim->vma.vm_start += 5 * PAGE_SIZE;
	sim->vma.vm_end = sim->vma.vm_start + 50 * PAGE_SIZE;
	for (i = 5; i < 55; i++)
		sim_touch(sim, i);
	KUNIT_EXPECT_EQ(test, sim->there, 50U);
	KUNIT_EXPECT_TRUE(test, pte_none(sim->table[4]));
	KUNIT_EXPECT_TRUE(test, pte_none(sim->table[55]));
}

/* Pages of other VMAs in the page table do not count. */
static void others_test(struct kunit *test)
{
	struct sim *sim = sim_new(test);
	unsigned int i;

	sim->vma.vm_start += 5 * PAGE_SIZE;
	sim->vma.vm_end = sim->vma.vm_start + 50 * PAGE_SIZE;
	for (i = 0; i < SIM_PAGES; i += i == 4 ? 51 : 1)
		sim->table[i] = sim_pte(true);
	for (i = 5; i < 55; i++)
		sim_touch(sim, i);
	KUNIT_EXPECT_EQ(test, sim->there, 50U);
	KUNIT_EXPECT_EQ(test, sim->faults, 15U);

	sim = sim_new(test);
	sim->vma.vm_start += 96 * PAGE_SIZE;
	for (i = 0; i < 96; i++)
		sim->table[i] = sim_pte(true);
	sim_touch(sim, 120);
	KUNIT_EXPECT_EQ(test, sim->there, 1U);
}

/* Neither shared zeroes nor swapped pages are used, or free. */
static void not_used_test(struct kunit *test)
{
	const pte_t not_used[] = {
		pte_mkyoung(pfn_pte(page_to_pfn(ZERO_PAGE(0)), PAGE_READONLY)),
		swp_entry_to_pte(swp_entry(0, 1)),
	};
	unsigned int i, k;

	for (k = 0; k < ARRAY_SIZE(not_used); k++) {
		struct sim *beside = sim_new(test), *in = sim_new(test);

		for (i = 0; i < 4; i++) {
			sim_touch(in, i);
			beside->table[i] = i == 1 ? not_used[k] : sim_pte(true);
		}
		sim_touch(beside, 4);
		KUNIT_EXPECT_EQ(test, beside->there, 1U);
		in->table[6] = not_used[k];
		sim_touch(in, 4);
		KUNIT_EXPECT_EQ(test, in->there, 5U);
	}
}

/* get_user_pages(): populating gets blocks, pages here and there do not. */
static void populate_test(struct kunit *test)
{
	struct sim *whole = sim_new(test), *strided = sim_new(test), *gap = sim_new(test);
	unsigned int i;

	whole->populates = true;
	strided->populates = true;
	for (i = 0; i < SIM_PAGES; i++)
		if (pte_none(whole->table[i]))
			sim_touch(whole, i);
	KUNIT_EXPECT_LE(test, whole->faults, 7 + (SIM_PAGES - 32) / 16);
	for (i = 0; i < SIM_PAGES; i += i < 128 ? 1 : 5)
		sim_touch(strided, i);
	KUNIT_EXPECT_LE(test, strided->there, strided->nr_touched + 64);
	/* A gap ends the run, and untouched memory before it is not dense. */
	gap->populates = true;
	for (i = 0; i < 100; i++)
		gap->table[i] = i == 96 ? __pte(0) : sim_pte(i % 4);
	sim_touch(gap, 100);
	KUNIT_EXPECT_EQ(test, gap->there, 1U);
}

static void strided_test(struct kunit *test)
{
	unsigned int stride, i;

	for (stride = 2; stride <= 64; stride *= 2) {
		struct sim *sim = sim_new(test);

		for (i = 0; i < SIM_PAGES; i += stride)
			sim_touch(sim, i);
		KUNIT_EXPECT_EQ(test, sim->there, sim->nr_touched);
	}
}

/* After a filled range few blocks are for single pages that are far apart. */
static void filled_then_strided_test(struct kunit *test)
{
	unsigned int fill, stride, at, i;

	for (fill = 24; fill <= SIM_PAGES / 2; fill += 56)
		for (stride = 5; stride <= 32; stride++)
			for (at = 0; at < stride; at++) {
				struct sim *up = sim_new(test), *down = sim_new(test);

				for (i = 0; i < SIM_PAGES; i += i < fill ? 1 : stride) {
					i += i == fill ? at : 0;
					sim_touch(up, i);
					sim_touch(down, SIM_PAGES - 1 - i);
				}
				KUNIT_EXPECT_LE(test, up->there, up->nr_touched + 64);
				KUNIT_EXPECT_LE(test, down->there, down->nr_touched + 64);
				kunit_kfree(test, up);
				kunit_kfree(test, down);
			}
}

static void random_test(struct kunit *test)
{
	unsigned int there = 0, touched = 0, round;

	for (round = 1; round <= 20; round++) {
		struct sim *sim = sim_new(test);

		sim->random = round;
		while (sim->nr_touched < SIM_PAGES / 2)
			sim_touch(sim, sim_random(sim, SIM_PAGES));
		there += sim->there;
		touched += sim->nr_touched;
	}
	KUNIT_EXPECT_LE(test, there * 100, touched * 102);
}

/* After random accesses memory that is filled from either end gets blocks, also beside strides. */
static void filled_later_test(struct kunit *test)
{
	unsigned int first, touched, i;

	for (first = 0; first < 32; first++) {
		struct sim *up = sim_new(test), *down = sim_new(test);

		up->hint.score = SCORE_MIN;
		down->hint.score = SCORE_MIN;
		for (i = first / 2; first & 1 && i < SIM_PAGES; i += 16) {
			sim_touch(up, i);
			sim_touch(down, i);
		}
		touched = up->faults;
		for (i = first / 2; i < SIM_PAGES; i++) {
			sim_touch(up, i);
			sim_touch(down, SIM_PAGES - 1 - i);
		}
		touched += 40 + SIM_PAGES * (first & 1 ? 6 : 1) / 16;
		KUNIT_EXPECT_LE(test, up->faults, touched);
		KUNIT_EXPECT_LE(test, down->faults, touched);
	}
}

/* Several streams in the same memory; each continues at the front when its share is full. */
static void streams_test(struct kunit *test)
{
	struct sim *sim = sim_new(test);
	unsigned int next[4] = {}, left[4] = {}, front = 0, stream;

	while (front < SIM_PAGES - 8) {
		stream = sim_random(sim, ARRAY_SIZE(next));
		if (!left[stream]) {
			next[stream] = front;
			left[stream] = 3 + sim_random(sim, 5);
			front += left[stream];
		}
		sim_touch(sim, next[stream]++);
		left[stream]--;
	}
	KUNIT_EXPECT_LE(test, sim->faults * 100, sim->nr_touched * 20);
	KUNIT_EXPECT_LE(test, sim->there, front + 16);
}

/* The worst accesses that are known, page by page, and those that use a run twice. */
static void worst_test(struct kunit *test)
{
	struct sim *sim = sim_new(test), *twice = sim_new(test);
	unsigned int i, k;

	for (i = 0; i < 79; i++)
		if ((i > 10 && i < 14) || (i > 14 && i < 25) || i == 46 || i == 48 || i == 78)
			sim_touch(sim, i);
	KUNIT_EXPECT_LE(test, sim->there, sim->nr_touched * 3);
	for (i = 32; i + 32 <= SIM_PAGES; i += 64) {
		for (k = 0; k < 16; k++)
			sim_touch(twice, i + k);
		sim_touch(twice, i + 16);
		sim_touch(twice, i - 1);
	}
	KUNIT_EXPECT_LE(test, twice->there, twice->nr_touched * 3);
}

/* A mapping with isolated faults needs twice a run. */
static void cold_test(struct kunit *test)
{
	struct sim *sim = sim_new(test);
	unsigned int i;

	for (i = 0; i < 9; i++) {
		sim->hint.score = SCORE_COLD;
		sim_touch(sim, i);
	}
	KUNIT_EXPECT_EQ(test, sim->faults, 9U);
	KUNIT_EXPECT_EQ(test, sim->there, 12U);
}

/* Runs that end after five pages: the fifth gets a block that is not used. */
static void unused_test(struct kunit *test)
{
	struct sim *sim = sim_new(test);
	unsigned int i, k;

	for (i = 0; i + 64 <= SIM_PAGES; i += 64)
		for (k = 0; k < 5; k++)
			sim_touch(sim, i + k);
	KUNIT_EXPECT_GT(test, sim->unused, 0U);
	KUNIT_EXPECT_LE(test, sim->there * 100, sim->nr_touched * 150);
}

/* A fault on @page got @order; was a used page beside it? */
static void note(struct folio_order_fault *fault, unsigned long page, unsigned int order,
		 bool beside)
{
	fault->page = page;
	fault->beside = beside;
	fault->hint = folio_order_note(fault, order);
}

static void expect_hint(struct kunit *test, union folio_order_hint hint, int score,
			unsigned int order, unsigned long page)
{
	KUNIT_EXPECT_EQ(test, (int)hint.score, score);
	KUNIT_EXPECT_EQ(test, (unsigned int)hint.order, order);
	KUNIT_EXPECT_EQ(test, (unsigned long)hint.page, page);
}

static void score_test(struct kunit *test)
{
	struct folio_order_fault fault = {};
	void *word;
	int i;

	for (i = 0; i < 100; i++)
		note(&fault, SIM_BASE + i, 0, true);
	expect_hint(test, fault.hint, SCORE_MAX, 0, SIM_BASE + 99);
	for (i = 0; i < 100; i++)
		note(&fault, SIM_BASE + 10 * i, 0, false);
	KUNIT_EXPECT_EQ(test, (int)fault.hint.score, SCORE_MIN);
	/* Random accesses do not write the hint any more. */
	word = fault.hint.word;
	note(&fault, SIM_BASE, 0, false);
	KUNIT_EXPECT_PTR_EQ(test, fault.hint.word, word);
	/* The penalty counts below SCORE_MIN, too. */
	fault.hint.score = -1;
	fault.unused = true;
	note(&fault, SIM_BASE + 5, 0, false);
	expect_hint(test, fault.hint, SCORE_MIN, 0, SIM_BASE + 5);
	fault.unused = false;
	note(&fault, SIM_BASE + 21, 4, true);
	expect_hint(test, fault.hint, 0, 4, SIM_BASE + 16);
	/* The last page of user space and the largest order fit. */
	note(&fault, LONG_MAX >> PAGE_SHIFT, 0, false);
	expect_hint(test, fault.hint, -1, 0, LONG_MAX >> PAGE_SHIFT);
	/* As a pointer it would be no canonical address. */
	KUNIT_EXPECT_LT(test, (long)fault.hint.word, 0);
	note(&fault, SIM_BASE + 21, PMD_ORDER - 1, true);
	KUNIT_EXPECT_EQ(test, (unsigned int)fault.hint.order, (unsigned int)PMD_ORDER - 1);
}

/* One in each quarter, or each four pages, at no page of the fault, and not at one place. */
static void probes_test(struct kunit *test)
{
	unsigned long nr, at, fault, probe, places;

	for (nr = 4; nr <= 256; nr *= 2) {
		places = 0;
		for (at = 0; at < 4096; at += FOLIO_ORDER_STEP(nr))
			for (fault = at & -nr; fault < (at & -nr) + nr; fault++) {
				probe = folio_order_probe_of(at, nr, fault);
				KUNIT_EXPECT_TRUE(test, probe >= at && probe != fault &&
						  probe < at + FOLIO_ORDER_STEP(nr));
				places |= BIT((probe - at) & 31);
			}
		KUNIT_EXPECT_EQ(test, (unsigned int)hweight_long(places),
				min((unsigned int)FOLIO_ORDER_STEP(nr), 32U));
	}
}

/* All probes of a whole block in this page table. */
static void unused_block_test(struct kunit *test)
{
	struct sim *sim = sim_new(test);
	struct folio_order_fault fault = {
		.vma	= &sim->vma,
		.table	= sim->table,
		.start	= SIM_BASE,
		.end	= SIM_BASE + SIM_PAGES,
		.hint	= { .order = 3, .page = SIM_BASE + 8 },
	};
	unsigned int i;

	for (i = 0; i < 24; i++)
		sim->table[i] = sim_pte(i % 4);
	KUNIT_EXPECT_TRUE(test, folio_order_unused(&fault));
	sim->table[8] = sim_pte(true);
	KUNIT_EXPECT_FALSE(test, folio_order_unused(&fault));
	sim->table[8] = sim_pte(false);
	sim->table[9] = sim_pte(false);
	KUNIT_EXPECT_FALSE(test, folio_order_unused(&fault));
	sim->table[9] = __pte(0);
	KUNIT_EXPECT_FALSE(test, folio_order_unused(&fault));
	sim->table[9] = sim_pte(true);
	sim->table[8] = __pte(0);
	KUNIT_EXPECT_FALSE(test, folio_order_unused(&fault));
	fault.hint.page = SIM_BASE + SIM_PAGES + 16;
	KUNIT_EXPECT_FALSE(test, folio_order_unused(&fault));
	fault.hint.page = SIM_BASE - SIM_PAGES + 16;
	KUNIT_EXPECT_FALSE(test, folio_order_unused(&fault));
	fault.hint.page = SIM_BASE + 16;
	KUNIT_EXPECT_TRUE(test, folio_order_unused(&fault));
}

static struct kunit_case folio_order_cases[] = {
	KUNIT_CASE(forward_test),
	KUNIT_CASE(backward_test),
	KUNIT_CASE(edges_test),
	KUNIT_CASE(others_test),
	KUNIT_CASE(not_used_test),
	KUNIT_CASE(populate_test),
	KUNIT_CASE(strided_test),
	KUNIT_CASE(filled_then_strided_test),
	KUNIT_CASE(random_test),
	KUNIT_CASE(filled_later_test),
	KUNIT_CASE(streams_test),
	KUNIT_CASE(worst_test),
	KUNIT_CASE(cold_test),
	KUNIT_CASE(unused_block_test),
	KUNIT_CASE(unused_test),
	KUNIT_CASE(score_test),
	KUNIT_CASE(probes_test),
	{}
};

static struct kunit_suite folio_order_suite = {
	.name		= "folio_order",
	.test_cases	= folio_order_cases,
};

kunit_test_suite(folio_order_suite);
