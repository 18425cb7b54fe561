# SPDX-License-Identifier: GPL-2.0-only
"""The files in checks/scenarios: shell that a shell reads, tables that fit, and the runs of selftests."""

import re
from pathlib import Path

import pytest

from conftest import fails
from guests import Patch, execute
from checks import benches, check_faults, check_programs, check_sanitizers, check_selftests, scenario, steps
from checks.benches import GUEST, selftest_names
from quell.errors import QuellError


@pytest.mark.parametrize("path", [*scenario.FOLDER.rglob("*.sh"), *GUEST.glob("*.sh")], ids=lambda path: path.name)
def test_scripts_are_shell(path: Path) -> None:
    done = execute("sh", "-n", path)
    assert (done.returncode, done.stderr) == (0, "")


def test_made_scripts_are_shell_and_have_no_word_left() -> None:
    linux = steps.script([*map(check_selftests.step_of, check_selftests.TESTS)], check_selftests._SETUP)
    assert linux.count("\nrun ") == len(check_selftests.TESTS)
    work = ["/run/mapped-read", "--threads", "2", "/data"]
    made = [check_faults.script(fault, 15, work, Path("/staged")) for fault in check_faults.FAULTS]
    made += map(check_programs.script, check_programs.PROGRAMS)
    load = check_sanitizers.load(check_sanitizers.PROGRAMS, Path("/programs"))
    assert load.count("@quell test ") == len(check_sanitizers.PROGRAMS)
    made.append(scenario.shell("sanitizers.sh", LOAD=load))
    words = "WORK DATA EVENT PREPARE AFTER TOLERATE SECONDS PRIVATE".split()
    assert not re.search(rf"\b({'|'.join([*words, *check_programs._WORDS])})\b", "\n".join(made))
    for text in (linux, *made):
        done = execute("sh", "-n", input=text)
        assert (done.returncode, done.stderr) == (0, "")


def test_words_are_replaced_as_they_stand(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(scenario, "FOLDER", tmp_path)
    (tmp_path / "a.sh").write_text("PYTHONPATH=LAB PYTHON WORK\n")
    assert scenario.shell("a.sh", PYTHON=r"\1", WORK="DATA x", DATA="/d") == "PYTHONPATH=LAB \\1 /d x\n"
    (tmp_path / "a.sh").write_text("# WORK, then\n\t# WORK\nWORK; echo '#' WORK\n")
    assert scenario.shell("a.sh", WORK="a\nb") == "# WORK, then\n\t# WORK\na\nb; echo '#' a\nb\n"
    (tmp_path / "a.toml").write_text('[[run]]\nprogram = "x"\nprogam = "y"\n')
    fails(QuellError, "a.toml cannot be used: .*progam", scenario.table, "a.toml", dict[str, tuple[benches.Run, ...]])


def test_every_selftest_runs() -> None:
    runs = benches.runs()
    assert {run.program for run in runs} == set(selftest_names())
    assert len({run.title() for run in runs}) == len(runs)
    # Those of the mechanisms, on newer versions of Linux without --full.
    assert {run.title() for run in runs if run.newer} == {
        "switches", "luf_stale", "luf_migrate", "rmap_batch", "early_ack", "gather_range", "folio_order", "writeout_batch",
    }  # fmt: skip
