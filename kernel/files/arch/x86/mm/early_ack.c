// SPDX-License-Identifier: GPL-2.0-only
/*
 * Early acknowledgment: who flushes the TLBs of other CPUs goes on when they have
 * received the request, not when they have carried it out.
 *
 * Stock Linux interrupts each CPU that may have cached what has changed, and waits
 * until its handler has flushed. Here the handler copies the request, acknowledges
 * it, and then flushes, before it does anything else and before it returns. What
 * the sender waits for is that no CPU uses an old entry any more. That is so from
 * the acknowledgment on: the CPU is in its interrupt handler, and leaves it with a
 * flushed TLB.
 *
 * Words
 * -----
 * The *sender* wants a flush, its *target* is another CPU. The *request* says what
 * to flush; it travels in the *message*, a cache line that this sender has for this
 * target. *Owed* is a flush that the target has acknowledged and not carried out.
 * The *window* is the time in which it owes: early_ack_owed is set. A *stale* entry
 * is one that the owed flush is to remove.
 *
 * What is acknowledged early
 * --------------------------
 * What comes through native_flush_tlb_multi() and frees no page tables: munmap,
 * mprotect, madvise, write protection and copies on write, the batches of reclaim
 * and migration, the drains of mm/luf.c. Not: kernel ranges, which have functions of
 * their own; flush_tlb_range() and flush_tlb_mm(), which say that page tables may
 * have been freed; anything where flush_tlb_multi() is paravirtual; anything before
 * early_ack_init(). Those are messages as in stock, in the same queue.
 *
 * A1: nothing on the target uses a stale entry in its window
 * ----------------------------------------------------------
 * Interrupts are off from before the acknowledgment until after the flush: in the
 * handler, when the queue is emptied by the idle loop or a stopper, and when a CPU
 * goes offline. The window is one piece of early_ack_receive(); nothing is
 * scheduled, no soft interrupt and no other call_single_data of the queue runs in
 * it. So no instruction of a user program, and what the kernel could do to
 * user memory is one of these:
 *
 *  - An NMI, a machine check, a debug exception, or a kprobe, tracepoint or BPF
 *    program on what runs in the window. All of them must ask
 *    nmi_uaccess_okay(), as the page tables may be in a state in between for other
 *    reasons; it says no while early_ack_owed is set. Some do not ask in stock:
 *    copy_to_user_nofault(), strncpy_from_user_nofault(), strnlen_user_nofault() and
 *    arch_stack_walk_user() are told here. bpf_probe_write_user() asks by itself,
 *    and GUP-fast looks at page tables and uses no entry. A probe outside of the tree
 *    that uses __copy_from_user_inatomic() without asking is on its own.
 *    early_ack_owed is set before the acknowledgment and cleared after the flush,
 *    both in program order, which is what an interruption of this CPU goes by. One
 *    that has asked before it is set ends before the acknowledgment: the handler
 *    does not go on meanwhile. The IRET from an NMI comes back into the handler.
 *  - Kernel code that was interrupted in a copy to or from user memory goes on
 *    after the flush. With interrupts off it would not have been interrupted.
 *  - What the CPU accesses by itself: its own tables, the stack of the handler, the
 *    buffers of its PMU. All these are kernel addresses; a user's shadow stack is
 *    not touched by an interrupt. The LDT is at an address of the mm with page
 *    table isolation: install_ldt() has every CPU load the new one before it
 *    unmaps the old one.
 *
 * The target does not look at the mm that it got, which may be gone (so requests to
 * trim its cpumask, for which Linux since 6.14 does, are not acknowledged early): it
 * is compared with the mm that is loaded, and only that one is looked at. They cannot
 * be different mms at the same address: when the request was copied the sender still
 * waited, so the mm was there, and what is loaded does not change in the window.
 *
 * Speculation may use the entry. It brings lines into caches, which are coherent;
 * what it computes is thrown away. Who can make the kernel speculate on a chosen
 * address in the handler needs no stale entry, the direct map has all of memory.
 * Walks of the page table find what the sender has put there; accessed and
 * dirty bits are set in a PTE only if it is still present, and the tables are still
 * page tables. All this is so in stock on a CPU in lazy TLB mode: it is sent no
 * flush if no page tables are freed, and runs kernel code with stale entries of the
 * loaded mm for as long as it likes. That a small page is mapped where a stale entry
 * is a huge one is not new either: a fault may come between the clearing of a PMD
 * and its flush.
 *
 * A2: who has seen the acknowledgment has seen what the target did before
 * ------------------------------------------------------------------------
 * Stores of the target through the entry come before the acknowledgment in program
 * order, and that is a release (csd_unlock()); the sender's look at it an acquire.
 * So a page that is written out, copied, compared or checked for dirtiness after
 * the flush has returned has all stores, and no further one comes: A1. Likewise the
 * other way: what the sender stored before is seen by the target's user program
 * when it goes on, as it took the message with a locked instruction. That one, the
 * xchg of llist_del_all(), stands between the program and the acknowledgment, and
 * so also drains stores that are not in program order (non-temporal ones, and those
 * to write-combining memory), which in stock the flush itself does.
 *
 * Where messages are taken no GUP-fast is under way on that CPU, but for that of an
 * NMI that came in between, which is through or will see what was changed. So the
 * acknowledgment is as good as the completed call to wait for GUP-fast, which has
 * interrupts off from its first look at a page table to its last (KSM and khugepaged
 * rely on it).
 *
 * A3: who needs the flush finished, and not only acknowledged
 * -----------------------------------------------------------
 * A1 is about what is executed. What a CPU does by itself, through entries that
 * lead to page tables, only the flush ends. So who frees page tables is flushed for
 * as in stock (freed_tables): a walk that starts at a cached upper entry would read
 * what is there now, and might set bits in it. A table that hugetlb has stopped
 * sharing is one that others may free: tlb_flush() says so for it, too.
 *
 * Everything else needs no more than A1 and A2:
 *
 *  - munmap, MADV_DONTNEED, truncate: frames are freed after the acknowledgment.
 *    Nothing reads or writes them through a stale entry (A1); the dirty bit was
 *    read with the PTE, and a CPU cannot set it in one that is cleared.
 *  - Reclaim before I/O (try_to_unmap_flush_dirty()), folio_mkclean() and
 *    page_vma_mkclean_one(): all stores are in the page (A2), no further one
 *    comes (A1), and after its window a target faults.
 *  - mprotect, soft-dirty, userfaultfd write protection, fork: after the call no
 *    store gets through, so no page is written that is not reported.
 *  - Migration, compaction, copies on write, KSM, NUMA hints: what is copied or
 *    compared does not change any more. mm_tlb_flush_pending() falls when all have
 *    acknowledged: who acts on it sees as much as the one who flushed.
 *  - Huge pages: collapsing, splitting and moving use flush_tlb_range(), so they
 *    are flushed as in stock. Zapping one frees no table that was ever walked
 *    since its last such flush.
 *  - uprobes and other changes of code: the target executes none in its window,
 *    and INVLPG or the load of CR3, with which it ends, serializes.
 *  - Secondary MMUs are told by notifiers, before and after, and not by this.
 *  - Those who use mprotect() or madvise() as a memory barrier for all threads: A2.
 *
 * A4: messages
 * ------------
 * A message has one user at a time: csd_lock() waits for the acknowledgment of the
 * last one. The target copies the request and takes the message off its list
 * before it acknowledges, and does not look at it afterwards (the tracepoint at the
 * end of the window gets its address, to be compared). So the sender can
 * send its next flush at once, and when the sender goes offline its messages are
 * not in use. What it sends arrives when the window is over: the
 * interrupt is pending meanwhile.
 *
 * Two flushes of one mm that are carried out in another order than they were sent,
 * or merged, are what flush_tlb_func() is made for: each has raised tlb_gen before it
 * was sent, a ranged flush is done only if it is all that is missing up to the
 * mm's tlb_gen, and otherwise everything is flushed and the CPU is up to date with
 * all that were sent, and more.
 *
 * If several requests are in the queue, all are acknowledged and carried out as
 * one: whatever the loaded mm's tlb_gen says is missing, which is what mm == NULL
 * means. Requests for other mms than the loaded one need nothing, as in stock: a
 * switch to them compares tlb_gen.
 *
 * A5: surroundings
 * ----------------
 *  - Progress of the target: in stock it has the time from the end of its flush until
 *    the next message, in which the sender goes on with what it does. Here that time
 *    begins before the flush, so who sends without a pause could have the next
 *    message there when the window ends. So what is in the queue then is carried out
 *    first and acknowledged then, as in stock, however long the way out of the
 *    interrupt and back takes; and so is what comes within 1 us after a window
 *    (early_ack_may_take()). Where that way takes longer, and a message always comes
 *    just behind the window, only the sender's own work is the target's time.
 *  - The wait: what is left of it is mostly the delivery of the interrupt. In a
 *    virtual machine the sender looks for each target's acknowledgment without PAUSE
 *    at first (early_ack_poll()), a bounded number of times, and then as in stock: a
 *    loop of PAUSEs leaves the virtual machine after some 4096 cycles, and under
 *    emulation each of them does. Not on bare metal: there a PAUSE spares the sibling
 *    thread, which may be the target, and the penalty for speculating past the end of
 *    the loop. Nothing is concluded from the look: csd_lock_wait() comes next, and
 *    acquires.
 *  - The end of the interrupt is told to the local APIC by the last statement of the
 *    handler, not by the first (early_ack_handle()), as the sender would wait for
 *    that, too. In a virtual machine it may be an exit. That holds for all function
 *    calls, but not where the flush is paravirtual and sends none. Interrupts are off
 *    in between in either case, so none comes later for it; and one more of the same
 *    vector, for what is queued meanwhile, is remembered in either case. A function
 *    that does not return (a crash) leaves the interrupt in service, as in handlers
 *    that tell last in stock (thermal, threshold): whoever takes the CPU over resets
 *    its APIC or ends what is in service. Nobody does if such a function panics and
 *    nothing reboots: then that CPU gets no further interrupts, and hears no SysRq,
 *    for which panic() enables them at the very end.
 *  - Lazy TLB mode: who sends looks at it as in stock (should_flush_tlb()). A CPU that
 *    became lazy since switches to init_mm instead of flushing, in the window.
 *  - Temporary mms (text poking, EFI): text poking has interrupts off. Else the mm
 *    of the request is not the one that is loaded; the one that is comes back
 *    through switch_mm_irqs_off(), which compares tlb_gen.
 *  - CPU hotplug: who goes offline empties the queue (smpcfd_dying_cpu()), by the same
 *    function, so nothing is owed when it is gone. Only CPUs that are online are
 *    sent to.
 *  - Page table isolation: the user's half is flushed on the way back to user
 *    space, in stock, too: the call returns before that there. PCID, INVPCID: all
 *    in flush_tlb_func().
 *  - A virtual machine: a virtual CPU that is not scheduled in its window holds up
 *    none of those that it has acknowledged. When it goes on, it flushes.
 *  - Oops, panic: the same calls as in stock, under the same conditions.
 *  - CSD lock debugging: a report is about a target that did not acknowledge. One
 *    that hangs in the flush itself shows in the next report as "handling prior
 *    flush_tlb_func request"; the sender does not hang with it.
 *  - /proc/interrupts, nr_tlb_remote_flush_received and csd:* count requests, merged
 *    ones, too, as in stock; csd:csd_function_exit of the first comes after the flush,
 *    and those of merged ones before it. tlb:tlb_flush comes for the flush that is
 *    carried out, and for merged batches of reclaim's with no pages; always in the
 *    window: who is attached to it gets nothing of the user's memory or stack.
 *  - mm/luf.c: what it frees when arch_tlbbatch_flush() has returned, nobody uses
 *    (A1). luf_seen moves after the flush. The ledger of mm/luf_debug.c does not
 *    say of a CPU that it is behind while it owes a flush.
 *
 * What another architecture must promise
 * --------------------------------------
 *  - An acknowledgment that is stored with release semantics by the handler is not
 *    seen before the stores of the interrupted program. (x86: see A2. Elsewhere
 *    entering the handler must not reorder; a store that was issued through the
 *    entry must not be able to fail or to be repeated later.)
 *  - Accessed and dirty bits are not set through a cached entry without a look at the
 *    PTE, atomically.
 *  - nmi_uaccess_okay() or the like is asked by whatever may interrupt the handler.
 *
 * models/ack.pml in Quell's repository tries all interleavings of small cases,
 * tools/testing/selftests/quell/early_ack.c looks for stale entries on the machine.
 */
#include <linux/compiler.h>
#include <linux/cpufeature.h>
#include <linux/init.h>
#include <linux/interrupt.h>
#include <linux/irq_work.h>
#include <linux/jump_label.h>
#include <linux/kobject.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/quell.h>
#include <linux/quell_mutants.h>
#include <linux/sched/clock.h>
#include <linux/sysfs.h>
#include <linux/vmstat.h>
#include <asm/early_ack.h>
#include <asm/hardirq.h>
#include <asm/tlbflush.h>
#include <asm/tsc.h>
#include <trace/events/tlb.h>

#define CREATE_TRACE_POINTS
#include <trace/events/early_ack.h>

/* Off until early_ack_init(). */
DEFINE_STATIC_KEY_FALSE(early_ack_key);

DEFINE_PER_CPU(bool, early_ack_owed);

/* When the last window ended, and what there is between it and the next at least. */
DEFINE_PER_CPU(cycles_t, early_ack_ended);
cycles_t early_ack_gap __ro_after_init;

/* Whatever the time is: see early_ack_pause(). */
DEFINE_PER_CPU(bool, early_ack_paused);

/* How often a sender looks without PAUSE; the default is that of a virtual machine. */
#define EARLY_ACK_POLLS		2000
#define EARLY_ACK_POLLS_MAX	1000000
unsigned int early_ack_polls __read_mostly;

/* The sender's number, where it only matters that it is not this CPU. */
#define EARLY_ACK_REMOTE	UINT_MAX

/* --- Deliberate faults --------------------------------------------------------- */

#ifdef CONFIG_QUELL_MUTANTS

static void early_ack_flush_late(struct irq_work *irq_work)
{
	struct flush_tlb_info info = {
		.end		= TLB_FLUSH_ALL,
		.initiating_cpu	= EARLY_ACK_REMOTE,
	};

	flush_tlb_func(&info);
}

static DEFINE_PER_CPU(struct irq_work, early_ack_late) =
	IRQ_WORK_INIT_LAZY(early_ack_flush_late);

/* Say that the range of the first is all that the mm's tlb_gen is about. */
static void early_ack_drop(struct early_ack_work *work)
{
	struct mm_struct *loaded_mm = this_cpu_read(cpu_tlbstate.loaded_mm);
	u16 asid = this_cpu_read(cpu_tlbstate.loaded_mm_asid);
	u64 gen;

	if (work->info.mm != loaded_mm || this_cpu_read(cpu_tlbstate_shared.is_lazy))
		return;
	gen = atomic64_read(&loaded_mm->context.tlb_gen);
	this_cpu_write(cpu_tlbstate.ctxs[asid].tlb_gen, gen - 1);
	work->info.new_tlb_gen = gen;
}

/* Returns whether that is all that happens to @work. */
static bool early_ack_misbehave(struct early_ack_work *work)
{
	if (quell_mutant(EARLY_ACK_NO_FLUSH))
		return true;
	if (quell_mutant(EARLY_ACK_FLUSH_LATER)) {
		irq_work_queue(this_cpu_ptr(&early_ack_late));
		return true;
	}
	if (quell_mutant(EARLY_ACK_DROP) && work->nr > 1)
		early_ack_drop(work);
	return false;
}

#else

static bool early_ack_misbehave(struct early_ack_work *work)
{
	return false;
}

#endif /* CONFIG_QUELL_MUTANTS */

/* --- The target ------------------------------------------------------------------ */

static void early_ack_unpack(struct flush_tlb_info *info,
			     const struct early_ack_request *request)
{
	*info = (struct flush_tlb_info) {
		.mm		= request->mm,
		.start		= request->start & PAGE_MASK,
		.end		= request->end,
		.new_tlb_gen	= request->new_tlb_gen,
		.initiating_cpu	= EARLY_ACK_REMOTE,
		.stride_shift	= request->start & ~PAGE_MASK,
	};
}

/* One flush for @info and any other request: catch up with what is loaded. */
static void early_ack_merge(struct flush_tlb_info *info)
{
	*info = (struct flush_tlb_info) {
		.end		= TLB_FLUSH_ALL,
		.new_tlb_gen	= TLB_GENERATION_INVALID,
		.initiating_cpu	= EARLY_ACK_REMOTE,
	};
}

static unsigned long early_ack_pages(unsigned long start, unsigned long end)
{
	return end == TLB_FLUSH_ALL ? TLB_FLUSH_ALL : (end - start) >> PAGE_SHIFT;
}

/**
 * early_ack_take - take over a request, which is acknowledged next
 * @work:	for it and those that came with it; nr is 0 before the first
 * @request:	still the sender's
 *
 * This CPU owes a flush afterwards. Interrupts off.
 */
void early_ack_take(struct early_ack_work *work,
		    const struct early_ack_request *request)
{
	if (trace_early_ack_ack_enabled())
		trace_early_ack_ack(early_ack_pages(request->start & PAGE_MASK, request->end),
				    request->new_tlb_gen, work->nr);
	if (work->nr++) {
		/* What stock does for one that finds nothing left to flush. */
		inc_irq_stat(irq_tlb_count);
		count_vm_tlb_event(NR_TLB_REMOTE_FLUSH_RECEIVED);
		if (!request->mm)
			trace_tlb_flush(TLB_REMOTE_SHOOTDOWN, 0);
		count_vm_event(EARLY_ACK_MERGED);
		if (!quell_mutant(EARLY_ACK_DROP))
			early_ack_merge(&work->info);
		return;
	}
	early_ack_unpack(&work->info, request);
	work->since = trace_early_ack_flush_enabled() ? local_clock() : 0;
	/* Before the acknowledgment, a release: A1. */
	this_cpu_write(early_ack_owed, true);
}

/**
 * early_ack_carry_out - carry out what was acknowledged
 * @work: from early_ack_take()
 *
 * Interrupts off since before the first was acknowledged. This CPU owes nothing
 * afterwards.
 */
void early_ack_carry_out(struct early_ack_work *work)
{
	if (!early_ack_misbehave(work))
		flush_tlb_func(&work->info);
	/* After the flush. Pairs with luf_cpu_behind(): luf_debug_cpu comes first. */
	smp_store_release(this_cpu_ptr(&early_ack_owed), false);
	this_cpu_write(early_ack_ended, get_cycles());
	count_vm_events(EARLY_ACK_ACKED, work->nr);
	trace_early_ack_flush(work->nr, work->since ? local_clock() - work->since : 0);
}

/* --- The sender's tracepoints ------------------------------------------------------ */

/* See early_ack_begin(). */
u64 __early_ack_begin(const struct flush_tlb_info *info)
{
	trace_early_ack_send(early_ack_pages(info->start, info->end),
			     info->new_tlb_gen, early_ack_possible(info));
	return local_clock();
}

/* See early_ack_end(). */
void __early_ack_end(const struct flush_tlb_info *info, u64 start)
{
	/* Nobody was interested when it began. */
	if (!start)
		return;
	trace_early_ack_wait(early_ack_pages(info->start, info->end),
			     local_clock() - start, early_ack_possible(info));
}

/* --- The switch -------------------------------------------------------------------- */

static ssize_t polls_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(early_ack_polls));
}

static ssize_t polls_store(struct kobject *kobj, struct kobj_attribute *attr,
			   const char *buf, size_t count)
{
	return quell_store_uint(buf, count, &early_ack_polls, EARLY_ACK_POLLS_MAX);
}

static struct kobj_attribute early_ack_polls_attr = __ATTR_RW(polls);

static const struct attribute * const early_ack_attrs[] = {
	&early_ack_polls_attr.attr,
	NULL,
};

static struct quell_mechanism early_ack_mechanism = {
	.name	= "early_ack",
	.key	= &early_ack_key.key,
	.attrs	= early_ack_attrs,
};

static int __init early_ack_init(void)
{
	if (boot_cpu_has(X86_FEATURE_HYPERVISOR))
		early_ack_polls = EARLY_ACK_POLLS;
	/* 1 us; 0 if there is no TSC to tell. */
	early_ack_gap = tsc_khz / 1000;
	return quell_register(&early_ack_mechanism);
}
subsys_initcall(early_ack_init);

#ifdef CONFIG_QUELL_KUNIT_TEST
#include "tests/early_ack-kunit.h"
#endif
