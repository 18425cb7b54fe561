/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit tests of pending CPUs and generations, and of the state of the folio that is being
 * unmapped. They share the clock with the running system, so some try again if that was faster.
 */
#include <kunit/test.h>
#include <linux/kthread.h>
#include <linux/sched/mm.h>
/* It has tracepoints of its own. */
#undef CREATE_TRACE_POINTS
#include <linux/mmu_context.h>

#define LUF_TRIES	100

struct luf_test {
	struct mm_struct *mm;		/* its CPUs become pending */
	struct mm_struct *other;
};

static int luf_test_init(struct kunit *test)
{
	struct luf_test *t = kunit_kzalloc(test, sizeof(*t), GFP_KERNEL);

	if (!t)
		return -ENOMEM;
	test->priv = t;
	t->mm = mm_alloc();
	t->other = mm_alloc();
	return t->mm && t->other ? 0 : -ENOMEM;
}

static void luf_test_exit(struct kunit *test)
{
	struct luf_test *t = test->priv;

	if (t && t->mm)
		mmput(t->mm);
	if (t && t->other)
		mmput(t->other);
}

/* Stay on this CPU and load the mm. No test may end before luf_test_end(). */
static unsigned int luf_test_begin(struct luf_test *t)
{
	migrate_disable();
	kthread_use_mm(t->mm);
	return smp_processor_id();
}

static void luf_test_end(struct luf_test *t)
{
	kthread_unuse_mm(t->mm);
	migrate_enable();
}

u64 luf_test_newest(void);

/* For the tests of mm/luf_lot.c: the newest generation, without a pending CPU, before its tick. */
u64 luf_test_newest(void)
{
	struct mm_struct *mm = mm_alloc();
	u64 label = mm ? luf_owe(mm) : 0;

	if (mm)
		mmput(mm);
	return label;
}

/* After one flush a generation has no pending CPU, and a second is free. A later one is newer. */
static void luf_flush_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	bool flushed = false;
	u64 label = 0;
	int i;

	luf_test_begin(t);
	for (i = 0; i < LUF_TRIES && !flushed; i++) {
		label = luf_owe(t->mm);
		flushed = luf_flush(label);
	}
	KUNIT_EXPECT_TRUE(test, flushed);
	KUNIT_EXPECT_GE(test, luf_now(), label);
	KUNIT_EXPECT_GE(test, luf_done(), label);
	KUNIT_EXPECT_GE(test, atomic64_read(&luf_clock), label);
	KUNIT_EXPECT_FALSE(test, luf_flush(label));
	KUNIT_EXPECT_GT(test, luf_owe(t->mm), label);
	luf_test_end(t);
}

/* Without pending CPUs there is no flush, and the generation is complete all the same. */
static void luf_nobody_test(struct kunit *test)
{
	bool flushed = true;
	u64 label = 0;
	int i;

	for (i = 0; i < LUF_TRIES && flushed; i++) {
		label = atomic64_read(&luf_clock) + 1;
		flushed = luf_flush(label);
	}
	KUNIT_EXPECT_FALSE(test, flushed);
	KUNIT_EXPECT_GE(test, luf_done(), label);
}

/*
 * A CPU is pending if it has seen neither the generation in question nor its luf_owed. The
 * thresholds are set around the value that this CPU has really seen.
 */
static void luf_behind_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	unsigned int cpu = luf_test_begin(t);
	bool behind[4];
	u64 seen;
	int i;

	local_irq_disable();
	seen = this_cpu_read(luf_seen);
	for (i = 0; i < 4; i++) {
		u64 label = seen + (i >> 1);

		behind[i] = luf_reached(cpu, seen + (i & 1), label) < label;
	}
	local_irq_enable();
	luf_test_end(t);

	for (i = 0; i < 4; i++)
		KUNIT_EXPECT_EQ(test, behind[i], i == 3);
}

/*
 * A CPU that was pending for one mm, and runs another since, is not flushed. Nor does it become
 * pending for the first again, whether it is left in its mm_cpumask() or not.
 */
static void luf_other_mm_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	bool behind = true, again = true;
	u64 now, owed;
	unsigned int cpu;
	int i;

	if (!static_branch_likely(&luf_key))
		kunit_skip(test, "luf is switched off");
	migrate_disable();
	for (i = 0; i < LUF_TRIES && (behind || again); i++) {
		cpu = luf_test_begin(t);
		luf_owe(t->mm);
		luf_test_end(t);
		atomic64_inc(&luf_clock);

		kthread_use_mm(t->other);
		atomic64_inc(&luf_clock);
		now = atomic64_read(&luf_clock) + 1;
		owed = atomic64_read(&luf_owed[cpu]);
		behind = luf_reached(cpu, owed, now) < now;
		luf_owe(t->mm);
		again = atomic64_read(&luf_owed[cpu]) != owed;
		kthread_unuse_mm(t->other);
	}
	migrate_enable();
	KUNIT_EXPECT_FALSE(test, behind);
	KUNIT_EXPECT_FALSE(test, again);
}

/* A CPU with init_mm loaded uses no user entry. */
static void luf_init_mm_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	bool behind, kernel;
	unsigned int cpu;

	cpu = luf_test_begin(t);
	local_irq_disable();
	luf_owe(t->mm);
	behind = luf_reached(cpu, atomic64_read(&luf_owed[cpu]), U64_MAX) < U64_MAX;
	switch_mm_irqs_off(NULL, &init_mm, NULL);
	kernel = luf_reached(cpu, atomic64_read(&luf_owed[cpu]), U64_MAX) < U64_MAX;
	switch_mm_irqs_off(NULL, t->mm, current);
	local_irq_enable();
	luf_test_end(t);
	KUNIT_EXPECT_TRUE(test, behind);
	KUNIT_EXPECT_FALSE(test, kernel);
}

/* The CPU that runs the mm becomes pending, no other does, and a newer generation stays. */
static void luf_owe_test(struct kunit *test)
{
	struct luf_test *t = test->priv;
	unsigned int cpu = luf_test_begin(t);
	unsigned int other = cpu ? 0 : num_online_cpus() - 1;
	u64 label, before, here;
	bool same = false;
	int i;

	for (i = 0; i < LUF_TRIES && !same; i++) {
		here = atomic64_read(&luf_owed[cpu]);
		before = atomic64_read(&luf_owed[other]);
		atomic64_inc(&luf_clock);
		label = luf_owe(t->mm);
		same = other == cpu || atomic64_read(&luf_owed[other]) == before;
		KUNIT_EXPECT_GT(test, atomic64_read(&luf_owed[cpu]), here);
		KUNIT_EXPECT_GE(test, luf_now(), label);
	}
	KUNIT_EXPECT_TRUE(test, same);
	KUNIT_EXPECT_FALSE(test, luf_raise(&luf_owed[cpu], 1));
	KUNIT_EXPECT_GT(test, atomic64_read(&luf_owed[cpu]), 1);
	luf_test_end(t);
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
	/* No flush of others comes that far. */
	atomic64_set(&mm->luf_label, atomic64_read(&luf_clock) + 1000);
	KUNIT_EXPECT_TRUE(test, __luf_flush_pending(mm));
	KUNIT_EXPECT_EQ(test, atomic64_read(&mm->luf_label), 0);
	KUNIT_EXPECT_FALSE(test, __luf_flush_pending(mm));

	luf_flush(atomic64_read(&luf_clock) + 1);
	atomic64_set(&mm->luf_label, luf_done());
	KUNIT_EXPECT_FALSE(test, __luf_flush_pending(mm));
	KUNIT_EXPECT_EQ(test, atomic64_read(&mm->luf_label), 0);
	mmput(mm);
}

/* The state of the folio that is being unmapped, without any unmapping. */
static void luf_state_test(struct kunit *test)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	struct folio *folio, *large, *freed, *other;
	struct folio_batch fbatch;
	int i;

	folio = folio_alloc(GFP_KERNEL, 0);
	large = folio_alloc(GFP_KERNEL, 1);
	freed = folio_alloc(GFP_KERNEL, 0);
	other = folio_alloc(GFP_KERNEL, 0);
	KUNIT_ASSERT_TRUE(test, folio && large && freed && other);
	luf_drain_all();

	/* it stays, although its flush was deferred: held, once */
	for (i = 0; i < 2; i++) {
		tlb_ubc->luf_folio = folio;
		tlb_ubc->luf_state = LUF_OWED | LUF_MOVING;
		luf_begin(other);
		KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, LUF_MOVING | LUF_UNMAPPING);
		KUNIT_EXPECT_PTR_EQ(test, tlb_ubc->luf_folio, other);
		tlb_ubc->luf_state &= ~LUF_UNMAPPING;
	}
	KUNIT_EXPECT_LE(test, folio_ref_count(folio), 2);

	/* it stays and cannot be held: flushed with the batch */
	tlb_ubc->luf_folio = large;
	tlb_ubc->luf_state = LUF_OWED | LUF_MOVING;
	luf_begin(other);
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, LUF_KEPT | LUF_MOVING | LUF_UNMAPPING);
	tlb_ubc->luf_state &= ~LUF_UNMAPPING;
	try_to_unmap_flush();
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, LUF_MOVING);

	/* reclaim frees it: parked, and no other folio of the batch */
	folio_batch_init(&fbatch);
	KUNIT_ASSERT_TRUE(test, folio_ref_freeze(freed, 1));
	KUNIT_ASSERT_TRUE(test, folio_ref_freeze(other, 1));
	folio_batch_add(&fbatch, freed);
	folio_batch_add(&fbatch, other);
	tlb_ubc->luf_folio = freed;
	tlb_ubc->luf_state = LUF_OWED;
	try_to_unmap_flush();
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, LUF_PARKING);
	KUNIT_EXPECT_PTR_EQ(test, freed->private, (void *)LUF_PARKING);
	KUNIT_EXPECT_NULL(test, other->private);
	luf_free_folios(&fbatch, folio_pgdat(freed));
	KUNIT_EXPECT_EQ(test, tlb_ubc->luf_state, 0);
	KUNIT_EXPECT_EQ(test, folio_batch_count(&fbatch), 0);

	luf_drain_all();
	KUNIT_EXPECT_EQ(test, folio_ref_count(folio), 1);
	folio_put(folio);
	folio_put(large);
}

/* Where CPUs flush others by INVLPGB the mechanism is refused, with a reason. */
static void luf_refused_test(struct kunit *test)
{
#ifdef X86_FEATURE_INVLPGB
	unsigned long *caps = (unsigned long *)boot_cpu_data.x86_capability;
	const char *with, *without;
	bool had;

	/* Nobody else reads the flag now: Linux's own tests of it are patched at boot. */
	had = test_and_set_bit(X86_FEATURE_INVLPGB, caps);
	with = arch_luf_refused();
	clear_bit(X86_FEATURE_INVLPGB, caps);
	without = arch_luf_refused();
	if (had)
		set_bit(X86_FEATURE_INVLPGB, caps);
	KUNIT_EXPECT_STREQ(test, with, "CPUs broadcast TLB flushes with INVLPGB");
	KUNIT_EXPECT_NULL(test, without);
#else
	kunit_skip(test, "this kernel does not use INVLPGB");
#endif
}

static struct kunit_case luf_cases[] = {
	KUNIT_CASE(luf_flush_test),
	KUNIT_CASE(luf_nobody_test),
	KUNIT_CASE(luf_behind_test),
	KUNIT_CASE(luf_other_mm_test),
	KUNIT_CASE(luf_init_mm_test),
	KUNIT_CASE(luf_owe_test),
	KUNIT_CASE(luf_state_test),
	KUNIT_CASE(luf_pending_test),
	KUNIT_CASE(luf_refused_test),
	{}
};

static struct kunit_suite luf_suite = {
	.name = "luf",
	.init = luf_test_init,
	.exit = luf_test_exit,
	.test_cases = luf_cases,
};

kunit_test_suite(luf_suite);
