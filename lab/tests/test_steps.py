# SPDX-License-Identifier: GPL-2.0-only
"""Steps in a guest, without a guest: the script, and reading its output."""

from guests import Patch
from checks import steps
from checks.steps import Step

A, B = Step("a", "./a", 90, "cd /x"), Step("b", "./b | cat", 30)
LOG = "[    1.0] quell step %d\r\n"


def test_exit_codes() -> None:
    codes = {0: "pass", 4: "skip", 1: "fail", 127: "fail", 124: "timeout", 137: "signal 9", 139: "signal 11"}
    assert {code: steps.read_status(code) for code in codes} == codes


def test_busy_host_gets_more_time(monkeypatch: Patch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for load, times in ((0.0, 1), (2.0, 1), (2.2, 2), (7.0, 3)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert steps.patience() == times
    assert "run 0 270 'cd /x' ./a" in steps.script([A], times=3)


def test_figures_of_a_step_are_differences() -> None:
    said = "\n@quell begin 0\nhello\n\n@quell end 0 0 10.50 100 2000 12.75 150 2500\n"
    found = steps.read(said, LOG % 0, [A, B])["a"]
    assert (found.status, found.seconds, found.parked, found.stolen) == ("pass", 2.25, 50, 500)
    assert found.text == "hello\n"
    plain = steps.read(said.replace(" 10.50 100 2000 12.75 150 2500", ""), LOG % 0, [A])["a"]
    assert (plain.status, plain.seconds) == ("pass", 0)


def test_what_a_sound_kernel_does_not_say() -> None:
    bad = [
        "[ 1.0] WARNING: CPU: 1 PID: 7 at mm/rmap.c:9",
        "[ 1.0] WARNING: possible circular locking dependency detected",
        "[ 1.0] BUG: Bad page state in process x  pfn:1",
        "[ 1.0] BUG: KASAN: use-after-free in x",
        "[ 1.0] luf_debug: VIOLATION: frame 12 is free while its entry is stale",
        "[ 1.0] EXT4-fs error (device vda): ext4_lookup:1: bad",
    ]
    good = [
        "[ 1.0] watchdog: BUG: soft lockup - CPU#0 stuck for 22s!",
        "[ 1.0] Out of memory: Killed process 7 (hog)",
        "[ 1.0] EXT4-fs (vda): mounted filesystem",
    ]
    assert steps.complaints("\r\n".join(bad + good)) == bad
