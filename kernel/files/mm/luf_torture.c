// SPDX-License-Identifier: GPL-2.0-only
/*
 * Torture test of lazy unmap flush, the kernel half: it provokes rare events all at once. The
 * user-space half, tools/testing/selftests/quell/luf_torture.c, checks each read, and starts and
 * stops this half:
 *
 *	echo 1 > /sys/module/luf_torture/parameters/run
 *	echo 0 > /sys/module/luf_torture/parameters/run
 *
 *  - Poisoners allocate frames, fill them with POISON, check them later, and free them. So a frame
 *    that was released too early is soon overwritten, and a write to a frame of theirs is
 *    detected.
 *  - Drainers drain the deferred-free lists concurrently.
 *  - Linux's torture framework adds CPU hotplug, moves the threads and lets them pause together.
 *
 * The console has the result: "End of test: SUCCESS" or "FAILURE".
 */
#define pr_fmt(fmt) "luf_torture: " fmt

#include <linux/atomic.h>
#include <linux/gfp.h>
#include <linux/jiffies.h>
#include <linux/kernel.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/nodemask.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/torture.h>
#include "luf.h"

/* HLT, eight times: a CPU that executes a frame of ours traps. */
#define POISON		0xf4f4f4f4f4f4f4f4UL
/* Blocks of one poisoner: few, as the guest may be small. */
#define MAX_BLOCKS	64
#define MAX_ORDER_USED	2

torture_param(int, nr_poisoners, 2, "Threads that allocate, fill and free frames");
torture_param(int, nr_drainers, 2, "Threads that drain the lists");
torture_param(int, onoff_interval, 3000, "ms between CPU hotplug operations, 0: none");
torture_param(int, onoff_holdoff, 1000, "ms before the first CPU hotplug operation");
torture_param(int, shuffle_interval, 500, "ms between moves of the threads, 0: none");
torture_param(int, stutter, 1000, "ms to run, and then to pause, 0: never pause");
torture_param(int, verbose, 0, "1: tell about every thread, 2: and hotplug operation");

static char *torture_type = "luf";

static unsigned long violations;
module_param(violations, ulong, 0444);
MODULE_PARM_DESC(violations, "Frames that were not what they should be, since the start");

static struct task_struct **poisoners, **drainers;
static atomic_long_t nr_poisoned, nr_refused, nr_drains, nr_violations;

static void fill_block(struct page *page, unsigned int order)
{
	u64 *words = page_address(page);
	unsigned long i;

	for (i = 0; i < (PAGE_SIZE << order) / sizeof(*words); i++)
		WRITE_ONCE(words[i], POISON);
}

/* Only this poisoner may write to the frame. */
static void check_block(struct page *page, unsigned int order)
{
	u64 *words = page_address(page);
	unsigned long i;
	u64 found;

	for (i = 0; i < (PAGE_SIZE << order) / sizeof(*words); i++) {
		found = READ_ONCE(words[i]);
		if (likely(found == POISON))
			continue;
		WRITE_ONCE(violations, atomic_long_inc_return(&nr_violations));
		pr_alert("VIOLATION: word %lu of frame %lx (order %u) is %llx, not %lx\n",
			 i, page_to_pfn(page), order, found, POISON);
		return;
	}
}

static int a_node(struct torture_random_state *rand)
{
	int i = (torture_random(rand) >> 4) % num_node_state(N_MEMORY);
	int nid;

	for_each_node_state(nid, N_MEMORY)
		if (!i--)
			return nid;
	return NUMA_NO_NODE;
}

static int luf_torture_poisoner(void *arg)
{
	/* Too large for the stack. */
	struct page **blocks = arg;
	u8 orders[MAX_BLOCKS];
	DEFINE_TORTURE_RANDOM(rand);
	gfp_t gfp;
	int want, have, i, nid;

	do {
		/*
		 * Mostly movable: these come from the free lists of page cache frames, and through
		 * per-CPU lists at once. Never so hard that the OOM killer runs.
		 */
		gfp = GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN;
		if ((torture_random(&rand) >> 4) % 4)
			gfp |= __GFP_MOVABLE;
		nid = a_node(&rand);
		want = 1 + (torture_random(&rand) >> 4) % MAX_BLOCKS;
		for (have = 0; have < want; have++) {
			orders[have] = 0;
			if ((torture_random(&rand) >> 4) % 16 == 0)
				orders[have] = 1 + (torture_random(&rand) >> 4) %
					       MAX_ORDER_USED;
			blocks[have] = alloc_pages_node(nid, gfp, orders[have]);
			if (!blocks[have])
				break;
			fill_block(blocks[have], orders[have]);
			atomic_long_add(1L << orders[have], &nr_poisoned);
		}
		if (have < want)
			atomic_long_inc(&nr_refused);
		torture_hrtimeout_us(have < want ? 20000 : 200, 1000000, &rand);
		for (i = 0; i < have; i++) {
			check_block(blocks[i], orders[i]);
			__free_pages(blocks[i], orders[i]);
		}
		cond_resched();
		stutter_wait(__func__);
	} while (!torture_must_stop());
	torture_kthread_stopping("poisoner");
	return 0;
}

static int luf_torture_drainer(void *arg)
{
	DEFINE_TORTURE_RANDOM(rand);

	do {
		/* Mostly after a pause, so that pages are parked; sometimes back to back. */
		if ((torture_random(&rand) >> 4) % 8)
			torture_hrtimeout_us((torture_random(&rand) >> 4) % 30000,
					     1000000, &rand);
		luf_drain_all();
		atomic_long_inc(&nr_drains);
		cond_resched();
		stutter_wait(__func__);
	} while (!torture_must_stop());
	torture_kthread_stopping("drainer");
	return 0;
}

/* --- Start and stop --------------------------------------------------------- */

static DEFINE_MUTEX(run_mutex);
static bool running;
static struct page **blocks_of_all;

static void luf_torture_stop(void)
{
	int i;

	if (torture_cleanup_begin())
		return;
	for (i = 0; poisoners && i < nr_poisoners; i++)
		torture_stop_kthread(luf_torture_poisoner, poisoners[i]);
	for (i = 0; drainers && i < nr_drainers; i++)
		torture_stop_kthread(luf_torture_drainer, drainers[i]);

	pr_alert("%ld frames poisoned, %ld times out of memory, %ld drains, %ld violations ",
		 atomic_long_read(&nr_poisoned), atomic_long_read(&nr_refused),
		 atomic_long_read(&nr_drains), atomic_long_read(&nr_violations));
	torture_onoff_stats();
	pr_alert("End of test: %s\n",
		 atomic_long_read(&nr_violations) ? "FAILURE" : "SUCCESS");

	kfree(poisoners);
	kfree(drainers);
	kvfree(blocks_of_all);
	poisoners = NULL;
	drainers = NULL;
	blocks_of_all = NULL;
	running = false;
	torture_cleanup_end();
}

static int luf_torture_start(void)
{
	int err, i;

	if (nr_poisoners < 0 || nr_drainers < 0)
		return -EINVAL;
	if (!torture_init_begin(torture_type, verbose))
		return -EBUSY;

	atomic_long_set(&nr_poisoned, 0);
	atomic_long_set(&nr_refused, 0);
	atomic_long_set(&nr_drains, 0);
	atomic_long_set(&nr_violations, 0);
	WRITE_ONCE(violations, 0);
	running = true;

	err = -ENOMEM;
	poisoners = kcalloc(nr_poisoners, sizeof(*poisoners), GFP_KERNEL);
	drainers = kcalloc(nr_drainers, sizeof(*drainers), GFP_KERNEL);
	blocks_of_all = kvcalloc(nr_poisoners, MAX_BLOCKS * sizeof(*blocks_of_all),
				 GFP_KERNEL);
	if (!poisoners || !drainers || !blocks_of_all)
		goto out;

	for (i = 0; i < nr_poisoners; i++) {
		err = torture_create_kthread(luf_torture_poisoner,
					     blocks_of_all + i * MAX_BLOCKS,
					     poisoners[i]);
		if (err)
			goto out;
	}
	for (i = 0; i < nr_drainers; i++) {
		err = torture_create_kthread(luf_torture_drainer, NULL, drainers[i]);
		if (err)
			goto out;
	}
	if (shuffle_interval > 0) {
		err = torture_shuffle_init(msecs_to_jiffies(shuffle_interval));
		if (err)
			goto out;
	}
	if (stutter > 0) {
		err = torture_stutter_init(msecs_to_jiffies(stutter),
					   msecs_to_jiffies(stutter));
		if (err)
			goto out;
	}
	err = torture_onoff_init(msecs_to_jiffies(onoff_holdoff),
				 msecs_to_jiffies(onoff_interval), NULL);
out:
	torture_init_end();
	if (err)
		luf_torture_stop();
	else
		pr_alert("Start of test: nr_poisoners=%d nr_drainers=%d onoff_interval=%d onoff_holdoff=%d shuffle_interval=%d stutter=%d\n",
			 nr_poisoners, nr_drainers, onoff_interval, onoff_holdoff,
			 shuffle_interval, stutter);
	return err;
}

static int run_set(const char *val, const struct kernel_param *kp)
{
	bool run;
	int err = kstrtobool(val, &run);

	if (err)
		return err;
	/* From the kernel command line it would run before kthreads exist. */
	if (system_state != SYSTEM_RUNNING)
		return -EAGAIN;

	mutex_lock(&run_mutex);
	if (run)
		err = running ? -EBUSY : luf_torture_start();
	else if (running)
		luf_torture_stop();
	mutex_unlock(&run_mutex);
	return err;
}

static int run_get(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%d\n", READ_ONCE(running));
}

static const struct kernel_param_ops run_ops = {
	.set = run_set,
	.get = run_get,
};

module_param_cb(run, &run_ops, NULL, 0600);
MODULE_PARM_DESC(run, "Write 1 to start the test, 0 to stop it");
