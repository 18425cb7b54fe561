// SPDX-License-Identifier: GPL-2.0-only
/*
 * Early acknowledgment of TLB flushes: the initiator continues once every target has
 * acknowledged the IPI. Targets flush before they return to user space.
 *
 * Stock Linux interrupts each CPU that may have cached what has changed, and waits
 * until its handler has flushed. Here the handler copies the request, acknowledges it, and
 * then flushes, before it does anything else. The initiator waits for the certainty that no
 * CPU uses an old entry any more, and that comes with the acknowledgment: the target is
 * in its interrupt handler, and leaves it with a flushed TLB.
 *
 * kernel/smp_early_ack.h has the messages, which are generic. native_flush_tlb_multi() sends
 * them. So do KVM guests, whose paravirtual flush leaves the virtual CPUs that are running to
 * it; one that is preempted in its window is flushed by the host as well, which is harmless.
 *
 * The *window* is the time between acknowledgment and flush; in it the target *owes* a flush
 * (early_ack_owed). A *stale* entry is one that this flush is to remove.
 *
 * Acknowledged early: flushes that free no page tables, of munmap, mprotect, madvise, write
 * protection, copy on write, the batches of reclaim and migration, the drains of mm/luf.c.
 * Not: kernel ranges; flush_tlb_range() and flush_tlb_mm(), which say that page tables may
 * have been freed; the flush that trims mm_cpumask() once a second, or moves an mm to a global
 * ASID; flushes that Xen PV and Hyper-V carry out themselves; anything before early_ack_init().
 *
 * A1: nothing on the target uses a stale entry in its window
 * ----------------------------------------------------------
 * Interrupts are off from before the acknowledgment until after the flush, wherever the
 * queue is emptied (handler, idle loop, stopper, CPU going offline). Nothing is scheduled, and
 * nothing of the queue runs but flush_tlb_func(). Left are:
 *
 *  - NMIs, machine checks, debug exceptions, and probes on what runs in the window. They
 *    must ask nmi_uaccess_okay() in stock, too, as the page tables may be in a state in
 *    between; it says no while early_ack_owed is set. GUP-fast looks at page tables and uses
 *    no entry. A module that uses __copy_from_user_inatomic() without asking is on its own.
 *    early_ack_owed is set before the acknowledgment and cleared after the flush in program
 *    order, which is what an interruption of this CPU goes by. An NMI that asked before ends
 *    before the acknowledgment, and its IRET comes back into the handler.
 *    [early_ack_owed_test, early_ack_walk_test, mutation EARLY_ACK_NOT_OWED]
 *  - What the CPU accesses by itself: descriptor tables, stacks, PMU buffers. These are kernel
 *    addresses. The LDT is at an address of the mm with page table isolation, but
 *    install_ldt() has every CPU load the new one before it unmaps the old one.
 *  - Speculation. It brings lines into caches, which are coherent; its results are discarded.
 *    Accessed and dirty bits are set in a PTE only if that is present. All this holds in
 *    stock for a CPU in lazy TLB mode, which runs with stale entries for as long as it likes.
 *
 * The target compares the mm of the request with the loaded one and never looks into it, as it
 * may be gone; since 6.14 it would clear itself in that mm's cpumask, and does not while it
 * owes. The same address cannot be another mm: the initiator still waited when the
 * request was copied, and the loaded mm changes to init_mm at most in the window.
 * [selftest early_ack, mutations EARLY_ACK_NO_FLUSH and EARLY_ACK_FLUSH_LATER, model ack]
 *
 * A2: the acknowledgment publishes what the target did before
 * ------------------------------------------------------------
 * Stores through the stale entry come before the acknowledgment, a release (csd_unlock()), in
 * program order; the initiator acquires. The xchg that emptied the queue lies between, and
 * drains non-temporal stores. So a page that is written out, copied, compared or checked for
 * dirtiness after the flush has all stores, and by A1 no more come. In the other direction,
 * the target takes the message with a locked instruction. GUP-fast has interrupts off, so the
 * acknowledgment waits for it as well as a completed call does. [early_ack protect, uffd]
 *
 * A3: page tables
 * ---------------
 * Only the flush ends walks that start at a cached upper entry. So an initiator that frees page
 * tables waits for the flush (freed_tables), and so does one that stops to share one of
 * hugetlb's, as others may free that then: tlb_flush() says so. Everybody else needs A1 and A2
 * only: munmap, MADV_DONTNEED and truncation (frames are freed later, the dirty bit came with
 * the PTE), I/O and folio_mkclean(), mprotect, soft-dirty, userfaultfd, migration, KSM, NUMA
 * hints, copy on write. Collapsing, splitting and moving huge pages use flush_tlb_range().
 * [model ack with TABLES, early_ack with shared page tables]
 *
 * A4: messages
 * ------------
 * A message has one user at a time: csd_lock() waits for the acknowledgment of the last call.
 * So an initiator that may be preempted while it waits (since 7.0) finds the message free, or
 * waits for its next user's acknowledgment as well.
 * The target takes it off its list and copies it before that, and only compares its address
 * afterwards (tracing). Flushes that run in another order than they were sent are what
 * tlb_gen is for: each initiator raised it before it sent, and flush_tlb_func() flushes a range
 * only if that is all that is missing. Of several requests the first that is behind flushes
 * everything, and the others find nothing to do.
 *
 * A request that arrives in the window needs no interrupt: initiators see early_ack_looking
 * after they have queued it, the target clears it before it looks at the queue a last time,
 * and a full barrier lies between on either side. So at least one sees the other.
 *
 * A5: surroundings
 * ----------------
 *  - Progress of the target: it runs at most two rounds of its queue, then returns to what it
 *    did, as in stock.
 *  - Lazy TLB mode: should_flush_tlb() decides as in stock. A CPU that became lazy since
 *    switches to init_mm instead of flushing, in the window.
 *  - Temporary mms (text poking, EFI): text poking has interrupts off; the mm that comes back
 *    does so through switch_mm_irqs_off(), which compares tlb_gen.
 *  - CPU hotplug: smpcfd_dying_cpu() empties the queue by the same function.
 *  - Page table isolation: the user's half is flushed on the way back to user space, in stock,
 *    too.
 *  - CSD lock debugging sees targets that do not acknowledge, not those that hang in the flush.
 *  - /proc/interrupts, nr_tlb_remote_flush_received and csd:* count requests, as in stock.
 *    tlb:tlb_flush comes in the window, and of several requests all tracepoints but those of
 *    the first, so programs that are attached get no user memory there.
 *  - mm/luf.c frees what nobody uses (A1) when arch_tlbbatch_flush() has returned. Its ledger
 *    does not call a CPU behind that owes.
 *
 * Another architecture needs: an acknowledgment that no store of the interrupted program
 * can follow; accessed and dirty bits that are not set through a cached entry without a look at
 * the PTE; nmi_uaccess_okay().
 *
 * First published by Nadav Amit ("x86: Flush remote TLBs concurrently and async", RFC v2,
 * 2019), whose target acknowledged by a counter in shared memory; and Amit, Tai and Wei (EuroSys
 * 2020). Here the call-function message carries the request, with a bit that it may be
 * acknowledged first.
 */
#include <linux/build_bug.h>
#include <linux/init.h>
#include <linux/jump_label.h>
#include <linux/quell.h>
#include <linux/stddef.h>
#include <asm/early_ack.h>

/* It travels as the argument of a call; the rest is padding. */
static_assert(offsetofend(struct flush_tlb_info, trim_cpumask) <= EARLY_ACK_INFO_SIZE);

/* Off until early_ack_init(). */
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

#ifdef CONFIG_QUELL_KUNIT_TEST
#include "tests/early_ack-kunit.h"
#endif
