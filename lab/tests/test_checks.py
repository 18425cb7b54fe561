# SPDX-License-Identifier: GPL-2.0-only
"""Reading the results of tests inside a guest."""

from __future__ import annotations

from typing import Any

import pytest

from quell import machine
from quell.checks import kunit, selftests, vm


def _report(**suites: dict[str, str]) -> dict[str, Any]:
    """A report in the form of ``kunit.py parse --json``."""
    groups = [
        {
            "name": suite,
            "sub_groups": [],
            "test_cases": [{"name": case, "status": status} for case, status in cases.items()],
        }
        for suite, cases in suites.items()
    ]
    return {"name": "Kunit Test Group", "sub_groups": groups, "test_cases": []}


def test_tap_counts_every_kind() -> None:
    passed, failed, skipped = vm.read_tap(
        "ok 1 luf_stale release: 9 reads\nnot ok 2 luf_stale write: 1 stale\nok 3 - other # SKIP no\n1..3\n"
    )
    assert passed == ["luf_stale release: 9 reads"]
    assert failed == ["luf_stale write: 1 stale"]
    assert skipped == ["other"]


def test_tap_says_why() -> None:
    text = "ok 1 a\n# of a\nnot ok 2 b c\n#   1 of 2\n#   and more\nok 3 d\n# of d\n1..3\n"
    assert vm.tap_comments(text, "b c") == "#   1 of 2\n#   and more"
    assert vm.tap_comments(text, "the test ended early") == ""


def test_a_selftest_that_bails_out_says_why() -> None:
    tally = vm._Tally()
    said = "ok 1 a\nBail out! pagemap: Bad file descriptor\n"
    guest = machine.GuestResult(1, said, "", "", 1.0)
    vm._count(tally, "it", guest)
    assert [case.status for case in tally.cases] == ["passed", "failed"]
    assert "Bail out! pagemap: Bad file descriptor" in tally.details


def test_kernel_that_complains_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "[1.0] WARNING: CPU: 1 PID: 7 at mm/mempolicy.c:2067\n[1.0] Call Trace:\n"
    guests = [machine.GuestResult(0, "", "", text, 1.0) for text in ("[0.1] all is well\n", said)]
    monkeypatch.setattr(machine, "run_script", lambda *_, **__: guests.pop(0))
    tally = vm._Tally()
    vm._guest(tally, "image")
    assert not tally.cases
    vm._guest(tally, "image")
    assert [case.status for case in tally.cases] == ["failed"]
    assert "mempolicy" in tally.details and "Call Trace" in tally.details


def test_tap_that_breaks_off_has_failed() -> None:
    assert vm.read_tap("ok 1 a\n")[1] == ["the test ended early, after 1 results"]
    assert vm.read_tap("ok 1 a\n1..2\n")[1] == ["2 results were planned, 1 came"]
    assert vm.read_tap("")[1]


def test_tap_that_skips_everything_is_skipped() -> None:
    passed, failed, skipped = vm.read_tap("1..0 # SKIP this is no Quell kernel\n")
    assert (passed, failed, len(skipped)) == ([], [], 1)


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two suites, independent of the kernel's."""
    monkeypatch.setattr(kunit, "SUITES", ("quell", "luf"))


@pytest.mark.usefixtures("suites")
def test_kunit_counts() -> None:
    result = kunit.read(_report(quell={"a": "PASS"}, luf={"b": "PASS", "c": "SKIP", "d": "FAIL"}))
    assert (result.passed, result.failed, result.skipped) == (2, 1, 1)
    assert "luf.d: FAIL" in result.details


@pytest.mark.usefixtures("suites")
def test_kunit_crash_is_a_failure() -> None:
    result = kunit.read(_report(quell={"a": "PASS"}, luf={"b": "TEST_CRASHED"}))
    assert result.failed == 1


@pytest.mark.usefixtures("suites")
def test_kunit_suite_that_did_not_run_is_a_failure() -> None:
    result = kunit.read(_report(quell={"a": "PASS"}))
    assert result.failed == 1
    assert "luf did not run" in result.details


def test_linux_suites_become_rows() -> None:
    """Quell's own suites are left out; a status other than passed and skipped is "not ok"."""
    found = kunit.outcomes(_report(slub={"a": "PASS", "b": "SKIP"}, luf={"c": "PASS"}, list={"d": "ERROR"}))
    assert {name: (one.status, one.results) for name, one in found.items()} == {
        "slub": ("pass", {"a": "ok", "b": "skip"}),
        "list": ("fail", {"d": "not ok"}),
    }


def test_linux_suite_that_one_kernel_lacks_is_a_difference() -> None:
    stock, quell = (kunit.outcomes(_report(**suites)) for suites in ({"slub": {"a": "PASS"}}, {}))
    rows = kunit.rows(stock, quell)
    assert [row.name for row in rows] == ["kunit/slub"]
    missing = selftests.Outcome("missing")
    result = selftests.report(rows, {"kunit/slub": [(stock["slub"], missing)]})
    assert (result.passed, result.failed) == (0, 1)
