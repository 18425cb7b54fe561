# SPDX-License-Identifier: GPL-2.0-only
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from guests import SIDES, plan, printed, sample
from quell import counters, judge, stats, workload
from quell.sides import parse

FIVE = range(1, 6)


def compared(
    stock: Callable[[int], counters.Sample], quell: Callable[[int], counters.Sample], *, own: bool = True
) -> dict[str, Any]:
    samples = {"stock": [stock(n) for n in FIVE], "quell": [quell(n) for n in FIVE]}
    return judge.comparison(plan(own=own), samples, SIDES, emulated=True)


def loop(work: float | None, requests: int, seconds: float = 10) -> Callable[[int], counters.Sample]:
    """Runs of a loop that prints its work, if that is known."""
    def run(n: int) -> counters.Sample:
        usual: Any = {"elapsed_s": seconds + n / 50, "flush_requests": requests + n}
        return sample(**usual) if work is None else printed(work, "ops", **usual)

    return run


def verdict(comparison: dict[str, Any], name: str) -> str | None:
    found: str | None = comparison["figures"][name]["against"]["quell"]["verdict"]
    return found


@pytest.mark.parametrize(("a", "b", "p"), [
    # Tables of the rank sum: the two most extreme of C(10, 5) and of C(6, 3) arrangements.
    ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 2 / 252),
    ([1, 2, 3], [4, 5, 6], 2 / 20),
    ([1, 2, 4], [3, 5, 6], 4 / 20),
    ([0, 0, 0, 0], [1, 1, 1, 1], 2 / 70),
    ([5, 5], [5, 5], 1.0),
    ([], [1], 1.0),
    ([5], [5, 6, 6, 7], 1.0),
])  # fmt: skip
def test_known_cases_of_the_rank_test(a: list[int], b: list[int], p: float) -> None:
    assert stats.p_value(a, b) == pytest.approx(p)
    assert stats.p_value(b, a) == pytest.approx(p)


def test_ties_are_enumerated() -> None:
    a, b = [1, 2, 2, 3], [2, 3, 4, 4]
    pool = a + b
    ranks = [sum(y < x for y in pool) + (sum(y == x for y in pool) + 1) / 2 for x in pool]
    middle, seen = sum(ranks) / 2, abs(sum(ranks[:4]) - sum(ranks) / 2)
    every = [sum(r for i, r in enumerate(ranks) if mask >> i & 1) for mask in range(256) if mask.bit_count() == 4]
    expected = sum(abs(total - middle) >= seen - 1e-9 for total in every) / len(every)
    assert stats.p_value(a, b) == pytest.approx(expected)


def test_correction_and_the_runs_that_it_needs() -> None:
    corrected = stats.holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert corrected == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert [stats.runs_needed(n) for n in (0, 1, 2, 6, 7)] == [4, 4, 5, 5, 6]


def test_verdicts() -> None:
    def judged(a: Sequence[float], b: Sequence[float], **how: Any) -> str:
        return stats.compare(a, b, **how)[1]

    low, high = [10, 11, 12, 13], [20, 21, 22, 23]
    assert judged(high, low) == judged(low, high, higher_is_better=True) == stats.BETTER
    assert judged(low, high) == stats.WORSE
    assert judged(low, [12, 13, 14, 15]) == stats.SAME  # p = 0.11
    assert judged(low[:3], high[:3]) == "too few runs to tell (4 would do)"
    assert judged([1000] * 4, [1009] * 4) == stats.SAME  # less than the least effect
    assert [judged([1] * 4, [n] * 4, least=counters.LEAST["minor_faults"]) for n in (16, 18)] == [stats.SAME, stats.WORSE]
    assert judged([23452] * 4, [23708] * 4, least=counters.LEAST["peak_memory_kb"]) == stats.SAME
    assert [stats.ratio(0, 0), stats.ratio(0, 1), stats.ratio(4, 2)] == [1.0, None, 0.5]


def test_equal_sides_seldom_get_a_verdict() -> None:
    """By construction, equal sides get a verdict in any of six figures with a chance below 5 %."""
    random.seed(1)
    wrong = 0
    for _ in range(300):
        p = stats.holm({str(n): stats.p_value(*([random.random() for _ in FIVE] for _ in "ab")) for n in range(6)})
        wrong += min(p.values()) <= stats.ALPHA
    assert wrong <= 300 * 0.05 + 3 * math.sqrt(300 * 0.05 * 0.95)


def test_only_what_matters_is_judged_and_what_carries_over_comes_first() -> None:
    one = compared(lambda n: sample(elapsed_s=n), lambda n: sample(elapsed_s=n + 10, minor_faults=1), own=False)
    assert one["matters"] == ["elapsed_s"] and verdict(one, "elapsed_s") == stats.WORSE
    assert verdict(one, "minor_faults") is None
    assert one["figures"]["minor_faults"]["against"]["quell"]["ratio"] == 0.01
    assert one["shown"].index("elapsed_s") > one["shown"].index("peak_memory_kb")
    assert one["name"] == "tiny" and one["notes"] == []
    # Only one side has the counter.
    one = compared(lambda n: sample(elapsed_s=n), lambda n: sample(elapsed_s=n, luf_drains=3))
    assert one["figures"]["luf_drains"]["sides"]["stock"] is None
    assert one["figures"]["luf_drains"]["against"] == {} and "luf_drains" not in one["shown"]


def test_verdicts_are_corrected_for_the_figures_that_matter() -> None:
    near = ([1, 2, 3, 4, 6], [5, 7, 8, 9, 10])
    assert stats.compare(*near)[1] == stats.WORSE  # p = 0.016
    one = compared(lambda n: sample(elapsed_s=near[0][n - 1]), lambda n: sample(elapsed_s=near[1][n - 1]))
    assert len(one["matters"]) == 4 and verdict(one, "elapsed_s") == stats.SAME


def test_figures_of_the_own_command_are_judged() -> None:
    one = compared(
        lambda n: printed(n, "ns", more=False, elapsed_s=n),
        lambda n: printed(n + 9, "ns", more=False, elapsed_s=2 * n),
    )
    assert one["matters"] == [*judge.OWN_MATTERS, "work"] and verdict(one, "work") == stats.WORSE


@pytest.mark.parametrize(("unit", "scale", "per"), [("ops", 1, "ops"), ("ops/s", 10, "ops"), ("1/s", 10, "work")])
def test_more_work_in_the_same_time(unit: str, scale: int, per: str) -> None:
    """A loop of 10 s that does 1.65 times the work with 3.1 times the requests."""
    one = compared(
        lambda n: printed((1000 + n) / scale, unit, elapsed_s=10, flush_requests=1000 + n),
        lambda n: printed((1650 + n) / scale, unit, elapsed_s=10.01, flush_requests=1040 + n),
    )
    assert verdict(one, "flush_requests") is None and "flush_requests" not in one["matters"]
    assert verdict(one, f"flush_requests_per_{per}") == stats.BETTER
    assert one["figures"][f"flush_requests_per_{per}"]["against"]["quell"]["ratio"] == pytest.approx(0.63, abs=0.01)
    assert f"counts are judged per {per}" in one["notes"][0] and "1.65" in one["notes"][0]
    assert "flush_requests" not in one["shown"] and verdict(one, "work") == stats.BETTER


def test_fixed_time_with_unknown_work() -> None:
    one = compared(
        lambda n: sample(elapsed_s=10 + n / 1000, flush_requests=1000 + n),
        lambda n: sample(elapsed_s=10 + n / 1000, flush_requests=3139 + n),
    )
    assert verdict(one, "flush_requests") is None and verdict(one, "flush_requests_per_s") is None
    assert "flush_requests_per_s" in one["shown"] and "per second" in one["notes"][0]


@pytest.mark.parametrize("work", [[0, 9, 9, 9, 9], [-1, 9, 9, 9, 9], [None, 9, 9, 9, 9]])
def test_work_that_is_not_known_of_every_run(work: list[float | None]) -> None:
    one = compared(loop(5, 1000), lambda n: loop(work[n - 1], 3000)(n))
    assert "not every one reports its work" in one["notes"][0]
    assert verdict(one, "flush_requests") is verdict(one, "flush_requests_per_s") is None


def test_another_side_that_is_slower_changes_nothing() -> None:
    three = [*SIDES, parse("slow=quell")]
    sides = {"stock": loop(100, 1000), "quell": loop(200, 1500), "slow": loop(200, 1500, seconds=12)}
    runs = {name: [run(n) for n in FIVE] for name, run in sides.items()}
    one = judge.comparison(plan(own=True), runs, three, emulated=True)
    assert verdict(one, "flush_requests_per_ops") == stats.BETTER and verdict(one, "flush_requests") is None


def test_few_events_are_no_difference_per_unit_either() -> None:
    one = compared(
        lambda n: printed(100, "ops", elapsed_s=10 + n / 50, major_faults=0, flush_requests=0),
        lambda n: printed(200, "ops", elapsed_s=10 + n / 50, flush_requests=3),
    )
    assert verdict(one, "flush_requests_per_ops") == stats.SAME


def test_equal_work_is_compared_as_it_is() -> None:
    one = compared(loop(1000, 1000), loop(1001, 50))
    assert one["notes"] == [] and verdict(one, "flush_requests") == stats.BETTER


def test_files_that_were_not_eligible() -> None:
    def quell(parked: int) -> list[str]:
        one = compared(
            lambda n: sample(elapsed_s=n, file_pages_reclaimed=90000),
            lambda n: sample(elapsed_s=n, file_pages_reclaimed=91000, luf_park=parked),
        )
        return list(one["notes"])

    assert quell(50000) == []
    [note] = quell(3)
    assert "91,000 pages of files on quell" in note and "--data PATH" in note


def test_exit_codes_that_differ() -> None:
    one = compared(lambda n: sample(elapsed_s=n), lambda n: sample(int(n == 2), elapsed_s=n))
    assert one["notes"] == ["The command's exit codes: stock 0 0 0 0 0, quell 0 1 0 0 0."]


def test_default_runs_can_tell_in_every_workload() -> None:
    for item in workload.select(workload.known()):
        assert stats.runs_needed(len(item.matters)) <= 5, item.name
    assert stats.runs_needed(len(judge.OWN_MATTERS) + 2) <= 5
