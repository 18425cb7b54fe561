// SPDX-License-Identifier: GPL-2.0-only
/*
 * Overlapping gathers flush the range of their own call.
 *
 * Several threads may clear page table entries of one mm at the same time, each with an
 * mmu_gather of its own. A call that finds an entry cleared which another one has not
 * flushed yet must not return before it is flushed: after MADV_DONTNEED nobody may read
 * what was there before. tlb_finish_mmu() sees such gathers (mm_tlb_flush_nested()), not
 * their ranges, and flushes all of the mm, as if page tables had been freed.
 *
 * What has to hold is less: no CPU has a stale entry of the range that *this* call is
 * about. The gather is told that range, by gather_range_add(), and flushes it.
 *
 * Why that is enough
 * ------------------
 *  - An entry that was cleared in the range is flushed, whoever cleared it: this call has
 *    seen it cleared, under the same page table lock, or without it where a page table is
 *    skipped as a whole. Then it sees the other gather, too: page table lock, or x86's order
 *    of loads (inc_tlb_flush_pending()). Whoever clears an entry later flushes it later.
 *  - Outside of the range this call owes nothing but its own gather (tlb->start to tlb->end),
 *    and that is flushed as well. Frames are not at stake: each gather holds a reference on
 *    those of the entries that it has cleared. Entries without a struct page (VM_PFNMAP) are
 *    flushed before the call lets go of the VMA.
 *  - Page tables that the other gather frees: it flushes before it frees them, and says that
 *    it does (freed_tables). Those of this range can be among them since MADV_DONTNEED frees
 *    tables (6.14, CONFIG_PT_RECLAIM). This call finds no table then, and flushes the entries
 *    that were in it. What this gather frees or unshares is in tlb->freed_tables and
 *    tlb->unshared_tables, which stay.
 *  - An entry of a higher level (a huge page) that another gather has cleared: a flush of any
 *    address in it removes it. The range is flushed in steps of a page (cleared_ptes), or
 *    everything beyond 33 pages, so the levels of entries do not matter. Where the hardware is
 *    told a level, or an architecture looks at tlb->vma_huge and the like, this gather
 *    knows only its own; there everything stays as it is.
 *  - A gather of several VMAs (munmap(), mprotect()) adds each that it changes. One that it
 *    leaves alone has no entries that the call was to change.
 *  - CPUs in lazy TLB mode are not interrupted, as they would not be for this call alone: they
 *    compare tlb_gen before they use an entry of the mm.
 *
 * A gather that adds a range has to add all that its call is about. These do:
 *
 *	unmap_single_vma()	munmap(), MADV_DONTNEED, truncation (__zap_vma_range() since 7.0)
 *	change_protection()	mprotect(), userfaultfd's write protection, NUMA balancing
 *	madvise_free_single_vma() MADV_FREE
 *
 * Gathers that add none flush as in stock: exit (fullmm), those of hugetlb files, MADV_COLD and
 * MADV_PAGEOUT; before 7.0 the OOM reaper.
 *
 * tools/testing/selftests/quell/gather_range.c looks for stale entries.
 */
#include <linux/init.h>
#include <linux/jump_label.h>
#include <linux/mm.h>
#include <linux/quell.h>
#include <linux/quell_mutants.h>
#include <linux/vmstat.h>
#include <asm/tlb.h>

/* Off until gather_range_register(). */
DEFINE_STATIC_KEY_FALSE(gather_range_key);

bool __gather_range_use(struct mmu_gather *tlb)
{
	if (tlb->fullmm || tlb->call_start >= tlb->call_end)
		return false;
	if (quell_mutant(GATHER_OWN_ONLY))
		return true;
	tlb->start = min(tlb->start, tlb->call_start);
	tlb->end = max(tlb->end, tlb->call_end);
	/* Even if this call has found nothing. */
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
