# SPDX-License-Identifier: GPL-2.0-only
from __future__ import annotations

import pytest

from quell import stats


def test_summary() -> None:
    summary = stats.summarize([3, 1, 2])
    assert summary == stats.Summary(2, 1, 3, (3, 1, 2))
    assert stats.summarize([1, 2]).median == 1.5
    with pytest.raises(ValueError):
        stats.summarize([])


@pytest.mark.parametrize(
    ("stock", "quell", "expected"),
    [(0, 0, 1.0), (0, 5, None), (4, 0, 0.0), (4, 1, 0.25), (4, 6, 1.5)],
)
def test_ratio(stock: int, quell: int, expected: float | None) -> None:
    assert stats.ratio(stock, quell) == expected


@pytest.mark.parametrize(
    ("stock", "quell", "expected"),
    [
        ([10, 11, 12], [7, 8, 9], stats.BETTER),
        ([10, 11, 12], [13, 14, 15], stats.WORSE),
        ([10, 11, 12], [12, 14, 15], stats.SAME),  # the ranges touch
        ([10, 11, 12], [8, 9, 10], stats.SAME),
        ([10, 20], [12, 13], stats.SAME),  # one inside the other
        ([5], [5], stats.SAME),
        ([0, 0], [0, 0], stats.SAME),
        ([0, 0], [1, 2], stats.WORSE),
        ([133_527], [133_525], stats.SAME),  # disjoint, but nobody cares
        ([1000], [994], stats.BETTER),
    ],
)
def test_verdict(stock: list[int], quell: list[int], expected: str) -> None:
    assert stats.compare(stock, quell).verdict == expected


def test_few_events_are_no_difference() -> None:
    def judge(stock: list[int], quell: list[int], events: bool) -> str | None:
        return stats.compare(stock, quell, events=events).verdict

    assert judge([1, 1, 1], [2, 2, 4], events=True) == stats.SAME
    assert judge([1, 1, 1], [2, 2, 4], events=False) == stats.WORSE
    assert judge([1, 1, 1], [17, 17, 18], events=True) == stats.WORSE


def test_verdict_where_more_is_better() -> None:
    assert stats.compare([1, 2], [3, 4], higher_is_better=True).verdict == stats.BETTER
    assert stats.compare([3, 4], [1, 2], higher_is_better=True).verdict == stats.WORSE


def test_figure_of_one_kernel_only() -> None:
    compared = stats.compare([], [1, 2]).to_json()
    assert compared["stock"] is None
    assert compared["quell"]["runs"] == [1, 2]
    assert compared["ratio"] is None and compared["verdict"] is None
