# SPDX-License-Identifier: GPL-2.0-only
"""Summaries of repeated runs, and what two of them say about each other."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Number = int | float

BETTER = "better"
WORSE = "worse"
SAME = "no difference within the spread"
# Medians closer than this share of stock's count as equal, however small the spread.
NEGLIGIBLE = 0.005
# Events that differ by fewer than this count as equal: starting a process makes a handful.
FEW = 16


@dataclass(frozen=True)
class Summary:
    """One figure over all runs of one kernel, in the order the runs were made."""

    median: Number
    min: Number
    max: Number
    runs: tuple[Number, ...]

    def to_json(self) -> dict[str, Any]:
        """As it stands in results."""
        return {"median": self.median, "min": self.min, "max": self.max, "runs": list(self.runs)}


@dataclass(frozen=True)
class Comparison:
    """One figure in both kernels; a side is None if that kernel does not have the figure.

    ``ratio`` is Quell's median over stock's; None when stock's is 0 and
    Quell's is not, or when a side is missing. 1 when both are 0.
    """

    stock: Summary | None
    quell: Summary | None
    ratio: float | None
    verdict: str | None

    def to_json(self) -> dict[str, Any]:
        """As it stands in results."""
        return {
            "stock": self.stock.to_json() if self.stock else None,
            "quell": self.quell.to_json() if self.quell else None,
            "ratio": self.ratio,
            "verdict": self.verdict,
        }


def summarize(runs: Sequence[Number]) -> Summary:
    """Median, least and greatest of at least one run."""
    if not runs:
        raise ValueError("no runs to summarize")
    return Summary(statistics.median(runs), min(runs), max(runs), tuple(runs))


def ratio(stock: Number, quell: Number) -> float | None:
    """``quell / stock``; 1 when both are 0, None when only ``stock`` is."""
    if stock == 0:
        return 1.0 if quell == 0 else None
    return round(quell / stock, 4)


def verdict(
    stock: Summary, quell: Summary, *, higher_is_better: bool = False, events: bool = False
) -> str:
    """BETTER or WORSE when the two ranges do not touch, else SAME.

    Also SAME when the medians differ by less than NEGLIGIBLE: some counts
    hardly vary between runs, and 133,525 faults are not better than 133,527. And,
    with ``events``, when they differ by FEW: 2 flush requests are not worse than 1.
    """
    if quell.min <= stock.max and stock.min <= quell.max:
        return SAME
    if abs(quell.median - stock.median) < max(NEGLIGIBLE * abs(stock.median), FEW * events):
        return SAME
    lower = quell.max < stock.min
    return BETTER if lower != higher_is_better else WORSE


def compare(
    stock: Sequence[Number],
    quell: Sequence[Number],
    *,
    higher_is_better: bool = False,
    events: bool = False,
) -> Comparison:
    """Both kernels' runs of one figure; an empty side is a figure that kernel does not have."""
    a = summarize(stock) if stock else None
    b = summarize(quell) if quell else None
    if a is None or b is None:
        return Comparison(a, b, None, None)
    return Comparison(
        a, b, ratio(a.median, b.median), verdict(a, b, higher_is_better=higher_is_better, events=events)
    )
