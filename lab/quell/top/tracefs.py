# SPDX-License-Identifier: GPL-2.0-only
"""Private trace instances, removed however ``top`` ends.

All tracing happens in ``instances/quell-PID-*``. The machine's own trace buffer, events, options and
triggers are not touched, and removing an instance takes its events and triggers with it. tracefs is
mounted on no path: such a mount needs no folder, and ends with its last open file.

- SIGKILL: a guard process in a session of its own removes the instances, as it does at the normal end,
  after an exception and a signal; its input ends with us.
- SIGKILL of both: the next ``top`` does. Instances in use are busy: their trace_pipe is open.

Tests: ``test_leaves_tracefs_as_it_was``, ``test_killed_with_its_guard_is_swept_by_the_next``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from quell.errors import UsageError

# The same on all architectures; fsopen() and its like are in Linux 5.2 and later.
_SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = 430, 431, 432
_FSCONFIG_CMD_CREATE = 6
_CLOEXEC = 1
_PREFIX = "quell-"
# Several rounds: the kernel may still be closing our files when the guard's input ends.
_GUARD = """
trap '' TERM INT HUP QUIT
read -r line
cd "$1" || exit
for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	ls -d "$2"* || exit 0
	rmdir "$2"* && exit
	sleep 0.2
done
"""


@contextmanager
def _refusals(action: str) -> Iterator[None]:
    """A UsageError instead of an OSError."""
    try:
        yield
    except OSError as error:
        message = f"{action} fails: {error.strerror}"
        if error.errno in (errno.EPERM, errno.EACCES):
            message += (
                "; it needs root with CAP_SYS_ADMIN, which most containers lack, on a kernel without "
                "lockdown: sudo ./quell top"
            )
        raise UsageError(message) from error


def mounted() -> int:
    """A file of tracefs, mounted on no path."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    fd: int = -1
    context = call(_SYS_FSOPEN, b"tracefs", _CLOEXEC)
    if context >= 0:
        call(_SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        fd = call(_SYS_FSMOUNT, context, _CLOEXEC, 0)
        os.close(context)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd


@contextmanager
def session() -> Iterator[Session]:
    """The place to make instances in; all of them are removed at its end. UsageError without tracefs."""
    with _refusals("mounting tracefs"):
        mount = mounted()
    with ExitStack() as stack:
        stack.callback(os.close, mount)
        one = Session(mount)
        # With the end of its input it removes the instances.
        stack.callback(one.guard.communicate)
        stack.enter_context(one.files)
        yield one


def sweep(instances: Path) -> None:
    """Remove all instances that no ``top`` uses."""
    for path in instances.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # in use, or gone
            path.rmdir()


class Session:
    """The instances of one ``top``, and their guard, which inherits ``mount``."""

    def __init__(self, mount: int) -> None:
        self.root = Path(f"/proc/self/fd/{mount}")
        self.instances = self.root / "instances"
        self.prefix = f"{_PREFIX}{os.getpid()}-"
        self.files = ExitStack()
        with _refusals("opening tracefs"), self.lock():
            sweep(self.instances)
        self.guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "quell-guard", self.instances, self.prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[mount],
            start_new_session=True,
        )

    def has(self, name: str) -> bool:
        """Whether a file such as ``events/csd`` exists."""
        return (self.root / name).exists()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep others from sweeping: a new instance is not in use yet."""
        fd = os.open(self.instances, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def instance(self, suffix: str) -> Instance:
        """A new one, with tracing off and no event enabled. UsageError if the kernel refuses."""
        path = self.instances / f"{self.prefix}{suffix}"
        with _refusals("making a trace instance"), self.lock():
            path.mkdir()
            pipe = os.open(path / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        self.files.callback(os.close, pipe)
        made = Instance(path, pipe)
        made.write("tracing_on", "0")
        return made


class Instance(NamedTuple):
    """One trace instance; ``pipe`` is its open trace_pipe."""

    path: Path
    pipe: int

    def write(self, name: str, text: str) -> None:
        """Write to a file; lists such as ``trigger`` grow. UsageError if the kernel refuses."""
        with _refusals(f"writing {text!r} to tracefs' {name}"):
            # In one call, and without O_TRUNC, which empties lists.
            with open(os.open(self.path / name, os.O_WRONLY), "wb", buffering=0) as file:
                file.write(text.encode())

    def read(self, name: str) -> str:
        """The whole of a file."""
        return (self.path / name).read_text(errors="replace")

    def take(self) -> str:
        """Remove the content of the buffer and return it. Tracing must be off, or this may not end."""
        parts = []
        with suppress(BlockingIOError):
            while part := os.read(self.pipe, 65536):
                parts.append(part)
        return b"".join(parts).decode(errors="replace")
