# SPDX-License-Identifier: GPL-2.0-only
"""Published figures (published.toml), compared with ours."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quell import counters, forms, stats


@dataclass(frozen=True)
class Published:
    """A published figure, as the head of published.toml describes it."""

    id: str
    work: str
    source: str
    conditions: str
    workload: str
    figure: str
    rungs: tuple[str, str]
    ratio: float
    before: float | None = None
    after: float | None = None
    why: str = "no explanation is known"


def load() -> list[Published]:
    """The figures in published.toml; the lab's tests check that their workloads, figures and rungs exist."""
    rows = []
    for title, work in forms.read_toml(Path(__file__).with_name("published.toml")).items():
        shared = {key: value for key, value in work.items() if not isinstance(value, dict)}
        for name in (key for key in work if key not in shared):
            given = {"id": name, "work": title, **shared, **work[name]}
            given["ratio"] = given.get("ratio") or round(given["after"] / given["before"], 4)
            rows.append(forms.convert(given, Published, name))
    return rows


def direction(row: Published, before: Sequence[float], after: Sequence[float]) -> str:
    """"agrees", "opposite", or "none" when only one of the two results shows a difference.

    Ours shows none when the rank test finds none. With too few runs for the test the medians decide.
    """
    ratio, verdict = stats.compare(before, after, least=counters.LEAST.get(row.figure, 0))
    ours = 1.0 if verdict == stats.SAME else math.inf if ratio is None else ratio
    mine, theirs = (0 if abs(one - 1) < stats.LEAST_SHARE else math.copysign(1, one - 1) for one in (ours, row.ratio))
    return "agrees" if mine == theirs else "none" if 0 in (mine, theirs) else "opposite"


def compare(rows: Sequence[Published], result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows that ``result`` has figures for, as results keep them."""
    out = []
    for row in rows:
        for comparison in (one for one in result["comparisons"] if one["workload"] == row.workload):
            sides = comparison["figures"].get(row.figure, {}).get("sides", {})
            before, after = (sides.get(rung) for rung in row.rungs)
            if before and after:
                found, start, end = direction(row, before["runs"], after["runs"]), before["median"], after["median"]
                out.append({
                    **{key: getattr(row, key) for key in ("id", "work", "source", "conditions", "workload", "figure")},
                    "from": row.rungs[0], "to": row.rungs[1], "cpus": comparison["cpus"],
                    "theirs": {"from": row.before, "to": row.after, "ratio": row.ratio},
                    "ours": {"from": start, "to": end, "ratio": stats.ratio(start, end)},
                    "direction": found, "why": "" if found == "agrees" else row.why,
                })  # fmt: skip
    return out
