// SPDX-License-Identifier: GPL-2.0-only
/*
 * Switches that disable Linux's own mechanisms against TLB shootdowns, to measure their effect:
 * unmap_batch, concurrent, zap_batch. All are on by default, and then cost one patched-out branch.
 *
 * They are Mel Gorman's batched unmap flush (Linux 4.3), Nadav Amit's concurrent flush (5.13), and
 * the batched zapping that Ryan Roberts first published (6.9). Only the switches are new.
 *
 * Safety: each one off is Linux before the mechanism, on a path that Linux still has: an immediate
 * flush (unmap_batch; should_defer_flush() decides so for a process of one CPU), a batch of one
 * PTE (zap_batch; as for a small folio), the same function on the same CPUs in another order
 * (concurrent; the caller only needs all of them done on return). No path reads a switch twice, so
 * it may move at any time, also between the clearing of a PTE and its flush.
 */
#include <linux/array_size.h>
#include <linux/cpumask.h>
#include <linux/init.h>
#include <linux/percpu.h>
#include <linux/quell.h>
#include <linux/smp.h>

#ifdef CONFIG_QUELL_UNMAP_BATCH
DEFINE_STATIC_KEY_TRUE(quell_unmap_batch_key);
#endif

#ifdef CONFIG_QUELL_ZAP_BATCH
DEFINE_STATIC_KEY_TRUE(quell_zap_batch_key);
#endif

#ifdef CONFIG_QUELL_CONCURRENT
DEFINE_STATIC_KEY_TRUE(quell_concurrent_key);
static DEFINE_PER_CPU(struct cpumask, quell_remote);

/**
 * quell_flush_serial - flush the remote CPUs, wait, then flush the local one
 * @mask:	the CPUs
 * @cond:	called for each CPU: does it need the flush? or NULL
 * @func:	the flush, called with interrupts off
 * @info:	argument of @func and @cond
 *
 * Interrupts on. Waits for all of them.
 */
void quell_flush_serial(const struct cpumask *mask,
			bool (*cond)(int cpu, void *info),
			void (*func)(void *info), void *info)
{
	unsigned int cpu = get_cpu();
	struct cpumask *remote = this_cpu_ptr(&quell_remote);

	cpumask_copy(remote, mask);
	cpumask_clear_cpu(cpu, remote);
	on_each_cpu_cond_mask(cond, func, info, true, remote);
	if (cpumask_test_cpu(cpu, mask))
		on_each_cpu_cond_mask(cond, func, info, true, cpumask_of(cpu));
	put_cpu();
}
#endif

static struct quell_mechanism quell_stock[] = {
#ifdef CONFIG_QUELL_UNMAP_BATCH
	{ .name = "unmap_batch", .key = &quell_unmap_batch_key.key },
#endif
#ifdef CONFIG_QUELL_ZAP_BATCH
	{ .name = "zap_batch", .key = &quell_zap_batch_key.key },
#endif
#ifdef CONFIG_QUELL_CONCURRENT
	{ .name = "concurrent", .key = &quell_concurrent_key.key },
#endif
};

static int __init quell_stock_init(void)
{
	unsigned int i;
	int err = 0;

	for (i = 0; i < ARRAY_SIZE(quell_stock); i++) {
		quell_stock[i].linux_own = true;
		err = quell_register(&quell_stock[i]) ?: err;
	}
	return err;
}
subsys_initcall(quell_stock_init);
