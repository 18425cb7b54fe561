# SPDX-License-Identifier: GPL-2.0-only
"""The repository and the cache folder, its locks and atomic writes."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from quell import ui
from quell.errors import UsageError


def repo_root() -> Path:
    """The root of Quell's own repository."""
    return Path(__file__).resolve().parents[2]


class _Folder:
    """A folder of the cache, named by its attribute and created when missing."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, cache: Cache, owner: type) -> Path:
        return cache.folder(self.name)


class Cache:
    """The folder of all downloads, builds and results.

    ``root`` is ``$QUELL_CACHE``, else ``$XDG_CACHE_HOME/quell``, else
    ``~/.cache/quell``. UsageError when a folder cannot be made.
    """

    def __init__(self, root: Path | None = None) -> None:
        if root is None:
            own = os.environ.get("QUELL_CACHE")
            root = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quell"
        self.root = root.absolute()

    def folder(self, name: str) -> Path:
        """The folder ``name`` under the cache, created when missing."""
        path = self.root / name
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the cache folder {path} cannot be made: {error.strerror}; "
                "set QUELL_CACHE to a folder that can be written to"
            ) from error
        return path

    downloads = _Folder()  # source packages as fetched
    source = _Folder()  # pristine kernel sources, one folder per key
    work = _Folder()  # source trees and objects of the kernels being built, one folder per kernel
    kernels = _Folder()  # finished kernels, one folder per key
    ccache = _Folder()
    data = _Folder()  # workloads' programs and data images, one folder per key
    results = _Folder()  # kept results of comparisons
    logs = _Folder()  # logs of builds, boots and checks

    @contextmanager
    def lock(self, name: str, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
        """Hold the lock ``name`` (letters, digits, ``.-_``) against every other process, and against ourselves.

        A note is printed before a wait; with LOCK_NB in ``kind`` a held lock is a UsageError.
        """
        with (self.folder("locks") / f"{name}.lock").open("a") as file:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if kind & fcntl.LOCK_NB:
                    raise UsageError("another quell is using the cache; try again when it is done") from None
                ui.note(f"waiting for another quell that holds {name} ...")
                fcntl.flock(file, kind)
            yield

    def in_use(self) -> AbstractContextManager[None]:
        """Keep ``quell clean`` away while this is held (shared between users)."""
        return self.lock("cache", fcntl.LOCK_SH)

    def exclusive(self) -> AbstractContextManager[None]:
        """Hold the whole cache alone; UsageError at once when it is in use."""
        return self.lock("cache", fcntl.LOCK_EX | fcntl.LOCK_NB)

    def made(self, final: Path, make: Callable[[Path], object]) -> Path:
        """The folder ``final``. If it is missing, ``make`` fills a temporary folder first, under a lock."""
        if not final.exists():
            with self.lock(final.name):
                if not final.exists():
                    with atomic_dir(final) as temp:
                        make(temp)
        return final

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """A temporary folder that guests see, too; ``name`` begins its own."""
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=self.folder("run")) as temp:
            yield Path(temp)


@contextmanager
def atomic_dir(final: Path) -> Iterator[Path]:
    """Build the folder ``final`` in a temporary one beside it, and rename that at the end.

    Yields the temporary folder; any exception removes it. An existing ``final`` is
    replaced. A killed process leaves only a ``.tmp-`` folder. The next call for the
    same name removes it, so the caller has to hold a lock.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    for stale in final.parent.glob(f".tmp-{final.name}-*"):
        shutil.rmtree(stale, ignore_errors=True)
    temp = Path(tempfile.mkdtemp(prefix=f".tmp-{final.name}-", dir=final.parent))
    try:
        temp.chmod(0o755)
        yield temp
        if final.exists():
            shutil.rmtree(final)
        temp.rename(final)
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise


def write_atomic(path: Path, content: bytes | str, *, mode: int | None = None) -> None:
    """Replace the file ``path`` as a whole; ``mode`` (default 0o644) is its permissions."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644 if mode is None else mode)
        os.rename(name, path)
    except BaseException:
        os.unlink(name)
        raise


def make_folder(path: Path) -> None:
    """Make the folder ``path`` and those above; UsageError when that fails, or it cannot be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"{path} cannot be written to")


def require_space(where: Path, needed: int, what: str) -> None:
    """UsageError unless ``needed`` bytes are free on the disk of ``where``; ``what`` needs them."""
    probe = where.absolute()
    while not probe.exists():
        probe = probe.parent
    free = shutil.disk_usage(probe).free
    if free < needed:
        raise UsageError(
            f"{what} needs {ui.size(needed)} of disk space, but {probe} has {ui.size(free)} free; "
            "set QUELL_CACHE to a folder on a larger disk"
        )


def tree_size(path: Path) -> int:
    """Bytes of disk used under ``path``, hard links counted once; 0 if it is not there."""
    done = subprocess.run(["du", "-s", "-B1", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return int(done.stdout.split()[0]) if done.stdout else 0
