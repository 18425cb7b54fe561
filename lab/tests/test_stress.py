# SPDX-License-Identifier: GPL-2.0-only
"""Part stress: reading stress-ng's output, without a guest."""

import pytest

from checks import check_stress as stress, steps
from checks.check_stress import Run

METRICS = """\
stress-ng: metrc: [111] stressor       bogo ops real time  usr time  sys time   bogo ops/s     bogo ops/s CPU used per       RSS Max
stress-ng: metrc: [111]                           (secs)    (secs)    (secs)   (real time) (usr+sys time) instance (%)          (KB)
stress-ng: metrc: [111] tlb-shootdown        19      4.74      0.81      2.40         4.01           5.93        67.66          4468
stress-ng: metrc: [111] mmap                  0      8.49      0.00      0.35         0.00           0.00         4.19          2408
stress-ng: metrc: [111] oom-pipe             12      2.99      0.00      0.00         4.01           0.00         0.00          1944
stress-ng: metrc: [111] userfaultfd           9      2.74      0.01      0.23         3.29          38.88         8.46          2288
stress-ng: metrc: [111] miscellaneous metrics:
stress-ng: metrc: [111] userfaultfd    290388372.21 nanosecs per page fault (geometic mean of 1 instances)
"""
GOOD = Run("pass", {"vm": 10.0})


@pytest.mark.parametrize(("status", "said", "log", "run"), [
    ("fail", "stress-ng: info:  [5] dispatching\nstress-ng: fail:  [7] mmap: page is not zero\n",
     "[ 1.0] WARNING: CPU: 0 at mm/x.c:1\n",
     Run("fail", {}, ("fail: mmap: page is not zero", "[ 1.0] WARNING: CPU: 0 at mm/x.c:1"))),
    ("skip", "stress-ng: info:  [9] numa: stressor will be skipped, only 1 node\n", "", Run("skip")),
    # A run without any stressor is skipped, not passed.
    ("pass", "stress-ng: error: [9] No stress workers invoked\n", "", Run("skip")),
    ("fail", "", "Memory failure: 0xa40b: Sending SIGBUS to stress-ng-madvi:95 due to hardware memory corruption\n",
     Run("skip")),
])  # fmt: skip
def test_run(status: str, said: str, log: str, run: Run) -> None:
    assert stress.read_run(steps.Said(status, said, log), "tcg") == run


def test_rates_by_kind_of_machine() -> None:
    """Stressors with 9 and with 0 operations have no rate, and one without CPU time none of that."""
    found = {accel: stress.read_run(steps.Said("pass", METRICS), accel).rates for accel in ("kvm", "tcg")}
    assert found == {"kvm": {"tlb-shootdown": 4.01, "oom-pipe": 4.01}, "tcg": {"tlb-shootdown": 5.93}}


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
    assert fast is good and words in said


def _judge(**runs: list[Run]) -> tuple[str, str]:
    case = stress.judge("vm", runs, 0.25)
    return case.status, case.why


def test_what_counts_as_a_failure() -> None:
    warned = Run("pass", {"vm": 10.0}, ("[ 1.5] WARNING: at mm/x.c:12 pid 7",))
    assert _judge(stock=[GOOD], quell=[GOOD], debug=[GOOD]) == ("passed", "")
    status, why = _judge(stock=[GOOD], quell=[warned])
    assert status == "failed"
    assert why.startswith("on quell: ")
    assert _judge(stock=[GOOD], quell=[GOOD], debug=[warned])[0] == "failed"
    # The same complaint, with other numbers.
    same = Run("pass", {"vm": 10.0}, ("[ 9.1] WARNING: at mm/x.c:12 pid 99",))
    assert _judge(stock=[same], quell=[warned])[0] == "skipped"
    assert _judge(stock=[same], quell=[GOOD])[0] == "passed"
    assert _judge(stock=[GOOD] * 3, quell=[Run("pass", {"vm": 1.0})] * 3) == ("failed", "throughput -90%, SLOWER")
    assert _judge(stock=[Run("skip")], quell=[Run("skip")])[0] == "skipped"
    assert _judge(stock=[GOOD, Run("skip")], quell=[GOOD] * 2) == ("passed", "")
    assert _judge(stock=[Run("pass", {"vm": 10.0, "fork": 900.0})] * 3, quell=[GOOD] * 3) == ("passed", "")


def test_all_together_is_one_step() -> None:
    names = list(stress.STRESSORS)
    step = stress.step_of(stress.TOGETHER, names, 5)
    assert all(f"--{name} 1 " in step.command for name in names)
    assert "--verify" in step.command
    alone = stress.step_of("vm", ["vm"], 5)
    assert alone.command.startswith("stress-ng --vm 2 --vm-bytes 64M --timeout 5 ")
