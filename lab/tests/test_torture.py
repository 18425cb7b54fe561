# SPDX-License-Identifier: GPL-2.0-only
"""Part torture: reading a guest's output, without a guest."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from checks import check_torture as torture
from guests import Patch, guest_result
from quell import machine, watch
from quell.paths import Cache

GOOD = """# 2 CPUs, 2 nodes, seed 7
# drain: 12 rounds
# 1000 reads checked in 2.0 s, 500 per second
ok 1 luf_torture reads: 1000 checked in 12 rounds, 0 more could not be done
1..1
"""
STALE = """# VIOLATION: by user half after 0.120 s: write, shared paged out, 8 pages (read)
#   word 7 at 0x7f0000000038 on CPU 1 is 4c00000001000007: generation 1 of file 0, word 7
# 90 reads checked in 0.2 s, 450 per second
not ok 1 luf_torture reads: 90 checked in 3 rounds, 0 more could not be done
1..1
"""
BY_LEDGER = "# VIOLATION: by ledger after 0.050 s\n"
LEDGER = "[    3.1] luf_debug: VIOLATION: a frame is freed: mm 0001 address 0x7f, CPUs 1\r\n"
END = "[   64.0] luf_torture: End of test: SUCCESS\r\n"
LOCKUP = "[   40.0] watchdog: BUG: soft lockup - CPU#0 stuck for 23s!"
HALF = "luf_torture: VIOLATION: word 3 of frame 4711 (order 0) is 0, not f4\r\n"
FOCUSED = "not ok 3 luf_stale write: 9 reads, 2 stale\n# VIOLATION: by luf_stale after 1.20 s\n"
GAVE_UP = "Bail out! swapon: Cannot allocate memory\n# VIOLATION: by rmap_batch after 0.30 s\n"


@pytest.mark.parametrize(("stdout", "console", "oops", "by", "what", "seconds"), [
    (GOOD, END, [], "", "", 0),
    (STALE, END, [], "user half", "write, shared paged out", 0.12),
    (FOCUSED, END, [], "luf_stale", "luf_stale write: 9 reads, 2 stale", 1.2),
    # The first to find it counts.
    (BY_LEDGER + STALE, LEDGER, [], "ledger", "a frame is freed", 0.05),
    (BY_LEDGER.replace("0.050", "0.500") + STALE, LEDGER, [], "user half", "write", 0.12),
    # The console counts even if the program saw nothing.
    (GOOD, LEDGER, [], "ledger", "a frame is freed", 0),
    (GOOD, HALF, [], "kernel half", "word 3", 0),
    # A crash counts, a slow host does not.
    ("", "", ["kernel BUG at mm/page_table_check.c:100!"], "crash", "kernel BUG", 0),
    (GOOD, "", [LOCKUP], "", "", 0),
    # A test that gives up has found nothing.
    (GAVE_UP, END, [], "", "rmap_batch gave up: swapon", 0),
])  # fmt: skip
def test_who_finds_it(stdout: str, console: str, oops: list[str], by: str, what: str, seconds: float) -> None:
    outcome = torture.read_outcome(replace(guest_result(stdout, console), oops=tuple(oops)))
    assert outcome.by == by and outcome.seconds == pytest.approx(seconds) and outcome.what.startswith(what)
    assert bool(outcome.problems) == ((stdout, console) != (GOOD, END))


@pytest.mark.parametrize(("stdout", "console", "problem"), [
    (GOOD, END.replace("SUCCESS", "FAILURE"), "kernel half: End of test: FAILURE"),
    (GOOD, "WARNING: possible circular locking\n", "console: WARNING: possible circular locking"),
    (GAVE_UP, END, "rmap_batch gave up: swapon: Cannot allocate memory"),
    (BY_LEDGER, END, "ledger gave up: it said nothing"),
])  # fmt: skip
def test_problems(stdout: str, console: str, problem: str) -> None:
    assert torture.read_outcome(guest_result(stdout, console)).problems == (problem,)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: Patch) -> Any:
    """Guests that answer boots with the list of mutations, and the output of each torture."""

    def make(said: dict[str, str | Exception], listed: str = "") -> torture.Bench:
        def boot(_image: Path, script: str, *, append: Sequence[str] = (), **_: Any) -> object:
            mutants = [word.partition("=")[2] for word in append if "mutant=" in word]
            text = listed if script.startswith("cat ") else said[mutants[0] if mutants else "none"]
            if isinstance(text, Exception):
                raise text
            return guest_result(text, END)

        monkeypatch.setattr(machine, "run_script", boot)
        return torture.Bench(tmp_path / "image", tmp_path / "program", tmp_path / "disk", Cache(tmp_path))

    return make


def test_mutant_that_survives_fails(bench: Any) -> None:
    said = {"LUF_A": STALE, "RMAP_B": GOOD, "RMAP_A": GAVE_UP, "EARLY_C": watch.GuestTimeout("it hangs")}
    ready = bench(said, "LUF_A\nRMAP_B\nRMAP_A\nEARLY_C\n")
    assert ready.mutants() == list(said)
    found, *survived = [ready.mutant(name) for name in said]
    assert found.status == "passed" and "user half" in found.said and "0.12 s" in found.said
    assert all(case.status == "failed" and "survived" in case.why for case in survived)
    assert survived[1].why.endswith("gave up: swapon: Cannot allocate memory")


def test_every_mutation_has_a_test() -> None:
    names = torture.mutant_names()
    assert len(names) > 40 and all(torture.attack_for(name) for name in names)


def test_mutant_that_a_unit_test_finds(bench: Any, monkeypatch: Patch) -> None:
    console = "[    0.41]     ok 1 rmap_file_test\n[    0.42]     not ok 2 rmap_migrate_test\n"
    boot = Mock(return_value=guest_result("# VIOLATION: by KUnit after 0.03 s\n", console, code=1))
    ready = bench({})
    monkeypatch.setattr(machine, "run_script", boot)
    case = ready.mutant("RMAP_B")
    assert case.status == "passed" and "KUnit" in case.said and "rmap_migrate_test" in case.said
    append = boot.call_args_list[0].kwargs["append"]
    assert {"quell_mutants.mutant=RMAP_B", "kunit.filter_glob=rmap_batch"} <= set(append)


@pytest.mark.parametrize(("said", "status", "why"), [
    (GOOD, "passed", ""),
    (STALE, "failed", "user half: write"),
    ("1..0 # SKIP no second node\n", "failed", "no "),
])  # fmt: skip
def test_intact_kernel(said: str, status: str, why: str, bench: Any) -> None:
    ready = bench({"none": said})
    cases = [ready.intact("LUF", torture.ATTACKS["LUF"]), ready.torture("intact", "--seconds 9", 9)]
    assert [case.status for case in cases] == [status] * 2
    assert all(case.why.startswith(why) for case in cases)
    if status == "passed":
        assert cases[0].said == "LUF: 1 tests found nothing"
        assert cases[1].said.startswith("intact: 1,000 reads checked, 500 per second")
