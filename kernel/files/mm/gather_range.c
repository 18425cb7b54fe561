// SPDX-License-Identifier: GPL-2.0-only
/*
 * Overlapping gathers flush the range of their own call.
 *
 * Several threads may change page table entries of one mm at once, each with an mmu_gather of its
 * own. A call may find an entry changed that another gather has not flushed yet. It must not
 * return before that is flushed: after MADV_DONTNEED no thread may read the old content.
 * tlb_finish_mmu() sees that other gathers exist (mm_tlb_flush_nested()), not their ranges. So
 * stock flushes all of the mm, as if page tables had been freed.
 *
 * The rule: when a call returns, no CPU has a stale entry in the range of *this* call.
 * gather_range_add() tells the gather that range. gather_range_use(), in tlb_finish_mmu(), adds it
 * to the range that is flushed, and spares the full flush.
 *
 * A gather that adds a range has to add all ranges of its call. These do:
 *
 *	caller			its lock		later, a stale entry would allow
 *	unmap_single_vma() (since 7.0 __zap_vma_range()): entries are cleared
 *	  munmap()		mmap_lock, may be	access to what was there, where
 *				downgraded		another mapping comes
 *	  MADV_DONTNEED		mmap_lock or VMA's (*)	access to the old content
 *	  truncation		i_mmap_rwsem		access to the truncated page
 *	  drivers, BPF arenas	their own		the same
 *	  OOM reaper, since 7.0	mmap_lock		nothing: it promises none
 *	madvise_free_single_vma(): entries are made clean
 *	  MADV_FREE		as MADV_DONTNEED	a store that leaves the page clean
 *	change_protection(): rights are taken away
 *	  mprotect()		mmap_lock, exclusive	an access without the right
 *	  userfaultfd		mmap_lock		a write without a fault
 *	  NUMA scanning		mmap_lock		no harm: a hint is missed
 *
 * (*) In 7.3, and given back before the flush. The invariants need page table locks only.
 *
 * These flush as in stock: exit, LDT (fullmm), the gathers of mm/hugetlb.c and mm/rmap.c (hugetlb),
 * those that only free tables (exec), MADV_COLD, MADV_PAGEOUT; before 7.0 the OOM reaper.
 * Two raise tlb_flush_pending without a gather, and count as other gathers: clear_refs, which
 * flushes the mm, and mm/mapping_dirty_helpers.c. There stock has the rule above: with other
 * flushes under way it flushes its range, else the entries that it has changed.
 *
 * Invariants; __gather_range_use() is the enforcing function. [selftest gather_range;
 * GATHER_OWN_ONLY]
 *
 *  - A changed entry in the range is flushed, also one that another gather has changed. This call
 *    has found it changed under the same page table lock, or has skipped its page table as a
 *    whole. So it sees the other gather, too, by the lock or by x86's order of loads
 *    (inc_tlb_flush_pending()). A thread that changes an entry later flushes it later.
 *  - Outside of the range this call is responsible for its own gather only (tlb->start to
 *    tlb->end), and flushes that as well. Frames are safe: each gather has a reference to those of
 *    the entries that it cleared. Entries without a struct page (VM_PFNMAP) are flushed before the
 *    call lets go of the VMA.
 *  - Page tables that the other gather frees are flushed by that gather first (freed_tables). They
 *    may be in this range, since MADV_DONTNEED frees tables (6.14, CONFIG_PT_RECLAIM). This call
 *    then finds no table, and flushes the entries that were in it. tlb->freed_tables and
 *    tlb->unshared_tables of this gather keep their meaning.
 *  - The level of an entry does not matter: a flush of any address in a huge page removes its
 *    entry. The range is flushed in steps of a page (cleared_ptes), or everything beyond 33 pages.
 *    Where a flush names a level, or an architecture reads tlb->vma_huge and the like, this gather
 *    knows only its own levels: CONFIG_QUELL_GATHER_RANGE is x86-64 only.
 *  - A gather of several VMAs (munmap(), mprotect()) adds each that it changes.
 *  - CPUs in lazy TLB mode are not interrupted, as for this call alone: they compare tlb_gen
 *    before they use an entry of the mm.
 */
#include <linux/init.h>
#include <linux/jump_label.h>
#include <linux/mm.h>
#include <linux/quell.h>
#include <linux/quell_mutants.h>
#include <linux/vmstat.h>
#include <asm/tlb.h>

/* Off until quell_apply_param(). */
DEFINE_STATIC_KEY_FALSE(gather_range_key);

bool __gather_range_use(struct mmu_gather *tlb)
{
	if (tlb->fullmm || tlb->call_start >= tlb->call_end)
		return false;
	if (quell_mutant(GATHER_OWN_ONLY))
		return true;
	tlb->start = min(tlb->start, tlb->call_start);
	tlb->end = max(tlb->end, tlb->call_end);
	/* Also if this call has found nothing. */
	tlb->cleared_ptes = 1;
	count_vm_event(GATHER_RANGE_FLUSH);
	return true;
}

static struct quell_mechanism gather_range_mechanism = {
	.name	= "gather_range",
	.key	= &gather_range_key.key,
};

static int __init gather_range_register(void)
{
	return quell_register(&gather_range_mechanism);
}
subsys_initcall(gather_range_register);
