/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit test of early acknowledgment below KVM's paravirtual flush. Included by
 * arch/x86/kernel/kvm.c; without a host the test itself writes the steal-time area.
 */
#if defined(CONFIG_QUELL_KUNIT_TEST) && defined(CONFIG_QUELL_EARLY_ACK)

#include <kunit/test.h>
#include <linux/cpumask.h>
#include <linux/smp.h>
#include <linux/vmstat.h>
#include <asm/early_ack.h>

static unsigned long early_ack_kvm_acked(int cpu)
{
	return READ_ONCE(per_cpu(vm_event_states, cpu).event[EARLY_ACK_ACKED]);
}

static void early_ack_kvm_flush(bool freed_tables)
{
	struct flush_tlb_info info = { .end = TLB_FLUSH_ALL, .freed_tables = freed_tables };

	preempt_disable();
	info.initiating_cpu = smp_processor_id();
	kvm_flush_tlb_multi(cpu_online_mask, &info);
	preempt_enable();
	/* Behind the flushes in each queue: they are counted now. */
	kick_all_cpus_sync();
}

/* @preempted is left to the host, all others acknowledge early. If it is @self, none is left. */
static void early_ack_kvm_select(struct kunit *test, unsigned long *before, int self, int preempted)
{
	int cpu;

	/* Synchronous, and lazy CPUs switch to init_mm: the next flush does not spare them. */
	early_ack_kvm_flush(true);
	for_each_online_cpu(cpu)
		before[cpu] = early_ack_kvm_acked(cpu);
	if (preempted != self)
		WRITE_ONCE(per_cpu(steal_time, preempted).preempted, KVM_VCPU_PREEMPTED);
	early_ack_kvm_flush(false);
	for_each_online_cpu(cpu) {
		bool runs = cpu == self || cpu != preempted;

		KUNIT_EXPECT_EQ(test, early_ack_kvm_acked(cpu) - before[cpu], runs && cpu != self);
		KUNIT_EXPECT_EQ(test, READ_ONCE(per_cpu(steal_time, cpu).preempted),
				runs ? 0 : KVM_VCPU_PREEMPTED | KVM_VCPU_FLUSH_TLB);
	}
	WRITE_ONCE(per_cpu(steal_time, preempted).preempted, 0);
}

static void early_ack_kvm_test(struct kunit *test)
{
	unsigned long *before = kunit_kcalloc(test, nr_cpu_ids, sizeof(*before), GFP_KERNEL);
	cpumask_var_t *mask;
	int cpu;

	KUNIT_ASSERT_NOT_NULL(test, before);
	if (kvm_para_available())
		kunit_skip(test, "the host writes the steal-time area");
	if (!early_ack_on())
		kunit_skip(test, "early_ack is off");
	migrate_disable();
	mask = per_cpu_ptr(&__pv_cpu_mask, smp_processor_id());
	if (zalloc_cpumask_var(mask, GFP_KERNEL)) {
		for_each_online_cpu(cpu)
			early_ack_kvm_select(test, before, smp_processor_id(), cpu);
		free_cpumask_var(*mask);
	} else {
		KUNIT_FAIL(test, "no memory for a mask");
	}
	migrate_enable();
}

static struct kunit_case early_ack_kvm_cases[] = {
	KUNIT_CASE(early_ack_kvm_test),
	{}
};

static struct kunit_suite early_ack_kvm_suite = {
	.name = "early_ack_kvm",
	.test_cases = early_ack_kvm_cases,
};

kunit_test_suite(early_ack_kvm_suite);

#endif
