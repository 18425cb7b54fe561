# SPDX-License-Identifier: GPL-2.0-only
"""Compare on this machine, which runs a Quell kernel: the sides are states of its switches.

Every end of the comparison but SIGKILL restores the switches:

- Signals never interrupt a step of this module. ``Here.noted`` notes them; they end the comparison
  between two runs, or while the command runs (``_wait``). All changes are then undone in order.
- Only ``Here._switched`` writes to the switches, in one process at a time (a lock on their folder).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quell import counters, proc, procfs, results, ui
from quell.errors import QuellError, UsageError
from quell.foreground import die_with_parent
from quell.frames import Frames
from quell.paths import Cache
from quell.sides import Side, parse, switches

if TYPE_CHECKING:
    from quell.engine import Plan, Request

# Without --side: all of Quell's mechanisms off, and on.
SIDES = (parse("off=quell,quell=off"), parse("on=quell,quell=on"))
OFF_IS_NOT_STOCK = (
    "off is the Quell kernel with its mechanisms switched off: Quell's larger structures and the tests of its "
    "switches stay, and neither was compared with a stock kernel here."
)
# perf's events, and their figures.
_EVENTS = {
    "dTLB-load-misses": "dtlb_load_misses",
    "dTLB-store-misses": "dtlb_store_misses",
    "iTLB-load-misses": "itlb_misses",
    "cycles": "cycles",
    "context-switches": "context_switches",
}
# perf is a parent of the command and faults itself, so it counts these, too.
_FAULTS = {"minor-faults": "minflt", "major-faults": "majflt"}
# perf exits with 0 if a signal ended the command: a shell between them keeps the real status.
_KEEP_STATUS = '"$@"; echo $? >"$0"'
_SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGXCPU,
)  # fmt: skip


@dataclass
class Here:
    """This machine. ``root`` is the folder of /proc and /sys (the tests have their own).

    ``events`` are the available events of perf, ``absent`` has a sentence on the others.
    """

    cache: Cache
    keep_caches: bool = False
    root: Path = Path("/")
    events: tuple[str, ...] = ()
    absent: list[str] = field(default_factory=list)
    interrupted: bool = False
    lock: int = -1

    @classmethod
    def prepare(cls, request: Request, cache: Cache, root: Path = Path("/")) -> Here:
        """This machine, if it can be measured; else UsageError with the remedy."""
        if not (root / "sys/kernel/mm/quell").is_dir():
            raise UsageError(
                f"this machine runs Linux {platform.release()} without Quell: ./quell deb --config running "
                "makes packages of a Quell kernel to install and boot"
            )
        if os.geteuid() != 0:
            raise UsageError("compare --here changes the kernel's switches and needs root: run it with sudo")
        for side in request.sides:
            if side.kernel != "quell" or any(not p.startswith("quell=") for p in side.parameters):
                raise UsageError(
                    f"side {side.name}: with --here a side is {side.name}=quell,quell=...: the kernel stays"
                )
        here = cls(cache, request.keep_caches, root)
        states = {path.parent.name: value for path, value in here._state().items()}
        for side in request.sides:
            for name in sorted(switches(side).keys() & (side.quell or "").split(",")):
                if states.get(name) not in ("0", "1"):
                    why = states.get(name, "the running kernel was built without it")
                    raise UsageError(f"side {side.name}: {name} stays off on this machine: {why}")
        stay = {name: value for name, value in states.items() if value not in ("0", "1")}
        here.absent += [f"{name} stays off on this machine: {value}." for name, value in stay.items()]
        here.lock = os.open(here.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(here.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError("another compare --here runs on this machine; wait for its end") from None
        here._probe_perf()
        return here

    def __del__(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)

    @property
    def folder(self) -> Path:
        """The switches' folder."""
        return self.root / "sys/kernel/mm/quell"

    def _probe_perf(self) -> None:
        """Find the events that perf can count here."""
        wanted = [*_EVENTS, *_FAULTS]
        counts = {}
        with suppress(QuellError):
            counts = _perf_counts(proc.run(["perf", *_perf_stat(wanted), "true"], timeout=30, check=False).stderr)
        self.events = tuple(event for event in wanted if event in counts)
        if lacking := [event for event in _EVENTS if event not in counts]:
            self.absent.append(
                f"{', '.join(lacking)} were not counted: perf (Debian's linux-perf) is not installed or lacks them."
            )

    # --- signals ---

    def check(self) -> None:
        """KeyboardInterrupt after a signal."""
        if self.interrupted:
            raise KeyboardInterrupt

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note signals inside. Ctrl-Z is ignored: a stopped lab would leave the switches changed."""

        def note(number: int, frame: object) -> None:
            self.interrupted = True

        before = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGTSTP)}
        for number, handler in before.items():
            if handler != signal.SIG_IGN:  # nohup
                signal.signal(number, signal.SIG_IGN if number == signal.SIGTSTP else note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        self.check()

    # --- switches ---

    def _state(self) -> dict[Path, str]:
        """The switches: "0", "1", or "0 (REASON)" if the kernel refuses to switch one on."""
        return {path: path.read_text().strip() for path in sorted(self.folder.glob("*/enabled"))}

    @contextmanager
    def _switched(self, side: Side) -> Iterator[None]:
        """Set a side's mechanisms; restore the switches at the end."""
        before = self._state()
        wanted = switches(side)
        try:
            for path, value in before.items():
                new = str(int(wanted[path.parent.name])) if path.parent.name in wanted else value
                if new != value and value in ("0", "1"):
                    path.write_text(new)
            yield
        finally:
            for path, value in before.items():
                try:
                    if path.read_text().strip() != value:
                        path.write_text(value)
                except OSError as error:
                    ui.warn(f"the switch {path.parent.name} could not be restored: {error.strerror}")

    # --- one run ---

    def run(self, side: Side, plan: Plan, rundir: Path) -> counters.Sample:
        """See ``engine.Place``."""
        self.check()
        with self._switched(side):
            if not self.keep_caches:
                os.sync()
                (self.root / "proc/sys/vm/drop_caches").write_text("3")
            sections, perf = self._counted(plan, rundir)
        stdout = (rundir / "stdout").read_text(errors="replace")
        sample = counters.sample(Frames(sections), stdout, lenient=True)
        sample.metrics.update({_EVENTS[event]: value for event, value in perf.items() if event in _EVENTS})
        return sample

    def _counted(self, plan: Plan, rundir: Path) -> tuple[dict[str, bytes], dict[str, int]]:
        """Run the command between two readings of the counters: the frames, and perf's counts."""
        log, code = rundir / "perf", rundir / "status"
        argv = list(plan.job.argv)
        if self.events:
            argv = ["sh", "-c", _KEEP_STATUS, str(code), *argv]
            argv = ["perf", *_perf_stat(self.events), "-o", str(log), "--", *argv]
        with _cgroup(self.root) as group, (rundir / "stdout").open("wb") as out, (rundir / "stderr").open("wb") as err:
            before = self._snapshot("before")
            start = time.monotonic_ns()
            usage, status = _wait(argv, group, out.fileno(), err.fileno(), plan.timeout, self.check)
            elapsed = time.monotonic_ns() - start
            after = self._snapshot("after")
            peak = procfs.read(group / "memory.peak").strip() if group else ""
        perf = _perf_counts(procfs.read(log))
        faults = {"minflt": usage.ru_minflt, "majflt": usage.ru_majflt}
        faults |= {_FAULTS[event]: value for event, value in perf.items() if event in _FAULTS}
        if self.events:
            if not (said := procfs.read(code).strip()).isdigit():
                raise QuellError("perf did not run the command to its end", detail=procfs.read(rundir / "stderr")[-500:])
            status = int(said)
        how = f"signalled {-status}" if status < 0 else f"exited {status}"
        lines = [
            f"status {how}", f"elapsed_ns {elapsed}", f"user_us {usage.ru_utime * 1e6:.0f}",
            f"system_us {usage.ru_stime * 1e6:.0f}", *(f"{k} {v}" for k, v in faults.items()),
            *([f"memory_peak {peak}"] if peak else []),
        ]  # fmt: skip
        guest = f"hz {os.sysconf('SC_CLK_TCK')}\n"
        return {**before, **after, "result": "\n".join(lines).encode(), "guest": guest.encode()}, perf

    def _snapshot(self, when: str) -> dict[str, bytes]:
        files = {name: self.root / "proc" / name for name in ("interrupts", "vmstat")}
        sections = {f"{when}/{name}": file.read_bytes() for name, file in files.items()}
        kswapd = [
            path.with_name("stat").read_bytes()
            for path in (self.root / "proc").glob("[0-9]*/comm")
            if procfs.read(path).startswith("kswapd")
        ]
        return {**sections, f"{when}/kswapd": b"".join(kswapd)}

    def facts(self, request: Request) -> tuple[dict[str, Any], dict[str, dict[str, str]], list[str]]:
        """See ``engine.Place``."""
        release = platform.release()
        reason = f"this machine, {request.runs} runs on each side" + (", caches kept" if self.keep_caches else "")
        compiler = re.search(r"\(([\w-]*gcc[^,#]*|clang[^,#]*)", procfs.read(self.root / "proc/version"))
        environment = results.environment(
            source=release.partition("-")[0], accelerator={"name": "here", "reason": reason}, deterministic=False,
            runs=request.runs, qemu="none", compiler=compiler[1] if compiler else "unknown",
        )  # fmt: skip
        config = procfs.read(self.root / f"boot/config-{release}").encode()
        kernel = {"release": release, "config_hash": hashlib.sha256(config).hexdigest(), "key": "running"}
        notes = [OFF_IS_NOT_STOCK, *self.absent]
        if "nr_tlb_remote_flush" not in procfs.read(self.root / "proc/vmstat"):
            notes.append("Flush requests were not counted: the kernel has no CONFIG_DEBUG_TLBFLUSH.")
        return environment, {side.name: kernel for side in request.sides}, notes


def _perf_stat(events: tuple[str, ...] | list[str]) -> list[str]:
    return ["stat", "-x", ",", "-e", ",".join(events)]


def _perf_counts(text: str) -> dict[str, int]:
    """The counts of ``perf stat -x ,`` by event; an event without a count is left out."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"(\d+),[^,]*,([\w-]+)(?::\w+)?,", line)
        if match:
            found[match[2]] = int(match[1])
    return found


@contextmanager
def _cgroup(root: Path) -> Iterator[Path | None]:
    """A control group for the command: it counts peak memory, and its processes end with it.

    None without control groups of version 2.
    """
    base = root / "sys/fs/cgroup"
    group = base / f"quell-{os.getpid()}"
    with suppress(OSError):  # then the peak is not known
        (base / "cgroup.subtree_control").write_text("+memory")
    try:
        group.mkdir(exist_ok=True)
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        try:
            (group / "cgroup.kill").write_text("1")
            for _ in range(100):
                if "populated 1" not in procfs.read(group / "cgroup.events"):
                    break
                time.sleep(0.02)
            for path in sorted((p.parent for p in group.rglob("cgroup.procs")), reverse=True):
                path.rmdir()
        except OSError as error:
            ui.warn(f"the control group {group} could not be removed: {error.strerror}")


def _wait(
    argv: list[str], group: Path | None, stdout: int, stderr: int, timeout: float, check: Callable[[], None]
) -> tuple[Any, int]:
    """Run a command to its end: (rusage, exit code or minus a signal). Its session ends with it.

    ``check`` is called meanwhile; its exception ends the command.
    """
    parent = os.getpid()

    def enter() -> None:
        die_with_parent(parent)()
        for number in (*_SIGNALS, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        if group is not None:
            (group / "cgroup.procs").write_text("0")

    child = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True, preexec_fn=enter
    )
    end = time.monotonic() + timeout
    try:
        delay = 0.0005
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                child.returncode = os.waitstatus_to_exitcode(status)
                return usage, child.returncode
            check()
            if time.monotonic() > end:
                raise QuellError(f"the command did not end within {timeout:g} s and was stopped")
            time.sleep(delay)
            delay = min(delay * 2, 0.01)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        if child.returncode is None:
            child.wait()
