// SPDX-License-Identifier: GPL-2.0-only
/*
 * Switches that take away what Linux itself does against TLB shootdowns, to
 * measure what that is worth: unmap_batch, concurrent, zap_batch. All are on
 * unless somebody switches them off, and then cost one patched-out branch.
 *
 * Safety: each one off is Linux as it was before the mechanism came, and takes
 * a path that Linux still has: an immediate flush (unmap_batch; what
 * should_defer_flush() says for a process of one CPU), a batch of one PTE
 * (zap_batch; what a small folio gets), the same function called on the same
 * CPUs in another order (concurrent; the caller only relies on all of them
 * being done when it returns). So switching at any time is safe, also between
 * the clearing of a PTE and its flush: no path looks at a switch twice.
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
 * @cond:	asked for each CPU whether it needs the flush; or NULL
 * @func:	the flush, called with interrupts off
 * @info:	its argument, and @cond's
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
