# SPDX-License-Identifier: GPL-2.0-only
"""Part stress: reading stress-ng's output, without a guest."""

from pathlib import Path

import pytest

from checks import check_stress as stress, steps
from checks.check_stress import Run

DATA = Path(__file__).parent / "data"
ONE = (DATA / "stress-ng-userfaultfd.txt").read_text()
ALL = (DATA / "stress-ng-all.txt").read_text()


def test_rates_by_kind_of_machine() -> None:
    # Stressors with 9 and with 0 operations have no rate.
    assert stress.read_rates(ALL, "tcg") == {"tlb-shootdown": 5.925129}
    assert stress.read_rates(ALL, "kvm") == {"tlb-shootdown": 4.009069}
    assert set(stress.read_rates(ONE, "tcg")) == {"userfaultfd"}
    assert stress.read_rates("", "tcg") == {}
    assert stress.read_rates(ONE[:600], "tcg") == {}


def test_run_that_went_well_failed_or_was_skipped() -> None:
    good = stress.read_run(steps.Said("pass", ONE), "tcg")
    assert (good.status, good.problems) == ("pass", ())
    assert good.rate > 0
    said = "stress-ng: info:  [5] dispatching\nstress-ng: fail:  [7] mmap: page is not zero\n"
    said += "stress-ng: info:  [5] unsuccessful run completed in 2s\n"
    bad = stress.read_run(steps.Said("fail", said, "[ 1.0] WARNING: CPU: 0 at mm/x.c:1\n"), "tcg")
    assert bad.problems == ("fail: mmap: page is not zero", "[ 1.0] WARNING: CPU: 0 at mm/x.c:1")
    said = "stress-ng: info:  [9] numa: stressor will be skipped, only 1 node\n"
    skipped = stress.read_run(steps.Said("skip", said), "tcg")
    assert skipped.problems == ()
    assert skipped.why == "numa: stressor will be skipped, only 1 node"
    # A run without any stressor is skipped, not passed.
    said = "stress-ng: info:  [9] disabled 'oom-pipe' as it may hang or reboot the machine\n"
    said += "stress-ng: error: [9] No stress workers invoked\n"
    log = "Memory failure: 0xa40b: Sending SIGBUS to stress-ng-madvi:95 due to hardware memory corruption\n"
    poisoned = stress.read_run(steps.Said("fail", ONE, log), "tcg")
    assert (poisoned.status, poisoned.problems) == ("skip", ()) and "MADV_HWPOISON" in poisoned.why
    left_out = stress.read_run(steps.Said("pass", said), "tcg")
    assert left_out.status == "skip" and left_out.why.startswith("disabled 'oom-pipe'")


@pytest.mark.parametrize(("stock", "quell", "good", "words"), [
    ([], [1.0], True, "-"),
    ([10.0], [1.0], True, "too few runs"),
    ([10.0, 11.0, 12.0], [9.0, 10.5, 9.5], True, "in the spread"),
    ([10.0, 11.0, 12.0], [8.0, 8.5, 8.7], True, "beyond the spread"),
    ([10.0, 11.0, 12.0], [5.0, 6.0, 7.0], False, "-45%, SLOWER"),
    ([5.0, 6.0, 7.0], [10.0, 11.0, 12.0], True, "+83%, beyond the spread"),
])  # fmt: skip
def test_slower_only_if_every_run_is(stock: list[float], quell: list[float], good: bool, words: str) -> None:
    fast, said = stress.compare_rates(stock, quell, 0.25)
    assert fast is good
    assert words in said


GOOD = Run("pass", 10.0, ())


def _judge(**runs: list[Run]) -> tuple[str, str]:
    case = stress.judge("vm", runs, 0.25)
    return case.status, case.why


def test_what_counts_as_a_failure() -> None:
    warned = Run("pass", 10.0, ("[ 1.5] WARNING: at mm/x.c:12 pid 7",))
    assert _judge(stock=[GOOD], quell=[GOOD], debug=[GOOD]) == ("passed", "")
    status, why = _judge(stock=[GOOD], quell=[warned])
    assert status == "failed"
    assert why.startswith("on quell: ")
    assert _judge(stock=[GOOD], quell=[GOOD], debug=[warned])[0] == "failed"
    # The same complaint, with other numbers.
    same = Run("pass", 10.0, ("[ 9.1] WARNING: at mm/x.c:12 pid 99",))
    assert _judge(stock=[same], quell=[warned])[0] == "skipped"
    assert _judge(stock=[same], quell=[GOOD])[0] == "passed"
    slow = Run("pass", 1.0, ())
    assert _judge(stock=[GOOD] * 3, quell=[slow] * 3) == ("failed", "throughput -90%, SLOWER")
    skipped = Run("skip", 0.0, (), "no nodes")
    assert _judge(stock=[skipped], quell=[skipped]) == ("skipped", "no nodes")


def test_all_together_is_one_step() -> None:
    names = list(stress.STRESSORS)
    step = stress.step_of(stress.TOGETHER, names, 5)
    assert all(f"--{name} 1 " in step.command for name in names)
    assert "--verify" in step.command
    alone = stress.step_of("vm", ["vm"], 5)
    assert alone.command.startswith("stress-ng --vm 2 --vm-bytes 64M --timeout 5 ")
