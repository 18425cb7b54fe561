# SPDX-License-Identifier: GPL-2.0-only
"""Part fuzz: its guests' commands, and reading their output."""

import re
from pathlib import Path
from typing import Any

import pytest

from guests import Patch, execute
from checks import check_fuzz as fuzz, steps
from checks.benches import GUEST, selftest_names
from checks.cases import Results
from quell import machine
from quell.paths import Cache

DONE = "programs: 12, events: 46\n"


def _judge(text: str, log: str = "", status: str = "pass", parked: int = 5000) -> tuple[str, str]:
    case = fuzz.judge("mixer, --seed 7", steps.Said(status, text, log, 9.0, parked))
    assert case.said.startswith("mixer, --seed 7")
    return case.status, case.why


@pytest.mark.parametrize(("status", "line"), [
    ("failed", "not ok: the reader: exit code 1: Page 7 holds 0x1 in word 0, it should hold 0x2."),
    ("failed", "not ok: cannot be killed: early_ack"),
    ("failed", "# VIOLATION: by user half after 0.120 s: write, shared paged out, 8 pages (read)"),
    ("failed", "# VIOLATION: by ledger after 0.050 s"),
    ("failed", "# VIOLATION: by user half (the process 'reader' ended with signal 11) after 3 s"),
    ("failed", "# VIOLATION, with --seed 4711:"),
    ("failed", "not ok 3 luf_stale write: 9 reads, 2 stale, 0 wrong, 64 of 64 pages deferred"),
    ("failed", "not ok 3 early_ack unmap by one: 20 rounds, 9 accesses, 0 stale, 10 wrong, 0 sent"),
    ("failed", "not ok 6 luf_migrate lost writes, by a thread: in 3 of 64 pages, 9 writes"),
    ("failed", "not ok 1 security secrets memory.reclaim: 900 words read, 5 of them secrets, 0 wrong"),
    ("failed", "not ok 2 rmap_torture file: 8 words are wrong on disk"),
    ("failed", "not ok 9 one flush, RAM disk, shmem, on: 3 flushes, 9 out, 0 lost, not as they were"),
    # Without a switch or a CPU a selftest fails, and has found nothing.
    ("passed", "not ok 2 luf_stale full lot: 39625408 reads, 0 stale, 0 wrong, 0 of 64 pages deferred"),
    ("passed", "not ok 22 folio_order learns: 2 complaints"),
    ("passed", "not ok 6 luf_migrate lost writes, by a thread: in 0 of 64 pages, 9 writes"),
    ("passed", "# VIOLATION: by user half (the process 'fill' ended with exit code 1) after 3 s"),
    ("passed", "Bail out! two CPUs are needed: Invalid argument"),
])
def test_wrong_reads_and_hangs_fail(status: str, line: str) -> None:
    assert _judge(f"{line}\n{DONE}") == (status, line if status == "failed" else "")


def test_what_else_fails() -> None:
    assert _judge("calls: 900\n") == ("passed", "")
    assert _judge(DONE, "luf_debug: VIOLATION: a frame is freed\n")[0] == "failed"
    assert _judge(DONE, "BUG: KASAN: use-after-free in x\n")[0] == "failed"
    assert _judge("", status="hang", parked=0)[1].startswith("hang: ")
    assert _judge(DONE, parked=3)[1].startswith("only 3 pages were deferred")
    for nothing in ("", "calls: 0\n", "programs: 0, events: 7\n", "programs: 7, events: 0\n"):
        assert _judge(nothing) == ("failed", "no call, program or event was run")


def test_mixer_starts_selftests_that_exist(cache: Cache) -> None:
    tables = (GUEST / "mixer.c").read_text().partition("switches[]")[0]
    names = set(re.findall(r'"(\w+)(?: [^"\n]*)?"[,;]$', tables, re.M))
    assert "luf_torture" in names and names <= set(selftest_names())
    assert execute(machine.guest_program("mixer", cache, GUEST)).returncode == 2


def test_guest_has_a_seed_and_its_output_is_kept(cache: Cache, monkeypatch: Patch) -> None:
    def boot(*args: Any, **_: Any) -> dict[str, steps.Said]:
        assert args[3][0].command == "mix 180 7 /data"
        return {"mixer": steps.Said("pass", DONE, "", 9.0, 5000)}

    monkeypatch.setattr(steps, "boot", boot)
    results = Results()
    fuzz.Fuzz(Path("image"), 7, 180, results, cache).run(
        "mixer", ["mix"], more=["/data"], node=512, cpus=3, data=Path("/disk")
    )
    assert [case.status for case in results.cases] == ["passed"]
    assert (cache.logs / "fuzz/mixer-7.log").read_text().endswith(f"{DONE}\n--- kernel log\n")
