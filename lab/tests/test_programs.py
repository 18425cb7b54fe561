# SPDX-License-Identifier: GPL-2.0-only
"""Part programs: reading its guests' output, without a guest."""

from pathlib import Path

import pytest

from conftest import fails
from guests import Patch
from checks import check_programs as programs, steps
from checks.check_programs import PROGRAMS
from quell.errors import QuellError, UsageError
from quell.paths import Cache

SAID = "result integrity ok\nresult rows 5|7\n"
EXPECTED = {"integrity": "ok", "rows": "5|7"}
GOOD = steps.Said("pass", SAID, "", 10.0, 500, 9000)


def test_what_a_run_needs() -> None:
    assert programs.problems(GOOD, EXPECTED) == []
    wrong = steps.Said("pass", SAID.replace("7", "8"), "", 10.0, 500, 9000)
    assert programs.problems(wrong, EXPECTED) == ["rows is 5|8, not 5|7"]
    said = steps.Said("fail", "not ok git fsck\n", "", 10.0, 500, 9000)
    assert programs.problems(said, EXPECTED)[:3] == [
        "git fsck", "integrity is missing, not ok", "rows is missing, not 5|7",
    ]  # fmt: skip
    easy = steps.Said("pass", SAID, "", 10.0, 0, 3)
    assert "no memory pressure" in programs.problems(easy, EXPECTED)[0]
    warned = steps.Said("pass", SAID, "WARNING: at mm/x.c\n", 10.0, 500, 9000)
    assert programs.problems(warned, EXPECTED) == ["WARNING: at mm/x.c"]


def test_right_on_both_and_not_slower() -> None:
    case = programs.judge("sqlite", {"stock": [GOOD], "quell": [GOOD]}, EXPECTED, "tcg")
    assert case.status == "passed" and case.said.endswith("2 results")
    bad = steps.Said("crash", "")
    case = programs.judge("sqlite", {"stock": [GOOD], "quell": [bad]}, EXPECTED, "tcg")
    assert case.why.startswith("on Quell: integrity is missing")
    slow = steps.Said("pass", SAID, "", 30.0, 500, 9000)
    case = programs.judge("sqlite", {"stock": [GOOD] * 3, "quell": [slow] * 3}, EXPECTED, "tcg")
    assert case.why == "speed -67%, SLOWER"


def test_postgresql_is_unpacked_where_it_is_not_installed(
    cache: Cache, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(programs, "_INSTALLED", tmp_path / "installed")
    monkeypatch.setattr("quell.debian.fetch", lambda *_: tmp_path / "fetched")
    fails(QuellError, "has no initdb", programs._postgres, cache)
    for name in ("fetched/usr/lib/postgresql/9/bin", "fetched/usr/lib/postgresql/15/bin"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "initdb").touch()
    assert programs._postgres(cache) == (tmp_path / "fetched", Path("usr/lib/postgresql/15/bin"))
    (tmp_path / "installed").mkdir()
    (tmp_path / "fetched/usr").rename(tmp_path / "installed/usr")
    assert programs._postgres(cache)[0] == tmp_path / "installed"


def test_program_that_is_not_installed_is_skipped(cache: Cache, monkeypatch: Patch) -> None:
    def lacking(_: object) -> None:
        raise UsageError("Debian packages are missing: a package")

    monkeypatch.setattr("quell.prereq.ensure", lacking)
    with pytest.raises(pytest.skip.Exception, match="a package"):
        programs.get(PROGRAMS[0], cache)


def test_redis_data_is_made_on_the_host(tmp_path: Path, cache: Cache, monkeypatch: Patch) -> None:
    monkeypatch.setattr(programs, "_KEYS", 10)
    expected = programs._prepare_redis(tmp_path, cache)
    before, now = ((tmp_path / name).read_text().splitlines() for name in ("snapshot", "now"))
    assert [a == b for a, b in zip(before, now, strict=True)] == [False, True] * 5
    assert expected["now"] != expected["snapshot"]
    assert (tmp_path / "load").read_bytes().endswith(before[-1].encode() + b"\r\n")
