/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * NMIs that read user memory in an ack-to-flush window, for the selftest nmi. Debug
 * kernels only. Parameters below /sys/module/early_ack/parameters/:
 *
 *	window_us	stretches each window by this time, 0 to 50,000 us
 *	nmi		"CPU ADDRESS" sends an NMI to a CPU, whose handler reads the word at this
 *			hexadecimal address of current->mm; reads as "READ OWED WORD": was it
 *			read (else refused, or without a page), in a window, and the word
 */
#include <linux/atomic.h>
#include <linux/cpu.h>
#include <linux/iopoll.h>
#include <linux/kernel.h>
#include <linux/moduleparam.h>
#include <linux/uaccess.h>
#include <asm/apic.h>
#include <asm/nmi.h>

#define EARLY_ACK_NMI_TIMEOUT_US	(5 * USEC_PER_SEC)

unsigned int early_ack_window_us;

/* Values of early_ack_nmi_cpu that are no CPU. */
#define EARLY_ACK_NMI_IDLE	-1
#define EARLY_ACK_NMI_BUSY	-2

/*
 * The target until its handler takes the request; then busy until the result is there. The
 * variables below belong to the handler while it is busy, otherwise to the writer of the parameter.
 * param_lock admits one writer or reader.
 */
static int early_ack_nmi_cpu = EARLY_ACK_NMI_IDLE;
static unsigned long early_ack_nmi_address, early_ack_nmi_word;
static bool early_ack_nmi_read, early_ack_nmi_owed;

static int early_ack_nmi_handler(unsigned int cmd, struct pt_regs *regs)
{
	int cpu = smp_processor_id();
	unsigned long word;

	/* Pairs with early_ack_nmi_set(): the address. It may withdraw the request. */
	if (cmpxchg(&early_ack_nmi_cpu, cpu, EARLY_ACK_NMI_BUSY) != cpu)
		return NMI_DONE;
	early_ack_nmi_owed = early_ack_owes();
	early_ack_nmi_read = !copy_from_user_nmi(&word, (void __user *)early_ack_nmi_address,
						 sizeof(word));
	early_ack_nmi_word = early_ack_nmi_read ? word : 0;
	/* Pairs with early_ack_nmi_set(): the result. */
	smp_store_release(&early_ack_nmi_cpu, EARLY_ACK_NMI_IDLE);
	return NMI_HANDLED;
}

static int early_ack_nmi_set(const char *val, const struct kernel_param *kp)
{
	unsigned long address;
	unsigned int cpu;
	int now, err = -EINVAL;

	/* On the command line: there is no handler yet. */
	if (system_state < SYSTEM_RUNNING)
		return -EBUSY;
	if (sscanf(val, "%u %lx", &cpu, &address) != 2)
		return -EINVAL;
	cpus_read_lock();
	if (cpu < nr_cpu_ids && cpu_online(cpu)) {
		early_ack_nmi_address = address;
		/* Pairs with early_ack_nmi_handler(). */
		smp_store_release(&early_ack_nmi_cpu, cpu);
		__apic_send_IPI(cpu, NMI_VECTOR);
		err = read_poll_timeout(smp_load_acquire, now, now == EARLY_ACK_NMI_IDLE, 0,
					EARLY_ACK_NMI_TIMEOUT_US, false, &early_ack_nmi_cpu);
		/* A late NMI must not find this request, nor take the next one for it. */
		if (err && cmpxchg(&early_ack_nmi_cpu, cpu, EARLY_ACK_NMI_IDLE) != cpu) {
			smp_cond_load_acquire(&early_ack_nmi_cpu, VAL == EARLY_ACK_NMI_IDLE);
			err = 0;
		}
	}
	cpus_read_unlock();
	return err;
}

static int early_ack_nmi_get(char *buf, const struct kernel_param *kp)
{
	return sysfs_emit(buf, "%d %d %lx\n", early_ack_nmi_read, early_ack_nmi_owed,
			  early_ack_nmi_word);
}

static const struct kernel_param_ops early_ack_nmi_ops = {
	.set = early_ack_nmi_set,
	.get = early_ack_nmi_get,
};
module_param_cb(nmi, &early_ack_nmi_ops, NULL, 0600);

static int early_ack_window_set(const char *val, const struct kernel_param *kp)
{
	return param_set_uint_minmax(val, kp, 0, 50 * USEC_PER_MSEC);
}

static const struct kernel_param_ops early_ack_window_ops = {
	.set = early_ack_window_set,
	.get = param_get_uint,
};
module_param_cb(window_us, &early_ack_window_ops, &early_ack_window_us, 0600);

static int __init early_ack_nmi_init(void)
{
	return register_nmi_handler(NMI_LOCAL, early_ack_nmi_handler, 0, "early_ack");
}
late_initcall(early_ack_nmi_init);
