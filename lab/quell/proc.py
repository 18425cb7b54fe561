# SPDX-License-Identifier: GPL-2.0-only
"""Run programs without leftover processes.

Every program gets a process group of its own. A time-out, Ctrl-C and any exception
end the group. Two mechanisms handle a kill of the lab itself: the kernel signals the
program (PR_SET_PDEATHSIG), and a guard process ends the whole group when its pipe to
the lab closes. The guard leads the group, which reserves the group's number.
"""

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
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
    """A program exceeded its time-out and was ended; ``stdout`` and ``stderr`` are its output."""

    def __init__(self, message: str, stdout: str, stderr: str, log: Path | None) -> None:
        super().__init__(message, log=log)
        self.stdout = stdout
        self.stderr = stderr


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
            try:
                child.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                pass
    finally:
        os.killpg(guard.pid, signal.SIGKILL)
        if child is not None:
            child.wait()
        guard.wait()
        assert guard.stdin is not None
        guard.stdin.close()


def _missing(argv: Sequence[str], error: OSError) -> QuellError:
    if isinstance(error, FileNotFoundError) and error.filename == argv[0]:
        return UsageError(f"the program {argv[0]} is missing; ./quell doctor has the command to install it")
    return UsageError(f"cannot run {argv[0]}: {error.strerror}: {error.filename}")


class _Lines:
    """Splits a stream into lines for a callback; a carriage return ends a line too."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self.on_line = on_line
        self.rest = b""

    def feed(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self.on_line(line.decode(errors="replace"))

    def end(self) -> None:
        if self.rest:
            self.on_line(self.rest.decode(errors="replace"))
            self.rest = b""


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
    with ExitStack() as stack:
        source: IO[bytes] | int = subprocess.DEVNULL
        if stdin:
            source = stack.enter_context(tempfile.TemporaryFile())
            source.write(stdin.encode())
            source.seek(0)
        log_file = stack.enter_context(log.open("ab")) if log is not None else None
        out: list[bytes] = []
        err: list[bytes] = []
        child: subprocess.Popen[bytes] | None = None
        guard = _guard()
        try:
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
            except OSError as error:
                raise _missing(args, error) from error
            timed_out = _pump(child, timeout, out, err, log_file, on_line)
            if not timed_out:
                child.wait()
        finally:
            # Also after success: the program may have left processes.
            _end_group(guard, child)
            for stream in (child.stdout, child.stderr) if child else ():
                if stream is not None:
                    stream.close()
    stdout = b"".join(out).decode(errors="replace")
    stderr = b"".join(err).decode(errors="replace")
    if timed_out:
        raise Timeout(f"{args[0]} did not end within {timeout:g} s", stdout, stderr, log)
    if check and child.returncode != 0:
        raise QuellError(f"{args[0]} {how_ended(child.returncode)}", detail=tail(stderr or stdout), log=log)
    return Result(child.returncode, stdout, stderr)


def _pump(
    child: subprocess.Popen[bytes],
    timeout: float | None,
    out: list[bytes],
    err: list[bytes],
    log_file: IO[bytes] | None,
    on_line: Callable[[str], None] | None,
) -> bool:
    """Move data until the program ends; True when the time-out came first."""
    assert child.stdout is not None
    lines = _Lines(on_line) if on_line is not None else None
    deadline = None if timeout is None else time.monotonic() + timeout
    # The program's exit ends the loop, even if a stray child keeps the pipes open.
    pidfd = os.pidfd_open(child.pid)
    selector = selectors.DefaultSelector()
    try:
        selector.register(pidfd, selectors.EVENT_READ, None)
        selector.register(child.stdout, selectors.EVENT_READ, out)
        if child.stderr is not None:
            selector.register(child.stderr, selectors.EVENT_READ, err)
        ended = False
        while True:
            # After the exit, only take data that is already in the pipes.
            wait = 0.0 if ended else None
            if not ended and deadline is not None:
                wait = deadline - time.monotonic()
                if wait <= 0:
                    return True
            events = selector.select(wait)
            if ended and not events:
                break
            for key, _ in events:
                if key.fd == pidfd:
                    ended = True
                    selector.unregister(pidfd)
                else:
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fileobj)
                        continue
                    key.data.append(data)
                    if log_file is not None:
                        log_file.write(data)
                        log_file.flush()
                    if lines is not None:
                        lines.feed(data)
            if ended and not selector.get_map():
                break
        if lines is not None:
            lines.end()
        return False
    finally:
        selector.close()
        os.close(pidfd)


def how_ended(returncode: int) -> str:
    """``failed with exit code 3`` or ``was ended by signal 9``."""
    if returncode < 0:
        return f"was ended by signal {-returncode}"
    return f"failed with exit code {returncode}"


def tail(text: str, lines: int = 20) -> str:
    """The last ``lines`` lines of a text."""
    return "\n".join(text.rstrip().splitlines()[-lines:])
