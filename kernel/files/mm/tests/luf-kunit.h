/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit tests of the bookkeeping: the ledger of owed flushes and the lot. They
 * use a ledger and a lot of their own, and real folios and an mm that no CPU has
 * loaded. The clock starts where luf_seen never comes, so that every CPU is
 * behind unless a test says otherwise.
 */
#include <kunit/test.h>
#include <linux/sched/mm.h>

#define LUF_START	BIT_ULL(62)

struct luf_test {
	struct luf_ledger ledger;
	atomic64_t clock;
	struct luf_lot lot;
	struct mm_struct *mm;
};

static int luf_test_init(struct kunit *test)
{
	struct luf_test *t = kunit_kzalloc(test, sizeof(*t), GFP_KERNEL);

	if (!t)
		return -ENOMEM;
	t->mm = mm_alloc();
	if (!t->mm)
		return -ENOMEM;
	spin_lock_init(&t->ledger.lock);
	mutex_init(&t->ledger.mutex);
	atomic64_set(&t->clock, LUF_START);
	t->ledger.clock = &t->clock;
	luf_lot_init(&t->lot);
	test->priv = t;
	return 0;
}

static void luf_test_exit(struct kunit *test)
{
	struct luf_test *t = test->priv;

	if (t && t->mm)
		mmput(t->mm);
}

/* A folio on @list; the tests free what they take. */
static struct folio *luf_test_folio(struct kunit *test, struct list_head *list,
				    unsigned int order)
{
	struct folio *folio = folio_alloc(GFP_KERNEL, order);

	KUNIT_ASSERT_NOT_NULL(test, folio);
	list_add_tail(&folio->lru, list);
	return folio;
}

static void luf_test_put(struct list_head *list)
{
	struct folio *folio, *next;

	list_for_each_entry_safe(folio, next, list, lru) {
		list_del(&folio->lru);
		folio_put(folio);
	}
}

/* @cpu may have cached PTEs of the mm. Returns the label. */
static u64 luf_test_owe(struct luf_test *t, unsigned int cpu)
{
	u64 label;

	cpumask_clear(mm_cpumask(t->mm));
	cpumask_set_cpu(cpu, mm_cpumask(t->mm));
	label = luf_ledger_owe(&t->ledger, t->mm);
	cpumask_clear(mm_cpumask(t->mm));
	return label;
}

static bool luf_test_owes(struct luf_test *t, unsigned int cpu)
{
	bool owes;

	cpumask_set_cpu(cpu, mm_cpumask(t->mm));
	owes = arch_luf_covered(&t->ledger.owing, t->mm);
	cpumask_clear(mm_cpumask(t->mm));
	return owes;
}

/* A label is one that the clock has yet to reach; a flush settles it. */
static void luf_ledger_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;
	u64 label = luf_test_owe(t, 0);

	KUNIT_EXPECT_EQ(test, label, LUF_START + 1);
	KUNIT_EXPECT_TRUE(test, luf_test_owes(t, 0));
	KUNIT_EXPECT_FALSE(test, luf_ledger_done(ledger, label));

	KUNIT_EXPECT_TRUE(test, luf_ledger_settle(ledger, label));
	KUNIT_EXPECT_TRUE(test, luf_ledger_done(ledger, label));
	KUNIT_EXPECT_FALSE(test, luf_test_owes(t, 0));
	KUNIT_EXPECT_EQ(test, atomic64_read(&t->clock), label);
}

/* What is settled costs nothing, and neither does what nobody owes. */
static void luf_ledger_again_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;
	u64 label = luf_test_owe(t, 0);

	KUNIT_EXPECT_TRUE(test, luf_ledger_settle(ledger, label));
	KUNIT_EXPECT_FALSE(test, luf_ledger_settle(ledger, label));
	KUNIT_EXPECT_EQ(test, ledger->done, label);

	KUNIT_EXPECT_FALSE(test, luf_ledger_settle(ledger, luf_ledger_now(ledger)));
	KUNIT_EXPECT_EQ(test, ledger->done, label + 1);
}

/* What becomes owed after a flush took the mask has a label beyond it. */
static void luf_ledger_next_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;
	u64 first = luf_test_owe(t, 0), second;

	luf_ledger_settle(ledger, first);
	second = luf_test_owe(t, 0);
	KUNIT_EXPECT_GT(test, second, ledger->done);
	KUNIT_EXPECT_TRUE(test, luf_test_owes(t, 0));
	KUNIT_EXPECT_TRUE(test, luf_ledger_settle(ledger, second));
}

/*
 * A CPU that has caught up with a label is not flushed for it: the folio is
 * settled without a flush. It stays in the mask for what comes after.
 */
static void luf_ledger_aged_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;
	u64 *seen = &per_cpu(luf_seen, 0), saved;
	u64 label;

	luf_test_owe(t, 0);
	label = atomic64_inc_return(&t->clock);
	/* CPU 0 switches: for this test only, and nobody else looks. */
	preempt_disable();
	local_irq_disable();
	saved = *seen;
	*seen = label - 1;
	KUNIT_EXPECT_EQ(test, arch_luf_least(&ledger->owing, label), label - 1);
	*seen = label;
	KUNIT_EXPECT_EQ(test, arch_luf_least(&ledger->owing, label), label);
	*seen = label + 1;
	KUNIT_EXPECT_EQ(test, arch_luf_least(&ledger->owing, label), label);
	*seen = saved;
	local_irq_enable();
	preempt_enable();
}

/* Who is behind is flushed now, who is behind later only goes back. */
static void luf_ledger_sort_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;
	u64 *seen = &per_cpu(luf_seen, 0), saved;
	bool behind[3], later[3];
	int i;

	for (i = 0; i < 3; i++) {
		luf_test_owe(t, 0);
		ledger->flushing = ledger->owing;
		memset(&ledger->later, 0, sizeof(ledger->later));
		local_irq_disable();
		saved = *seen;
		*seen = LUF_START + i;
		behind[i] = arch_luf_sort(&ledger->flushing, &ledger->later,
					  LUF_START + 1, LUF_START + 2, &later[i]);
		*seen = saved;
		local_irq_enable();
	}
	KUNIT_EXPECT_TRUE(test, behind[0] && !later[0]);
	KUNIT_EXPECT_TRUE(test, !behind[1] && later[1]);
	KUNIT_EXPECT_TRUE(test, !behind[2] && !later[2]);
}

/* The mask is the union of the mms' masks, and a covered mm adds nothing. */
static void luf_ledger_covered_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;

	cpumask_set_cpu(0, mm_cpumask(t->mm));
	KUNIT_EXPECT_FALSE(test, arch_luf_covered(&ledger->owing, t->mm));
	luf_ledger_owe(ledger, t->mm);
	KUNIT_EXPECT_TRUE(test, arch_luf_covered(&ledger->owing, t->mm));
	if (nr_cpu_ids > 1) {
		cpumask_set_cpu(1, mm_cpumask(t->mm));
		KUNIT_EXPECT_FALSE(test, arch_luf_covered(&ledger->owing, t->mm));
		luf_ledger_owe(ledger, t->mm);
		KUNIT_EXPECT_TRUE(test, arch_luf_covered(&ledger->owing, t->mm));
	}
	cpumask_clear(mm_cpumask(t->mm));
}

/* Pages are counted in all and per zone, in base pages. */
static void luf_lot_count_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_lot *lot = &t->lot;
	unsigned long sum = 0;
	LIST_HEAD(list);
	int i;

	luf_test_folio(test, &list, 0);
	luf_test_folio(test, &list, 2);
	luf_lot_add(lot, &list, 1);
	KUNIT_EXPECT_TRUE(test, list_empty(&list));
	KUNIT_EXPECT_EQ(test, lot->nr_pages, 5);
	for (i = 0; i < MAX_NR_ZONES; i++)
		sum += lot->nr_zone[i];
	KUNIT_EXPECT_EQ(test, sum, 5);

	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 1, &list), 5);
	KUNIT_EXPECT_EQ(test, lot->nr_pages, 0);
	for (i = 0; i < MAX_NR_ZONES; i++)
		KUNIT_EXPECT_EQ(test, lot->nr_zone[i], 0);
	luf_test_put(&list);
}

/* Nothing leaves before its label is settled; the rest stays. */
static void luf_lot_label_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_lot *lot = &t->lot;
	struct folio *old;
	LIST_HEAD(list);

	old = luf_test_folio(test, &list, 0);
	luf_lot_add(lot, &list, 3);
	luf_test_folio(test, &list, 0);
	luf_lot_add(lot, &list, 5);
	KUNIT_EXPECT_EQ(test, lot->newest, 5);

	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 2, &list), 0);
	KUNIT_EXPECT_TRUE(test, list_empty(&list));
	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 4, &list), 1);
	KUNIT_EXPECT_PTR_EQ(test, list_first_entry(&list, struct folio, lru), old);
	KUNIT_EXPECT_NULL(test, old->private);
	luf_test_put(&list);
	KUNIT_EXPECT_EQ(test, lot->nr_pages, 1);
	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 5, &list), 1);
	luf_test_put(&list);
	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 5, &list), 0);
}

/* A late parker with an older label waits behind a newer one. */
static void luf_lot_order_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_lot *lot = &t->lot;
	LIST_HEAD(list);

	luf_test_folio(test, &list, 0);
	luf_lot_add(lot, &list, 8);
	luf_test_folio(test, &list, 0);
	luf_lot_add(lot, &list, 7);
	KUNIT_EXPECT_EQ(test, lot->newest, 8);
	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 7, &list), 0);
	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 8, &list), 2);
	luf_test_put(&list);
}

/* 65536 pages (256 MB): 1/64 is 1024. From 128K pages on the tunable counts. */
static void luf_lot_limit_test(struct kunit *test)
{
	unsigned long saved = luf_lot_pages;

	luf_lot_pages = 2048;
	KUNIT_EXPECT_EQ(test, luf_lot_limit(65536), 1024);
	KUNIT_EXPECT_EQ(test, luf_lot_limit(131072), 2048);
	KUNIT_EXPECT_EQ(test, luf_lot_limit(1UL << 30), 2048);
	luf_lot_pages = 0;
	KUNIT_EXPECT_EQ(test, luf_lot_limit(1UL << 30), 0);
	luf_lot_pages = saved;
}

/* The state of the folio that is being unmapped, without any unmapping. */
static void luf_state_test(struct kunit *test)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	struct folio *folio, *other;
	LIST_HEAD(list);
	LIST_HEAD(parked);

	folio = luf_test_folio(test, &list, 0);
	other = luf_test_folio(test, &list, 0);
	list_del(&folio->lru);

	/* parked: all its PTEs were deferred */
	tlb_ubc->luf_folio = folio;
	tlb_ubc->luf_state = LUF_OWED;
	KUNIT_EXPECT_FALSE(test, luf_park(other, &parked));
	KUNIT_EXPECT_TRUE(test, luf_park(folio, &parked));
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, 0);
	KUNIT_EXPECT_FALSE(test, list_empty(&parked));
	list_del(&folio->lru);

	/* not parked, and still owed: a mixed one, and one nothing was owed for */
	tlb_ubc->luf_folio = folio;
	tlb_ubc->luf_state = LUF_OWED | LUF_MIXED;
	KUNIT_EXPECT_FALSE(test, luf_park(folio, &parked));
	KUNIT_EXPECT_TRUE(test, tlb_ubc->luf_state & LUF_OWED);
	tlb_ubc->luf_state = LUF_KEPT;
	KUNIT_EXPECT_FALSE(test, luf_park(folio, &parked));
	KUNIT_EXPECT_TRUE(test, tlb_ubc->luf_state & LUF_KEPT);

	/* settled with the batch */
	try_to_unmap_flush();
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, 0);
	KUNIT_EXPECT_TRUE(test, list_empty(&parked));

	tlb_ubc->luf_folio = NULL;
	list_add(&folio->lru, &list);
	luf_test_put(&list);
}

static struct kunit_case luf_cases[] = {
	KUNIT_CASE(luf_ledger_test),
	KUNIT_CASE(luf_ledger_again_test),
	KUNIT_CASE(luf_ledger_next_test),
	KUNIT_CASE(luf_ledger_aged_test),
	KUNIT_CASE(luf_ledger_sort_test),
	KUNIT_CASE(luf_ledger_covered_test),
	KUNIT_CASE(luf_lot_count_test),
	KUNIT_CASE(luf_lot_label_test),
	KUNIT_CASE(luf_lot_order_test),
	KUNIT_CASE(luf_lot_limit_test),
	KUNIT_CASE(luf_state_test),
	{}
};

static struct kunit_suite luf_suite = {
	.name = "luf",
	.init = luf_test_init,
	.exit = luf_test_exit,
	.test_cases = luf_cases,
};

kunit_test_suite(luf_suite);
