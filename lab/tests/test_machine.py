# SPDX-License-Identifier: GPL-2.0-only
"""Command lines, console logs, and guests that misbehave. A shell script stands in for QEMU."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guests import Patch, lab_env
from quell import machine, watch
from quell.disks import Disk
from quell.errors import QuellError, UsageError
from quell.frames import FramesError
from quell.paths import Cache
from quell.qemu import Qemu

from conftest import fails, gone, text_of, until, write_files

DATA = Path(__file__).parent / "data"
PANIC = (DATA / "panic-sysrq.log").read_text()
MIB = machine.MIB


def line(guest: machine.Machine, job: machine.Job | None = None, **options: Any) -> str:
    image, runner = map(Path, ("/kernels/stock/bzImage", "/c/runner"))
    return shlex.join(machine.command_line(guest, image, runner, job or machine.Job(["x"]), Path("/r"), **options))


def test_command_line() -> None:
    text = line(machine.Machine(append=("quell=off", "a=b c")))
    for part in (
        "-machine q35", "-accel tcg,thread=multi -cpu max,-erms,-fsrm", "mount_tag=/dev/root", "readonly=on",
        "init=/c/runner -- /r/job", "cache=loose", 'quell=off "a=b c" init=', "path=/r/console.log",
    ):  # fmt: skip
        assert part in text
    assert text.count("-machine") == text.count(" -serial ") == 1
    assert not any(part in text for part in ("quiet", "virtconsole", "stdio"))
    text = line(machine.Machine(accel="kvm"))
    assert "-machine q35" in text and "-accel kvm -cpu host,kvm-pv-tlb-flush=off" in text and "tcg" not in text
    fails(UsageError, "command line", line, machine.Machine(append=("x" * 3000,)))


def test_command_line_deterministic(tmp_path: Path) -> None:
    image = tmp_path / "a,b.ext4"
    image.touch()
    os.truncate(image, 100 * MIB)
    guest, job = machine.Machine(deterministic=True), machine.Job(["x"], data=image, ram=True)
    text = line(guest, job)
    assert "-accel tcg,thread=single -icount shift=0,sleep=off" in text
    assert f"brd.rd_size={100 * 1024}" in text and "a,,b.ext4,format=raw,snapshot=on" in text
    assert "brd" not in line(guest, replace(job, ram=False))
    swapping = replace(job, swap="zram")
    assert f"brd.rd_nr=2 brd.rd_size={guest.memory // 2048}" in line(guest, swapping) and "brd.rd_nr" not in text
    assert f"brd.rd_size={100 * 1024}" in line(machine.Machine(memory=64 * MIB), swapping)


def test_disks_follow_the_data(tmp_path: Path) -> None:
    disks = (Disk(Path("/a b,c"), "qcow2"), Disk(Path("/i"), target="/my data:1", filesystem="xfs"))
    job = machine.Job(["a"], env={}, data=tmp_path / "data", disks=disks)
    text = line(machine.Machine(), job)
    assert "if=none,id=disk0,file=" in text and "if=none,id=disk2,file=/i,format=raw,snapshot=on" in text
    assert "'if=none,id=disk1,file=/a b,,c,format=qcow2,snapshot=on'" in text
    assert b"data\0vda\0disk\0vdc:xfs:/my data:1\0" in job.encode()
    assert replace(job, data=None).encode() == b"arg\0a\0cwd\0/\0disk\0vdb:xfs:/my data:1\0"


def test_numa_nodes() -> None:
    text = line(machine.Machine(memory=640 * MIB, cpus=4, nodes=(128 * MIB, 512 * MIB)))
    for part in (
        "-machine q35,hmat=on", f"memory-backend-ram,id=node0,size={128 * MIB}",
        "-numa node,nodeid=0,cpus=0-3,memdev=node0,initiator=0", "-numa node,nodeid=1,memdev=node1,initiator=0",
        "hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-latency,latency=200",
    ):  # fmt: skip
        assert part in text
    assert "numa" not in line(machine.Machine()) and "hmat" not in line(machine.Machine())


def test_memory_sizes() -> None:
    assert machine.parse_memory("256M") == machine.parse_memory("256") == 256 * MIB
    assert machine.parse_memory("1g") == machine.parse_memory("1GiB") == 1024 * MIB
    assert [machine.format_memory(size * MIB) for size in (256, 2048)] == ["256M", "2G"]
    for bad in ("", "much", "-1M", "1X", "1.5G"):
        fails(UsageError, None, machine.parse_memory, bad)
    for options in {"memory": 1 * MIB}, {"cpus": 0}, {"cpus": 65}:
        fails(UsageError, None, machine.Machine, **options)


def test_job_encoding() -> None:
    job = machine.Job(["sh", "-c", "a b\n"], env={"A": "1=2"}, cwd="/x", writes={"/sys/f": "0"})
    assert job.encode() == b"arg\0sh\0arg\0-c\0arg\0a b\n\0env\0A=1=2\0cwd\0/x\0write\0/sys/f=0\0"
    staged = machine.Job(["a"], env={}, stage=(Path("/x/a"), Path("/y/b")))
    assert staged.encode() == b"arg\0a\0cwd\0/\0stage\0/x/a\0stage\0/y/b\0"
    assert b"cwd\0/\0swap\0zram\0" in machine.Job(["a"], env={}, swap="zram").encode()
    assert job.encode((24, 80)).endswith(b"tty\0hvc0\0rows\x0024\0cols\x0080\0")


def test_oops_in_recorded_logs() -> None:
    oops = watch.find_oops(PANIC)
    assert oops[0] == "Kernel panic - not syncing: sysrq triggered crash" and any("sysrq_handle_crash" in t for t in oops)
    oops = watch.find_oops((DATA / "oops-null.log").read_text())
    assert oops[0].startswith("BUG: kernel NULL pointer dereference") and len(oops) <= 40
    # Stalls and warnings are no crash.
    log = (
        "mtrr: your CPUs had inconsistent MTRRdefType settings\r\n"
        "rcu: INFO: rcu_sched self-detected stall on CPU\r\n"
        "WARNING: CPU: 1 PID: 9 at mm/luf.c:12 luf_park+0x1/0x2\r\n"
        "Out of memory: Killed process 55 (mapped-read)"
    )
    assert watch.find_oops(log) == () and len(watch.find_warnings(log)) == 3
    assert watch.find_oops("watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [a:1]")


def ended(status: str) -> bytes:
    result = f"status {status}\nelapsed_ns 1\n".encode()
    return b"quell-runner 1\n@result %d\n%s\n@end 1\n" % (len(result), result)


class Scripted:
    """boot() with a script in place of QEMU, and no runner; the file ``sent`` has a guest's report."""

    def __init__(self, folder: Path, monkeypatch: Patch) -> None:
        self.rundir = folder / "run"
        self.cache = Cache(folder / "cache")
        self.script = ""
        write_files(self.rundir, {"panic": PANIC, "sent": ended("exited 0").decode()})
        monkeypatch.setattr(watch, "_ANSWER_S", 0.1)
        monkeypatch.setattr(machine, "guest_program", lambda name, cache: Path("/c/runner"))
        monkeypatch.setattr(machine, "find_qemu", lambda cache: Qemu("qemu", "10.0.2"))
        monkeypatch.setattr(machine, "command_line", lambda *a, **k: ["/bin/sh", "-c", self.script])

    def run(self, script: str, accel: Any = "tcg", **options: Any) -> machine.GuestResult:
        """Boot; each start of the script is counted in ``tries``."""
        (self.rundir / "tries").write_text("")
        self.script = f"cd {self.rundir}; echo $$ > pid; echo x >> tries; {script}"
        job = machine.Job(["x"], cwd="/nowhere")
        options = {"cache": self.cache, "timeout": 5, **options}
        return machine.boot(machine.Machine(accel=accel), Path("/k"), job, self.rundir, **options)

    def boot(self, frames: bytes) -> machine.GuestResult:
        (self.rundir / "sent").write_bytes(frames)
        return self.run("cat sent > frames; echo out > stdout; echo err > stderr; echo l > console.log")

    @property
    def tries(self) -> int:
        return len((self.rundir / "tries").read_text().splitlines())


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: Patch) -> Iterator[Scripted]:
    one = Scripted(tmp_path, monkeypatch)
    yield one
    assert gone(one.rundir / "pid")


@pytest.mark.parametrize(("script", "limits", "kind", "says", "detail"), [
    ("echo last words > console.log; exec sleep 60", {"boot_timeout": 2},
     watch.GuestTimeout, "did not boot within 2 s", "last words"),
    ("cat sent > frames; trap '' TERM; exec sleep 60", {"timeout": 0.2},
     watch.GuestTimeout, "command in the guest did not end within 0.2 s", ""),
    *((f"cat sent > frames; cat panic > console.log{ends}", {},
       watch.GuestPanic, "sysrq triggered crash", "sysrq_handle_crash") for ends in ("", "; exec sleep 60")),
    ("echo no such machine >&2; exit 1", {}, watch.GuestError, "QEMU failed with exit code 1", "no such machine"),
])  # fmt: skip
def test_guest_that_fails(
    script: str, limits: dict[str, float], kind: type[QuellError], says: str, detail: str, guest: Scripted
) -> None:
    start = time.monotonic()
    error = fails(kind, says, guest.run, script, accel="kvm", **limits)
    assert error.log and error.log.parent == guest.rundir and error.exit_code == 1 and detail in error.detail
    assert not limits or time.monotonic() - start < 20


@pytest.mark.parametrize(("isr", "cut", "tries"), [("(none)", None, 1), ("236", None, 3), ("236", lambda: False, 1)])
def test_a_time_out_shows_the_cpus_and_a_lost_interrupt_boots_again(isr: str, cut: Any, tries: int, guest: Scripted) -> None:
    answers = '{}\n{"return": ""}\n{"return": "CPU#0\\r\\nRIP=1 HLT=1\\r\\nFPR0=0"}\n{"return": "%s"}\n'
    (guest.rundir / "answers").write_text(answers % rf"LVTT\t (vec 236)\r\nESR\t 0\r\nISR\t {isr} \r\nIRR\t 236 252")
    code = "import os, sys; os.write(int(sys.argv[1].rpartition(\"=\")[2]), open(\"answers\", \"rb\").read())"
    script = f"{sys.executable} -ISc '{code}' $1; echo > frames; exec sleep 60"
    error = fails(watch.GuestTimeout, None, guest.run, script, timeout=0.1, cut=cut)
    assert error.log and "The CPUs then:\nCPU#0\nRIP=1 HLT=1\nLVTT\t (" in text_of(error.log) and guest.tries == tries


def test_power_is_cut_when_it_is_asked_for(guest: Scripted) -> None:
    start, console = time.monotonic(), guest.rundir / "console.log"
    script = "echo quell-runner 1 > frames; echo written > console.log; trap '' TERM; exec sleep 60"
    result = guest.run(script, cut=lambda: console.stat().st_size > 0)
    assert (result.exit_code, result.console) == (-1, "written\n") and time.monotonic() - start < 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_or_killed_leaves_nothing(tmp_path: Path, number: int) -> None:
    write_files(tmp_path, {"console.log": "", "frames": ""})
    argv = ["sh", "-c", "echo $$ > pid; exec sleep 60"]
    code = f"from quell import watch; from pathlib import Path; watch.supervise({argv}, Path(), "
    code += "boot_timeout=60, timeout=60, emulated=True)"
    child = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=lab_env(), stderr=subprocess.DEVNULL)
    assert until(lambda: text_of(tmp_path / "pid"), 10)
    child.send_signal(number)
    child.wait(10)
    assert gone(tmp_path / "pid")


def test_what_the_guest_reports(guest: Scripted) -> None:
    result = guest.boot(ended("exited 3"))
    assert (result.exit_code, result.stdout, result.stderr, result.console) == (3, "out\n", "err\n", "l\n")
    assert guest.boot(ended("signalled 9")).exit_code == 137
    error = fails(FramesError, "without a whole report", guest.boot, ended("exited 0")[:-4])
    assert error.log == guest.rundir / "console.log"
    fails(watch.GuestError, "prepared: no ext4", guest.boot, b"quell-runner 1\n@failure 7\nno ext4\n@end 1\n")
    says = "the guest cannot start the command x in /nowhere: Permission denied"
    fails(UsageError, says, guest.boot, ended("noexec 13\nmessage Permission denied"))


def test_output_is_passed_on(guest: Scripted, capfd: pytest.CaptureFixture[str]) -> None:
    script = "cat sent > frames; echo one > stdout; sleep 0.2; echo two >> stdout; echo err > stderr"
    assert guest.run(script, live=True).stdout == "one\ntwo\n"
    assert capfd.readouterr() == ("one\ntwo\n", "err\n")
    # QEMU makes stdin non-blocking, which may be the same socket as stdout.
    script = f"{sys.executable} -ISc 'import os; os.set_blocking(0, False)'; cat sent > frames"
    guest.run(script, live=True)
    assert os.get_blocking(0)


def test_boots_again(guest: Scripted) -> None:
    # QEMU crashes.
    assert guest.run("[ $(wc -l < tries) -gt 2 ] || kill -SEGV $$; cat sent > frames").exit_code == 0
    fails(watch.GuestError, "QEMU was ended by signal 11", guest.run, "kill -SEGV $$")
    # The guest hangs.
    script = "[ $(wc -l < tries) -gt 1 ] || exec sleep 60; cat sent > frames"
    assert guest.run(script, boot_timeout=2).exit_code == 0
    fails(watch.GuestTimeout, "did not boot within 2 s", guest.run, "exec sleep 60", boot_timeout=2)
    assert guest.tries == 3
    # Later it is an error.
    fails(watch.GuestError, "signal 11", guest.run, "cat sent > frames; sleep 0.1; kill -SEGV $$")
    assert guest.tries == 1


@pytest.mark.parametrize("fail_on_oops", [True, False])
def test_a_breakpoint_that_is_gone_boots_again(guest: Scripted, fail_on_oops: bool) -> None:
    (guest.rundir / "oops").write_text("[   85.1] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n")

    def boot(dies: int, **options: Any) -> machine.GuestResult:
        oops = "{ echo part > stdout; cat oops > console.log; }"
        script = f"cat sent > frames; [ $(wc -l < tries) -gt {dies} ] || {oops}"
        return guest.run(script, fail_on_oops=fail_on_oops, **options)

    # Under KVM it is an oops like any other.
    if fail_on_oops:
        fails(watch.GuestPanic, "Oops: int3", boot, dies=1, accel="kvm")
        assert guest.tries == 1
    else:
        assert boot(dies=1, accel="kvm").oops
    result = boot(dies=1)
    assert (result.exit_code, result.stdout, result.oops, guest.tries) == (0, "", (), 2)
    fails(watch.GuestPanic, "Oops: int3", boot, dies=9)
    assert guest.tries == 3
    # With ``cut`` the run acts outside of the guest: no retry.
    fails(watch.GuestPanic, None, boot, dies=1, cut=lambda: False)
    assert guest.tries == 1


def test_accelerator_is_probed_once(cache: Cache, monkeypatch: Patch) -> None:
    probes = []

    def hangs(*args: object, **options: object) -> machine.GuestResult:
        probes.append(options["timeout"])
        raise watch.GuestTimeout("the guest did not boot within 15 s and was stopped")

    monkeypatch.setattr(machine, "boot", hangs)
    monkeypatch.setattr(machine, "find_qemu", lambda cache: Qemu("qemu", "10.0.2"))
    monkeypatch.setattr(os, "access", lambda *a: True)
    real, stat = os.stat("/dev/null"), os.stat
    monkeypatch.setattr(os, "stat", lambda path, **k: real if path == "/dev/kvm" else stat(path, **k))
    for _ in range(2):
        accel = machine.choose_accelerator("auto", Path("/k"), cache)
        assert accel.name == "tcg" and "did not boot within 15 s" in accel.reason
    assert probes == [machine.PROBE_TIMEOUT_S]


def test_accelerator_by_hand(cache: Cache, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "access", lambda *a: False)
    assert all(machine.choose_accelerator(wanted, Path("/k"), cache).name == "tcg" for wanted in ("tcg", "auto"))
    fails(UsageError, "/dev/kvm", machine.choose_accelerator, "kvm", Path("/k"), cache)
