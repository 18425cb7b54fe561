/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit tests of the bookkeeping: the ledger of owed flushes and the lot. They
 * use a ledger and a lot of their own, and real folios. The clock starts where
 * luf_seen never comes, so that every CPU that may use entries of a user is behind.
 */
#include <kunit/test.h>
#include <linux/kthread.h>
#include <linux/sched/mm.h>
/* Has tracepoints of its own. */
#undef CREATE_TRACE_POINTS
#include <linux/mmu_context.h>

#define LUF_START	BIT_ULL(62)

struct luf_test {
	struct luf_ledger ledger;
	atomic64_t clock;
	atomic64_t owed[NR_CPUS];
	struct luf_lot lot;
	struct mm_struct *mm;		/* whose CPUs owe */
	struct mm_struct *loaded;	/* so that our CPU is not lazy */
};

static int luf_test_init(struct kunit *test)
{
	struct luf_test *t = kunit_kzalloc(test, sizeof(*t), GFP_KERNEL);

	if (!t)
		return -ENOMEM;
	test->priv = t;
	t->mm = mm_alloc();
	t->loaded = mm_alloc();
	if (!t->mm || !t->loaded)
		return -ENOMEM;
	mutex_init(&t->ledger.mutex);
	atomic64_set(&t->clock, LUF_START);
	t->ledger.clock = &t->clock;
	t->ledger.owed = t->owed;
	luf_lot_init(&t->lot);
	return 0;
}

static void luf_test_exit(struct kunit *test)
{
	struct luf_test *t = test->priv;

	if (t && t->mm)
		mmput(t->mm);
	if (t && t->loaded)
		mmput(t->loaded);
}

/*
 * Stay on this CPU and have an mm loaded: a CPU that is not lazy. Nothing in
 * between may end the test.
 */
static unsigned int luf_test_begin(struct luf_test *t)
{
	migrate_disable();
	kthread_use_mm(t->loaded);
	return smp_processor_id();
}

static void luf_test_end(struct luf_test *t)
{
	kthread_unuse_mm(t->loaded);
	migrate_enable();
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

/* A label is one that the clock has yet to reach; a flush settles it, and costs nothing again. */
static void luf_ledger_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;
	u64 label = luf_test_owe(t, luf_test_begin(t));

	KUNIT_EXPECT_EQ(test, label, LUF_START + 1);
	KUNIT_EXPECT_FALSE(test, luf_ledger_done(ledger, label));

	KUNIT_EXPECT_TRUE(test, luf_ledger_settle(ledger, label));
	KUNIT_EXPECT_TRUE(test, luf_ledger_done(ledger, label));
	KUNIT_EXPECT_EQ(test, atomic64_read(&t->clock), label);
	KUNIT_EXPECT_FALSE(test, luf_ledger_settle(ledger, label));
	KUNIT_EXPECT_EQ(test, ledger->done, label);
	luf_test_end(t);
}

/* Who is owed nothing is not flushed. */
static void luf_ledger_nobody_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;

	luf_test_begin(t);
	KUNIT_EXPECT_FALSE(test, luf_ledger_settle(ledger, luf_ledger_now(ledger)));
	luf_test_end(t);
	KUNIT_EXPECT_EQ(test, ledger->done, LUF_START + 1);
}

/* What becomes owed after a flush has a label beyond it. */
static void luf_ledger_next_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;
	unsigned int cpu = luf_test_begin(t);
	u64 first = luf_test_owe(t, cpu), second;

	luf_ledger_settle(ledger, first);
	second = luf_test_owe(t, cpu);
	KUNIT_EXPECT_GT(test, second, ledger->done);
	KUNIT_EXPECT_TRUE(test, luf_ledger_settle(ledger, second));
	luf_test_end(t);
}

/*
 * A CPU is behind what is asked for if it has not seen that, and not behind anything
 * newer than the last that it is owed. The thresholds are set around what this CPU has
 * really seen.
 */
static void luf_ledger_behind_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;
	unsigned int cpu = luf_test_begin(t);
	bool behind[4];
	u64 seen;
	int i;

	local_irq_disable();
	seen = this_cpu_read(luf_seen);
	for (i = 0; i < 4; i++) {
		atomic64_set(&t->owed[cpu], seen + (i & 1));
		behind[i] = luf_reached(ledger, cpu, seen + (i >> 1)) < seen + (i >> 1);
	}
	local_irq_enable();
	luf_test_end(t);

	for (i = 0; i < 4; i++)
		KUNIT_EXPECT_EQ(test, behind[i], i == 3);
}

/* A CPU that was owed a flush for one mm, and runs another since, is not flushed. */
static void luf_ledger_other_mm_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct mm_struct *other = mm_alloc();
	unsigned int cpu;
	bool behind;
	u64 now;

	KUNIT_ASSERT_NOT_NULL(test, other);
	if (!static_branch_likely(&luf_key)) {
		mmput(other);
		kunit_skip(test, "luf is switched off");
	}
	t->ledger.clock = &luf_clock;
	migrate_disable();
	cpu = luf_test_begin(t);
	luf_test_owe(t, cpu);
	luf_test_end(t);
	luf_tick();

	kthread_use_mm(other);
	luf_tick();
	now = luf_ledger_now(&t->ledger);
	behind = luf_reached(&t->ledger, cpu, now) < now;
	kthread_unuse_mm(other);
	migrate_enable();
	KUNIT_EXPECT_FALSE(test, behind);
	mmput(other);
}

/* A CPU with init_mm loaded uses no entry of a user. */
static void luf_ledger_init_mm_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	bool behind, kernel;
	unsigned int cpu;

	cpu = luf_test_begin(t);
	luf_test_owe(t, cpu);
	behind = luf_reached(&t->ledger, cpu, U64_MAX) < U64_MAX;
	local_irq_disable();
	switch_mm_irqs_off(NULL, &init_mm, NULL);
	kernel = luf_reached(&t->ledger, cpu, U64_MAX) < U64_MAX;
	switch_mm_irqs_off(NULL, t->loaded, current);
	local_irq_enable();
	luf_test_end(t);
	KUNIT_EXPECT_TRUE(test, behind);
	KUNIT_EXPECT_FALSE(test, kernel);
}

/* Every CPU of the mm is owed the label, no other is, and a greater one stays. */
static void luf_ledger_owe_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;

	cpumask_set_cpu(0, mm_cpumask(t->mm));
	luf_ledger_owe(ledger, t->mm);
	KUNIT_EXPECT_EQ(test, atomic64_read(&t->owed[0]), LUF_START + 1);
	luf_raise(&t->owed[0], 1);
	KUNIT_EXPECT_EQ(test, atomic64_read(&t->owed[0]), LUF_START + 1);
	if (nr_cpu_ids > 1) {
		KUNIT_EXPECT_EQ(test, atomic64_read(&t->owed[1]), 0);
		cpumask_set_cpu(1, mm_cpumask(t->mm));
		luf_ledger_owe(ledger, t->mm);
		KUNIT_EXPECT_EQ(test, atomic64_read(&t->owed[1]), LUF_START + 1);
	}
	cpumask_clear(mm_cpumask(t->mm));
}

static void luf_test_park(struct luf_lot *lot, struct list_head *list, u64 label)
{
	unsigned long nr_zone[MAX_NR_ZONES] = {};
	unsigned long nr_pages = luf_label(list, label, nr_zone);

	luf_lot_add(lot, list, label, nr_zone, nr_pages);
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
	luf_test_park(lot, &list, 1);
	KUNIT_EXPECT_TRUE(test, list_empty(&list));
	KUNIT_EXPECT_EQ(test, lot->nr_pages, 5);
	for (i = 0; i < MAX_NR_ZONES; i++)
		sum += lot->nr_zone[i];
	KUNIT_EXPECT_EQ(test, sum, 5);

	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 1, ULONG_MAX, &list), 5);
	KUNIT_EXPECT_EQ(test, lot->nr_pages, 0);
	for (i = 0; i < MAX_NR_ZONES; i++)
		KUNIT_EXPECT_EQ(test, lot->nr_zone[i], 0);
	luf_test_put(&list);
}

/* References are dropped when their labels are settled, whatever their order. */
static void luf_lot_held_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_lot *lot = &t->lot;
	struct folio *folios[3];
	LIST_HEAD(list);
	int i;

	for (i = 0; i < 3; i++) {
		folios[i] = luf_test_folio(test, &list, 0);
		folio_get(folios[i]);
		lot->held[i].folio = folios[i];
		lot->held[i].label = 7 - i;
	}
	lot->nr_held = 3;
	luf_lot_put_held(lot, 4);
	KUNIT_EXPECT_EQ(test, lot->nr_held, 3);
	luf_lot_put_held(lot, 6);
	KUNIT_EXPECT_EQ(test, lot->nr_held, 1);
	KUNIT_EXPECT_PTR_EQ(test, lot->held[0].folio, folios[0]);
	for (i = 0; i < 3; i++)
		KUNIT_EXPECT_EQ(test, folio_ref_count(folios[i]), i ? 1 : 2);
	luf_lot_put_held(lot, 7);
	KUNIT_EXPECT_EQ(test, lot->nr_held, 0);
	luf_test_put(&list);
}

/* What cannot be migrated may be a folio that is held: it is let go, whatever it is owed. */
static void luf_let_go_test(struct kunit *test)
{
	struct folio *folio;
	struct luf_lot *lot;
	LIST_HEAD(failed);

	folio = luf_test_folio(test, &failed, 0);
	lot = luf_lots[folio_nid(folio)];
	folio_get(folio);
	spin_lock(&lot->lock);
	lot->newest = atomic64_inc_return(&luf_clock);
	lot->held[lot->nr_held].folio = folio;
	lot->held[lot->nr_held].label = lot->newest;
	WRITE_ONCE(lot->nr_held, lot->nr_held + 1);
	spin_unlock(&lot->lock);
	luf_let_go(&failed);
	KUNIT_EXPECT_EQ(test, folio_ref_count(folio), 1);
	luf_test_put(&failed);
}

/* Nothing leaves before its label is settled; the rest stays. */
static void luf_lot_label_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_lot *lot = &t->lot;
	struct folio *old;
	LIST_HEAD(list);

	old = luf_test_folio(test, &list, 0);
	luf_test_park(lot, &list, 3);
	luf_test_folio(test, &list, 0);
	luf_test_park(lot, &list, 5);
	KUNIT_EXPECT_EQ(test, lot->newest, 5);

	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 2, ULONG_MAX, &list), 0);
	KUNIT_EXPECT_TRUE(test, list_empty(&list));
	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 4, ULONG_MAX, &list), 1);
	KUNIT_EXPECT_PTR_EQ(test, list_first_entry(&list, struct folio, lru), old);
	KUNIT_EXPECT_NULL(test, old->private);
	luf_test_put(&list);
	KUNIT_EXPECT_EQ(test, lot->nr_pages, 1);
	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 5, ULONG_MAX, &list), 1);
	luf_test_put(&list);
	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 5, ULONG_MAX, &list), 0);
}

/* A late parker with an older label waits behind a newer one. */
static void luf_lot_order_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_lot *lot = &t->lot;
	LIST_HEAD(list);

	luf_test_folio(test, &list, 0);
	luf_test_park(lot, &list, 8);
	luf_test_folio(test, &list, 0);
	luf_test_park(lot, &list, 7);
	KUNIT_EXPECT_EQ(test, lot->newest, 8);
	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 7, ULONG_MAX, &list), 0);
	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 8, ULONG_MAX, &list), 2);
	luf_test_put(&list);
}

/* What a node may hold, and what kswapd may while it is short, follow the watermarks. */
static void luf_lot_limit_test(struct kunit *test)
{
	struct pglist_data *pgdat = NODE_DATA(first_memory_node);
	unsigned long limit = 0, piece = 0, saved = luf_lot_pages;
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++) {
		struct zone *zone = &pgdat->node_zones[i];

		limit += high_wmark_pages(zone) - low_wmark_pages(zone);
		piece += low_wmark_pages(zone) - min_wmark_pages(zone);
	}
	luf_lot_pages = 2048;
	KUNIT_EXPECT_EQ(test, luf_node_limit(pgdat), 2048);
	luf_lot_pages = 0;
	KUNIT_EXPECT_GE(test, luf_node_limit(pgdat), min(limit, 16384));
	KUNIT_EXPECT_LE(test, luf_node_limit(pgdat), 16384);
	KUNIT_EXPECT_EQ(test, luf_worth(53613), 837);
	KUNIT_EXPECT_EQ(test, luf_worth(1 << 20), 1024);
	luf_lot_pages = saved;
	KUNIT_EXPECT_EQ(test, luf_node_piece(pgdat), clamp(piece / 4, 128, 4096));
}

/*
 * An mm that owes a flush is flushed once. A label that was settled by a drain
 * needs none and goes away, too.
 */
static void luf_pending_test(struct kunit *test)
{
	struct mm_struct *mm = mm_alloc();

	KUNIT_ASSERT_NOT_NULL(test, mm);
	KUNIT_EXPECT_FALSE(test, __luf_flush_pending(mm));
	atomic64_set(&mm->luf_label, luf_ledger_now(&luf));
	KUNIT_EXPECT_TRUE(test, __luf_flush_pending(mm));
	KUNIT_EXPECT_EQ(test, atomic64_read(&mm->luf_label), 0);
	KUNIT_EXPECT_FALSE(test, __luf_flush_pending(mm));

	luf_settle_all(luf_ledger_now(&luf));
	atomic64_set(&mm->luf_label, luf.done);
	KUNIT_EXPECT_FALSE(test, __luf_flush_pending(mm));
	KUNIT_EXPECT_EQ(test, atomic64_read(&mm->luf_label), 0);
	mmput(mm);
}

/* The state of the folio that is being unmapped, without any unmapping. */
static void luf_state_test(struct kunit *test)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	struct folio *folio, *other;
	LIST_HEAD(list);
	LIST_HEAD(parked);
	int i;

	folio = luf_test_folio(test, &list, 0);
	other = luf_test_folio(test, &list, 0);
	list_del(&folio->lru);

	/* parked: a flush for it was deferred */
	tlb_ubc->luf_folio = folio;
	tlb_ubc->luf_state = LUF_OWED;
	KUNIT_EXPECT_FALSE(test, luf_park(other, &parked));
	KUNIT_EXPECT_TRUE(test, luf_park(folio, &parked));
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, 0);
	KUNIT_EXPECT_FALSE(test, list_empty(&parked));
	list_del(&folio->lru);

	/* not parked: nothing is owed for it, but for one before it */
	tlb_ubc->luf_folio = folio;
	tlb_ubc->luf_state = LUF_KEPT;
	KUNIT_EXPECT_FALSE(test, luf_park(folio, &parked));
	KUNIT_EXPECT_TRUE(test, tlb_ubc->luf_state & LUF_KEPT);

	/* settled with the batch, but for what is being migrated */
	tlb_ubc->luf_state |= LUF_MOVING;
	try_to_unmap_flush();
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, LUF_MOVING);
	KUNIT_EXPECT_TRUE(test, luf_begin_migrate());
	luf_end_migrate(true);
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, LUF_MOVING);
	luf_end_migrate(false);
	KUNIT_EXPECT_FALSE(test, luf_begin_migrate());

	/* what an earlier folio is owed survives the next one: reclaim has it held, once */
	luf_drain_all();
	for (i = 0; i < 2; i++) {
		tlb_ubc->luf_folio = folio;
		tlb_ubc->luf_state = LUF_OWED | LUF_MOVING | LUF_MAY_HOLD;
		luf_begin(other, 0);
		KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, LUF_MOVING | LUF_UNMAPPING);
		luf_end();
	}
	KUNIT_EXPECT_LE(test, folio_ref_count(folio), 2);
	/* others flush */
	tlb_ubc->luf_folio = folio;
	tlb_ubc->luf_state = LUF_OWED | LUF_MOVING;
	luf_begin(other, 0);
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state,
			LUF_KEPT | LUF_MOVING | LUF_UNMAPPING);
	luf_end();
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, LUF_KEPT | LUF_MOVING);
	try_to_unmap_flush();
	luf_end_migrate(false);
	KUNIT_EXPECT_TRUE(test, list_empty(&parked));
	luf_drain_all();
	KUNIT_EXPECT_EQ(test, folio_ref_count(folio), 1);

	tlb_ubc->luf_folio = NULL;
	list_add(&folio->lru, &list);
	luf_test_put(&list);
}

static struct kunit_case luf_cases[] = {
	KUNIT_CASE(luf_ledger_test),
	KUNIT_CASE(luf_ledger_nobody_test),
	KUNIT_CASE(luf_ledger_next_test),
	KUNIT_CASE(luf_ledger_behind_test),
	KUNIT_CASE(luf_ledger_other_mm_test),
	KUNIT_CASE(luf_ledger_init_mm_test),
	KUNIT_CASE(luf_ledger_owe_test),
	KUNIT_CASE(luf_lot_count_test),
	KUNIT_CASE(luf_lot_held_test),
	KUNIT_CASE(luf_let_go_test),
	KUNIT_CASE(luf_lot_label_test),
	KUNIT_CASE(luf_lot_order_test),
	KUNIT_CASE(luf_lot_limit_test),
	KUNIT_CASE(luf_state_test),
	KUNIT_CASE(luf_pending_test),
	{}
};

static struct kunit_suite luf_suite = {
	.name = "luf",
	.init = luf_test_init,
	.exit = luf_test_exit,
	.test_cases = luf_cases,
};

kunit_test_suite(luf_suite);
