# SPDX-License-Identifier: GPL-2.0-only
"""Part programs: reading its guests' output, without a guest."""

from dataclasses import replace
from pathlib import Path

import pytest

from guests import Patch
from checks import check_programs as programs, steps
from quell.paths import Cache

SAID = "result integrity ok\nresult rows 5|7\n"
EXPECTED = {"integrity": "ok", "rows": "5|7"}
GOOD = steps.Said("pass", SAID, "", 10.0, 500, 9000)


@pytest.mark.parametrize(("said", "wrong"), [
    (GOOD, []),
    (replace(GOOD, text=SAID.replace("7", "8")), ["rows is 5|8, not 5|7"]),
    (replace(GOOD, text=f"{SAID}not ok git fsck\n"), ["git fsck"]),
    (replace(GOOD, text=""), ["integrity is missing, not ok", "rows is missing, not 5|7"]),
    (replace(GOOD, stolen=3), ["reclaim freed only 3 pages: there was no memory pressure"]),
    (replace(GOOD, log="WARNING: at mm/x.c\n"), ["WARNING: at mm/x.c"]),
    (replace(GOOD, status="timeout"), [f"timeout: {SAID.strip()}"]),
])  # fmt: skip
def test_what_a_run_needs(said: steps.Said, wrong: list[str]) -> None:
    assert programs.problems(said, EXPECTED) == wrong


def test_right_on_both_and_not_slower() -> None:
    case = programs.judge("sqlite", {"stock": [GOOD], "quell": [GOOD]}, EXPECTED, "tcg")
    assert case.status == "passed" and case.said.endswith("2 results")
    case = programs.judge("sqlite", {"stock": [GOOD], "quell": [steps.Said("crash")]}, EXPECTED, "tcg")
    assert case.why.startswith("on quell: integrity is missing")
    slow = [replace(GOOD, seconds=30.0)] * 3
    case = programs.judge("sqlite", {"stock": [GOOD] * 3, "quell": slow}, EXPECTED, "tcg")
    assert case.why == "speed -67%, SLOWER"


def test_postgresql_is_unpacked_where_it_is_not_installed(
    cache: Cache, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(programs, "_INSTALLED", tmp_path / "installed")
    monkeypatch.setattr("quell.debian.fetch", lambda *_: tmp_path / "fetched")
    for name in ("fetched/usr/lib/postgresql/9/bin", "fetched/usr/lib/postgresql/15/bin"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "initdb").touch()
    assert programs._postgres(cache) == (tmp_path / "fetched", Path("usr/lib/postgresql/15/bin"))
    (tmp_path / "installed").mkdir()
    (tmp_path / "fetched/usr").rename(tmp_path / "installed/usr")
    assert programs._postgres(cache)[0] == tmp_path / "installed"


def test_redis_data_is_made_on_the_host(tmp_path: Path, cache: Cache, monkeypatch: Patch) -> None:
    monkeypatch.setattr(programs, "_KEYS", 10)
    monkeypatch.setattr("quell.prereq.ensure", lambda _: None)
    expected = programs._prepare_redis(tmp_path, cache)
    before, now = ((tmp_path / name).read_text().splitlines() for name in ("snapshot", "now"))
    assert [a == b for a, b in zip(before, now, strict=True)] == [False, True] * 5
    assert expected["now"] != expected["snapshot"]
    assert (tmp_path / "load").read_bytes().endswith(before[-1].encode() + b"\r\n")
