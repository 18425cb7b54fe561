# SPDX-License-Identifier: GPL-2.0-only
"""Interactive programs on our own terminal. Runs on Python 3.9, as ``./quell top`` uses it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from quell.errors import QuellError

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
# Seconds between SIGTERM and SIGKILL.
_GRACE_S = 3.0


def die_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """For ``preexec_fn``: signal the program when ``parent``, its starter, dies."""

    def setup() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # died before the line above
            os._exit(1)

    return setup


def check(name: str) -> None:
    """QuellError with a shell's message and exit code if there is no such program."""
    if shutil.which(name) is None:
        if "/" in name and os.path.exists(name):
            raise QuellError(f"{name}: not an executable file", exit_code=126)
        raise QuellError(f"{name}: command not found", exit_code=127)


@contextmanager
def started(
    argv: Sequence[str | Path], *, stdout: IO[str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs; it is ended if the body fails, and signalled if we die.

    It stays in our process group, so it owns the terminal and gets Ctrl-C itself; we ignore Ctrl-C
    until it ends. QuellError as from ``check()`` if it cannot be run.
    """
    args = [str(arg) for arg in argv]
    check(args[0])
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    tied = die_with_parent(os.getpid())

    def setup() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        tied()

    try:
        try:
            child = subprocess.Popen(args, stdout=stdout, preexec_fn=setup)
        except OSError as error:
            raise QuellError(f"{args[0]}: {error.strerror}", exit_code=126) from error
        try:
            yield child
            child.wait()
        except BaseException:
            child.terminate()
            try:
                child.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            raise
    finally:
        signal.signal(signal.SIGINT, previous)


def run(argv: Sequence[str | Path]) -> int:
    """Run a program to its end; its exit code (128 + N for a signal)."""
    with started(argv) as child:
        code = child.wait()
    return code if code >= 0 else 128 - code
