// SPDX-License-Identifier: GPL-2.0-only
/*
 * Early acknowledgment of TLB flushes: the initiator continues once every target has acknowledged
 * the IPI. Targets flush before they return to user space.
 *
 * Stock waits until the handler of each CPU that may have cached a changed entry has flushed. The
 * initiator only needs to know that no CPU uses the old entry any more. That is so from the
 * acknowledgment on: the target is in its interrupt handler, and leaves it with a flushed TLB. The
 * handler copies the request, acknowledges it, and flushes before it does anything else.
 *
 * First published by Nadav Amit ("x86: Flush remote TLBs concurrently and async", RFC v2, 2019),
 * with the request inlined in the call-function message; also Amit, Tai and Wei (EuroSys 2020).
 * Here a target acknowledges up to four requests before its first flush, and looks again for more.
 *
 * The *ack-to-flush window* of a target lies between acknowledgment and flush; early_ack_owed is
 * set in it. A *stale* entry is one that this flush is to remove.
 *
 * native_flush_tlb_multi() calls early_ack_call() (kernel/smp_early_ack.h). KVM's paravirtual
 * flush leaves the running virtual CPUs to it [early_ack_kvm_test]; the host also flushes one that
 * is preempted in its window, which is harmless. Acknowledged early are flushes that free no page
 * tables: of munmap, mprotect, madvise, write protection, copy on write, the batches of reclaim and
 * migration, the drains of mm/luf.c. Not: kernel ranges; flush_tlb_range() and flush_tlb_mm(),
 * which imply freed page tables; flushes that trim mm_cpumask() or move an mm to a global ASID;
 * those that Xen PV and Hyper-V carry out themselves; all before early_ack_init().
 *
 * The invariants, with tests, mutations and models in brackets:
 *
 * A1: the target uses no stale entry in its ack-to-flush window. Interrupts are off from before
 * the acknowledgment until after the flush wherever the queue is emptied: handler, idle loop,
 * stopper, smpcfd_dying_cpu(). Nothing is scheduled, and of the queue only flush_tlb_func() runs.
 * [early_ack dontneed, unmap, protect, uffd; EARLY_ACK_NO_FLUSH, EARLY_ACK_FLUSH_LATER; ack]
 *  - NMIs, machine checks, debug exceptions and probes must ask nmi_uaccess_okay(), as in stock.
 *    It says no while early_ack_owed is set. early_ack_owed encloses the window in program order,
 *    which counts for interruptions of this CPU. An NMI that asked before ends before the
 *    acknowledgment. GUP-fast looks at page tables and uses no entry. A module that uses
 *    __copy_from_user_inatomic() without asking is not covered. [nmi, early_ack_owed_test,
 *    early_ack_walk_test; EARLY_ACK_NOT_OWED]
 *  - Accesses of the CPU itself (descriptor tables, stacks, PMU buffers) are to kernel addresses.
 *    With page table isolation the LDT is at an address of the mm. But install_ldt() has every CPU
 *    load the new one before it unmaps the old one.
 *  - Speculation brings lines into coherent caches, and its results are discarded. Accessed and
 *    dirty bits are set only in present PTEs. Stock's lazy CPUs have stale entries as well.
 *  - flush_tlb_func() compares the mm of the request and never dereferences it, as it may be gone.
 *    (Since 6.14 it would leave that mm's cpumask, and does not in the window.) No other mm can
 *    have the same address. The initiator waited while the request was copied, and in the window
 *    the loaded mm can change to init_mm only.
 *
 * A2: the acknowledgment publishes the target's earlier stores. Stores through the stale entry
 * precede the acknowledgment, a release (csd_unlock()), in program order; the initiator acquires.
 * The xchg that emptied the queue drains non-temporal stores. So a page that is written out,
 * copied or checked for dirtiness after the flush has all stores, and A1 excludes later ones. The
 * target takes the message with a locked instruction. GUP-fast has interrupts off, so the
 * acknowledgment waits for it. [early_ack protect, uffd; ack]
 *
 * A3: page tables stay until the flush, which alone ends walks from cached upper entries.
 * Initiators that free page tables wait for it (freed_tables). So do those that stop to share one
 * of hugetlb's (tlb_flush()), as others may free that. All others need A1 and A2 only: munmap,
 * MADV_DONTNEED and truncation, I/O and folio_mkclean(), mprotect, soft-dirty, userfaultfd,
 * migration, KSM, NUMA hinting, copy on write. Collapsing, splitting and moving huge pages use
 * flush_tlb_range(). [early_ack with shared page tables; ack with TABLES]
 *
 * A4: no request is lost, mixed up or left without an interrupt: see kernel/smp_early_ack.h.
 * [early_ack_call_test, early_ack with two initiators; ack with AGAIN]
 *  - flush_tlb_kernel_range() inlines its request and waits for the flush, so memory of vmap() is
 *    freed after it. Its target first ends the ack-to-flush window of earlier requests. Flushes
 *    of all kernel memory have no argument to inline. [early_ack_kernel_test]
 *
 * A5: the surroundings are as in stock. [switches; early_ack with the switch and CPU hotplug; ack
 * with SWITCH, LAZY, HOTPLUG]
 *  - A target runs at most two rounds of its queue. A CPU that became lazy since
 *    should_flush_tlb() switches to init_mm in the window.
 *  - Text poking has interrupts off; an mm that comes back after a temporary one (EFI, too) does
 *    so through switch_mm_irqs_off(), which compares tlb_gen.
 *  - CSD lock debugging sees targets that do not acknowledge, not those that hang in the flush.
 *  - /proc/interrupts, nr_tlb_remote_flush_received and csd:* count requests. tlb:tlb_flush, and
 *    all tracepoints of further requests, come in the window: attached programs get no user
 *    memory.
 *  - The user's half of page table isolation is flushed on return to user space. mm/luf.c frees
 *    when arch_tlbbatch_flush() has returned, which A1 allows. luf_debug.c allows for the window.
 *
 * Other architectures need: an acknowledgment that no store of the interrupted program follows;
 * accessed and dirty bits that are not set through a cached entry without a look at the PTE;
 * nmi_uaccess_okay().
 */
#include <linux/build_bug.h>
#include <linux/init.h>
#include <linux/jump_label.h>
#include <linux/quell.h>
#include <linux/stddef.h>
#include <asm/early_ack.h>

/* A call carries it up to here; the rest is padding. */
static_assert(offsetofend(struct flush_tlb_info, trim_cpumask) <= EARLY_ACK_INFO_SIZE);

/* Off until quell_apply_param(). */
DEFINE_STATIC_KEY_FALSE(early_ack_key);

static struct quell_mechanism early_ack_mechanism = {
	.name	= "early_ack",
	.key	= &early_ack_key.key,
};

static int __init early_ack_init(void)
{
	return quell_register(&early_ack_mechanism);
}
subsys_initcall(early_ack_init);

#ifdef CONFIG_QUELL_MUTANTS
#include "tests/early_ack_nmi.h"
#endif
#ifdef CONFIG_QUELL_KUNIT_TEST
#include "tests/early_ack-kunit.h"
#endif
