# SPDX-License-Identifier: GPL-2.0-only
"""Figures, verdicts and the screen."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import write_files
from quell.paths import repo_root
from quell.top import report, view
from quell.top.causes import CAUSES
from quell.top.sample import Flush, Snapshot, Task, Timing

KSWAPD = ("native_flush_tlb_multi", "try_to_unmap_flush", "shrink_folio_list", "kswapd")
MPROTECT = ("native_flush_tlb_multi", "do_mprotect_pkey")
EXIT = ("native_flush_tlb_multi+0x1/0x2", "exit_mmap")
A, B, C = Task(5, "kswapd0"), Task(7, "worker"), Task(9, "sh;\x1b[2J")
SOURCE = {"name": "hist", "not_taken": []}


def snapshot(reclaim: int = 0, mprotect: int = 0, exits: int = 0, wait: float = 10e-6, **vmstat: int) -> Snapshot:
    """One second; each shootdown interrupts two CPUs whose handlers take 2 us, that of exit none."""
    sent = reclaim + mprotect
    flushes = {Flush(A, KSWAPD, False): reclaim, Flush(B, MPROTECT, True): mprotect, Flush(C, EXIT, False): exits}
    return Snapshot(
        1.0, 2 * sent, Counter({key: n for key, n in flushes.items() if n}),
        targets=Counter({A: 2 * reclaim, B: 2 * mprotect}),
        victims=Counter({Task(0, "<idle>"): sent, B: sent}),
        timing=Timing(2e-6 * 100, 100, wait * 50, 50), vmstat=Counter(vmstat),
    )  # fmt: skip


def built(
    one: Snapshot, switches: Mapping[str, bool] | None = None, proc: str | Path = "/nonexistent", process: Task | None = None
) -> dict[str, Any]:  # fmt: skip
    names = report.Names(Path(proc))
    return report.build(one, SOURCE, names, process, switches, cpus=4)


def test_figures(tmp_path: Path) -> None:
    for pid, comm in ((7, "worker"), (6, "server")):
        status = f"Name:\t{comm}\nTgid:\t6\n"
        write_files(tmp_path / str(pid), {"status": status, "comm": f"{comm}\n"})
    found = built(snapshot(3000, 1000, 6000), proc=tmp_path)
    assert found["shootdowns"] == 10000 and found["interrupts"] == 8000
    assert found["for_ranges"] == 1000
    # In the order of interrupts.
    assert [(row["cause"], row["shootdowns"], row["share"]) for row in found["causes"]] == [
        ("reclaim-kswapd", 3000, 0.75), ("mprotect", 1000, 0.25), ("exit", 6000, 0),
    ]  # fmt: skip
    first, second, _ = found["processes"]
    assert (first["pid"], first["comm"], first["interrupts"]) == (5, "kswapd0", 6000)
    assert (second["pid"], second["comm"], second["causes"]) == (6, "server", {"mprotect": 1000})
    assert [(row["tid"], row["comm"]) for row in second["threads"]] == [(7, "worker")]
    hit = {row["comm"]: row["interrupts"] for row in found["receivers"]["processes"]}
    assert hit == {"(idle)": 4000, "server": 4000}
    json.dumps(found)


def test_time_lost() -> None:
    lost = report.lost_time(snapshot(10000), 4)
    # 20000 interrupts of 2 us and 10000 waits of 10 us, of 4 s.
    assert (lost["initiators_share"], lost["share"]) == pytest.approx((0.025, 0.035))
    assert not lost["assumed"] and "2.00 us" in lost["method"]
    lost = report.lost_time(replace(snapshot(10000), timing=Timing()), 4)
    assert lost["assumed"] and lost["initiators_share"] is None and lost["share"] == pytest.approx(0.01)


@pytest.mark.parametrize(("one", "mechanism", "words"), [
    (Snapshot(seconds=1), None, "cost an assumed 0.00 % of this machine's CPU time: not a problem."),
    (snapshot(200, wait=0), None, "not a problem. 100 % of the interrupts come from reclaim (kswapd)."),
    (Snapshot(1, 8, Counter({Flush(A, KSWAPD, False): 1, Flush(A, EXIT, False): 2, Flush(B, MPROTECT, True): 9}),
              targets=Counter({A: 5, B: 3})), None, "42 % of the interrupts come from exit, exec."),  # 3.3, rounded 3
    (snapshot(10000, 1000), "luf", "91 % of the interrupts have causes that Quell's lazy unmap flush"),
    (snapshot(10000, pgsteal_anon=9, pgsteal_file=1), "writeout_batch", "and saves at most 3.15 % of"),
    (snapshot(10000, pgsteal_anon=5, pgsteal_file=5), "luf", "and saves at most 1.75 % of"),
    (snapshot(0, 10000), "early_ack", "and saves at most 2.50 % of"),
    (snapshot(0, 10000, wait=0), "early_ack", "shortens the waits for these, as far as no page"),
    (replace(snapshot(0, 0, 10000), targets=Counter({Task(9, "sh"): 20000}), interrupts=20000), None,
     "100 % of the interrupts come from exit, exec. Quell leaves these as they are."),
])  # fmt: skip
def test_verdict(one: Snapshot, mechanism: str | None, words: str) -> None:
    verdict = built(one)["verdict"]
    assert verdict["mechanism"] == mechanism and verdict["fixes"] is (mechanism is not None)
    assert words in verdict["sentence"] and verdict["sentence"].endswith(".")


def test_verdict_on_quell() -> None:
    verdict = built(snapshot(10000), {"luf": True})["verdict"]
    assert not verdict["fixes"] and "switched on here already" in verdict["sentence"]
    assert built(snapshot(10000), {"luf": False})["verdict"]["fixes"]


def test_process() -> None:
    found = built(snapshot(10000), process=Task(5, "kswapd0"))
    assert found["pid"] == 5 and found["verdict"]["sentence"].startswith("TLB shootdowns of kswapd0 (5)")
    assert any(line.endswith("thread, its main cause") for line in view.render(found, 80, 23))


def test_mechanisms_are_those_of_the_series() -> None:
    series = (repo_root() / "kernel/hooks/6.12/series").read_text().split()
    for one in report.MECHANISMS:
        assert one.causes <= set(CAUSES) and f"{one.name}.patch" in series


def test_stacks() -> None:
    one = snapshot(3, 0, 2)
    assert report.folded(one) == [
        "kswapd0;kswapd;shrink_folio_list;try_to_unmap_flush;native_flush_tlb_multi 3",
        "sh:?[2J;exit_mmap;native_flush_tlb_multi 2",
    ]


def many() -> Snapshot:
    one = snapshot(10000, 1000, 10)
    for tid in range(100, 140):
        task = Task(tid, f"a long process {tid}"[:15])
        one.flushes[Flush(task, MPROTECT, True)] = one.targets[task] = one.victims[task] = tid
    return one


@pytest.mark.parametrize("one", [Snapshot(), snapshot(2000, 500), many()])
def test_screen(one: Snapshot) -> None:
    """All of it fits on a terminal of 80x24, with the verdict first; nothing of a name is obeyed."""
    found = built(one)
    lines = view.render(found, 80, 23)
    assert len(lines) <= 23 and all(len(line) <= 80 and line.isprintable() for line in lines)
    assert " ".join(lines[1:]).startswith(found["verdict"]["sentence"])
    if one.flushes:
        text = "\n".join(lines)
        assert "reclaim (kswapd) [luf, writeout_batch]" in text and "kswapd0 (5)" in text
    bold = view.render(found, 80, 23, bold=True)
    assert bold[1].startswith("\x1b[1m") and [re.sub("\x1b.*?m", "", line) for line in bold] == lines


def test_verdict_and_table_are_of_the_same_quantity() -> None:
    """Shares of interrupts; exit interrupts no CPU."""
    lines = view.render(built(snapshot(3000, 1000, 6000)), 200, 23)
    assert "75 % of the interrupts have causes" in lines[1]
    assert any(re.match(r" *75 % .*reclaim \(kswapd\) \[luf", line) for line in lines)
