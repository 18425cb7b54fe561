# SPDX-License-Identifier: GPL-2.0-only
"""What others published (published.toml), and whether what is measured here agrees."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quell import measure, stats, workload
from quell.errors import QuellError
from quell.ladder import counters, document
from quell.ladder.rungs import NAMES

AGREES, OPPOSITE, NONE = "agrees", "opposite", "none"
SMALLER, LARGER, NO_SIZE = "smaller", "larger", "-"
# A change agrees in size from half to twice the published one, as logarithms of the ratios:
# half of "to a quarter" is "to a half", and of small percentages it is half of them.
FACTOR = 2.0
UNEXPLAINED = "no explanation is known"

_METRICS = {m.name for m in (*measure.METRICS, *measure.EXTRAS)} | {document.PER_SECOND, *counters.FIGURES}


@dataclass(frozen=True)
class Why:
    """An explanation and where it applies; what is None or empty applies everywhere.

    ``accelerator`` and ``deterministic`` are the run's, ``cpus_below`` is more
    than the guest's CPUs, ``outcome`` are directions and sizes ("smaller", ...).
    """

    text: str
    accelerator: str | None = None
    deterministic: bool | None = None
    cpus_below: int | None = None
    outcome: tuple[str, ...] = ()

    def applies(self, environment: Mapping[str, Any], cpus: int, outcomes: Sequence[str]) -> bool:
        """Whether it explains a figure measured in ``environment`` with these outcomes."""
        return (
            self.accelerator in (None, environment["accelerator"]["name"])
            and self.deterministic in (None, environment["deterministic"])
            and (self.cpus_below is None or cpus < self.cpus_below)
            and (not self.outcome or bool(set(self.outcome) & set(outcomes)))
        )


@dataclass(frozen=True)
class Published:
    """A figure that somebody published, and what is measured here beside it.

    ``before`` and ``after`` are theirs, if they said so, in their own unit;
    ``ratio`` is after by before. ``start`` and ``end`` are rungs.
    """

    id: str
    work: str
    source: str
    conditions: str
    workload: str
    figure: str
    start: str
    end: str
    ratio: float
    before: float | None = None
    after: float | None = None
    why: tuple[Why, ...] = ()


def load(path: Path | None = None) -> list[Published]:
    """The figures in published.toml; QuellError naming what is wrong in it."""
    file = path or Path(__file__).parent.parent / "published.toml"
    try:
        works = tomllib.loads(file.read_text())["work"]
        rows = [_row(work, table, file) for work in works for table in work["figure"]]
    except (OSError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise QuellError(f"{file} cannot be used: {error}") from error
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise QuellError(f"{file}: {row.id} is there twice")
        seen.add(row.id)
        for rung in (row.start, row.end):
            if rung not in NAMES:
                raise QuellError(f"{file}: {row.id} names the unknown rung {rung}")
        [item] = workload.select([row.workload])
        if row.figure not in _METRICS and row.figure not in item.figures:
            raise QuellError(f"{file}: {row.id} names the unknown figure {row.figure}")
    return rows


def _row(work: Mapping[str, Any], table: Mapping[str, Any], file: Path) -> Published:
    """One figure; what it does not say itself (``from``, ``to``, ...) the work says."""
    given = {k: v for k, v in work.items() if k not in ("title", "figure", "why")} | dict(table)
    whys = [*table.get("why", ()), *work.get("why", ())]
    before, after = given.pop("before", None), given.pop("after", None)
    ratio = given.pop("ratio", None)
    if ratio is None:
        if before is None or after is None:
            raise QuellError(f"{file}: {given.get('id')} needs a ratio, or before and after")
        ratio = after / before
    given.pop("why", None)
    return Published(
        work=work["title"],
        start=given.pop("from"),
        end=given.pop("to"),
        before=before,
        after=after,
        ratio=round(ratio, 4),
        why=tuple(Why(**{**why, "outcome": tuple(why.get("outcome", ()))}) for why in whys),
        **given,
    )


def direction_of(ratio: float | None) -> int:
    """-1 for less, 1 for more, 0 for a change below stats.NEGLIGIBLE; None is from nothing."""
    if ratio is None:
        return 1
    return 0 if abs(ratio - 1) < stats.NEGLIGIBLE else (1 if ratio > 1 else -1)


def size(theirs: float, ours: float | None) -> str:
    """How large our change is beside theirs, both in the same direction; see FACTOR."""
    if direction_of(theirs) == 0:
        return AGREES
    if ours is None or ours <= 0:
        return LARGER
    share = math.log(ours) / math.log(theirs)
    if share < 1 / FACTOR:
        return SMALLER
    return LARGER if share > FACTOR else AGREES


def judge(row: Published, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, str]:
    """(direction, size) of our figures beside a published one.

    The direction is "none" when one of the two shows no difference and the other
    does; ours shows none when its runs on the two rungs overlap.
    """
    ours = stats.ratio(before["median"], after["median"])
    verdict = stats.verdict(
        stats.summarize(before["values"]),
        stats.summarize(after["values"]),
        higher_is_better=before["better"] == "more",
        events=row.figure in measure.EVENTS,
    )
    mine = 0 if verdict == stats.SAME else direction_of(ours)
    theirs = direction_of(row.ratio)
    if mine == theirs:
        return AGREES, size(row.ratio, ours)
    return (NONE, NO_SIZE) if 0 in (mine, theirs) else (OPPOSITE, NO_SIZE)


def compare(rows: Sequence[Published], result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows that ``result`` has figures for, as they stand in ladder.json."""
    out = []
    measured = document.measured(result)
    for row in rows:
        for cpus in measured.get(row.workload, ()):
            cells = [
                document.cell(result, row.workload, cpus, rung) for rung in (row.start, row.end)
            ]
            found = [c["figures"].get(row.figure) if c else None for c in cells]
            before, after = found
            if before is None or after is None:
                continue
            direction, agreement = judge(row, before, after)
            out.append(
                {
                    "id": row.id,
                    "work": row.work,
                    "source": row.source,
                    "conditions": row.conditions,
                    "workload": row.workload,
                    "cpus": cpus,
                    "figure": row.figure,
                    "from": row.start,
                    "to": row.end,
                    "theirs": {"from": row.before, "to": row.after, "ratio": row.ratio},
                    "ours": {
                        "from": before["median"],
                        "to": after["median"],
                        "ratio": stats.ratio(before["median"], after["median"]),
                    },
                    "direction": direction,
                    "size": agreement,
                    "why": explain(row, result["environment"], cpus, direction, agreement),
                }
            )
    return out


def explain(
    row: Published, environment: Mapping[str, Any], cpus: int, direction: str, agreement: str
) -> str:
    """One line on a disagreement; empty when there is none."""
    outcomes = {direction, agreement} - {AGREES, NO_SIZE}
    if not outcomes:
        return ""
    for why in row.why:
        if why.applies(environment, cpus, sorted(outcomes)):
            return why.text
    return UNEXPLAINED
