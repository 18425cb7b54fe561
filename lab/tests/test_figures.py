# SPDX-License-Identifier: GPL-2.0-only
"""The project's claims: how they are read and judged."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from guests import sample
from quell import claims, compare, machine, measure, session, workload
from quell.commands import figures
from quell.errors import QuellError, UsageError

GROUP = claims.Group(
    "g",
    "about",
    ("tiny",),
    ratio_at_most={"shootdown_ipis": 0.02},
    within={"pages_scanned": 0.02},
    not_worse=("elapsed_s",),
    same=("flush_requests",),
    tolerance=0.03,
    slack=25,
)


def result(stock: dict[str, Any], quell: dict[str, Any]) -> dict[str, Any]:
    plan = compare.Plan("tiny", machine.Job(["x"]), 64 << 20, 1, 5)
    done = compare.Measured(plan, {"stock": [sample(**stock)] * 2, "quell": [sample(**quell)] * 2})
    return {
        "environment": {"workloads": {"tiny": {"memory_kb": 65536, "cpus": 1}}},
        "comparisons": [done.to_json()],
    }


@pytest.mark.parametrize(
    ("metric", "stock", "quell", "holds"),
    [
        ("shootdown_ipis", 1000, 20, True),
        ("shootdown_ipis", 1000, 21, False),
        ("shootdown_ipis", 0, 0, False),  # stock sent none: nothing was shown
        ("shootdown_ipis", 0, 9, False),
        ("pages_scanned", 1000, 1020, True),
        ("pages_scanned", 1000, 980, True),
        ("pages_scanned", 1000, 1021, False),
        ("pages_scanned", 1000, 979, False),
        ("pages_scanned", 0, 9, False),
        ("elapsed_s", 10, 10, True),
        ("elapsed_s", 10, 5, True),
        ("elapsed_s", 10, 11, False),
        ("flush_requests", 1000, 1029, True),
        ("flush_requests", 1000, 1031, False),
        ("flush_requests", 1000, 900, False),
        ("flush_requests", 3, 27, True),
        ("flush_requests", 3, 30, False),
    ],
)
def test_bounds(metric: str, stock: int, quell: int, holds: bool) -> None:
    rows = claims.check(GROUP, result({metric: stock}, {metric: quell}))
    assert [r["holds"] for r in rows if r["metric"] == metric] == [holds]
    assert len(rows) == 4


def test_other_counters_and_the_programs_figures() -> None:
    group = claims.Group(
        "g", "about", (), ratio_at_most={"kswapd_s": 0.6}, ratio_at_least={"kswapd_s": 0.65},
        not_worse=("wait_us", "rate"),
    )  # fmt: skip
    own = {"wait_us": measure.Figure(7.0, "us", False), "rate": measure.Figure(7.0, "/s", True)}
    plan = compare.Plan("tiny", machine.Job(["x"]), 64 << 20, 1, 5)
    samples = {
        side: [measure.Sample({}, {"kswapd_s": 3.0 if side == "stock" else 2.0}, own)]
        for side in compare.SIDES
    }
    measured = {
        "environment": {"workloads": {"tiny": {"memory_kb": 65536, "cpus": 1}}},
        "comparisons": [compare.Measured(plan, samples).to_json()],
    }
    rows = claims.check(group, measured)
    assert [(r["metric"], r["holds"]) for r in rows] == [
        ("kswapd_s", False),
        ("kswapd_s", True),
        ("wait_us", True),
        ("rate", True),
    ]
    assert [r["claim"] for r in rows[2:]] == ["not above stock", "not below stock"]
    with pytest.raises(QuellError, match="workload tiny gave no figure elapsed_s"):
        claims.check(claims.Group("g", "about", (), not_worse=("elapsed_s",)), measured)


def test_the_claims_here() -> None:
    groups = claims.load()
    known = workload.known()
    for group in groups:
        assert set(group.workloads) <= set(known)
        assert group.memory is None or machine.parse_memory(group.memory)
    off = claims.select(groups, ["off"])[0]
    assert off.quell_args == "quell=off" and off.workloads == ()
    fixed = claims.select(groups, ["folio-order-build-64K"])[0]
    assert fixed.stock_args == "thp_anon=64K:always" and not fixed.quell_args
    with pytest.raises(UsageError, match="no group 'nosuch' of figures; they are: luf-1G"):
        claims.select(groups, ["off,nosuch"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[group]]\nname = 'a'\nabout = 'b'\nwhat = 1\n", "no field what"),
        ("[[group]]\nname = 'a'\nabout = 'b'\nsame = ['speed']\n", "unknown figure speed"),
        ("[[group]\n", "cannot be used"),
        ("", "cannot be used"),
    ],
)
def test_bad_claims(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "f.toml").write_text(text)
    with pytest.raises(QuellError, match=says):
        claims.load(tmp_path / "f.toml")


@pytest.mark.parametrize(("ipis", "code"), [(1, 0), (50, 1)])
@pytest.mark.parametrize("as_json", [True, False])
def test_command(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    ipis: int,
    code: int,
    as_json: bool,
) -> None:
    asked = []

    def measured(options: session.Options, cache: object) -> session.Outcome:
        asked.append(options)
        return session.Outcome([], result({}, {"shootdown_ipis": ipis}), tmp_path)

    monkeypatch.setattr(session, "measure", measured)
    monkeypatch.setattr(claims, "load", lambda: [GROUP])
    args = argparse.Namespace(
        groups=[], only=[], runs=2, accel="tcg", kernel_tree=None, json=as_json
    )
    assert figures.main(args) == code
    assert asked[0].runs == 2 and asked[0].workloads == ("tiny",)
    out = capsys.readouterr().out
    if as_json:
        rows = json.loads(out)["figures"]
        assert {r["metric"] for r in rows} <= {m.name for m in measure.METRICS}
        assert all(r["holds"] for r in rows) == (code == 0)
    else:
        assert f"{4 - code} of 4 figures hold" in out


def test_a_group_says_what_guest_it_wants(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def measured(options: session.Options, cache: object) -> session.Outcome:
        asked.append((options.cpus, options.deterministic, options.accel, options.runs))
        return session.Outcome([], result({}, {}), tmp_path)

    wide = claims.Group("wide", "about", ("tiny",), cpus=4, runs=3)
    counted = claims.Group("counted", "about", ("tiny",), deterministic=True)
    monkeypatch.setattr(session, "measure", measured)
    monkeypatch.setattr(claims, "load", lambda: [GROUP, wide, counted])
    parser = argparse.ArgumentParser()
    figures.add_arguments(parser)
    figures.main(parser.parse_args(["wide", "counted"]))
    assert asked == [(4, False, "auto", 3), (None, True, "tcg", 5)]
