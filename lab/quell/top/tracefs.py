# SPDX-License-Identifier: GPL-2.0-only
"""A trace instance of our own, and nothing of it left behind.

Everything happens in ``instances/quell-PID-*``: the machine's own trace buffer, events, options
and triggers are not touched, and removing an instance takes its events and triggers with it. Where
tracefs is not mounted, it is mounted for us alone: on no path, gone with our last file.

Three things remove the instances: we, when all goes well or badly but within our power; a guard
process, in a session of its own, when we are killed (its input ends then); and the next ``top``, when
both were killed at once. That one knows the dead by their lock: who uses an instance holds
flock() on its directory. A process number would be no proof, it may be another container's.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from quell.errors import UsageError

# The same on all architectures since 5.2.
_SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = 430, 431, 432
_FSCONFIG_CMD_CREATE = 6
_CLOEXEC = 1
_PREFIX = "quell-"
# The kernel may still be closing files of the dead when the guard hears of it, hence the rounds.
_GUARD = """
trap '' TERM INT HUP QUIT
read -r line
cd "$1" || exit
for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	left=
	for one in "$2"*; do
		[ ! -d "$one" ] || rmdir "$one" 2>/dev/null || left=1
	done
	[ "$left" ] || exit 0
	sleep 0.2
done
"""


class NoAccess(UsageError):
    """Tracing is not to be had; the message says what is missing."""


def _permission(error: OSError, what: str) -> NoAccess:
    lockdown = Path("/sys/kernel/security/lockdown")
    if os.geteuid() != 0:
        return NoAccess(f"{what} is for root only (CAP_SYS_ADMIN): sudo ./quell top")
    try:
        locked = "[confidentiality]" in lockdown.read_text()
    except OSError:
        locked = False
    if locked:
        return NoAccess(f"{what} is closed by the kernel's lockdown ({lockdown})")
    return NoAccess(
        f"{what} is denied to root here ({error.strerror}): the capability CAP_SYS_ADMIN is "
        "missing, as in most containers; run it on the host"
    )


def _mounted() -> Path | None:
    """Where tracefs is mounted, if anywhere."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("tracefs "):
            return Path(fields.split()[4].replace("\\040", " "))
    # Mounted when first looked into.
    automount = Path("/sys/kernel/debug/tracing")
    try:
        return automount if (automount / "events").is_dir() else None
    except PermissionError:
        return None


def _private_mount() -> int:
    """A file of a tracefs that is mounted nowhere. NoAccess without permission or kernel support."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(*args: int | bytes | None) -> int:
        result: int = libc.syscall(*args)
        if result < 0:
            number = ctypes.get_errno()
            error = OSError(number, os.strerror(number))
            if number in (errno.EPERM, errno.EACCES):
                raise _permission(error, "mounting tracefs")
            if number == errno.ENODEV:
                raise NoAccess("this kernel has no tracefs (CONFIG_TRACING)")
            raise NoAccess(f"tracefs is not mounted and cannot be: {error.strerror}")
        return result

    context = call(_SYS_FSOPEN, b"tracefs", _CLOEXEC)
    try:
        call(_SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return call(_SYS_FSMOUNT, context, _CLOEXEC, 0)
    finally:
        os.close(context)


class Tracefs:
    """tracefs, mounted or not. As a context manager it is let go at the end.

    Raises NoAccess when it cannot be read.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._fd: int | None = None
        if root is None:
            root = _mounted()
        self.mounted = root is not None
        if root is None:
            self._fd = _private_mount()
            root = Path(f"/proc/self/fd/{self._fd}")
        self.root = root
        try:
            os.listdir(root / "instances")
        except PermissionError as error:
            self.close()
            raise _permission(error, f"reading {root if self.mounted else 'tracefs'}") from error
        except OSError as error:
            self.close()
            raise NoAccess(f"this kernel's tracefs has no instances: {error.strerror}") from error

    def close(self) -> None:
        """Let go of a tracefs that was mounted for us."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Tracefs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def has(self, name: str) -> bool:
        """Whether a file such as ``events/csd`` is there."""
        return (self.root / name).exists()

    @contextmanager
    def session(self) -> Iterator[Session]:
        """What instances are made in; at its end they are gone."""
        instances = self.root / "instances"
        session = Session(instances)
        try:
            with session.lock():
                sweep(instances)
            session.guard = self._guard(instances, session.name)
            yield session
        finally:
            session.end()

    def _guard(self, instances: Path, name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "quell-guard", str(instances), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=() if self._fd is None else (self._fd,),
            start_new_session=True,
        )


def sweep(instances: Path) -> list[str]:
    """Remove what a ``top`` that was killed together with its guard left; the names."""
    removed = []
    for path in sorted(instances.glob(f"{_PREFIX}*")):
        with ExitStack() as stack:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rmdir(path)
            except OSError:
                continue  # in use, or gone
        removed.append(path.name)
    return removed


class Session:
    """The instances of one ``top``: made by ``instance()``, removed together by ``end()``."""

    def __init__(self, instances: Path) -> None:
        self.instances = instances
        self.name = f"{_PREFIX}{os.getpid()}-"
        self.guard: subprocess.Popen[bytes] | None = None
        self._made: list[Instance] = []

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Nobody makes or sweeps meanwhile: a new instance is not locked at once."""
        fd = os.open(self.instances, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def instance(self, suffix: str) -> Instance:
        """A new one, with tracing off and nothing enabled. NoAccess when the kernel says no."""
        path = self.instances / f"{self.name}{suffix}"
        with self.lock():
            try:
                os.mkdir(path)
            except OSError as error:
                if error.errno in (errno.EPERM, errno.EACCES, errno.EROFS):
                    raise _permission(error, "making a trace instance") from error
                raise NoAccess(f"no trace instance can be made: {error.strerror}") from error
            made = Instance(path)
            self._made.append(made)
            fcntl.flock(made.fd, fcntl.LOCK_EX)
        made.write("tracing_on", "0")
        return made

    def end(self) -> None:
        """Remove them; the guard sees to what resists."""
        for made in reversed(self._made):
            made.remove()
        self._made.clear()
        if self.guard is not None:
            assert self.guard.stdin is not None
            self.guard.stdin.close()
            self.guard.wait()
            self.guard = None


class Instance:
    """One trace instance, an open directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._pipe: int | None = None

    def write(self, name: str, text: str) -> None:
        """Write a file in one go, as the kernel wants it. OSError (EINVAL) if it refuses."""
        fd = os.open(self.path / name, os.O_WRONLY | (os.O_TRUNC if name == "trace" else 0))
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def append(self, name: str, text: str) -> None:
        """Add a line to a file of lines such as ``trigger``, which truncating would clear."""
        fd = os.open(self.path / name, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def accepts(self, name: str, text: str) -> bool:
        """Write it if the kernel takes it."""
        try:
            self.append(name, text)
        except OSError:
            return False
        return True

    def read(self, name: str) -> str:
        """The whole of a file."""
        return (self.path / name).read_text(errors="replace")

    def has(self, name: str) -> bool:
        """Whether the file is there."""
        return (self.path / name).exists()

    def take(self, limit: int) -> str:
        """What is in the buffer, at most some ``limit`` bytes, removed from it."""
        if self._pipe is None:
            self._pipe = os.open(self.path / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        parts: list[bytes] = []
        size = 0
        while size < limit:
            try:
                part = os.read(self._pipe, 65536)
            except BlockingIOError:
                break
            if not part:
                break
            parts.append(part)
            size += len(part)
        return b"".join(parts).decode(errors="replace")

    def clear(self) -> None:
        """Empty the buffer."""
        self.write("trace", "\n")

    def remove(self) -> None:
        """Take it away; it is busy for a moment when somebody looks into it."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        for _ in range(20):
            try:
                os.rmdir(self.path)
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.05)
            else:
                break
        os.close(self.fd)
