# SPDX-License-Identifier: GPL-2.0-only
"""Command lines, console logs, and guests that misbehave. A shell script stands in for QEMU."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quell import machine, watch
from quell.disks import Disk
from quell.errors import UsageError
from quell.frames import FramesError
from quell.paths import Cache
from quell.qemu import Qemu

from test_proc import wait_until_gone

DATA = Path(__file__).parent / "data"
PANIC = (DATA / "panic-sysrq.log").read_text()
OOPS = (DATA / "oops-null.log").read_text()
MIB = machine.MIB


def line(guest: machine.Machine, **options: object) -> str:
    files = machine._Channels(Path("/r/con"), Path("/r/fr"), Path("/r/out"), Path("/r/err"))
    argv = machine.command_line(
        guest,
        Path("/kernels/stock/bzImage"),
        Path("/c/runner"),
        Path("/r/job"),
        files,
        **options,  # type: ignore[arg-type]
    )
    return shlex.join(argv)


def test_command_line_under_tcg() -> None:
    text = line(machine.Machine(append=("quell=off", "a=b c")))
    assert "-machine q35" in text and text.count("-machine") == 1
    assert "-accel tcg,thread=multi -cpu max,-erms,-fsrm" in text
    assert "mount_tag=/dev/root" in text and "readonly=on" in text
    assert "init=/c/runner -- /r/job" in text
    assert "cache=loose" in text and "quiet" not in text
    assert 'quell=off "a=b c" init=' in text
    assert "virtconsole" not in text and "stdio" not in text
    assert "path=/r/con" in text and text.count(" -serial ") == 1


def test_command_line_under_kvm() -> None:
    text = line(machine.Machine(accel="kvm"))
    assert "-machine q35" in text
    assert "-accel kvm -cpu host,kvm-pv-tlb-flush=off" in text
    assert "tcg" not in text


def test_command_line_deterministic(tmp_path: Path) -> None:
    image = tmp_path / "a,b.ext4"
    with image.open("wb") as file:
        file.truncate(100 * MIB)
    guest = machine.Machine(deterministic=True)
    text = line(guest, data=image, ram=True)
    assert "-accel tcg,thread=single -icount shift=0,sleep=off" in text
    assert f"brd.rd_size={100 * 1024}" in text
    assert "a,,b.ext4,format=raw,snapshot=on" in text
    assert "brd" not in line(guest, data=image)
    swapping = line(guest, data=image, ram=True, swap=True)
    assert f"brd.rd_nr=2 brd.rd_size={guest.memory // 2048}" in swapping and "brd.rd_nr" not in text
    assert f"brd.rd_size={100 * 1024}" in line(machine.Machine(memory=64 * MIB), data=image, ram=True, swap=True)


def test_disks_follow_the_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    disks = (Disk(Path("/a b,c"), "qcow2"), Disk(Path("/i"), target="/my data:1", filesystem="xfs"))
    text = line(machine.Machine(), data=data, disks=disks)
    assert "'if=none,id=disk0,file=/a b,,c,format=qcow2,snapshot=on'" in text
    assert "if=none,id=disk1,file=/i,format=raw,snapshot=on" in text
    assert text.index("drive=data") < text.index("drive=disk0") < text.index("drive=disk1")
    job = machine.Job(["a"], env={}, disks=disks)
    assert job.encode() == b"arg\0a\0cwd\0/\0disk\0vdb:xfs:/my data:1\0"
    job = machine.Job(["a"], env={}, data=data, disks=disks)
    assert b"data\0vda\0disk\0vdc:xfs:/my data:1\0" in job.encode()
    with pytest.raises(UsageError, match="up to 15 disks, not 16"):
        machine.Job(["a"], disks=disks * 8).encode()


def test_numa_nodes(tmp_path: Path) -> None:
    guest = machine.Machine(memory=640 * MIB, cpus=4, nodes=(128 * MIB, 512 * MIB))
    text = line(guest)
    assert "-machine q35,hmat=on" in text
    assert f"memory-backend-ram,id=node0,size={128 * MIB}" in text
    assert "-numa node,nodeid=0,cpus=0-3,memdev=node0,initiator=0" in text
    assert "-numa node,nodeid=1,memdev=node1,initiator=0" in text
    slow = "hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-latency,latency=200"
    assert slow in text
    assert "numa" not in line(machine.Machine()) and "hmat" not in line(machine.Machine())
    image = tmp_path / "image"
    image.write_bytes(b"x")
    with pytest.raises(UsageError, match="would fill the guest's fast NUMA node"):
        line(guest, data=image, ram=True)


def test_machines_that_cannot_be() -> None:
    for options in (
        {"nodes": (64 * MIB, 64 * MIB)},
        {"memory": 65 * MIB, "nodes": (64 * MIB, 1 * MIB)},
        {"memory": 320 * MIB, "nodes": (64 * MIB,) * 5},
        {"accel": "xen"},
        {"cpus": 0},
        {"cpus": 65},
        {"memory": 1 * MIB},
        {"accel": "kvm", "deterministic": True},
    ):
        with pytest.raises(UsageError):
            machine.Machine(**options)
    with pytest.raises(UsageError, match="command line"):
        line(machine.Machine(append=("x" * 3000,)))
    with pytest.raises(UsageError, match="double quote"):
        line(machine.Machine(append=('a="b"',)))


def test_memory_sizes() -> None:
    assert machine.parse_memory("256M") == machine.parse_memory("256") == 256 * MIB
    assert machine.parse_memory("1g") == machine.parse_memory("1GiB") == 1024 * MIB
    assert machine.format_memory(256 * MIB) == "256M"
    assert machine.format_memory(2048 * MIB) == "2G"
    for bad in ("", "much", "-1M", "1X", "1.5G"):
        with pytest.raises(UsageError):
            machine.parse_memory(bad)


def test_job_encoding() -> None:
    job = machine.Job(["sh", "-c", "a b\n"], env={"A": "1=2"}, cwd="/x", writes={"/sys/f": "0"})
    assert job.encode() == (
        b"arg\0sh\0arg\0-c\0arg\0a b\n\0env\0A=1=2\0cwd\0/x\0write\0/sys/f=0\0"
    )
    staged = machine.Job(["a"], env={}, stage=(Path("/x/a"), Path("/y/b")))
    assert staged.encode() == b"arg\0a\0cwd\0/\0stage\0/x/a\0stage\0/y/b\0"
    assert b"cwd\0/\0swap\0zram\0" in machine.Job(["a"], env={}, swap="zram").encode()
    terminal = ["tty", "hvc0", "rows", "24", "cols", "80", ""]
    assert job.encode((24, 80)).decode().endswith("\0".join(terminal))
    with pytest.raises(UsageError):
        machine.Job(["a\0b"]).encode()


def test_oops_in_recorded_logs() -> None:
    oops = watch.find_oops(PANIC)
    assert oops[0] == "Kernel panic - not syncing: sysrq triggered crash"
    assert any("sysrq_handle_crash" in text for text in oops)
    oops = watch.find_oops(OOPS)
    assert oops[0].startswith("BUG: kernel NULL pointer dereference")
    assert len(oops) <= 40


def test_stalls_and_warnings_are_no_crash() -> None:
    log = "\r\n".join(
        [
            "mtrr: your CPUs had inconsistent MTRRdefType settings",
            "rcu: INFO: rcu_sched self-detected stall on CPU",
            "WARNING: CPU: 1 PID: 9 at mm/luf.c:12 luf_park+0x1/0x2",
            "Out of memory: Killed process 55 (mapped-read)",
        ]
    )
    assert watch.find_oops(log) == ()
    assert len(watch.find_warnings(log)) == 3
    assert watch.find_oops("watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [a:1]")


class Fake:
    """A script in place of QEMU; it finds the files of a run by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.console = folder / "console.log"
        self.frames = folder / "frames"
        for path in (self.console, self.frames):
            path.write_bytes(b"")

    def run(
        self, script: str, *, boot: float = 5, run: float = 5, fail: bool = True,
        cut: Callable[[], bool] | None = None,
    ) -> str:  # fmt: skip
        setup = f"cd {shlex.quote(str(self.folder))}; echo $$ > pid; "
        return watch.supervise(
            ["/bin/sh", "-c", setup + script],
            console=self.console,
            frames=self.frames,
            limits=watch.Limits(boot, run),
            qemu_log=self.folder / "qemu.log",
            fail_on_oops=fail,
            cut=cut,
        )

    def gone(self) -> bool:
        pid = int((self.folder / "pid").read_text())
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return True
        # Killed orphans may be zombies until init reaps them.
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(session) == pid and state not in "ZX":
                return False
        return True


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    one = Fake(tmp_path)
    yield one
    # A killed process takes a moment to end.
    deadline = time.monotonic() + 6
    while not one.gone():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_normal_end(fake: Fake) -> None:
    assert fake.run("echo quell-runner 1 > frames; echo booted > console.log") == "booted\n"


def test_guest_that_never_boots(fake: Fake) -> None:
    with pytest.raises(watch.GuestTimeout, match="did not boot within 0.3 s") as caught:
        fake.run("echo last words > console.log; sleep 60", boot=0.3)
    assert caught.value.log == fake.console
    assert "last words" in caught.value.detail


def test_command_that_hangs(fake: Fake) -> None:
    start = time.monotonic()
    with pytest.raises(watch.GuestTimeout, match="command in the guest did not end within 0.2 s"):
        fake.run("echo quell-runner 1 > frames; trap '' TERM; sleep 60", run=0.2)
    assert time.monotonic() - start < 3


@pytest.mark.parametrize("ends", ["", "; sleep 60"])
def test_panic(fake: Fake, ends: str) -> None:
    (fake.folder / "log").write_text(PANIC)
    with pytest.raises(watch.GuestPanic, match="sysrq triggered crash") as caught:
        fake.run(f"echo quell-runner 1 > frames; cat log > console.log{ends}")
    assert "sysrq_handle_crash" in caught.value.detail
    assert caught.value.log == fake.console and caught.value.exit_code == 1


def test_panic_may_be_wanted(fake: Fake) -> None:
    (fake.folder / "log").write_text(PANIC)
    assert "Kernel panic" in fake.run("cat log > console.log", fail=False)


def test_power_is_cut_when_it_is_asked_for(fake: Fake) -> None:
    start = time.monotonic()
    said = fake.run(
        "echo quell-runner 1 > frames; echo written > console.log; trap '' TERM; sleep 60",
        cut=lambda: fake.console.stat().st_size > 0,
    )
    assert said == "written\n"
    assert time.monotonic() - start < 4


def test_qemu_that_fails(fake: Fake) -> None:
    with pytest.raises(watch.GuestError, match="QEMU failed with exit code 1") as caught:
        fake.run("echo no such machine >&2; exit 1")
    assert caught.value.detail == "no such machine"


def test_missing_qemu(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such-qemu is missing"):
        watch.supervise(
            ["no-such-qemu"],
            console=tmp_path / "c",
            frames=tmp_path / "f",
            limits=watch.Limits(1, 1),
            qemu_log=tmp_path / "q",
        )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_or_killed_leaves_nothing(tmp_path: Path, number: int) -> None:
    code = f"""
import sys
from pathlib import Path
from quell import watch
f = Path({str(tmp_path)!r})
watch.supervise(["/bin/sh", "-c", "echo $$ > " + str(f / "pid") + "; exec sleep 60"],
    console=f / "c", frames=f / "f", limits=watch.Limits(60, 60), qemu_log=f / "q")
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    child = subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    pid_file = tmp_path / "pid"
    while not (pid_file.exists() and pid_file.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(number)
    child.wait(10)
    assert wait_until_gone(int(pid_file.read_text()))


# --- boot(): QEMU and the runner replaced, everything else real --------------


def ended(status: str) -> bytes:
    result = f"status {status}\nelapsed_ns 1\n".encode()
    return b"quell-runner 1\n@result %d\n%s\n@end 1\n" % (len(result), result)


class Scripted:
    """machine.boot with a script in place of QEMU; the file ``sent`` has a guest's report."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rundir = folder / "run"
        self.rundir.mkdir()
        self.cache = Cache(folder / "cache")
        self.script = ""
        (self.rundir / "sent").write_bytes(ended("exited 0"))
        monkeypatch.setattr(machine, "runner", lambda cache: Path("/c/runner"))
        monkeypatch.setattr(machine, "find_qemu", lambda cache: Qemu("qemu", "10.0.2"))
        monkeypatch.setattr(machine, "command_line", lambda *a, **k: ["/bin/sh", "-c", self.script])

    def run(self, script: str, argv: tuple[str, ...] = ("x",), accel: Any = "tcg", **options: Any) -> machine.GuestResult:
        """Boot; each start of the script is counted in ``tries``."""
        (self.rundir / "tries").write_text("")
        self.script = f"cd {self.rundir}; echo x >> tries; {script}"
        job = machine.Job(argv, cwd="/nowhere")
        return machine.boot(
            machine.Machine(accel=accel), Path("/k"), job, self.rundir, cache=self.cache, timeout=5, **options
        )

    def boot(self, frames: bytes, argv: tuple[str, ...] = ("x",)) -> machine.GuestResult:
        (self.rundir / "sent").write_bytes(frames)
        return self.run("cat sent > frames; echo out > stdout; echo err > stderr; echo l > console.log", argv)

    @property
    def tries(self) -> int:
        return len((self.rundir / "tries").read_text().splitlines())


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    return Scripted(tmp_path, monkeypatch)


def test_boot_exit_codes(guest: Scripted) -> None:
    result = guest.boot(ended("exited 3"))
    assert (result.exit_code, result.signal) == (3, None)
    assert (result.stdout, result.stderr, result.console) == ("out\n", "err\n", "l\n")
    result = guest.boot(ended("signalled 9"))
    assert (result.exit_code, result.signal) == (137, 9)


def test_boot_missing_command(guest: Scripted) -> None:
    with pytest.raises(UsageError, match="the command nosuch does not exist in the guest") as error:
        guest.boot(ended("noexec 2\nmessage No such file or directory"), ("nosuch",))
    assert error.value.exit_code == 2
    with pytest.raises(UsageError, match=r"the command x cannot run \(Permission denied\)"):
        guest.boot(ended("noexec 13\nmessage Permission denied"))
    with pytest.raises(UsageError, match="/nowhere cannot be entered"):
        guest.boot(ended("nodir 2\nmessage No such file or directory"))


def test_boot_truncated(guest: Scripted) -> None:
    with pytest.raises(FramesError, match="truncated") as caught:
        guest.boot(ended("exited 0")[:-4])
    assert caught.value.log == guest.rundir / "console.log"


def test_boot_that_could_not_be_prepared(guest: Scripted) -> None:
    with pytest.raises(watch.GuestError, match="prepared: no ext4"):
        guest.boot(b"quell-runner 1\n@failure 7\nno ext4\n@end 1\n")


def test_qemu_that_crashes_at_boot_is_started_again(guest: Scripted) -> None:
    assert guest.run("[ $(wc -l < tries) -gt 2 ] || kill -SEGV $$; cat sent > frames").exit_code == 0
    with pytest.raises(watch.QemuCrash, match="QEMU was ended by signal 11"):
        guest.run("kill -SEGV $$")


def test_guest_that_hangs_at_boot_is_started_again(guest: Scripted) -> None:
    assert guest.run("[ $(wc -l < tries) -gt 1 ] || sleep 60; cat sent > frames", boot_timeout=0.5).exit_code == 0
    with pytest.raises(watch.BootTimeout, match="did not boot within 0.5 s"):
        guest.run("sleep 60", boot_timeout=0.5)
    assert guest.tries == 3


def test_qemu_that_crashes_later_is_an_error(guest: Scripted) -> None:
    with pytest.raises(watch.GuestError, match="signal 11"):
        guest.run("cat sent > frames; sleep 0.1; kill -SEGV $$")
    assert guest.tries == 1


@pytest.mark.parametrize("fail_on_oops", [True, False])
def test_a_breakpoint_that_is_gone_boots_again(guest: Scripted, fail_on_oops: bool) -> None:
    (guest.rundir / "oops").write_text("[   85.1] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n")

    def boot(dies: int, **options: Any) -> machine.GuestResult:
        part = "echo part > stdout; cat oops > console.log"
        script = f"cat sent > frames; [ $(wc -l < tries) -gt {dies} ] || {{ {part}; }}"
        return guest.run(script, fail_on_oops=fail_on_oops, **options)

    # Under KVM it is an oops like any other.
    if fail_on_oops:
        with pytest.raises(watch.GuestPanic) as panic:
            boot(dies=1, accel="kvm")
        assert type(panic.value) is watch.GuestPanic
    else:
        assert boot(dies=1, accel="kvm").oops
    result = boot(dies=1)
    assert (result.exit_code, result.stdout, result.oops, guest.tries) == (0, "", (), 2)
    with pytest.raises(watch.GoneBreakpoint, match="Oops: int3"):
        boot(dies=9)
    assert guest.tries == 3
    # With ``cut`` the run acts outside of the guest: no retry.
    with pytest.raises(watch.GoneBreakpoint):
        boot(dies=1, cut=lambda: False)
    assert guest.tries == 1


# --- the accelerator ----------------------------------------------------------


def test_accelerator_is_probed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = []

    def hangs(*args: object, **options: object) -> machine.GuestResult:
        probes.append(options["timeout"])
        raise watch.GuestTimeout("the guest did not boot within 15 s and was stopped")

    monkeypatch.setattr(machine, "run_script", hangs)
    monkeypatch.setattr(machine, "find_qemu", lambda cache: Qemu("qemu", "10.0.2"))
    monkeypatch.setattr(os, "access", lambda *a: True)
    real = os.stat("/dev/null")
    stat = os.stat
    monkeypatch.setattr(
        os, "stat", lambda path, **k: real if path == "/dev/kvm" else stat(path, **k)
    )
    cache = Cache(tmp_path)
    for _ in range(2):
        accel = machine.choose_accelerator("auto", Path("/k"), cache)
        assert accel.name == "tcg" and "did not boot within 15 s" in accel.reason
    assert probes == [machine.PROBE_TIMEOUT_S]


def test_accelerator_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    monkeypatch.setattr(os, "access", lambda *a: False)
    assert machine.choose_accelerator("tcg", Path("/k"), cache).name == "tcg"
    assert machine.choose_accelerator("auto", Path("/k"), cache).name == "tcg"
    with pytest.raises(UsageError, match="/dev/kvm"):
        machine.choose_accelerator("kvm", Path("/k"), cache)
    with pytest.raises(UsageError, match="auto, kvm and tcg"):
        machine.choose_accelerator("xen", Path("/k"), cache)
