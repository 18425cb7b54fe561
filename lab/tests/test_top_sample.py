# SPDX-License-Identifier: GPL-2.0-only
"""Reading the kernel's output."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from quell.top import sample
from quell.top.sample import Event, Snapshot, Task, Timing

DATA = Path(__file__).parent / "data"


def test_difference_wraps_and_grows() -> None:
    assert sample.difference({0: 5, 1: 9}, {0: 2**32 - 5}) == {0: 10, 1: 9}


def test_trace_pipe() -> None:
    events, lost = sample.read_events((DATA / "top-trace-pipe.txt").read_text())
    assert lost == 8
    assert [(e.task.tid, e.task.comm, e.cpu, e.name) for e in events] == [
        (10472, "dt", 0, "tlb_flush"),
        (10448, "qemu-system-x86", 1, "tlb_flush"),
        (77, "a-b [001] c", 3, "tlb_flush"),
        (99, "<...>", 2, "csd_queue_cpu"),
    ]
    # Lines of two CPUs mix; tracing's own stack entries are removed.
    assert events[0].stack == (
        "native_flush_tlb_multi", "flush_tlb_mm_range", "do_madvise", "__x64_sys_madvise"
    )  # fmt: skip
    assert events[1].stack == ("native_flush_tlb_multi", "arch_tlbbatch_flush")
    assert [e.values.get("reason") for e in events] == ["4", "4", "1", None]
    assert sample.is_range(events[0].values["pages"])
    assert not sample.is_range(events[1].values["pages"])
    assert events[3].values["csd"] == "0000000079f8673f"


def test_hist() -> None:
    sent, received = sample.read_hists((DATA / "top-hist.txt").read_text())
    assert "reason == 4" in sent.trigger and "active" not in sent.trigger
    kswapd, prog = sent.entries
    assert (kswapd.task, kswapd.count) == (Task(57, "kswapd0"), 3)
    assert kswapd.pages is not None and not sample.is_range(kswapd.pages)
    assert kswapd.stack[-1] == "kswapd+0x1f0/0x3a0" and len(kswapd.stack) == 8
    assert (prog.task, prog.count) == (Task(4242, "my prog, x]"), 120)
    assert prog.pages == 0 and sample.is_range(prog.pages)
    assert received.dropped == 5
    assert [(e.task.tid, e.pages, e.stack, e.count) for e in received.entries] == [
        (0, None, (), 2),
        (4243, None, (), 118),
    ]


def test_hist_without_buckets() -> None:
    text = (
        "# event histogram\n#\n# trigger info: hist:keys=x:size=1 [paused]\n#\n\n"
        "{ common_pid: a               [         7], pages: 18446744073709551615, stacktrace:\n"
        "         f+0x1/0x2\n} hitcount:          9\n\nTotals:\n    Hits: 9\n"
    )
    (entry,) = sample.read_hists(text)[0].entries
    assert entry.pages == 2**64 - 1 and entry.stack == ("f+0x1/0x2",) and entry.count == 9
    assert sample.read_hists("") == []


def test_bpf() -> None:
    stack = "\n    native_flush_tlb_multi+306\n    exit_mmap+368\n"
    found = list(sample.read_bpf({f"12,34,1,my, prog,{stack}": 5, "1,2,idle": 3, "nonsense": 1}))
    assert found == [
        (Task(34, "my, prog", 12), True, ("native_flush_tlb_multi+306", "exit_mmap+368"), 5),
        (Task(2, "idle", 1), False, (), 3),
    ]


def _event(time: float, tid: int, cpu: int, name: str, **values: str) -> Event:
    return Event(Task(tid, "x"), cpu, time, name, values)


def test_timing() -> None:
    entry, leave = "csd_function_entry", "csd_function_exit"
    found = sample.timing(
        [
            _event(1.0, 7, 0, "tlb_flush", reason="4"),
            _event(1.1, 7, 0, "csd_queue_cpu", csd="a1"),
            _event(1.2, 7, 0, "csd_queue_cpu", csd="b2"),
            _event(1.3, 7, 0, entry, csd="0000"),  # its own flush
            _event(1.4, 7, 0, leave, csd="0000"),
            _event(1.5, 8, 1, entry, csd="a1"),
            _event(1.6, 8, 1, leave, csd="a1"),
            _event(1.7, 9, 2, entry, csd="b2"),
            _event(2.0, 9, 2, leave, csd="b2"),
            _event(3.0, 7, 0, "tlb_flush", reason="4"),  # reaches nobody
        ]
    )
    assert (found.handled, found.waited, found.sent) == (2, 1, 2)
    assert found.handler_s == pytest.approx(0.4)
    assert found.wait_s == pytest.approx(1.0)


def test_timing_of_early_acknowledgment() -> None:
    """The second request arrives with the first; the first's message is reused meanwhile."""
    entry, ack, leave = "csd_function_entry", "early_ack_ack", "csd_function_exit"
    found = sample.timing(
        [
            _event(1.0, 7, 0, "tlb_flush", reason="4"),
            _event(1.1, 7, 0, "csd_queue_cpu", csd="a1"),
            _event(1.2, 8, 1, "tlb_flush", reason="4"),
            _event(1.3, 8, 1, "csd_queue_cpu", csd="b2"),
            _event(1.5, 9, 2, entry, csd="a1"),
            _event(1.6, 9, 2, ack),
            _event(1.7, 9, 2, entry, csd="b2"),
            _event(1.8, 9, 2, ack),
            _event(1.8, 9, 2, leave, csd="b2"),
            _event(1.9, 7, 0, "tlb_flush", reason="4"),
            _event(1.9, 7, 0, "csd_queue_cpu", csd="a1"),
            _event(2.5, 9, 2, leave, csd="a1"),
            _event(2.6, 9, 2, entry, csd="a1"),
            _event(2.7, 9, 2, ack),
            _event(3.0, 9, 2, leave, csd="a1"),
        ]
    )
    assert (found.handled, found.waited, found.sent) == (3, 3, 3)
    assert found.handler_s == pytest.approx(1.0 + 0.4)
    assert found.wait_s == pytest.approx(0.6 + 0.6 + 0.8)


def test_timing_without_csd() -> None:
    found = sample.timing(
        [
            _event(1.0, 7, 0, "tlb_flush", reason="4"),
            _event(1.1, 8, 1, "call_function_entry", vector="252"),
            _event(1.2, 8, 1, "tlb_flush", reason="1"),
            _event(1.4, 8, 1, "call_function_exit", vector="252"),
            _event(2.1, 8, 1, "call_function_single_entry"),  # not for a flush
            _event(2.9, 8, 1, "call_function_single_exit"),
        ]
    )
    assert (found.handled, found.waited) == (1, 0)
    assert found.handler_s == pytest.approx(0.3)


def test_add() -> None:
    total = Snapshot()
    total.add(Snapshot(seconds=1, sent=2, targets=Counter({Task(1, "a"): 3}), timing=Timing(1, 1)))
    total.add(Snapshot(seconds=3, sent=4, received=Counter({0: 5}), seen=0.5, lost=2))
    assert (total.seconds, total.sent, total.lost) == (4, 6, 2)
    assert total.targets == {Task(1, "a"): 3} and total.victims is None
    assert total.seen == pytest.approx(0.625)
