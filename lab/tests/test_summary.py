# SPDX-License-Identifier: GPL-2.0-only
"""The summaries of ``quell test``, and the parts that --resume leaves out."""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from quell import cli
from quell.checks import Case, CheckResult, lab, summary
from quell.checks.summary import Part
from quell.commands import test as test_command
from quell.errors import QuellError
from quell.paths import Cache, repo_root

CASES = [
    Case("reads", seconds=2.5),
    Case("writes", "failed", "one is stale\nat \x1b[31m0x7f\0"),
    Case("nodes", "skipped", "there is one"),
]
PARTS = [
    Part("lab", CheckResult(300, 0, 2), 60.0),
    Part("vm", CheckResult.of(CASES), 9.0),
    Part("w1", CheckResult(2, 1, 0, "mm/luf.c: bad"), 1.0),
    Part("models", CheckResult(0, 0, 0), 0.0, "2026-01-01 10:00"),
]


def test_ktap_of_all_parts() -> None:
    lines = summary.ktap(PARTS).splitlines()
    assert lines[:2] == ["KTAP version 1", "1..4"]
    assert "    # Subtest: vm" in lines
    assert "    ok 1 lab" in lines
    assert "    not ok 2 writes" in lines
    assert "    ok 3 nodes # SKIP there is one" in lines
    assert [line for line in lines if not line.startswith(" ")][2:] == [
        "ok 1 lab", "not ok 2 vm", "not ok 3 w1", "ok 4 models # SKIP",
    ]  # fmt: skip
    assert "    # mm/luf.c: bad" in lines


def test_junit_is_read_by_others(tmp_path: Path) -> None:
    pytest.importorskip("junitparser")
    file = tmp_path / "results.xml"
    summary.write_junit(PARTS, file)
    root = ET.parse(file).getroot()
    assert [root.get(word) for word in ("tests", "failures", "skipped")] == ["6", "2", "2"]
    suites = {suite.get("name"): suite for suite in root}
    said = suites["lab"].find("testcase/system-out")
    assert said is not None
    assert said.text == "300 passed, 0 failed, 2 skipped"
    assert list(suites) == ["lab", "vm", "w1", "models"]
    vm = suites["vm"]
    assert [vm.get(word) for word in ("tests", "failures", "skipped")] == ["3", "1", "1"]
    failure = vm.find("testcase/failure")
    assert failure is not None
    assert failure.text == "one is stale\nat ?[31m0x7f?"
    skipped = suites["models"].find("testcase/skipped")
    assert skipped is not None
    assert skipped.get("message") == "passed on 2026-01-01 10:00 with the same inputs"


def test_what_passed_is_known_until_something_changes(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "_system", lambda _: "this")
    file = tmp_path / "full-test.md"

    def passed(name: str, key: str, full: bool = False) -> str:
        return summary.Record(cache, file, full).passed_on(name, key)

    assert passed("lab", "key") == ""
    for part in PARTS:
        summary.Record(cache, file, False).write(part, "key")
    assert passed("lab", "key") > "2"
    # Another key; a part that failed; one without checks; one that never ran.
    assert not any([passed("lab", "other"), passed("vm", "key"), passed("models", "key"), passed("own", "key")])
    assert passed("lab", "key", full=True) == ""
    row = next(line for line in file.read_text().splitlines() if line.startswith("| vm |"))
    assert row.startswith("| vm | 1 | 1 | 1 | 9 s |") and row.endswith("| there is one (1) |")
    monkeypatch.setattr(summary, "_system", lambda _: "a newer kernel source")
    assert passed("lab", "key") == ""
    file.write_text("{")
    assert passed("lab", "key") == ""


def test_inputs_change_with_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "repo_root", lambda: tmp_path)
    for folder in ("lab/quell", "lab/tests", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lab/quell/x.py").write_text("1")

    def inputs() -> list[str]:
        return [summary.inputs(part) for part in test_command.PARTS]

    first = inputs()
    (tmp_path / "lab/quell/__pycache__").mkdir()
    (tmp_path / "lab/quell/__pycache__/x.pyc").write_text("1")
    (tmp_path / "notes").write_text("1")
    (tmp_path / "docs/full-test.md").write_text("1")
    assert inputs() == first
    (tmp_path / "lab/tests/test_x.py").write_text("1")
    (tmp_path / "docs/x.md").write_text("1")
    changed = {
        part for part, old, new in zip(test_command.PARTS, first, inputs(), strict=True) if old != new
    }
    assert {"lab", "export", "report"} <= changed and not changed & {"vm", "builds", "models"}
    (tmp_path / "lab/quell/x.py").write_text("2")
    assert all(old != new for old, new in zip(first, inputs(), strict=True))


def test_what_parts_depend_on_is_there() -> None:
    assert set(summary._INPUTS_OF) <= set(test_command.PARTS)
    for names in summary._INPUTS_OF.values():
        assert all((repo_root() / name).exists() for name in names)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[str]]]:
    """Run ``quell test`` with two parts; the second fails. The exit code, and the parts that ran."""
    ran: list[str] = []
    answers = {"lab": CheckResult.of([CASES[0]]), "vm": QuellError("the guest hangs")}

    def one(name: str, _cache: Cache, _full: bool, *_: object) -> CheckResult:
        ran.append(name)
        answer = answers[name]
        return CheckResult(0, 1, 0, answer.message) if isinstance(answer, QuellError) else answer

    monkeypatch.setattr(test_command, "PARTS", {"lab": "", "vm": ""})
    monkeypatch.setattr(test_command, "run_part", one)

    def call(*words: str) -> tuple[int, list[str]]:
        ran.clear()
        parser = argparse.ArgumentParser()
        test_command.add_arguments(parser)
        return test_command.main(parser.parse_args(words)), list(ran)

    return call


def test_resume_runs_what_has_not_passed(
    run: Callable[..., tuple[int, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == (1, ["lab", "vm"])
    assert run("--resume") == (1, ["vm"])
    assert "lab: passed on " in capsys.readouterr().out
    assert run("--resume", "--full") == (1, ["lab", "vm"])
    assert run() == (1, ["lab", "vm"])


def test_part_that_skips_all_runs_again(
    run: Callable[..., tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_command, "run_part", lambda *_: CheckResult(0, 0, 5))
    assert run()[0] == 0
    record = summary.Record(Cache(), None, False)
    assert not any(record.passed_on(name, summary.inputs(name)) for name in test_command.PARTS)


def test_part_that_tests_nothing_has_failed(monkeypatch: pytest.MonkeyPatch, cache: Cache) -> None:
    monkeypatch.setattr(lab, "run", lambda _: CheckResult(0, 0, 0))
    result = test_command.run_part("lab", cache)
    assert (result.failed, result.details) == (1, "lab: nothing was tested\n")


def test_summary_is_written_and_where_it_cannot_be_said_at_once(
    run: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    file = tmp_path / "results.ktap"
    assert run("--ktap", str(file))[0] == 1
    assert "not ok 2 vm" in file.read_text()
    with pytest.raises(QuellError, match="is no folder") as error:
        run("--ktap", str(tmp_path / "nowhere/x"))
    assert error.value.exit_code == 2


def test_cli_knows_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["test", "--help"])
    out = capsys.readouterr().out
    assert all(word in out for word in ("--junit", "--ktap", "--resume"))
