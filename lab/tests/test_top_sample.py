# SPDX-License-Identifier: GPL-2.0-only
"""Parsing the kernel's texts, and sums of snapshots."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from quell.top import sample
from quell.top.sample import Event, Flush, Snapshot, Task, Timing

DATA = Path(__file__).parent / "data"


def test_counters_wrap_and_cpus_come() -> None:
    assert sample.arrived({0: 5, 1: 9}, {0: 2**32 - 5}) == 10


def test_trace_pipe() -> None:
    events, lost = sample.read_events((DATA / "top-trace-pipe.txt").read_text())
    assert lost == 8
    assert [(e.task.tid, e.task.comm, e.cpu, e.name) for e in events] == [
        (10472, "dt", 0, "tlb_flush"),
        (10448, "qemu-system-x86", 1, "tlb_flush"),
        (77, "a-b [001] c", 3, "tlb_flush"),
        (99, "<...>", 2, "csd_queue_cpu"),
    ]
    # Lines of two CPUs mix; tracing's own functions are gone.
    assert events[0].stack == ("native_flush_tlb_multi", "flush_tlb_mm_range", "do_madvise", "__x64_sys_madvise")
    assert events[1].stack == ("native_flush_tlb_multi", "arch_tlbbatch_flush")
    assert [e.values.get("reason") for e in events] == ["4", "4", "1", None]
    assert events[3].values["csd"] == "0000000079f8673f"


def test_hist() -> None:
    sent, received = sample.read_hists((DATA / "top-hist.txt").read_text())
    stacks, counts, dropped = sent
    assert stacks and dropped == 0
    kswapd, prog = counts
    assert (kswapd.task, kswapd.ranged, counts[kswapd]) == (Task(57, "kswapd0"), False, 3)
    assert kswapd.stack[-1] == "kswapd+0x1f0/0x3a0" and len(kswapd.stack) == 8
    assert prog.task == Task(4242, "my prog, x]") and prog.ranged
    assert received == (False, {Flush(Task(0, "<idle>")): 2, Flush(Task(4243, "spinner")): 118}, 5)
    assert list(sample.read_hists("")) == []


NAMES = {
    "flush": "tlb_flush", "received": "tlb_flush", "queue": "csd_queue_cpu", "enter": "csd_function_entry",
    "ack": "early_ack_ack", "exit": "csd_function_exit", "irq": "call_function_entry",
    "end": "call_function_exit", "irq1": "call_function_single_entry", "end1": "call_function_single_exit",
}  # fmt: skip
# TIME TID CPU EVENT [CSD].
TWO = """1.0 7 0 flush, 1.1 7 0 queue a1, 1.2 7 0 queue b2, 1.4 6 2 exit c3,
    1.5 8 1 enter a1, 1.6 8 1 exit a1, 1.7 9 2 enter b2, 2.0 9 2 exit b2, 3.0 7 0 flush"""
# The second request is handled with the first; the first's message is used again meanwhile.
EARLY = """1.0 7 0 flush, 1.1 7 0 queue a1, 1.2 8 1 flush, 1.3 8 1 queue b2, 1.5 9 2 enter a1, 1.6 9 2 ack,
    1.7 9 2 enter b2, 1.8 9 2 ack, 1.8 9 2 exit b2, 1.9 7 0 flush, 1.9 7 0 queue a1, 2.5 9 2 exit a1,
    2.6 9 2 enter a1, 2.7 9 2 ack, 3.0 9 2 exit a1"""
# The second interrupt is not for a flush.
OLD = "1.0 7 0 flush, 1.1 8 1 irq, 1.2 8 1 received, 1.4 8 1 end, 2.1 8 1 irq1, 2.9 8 1 end1"


def _events(text: str) -> Iterator[Event]:
    for time, tid, cpu, name, *csd in map(str.split, text.split(",")):
        values = {"csd": csd[0]} if csd else {"reason": {"flush": "4", "received": "1"}.get(name, "")}
        yield Event(Task(int(tid), "x"), int(cpu), float(time), NAMES[name], values)


@pytest.mark.parametrize(("events", "tids", "expected"), [
    (TWO, None, Timing(0.4, 2, 1.0, 2)),
    (TWO, {8}, Timing(0.4, 2, 0.0, 0)),
    (EARLY, None, Timing(1.4, 3, 2.0, 3)),
    (EARLY, {8}, Timing(1.4, 3, 0.6, 1)),
    (OLD, None, Timing(0.3, 1, 0.0, 1)),
])  # fmt: skip
def test_timing(events: str, tids: set[int] | None, expected: Timing) -> None:
    mine = None if tids is None else lambda task: task.tid in tids
    assert sample.timing(list(_events(events)), mine) == pytest.approx(expected)


def test_add_and_only() -> None:
    a, b = Task(1, "a"), Task(2, "b")
    total = Snapshot()
    total.add(Snapshot(1, 2, Counter({Flush(a): 3}), Counter({a: 30}), timing=Timing(1, 1)))
    total.add(Snapshot(3, 5, Counter({Flush(b): 1}), Counter({b: 10}), Counter({a: 4}), seen=0.5, lost=2))
    assert (total.seconds, total.interrupts, total.lost, total.seen) == (4, 7, 2, 0.5)
    assert total.targets == {a: 30, b: 10} and total.victims == {a: 4} and total.timing == (1, 1, 0, 0)
    total.only(lambda task: task == a)
    assert total.sent == 3 and total.interrupts == 30 and not total.victims
