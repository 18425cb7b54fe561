# SPDX-License-Identifier: GPL-2.0-only
"""Private trace instances, removed however ``top`` ends.

All tracing happens in ``instances/quell-PID-*``. The machine's own trace buffer, events, options and
triggers are not touched, and removing an instance takes its events and triggers with it. Where tracefs
is not mounted, a detached mount is used: no path leads to it, and it ends with its last open file.

- Normal end, exception, signal: ``session()`` removes the instances.
- SIGKILL: a guard process in a session of its own does; its input ends with us.
- SIGKILL of both: the next ``top`` does. It recognizes abandoned instances by their lock, since each
  user of an instance holds flock() on its directory. A PID proves nothing across PID namespaces.

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
	left=
	for one in "$2"*; do
		[ ! -d "$one" ] || rmdir "$one" 2>/dev/null || left=1
	done
	[ "$left" ] || exit 0
	sleep 0.2
done
"""


class NoAccess(UsageError):
    """Tracing is not possible; the message names the missing part."""


def _no_access(error: OSError, action: str) -> NoAccess:
    if error.errno == errno.ENODEV:
        return NoAccess("this kernel has no tracefs (CONFIG_TRACING)")
    if error.errno not in (errno.EPERM, errno.EACCES, errno.EROFS):
        return NoAccess(f"{action} fails: {error.strerror}")
    if os.geteuid() != 0:
        return NoAccess(f"{action} needs root (CAP_SYS_ADMIN): sudo ./quell top")
    lockdown = Path("/sys/kernel/security/lockdown")
    try:
        if "[confidentiality]" in lockdown.read_text():
            return NoAccess(f"{action} is closed by the kernel's lockdown ({lockdown})")
    except OSError:
        pass
    return NoAccess(
        f"{action} is denied to root here ({error.strerror}): the capability CAP_SYS_ADMIN is missing, "
        "as in most containers; run it on the host"
    )


def _mounted() -> Path | None:
    """The path of a mounted tracefs."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("tracefs "):
            return Path(fields.split()[4].replace("\\040", " "))
    return None


def _private_mount() -> int:
    """A file of a tracefs that is mounted on no path."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    fd: int = -1
    context = call(_SYS_FSOPEN, b"tracefs", _CLOEXEC)
    if context >= 0:
        call(_SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        fd = call(_SYS_FSMOUNT, context, _CLOEXEC, 0)
        os.close(context)
    if fd < 0:
        number = ctypes.get_errno()
        raise _no_access(OSError(number, os.strerror(number)), "mounting tracefs")
    return fd


@contextmanager
def session() -> Iterator[Session]:
    """The place to make instances in; all of them are removed at its end. NoAccess without tracefs."""
    with ExitStack() as stack:
        root, inherited = _mounted(), []
        if root is None:
            inherited.append(_private_mount())
            stack.callback(os.close, inherited[0])
            root = Path(f"/proc/self/fd/{inherited[0]}")
        one = Session(root)
        try:
            with one.lock():
                sweep(one.instances)
        except OSError as error:
            raise _no_access(error, "reading tracefs" if inherited else f"reading {root}") from error
        one.guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "quell-guard", str(one.instances), one.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=inherited,
            start_new_session=True,
        )
        try:
            yield one
        finally:
            for made in one.made:
                made.close()
            with one.lock():
                sweep(one.instances)
            # Removes those that are busy, as others look into them.
            one.guard.communicate()


def sweep(instances: Path) -> list[str]:
    """Remove all instances that no ``top`` uses; their names."""
    removed = []
    for path in sorted(instances.glob(f"{_PREFIX}*")):
        with suppress(OSError), _open(path) as fd:  # in use, or gone
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rmdir(path)
            removed.append(path.name)
    return removed


@contextmanager
def _open(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


class Session:
    """tracefs at ``root``, and the instances of one ``top``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.instances = root / "instances"
        self.name = f"{_PREFIX}{os.getpid()}-"
        self.guard: subprocess.Popen[bytes] | None = None
        self.made: list[Instance] = []

    def has(self, name: str) -> bool:
        """Whether a file such as ``events/csd`` exists."""
        return (self.root / name).exists()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep others from sweeping: a new instance has no lock of its own yet."""
        with _open(self.instances) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield

    def instance(self, suffix: str) -> Instance:
        """A new one, with tracing off and no event enabled. NoAccess if the kernel refuses."""
        path = self.instances / f"{self.name}{suffix}"
        try:
            with self.lock():
                os.mkdir(path)
                made = Instance(path)
                self.made.append(made)
                fcntl.flock(made.fd, fcntl.LOCK_EX)
        except OSError as error:
            raise _no_access(error, "making a trace instance") from error
        made.write("tracing_on", "0")
        return made


class Instance:
    """One trace instance, an open directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY)
        self.pipe = os.open(path / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)

    def write(self, name: str, text: str) -> None:
        """Write to a file in one call; lists such as ``trigger`` grow. OSError if the kernel refuses."""
        with _open(self.path / name, os.O_WRONLY) as fd:
            os.write(fd, text.encode())

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

    def close(self) -> None:
        """Give it up for ``sweep()``."""
        os.close(self.pipe)
        os.close(self.fd)
