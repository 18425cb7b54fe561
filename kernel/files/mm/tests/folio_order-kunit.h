/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit tests of the order of anonymous folios. The policy is run against a model of
 * one VMA, in which programs touch pages as they do; charges are tested with a real
 * folio in a page table that nobody walks.
 *
 * What to expect when memory is filled from one end: four single pages, then 16 KB (a
 * run of 4 pages), 32 KB (8), 64 KB (16), and 64 KB from there on: 7 faults for the
 * first 128 KB, and one for 16 pages after that. 96 MB are 24576 pages: 7 + (24576 -
 * 32) / 16 = 1541 faults, 6.3 % of what single pages take.
 */
#include <kunit/test.h>
#include <linux/sched/mm.h>
#include <linux/string.h>

/* 16 KB to 64 KB; and what MADV_HUGEPAGE gets. */
#define SIM_ORDERS	(BIT(2) | BIT(3) | BIT(4))
#define SIM_ORDERS_MOST	((BIT(PMD_ORDER) - 1) & ~3UL)
#define SIM_PAGES	24576U
/* The first page's number; 16 MB-aligned. */
#define SIM_BASE	0x7f000UL

/* A page of the model: bits. */
#define SIM_ASKED	1
#define SIM_THERE	2
#define SIM_TOKEN	4	/* of a folio that is charged */
#define SIM_HELD	8	/* of a folio that was held against the VMA */
#define SIM_ORDER_SHIFT	4

struct sim {
	u8 *page;
	unsigned long state;
	unsigned long orders;
	unsigned int faults, there, asked, touched;
	unsigned int charged, refused, recounts;
	unsigned int worst;		/* pages there and not asked for, at most */
	bool broken;			/* more than the bound allowed */
	u32 random;
};

static u32 sim_random(struct sim *sim, u32 below)
{
	sim->random = sim->random * 1664525 + 1013904223;
	return (u32)(((u64)sim->random * below) >> 32);
}

static struct sim *sim_new(struct kunit *test, unsigned long orders)
{
	struct sim *sim = kunit_kzalloc(test, sizeof(*sim), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, sim);
	sim->page = kunit_kzalloc(test, SIM_PAGES, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, sim->page);
	sim->orders = orders;
	sim->random = 1;
	return sim;
}

/* As folio_order_inspect(). */
static bool sim_inspect(struct sim *sim, unsigned int beside)
{
	unsigned int nr = 1U << (sim->page[beside] >> SIM_ORDER_SHIFT);
	unsigned int first = beside & -nr, asked = 0, i;

	if (!(sim->page[beside] & SIM_TOKEN))
		return false;
	for (i = first; i < first + nr; i++)
		asked += sim->page[i] & SIM_ASKED;
	if (asked * 2 < nr && !(sim->page[first] & SIM_HELD)) {
		sim->page[first] |= SIM_HELD;
		return true;
	}
	if (asked == nr) {
		/* The model takes off all or nothing: less than the kernel does. */
		for (i = first; i < first + nr; i++)
			sim->page[i] &= ~SIM_TOKEN;
		sim->charged -= nr - 1;
	}
	return false;
}

static unsigned int sim_run(struct sim *sim, unsigned int at, enum folio_order_side side,
			    bool *unused)
{
	unsigned int longest = folio_order_longest(state_score(sim->state), sim->orders);
	int step = side == FOLIO_ORDER_FORWARD ? -1 : 1;
	unsigned int run = 0;
	int i;

	for (i = at + step; i >= 0 && i < SIM_PAGES && run < longest; i += step, run++)
		if (!(sim->page[i] & SIM_ASKED))
			break;
	i = at + step;
	if (i >= 0 && i < SIM_PAGES && sim->page[i] & SIM_THERE)
		*unused = sim_inspect(sim, i);
	return run;
}

static bool sim_free(struct sim *sim, unsigned int first, unsigned int nr)
{
	unsigned int i;

	for (i = first; i < first + nr; i++)
		if (i >= SIM_PAGES || sim->page[i] & SIM_THERE)
			return false;
	return true;
}

static bool sim_reserve(struct sim *sim, unsigned int nr)
{
	if (folio_order_fits(sim->charged + nr, sim->there, 20, 128)) {
		sim->charged += nr;
		return true;
	}
	if (++sim->refused > 64 + sim->there / 16) {
		unsigned int i;

		for (i = 0; i < SIM_PAGES; i++)
			sim->page[i] &= ~SIM_TOKEN;
		sim->charged = sim->there - sim->asked;
		sim->refused = 0;
		sim->recounts++;
	}
	return false;
}

static void sim_fault(struct sim *sim, unsigned int at)
{
	unsigned long page = SIM_BASE + at, first = page;
	enum folio_order_side side = folio_order_side(page);
	unsigned int order = 0, i;
	bool unused = false;

	if (side != FOLIO_ORDER_NONE) {
		unsigned int run = sim_run(sim, at, side, &unused);

		order = folio_order_choose(state_score(sim->state), page, run, side,
					   sim->orders);
		for (; order; order = folio_order_below(sim->orders, order)) {
			first = folio_order_first(page, order, side);
			if (first >= SIM_BASE &&
			    sim_free(sim, first - SIM_BASE, BIT(order)) &&
			    sim_reserve(sim, BIT(order) - 1))
				break;
		}
		first = folio_order_first(page, order, side);
	}
	if (!order)
		first = page;
	sim->state = folio_order_note(sim->state, page, first, order, true, unused);
	for (i = first - SIM_BASE; i < first - SIM_BASE + BIT(order); i++)
		sim->page[i] = SIM_THERE | (order ? SIM_TOKEN : 0) |
			       order << SIM_ORDER_SHIFT;
	sim->faults++;
	sim->there += BIT(order);
}

/* The program writes to a page. */
static void sim_touch(struct sim *sim, unsigned int at)
{
	unsigned int unasked;

	if (!(sim->page[at] & SIM_THERE))
		sim_fault(sim, at);
	if (!(sim->page[at] & SIM_ASKED))
		sim->asked++;
	sim->page[at] |= SIM_ASKED;
	sim->touched++;
	unasked = sim->there - sim->asked;
	sim->worst = max(sim->worst, unasked);
	if (unasked > sim->charged ||
	    (unasked > 32 && unasked * 1000 > 20 * (sim->there + 256)))
		sim->broken = true;
}

static void sim_fill(struct sim *sim, unsigned int from, unsigned int nr)
{
	while (nr--)
		sim_touch(sim, from++);
}

/* All was filled: how many faults did it take, and what is left over? */
static void sim_expect(struct kunit *test, struct sim *sim, unsigned int faults,
		       unsigned int unasked)
{
	KUNIT_EXPECT_LE(test, sim->faults, faults);
	KUNIT_EXPECT_LE(test, sim->there - sim->asked, unasked);
	KUNIT_EXPECT_FALSE(test, sim->broken);
}

static void sim_forward_test(struct kunit *test)
{
	struct sim *sim = sim_new(test, SIM_ORDERS);

	sim_fill(sim, 0, SIM_PAGES);
	sim_expect(test, sim, 1541, 0);
	KUNIT_EXPECT_EQ(test, sim->worst, 15);
}

static void sim_backward_test(struct kunit *test)
{
	struct sim *sim = sim_new(test, SIM_ORDERS);
	unsigned int i;

	for (i = SIM_PAGES; i--;)
		sim_touch(sim, i);
	sim_expect(test, sim, 1541, 0);
	KUNIT_EXPECT_EQ(test, sim->worst, 15);
}

/* Wherever it begins: a run from before the first aligned block helps. */
static void sim_misaligned_test(struct kunit *test)
{
	unsigned int start;

	for (start = 1; start < 16; start++) {
		struct sim *sim = sim_new(test, SIM_ORDERS);

		sim_fill(sim, start, 1024);
		sim_expect(test, sim, 1024 / 16 + 11, 15);
		kunit_kfree(test, sim->page);
	}
}

/* After MADV_HUGEPAGE the blocks become as large as the share of all allows. */
static void sim_madvised_test(struct kunit *test)
{
	struct sim *sim = sim_new(test, SIM_ORDERS_MOST);

	sim_fill(sim, 0, SIM_PAGES);
	sim_expect(test, sim, SIM_PAGES / 64, 256);
}

static void sim_strided_test(struct kunit *test)
{
	struct sim *sim = sim_new(test, SIM_ORDERS);
	unsigned int stride, i;

	for (stride = 2; stride <= 64; stride++) {
		memset(sim->page, 0, SIM_PAGES);
		sim->there = 0;
		sim->asked = 0;
		sim->charged = 0;
		for (i = 0; i < SIM_PAGES; i += stride)
			sim_touch(sim, i);
		KUNIT_EXPECT_EQ(test, sim->there, sim->asked);
	}
}

/* It has learned large folios, and then they are of no use. */
static void sim_dense_then_strided_test(struct kunit *test)
{
	struct sim *sim = sim_new(test, SIM_ORDERS);
	unsigned int i;

	sim_fill(sim, 0, 1024);
	for (i = 1024; i < SIM_PAGES; i += 16)
		sim_touch(sim, i);
	sim_expect(test, sim, SIM_PAGES, 15);
}

static void sim_random_test(struct kunit *test)
{
	struct sim *sim = sim_new(test, SIM_ORDERS);
	unsigned int i, pages;

	for (i = 0; i < SIM_PAGES / 2; i++)
		sim_touch(sim, sim_random(sim, SIM_PAGES));
	/* 0.2 % more than single pages. */
	pages = sim->asked + sim->asked / 500;
	KUNIT_EXPECT_LE(test, sim->there, pages);
	KUNIT_EXPECT_FALSE(test, sim->broken);
}

/* A stream beside random faults keeps most of what it would have alone. */
static void sim_stream_in_noise_test(struct kunit *test)
{
	struct sim *sim = sim_new(test, SIM_ORDERS);
	unsigned int i, before, stream = 0;

	for (i = 0; i < SIM_PAGES / 2; i++) {
		sim_touch(sim, SIM_PAGES / 2 + sim_random(sim, SIM_PAGES / 2));
		before = sim->faults;
		sim_touch(sim, i);
		stream += sim->faults - before;
	}
	KUNIT_EXPECT_LE(test, stream, SIM_PAGES / 2 / 12);
	KUNIT_EXPECT_FALSE(test, sim->broken);
}

/*
 * Threads, or regions of a heap, that take turns in one VMA. Each has up to 15 pages that
 * it has not come to, so that 16 of them need 48 MB until they may all have 64 KB.
 */
static void sim_interleaved_test(struct kunit *test)
{
	unsigned int streams;

	for (streams = 2; streams <= 16; streams *= 2) {
		struct sim *sim = sim_new(test, SIM_ORDERS);
		unsigned int part = SIM_PAGES / streams, i, k;

		for (i = 0; i < part; i++)
			for (k = 0; k < streams; k++)
				sim_touch(sim, k * part + i);
		sim_expect(test, sim, SIM_PAGES / (streams <= 4 ? 12 : 4),
			   15 * streams);
		kunit_kfree(test, sim->page);
	}
}

/* Stacks of threads: three pages at the top of 64. Sparse arenas: three at the bottom. */
static void sim_sparse_test(struct kunit *test)
{
	struct sim *sim = sim_new(test, SIM_ORDERS);
	unsigned int i;

	for (i = 0; i + 64 <= SIM_PAGES; i += 128) {
		sim_touch(sim, i + 63);
		sim_touch(sim, i + 62);
		sim_touch(sim, i + 61);
		sim_fill(sim, i + 96, 3);
	}
	KUNIT_EXPECT_EQ(test, sim->there, sim->asked);
}

/*
 * Allocators: spans of some pages, one behind the other, each filled at once (glibc's
 * top of heap), in classes with a region each (jemalloc), some with a header page and
 * the rest later (Go).
 */
static void sim_allocators_test(struct kunit *test)
{
	struct sim *sim = sim_new(test, SIM_ORDERS);
	unsigned int top[3] = { 0, 8192, 16384 };
	unsigned int i;

	for (i = 0; i < 1500; i++) {
		unsigned int class = sim_random(sim, 3);
		unsigned int nr = 1 + sim_random(sim, class == 2 ? 9 : 3);

		if (top[class] + nr > (class + 1) * 8192)
			continue;
		if (class == 2 && sim_random(sim, 8) == 0)
			sim_touch(sim, top[class]);
		else
			sim_fill(sim, top[class], nr);
		top[class] += nr;
	}
	KUNIT_EXPECT_FALSE(test, sim->broken);
	KUNIT_EXPECT_LE(test, sim->faults, sim->asked / 2);
	KUNIT_EXPECT_LE(test, sim->there - sim->asked,
			max(32U, sim->there / 50));
}

/*
 * Who wants to waste most: a run, one page of the block that it gets, and on to the
 * next place. The bound holds, and the VMA gets single pages most of the time.
 */
static void sim_adversary_test(struct kunit *test)
{
	static const unsigned int runs[] = { 4, 8, 16, 20, 32 };
	unsigned int k, i;

	for (k = 0; k < ARRAY_SIZE(runs); k++) {
		struct sim *sim = sim_new(test, SIM_ORDERS);

		for (i = 0; i + 64 <= SIM_PAGES; i += 64)
			sim_fill(sim, i, runs[k] + 1);
		KUNIT_EXPECT_FALSE_MSG(test, sim->broken, "runs of %u", runs[k]);
		KUNIT_EXPECT_LE(test, sim->there - sim->asked,
				max(32U, sim->there / 50));
		kunit_kfree(test, sim->page);
	}
}

/* Blocks of which one page is never written: the bound is what there is. */
static void sim_holes_test(struct kunit *test)
{
	struct sim *sim = sim_new(test, SIM_ORDERS);
	unsigned int i;

	for (i = 0; i < SIM_PAGES; i++)
		if (i % 16 != 3)
			sim_touch(sim, i);
	KUNIT_EXPECT_FALSE(test, sim->broken);
	KUNIT_EXPECT_LE(test, sim->there - sim->asked,
			max(32U, sim->there / 50));
}

/* What was learned the hard way is forgotten where it is not true any more. */
static void sim_recover_test(struct kunit *test)
{
	struct sim *sim = sim_new(test, SIM_ORDERS);
	unsigned int i, before;

	sim->state = state_make(SCORE_MIN, 0, 0);
	sim_fill(sim, 0, 128);
	before = sim->faults;
	sim_fill(sim, 128, 4096);
	KUNIT_EXPECT_LE(test, sim->faults - before, 4096 / 16 + 8);

	sim->state = 0;
	for (i = 8192; i < 12288; i += 3)
		sim_touch(sim, i);
	KUNIT_EXPECT_EQ(test, state_score(sim->state), SCORE_COLD);
}

static void folio_order_state_test(struct kunit *test)
{
	static const int scores[] = { SCORE_MIN, SCORE_COLD, -1, 0, 1, SCORE_MAX };
	unsigned long page = (BIT(57) - PAGE_SIZE) >> PAGE_SHIFT;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(scores); i++) {
		unsigned long state = state_make(scores[i], page, PMD_ORDER - 1);

		KUNIT_EXPECT_EQ(test, state_score(state), scores[i]);
		KUNIT_EXPECT_EQ(test, state_page(state), page);
		KUNIT_EXPECT_EQ(test, state_order(state), PMD_ORDER - 1);
	}
	KUNIT_EXPECT_TRUE(test, state_near(state_make(0, 32, 4), 48));
	KUNIT_EXPECT_TRUE(test, state_near(state_make(0, 32, 4), 31));
	KUNIT_EXPECT_FALSE(test, state_near(state_make(0, 32, 4), 47));
	KUNIT_EXPECT_FALSE(test, state_near(state_make(0, 32, 4), 49));
}

static void folio_order_choose_test(struct kunit *test)
{
	static const struct {
		int score;
		unsigned int page, run;
		enum folio_order_side side;
		unsigned long orders;
		unsigned int order;
	} cases[] = {
		{ 0, 16, 0, FOLIO_ORDER_FORWARD, SIM_ORDERS, 0 },
		{ 0, 16, 3, FOLIO_ORDER_FORWARD, SIM_ORDERS, 0 },
		{ 0, 16, 4, FOLIO_ORDER_FORWARD, SIM_ORDERS, 2 },
		{ 0, 16, 8, FOLIO_ORDER_FORWARD, SIM_ORDERS, 3 },
		{ 0, 16, 16, FOLIO_ORDER_FORWARD, SIM_ORDERS, 4 },
		{ 0, 24, 24, FOLIO_ORDER_FORWARD, SIM_ORDERS, 3 },	/* aligned */
		{ 0, 20, 20, FOLIO_ORDER_FORWARD, SIM_ORDERS, 2 },
		{ 0, 64, 64, FOLIO_ORDER_FORWARD, SIM_ORDERS, 4 },
		{ 0, 64, 64, FOLIO_ORDER_FORWARD, SIM_ORDERS_MOST, 6 },
		{ 0, 64, 64, FOLIO_ORDER_FORWARD, BIT(3), 3 },
		{ 0, 64, 64, FOLIO_ORDER_FORWARD, BIT(7), 0 },
		{ 0, 63, 16, FOLIO_ORDER_BACKWARD, SIM_ORDERS, 4 },
		{ 0, 51, 16, FOLIO_ORDER_BACKWARD, SIM_ORDERS, 2 },
		{ 0, 62, 16, FOLIO_ORDER_NONE, SIM_ORDERS, 0 },
		{ SCORE_WARM, 16, 8, FOLIO_ORDER_FORWARD, SIM_ORDERS, 4 },
		{ SCORE_WARM, 16, 2, FOLIO_ORDER_FORWARD, SIM_ORDERS, 2 },
		{ SCORE_WARM, 16, 1, FOLIO_ORDER_FORWARD, SIM_ORDERS, 0 },
		{ SCORE_COLD, 16, 16, FOLIO_ORDER_FORWARD, SIM_ORDERS, 3 },
		{ SCORE_COLD, 32, 32, FOLIO_ORDER_FORWARD, SIM_ORDERS, 4 },
		{ SCORE_COLD, 16, 7, FOLIO_ORDER_FORWARD, SIM_ORDERS, 0 },
		{ SCORE_BURNT - 1, 64, 64, FOLIO_ORDER_FORWARD, SIM_ORDERS, 0 },
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(cases); i++)
		KUNIT_EXPECT_EQ_MSG(test, cases[i].order,
				    folio_order_choose(cases[i].score, cases[i].page,
						       cases[i].run, cases[i].side,
						       cases[i].orders),
				    "case %u", i);
}

static void folio_order_fits_test(struct kunit *test)
{
	/* 128 kB are 32 pages, and 2 % of 1600. */
	KUNIT_EXPECT_TRUE(test, folio_order_fits(32, 0, 20, 128));
	KUNIT_EXPECT_FALSE(test, folio_order_fits(33, 1600, 20, 128));
	KUNIT_EXPECT_TRUE(test, folio_order_fits(33, 1650, 20, 128));
	KUNIT_EXPECT_FALSE(test, folio_order_fits(1, 1, 20, 0));
	KUNIT_EXPECT_FALSE(test, folio_order_fits(1, 1000000, 0, 128));
}

/* --- Rules, and charges of a real folio ------------------------------------ */

#define CHARGE_ORDER	4
#define CHARGE_PAGES	16
#define CHARGE_START	((unsigned long)PMD_SIZE)

struct charge_test {
	spinlock_t ptl;			/* of @ptes */
	struct mm_struct *mm;
	struct vm_area_struct vma;
	struct anon_vma anon_vma;	/* nobody looks into it */
	struct folio *folio;
	pte_t ptes[PTRS_PER_PTE];
};

static int charge_test_init(struct kunit *test)
{
	struct charge_test *t = kunit_kzalloc(test, sizeof(*t), GFP_KERNEL);

	if (!t)
		return -ENOMEM;
	test->priv = t;
	spin_lock_init(&t->ptl);
	t->mm = mm_alloc();
	if (!t->mm)
		return -ENOMEM;
	t->vma.vm_mm = t->mm;
	t->vma.vm_start = CHARGE_START;
	t->vma.vm_end = CHARGE_START + PMD_SIZE;
	t->vma.anon_vma = &t->anon_vma;
	vm_flags_init(&t->vma, VM_READ | VM_WRITE);
	return 0;
}

static void charge_test_exit(struct kunit *test)
{
	struct charge_test *t = test->priv;

	if (t && t->folio)
		folio_put(t->folio);
	if (t && t->mm)
		mmput(t->mm);
}

static void folio_order_allowed_test(struct kunit *test)
{
	unsigned long flags = transparent_hugepage_flags;
	unsigned long manual = folio_order_manual;
	struct charge_test *t = test->priv;
	struct vm_area_struct *vma = &t->vma;

	folio_order_manual = 0;
	transparent_hugepage_flags = BIT(TRANSPARENT_HUGEPAGE_REQ_MADV_FLAG);
	KUNIT_EXPECT_EQ(test, folio_order_allowed(vma), SIM_ORDERS);
	vm_flags_init(vma, VM_READ | VM_WRITE | VM_HUGEPAGE);
	KUNIT_EXPECT_EQ(test, folio_order_allowed(vma), SIM_ORDERS_MOST);
	folio_order_set_manual(BIT(4));
	KUNIT_EXPECT_EQ(test, folio_order_allowed(vma), SIM_ORDERS_MOST & ~BIT(4));
	vm_flags_init(vma, VM_READ | VM_WRITE);
	KUNIT_EXPECT_EQ(test, folio_order_allowed(vma), BIT(2) | BIT(3));
	vm_flags_init(vma, VM_READ | VM_WRITE | VM_NOHUGEPAGE);
	KUNIT_EXPECT_EQ(test, folio_order_allowed(vma), 0);
	vm_flags_init(vma, VM_READ | VM_WRITE);
	set_bit(MMF_DISABLE_THP, &t->mm->flags);
	KUNIT_EXPECT_EQ(test, folio_order_allowed(vma), 0);
	clear_bit(MMF_DISABLE_THP, &t->mm->flags);
	transparent_hugepage_flags = 0;
	KUNIT_EXPECT_EQ(test, folio_order_allowed(vma), 0);
	transparent_hugepage_flags = flags;
	folio_order_manual = manual;
}

static long charge_unasked(struct charge_test *t)
{
	return atomic_long_read(&t->mm->folio_order.unasked);
}

static void charge_alloc(struct kunit *test)
{
	struct charge_test *t = test->priv;

	t->folio = folio_alloc(GFP_KERNEL, CHARGE_ORDER);
	KUNIT_ASSERT_NOT_NULL(test, t->folio);
	/* Who unmaps it wants to see one. */
	KUNIT_ASSERT_EQ(test, mem_cgroup_charge(t->folio, NULL, GFP_KERNEL), 0);
}

/* A fault on page @at of a new folio. */
static void charge_map(struct kunit *test, unsigned int at)
{
	struct charge_test *t = test->priv;
	struct vm_fault vmf = {
		.vma = &t->vma,
		.address = CHARGE_START + at * PAGE_SIZE,
		.pte = t->ptes,
	};
	pte_t entry;

	charge_alloc(test);
	t->folio->private = (void *)token_make(t->mm->folio_order.epoch, CHARGE_ORDER,
					       CHARGE_PAGES - 1);
	KUNIT_EXPECT_TRUE(test, folio_order_reserve(t->mm, CHARGE_PAGES - 1));

	entry = pte_mkdirty(mk_pte(&t->folio->page, PAGE_SHARED));
	spin_lock(&t->ptl);
	folio_ref_add(t->folio, CHARGE_PAGES);
	folio_add_new_anon_rmap(t->folio, &t->vma, CHARGE_START, RMAP_EXCLUSIVE);
	KUNIT_EXPECT_EQ(test, folio_order_charge(t->folio), CHARGE_PAGES - 1);
	KUNIT_EXPECT_TRUE(test, folio_order_set_ptes(&vmf, CHARGE_START, entry,
						     CHARGE_PAGES, CHARGE_PAGES - 1));
	spin_unlock(&t->ptl);
}

static void charge_unmap(struct charge_test *t, unsigned int from, unsigned int nr)
{
	unsigned int i;

	spin_lock(&t->ptl);
	__folio_order_zap(t->mm, t->folio, nr);
	for (i = from; i < from + nr; i++)
		ptep_get_and_clear(t->mm, CHARGE_START + i * PAGE_SIZE, &t->ptes[i]);
	folio_remove_rmap_ptes(t->folio, folio_page(t->folio, from), nr, &t->vma);
	folio_put_refs(t->folio, nr);
	spin_unlock(&t->ptl);
}

/* The CPU writes to a page. */
static void charge_write(struct charge_test *t, unsigned int at)
{
	t->ptes[at] = pte_mkdirty(t->ptes[at]);
}

/* What a fault sees that comes next, behind the folio. */
static bool charge_inspect(struct charge_test *t)
{
	unsigned int last = CHARGE_PAGES - 1;
	bool unused;

	spin_lock(&t->ptl);
	unused = folio_order_inspect(&t->vma, CHARGE_START + last * PAGE_SIZE,
				     &t->ptes[last], FOLIO_ORDER_FORWARD);
	spin_unlock(&t->ptl);
	return unused;
}

static void folio_order_set_ptes_test(struct kunit *test)
{
	static const unsigned int at[] = { 0, 5, CHARGE_PAGES - 1 };
	struct charge_test *t = test->priv;
	unsigned int k, i;

	for (k = 0; k < ARRAY_SIZE(at); k++) {
		charge_map(test, at[k]);
		for (i = 0; i < CHARGE_PAGES; i++) {
			KUNIT_EXPECT_EQ(test, pte_pfn(t->ptes[i]),
					folio_pfn(t->folio) + i);
			KUNIT_EXPECT_TRUE(test, pte_write(t->ptes[i]));
			KUNIT_EXPECT_EQ(test, pte_dirty(t->ptes[i]), i == at[k]);
			KUNIT_EXPECT_EQ(test, folio_order_used(t->ptes[i]), i == at[k]);
		}
		KUNIT_EXPECT_EQ(test, charge_unasked(t), CHARGE_PAGES - 1);
		KUNIT_EXPECT_EQ(test, atomic_long_read(&t->mm->folio_order.reserved), 0);
		charge_unmap(t, 0, CHARGE_PAGES);
		KUNIT_EXPECT_EQ(test, charge_unasked(t), 0);
		folio_put(t->folio);
		t->folio = NULL;
	}
}

/* Of what was swapped only the page that is asked for is young, and maybe dirty. */
static void folio_order_swap_ptes_test(struct kunit *test)
{
	static const unsigned int at[] = { 0, 5, CHARGE_PAGES - 1 };
	struct charge_test *t = test->priv;
	unsigned int k, i;

	for (k = 0; k < ARRAY_SIZE(at); k++) {
		struct vm_fault vmf = {
			.vma = &t->vma,
			.address = CHARGE_START + at[k] * PAGE_SIZE + 8,
		};
		pte_t entry;

		charge_alloc(test);
		entry = pte_mkdirty(pte_mkyoung(mk_pte(&t->folio->page, PAGE_SHARED)));
		spin_lock(&t->ptl);
		folio_ref_add(t->folio, CHARGE_PAGES);
		folio_add_new_anon_rmap(t->folio, &t->vma, CHARGE_START, RMAP_EXCLUSIVE);
		KUNIT_EXPECT_TRUE(test, folio_order_swap_ptes(&vmf, t->folio, CHARGE_START,
							      t->ptes, entry,
							      CHARGE_PAGES));
		spin_unlock(&t->ptl);
		for (i = 0; i < CHARGE_PAGES; i++) {
			KUNIT_EXPECT_EQ(test, pte_pfn(t->ptes[i]),
					folio_pfn(t->folio) + i);
			KUNIT_EXPECT_TRUE(test, pte_write(t->ptes[i]));
			KUNIT_EXPECT_EQ(test, !!pte_young(t->ptes[i]), i == at[k]);
			KUNIT_EXPECT_EQ(test, pte_dirty(t->ptes[i]), i == at[k]);
			KUNIT_EXPECT_EQ(test, folio_order_used(t->ptes[i]), i == at[k]);
		}
		KUNIT_EXPECT_EQ(test, charge_unasked(t), 0);
		charge_unmap(t, 0, CHARGE_PAGES);
		folio_put(t->folio);
		t->folio = NULL;
	}
}

/* A size of the administrator's is as in Linux; else a single page is tried. */
static void folio_order_unreadable_test(struct kunit *test)
{
	unsigned long always = huge_anon_orders_always;
	struct charge_test *t = test->priv;

	charge_alloc(test);
	t->vma.folio_order = state_make(SCORE_MAX, 77, CHARGE_ORDER);
	huge_anon_orders_always = BIT(CHARGE_ORDER);
	KUNIT_EXPECT_FALSE(test, folio_order_unreadable(&t->vma, t->folio));
	KUNIT_EXPECT_EQ(test, state_score(t->vma.folio_order), SCORE_MAX);
	huge_anon_orders_always = 0;
	KUNIT_EXPECT_TRUE(test, folio_order_unreadable(&t->vma, t->folio));
	KUNIT_EXPECT_EQ(test, folio_order_choose(state_score(t->vma.folio_order), 16, 16,
						 FOLIO_ORDER_FORWARD, SIM_ORDERS), 0);
	KUNIT_EXPECT_EQ(test, state_page(t->vma.folio_order), 77UL);
	/* Nobody undoes that with what he had read before. */
	folio_order_learn(&t->vma, state_make(SCORE_MAX, 77, CHARGE_ORDER),
			  state_make(SCORE_MAX - 1, 78, 0));
	KUNIT_EXPECT_EQ(test, state_score(t->vma.folio_order), SCORE_MIN);
	huge_anon_orders_always = always;
}

static void folio_order_settle_test(struct kunit *test)
{
	struct charge_test *t = test->priv;
	unsigned int i;

	charge_map(test, 0);
	/* Hardly used: once that is news, then it is settled for what it is. */
	KUNIT_EXPECT_TRUE(test, charge_inspect(t));
	KUNIT_EXPECT_FALSE(test, charge_inspect(t));
	KUNIT_EXPECT_EQ(test, charge_unasked(t), CHARGE_PAGES - 1);
	for (i = 0; i < 10; i++)
		charge_write(t, i);
	KUNIT_EXPECT_FALSE(test, charge_inspect(t));
	KUNIT_EXPECT_EQ(test, charge_unasked(t), CHARGE_PAGES - 10);
	KUNIT_EXPECT_FALSE(test, charge_inspect(t));
	KUNIT_EXPECT_EQ(test, charge_unasked(t), CHARGE_PAGES - 10);

	for (; i < CHARGE_PAGES; i++)
		charge_write(t, i);
	charge_inspect(t);
	KUNIT_EXPECT_EQ(test, charge_unasked(t), 0);
	KUNIT_EXPECT_EQ(test, folio_token(t->folio), 0UL);
	/* Nothing twice. */
	charge_inspect(t);
	charge_unmap(t, 0, CHARGE_PAGES);
	KUNIT_EXPECT_EQ(test, charge_unasked(t), 0);
}

/* Only all of the folio takes the charge off; a swap entry is no token. */
static void folio_order_zap_test(struct kunit *test)
{
	struct charge_test *t = test->priv;

	charge_map(test, 0);
	charge_unmap(t, 0, 4);
	KUNIT_EXPECT_EQ(test, charge_unasked(t), CHARGE_PAGES - 1);
	charge_unmap(t, 4, 12);
	KUNIT_EXPECT_EQ(test, charge_unasked(t), CHARGE_PAGES - 1);
	folio_put(t->folio);

	charge_map(test, 0);
	t->folio->private = (void *)swp_entry(MAX_SWAPFILES - 1, 15).val;
	KUNIT_EXPECT_EQ(test, folio_token(t->folio), 0UL);
	charge_unmap(t, 0, CHARGE_PAGES);
	KUNIT_EXPECT_EQ(test, charge_unasked(t), 2 * (CHARGE_PAGES - 1));
	t->folio->private = NULL;
}

/*
 * A recount has forgotten the charge, seen the folio or not: what another one has
 * counted since must not be taken off for it.
 */
static void folio_order_epoch_test(struct kunit *test)
{
	struct charge_test *t = test->priv;
	unsigned int i;

	charge_map(test, 0);
	t->mm->folio_order.epoch++;
	for (i = 0; i < CHARGE_PAGES; i++)
		charge_write(t, i);
	charge_inspect(t);
	KUNIT_EXPECT_EQ(test, charge_unasked(t), CHARGE_PAGES - 1);
	charge_unmap(t, 0, CHARGE_PAGES);
	KUNIT_EXPECT_EQ(test, charge_unasked(t), CHARGE_PAGES - 1);
	folio_put(t->folio);

	/* Those of the new epoch are worth what they were. */
	charge_map(test, 0);
	KUNIT_EXPECT_EQ(test, charge_unasked(t), 2 * (CHARGE_PAGES - 1));
	charge_unmap(t, 0, CHARGE_PAGES);
	KUNIT_EXPECT_EQ(test, charge_unasked(t), CHARGE_PAGES - 1);
}

/* A recount finds what is there, and what of it is in large folios. */
static void folio_order_count_test(struct kunit *test)
{
	struct folio_order_recount recount = { };
	struct charge_test *t = test->priv;
	unsigned int i;

	charge_map(test, 0);
	charge_write(t, 1);
	for (i = 0; i < CHARGE_PAGES; i++)
		folio_order_count(&recount, &t->vma, CHARGE_START + i * PAGE_SIZE,
				  t->ptes[i]);
	KUNIT_EXPECT_EQ(test, recount.unasked, CHARGE_PAGES - 2);
	KUNIT_EXPECT_EQ(test, recount.vma_unasked, CHARGE_PAGES - 2);
	KUNIT_EXPECT_EQ(test, recount.vma_large, CHARGE_PAGES);

	/* Not ours, or asked for as a whole: nothing to learn, but it is there. */
	t->folio->private = NULL;
	folio_order_count(&recount, &t->vma, CHARGE_START + 2 * PAGE_SIZE, t->ptes[2]);
	KUNIT_EXPECT_EQ(test, recount.unasked, CHARGE_PAGES - 1);
	KUNIT_EXPECT_EQ(test, recount.vma_large, CHARGE_PAGES);
	charge_unmap(t, 0, CHARGE_PAGES);

	/* That of a larger folio that was split is not this one's. */
	t->folio->private = (void *)token_make(0, CHARGE_ORDER + 1, 3);
	folio_order_settle(t->mm, t->folio, folio_token(t->folio), 0);
	KUNIT_EXPECT_EQ(test, folio_token(t->folio),
			token_make(0, CHARGE_ORDER + 1, 3));
	t->folio->private = NULL;
}

/* Who walks while the process ends would be the one to tear it down. */
static void folio_order_left_test(struct kunit *test)
{
	struct charge_test *t = test->priv;
	struct folio_order_recount recount = {};
	struct mm_walk walk = { .mm = t->mm, .vma = &t->vma, .private = &recount };
	pmd_t none = __pmd(0);

	mmget(t->mm);
	KUNIT_EXPECT_EQ(test, 0,
			folio_order_recount_pmd(&none, CHARGE_START, t->vma.vm_end, &walk));
	mmput(t->mm);
	KUNIT_EXPECT_EQ(test, -EAGAIN,
			folio_order_recount_pmd(&none, CHARGE_START, t->vma.vm_end, &walk));
}

static struct kunit_case folio_order_cases[] = {
	KUNIT_CASE(folio_order_state_test),
	KUNIT_CASE(folio_order_choose_test),
	KUNIT_CASE(folio_order_fits_test),
	KUNIT_CASE(sim_forward_test),
	KUNIT_CASE(sim_backward_test),
	KUNIT_CASE(sim_misaligned_test),
	KUNIT_CASE(sim_madvised_test),
	KUNIT_CASE(sim_strided_test),
	KUNIT_CASE(sim_dense_then_strided_test),
	KUNIT_CASE(sim_random_test),
	KUNIT_CASE(sim_stream_in_noise_test),
	KUNIT_CASE(sim_interleaved_test),
	KUNIT_CASE(sim_sparse_test),
	KUNIT_CASE(sim_allocators_test),
	KUNIT_CASE(sim_adversary_test),
	KUNIT_CASE(sim_holes_test),
	KUNIT_CASE(sim_recover_test),
	KUNIT_CASE(folio_order_allowed_test),
	KUNIT_CASE(folio_order_set_ptes_test),
	KUNIT_CASE(folio_order_swap_ptes_test),
	KUNIT_CASE(folio_order_unreadable_test),
	KUNIT_CASE(folio_order_settle_test),
	KUNIT_CASE(folio_order_epoch_test),
	KUNIT_CASE(folio_order_zap_test),
	KUNIT_CASE(folio_order_count_test),
	KUNIT_CASE(folio_order_left_test),
	{}
};

static struct kunit_suite folio_order_suite = {
	.name = "folio_order",
	.init = charge_test_init,
	.exit = charge_test_exit,
	.test_cases = folio_order_cases,
};

kunit_test_suite(folio_order_suite);
