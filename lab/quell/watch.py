# SPDX-License-Identifier: GPL-2.0-only
"""Run QEMU until a guest ends, and watch its console for crashes and its limits of time."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from quell import proc, procfs
from quell.errors import QuellError
from quell.foreground import die_with_parent

# Seconds between the first line of an oops and the end of the guest, for the rest of its lines.
_OOPS_GRACE_S = 1.5
_POLL_S = 0.03
_OOPS_LINES = 40
# For an answer of QEMU.
_ANSWER_S = 5.0

_FATAL = re.compile(
    r"Kernel panic|\bBUG: |kernel BUG at|\bOops\b|general protection fault|soft lockup"
    r"|Unable to handle kernel|double fault|pagealloc: "
)
# A CPU's timer interrupt is in service while the next one waits. Linux ends the service first of all:
# QEMU took the interrupt and did not run the handler. Seen once in several thousand guests.
_LOST_TIMER = re.compile(r"^LVTT\b.*\(vec (\d+)\)(?:\n(?!LVTT|ISR).*)*\nISR\b.*\b\1\b.*\nIRR\b.*\b\1\b", re.M)
_WARNING = re.compile(r"WARNING: |rcu: INFO: .* stall|Out of memory: Killed|oom-kill:|blocked for more than")


class GuestError(QuellError):
    """A guest failed. ``retry``: emulation may be the cause, and nothing outside of the guest saw a part of the run."""

    def __init__(self, message: str, *, detail: str = "", log: Path | None = None, retry: bool = False) -> None:
        super().__init__(message, detail=detail, log=log)
        self.retry = retry


class GuestPanic(GuestError):
    """The guest's kernel crashed; the detail shows its oops."""


class GuestTimeout(GuestError):
    """The guest did not end in time and was stopped."""


def find_oops(console: str) -> tuple[str, ...]:
    """The lines of the first crash in a console log, empty if there is none."""
    lines = console.replace("\r", "").splitlines()
    for i, line in enumerate(lines):
        if _FATAL.search(line):
            start = i - 1 if i and "cut here" in lines[i - 1] else i
            return tuple(lines[start : start + _OOPS_LINES])
    return ()


def find_warnings(console: str) -> tuple[str, ...]:
    """The warnings of a console log that are no crash: WARN, stalls, OOM kills."""
    lines = console.replace("\r", "").splitlines()
    return tuple(line for line in lines if _WARNING.search(line))


def supervise(
    argv: Sequence[str],
    rundir: Path,
    *,
    boot_timeout: float,
    timeout: float,
    emulated: bool,
    fail_on_oops: bool = True,
    env: Mapping[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
    terminal: bool = False,
    poll: Callable[[], bool] | None = None,
) -> str:
    """Run QEMU until it ends by itself, or ``poll`` is true and its power is cut; the console's text.

    ``boot_timeout`` are seconds until the guest's first output, ``timeout`` from then to its end.
    QEMU writes its console, frames and messages to files in ``rundir``; with ``terminal`` it has our
    terminal. ``env`` is added to its environment.

    GuestPanic with the oops when the console shows one, also with ``fail_on_oops=False`` if QEMU
    executed a removed breakpoint (qemu.py); GuestTimeout at a limit, with the state of its CPUs at
    the end of the log; GuestError when QEMU itself fails. Each names a log. QEMU is gone when this returns or raises.
    """
    console, frames = rundir / "console.log", rundir / "frames"
    with ExitStack() as stack:
        streams: dict[str, Any] = {}
        if not terminal:
            out = stack.enter_context((rundir / "qemu.log").open("wb"))
            streams = {"stdin": stdin, "stdout": out, "stderr": out, "start_new_session": True}
        tied = die_with_parent(os.getpid(), signal.SIGKILL)
        monitor, its = map(stack.enter_context, socket.socketpair())
        argv = [*argv, "-chardev", f"socket,id=monitor,fd={its.fileno()}", "-mon", "chardev=monitor,mode=control"]
        streams["pass_fds"] = [its.fileno()]
        child = subprocess.Popen(argv, env={**os.environ, **(env or {})}, preexec_fn=tied, **streams)
        stack.enter_context(child)
        stack.callback(child.kill)
        start = time.monotonic()
        booted: float | None = None
        oopsed: float | None = None
        seen = 0
        unseen = poll is None and not terminal
        while child.poll() is None:
            time.sleep(_POLL_S)
            now = time.monotonic()
            if booted is None and frames.stat().st_size > 0:
                booted = now
            if poll is not None and poll():
                return procfs.read(console)
            size = console.stat().st_size
            if size != seen and fail_on_oops and oopsed is None:
                seen = size
                if find_oops(procfs.read(console)):
                    oopsed = now
            if oopsed is not None:
                if now - oopsed > _OOPS_GRACE_S:
                    break
            elif booted is None and now - start > boot_timeout:
                raise _timeout("the guest did not boot", boot_timeout, console, _cpus(monitor), retry=emulated)
            elif booted is not None and now - booted > timeout:
                state = _cpus(monitor)
                lost = emulated and unseen and bool(_LOST_TIMER.search(state))
                raise _timeout("the command in the guest did not end", timeout, console, state, retry=lost)
    text = procfs.read(console)
    oops = find_oops(text)
    int3 = emulated and any("Oops: int3" in line for line in oops[:3])
    if oops and (fail_on_oops or int3):
        headline = re.sub(r"^\[[ \d.]+\]\s*", "", next(filter(_FATAL.search, oops))).strip()
        says = f"the guest's kernel crashed: {headline}"
        raise GuestPanic(says, detail="\n".join(oops), log=console, retry=int3 and unseen)
    if child.returncode != 0 and not oops:
        log = rundir / "qemu.log"
        crashed = child.returncode < 0 and frames.stat().st_size == 0
        says = f"QEMU {proc.how_ended(child.returncode)}"
        raise GuestError(says, detail=proc.tail(procfs.read(log), 10), log=log, retry=emulated and crashed)
    return text


def _timeout(what: str, seconds: float, console: Path, state: str, *, retry: bool) -> GuestTimeout:
    detail = proc.tail(procfs.read(console).replace("\r", ""), 12)
    if state:
        with console.open("a") as log:
            log.write(f"\nThe CPUs then:\n{state}")
    return GuestTimeout(f"{what} within {seconds:g} s and was stopped", detail=detail, log=console, retry=retry)


def _cpus(monitor: socket.socket) -> str:
    """Where each CPU is and its interrupts, through QMP; "" if QEMU does not answer."""
    monitor.settimeout(_ANSWER_S)
    lines = monitor.makefile()

    def ask(command: str, **arguments: str) -> Any:
        monitor.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while "return" not in (said := json.loads(lines.readline())):
            pass
        return said["return"]

    with suppress(OSError, ValueError):
        ask("qmp_capabilities")
        registers = ask("human-monitor-command", **{"command-line": "info registers -a"})
        cpus = re.findall(r"^(?:CPU#|RIP=).*", registers.replace("\r", ""), re.M)
        lapics = [ask("human-monitor-command", **{"command-line": f"info lapic {n}"}) for n in range(len(cpus) // 2)]
        return "\n".join([*cpus, *(text.replace("\r", "") for text in lapics)])
    return ""
