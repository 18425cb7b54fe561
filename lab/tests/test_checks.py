# SPDX-License-Identifier: GPL-2.0-only
"""Reading the results of tests inside a guest."""

from pathlib import Path
from typing import Any

import pytest

from guests import Patch
from checks import benches, check_kunit as kunit, check_selftests as selftests, tap
from checks.cases import Results
from quell import machine
from quell.paths import Cache


def _report(**suites: dict[str, str]) -> dict[str, Any]:
    """A report in the form of ``kunit.py parse --json``."""
    groups = [
        {"name": suite, "test_cases": [{"name": case, "status": status} for case, status in cases.items()]}
        for suite, cases in suites.items()
    ]
    return {"name": "Kunit Test Group", "sub_groups": groups, "test_cases": []}


@pytest.mark.parametrize(("text", "counts", "why"), [
    (
        "ok 1 luf_stale release: 9 reads\nnot ok 2 luf_stale write: 1 stale\nok 3 - other # SKIP no\n1..3\n",
        (["luf_stale release: 9 reads"], ["luf_stale write: 1 stale"], ["other"]), "",
    ),
    ("ok 1 a\n", (["a"], ["the test ended early, after 1 results"], []), ""),
    ("ok 1 a\n1..2\n", (["a"], ["2 results were planned, 1 came"], []), ""),
    ("", ([], ["the test ended early, after 0 results"], []), ""),
    ("1..0 # SKIP this is no Quell kernel\n", ([], [], ["1..0 # SKIP this is no Quell kernel"]), ""),
    (
        "ok 1 a\n# of a\nnot ok 2 b c\n#   1 of 2\n#   and more\nok 3 d\n# of d\n1..3\n",
        (["a", "d"], ["b c"], []), "#   1 of 2\n#   and more",
    ),
    (
        "ok 1 a\nBail out! pagemap: Bad file descriptor\n",
        (["a"], ["the test ended early, after 1 results"], []), "Bail out! pagemap: Bad file descriptor",
    ),
    (
        "@quell test x\nok 1 a\n1..1\n@quell test y\nok 1 a\n",
        (["x: a", "y: a"], ["y: the test ended early, after 1 results"], []), "",
    ),
])  # fmt: skip
def test_tap(text: str, counts: tuple[list[str], ...], why: str) -> None:
    results = Results()
    tap.count(results, machine.GuestResult(1, text, "", ""))
    found = [[case.name for case in results.cases if case.status == word] for word in ("passed", "failed", "skipped")]
    # An exit code without a failed test is one.
    assert found == [counts[0], counts[1] or ["exit code 1"], counts[2]]
    assert not why or why in [case.why for case in results.cases]


def test_kernel_that_complains_has_failed(cache: Cache, monkeypatch: Patch) -> None:
    said = "[1.0] WARNING: CPU: 1 PID: 7 at mm/mempolicy.c:2067\n[1.0] Call Trace:\n"
    guests = [machine.GuestResult(0, "", "", text) for text in ("[0.1] all is well\n", said)]
    monkeypatch.setattr(machine, "run_script", lambda *_, **__: guests.pop(0))
    results, bench = Results(), benches.Bench(Path("image"), cache)
    bench.guest(results, "true")
    assert not results.cases
    bench.guest(results, "true")
    [case] = results.cases
    assert case.status == "failed" and "mempolicy" in case.name and "Call Trace" in case.why


@pytest.mark.parametrize(("luf", "bad"), [
    ({"b": "PASS", "c": "SKIP", "d": "FAIL"}, ("luf.d", "KUnit: FAIL\nsaid")),
    ({"b": "TEST_CRASHED"}, ("luf.b", "KUnit: TEST_CRASHED\nsaid")),
    ({}, ("luf", "the suite did not run")),
])  # fmt: skip
def test_kunit(luf: dict[str, str], bad: tuple[str, str], monkeypatch: Patch) -> None:
    monkeypatch.setattr(kunit, "SUITES", ("quell", "luf"))
    cases = kunit.read(_report(quell={"a": "PASS"}, luf=luf), "said")
    assert [(case.name, case.why) for case in cases if case.status == "failed"] == [bad]
    assert [case.name for case in cases if case.status == "skipped"] == ["luf.c"] * ("c" in luf)


def test_linux_suites_become_rows() -> None:
    """Quell's own suites are left out; a status other than passed and skipped is "not ok"."""
    found = kunit.outcomes(_report(slub={"a": "PASS", "b": "SKIP"}, luf={"c": "PASS"}, list={"d": "ERROR"}))
    assert {name: (one.status, one.results) for name, one in found.items()} == {
        "slub": ("pass", {"a": "ok", "b": "skip"}),
        "list": ("fail", {"d": "not ok"}),
    }


def test_linux_suite_that_one_kernel_lacks_is_a_difference() -> None:
    [stock] = kunit.outcomes(_report(slub={"a": "PASS"})).values()
    case = selftests.case("kunit/slub", [(stock, selftests.Outcome("missing"))])
    assert case.status == "failed"
