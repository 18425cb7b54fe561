# SPDX-License-Identifier: GPL-2.0-only
"""Summaries of repeated runs, and whether two sides differ: an exact rank test.

The test is Wilcoxon's rank sum (Mann-Whitney U), two-sided and exact, ties included
(SciPy). Several figures are judged together: Holm's correction keeps the chance of
any wrong verdict among them at ``ALPHA``.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Number = int | float

BETTER = "better"
WORSE = "worse"
SAME = "no difference"
# The chance of any verdict between equal sides, in the figures that are judged together.
ALPHA = 0.05
# The least effect: medians closer than this share of the base count as equal.
LEAST_SHARE = 0.01
# Number of arrangements of tied runs that are enumerated (ten runs a side), or drawn with a fixed seed.
_ENUMERATED = 200_000


def summarize(runs: Sequence[Number]) -> dict[str, Any] | None:
    """Median, minimum, maximum, and the runs in their order, as results keep them; None without runs."""
    if not runs:
        return None
    return {"median": statistics.median(runs), "min": min(runs), "max": max(runs), "runs": list(runs)}


def ratio(base: Number, other: Number) -> float | None:
    """``other / base``; 1 when both are 0, None when only ``base`` is (nearly)."""
    if base == 0:
        return 1.0 if other == 0 else None
    found = other / base
    return round(found, 4) if math.isfinite(found) else None


def p_value(a: Sequence[Number], b: Sequence[Number]) -> float:
    """The exact two-sided p of the rank-sum test; 1 where all runs are equal or a side has fewer than two."""
    if min(len(a), len(b)) < 2 or len({*a, *b}) == 1:
        return 1.0
    from scipy import stats  # type: ignore[import-untyped]

    if len({*a, *b}) == len(a) + len(b):
        return float(stats.mannwhitneyu(a, b, method="exact").pvalue)
    every = stats.PermutationMethod(n_resamples=_ENUMERATED, rng=1)
    return float(stats.mannwhitneyu(a, b, method=every).pvalue)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Each p corrected for the number of figures judged together (Holm 1979)."""
    corrected: dict[str, float] = {}
    worst = 0.0
    ordered = sorted(p_values.items(), key=lambda item: item[1])
    for rank, (name, p) in enumerate(ordered):
        worst = max(worst, min(1.0, p * (len(ordered) - rank)))
        corrected[name] = worst
    return corrected


def runs_needed(figures: int) -> int:
    """The least number of runs a side that can reach ``ALPHA`` in one of so many figures."""
    runs = 1
    while 2 / math.comb(2 * runs, runs) * max(1, figures) > ALPHA:
        runs += 1
    return runs


def too_few(figures: int) -> str:
    """The verdict where the runs cannot reach ``ALPHA``."""
    return f"too few runs to tell ({runs_needed(figures)} would do)"


def verdict(
    base: Mapping[str, Any], other: Mapping[str, Any], p: float, figures: int = 1,
    *, higher_is_better: bool = False, least: Number = 0,
) -> str:  # fmt: skip
    """BETTER, WORSE, SAME or ``too_few()``, for two sides' summaries.

    ``p`` is corrected for ``figures``, the number judged together. An effect below
    LEAST_SHARE of the base, or below ``least``, is no difference.
    """
    if min(len(base["runs"]), len(other["runs"])) < runs_needed(figures):
        return too_few(figures)
    difference = other["median"] - base["median"]
    if p > ALPHA or difference == 0 or abs(difference) < max(LEAST_SHARE * abs(base["median"]), least):
        return SAME
    return BETTER if (difference < 0) != higher_is_better else WORSE


def compare(base: Sequence[Number], other: Sequence[Number], **how: Any) -> tuple[float | None, str]:
    """(ratio of medians, verdict) of one figure judged by itself; ``how`` as verdict() takes it."""
    a, b = summarize(base), summarize(other)
    assert a and b
    return ratio(a["median"], b["median"]), verdict(a, b, p_value(base, other), **how)
