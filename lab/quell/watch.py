# SPDX-License-Identifier: GPL-2.0-only
"""Run QEMU until a guest ends, and watch its console for crashes and its limits of time."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from quell import proc, procfs
from quell.errors import QuellError, UsageError
from quell.foreground import die_with_parent

# Seconds between the first line of an oops and the end of the guest, for the rest of its lines.
_OOPS_GRACE_S = 1.5
_POLL_S = 0.03
_OOPS_LINES = 40

_FATAL = re.compile(
    r"Kernel panic|\bBUG: |kernel BUG at|\bOops\b|general protection fault|soft lockup"
    r"|Unable to handle kernel|double fault"
)
_WARNING = re.compile(r"WARNING: |rcu: INFO: .* stall|Out of memory: Killed|oom-kill:|blocked for more than")


class GuestError(QuellError):
    """A guest failed."""


class GuestPanic(GuestError):
    """The guest's kernel crashed; the detail shows its oops."""


class GoneBreakpoint(GuestPanic):
    """The guest's kernel died of a removed breakpoint that QEMU still executed; see qemu.py."""


class QemuCrash(GuestError):
    """QEMU itself died of a signal before the guest's first output."""


class GuestTimeout(GuestError):
    """The guest did not end in time and was stopped."""


class BootTimeout(GuestTimeout):
    """The guest had no output in time and was stopped."""


def find_oops(console: str) -> tuple[str, ...]:
    """The lines of the first crash in a console log, empty if there is none."""
    lines = console.replace("\r", "").splitlines()
    for i, line in enumerate(lines):
        if _FATAL.search(line):
            start = i
            while start > max(0, i - 3) and "cut here" in lines[start - 1]:
                start -= 1
            return tuple(lines[start : start + _OOPS_LINES])
    return ()


def find_warnings(console: str) -> tuple[str, ...]:
    """The warnings of a console log that are no crash: WARN, stalls, OOM kills."""
    lines = console.replace("\r", "").splitlines()
    return tuple(line for line in lines if _WARNING.search(line))


@dataclass(frozen=True)
class Limits:
    """Seconds: ``boot`` until the guest's first output, ``run`` from then to its end."""

    boot: float
    run: float


@contextmanager
def _started(argv: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is gone after the block, also after an exception."""
    tied = die_with_parent(os.getpid(), signal.SIGKILL)
    try:
        child = subprocess.Popen(list(argv), preexec_fn=tied, **options)
    except FileNotFoundError as error:
        raise UsageError(
            f"the program {argv[0]} is missing; ./quell doctor has the command to install it"
        ) from error
    try:
        yield child
    finally:
        if child.poll() is None:
            if options.get("start_new_session"):
                try:
                    os.killpg(child.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            child.kill()
        child.wait()


def supervise(
    argv: Sequence[str],
    *,
    console: Path,
    frames: Path,
    limits: Limits,
    qemu_log: Path,
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
    terminal: bool = False,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    fail_on_oops: bool = True,
    emulated: bool = True,
    cut: Callable[[], bool] | None = None,
) -> str:
    """Run QEMU until it ends by itself, or ``cut`` is true and its power is cut; the console's text.

    ``env`` is added to its environment. GuestPanic with the oops when the console shows one;
    GoneBreakpoint (with ``fail_on_oops=False``, too) where the emulation may have caused it;
    GuestTimeout at a limit. Each names the console log. GuestError when QEMU itself fails
    (QemuCrash before the guest's first output). QEMU is gone when this returns or raises.
    """
    with ExitStack() as stack:
        options: dict[str, Any] = {"pass_fds": tuple(pass_fds), "env": {**os.environ, **(env or {})}}
        if not terminal:
            out = stack.enter_context(qemu_log.open("wb"))
            options |= {"stdin": stdin, "stdout": out, "stderr": out, "start_new_session": True}
        child = stack.enter_context(_started(argv, **options))
        start = time.monotonic()
        booted: float | None = None
        oopsed: float | None = None
        seen = 0
        while child.poll() is None:
            time.sleep(_POLL_S)
            now = time.monotonic()
            if booted is None and _size(frames) > 0:
                booted = now
            if cut is not None and cut():
                return procfs.read(console)
            size = _size(console)
            if size != seen and fail_on_oops and oopsed is None:
                seen = size
                if find_oops(procfs.read(console)):
                    oopsed = now
            if oopsed is not None:
                if now - oopsed > _OOPS_GRACE_S:
                    break
            elif booted is None and now - start > limits.boot:
                raise _timeout("the guest did not boot", limits.boot, console, BootTimeout)
            elif booted is not None and now - booted > limits.run:
                raise _timeout("the command in the guest did not end", limits.run, console)
    text = procfs.read(console)
    oops = find_oops(text)
    int3 = emulated and any("Oops: int3" in line for line in oops[:3])
    if oops and (fail_on_oops or int3):
        kind = GoneBreakpoint if int3 else GuestPanic
        raise kind(f"the guest's kernel crashed: {_headline(oops)}", detail="\n".join(oops), log=console)
    if child.returncode not in (0, None) and not oops:
        detail = proc.tail(procfs.read(qemu_log), 10) if not terminal else ""
        crashed = child.returncode < 0 and booted is None and _size(frames) == 0
        fault = QemuCrash if crashed else GuestError
        raise fault(f"QEMU {proc.how_ended(child.returncode)}", detail=detail, log=qemu_log)
    return text


def _timeout(what: str, seconds: float, console: Path, kind: type[GuestTimeout] = GuestTimeout) -> GuestTimeout:
    return kind(
        f"{what} within {seconds:g} s and was stopped",
        detail=proc.tail(procfs.read(console).replace("\r", ""), 12),
        log=console,
    )


def _headline(oops: Sequence[str]) -> str:
    line = next(line for line in oops if _FATAL.search(line))
    return re.sub(r"^\[[ \d.]+\]\s*", "", line).strip()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
