# SPDX-License-Identifier: GPL-2.0-only
"""Part selftests: reading the guests' output, without a guest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from guests import Patch
from checks import check_selftests as selftests, steps
from checks.check_selftests import Outcome, Selftest, _Bench as Bench
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
    assert found["mm/b"].status == "skip" and "no newline" in found["mm/b"].text
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
    assert selftests.differences(PASS, PASS) == selftests.differences(FAIL, FAIL) == {}
    assert selftests.differences(PASS, FAIL) == {"as a whole": ("pass", "fail"), "y": ("ok", "not ok")}
    assert selftests.differences(PASS, LACKS) == {"y": ("ok", "missing")}
    # Missing results of a test that was cut short are ignored; its status differs.
    assert selftests.differences(PASS, CRASH) == {"as a whole": ("pass", "crash")}
    assert selftests.differences(Outcome("timeout", {}), Outcome("timeout", {"x": "ok"})) == {}
    # Those of several rounds.
    assert set(selftests.judge([WORSE])) == {"as a whole", "y"}
    assert selftests.judge([WORSE, WORSE, SAME])["y"] == ("ok, ok, ok", "not ok, not ok, ok")


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


def test_skipping_everything_says_nothing() -> None:
    nothing = Outcome("pass", {"x": "skip"})
    assert [one.says_nothing() for one in (SKIP, nothing, CLEAN, PASS)] == [True, True, False, False]
    assert selftests.report([A], {"mm/a": [(nothing, nothing)]})[0].status == "skipped"


def test_cases() -> None:
    tests = [*(Selftest("mm", name) for name in "abcde"), Selftest("mm", "slow", hopeless="it takes a day")]
    each = ([SAME], [(FAIL, FAIL)], [WORSE] * 3, [(SKIP, SKIP)], [WORSE, SAME, SAME])
    rounds = {test.name: list(one) for test, one in zip(tests, each, strict=False)}
    cases = {case.name: case for case in selftests.report(tests, rounds)}
    # A test that fails on both counts as passed if some of its results are ok.
    assert {name: (case.status, case.why) for name, case in cases.items() if case.status != "failed"} == {
        "mm/a": ("passed", ""), "mm/b": ("passed", ""), "mm/d": ("skipped", "skip on stock too"),
        "mm/e": ("passed", ""), "mm/slow": ("skipped", "it takes a day"),
    }  # fmt: skip
    different = "y: stock ok, ok, ok; Quell not ok, not ok, not ok"
    assert different in cases["mm/c"].why and different in cases["mm/c"].said
    assert cases["mm/a"].said.split()[1:5] == ["pass", "2/0/0", "pass", "2/0/0"]
    for name, words in (
        ("a", "same, 3 of 3"), ("b", "same: fail on both,"), ("c", "DIFFERENT in 3 runs, 1 of 3"),
        ("d", "same: skipped,"), ("e", "same (flaky: run 3 times),"),
    ):  # fmt: skip
        assert f" {words}" in cases[f"mm/{name}"].said
    assert "rerun: y: stock ok; Quell not ok in run 1" in cases["mm/e"].said


def test_only_what_differs_runs_again() -> None:
    calls = []

    def run_on(kernel: str, tests: Sequence[Selftest], number: int) -> dict[str, Outcome]:
        calls.append((kernel, [test.name for test in tests], number))
        bad = kernel == "quell" and number == 1
        return {test.name: FAIL if bad and test is B else PASS for test in tests}

    rounds, large = selftests.compare_all([A, B, Selftest("mm", "slow", hopeless="why")], run_on)
    assert calls[:2] == [("stock", ["mm/a", "mm/b"], 1), ("quell", ["mm/a", "mm/b"], 1)]
    assert calls[2:] == [(kernel, ["mm/b"], n) for n in (2, 3) for kernel in ("stock", "quell")]
    assert [len(rounds[name]) for name in ("mm/a", "mm/b")] == [1, 3] and large == {}


def test_what_large_folios_do_on_stock_as_well_is_told_apart() -> None:
    def run_on(kernel: str, tests: Sequence[Selftest], _number: int) -> dict[str, Outcome]:
        bad = {"quell": [A, B], selftests.LARGE: [A]}.get(kernel, [])
        return {test.name: FAIL if test in bad else PASS for test in tests}

    rounds, large = selftests.compare_all([A, B, C], run_on)
    assert [len(rounds[name]) for name in ("mm/a", "mm/b", "mm/c")] == [9, 9, 1]
    assert large == {"mm/a": [FAIL] * 3, "mm/b": [PASS] * 3}
    assert selftests.as_large(rounds["mm/a"], large["mm/a"]) == ["as a whole", "y"]
    a, b, c = selftests.report([A, B, C], rounds, large)
    assert [case.status for case in (a, b, c)] == ["skipped", "failed", "passed"]
    assert "as stock with large folios, in 9 runs" in a.said and "DIFFERENT in 9 runs" in b.said
    assert a.why.startswith("as stock with large folios: ") and "y: stock ok, ok" in a.why

@pytest.mark.parametrize(("each", "large", "excused"), [
    (WORSE, [FAIL, FAIL, PASS], ["as a whole", "y"]), (WORSE, [FAIL, PASS, PASS], []),
    ((PASS, CRASH), [CRASH] * 3, []), ((CLEAN, WARNED), [WARNED] * 3, []),
    # A skipped test explains no missing result.
    ((PASS, LACKS), [SKIP] * 3, []),
])  # fmt: skip
def test_what_large_folios_excuse(each: selftests.Round, large: list[Outcome], excused: list[str]) -> None:
    assert selftests.as_large([each] * 9, large) == excused


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: Patch) -> Bench:
    accel = machine.Accelerator("tcg", "it is a test")
    monkeypatch.setattr(machine, "choose_accelerator", lambda *_: accel)
    images = dict.fromkeys((*selftests.KERNELS, selftests.LARGE), tmp_path / "image")
    return Bench(images, tmp_path / "disk", tmp_path / "logs/selftests", Cache(tmp_path))


def test_stock_boots_with_large_folios(bench: Bench, monkeypatch: Patch) -> None:
    appended: Any = []
    monkeypatch.setattr(steps, "boot", lambda *a, **k: appended.append(a[2].append) or {})
    for kernel in bench.images:
        bench.boot(kernel, [A])
    assert ["thp_anon=16K-64K:always;2M:inherit" in words for words in appended] == [False, False, True]


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


def test_goes_on_after_the_culprit(bench: Bench, monkeypatch: Patch, tmp_path: Path) -> None:
    guest = _Guest(deadly="b")
    monkeypatch.setattr(machine, "boot", guest)
    found = bench.run("stock", [A, B, C])
    assert [found[f"mm/{name}"].status for name in "abc"] == ["pass", "hang", "pass"] and len(found) == 3
    assert guest.boots == 2
    assert (tmp_path / "logs/selftests/stock/mm-b.log").read_text().startswith("hang\n")


def test_guest_that_begins_nothing(bench: Bench, monkeypatch: Patch) -> None:
    monkeypatch.setattr(machine, "boot", _Guest(silent=True))
    fails(QuellError, "stock kernel did not begin mm/a", bench.run, "stock", [A])

    def missing(*_: object, **__: object) -> None:
        raise UsageError("a program is missing")

    monkeypatch.setattr(machine, "boot", missing)
    fails(UsageError, "is missing", bench.run, "stock", [A])


def test_groups_share_a_guest() -> None:
    many = [Selftest("mm", str(number)) for number in range(selftests._GROUP + 1)]
    wide = Selftest("mm", "wide", cpus=3)
    found = selftests.groups([*many, wide, A])
    assert [len(group) for group in found] == [selftests._GROUP, 1, 1, 1]
    # Tests of KVM have their own kernels.
    assert [len(group) for group in selftests.groups([A, Selftest("kvm", "a"), A])] == [1, 1, 1]
    assert found[2] == [wide]
    assert selftests.groups([]) == []


def test_programs_are_known_once(tmp_path: Path) -> None:
    names = [test.name for test in selftests.TESTS]
    assert len(names) == len(set(names))
    known = ("mm/cow", "mm/write_to_hugetlbfs", "mm/run_vmtests.sh", "kvm/x86_64/state_test")
    write_files(tmp_path, dict.fromkeys((*known, "mm/brand-new", "kvm/x86_64/newer"), ""))
    assert selftests._unknown(tmp_path) == ["kvm/x86_64/newer", "mm/brand-new"]


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
