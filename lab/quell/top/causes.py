# SPDX-License-Identifier: GPL-2.0-only
"""The cause of a shootdown, from the kernel stack at the flush.

RULES is the one table. A stack is walked from the flush outwards, and the first function that is an
inner one of some rule decides: of the rules with it, the first whose outer functions, if it has any,
stand further out. So direct reclaim inside madvise() is reclaim, and migrate_pages() is compaction,
demotion or move_pages() by its caller. Inlined functions are missing in stacks, so a rule names all
functions of a path that are specific to it. The names are those of Linux 5.10 to 6.18.

Test: ``test_stack``, on recorded stacks.
"""

from __future__ import annotations

import re
from functools import lru_cache

# The keys appear in --json, the texts in the tables.
CAUSES = {
    "reclaim-kswapd": "reclaim (kswapd)",
    "reclaim-direct": "reclaim (direct)",
    "reclaim-memcg": "reclaim (memcg limit)",
    "reclaim-pageout": "MADV_PAGEOUT",
    "reclaim-other": "reclaim (other)",
    "reclaim-pending": "reclaim's flush, done later",
    "demotion": "demotion to a slower node",
    "compaction": "compaction",
    "numa-migration": "NUMA balancing: migration",
    "numa-hinting": "NUMA balancing: hinting",
    "migration-call": "move_pages(), mbind()",
    "migration-contiguous": "contiguous memory, offlining",
    "migration-other": "migration (other)",
    "munmap": "munmap",
    "mmap-over": "mmap over a mapping",
    "brk": "brk",
    "mremap": "mremap",
    "mprotect": "mprotect",
    "madvise-dontneed": "MADV_DONTNEED",
    "madvise-free": "MADV_FREE",
    "madvise-cold": "MADV_COLD",
    "madvise-other": "madvise (kind not visible)",
    "exit": "exit, exec",
    "fork": "fork",
    "cow": "copy on write",
    "ksm": "KSM",
    "collapse": "collapsing into huge pages",
    "split": "splitting huge pages",
    "truncate": "truncation, invalidation",
    "writeback": "writeback (write-protecting)",
    "soft-dirty": "clear_refs, PAGEMAP_SCAN",
    "userfaultfd": "userfaultfd",
    "uprobe": "uprobes",
    "luf": "Quell's lazy flush, its drains",
    "ldt": "modify_ldt",
    "other": "other",
    "unknown": "no stack",
}

_MIGRATE = "migrate_pages migrate_pages_batch migrate_pages_sync migrate_folios_move unmap_and_move migrate_folio_unmap"
_RECLAIM = (
    "shrink_folio_list shrink_page_list shrink_inactive_list shrink_active_list evict_folios "
    "evict_pages reclaim_folio_list reclaim_page_list reclaim_pages shrink_lruvec shrink_node "
    "reclaim_clean_pages_from_list shrink_one try_to_shrink_lruvec"
)
_MADVISE = (
    "do_madvise sys_madvise sys_process_madvise madvise_vma_behavior madvise_walk_vmas "
    "madvise_do_behavior vector_madvise process_madvise_remote_valid"
)
_PROTECT = (
    "change_protection change_protection_range change_pte_range change_pmd_range change_huge_pmd "
    "hugetlb_change_protection"
)
_UNMAP = (
    "do_vmi_munmap do_vmi_align_munmap __do_munmap do_munmap do_mas_munmap do_mas_align_munmap "
    "unmap_region vms_clear_ptes vms_complete_munmap_vmas unmap_vmas free_pgtables"
)
_ZAP = "zap_page_range zap_page_range_single zap_page_range_single_batched zap_vma_ptes"
_COW = "wp_page_copy do_wp_page do_huge_pmd_wp_page hugetlb_wp hugetlb_cow do_huge_zero_wp_pmd"
_KSM = (
    "ksm_scan_thread ksm_do_scan cmp_and_merge_page try_to_merge_one_page "
    "try_to_merge_with_ksm_page unmerge_ksm_pages break_ksm unmerge_and_remove_all_rmap_items "
    "try_to_merge_two_pages stable_tree_search"
)
_COLLAPSE = (
    "collapse_huge_page collapse_file retract_page_tables collapse_pte_mapped_thp "
    "try_collapse_pte_mapped_thp hpage_collapse_scan_pmd hpage_collapse_scan_file "
    "khugepaged_scan_pmd khugepaged_scan_file madvise_collapse khugepaged pmdp_collapse_flush"
)
_SPLIT = (
    "__split_huge_pmd __split_huge_pmd_locked split_huge_pmd_address __split_huge_pud "
    "split_huge_page_to_list split_huge_page_to_list_to_order __folio_split unmap_folio "
    "folio_split truncate_inode_partial_folio deferred_split_scan split_huge_pages_all"
)

# (cause, inner functions, outer functions if context is needed).
RULES: tuple[tuple[str, ...], ...] = (
    # Quell's drains, in the stack of the caller that needs the memory.
    (
        "luf",
        "luf_flush luf_aged luf_drain_node luf_drain_some "
        "luf_drain_for_alloc luf_drain_for_compact luf_drain_for_kswapd luf_drain_all "
        "luf_close_windows luf_write_access luf_exclude __luf_flush_pending drain_store "
        "__luf_end_batch",
    ),
    # A system call does the flush of PTEs that reclaim has cleared.
    ("reclaim-pending", "flush_tlb_batched_pending"),
    # Migration, by caller; each also goes through _MIGRATE.
    ("demotion", _MIGRATE, "demote_folio_list demote_page_list"),
    ("demotion", "demote_folio_list demote_page_list"),
    ("compaction", _MIGRATE, "compact_zone compact_zone_order compact_node kcompactd_do_work kcompactd proactive_compact_node try_to_compact_pages"),
    ("compaction", "compact_zone compact_node kcompactd_do_work try_to_compact_pages"),
    ("numa-migration", _MIGRATE, "migrate_misplaced_folio migrate_misplaced_page do_numa_page do_huge_pmd_numa_page"),
    ("numa-migration", "migrate_misplaced_folio migrate_misplaced_page do_numa_page do_huge_pmd_numa_page"),
    ("migration-contiguous", _MIGRATE, "alloc_contig_range alloc_contig_range_noprof __alloc_contig_migrate_range do_migrate_range offline_pages cma_alloc soft_offline_page soft_offline_in_use_page migrate_longterm_unpinnable_folios migrate_longterm_unpinnable_pages __gup_longterm_locked"),
    ("migration-contiguous", "__alloc_contig_migrate_range do_migrate_range offline_pages"),
    ("migration-call", _MIGRATE, "sys_move_pages kernel_move_pages do_pages_move do_move_pages_to_node move_pages_and_store_status do_mbind kernel_mbind sys_mbind do_migrate_pages kernel_migrate_pages sys_migrate_pages migrate_to_node"),
    ("migration-other", _MIGRATE + " migrate_vma_setup migrate_vma_collect migrate_vma_collect_pmd migrate_vma_insert_page migrate_vma_unmap migrate_device_unmap"),
    # Reclaim, by the caller that asked for memory.
    ("reclaim-kswapd", _RECLAIM, "balance_pgdat kswapd kswapd_shrink_node"),
    ("reclaim-memcg", _RECLAIM, "try_to_free_mem_cgroup_pages memory_reclaim reclaim_high mem_cgroup_handle_over_high __mem_cgroup_handle_over_high try_charge_memcg mem_cgroup_shrink_node mem_cgroup_resize_max mem_cgroup_force_empty_write user_proactive_reclaim"),
    ("reclaim-direct", _RECLAIM, "try_to_free_pages do_try_to_free_pages __perform_reclaim __alloc_pages_direct_reclaim __alloc_pages_slowpath node_reclaim __node_reclaim"),
    ("reclaim-pageout", _RECLAIM, _MADVISE + " madvise_pageout madvise_cold_or_pageout_pte_range"),
    ("reclaim-other", _RECLAIM),
    # Not zap alone: other paths zap, too.
    ("madvise-dontneed", "madvise_dontneed_single_vma madvise_dontneed_free"),
    ("madvise-dontneed", _ZAP, _MADVISE),
    ("madvise-free", "madvise_free_single_vma madvise_free_pte_range madvise_free_huge_pmd"),
    ("reclaim-pageout", "madvise_pageout"),
    ("madvise-cold", "madvise_cold madvise_cold_or_pageout_pte_range"),
    # Specific page table work before the calls that it may happen in.
    ("ksm", _COW, _KSM),
    ("ksm", _KSM),
    ("collapse", _COLLAPSE),
    ("split", _SPLIT),
    ("cow", _COW),
    ("numa-hinting", _PROTECT, "change_prot_numa task_numa_work"),
    ("numa-hinting", "change_prot_numa task_numa_work"),
    ("userfaultfd", _PROTECT, "uffd_wp_range mwriteprotect_range userfaultfd_writeprotect"),
    ("userfaultfd", "uffd_wp_range mwriteprotect_range userfaultfd_ioctl userfaultfd_move userfaultfd_writeprotect userfaultfd_unregister move_pages_pte move_pages_huge_pmd"),
    ("mprotect", _PROTECT + " mprotect_fixup do_mprotect_pkey do_mprotect sys_mprotect sys_pkey_mprotect"),
    ("soft-dirty", "clear_refs_write pagemap_scan_pmd_entry do_pagemap_scan pagemap_scan_thp_entry"),
    ("uprobe", "uprobe_write_opcode __replace_page uprobe_write set_swbp set_orig_insn"),
    ("writeback", "page_vma_mkclean_one page_mkclean_one folio_mkclean page_mkclean clear_page_dirty_for_io folio_clear_dirty_for_io clean_record_shared_mapping_range wp_shared_mapping_range mapping_wrprotect_range"),
    ("mremap", "move_page_tables move_ptes move_normal_pmd move_huge_pmd move_vma"),
    # Unmapping, by the system call.
    ("exit", "exit_mmap oom_reap_task_mm __oom_reap_task_mm oom_reaper mmput __mmput exit_mm"),
    ("exit", _UNMAP, "exit_mmap"),
    ("mremap", _UNMAP, "sys_mremap do_mremap mremap_to shrink_vma"),
    ("brk", _UNMAP, "sys_brk do_brk_munmap do_vma_munmap"),
    ("mmap-over", _UNMAP, "mmap_region __mmap_region do_mmap"),
    ("mmap-over", "mmap_region __mmap_region do_mmap"),
    ("munmap", _UNMAP + " __vm_munmap vm_munmap sys_munmap"),
    ("munmap", _UNMAP, "ksys_shmdt sys_shmdt"),
    ("truncate", "unmap_mapping_range unmap_mapping_pages unmap_mapping_folio unmap_mapping_page zap_vma_pages hugetlb_vmdelete_list truncate_pagecache truncate_inode_pages_range invalidate_inode_pages2_range"),
    ("fork", "dup_mmap dup_mm copy_mm copy_process kernel_clone"),
    ("ldt", "sys_modify_ldt write_ldt map_ldt_struct unmap_ldt_struct free_ldt_pgtables"),
    # Calls whose workers were inlined.
    ("madvise-other", _MADVISE),
    ("mremap", "sys_mremap do_mremap"),
    ("brk", "sys_brk"),
)  # fmt: skip

_BY_INNER: dict[str, list[tuple[str, frozenset[str]]]] = {}
for _cause, _inner, *_outer in RULES:
    for _name in _inner.split():
        _BY_INNER.setdefault(_name, []).append((_cause, frozenset(" ".join(_outer).split())))

# Symbols end in +0x12/0x34 or +18, in [module], or in the compiler's additions.
_TAIL = re.compile(r"(\+(0x)?[0-9a-f]+(/0x[0-9a-f]+)?)?(\s+\[.*\])?$")
_ADDED = re.compile(r"\.(isra|constprop|part|cold|llvm|lto_priv)(\.\d+)*")
_SYSCALL = re.compile(r"^(__x64|__ia32|__arm64|__se|__do|__se_compat|__do_compat)_sys_")


def clean(symbol: str) -> str:
    """A function's name without offset, module and the compiler's additions; sys_X for X's entries."""
    return _SYSCALL.sub("sys_", _ADDED.sub("", _TAIL.sub("", symbol.strip())))


@lru_cache(maxsize=4096)
def classify(stack: tuple[str, ...]) -> str:
    """The cause, a key of CAUSES, of a flush with this stack, innermost function first.

    "unknown" for an empty stack, "other" if no rule knows any of it.
    """
    names = [clean(symbol) for symbol in stack]
    for place, name in enumerate(names):
        for cause, outer in _BY_INNER.get(name, ()):
            if not outer or not outer.isdisjoint(names[place:]):
                return cause
    return "other" if stack else "unknown"
