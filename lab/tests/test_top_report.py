# SPDX-License-Identifier: GPL-2.0-only
"""Figures and verdicts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quell import ui
from quell.paths import repo_root
from quell.top import report, view
from quell.top.causes import CAUSES
from quell.top.sample import Flush, Snapshot, Task, Timing

KSWAPD = ("native_flush_tlb_multi", "try_to_unmap_flush", "shrink_folio_list", "kswapd")
MPROTECT = ("native_flush_tlb_multi", "do_mprotect_pkey")
LUF, EARLY = report.MECHANISMS
SOURCE = {"name": "hist", "title": "x", "cannot_see": ["y"], "not_taken": ["z"]}


def snapshot(
    reclaim: int = 0, mprotect: int = 0, wait: float = 10e-6, **vmstat: int
) -> Snapshot:
    """One second; each shootdown reaches two CPUs, and each handler takes 2 us."""
    a, b = Task(5, "kswapd0"), Task(7, "worker")
    sent = reclaim + mprotect
    flushes = Counter({Flush(a, KSWAPD, False): reclaim, Flush(b, MPROTECT, True): mprotect})
    return Snapshot(
        seconds=1.0,
        sent=sent,
        flushes=Counter({key: n for key, n in flushes.items() if n}),
        targets=Counter({a: 2 * reclaim, b: 2 * mprotect}),
        victims=Counter({Task(0, "<idle>"): sent, b: sent}),
        received=Counter({0: sent, 1: sent}),
        timing=Timing(2e-6 * 100, 100, wait * 50, 50, 50),
        vmstat=Counter(vmstat),
    )


def built(
    one: Snapshot,
    mechanisms: tuple[report.Mechanism, ...] = (LUF,),
    switches: Mapping[str, bool] | None = None,
    tmp: Path = Path("/nonexistent"),
) -> dict[str, Any]:
    return report.build(
        one, SOURCE, names=report.Names(tmp), cpus=4, mechanisms=mechanisms, switches=lambda: switches
    )


def test_figures(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_text("Name:\tworker\nTgid:\t6\n")
    (tmp_path / "6").mkdir()
    (tmp_path / "6/comm").write_text("server\n")
    found = built(snapshot(3000, 1000), tmp=tmp_path)
    assert found["shootdowns"] == 4000 and found["interrupts"] == 8000
    assert found["for_ranges"] == 1000 and found["cpus_per_shootdown"] == 2
    assert [row["cause"] for row in found["causes"]] == ["reclaim-kswapd", "mprotect"]
    assert [row["share"] for row in found["causes"]] == [0.75, 0.25]
    first, second = found["processes"]
    assert (first["pid"], first["comm"], first["interrupts"]) == (5, "kswapd0", 6000)
    assert (second["pid"], second["comm"]) == (6, "server")
    assert second["threads"][0]["tid"] == 7 and second["threads"][0]["comm"] == "worker"
    assert second["causes"] == {"mprotect": 1000}
    victims = {row["comm"]: row["interrupts"] for row in found["receivers"]["processes"]}
    assert victims == {"(idle)": 4000, "server": 4000}
    json.dumps(found)


def test_time_lost() -> None:
    lost = report.lost_time(snapshot(10000), 4)
    # 20000 interrupts of 2 us and 10000 waits of 10 us, of 4 s.
    assert lost["receivers_share"] == pytest.approx(0.01)
    assert lost["senders_share"] == pytest.approx(0.025)
    assert lost["share"] == pytest.approx(0.035)
    assert not lost["assumed"] and "2.00 us" in lost["method"]


def test_time_lost_when_nothing_was_timed() -> None:
    one = snapshot(10000)
    one.timing = Timing()
    lost = report.lost_time(one, 4)
    assert lost["assumed"] and lost["senders_share"] is None
    assert lost["share"] == pytest.approx(0.01)
    assert report.lost_time(Snapshot(), 4)["share"] == 0


@pytest.mark.parametrize(
    ("one", "mends", "words"),
    [
        (Snapshot(seconds=1), False, "no TLB shootdowns"),
        (snapshot(3), False, "only 6 shootdown interrupts"),
        (snapshot(200, wait=0), False, "not a problem"),
        (snapshot(10000, 1000), True, "lazy unmap flush (luf) sends almost none of these"),
        (snapshot(10, 10000), False, "100 % of them come from mprotect: Quell leaves that"),
        (snapshot(10000, 1000, pgsteal_anon=99, pgsteal_file=1), False, "anonymous pages"),
    ],
)
def test_verdict(one: Snapshot, mends: bool, words: str) -> None:
    verdict = built(one)["verdict"]
    assert verdict["mends"] is mends
    assert words in verdict["sentence"] and verdict["sentence"].endswith(".")


def test_gain_is_bounded_by_what_reclaim_takes() -> None:
    verdict = built(snapshot(10000, pgsteal_anon=50, pgsteal_file=50))["verdict"]
    assert verdict["mechanism"] == "luf"
    assert verdict["share"] == pytest.approx(0.5)
    assert verdict["gain_max"] == pytest.approx(0.0175)


def test_verdict_on_quell() -> None:
    verdict = built(snapshot(10000), switches={"luf": True})["verdict"]
    assert not verdict["mends"] and "switched on here already" in verdict["sentence"]
    assert built(snapshot(10000), switches={"luf": False})["verdict"]["mends"]


def test_verdict_of_a_mechanism_that_shortens_waits() -> None:
    verdict = built(snapshot(0, 10000), (LUF, EARLY))["verdict"]
    assert verdict["mechanism"] == "early_ack"
    assert verdict["gain_max"] == pytest.approx(0.025)


def test_verdict_without_causes() -> None:
    verdict = built(Snapshot(seconds=1, received=Counter({0: 90000})))["verdict"]
    assert verdict["mends"] is None and "cannot see" in verdict["sentence"]


def test_mechanisms_are_those_of_the_series() -> None:
    series = (repo_root() / "kernel/hooks/6.12/series").read_text()
    for one in report.MECHANISMS:
        assert one.causes <= set(CAUSES)
        assert (one in report.available()) == (f"{one.name}.patch" in series.split())
    assert LUF in report.available()


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0.00 %"), (1e-6, "less than 0.01 %"), (0.0034, "0.34 %"), (0.034, "3.4 %"), (1, "100 %")],
)
def test_percent(share: float, text: str) -> None:
    assert report.percent(share) == text


def test_unknown_stacks_are_told() -> None:
    one = snapshot()
    one.flushes[Flush(Task(9, "x"), ("native_flush_tlb_multi", "new_function"), False)] = 4
    assert built(one)["unknown_stacks"] == [
        {"shootdowns": 4, "stack": ["native_flush_tlb_multi", "new_function"]}
    ]


@pytest.mark.parametrize("one", [Snapshot(), snapshot(2000, 500)])
def test_view(one: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    found = built(one)
    ui.console().print(view.render(found, 3))
    printed = capsys.readouterr().out
    assert found["verdict"]["sentence"].split(":")[0] in " ".join(printed.split())
    assert "source: hist" in printed and "\n" not in view.line(found)
    if one.flushes:
        assert "reclaim (kswapd)" in printed and "kswapd0 (5)" in printed
