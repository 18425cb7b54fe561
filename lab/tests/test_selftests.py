# SPDX-License-Identifier: GPL-2.0-only
"""Part selftests: reading the guests' output, without a guest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from guests import Patch
from checks import check_selftests as selftests, steps
from checks.check_selftests import Outcome, Selftest
from quell import machine, watch
from quell.errors import QuellError, UsageError
from quell.paths import Cache
from quell.source import Source

from conftest import Fake, fails, write_files

KTAP = """TAP version 13
# [INFO] detected THP size: 2048 KiB
ok 1 No leak from parent into child
not ok 2 Leak from parent into child
ok 3 # SKIP MADV_PAGEOUT did not work
# ok 4 nested in a script's output
ok 5 - mapping at 0x7f1200000000 is gone
ok 6 mapping at 0x7f3400000000 is gone
ok 7 # XFAIL mremap - may fail
not ok 8 # SKIP
Bail out! 1 out of 8 tests failed
# Totals: pass:5 fail:1 xfail:1 xpass:0 skip:2 error:0
"""
UFFD = """Testing UFFDIO_API (with syscall)... done
Testing register-ioctls on anon... skipped [reason: feature missing]
Testing zeropage on hugetlb... failed [reason: data mismatch]
Userfaults unit tests: pass=1, skip=1, fail=1 (total=3)
"""
KHUGEPAGED = """Save THP and khugepaged settings... \x1b[32mOK\x1b[0m
Run test: collapse_full (khugepaged:anon)
Allocate huge page.... \x1b[32mOK\x1b[0m
Collapse fully populated PTE table.... \x1b[31mFail\x1b[0m
Run test: collapse_empty (khugepaged:anon)
Do not collapse empty PTE table.... \x1b[32mOK\x1b[0m
Run test: collapse_swapin (madvise:anon)
Swapout one page... \x1b[33mSkip\x1b[0m
"""


@pytest.mark.parametrize(("said", "results"), [
    (KTAP, {
        "No leak from parent into child": "ok", "Leak from parent into child": "not ok",
        "MADV_PAGEOUT did not work": "skip", "nested in a script's output": "ok",
        "mapping at ADDRESS is gone": "ok", "mapping at ADDRESS is gone (2)": "ok",
        "mremap - may fail": "xfail", "unnamed": "not ok",
    }),
    # The names of one harness.
    ("#  RUN           migration.private_anon ...\n#            OK  migration.private_anon\n"
     "ok 1 migration.private_anon\nok 2 migration.shared_anon # SKIP\n",
     {"migration.private_anon": "ok", "migration.shared_anon": "skip"}),
    (UFFD, {
        "UFFDIO_API (with syscall)": "ok", "register-ioctls on anon": "skip", "zeropage on hugetlb": "not ok",
    }),
    # The worst step counts.
    (KHUGEPAGED, {
        "collapse_full (khugepaged:anon)": "not ok", "collapse_empty (khugepaged:anon)": "ok",
        "collapse_swapin (madvise:anon)": "skip",
    }),
    ("looks ok 3 times\nok then\nnothing is ok\n\0\xff\nok\nnot ok\n", {}),
    ("", {}),
], ids=["KTAP", "harness", "userfaultfd", "khugepaged", "no result", "nothing"])  # fmt: skip
def test_results(said: str, results: dict[str, str]) -> None:
    assert selftests.read_results(said) == results


A, B, C = (Selftest("mm", name) for name in "abc")
LOG = "[    1.0] quell step %d\r\n"
PANIC = "[    2.0] BUG: unable to handle page fault\r\n[    2.1] Oops: 0002 [#1]\r\n"
COMPLAINT = {"the kernel's log is clean": "not ok"}
PASS = Outcome("pass", {"x": "ok", "y": "ok"})
FAIL = Outcome("fail", {"x": "ok", "y": "not ok"})
CRASH = Outcome("crash", {"x": "ok"})
SKIP = Outcome("skip")
LACKS = Outcome("pass", {"x": "ok"})
CLEAN, WARNED = Outcome("pass"), Outcome("pass", COMPLAINT)
SAME, WORSE, BETTER = (PASS, PASS), (PASS, FAIL), (FAIL, PASS)


def _read(stdout: str, console: str, tests: Sequence[Selftest]) -> dict[str, Outcome]:
    found = steps.read(stdout, console, [selftests.step_of(test) for test in tests])
    return {name: selftests.read_outcome(said) for name, said in found.items()}


def test_guest_says_how_each_went() -> None:
    said = "\n@quell begin 0\nok 1 x\n\n@quell end 0 0\n\n@quell begin 1\n"
    found = _read(f"{said}no newline\n@quell end 1 4\n", LOG % 0 + LOG % 1, [A, B, C])
    assert list(found) == ["mm/a", "mm/b"]  # c never began
    assert (found["mm/a"].status, found["mm/a"].results) == ("pass", {"x": "ok"})
    assert found["mm/b"].status == "skip"
    # A test takes the guest with it.
    said += "ok 1 y\n"
    crashed = _read(said, LOG % 0 + LOG % 1 + PANIC, [A, B, C])["mm/b"]
    assert (crashed.status, crashed.results["y"]) == ("crash", "ok")
    sysrq = "sysrq: Show Blocked State\r\nsysrq: Trigger a crash\r\nKernel panic - not syncing\r\n"
    for console in (LOG % 1 + sysrq, LOG % 0 + LOG % 1):
        assert _read(said, console, [A, B])["mm/b"].status == "hang"
    assert _read("", PANIC, [A]) == {}


def test_kernel_that_complains_is_a_result() -> None:
    said = "\n@quell begin 0\n\n@quell end 0 0\n\n@quell begin 1\n\n@quell end 1 0\n"
    log = LOG % 0 + "WARNING: CPU: 1 PID: 7 at mm/rmap.c:9\r\n" + LOG % 1 + "rcu: INFO: a stall\r\n"
    found = _read(said, log + "watchdog: BUG: soft lockup - CPU#0\r\n", [A, B])
    assert (found["mm/a"].results, found["mm/b"].results) == (COMPLAINT, {})
    # It dies between two tests.
    found = _read(said.partition("\n@quell begin 1")[0], LOG % 0 + PANIC, [A, B])
    assert {name: one.results for name, one in found.items()} == {"mm/a": COMPLAINT}


def test_differences() -> None:
    assert selftests.differences(PASS, PASS) == selftests.differences(FAIL, FAIL) == []
    assert selftests.differences(PASS, FAIL) == ["as a whole", "y"]
    assert selftests.differences(PASS, LACKS) == ["y"]
    # Missing results of a test that was cut short are ignored; its status differs.
    assert selftests.differences(PASS, CRASH) == ["as a whole"]
    assert selftests.differences(Outcome("timeout", {}), Outcome("timeout", {"x": "ok"})) == []
    # Those of several rounds.
    assert selftests.judge([WORSE, WORSE, SAME])["y"] == (["ok", "ok", "ok"], ["not ok", "not ok", "ok"])


@pytest.mark.parametrize(("rounds", "counts"), [
    ([SAME], False), ([WORSE], True), ([BETTER], True),
    ([WORSE, SAME, SAME], False), ([WORSE, WORSE, SAME], True),
    # Flaky on stock too; a third as often is enough.
    ([WORSE, BETTER, SAME], False), ([WORSE, BETTER, WORSE], False), ([WORSE] * 8 + [BETTER], True),
    ([WORSE] * 6 + [BETTER] * 3, False), ([WORSE] * 4 + [SAME] * 5, False),
    # A dead kernel counts once, and so does a complaint.
    ([(PASS, CRASH), SAME, SAME], True), ([(CRASH, PASS), SAME, SAME], False),
    ([(CLEAN, WARNED), (CLEAN, CLEAN), (CLEAN, CLEAN)], True), ([(WARNED, WARNED)], False),
])  # fmt: skip
def test_difference_counts_if_it_comes_again(rounds: list[selftests.Round], counts: bool) -> None:
    assert bool(selftests.judge(rounds)) == counts


DIFFERENT = "y: stock ok, ok, ok; Quell not ok, not ok, not ok"
NOTHING = Outcome("pass", {"x": "skip"})


@pytest.mark.parametrize(("rounds", "status", "why", "same"), [
    ([SAME], "passed", "", "3 of 3"),
    # A test that fails on both counts as passed if some of its results are ok.
    ([(FAIL, FAIL)], "passed", "", "3 of 3"),
    ([WORSE, SAME, SAME], "passed", "", "3 of 3"),
    ([WORSE] * 3, "failed", f"as a whole: stock pass, pass, pass; Quell fail, fail, fail\n{DIFFERENT}", "1 of 3"),
    ([(SKIP, SKIP)], "skipped", "skip on stock too", "1 of 1"),
    ([(NOTHING, NOTHING)], "skipped", "pass on stock too", "2 of 2"),
])  # fmt: skip
def test_cases(rounds: list[selftests.Round], status: str, why: str, same: str) -> None:
    case = selftests.case("mm/a", rounds)
    assert (case.status, case.why) == (status, why)
    assert case.said.endswith(f"{status}, {same} results the same in {len(rounds)} runs")


def test_only_what_differs_runs_again() -> None:
    """A test differs once, in each run, and in each run unless stock has large folios."""
    tests = once, always, large, never = [Selftest("mm", name) for name in ("once", "always", "large", "never")]
    calls: list[tuple[str, list[Selftest]]] = []

    def run_on(kernel: str, tests: Sequence[Selftest], number: int) -> dict[str, Outcome]:
        calls.append((kernel, list(tests)))
        bad = {"quell": [always, large, *([once] if number == 1 else [])], selftests.LARGE: [large]}.get(kernel, [])
        return {test.name: FAIL if test in bad else PASS for test in tests}

    cases = selftests.compare_all(tests, run_on)
    assert [case.status for case in cases] == ["passed", "failed", "skipped", "passed"]
    assert cases[2].why.startswith("as stock with large folios: ") and "y: stock ok, ok" in cases[2].why
    kernels = ("stock", "quell")
    assert calls == [
        *((kernel, tests) for kernel in kernels),
        *((kernel, [once, always, large]) for _ in range(2) for kernel in kernels),
        *((kernel, [always, large]) for _ in range(6) for kernel in kernels),
        *[(selftests.LARGE, [always, large])] * 3,
    ]


@pytest.mark.parametrize(("each", "large", "excused"), [
    (WORSE, [FAIL, FAIL, PASS], True), (WORSE, [FAIL, PASS, PASS], False),
    ((PASS, CRASH), [CRASH] * 3, False), ((CLEAN, WARNED), [WARNED] * 3, False),
    ((PASS, LACKS), [SKIP] * 3, False),
])  # fmt: skip
def test_what_large_folios_excuse(each: selftests.Round, large: list[Outcome], excused: bool) -> None:
    assert selftests.as_large([each] * 9, large) == excused
    # Nor does a rare result of stock.
    assert selftests.as_large([*[each] * 8, each[::-1]], large) == excused


Run = Callable[[str, list[Selftest], int], dict[str, Outcome]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: Patch) -> Run:
    """Runs tests on a kernel."""
    accel = machine.Accelerator("tcg", "it is a test")
    monkeypatch.setattr(machine, "choose_accelerator", lambda *_: accel)
    images = dict.fromkeys(selftests.KERNELS, tmp_path / "image")
    return partial(selftests.run, images, tmp_path / "disk", tmp_path / "logs", Cache(tmp_path))


def test_stock_boots_with_large_folios(run: Run, monkeypatch: Patch) -> None:
    appended: list[bool] = []

    def boot(_kernel: str, _image: Path, guest: machine.Machine, *_: Any, **__: Any) -> dict[str, steps.Said]:
        appended.append("thp_anon=16K-64K:always;2M:inherit" in guest.append)
        return {A.name: steps.Said("pass")}

    monkeypatch.setattr(steps, "boot", boot)
    for kernel in (*selftests.KERNELS, selftests.LARGE):
        run(kernel, [A], 1)
    assert appended == [False, False, True]


@dataclass
class _Guest:
    """A guest that runs the driver's tests, or says nothing; some tests kill it."""

    deadly: str = ""
    silent: bool = False
    boots: int = 0

    def __call__(self, _machine: object, _image: Path, job: machine.Job, rundir: Path, **_: object) -> None:
        self.boots += 1
        said = ""
        for line in job.argv[2].splitlines():
            if self.silent or not line.startswith("run "):
                continue
            number, name = line.split()[1], line.split("./")[-1].strip("'")
            said += f"\n@quell begin {number}\n"
            if name == self.deadly:
                break
            said += f"ok 1 it\n\n@quell end {number} 0\n"
        write_files(rundir, {"stdout": said, "console.log": ""})
        if said and not said.endswith(" 0\n"):
            raise watch.GuestTimeout("it hangs")


def test_goes_on_after_the_culprit(run: Run, monkeypatch: Patch, tmp_path: Path) -> None:
    guest = _Guest(deadly="b")
    monkeypatch.setattr(machine, "boot", guest)
    found = run("stock", [A, B, C], 1)
    assert [found[f"mm/{name}"].status for name in "abc"] == ["pass", "hang", "pass"] and len(found) == 3
    assert guest.boots == 2
    assert (tmp_path / "logs/stock/mm-b.1.log").read_text().startswith("hang\n")


def test_guest_that_begins_nothing(run: Run, monkeypatch: Patch) -> None:
    monkeypatch.setattr(machine, "boot", _Guest(silent=True))
    fails(QuellError, "stock kernel did not begin mm/a", run, "stock", [A], 1)

    def missing(*_: object, **__: object) -> None:
        raise UsageError("a program is missing")

    monkeypatch.setattr(machine, "boot", missing)
    fails(UsageError, "is missing", run, "stock", [A], 1)


def test_groups_share_a_guest() -> None:
    many = [Selftest("mm", str(number)) for number in range(selftests._GROUP + 1)]
    wide = Selftest("mm", "wide", cpus=3)
    found = selftests.groups([*many, wide, A])
    assert [len(group) for group in found] == [selftests._GROUP, 1, 1, 1]
    # Tests of KVM have their own kernels.
    assert [len(group) for group in selftests.groups([A, Selftest("kvm", "a"), A])] == [1, 1, 1]


def test_programs_are_known_once() -> None:
    names = [test.name for test in selftests.TESTS]
    assert len(names) == len(set(names))


def test_build_that_fails_names_the_suite(
    source: Source, cache: Cache, monkeypatch: Patch, fake_program: Fake
) -> None:
    suites = (f"tools/testing/selftests/{name}/x" for name in selftests._SUITES)
    write_files(source.tree, dict.fromkeys(("mm/gup_test.h", *suites), ""))
    monkeypatch.setattr("quell.prereq.ensure", lambda _: None)
    fake_program("make", 'case "$*" in *selftests/mm*) echo "cow.c:1:2: error: no"; exit 2;; esac')
    error = fails(QuellError, "the kernel's selftests in mm failed", selftests._build, source, cache)
    assert error.detail == "cow.c:1:2: error: no"
    assert not list(cache.data.glob("selftests-*"))
