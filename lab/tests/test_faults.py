# SPDX-License-Identifier: GPL-2.0-only
"""Part faults: reading its guests' output, and the records of the power cuts."""

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checks import check_faults as faults, steps
from checks.check_faults import Fault
from checks.benches import GUEST
from conftest import until
from guests import Patch, execute, guest_result
from quell import machine
from quell.paths import Cache

FAULT = Fault("it rains", "true", least=2)
FINE = "events: 3, passes: 2, deaths: 0\n"
WRONG = "reader: exit code 1: Page 7 holds 0x1 in word 0, it should hold 0x2."


@pytest.mark.parametrize(("text", "how", "why"), [
    (FINE, {}, ""),
    ("events: 3, passes: 0, deaths: 1\n", {}, ""),
    (f"not ok: {WRONG}\n{FINE}", {"status": "fail"}, WRONG),
    (FINE.replace("3", "1"), {}, "1 events, fewer than 2"),
    (FINE.replace("passes: 2", "passes: 0"), {}, "no reader finished a pass"),
    (FINE, {"parked": 3}, "only 3 pages were deferred"),
    ("", {"status": "crash"}, "crash: "),
    (FINE, {"log": "luf_debug: VIOLATION: frame 1"}, "luf_debug: VIOLATION"),
    (FINE, {"log": "EXT4-fs error (device vda): x\n"}, "EXT4-fs error"),
])  # fmt: skip
def test_what_a_case_needs(text: str, how: dict[str, Any], why: str) -> None:
    said = steps.Said(**{"status": "pass", "text": text, "seconds": 9.0, "parked": 1000, **how})
    case = faults.judge(FAULT, said)
    assert case.status == ("failed" if why else "passed") and case.why.startswith(why)
    # Complaints that come with the event.
    if "EXT4" in why:
        assert faults.judge(Fault("disk", "true", expected="EXT4-fs error"), said).status == "passed"


def test_durable_records_of_a_torn_report() -> None:
    assert faults.read_synced("synced 0 7\nsynced 1 3\nsynced 0 19\nsynced 1 2") == {0: 19, 1: 3}
    assert faults.read_synced("") == {}


def test_power_is_cut_after_enough(tmp_path: Path, monkeypatch: Patch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    cut = faults.Cut(tmp_path / "stdout", 1.0)

    def ask(seconds: float) -> bool:
        clock[0] += seconds
        return cut()

    assert not ask(1)
    (tmp_path / "stdout").write_text("synced 0 900\nsynced 1 900\nsynced 2 1\n")
    assert not ask(1)
    (tmp_path / "stdout").write_text("synced 0 900\nsynced 1 900\nsynced 2 901\n")
    assert [ask(seconds) for seconds in (1, 0.5, 0.6)] == [False, False, True]
    assert cut.done


def test_records_notice_what_is_lost(tmp_path: Path) -> None:
    def synced() -> dict[int, int]:
        return faults.read_synced((tmp_path / "said").read_text())

    program = machine.guest_program("records", Cache(), GUEST)
    with (tmp_path / "said").open("w") as out:
        with subprocess.Popen([program, "write", tmp_path, "2"], stdout=out, start_new_session=True) as writer:
            until(lambda: len(synced()) == 2 and min(synced().values()) > 30, 60)
            # Like a power cut.
            os.killpg(writer.pid, signal.SIGKILL)
    assert len(synced()) == 2
    words = [f"{file}:{number}" for file, number in synced().items()]
    done = execute(program, "check", tmp_path, *words)
    assert (done.returncode, done.stdout.split()[0]) == (0, "checked")
    # Durable records that are missing, and one with a wrong byte.
    assert execute(program, "check", tmp_path, "0:1000000").returncode == 1
    data = bytearray((tmp_path / "records.1").read_bytes())
    numbers = (int.from_bytes(data[page * 4096 :][:8], "little") for page in range(2048))
    page = next(page for page, number in enumerate(numbers) if 0 < number <= synced()[1])
    data[page * 4096 + 1999] ^= 1
    (tmp_path / "records.1").write_bytes(data)
    done = execute(program, "check", tmp_path, *words)
    assert done.returncode == 1 and f"wrong: page {page} of file 1" in done.stdout


@pytest.mark.parametrize(("first", "second", "why"), [
    ("", guest_result("recovered\nchecked 9\n"), ""),
    ("", guest_result("checked 9\n"), "the journal was not replayed"),
    ("", guest_result("recovered\nwrong: page 3\n", code=1), "after the cut: exit code 1: "),
    ("", guest_result("recovered\nchecked 9\n", "WARNING: at fs/x.c\n"), "WARNING: at"),
    ("wrong: page 7 of file 0\n", guest_result("recovered\nchecked 9\n"), "wrong: page 7"),
    ("ended", guest_result("recovered\n"), "the guest ended before"),
])  # fmt: skip
def test_power_cut_is_judged_by_the_second_boot(
    first: str, second: machine.GuestResult, why: str, monkeypatch: Patch, cache: Cache
) -> None:
    asked = []

    def boot(_k: object, text: str, _d: Path, _r: Path, _c: Cache, cut: object = None) -> object:
        asked.append(text)
        if cut is None:
            return second
        assert isinstance(cut, faults.Cut)
        cut.done = first != "ended"
        return guest_result(f"synced 0 9\nsynced 1 8\nsynced 2 7\n{first}", code=-1)

    monkeypatch.setattr(faults, "_boot_disk", boot)
    ready = SimpleNamespace(programs=[Path("/bin/true")])
    monkeypatch.setattr("quell.workload.prepare", lambda *_: ready)
    monkeypatch.setattr("quell.disks.make_ext4", lambda *_, **__: None)
    monkeypatch.setattr("quell.proc.run", lambda *_, **__: None)
    monkeypatch.setattr(machine, "guest_program", lambda *_: Path("records"))
    kernel: Any = SimpleNamespace(name="quell")
    case = faults.power_cut(kernel, 1, cache)
    assert case.status == ("failed" if why else "passed") and case.why.startswith(why)
    if first != "ended":
        assert "check /mnt 0:9 1:8 2:7" in asked[1]
