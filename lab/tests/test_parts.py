# SPDX-License-Identifier: GPL-2.0-only
"""``quell test`` with small parts: its report, JUnit and KTAP, the record, and signals."""

import re
import signal
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from checks import parts
from checks.cases import Case
from conftest import fails, text_of, until, write_files
from guests import Patch
from quell import cli
from quell.commands import test as test_command
from quell.errors import UsageError
from quell.paths import Cache, repo_root

RUNS = re.compile(r"-m quell \w|^from quell(\.| import .*\b)(cli|commands|generated|report|top)\b", re.M)
CHECKS = {
    "conftest": "from checks.conftest import *",
    "check_one": """
from checks.cases import Case
def test_tap(results):
    results.add(Case("reads [all]", said="9 reads"), Case("nodes", "skipped", "there is one"))
def test_plain(): pass
""",
    "check_two": """
import pytest
from quell.errors import QuellError
@pytest.fixture(scope="module")
def kernel(): raise QuellError("the guest hangs", detail="oops")
def test_a(kernel): pass
def test_b(kernel): pass
def test_c(results): results.check(False, "writes", "one is stale\\nat \\x1b[31m0x7f\\0")
@pytest.mark.full
def test_d(): pass
""",
    "check_three": "def test_nothing(results): pass",
    "check_four": "import nowhere",
    "check_five": "import pytest\ndef test_skips(): pytest.skip('no')",
    "check_six": """
import time
from pathlib import Path
def test_first(): Path("first").open("a").write("x")
def test_waits(folder):
    Path("here").write_text(str(folder))
    if not Path("again").exists(): time.sleep(60)
""",
}
MAIN = """
import sys
from pathlib import Path
from checks import parts
from quell import cli
from quell.commands import test
parts._system = lambda _: "this"
test.CHECKS = Path.cwd() / "parts"
test.PARTS, test.EXTRA = ("one", "two", "three", "four", "five", "six"), ("three", "four", "five", "six")
test._install = lambda _: None
sys.exit(cli.main(["test", *sys.argv[1:]]))
"""
Start = Callable[..., Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start ``quell test`` with these parts."""
    write_files(tmp_path / "parts", {f"{name}.py": text for name, text in CHECKS.items()})
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(repo_root() / "lab"), "QUELL_CACHE": str(Cache().root)}

    def call(*words: str) -> Popen[str]:
        return Popen([sys.executable, "-c", MAIN, *words], cwd=tmp_path, env=env, text=True, stdout=PIPE, stderr=PIPE)

    return call


def run(start: Start, *words: str) -> tuple[int, str]:
    with start(*words) as child:
        out, _ = child.communicate(timeout=300)
        return child.returncode, re.sub(r" in \d+ s$", "", out, flags=re.M)


def test_report_and_files(start: Start, tmp_path: Path) -> None:
    code, out = run(start, "--junit", "a.xml", "--ktap", "a.ktap")
    assert code == 1 and out.splitlines() == [
        "one: 2 passed, 0 failed, 1 skipped",
        "not ok: test_a", "the guest hangs", "oops",
        "not ok: test_c::writes", "one is stale", "at \x1b[31m0x7f\0",
        "two: 0 passed, 2 failed, 1 skipped",
        "2 passed, 2 failed, 2 skipped",
    ]  # fmt: skip
    cases = list(ET.parse(tmp_path / "a.xml").iter("testcase"))
    assert [case.get("name") for case in cases] == "reads (all),nodes,test_plain,test_a,test_b,writes".split(",")
    assert cases[1].get("classname") == "parts.check_one.test_tap"
    assert [child.tag for case in cases for child in case] == ["skipped", "error", "skipped", "failure"]
    assert (tmp_path / "a.ktap").read_text() == """KTAP version 1
1..2
    # Subtest: one
    KTAP version 1
    1..3
    ok 1 test_tap::reads (all)
    ok 2 test_tap::nodes # SKIP there is one
    ok 3 test_plain
ok 1 one
    # Subtest: two
    KTAP version 1
    1..3
    # the guest hangs
    # oops
    not ok 1 test_a
    ok 2 test_b # SKIP as above: the guest hangs
    # one is stale
    # at \x1b[31m0x7f\0
    not ok 3 test_c::writes
not ok 2 two
"""
    assert run(start, "--only", "one") == (0, "one: 2 passed, 0 failed, 1 skipped\n2 passed, 0 failed, 1 skipped\n")


def test_part_that_tests_nothing_has_failed(start: Start, tmp_path: Path) -> None:
    code, out = run(start, "--only", "three", "--only", "four", "--only", "five", "--ktap", "a.ktap")
    assert code == 1 and out.endswith("0 passed, 2 failed, 1 skipped\n") and "No module named 'nowhere'" in out
    assert "not ok: test_nothing\nnothing was tested\nthree: 0 passed, 1 failed" in out and "four: 0 passed, 1 failed" in out
    ktap = (tmp_path / "a.ktap").read_text()
    assert "\n    not ok 1 its file\nnot ok 1 four\n" in ktap and "\nnot ok 2 three\n" in ktap


def test_resume_runs_what_has_not_passed(start: Start, tmp_path: Path) -> None:
    wanted = ["--record", "full.md", "--only", "one", "--only", "two", "--only", "five"]
    run(start, *wanted)
    table = [line for line in (tmp_path / "full.md").read_text().splitlines() if line.startswith("| ")]
    assert [line[2:].split(" | ")[:4] for line in table[1:]] == ["one 2 0 1".split(), "two 0 2 1".split(), "five 0 0 1".split()]
    code, out = run(start, *wanted, "--resume")
    all_out = r"one: passed on [^\n]* with the same inputs\nnot ok: test_a\n(?s:.*)\n0 passed, 2 failed, 2 skipped\n$"
    assert code == 1 and re.match(all_out, out)
    code, out = run(start, "--record", "full.md", "--only", "one", "--resume")
    assert code == 0 and re.match(r"one: passed on .* with the same inputs\n0 passed, 0 failed, 0 skipped\n$", out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_cleans_up(number: signal.Signals, start: Start, tmp_path: Path) -> None:
    with start("--only", "six", "--only", "one") as child:
        assert until(lambda: text_of(tmp_path / "here"), 120)
        child.send_signal(number)
        out, err = child.communicate(timeout=300)
    assert child.returncode == 130 and "quell: interrupted" in err and "six:" not in out
    assert not Path((tmp_path / "here").read_text()).exists()
    (tmp_path / "again").touch()
    # What had passed is not run again.
    code, out = run(start, "--only", "six", "--resume")
    assert code == 0 and out.startswith("six: 2 passed, 0 failed") and text_of(tmp_path / "first") == "x"


@pytest.mark.parametrize(("words", "code"), [
    ("--ktap /no/x", 2), ("--junit /no/x", 2), ("--record /no/x", 2), ("--build no-such", 2), ("--only seven", 2),
])  # fmt: skip
def test_wrong_usage(words: str, code: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(test_command, "_install", lambda _: None)
    assert cli.main(["test", *words.split()]) == code


def test_each_part_is_a_module_with_inputs() -> None:
    assert set(test_command.PARTS) == {path.stem.removeprefix("check_") for path in test_command.CHECKS.glob("check_*.py")}
    assert all(f"\n  {name} " in str(test_command.__doc__) for name in test_command.PARTS)
    assert set(parts._DEPEND_ON_ALL) <= set(test_command.PARTS)
    assert all((repo_root() / name).exists() for name in (*parts._INPUTS, *parts._GUESTS, *parts._COMMANDS))
    for part in set(test_command.PARTS).difference(parts._DEPEND_ON_ALL, parts._RUN_COMMANDS):
        files = {*test_command.CHECKS.glob("*.py"), *test_command.CHECKS.glob("scenarios/*.sh")} - parts._not_for(part)
        assert not [path for path in files if RUNS.search(path.read_text())]


# --- the record ------------------------------------------------------------------

CASES = [Case("reads"), Case("writes", "failed", "it is stale"), Case("nodes", "skipped", "there is one")]


def test_what_passed_is_known_until_something_changes(cache: Cache, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(parts, "_system", lambda _: "this")
    file = tmp_path / "full-test.md"

    def passed(name: str, key: str = "key", full: bool = False) -> str:
        return parts.Record(cache, file, full).passed_on(name, key)

    assert passed("lab") == ""
    for name, cases in (("lab", CASES[:1]), ("vm", CASES), ("models", CASES[2:])):
        parts.Record(cache, file, False).write(name, cases, 9.0, "key")
    assert passed("lab") > "2"
    # Another key; a part that failed; one that skipped all; one that never ran.
    assert not any([passed("lab", "other"), passed("vm"), passed("models"), passed("own"), passed("lab", full=True)])
    row = next(line for line in file.read_text().splitlines() if line.startswith("| vm |"))
    assert row.startswith("| vm | 1 | 1 | 1 | 9 s |") and row.endswith("| there is one (1) |")
    monkeypatch.setattr(parts, "_system", lambda _: "a newer kernel source")
    assert passed("lab") == ""
    file.write_text("{")
    fails(UsageError, "--record should name a record or a new file", passed, "lab")


def test_inputs_change_with_every_file(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(parts, "repo_root", lambda: tmp_path)
    write_files(tmp_path, {"lab/quell/x.py": "1"})

    def changed_by(*names: str) -> set[str]:
        before = {part: parts.inputs(part) for part in test_command.PARTS}
        write_files(tmp_path, dict.fromkeys(names, "2"))
        return {part for part in before if parts.inputs(part) != before[part]}

    assert changed_by("lab/quell/__pycache__/x.pyc", "notes", "docs/full-test.md") == set()
    assert changed_by("lab/tests/test_x.py", "docs/x.md") == set(parts._DEPEND_ON_ALL)
    changed = changed_by("lab/checks/check_w1.py", "lab/checks/check_deb.py", "lab/quell/figures.toml")
    assert changed == {*parts._DEPEND_ON_ALL, "w1"}
    assert changed_by("lab/checks/y.py") == changed_by("lab/checks/x.toml") == set(test_command.PARTS)
    write_files(tmp_path, {"lab/checks/check_vm.py": "import check_w1", "lab/checks/check_w1.py": '"x/y.sh"'})
    assert changed_by("lab/checks/scenarios/x/y.sh", "lab/checks/scenarios/z.sh") == {*parts._DEPEND_ON_ALL, "vm", "w1"}
    assert changed_by("lab/quell/cli.py") == {*parts._DEPEND_ON_ALL, *parts._RUN_COMMANDS}
