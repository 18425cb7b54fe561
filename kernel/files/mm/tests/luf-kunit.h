/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit tests of struct luf_ledger, with one of their own, and of the state of the folio that is
 * being unmapped. The clock starts where luf_seen never comes, so every CPU that may use user
 * entries is pending.
 */
#include <kunit/test.h>
#include <linux/kthread.h>
#include <linux/sched/mm.h>
/* It has tracepoints of its own. */
#undef CREATE_TRACE_POINTS
#include <linux/mmu_context.h>

#define LUF_START	BIT_ULL(62)

struct luf_test {
	struct luf_ledger ledger;
	atomic64_t clock;
	atomic64_t owed[NR_CPUS];
	struct mm_struct *mm;		/* its CPUs become pending */
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
 * Stay on this CPU and load an mm: a CPU that is not lazy. No test may end before luf_test_end().
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

/* @cpu may have cached PTEs of the mm. Returns the generation. */
static u64 luf_test_owe(struct luf_test *t, unsigned int cpu)
{
	u64 label;

	cpumask_clear(mm_cpumask(t->mm));
	cpumask_set_cpu(cpu, mm_cpumask(t->mm));
	label = luf_ledger_owe(&t->ledger, t->mm);
	cpumask_clear(mm_cpumask(t->mm));
	return label;
}

/* The clock has yet to reach a new generation; one flush completes it, a second is free. */
static void luf_ledger_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;
	u64 label = luf_test_owe(t, luf_test_begin(t));

	KUNIT_EXPECT_EQ(test, label, LUF_START + 1);
	KUNIT_EXPECT_FALSE(test, luf_ledger_done(ledger, label));

	KUNIT_EXPECT_TRUE(test, luf_ledger_flush(ledger, label));
	KUNIT_EXPECT_TRUE(test, luf_ledger_done(ledger, label));
	KUNIT_EXPECT_EQ(test, atomic64_read(&t->clock), label);
	KUNIT_EXPECT_FALSE(test, luf_ledger_flush(ledger, label));
	KUNIT_EXPECT_EQ(test, ledger->done, label);
	luf_test_end(t);
}

/* Without pending CPUs there is no flush. */
static void luf_ledger_nobody_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;

	luf_test_begin(t);
	KUNIT_EXPECT_FALSE(test, luf_ledger_flush(ledger, luf_ledger_now(ledger)));
	luf_test_end(t);
	KUNIT_EXPECT_EQ(test, ledger->done, LUF_START + 1);
}

/* A generation after a flush is newer than that flush's. */
static void luf_ledger_next_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	struct luf_ledger *ledger = &t->ledger;
	unsigned int cpu = luf_test_begin(t);
	u64 first = luf_test_owe(t, cpu), second;

	luf_ledger_flush(ledger, first);
	second = luf_test_owe(t, cpu);
	KUNIT_EXPECT_GT(test, second, ledger->done);
	KUNIT_EXPECT_TRUE(test, luf_ledger_flush(ledger, second));
	luf_test_end(t);
}

/*
 * A CPU is pending if it has seen neither the generation in question nor its luf_owed. The
 * thresholds are set around the value that this CPU has really seen.
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

/* A CPU that was pending for one mm, and runs another since, is not flushed. */
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
	atomic64_inc(&luf_clock);

	kthread_use_mm(other);
	atomic64_inc(&luf_clock);
	now = luf_ledger_now(&t->ledger);
	behind = luf_reached(&t->ledger, cpu, now) < now;
	kthread_unuse_mm(other);
	migrate_enable();
	KUNIT_EXPECT_FALSE(test, behind);
	mmput(other);
}

/* A CPU with init_mm loaded uses no user entry. */
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

/* Every CPU of the mm becomes pending, no other does, and a newer generation stays. */
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

/*
 * An mm with deferred flushes is flushed once. After a drain has completed its generation it needs
 * no flush, and the label goes away, too.
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

	luf_flush(luf_ledger_now(&luf));
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
	LIST_HEAD(parked);
	int i;

	folio = folio_alloc(GFP_KERNEL, 0);
	other = folio_alloc(GFP_KERNEL, 0);
	KUNIT_ASSERT_TRUE(test, folio && other);

	/* parked: its flush was deferred */
	tlb_ubc->luf_folio = folio;
	tlb_ubc->luf_state = LUF_OWED;
	KUNIT_EXPECT_FALSE(test, luf_park(other, &parked));
	KUNIT_EXPECT_TRUE(test, luf_park(folio, &parked));
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, 0);
	KUNIT_EXPECT_FALSE(test, list_empty(&parked));
	list_del(&folio->lru);

	/* not parked: no flush was deferred for it, but for one before it */
	tlb_ubc->luf_folio = folio;
	tlb_ubc->luf_state = LUF_KEPT;
	KUNIT_EXPECT_FALSE(test, luf_park(folio, &parked));
	KUNIT_EXPECT_TRUE(test, tlb_ubc->luf_state & LUF_KEPT);

	/* flushed with the batch, but for folios that are being migrated */
	tlb_ubc->luf_state |= LUF_MOVING;
	try_to_unmap_flush();
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, LUF_MOVING);

	/* the deferred flush of an earlier folio survives the next one: it is held, once */
	luf_drain_all();
	for (i = 0; i < 2; i++) {
		tlb_ubc->luf_folio = folio;
		tlb_ubc->luf_state = LUF_OWED | LUF_MOVING | LUF_MAY_HOLD;
		luf_begin(other, 0);
		KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, LUF_MOVING | LUF_UNMAPPING);
		luf_end();
	}
	KUNIT_EXPECT_LE(test, folio_ref_count(folio), 2);
	/* migration flushes */
	tlb_ubc->luf_folio = folio;
	tlb_ubc->luf_state = LUF_OWED | LUF_MOVING;
	luf_begin(other, 0);
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state,
			LUF_KEPT | LUF_MOVING | LUF_UNMAPPING);
	luf_end();
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, LUF_KEPT | LUF_MOVING);
	try_to_unmap_flush();
	KUNIT_EXPECT_TRUE(test, list_empty(&parked));
	tlb_ubc->luf_state = 0;
	luf_drain_all();
	KUNIT_EXPECT_EQ(test, folio_ref_count(folio), 1);

	tlb_ubc->luf_folio = NULL;
	folio_put(folio);
	folio_put(other);
}

static struct kunit_case luf_cases[] = {
	KUNIT_CASE(luf_ledger_test),
	KUNIT_CASE(luf_ledger_nobody_test),
	KUNIT_CASE(luf_ledger_next_test),
	KUNIT_CASE(luf_ledger_behind_test),
	KUNIT_CASE(luf_ledger_other_mm_test),
	KUNIT_CASE(luf_ledger_init_mm_test),
	KUNIT_CASE(luf_ledger_owe_test),
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
