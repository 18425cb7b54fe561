# SPDX-License-Identifier: GPL-2.0-only
"""Parsing the kernel's texts, and sums of snapshots."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from quell.top import sample
from quell.top.sample import Event, Flush, Snapshot, Task, Timing

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
    # Lines of two CPUs mix; tracing's own functions are gone.
    assert events[0].stack == (
        "native_flush_tlb_multi", "flush_tlb_mm_range", "do_madvise", "__x64_sys_madvise"
    )  # fmt: skip
    assert events[1].stack == ("native_flush_tlb_multi", "arch_tlbbatch_flush")
    assert [e.values.get("reason") for e in events] == ["4", "4", "1", None]
    assert [sample.is_range(e.values["pages"]) for e in events[:2]] == [True, False]
    assert events[3].values["csd"] == "0000000079f8673f"


def test_hist() -> None:
    sent, received = sample.read_hists((DATA / "top-hist.txt").read_text())
    trigger, counts, dropped = sent
    assert "reason == 4" in trigger and "active" not in trigger and dropped == 0
    (kswapd, pages, stack), (prog, few, _) = counts
    assert (kswapd, counts[kswapd, pages, stack]) == (Task(57, "kswapd0"), 3)
    assert pages is not None and not sample.is_range(pages)
    assert stack[-1] == "kswapd+0x1f0/0x3a0" and len(stack) == 8
    assert prog == Task(4242, "my prog, x]") and few == 0
    spinner = Task(4243, "spinner")
    assert received[1:] == ({(Task(0, "<idle>"), None, ()): 2, (spinner, None, ()): 118}, 5)


def test_hist_without_buckets() -> None:
    text = (
        "# event histogram\n#\n# trigger info: hist:keys=x:size=1 [paused]\n#\n\n"
        "{ common_pid: a               [         7], pages: 18446744073709551615, stacktrace:\n"
        "         f+0x1/0x2\n} hitcount:          9\n\nTotals:\n    Hits: 9\n"
    )
    [(_, counts, _)] = sample.read_hists(text)
    assert counts == {(Task(7, "a"), 2**64 - 1, ("f+0x1/0x2",)): 9}
    assert list(sample.read_hists("")) == []


NAMES = {
    "flush": "tlb_flush", "received": "tlb_flush", "queue": "csd_queue_cpu", "enter": "csd_function_entry",
    "ack": "early_ack_ack", "exit": "csd_function_exit", "irq": "call_function_entry",
    "end": "call_function_exit", "irq1": "call_function_single_entry", "end1": "call_function_single_exit",
}  # fmt: skip
# TIME TID CPU EVENT [CSD]; csd 0 is the initiator's own flush.
TWO = """1.0 7 0 flush, 1.1 7 0 queue a1, 1.2 7 0 queue b2, 1.3 7 0 enter 00, 1.4 7 0 exit 00,
    1.5 8 1 enter a1, 1.6 8 1 exit a1, 1.7 9 2 enter b2, 2.0 9 2 exit b2, 3.0 7 0 flush"""
# The second request is handled with the first; the first's message is used again meanwhile.
EARLY = """1.0 7 0 flush, 1.1 7 0 queue a1, 1.2 8 1 flush, 1.3 8 1 queue b2, 1.5 9 2 enter a1, 1.6 9 2 ack,
    1.7 9 2 enter b2, 1.8 9 2 ack, 1.8 9 2 exit b2, 1.9 7 0 flush, 1.9 7 0 queue a1, 2.5 9 2 exit a1,
    2.6 9 2 enter a1, 2.7 9 2 ack, 3.0 9 2 exit a1"""
# The second interrupt is not for a flush.
OLD = "1.0 7 0 flush, 1.1 8 1 irq, 1.2 8 1 received, 1.4 8 1 end, 2.1 8 1 irq1, 2.9 8 1 end1"


def _events(text: str) -> Iterator[Event]:
    for time, tid, cpu, name, *csd in map(str.split, text.split(",")):
        values = {"csd": csd[0]} if csd else {"reason": "1" if name == "received" else "4"}
        yield Event(Task(int(tid), "x"), int(cpu), float(time), NAMES[name], values)


@pytest.mark.parametrize(("events", "tids", "expected"), [
    (TWO, None, Timing(0.4, 2, 1.0, 1, 2)),
    (TWO, {8}, Timing(0.4, 2, 0.0, 0, 0)),
    (EARLY, None, Timing(1.4, 3, 2.0, 3, 3)),
    (EARLY, {8}, Timing(1.4, 3, 0.6, 1, 1)),
    (OLD, None, Timing(0.3, 1, 0.0, 0, 1)),
])  # fmt: skip
def test_timing(events: str, tids: set[int] | None, expected: Timing) -> None:
    found = sample.timing(list(_events(events)), tids)
    assert vars(found) == pytest.approx(vars(expected))


def test_add() -> None:
    total = Snapshot()
    total.add(Snapshot(1, 2, targets=Counter({Task(1, "a"): 3}), timing=Timing(1, 1)))
    total.add(Snapshot(3, 5, Counter({0: 5}), seen=0.5, lost=2))
    assert (total.seconds, total.interrupts, total.lost) == (4, 7, 2)
    assert total.targets == {Task(1, "a"): 3} and total.victims is None
    assert total.seen == pytest.approx(0.625)


@pytest.mark.parametrize(("targets", "interrupts"), [({1: 30, 2: 10}, 30), (None, 75)])
def test_only(targets: dict[int, int] | None, interrupts: float) -> None:
    """Without csd_queue_cpu each shootdown counts as many interrupts as another."""
    one = Snapshot(1, 100, Counter({0: 100}), victims=Counter())
    one.flushes = Counter({Flush(Task(1, "a"), (), True): 3, Flush(Task(2, "b"), (), True): 1})
    one.targets = None if targets is None else Counter({Task(tid, "x"): n for tid, n in targets.items()})
    one.only({1})
    assert one.sent == 3 and one.interrupts == interrupts
    assert not one.received and one.victims is None
