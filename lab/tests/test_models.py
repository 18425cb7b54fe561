# SPDX-License-Identifier: GPL-2.0-only
"""Part models: reading runs.toml and pan's output."""

from collections import Counter

import pytest

from checks import check_models as models

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
_LISTED = "\tstate 3 -(tr 2)-> state 4 [id 3 tp 2] [--L] /x/lot.pml:274 => behind = 0\n"
_RUN = models.Run("lot", "lot.pml", removals=("NO_A",), spare=("B",))


@pytest.mark.parametrize(("output", "violation", "complete", "intact", "removal"), [
    (_PASS, "", True, "", "spin finds no violation"),
    (_FAIL, "assertion violated 0 (at depth 228)", False, "assertion violated 0 (at depth 228)", ""),
    # A search that was cut short has not passed.
    *[(text, "", False, "the search did not cover all states", "spin finds no violation") for text in (
        "", f"{_PASS}error: max search depth too small\n", f"{_PASS}pan: reached -DMEMLIM bound\n",
    )],
])  # fmt: skip
def test_search(output: str, violation: str, complete: bool, intact: str, removal: str) -> None:
    result = models.read_search(output, _LISTED)
    assert (result.violation, result.complete) == (violation, complete)
    assert result.states == (1098806 if _PASS in output else 205 if output else 0)
    assert [models.judge(_RUN, extra, result) for extra in ("", "B", "NO_A")] == [intact, intact, removal]


def test_dead_statements() -> None:
    one = models.read_search(_PASS, _LISTED)
    assert one.instances == Counter({"behind = 0": 1})
    assert models.dead([one]) == ["behind = 0"]
    # It is enough to reach one of two instances, or to reach it in one of two runs.
    assert models.dead([models.read_search(_PASS, _LISTED * 2)]) == []
    assert models.dead([one, models.read_search(_PASS.replace("behind", "other"), _LISTED)]) == []
    # An incomplete search is ignored.
    assert models.dead([models.read_search(_FAIL, _LISTED)]) == []


def test_every_removal_is_listed() -> None:
    assert models.unlisted(models.RUNS, (path.read_text() for path in models.MODELS.glob("*.pml"))) == []
    assert models.unlisted([_RUN], ["#ifdef NO_A\n#ifndef NO_C\n"]) == ["NO_C"]
    assert all((models.MODELS / run.model).exists() for run in models.RUNS)
