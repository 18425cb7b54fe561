# SPDX-License-Identifier: GPL-2.0-only
"""Part models: reading runs.toml and pan's output."""

from collections import Counter

import pytest

from conftest import fails
from checks import check_models as models
from quell.errors import QuellError
from quell.paths import repo_root

_PASS = """
Full statespace search for:
State-vector 116 byte, depth reached 545, errors: 0
  1098806 states, stored
unreached in proctype Memory
\t/x/models/luf.pml:83, state 61, "-end-"
\t(1 of 61 states)
unreached in proctype Drain
\t/x/models/luf.pml:274, state 24, "behind = 0"
\t(1 of 148 states)
"""
_FAIL = """pan:1: assertion violated 0 (at depth 228)
pan: wrote lot.pml.trail
Warning: Search not completed
State-vector 116 byte, depth reached 228, errors: 1
      205 states, stored
"""
_RUN = models.Run("lot", "lot.pml", removals=("NO_A",), spare=("B",))


def test_search_that_passed() -> None:
    result = models.read_search(_PASS)
    assert (result.violation, result.complete, result.states) == ("", True, 1098806)
    assert result.unreached["behind = 0"] == 1
    assert models.judge(_RUN, "", result) == ""
    assert models.judge(_RUN, "B", result) == ""
    assert "no violation" in models.judge(_RUN, "NO_A", result)


def test_search_that_failed() -> None:
    result = models.read_search(_FAIL)
    assert result.violation == "assertion violated 0 (at depth 228)"
    assert models.judge(_RUN, "NO_A", result) == ""
    assert models.judge(_RUN, "", result)
    assert models.judge(_RUN, "B", result)


def test_dead_statements() -> None:
    listed = "\tstate 3 -(tr 2)-> state 4 [id 3 tp 2] [--L] /x/lot.pml:274 => behind = 0\n"
    result = models.read_search(_PASS)
    assert models.statements(listed) == Counter({"behind = 0": 1})
    assert models.dead([(result, models.statements(listed))]) == ["behind = 0"]
    # It is enough to reach one of two instances, or to reach it in one of two runs.
    assert models.dead([(result, models.statements(listed * 2))]) == []
    other = models.read_search(_PASS.replace("behind", "other"))
    assert models.dead([(r, models.statements(listed)) for r in (result, other)]) == []
    # An incomplete search is ignored.
    assert models.dead([(models.read_search(_FAIL), models.statements(listed))]) == []


@pytest.mark.parametrize("output", [
    "", f"{_PASS}error: max search depth too small\n", f"{_PASS}pan: reached -DMEMLIM bound\n",
])  # fmt: skip
def test_search_that_was_cut_short_has_not_passed(output: str) -> None:
    assert "did not cover" in models.judge(_RUN, "", models.read_search(output))
    assert "no violation" in models.judge(_RUN, "NO_A", models.read_search(output))


def test_every_removal_is_listed() -> None:
    folder = repo_root() / "models"
    runs = models.read_runs((folder / models.RUNS).read_text())
    sources = [path.read_text() for path in folder.glob("*.pml")]
    assert models.unlisted(runs, sources) == []
    assert models.unlisted([_RUN], ["#ifdef NO_A\n#ifndef NO_C\n"]) == ["NO_C"]
    assert all((folder / run.model).exists() for run in runs)


def test_runs_that_cannot_be_used() -> None:
    for text in ("run = 1 2", "", '[[run]]\nname = "a"\nmodle = "b"\n'):
        fails(QuellError, models.RUNS, models.read_runs, text)
