# SPDX-License-Identifier: GPL-2.0-only
"""``compare --here`` with folders in place of /proc and /sys; part own tests it in a guest."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import Fake, fails, gone, text_of, until, write_files
from guests import Patch, lab_env
from quell import engine, here, mechanisms, proc, sides, stats
from quell.errors import QuellError, UsageError
from quell.paths import Cache

COUNTED = "nr_tlb_remote_flush pgscan_anon pgscan_file pgsteal_anon pgsteal_file pgsteal_kswapd luf_park"
VMSTAT = "".join(f"{name} 100\n" for name in COUNTED.split())


@pytest.fixture
def root(tmp_path: Path, monkeypatch: Patch, fake_program: Fake) -> Path:
    """A machine with a Quell kernel, early_ack switched off, and no working perf."""
    fake_program("perf", "exit 1")
    root = write_files(tmp_path / "root", {
        **{f"sys/kernel/mm/quell/{n}/enabled": f"{int(n != 'early_ack')}\n" for n in mechanisms.names()},
        "proc/vmstat": VMSTAT,
        "proc/interrupts": "      CPU0  CPU1\nTLB:   10    20   TLB shootdowns\n",
    })  # fmt: skip
    (root / "proc/sys/vm").mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "sync", lambda: None)
    return root


def state(root: Path) -> dict[str, str]:
    return {p.parent.name: p.read_text().strip() for p in root.glob("sys/kernel/mm/quell/*/enabled")}


def request(*command: str, **more: Any) -> engine.Request:
    given = {"sides": here.SIDES, "command": command, "here": True, "timeout": 20, **more}
    return engine.Request(**given)


def run(root: Path, tmp_path: Path, side: sides.Side, asked: engine.Request) -> Any:
    place = here.Here.prepare(asked, Cache(tmp_path / "cache"), root)
    rundir = tmp_path / f"run-{time.monotonic_ns()}"
    rundir.mkdir()
    return place.run(side, engine._plans(asked, [], {}, place.cache)[0], rundir)


def test_switches_of_a_side_and_back(root: Path, tmp_path: Path) -> None:
    before = state(root)
    script = f"cat {root}/sys/kernel/mm/quell/*/enabled | tr -d '\\n' > {root}/seen; echo figure t 3 ms"
    sample = run(root, tmp_path, here.SIDES[0], request("sh", "-c", script))
    # In the order of the folders: Quell's mechanisms are off, Linux's own are on.
    own = {m.name for m in mechanisms.load() if m.whose.startswith("Quell")}
    assert (root / "seen").read_text() == "".join(str(int(n not in own)) for n in sorted(before))
    assert state(root) == before
    assert (root / "proc/sys/vm/drop_caches").read_text() == "3"
    assert sample.figures["t"].value == 3 and sample.metrics["flush_requests"] == 0
    assert "peak_memory_kb" not in sample.metrics and sample.metrics["elapsed_s"] > 0
    (root / "proc/sys/vm/drop_caches").unlink()
    run(root, tmp_path, here.SIDES[1], request("true", keep_caches=True))
    assert not (root / "proc/sys/vm/drop_caches").exists()


def test_a_command_that_crashes_or_hangs(root: Path, tmp_path: Path) -> None:
    before = state(root)
    assert run(root, tmp_path, here.SIDES[1], request("sh", "-c", "kill -SEGV $$")).exit_code == 139
    assert run(root, tmp_path, here.SIDES[1], request("sh", "-c", "exit 5")).exit_code == 5
    with pytest.raises(QuellError, match="did not end within 0.2 s"):
        run(root, tmp_path, here.SIDES[1], request("sleep", "60", timeout=0.2))
    assert state(root) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_interrupted_in_the_middle(root: Path, tmp_path: Path, number: int) -> None:
    """A signal ends the command after it moved the switches: it restores them and leaves no process."""
    before = state(root)
    script = f"""
import os, sys, pathlib
from quell import cli, here
os.geteuid = lambda: 0
os.sync = lambda: None
prepare = here.Here.prepare.__func__
here.Here.prepare = classmethod(lambda c, r, k: prepare(c, r, k, pathlib.Path({str(root)!r})))
sys.exit(cli.main(["compare", "--here", "--", "sh", "-c", "echo $$ > {root}/pid; sleep 61"]))
"""
    argv = [sys.executable, "-c", script]
    child = subprocess.Popen(argv, env=lab_env(), stderr=subprocess.PIPE, start_new_session=True)
    try:
        assert until(lambda: text_of(root / "pid"), 30)
        assert state(root) != before
        for _ in range(5):  # a second signal does not stop the restoring
            child.send_signal(number)
        # The last signal may come after the end of the comparison.
        assert child.wait(20) in (130, -number)
    finally:
        child.kill()
        child.communicate()
    assert state(root) == before
    assert gone(root / "pid")
    assert not list(Cache().results.iterdir())


def test_perf_does_not_hide_how_a_command_ended(
    root: Path, tmp_path: Path, monkeypatch: Patch, fake_program: Fake
) -> None:
    fake_program("perf", 'while [ "$1" != -- ]; do shift; done; shift; "$@"; exit 0')
    monkeypatch.setattr(proc, "run", lambda *a, **k: proc.Result(0, "", "7,,cycles,1,1,,\n"))
    for command, code in (("exit 5", 5), ("kill -SEGV $$", 139), ("true", 0)):
        assert run(root, tmp_path, here.SIDES[1], request("sh", "-c", command)).exit_code == code


def with_side(text: str) -> engine.Request:
    return request("true", sides=(sides.parse(text), here.SIDES[0]))


def refused(root: Path, asked: engine.Request, says: str) -> None:
    fails(UsageError, says, here.Here.prepare, asked, Cache(), root)


def test_who_cannot_measure_here(root: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    refused(tmp_path, request("true"), "without Quell: ./quell deb --config running")
    refused(root, with_side("a=stock"), "with --here a side is a=quell")
    refused(root, with_side("a=quell,nosmt"), ": the kernel stays")
    (root / "sys/kernel/mm/quell/luf/enabled").unlink()
    refused(root, with_side("a=quell,quell=luf"), "side a: luf stays off .* was built without it")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    refused(root, request("true"), "needs root: run it with sudo")


def test_a_mechanism_that_the_kernel_refuses(root: Path, tmp_path: Path) -> None:
    enabled = root / "sys/kernel/mm/quell/luf/enabled"
    enabled.write_text("0 (no reason)\n")
    place = here.Here.prepare(request("true"), Cache(), root)
    assert "luf stays off on this machine: 0 (no reason)." in place.absent
    with place._switched(here.SIDES[1]):
        assert enabled.read_text() == "0 (no reason)\n"
        assert (root / "sys/kernel/mm/quell/early_ack/enabled").read_text() == "1"
    del place
    here.Here.prepare(with_side("a=quell,quell=-luf"), Cache(), root)
    refused(root, with_side("a=quell,quell=luf"), r"side a: luf stays off on this machine: 0 \(no reason\)")


def test_what_perf_can_tell(root: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    said = "812,,dTLB-load-misses,9,1,,\n<not supported>,,iTLB-load-misses,0,1,,\n7,,minor-faults:u,1,1,,\n"
    assert here._perf_counts(said) == {"dTLB-load-misses": 812, "minor-faults": 7}
    asked = request("true")
    place = here.Here.prepare(asked, Cache(), root)
    assert "perf (Debian's linux-perf) is not installed" in place.absent[0] and place.events == ()
    refused(root, asked, "another compare --here runs")
    del place
    monkeypatch.setattr(proc, "run", lambda *a, **k: proc.Result(0, "", said))
    place = here.Here.prepare(asked, Cache(), root)
    assert place.events == ("dTLB-load-misses", "minor-faults")
    assert "iTLB-load-misses, cycles, context-switches were not counted" in place.absent[0]


def test_whole_comparison(root: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    prepare = here.Here.prepare.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(here.Here, "prepare", classmethod(lambda c, r, k: prepare(c, r, k, root)))
    result, _ = engine.compare(request("true"), Cache(tmp_path / "cache"))
    [one] = result["comparisons"]
    assert result["notes"][0] == here.OFF_IS_NOT_STOCK
    assert result["environment"]["accelerator"]["name"] == "here"
    assert one["figures"]["flush_requests"]["against"]["on"]["verdict"] == stats.SAME
    assert [side["name"] for side in result["sides"]] == ["off", "on"]
