# SPDX-License-Identifier: GPL-2.0-only
"""Reading the kernel's counters in /proc."""

from conftest import fails
from quell import procfs

INTERRUPTS = """\
            CPU0       CPU2
   0:         44          0   IO-APIC   2-edge      timer
 TLB:     115842     140157   TLB shootdowns
"""


def test_interrupts() -> None:
    assert procfs.interrupts(INTERRUPTS, "TLB") == {0: 115842, 2: 140157}
    for text in "", "  CPU0\n 0: 1 timer\n", " CPU0\nIPI0: 2 Rescheduling\n", " CPU0 CPU1\nTLB: 1\n":
        fails(ValueError, None, procfs.interrupts, text, "TLB")


def test_vmstat() -> None:
    assert procfs.vmstat("nr_free_pages 1\nnr_tlb_remote_flush 4\n") == {"nr_free_pages": 1, "nr_tlb_remote_flush": 4}
    fails(ValueError, None, procfs.vmstat, "nr_free_pages 1\nnr_tlb_rem")


def test_ticks_of_a_thread_with_a_strange_name() -> None:
    line = "38 (k) s (d 0) S 2 0 0 0 -1 0 0 0 0 0 7 5 0 0 20 0 1 0\n"
    assert procfs.ticks(line * 2) == 24
    fails(ValueError, None, procfs.ticks, "38 (kswapd0) S 2\n")
