# SPDX-License-Identifier: GPL-2.0-only
"""Run programs without leftover processes.

Every program gets a process group of its own. A time-out, Ctrl-C and any exception
end the group. Two mechanisms handle a kill of the lab itself: the kernel signals the
program (PR_SET_PDEATHSIG), and a guard process ends the whole group when its pipe to
the lab closes. The guard leads the group, which reserves the group's number.
"""

import math
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from quell.errors import QuellError, UsageError
from quell.foreground import die_with_parent

# Seconds between SIGTERM and SIGKILL to a group.
_GRACE_S = 3.0
# Its input ends with the lab; nothing is ever written to it. Group 0 is its own.
_GUARD = "trap '' TERM INT HUP QUIT; read -r line; kill -s TERM 0; sleep 2; kill -s KILL 0"


@dataclass(frozen=True)
class Result:
    """The end of a program. ``returncode`` is negative for a signal, as in subprocess."""

    returncode: int
    stdout: str
    stderr: str


class Timeout(QuellError):
    """A program exceeded its time-out and was ended."""


def _guard() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARD],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )


def _end_group(guard: subprocess.Popen[bytes], child: subprocess.Popen[bytes] | None) -> None:
    """TERM the group, wait for a grace period, then KILL the rest of it with the guard.

    There is no wait for other processes: init may leave them zombies.
    """
    try:
        if child is not None and child.poll() is None:
            os.killpg(guard.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_S)
    finally:
        os.killpg(guard.pid, signal.SIGKILL)
        if child is not None:
            child.wait()
        guard.wait()
        assert guard.stdin is not None
        guard.stdin.close()


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    log: Path | None = None,
    stdin: str = "",
    check: bool = True,
    on_line: Callable[[str], None] | None = None,
) -> Result:
    """Run a program to its end and return its output.

    ``env`` is added to our own environment. ``timeout`` is in seconds.
    With ``log`` or ``on_line``, stderr is joined with stdout: all of it goes to
    the file ``log`` (appended to), line by line to ``on_line``, and is returned
    as ``stdout``.

    UsageError when the program is missing, Timeout on a time-out, and with ``check``
    QuellError for an exit code other than 0 (the last lines are the detail).
    """
    args = [str(arg) for arg in argv]
    merged = log is not None or on_line is not None
    out, err, rest = bytearray(), bytearray(), b""

    def take(data: bytes) -> None:
        nonlocal rest
        out.extend(data)
        if log_file is not None:
            log_file.write(data)
        # A carriage return ends a line, too.
        *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
        if on_line is not None:
            for line in lines:
                on_line(line.decode(errors="replace"))

    with ExitStack() as stack:
        source: IO[bytes] | int = subprocess.DEVNULL
        if stdin:
            source = stack.enter_context(tempfile.TemporaryFile())
            source.write(stdin.encode())
            source.seek(0)
        log_file = stack.enter_context(log.open("ab", buffering=0)) if log is not None else None
        child: subprocess.Popen[bytes] | None = None
        guard = _guard()
        try:
            child = subprocess.Popen(
                args,
                cwd=cwd,
                env={**os.environ, **env} if env is not None else None,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merged else subprocess.PIPE,
                process_group=guard.pid,
                preexec_fn=die_with_parent(os.getpid()),
            )
            stack.enter_context(child)
            in_time = _pump(child, timeout, take, err.extend)
        except OSError as error:
            if error.filename != args[0]:
                raise
            raise UsageError(f"{args[0]} cannot be run: {error.strerror}; ./quell doctor may know why") from error
        finally:
            # Also after success: the program may have left processes.
            _end_group(guard, child)
    if rest and on_line is not None:
        on_line(rest.decode(errors="replace"))
    if not in_time:
        raise Timeout(f"{args[0]} did not end within {timeout:g} s", log=log)
    stdout, stderr = (text.decode(errors="replace") for text in (out, err))
    if check and child.returncode != 0:
        raise QuellError(f"{args[0]} {how_ended(child.returncode)}", detail=tail(stderr or stdout), log=log)
    return Result(child.returncode, stdout, stderr)


def _pump(
    child: subprocess.Popen[bytes],
    timeout: float | None,
    out: Callable[[bytes], object],
    err: Callable[[bytes], object],
) -> bool:
    """Pass on the program's output until it ends; False when the time-out came first."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    # The program's exit ends the loop, even if a stray child keeps the pipes open.
    pidfd = open(os.pidfd_open(child.pid), "rb", buffering=0)
    with pidfd, selectors.DefaultSelector() as selector:
        for stream, take in ((pidfd, None), (child.stdout, out), (child.stderr, err)):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, take)
        ended = False
        while ended or time.monotonic() < deadline:
            # After the exit, only take data that is already in the pipes.
            left = None if timeout is None else deadline - time.monotonic()
            events = selector.select(0 if ended else left)
            if ended and not events:
                break
            for key, _ in events:
                if key.data is None:
                    ended = True
                    selector.unregister(pidfd)
                elif data := os.read(key.fd, 65536):
                    key.data(data)
                else:
                    selector.unregister(key.fileobj)
        return ended


def how_ended(returncode: int) -> str:
    """``failed with exit code 3`` or ``was ended by signal 9``."""
    if returncode < 0:
        return f"was ended by signal {-returncode}"
    return f"failed with exit code {returncode}"


def tail(text: str, lines: int = 20) -> str:
    """The last ``lines`` lines of a text."""
    return "\n".join(text.rstrip().splitlines()[-lines:])
