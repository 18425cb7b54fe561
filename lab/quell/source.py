# SPDX-License-Identifier: GPL-2.0-only
"""The kernel source: Debian's package, or a tree of the user's own.

The cache keeps both, pristine, keyed by content. They are never changed, nor is the
user's own tree.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quell import debian, prereq, proc, ui
from quell.errors import QuellError, UsageError
from quell.paths import Cache, atomic_dir, require_space

# The versions of Linux in kernel/hooks, each with the release that its hooks were made with.
MADE_WITH = {"6.12": "6.12.117", "7.3": "7.3.4"}
# The values of --kernel beside folders.
VERSIONS = tuple(MADE_WITH)
DEFAULT = VERSIONS[0]
# Debian's suites of versions that the host's package lists lack.
_SUITES = {"7.3": "trixie-backports"}
OPTION_HELP = f"the version of Linux: {', '.join(VERSIONS)}, or the folder of such a tree ({DEFAULT})"
# Bytes: package 0.2, source 1.7, two build trees 1 each, compiler cache 2, disk
# images and kernels 2, the rest for `quell tree` and the checks.
NEEDED_SPACE = 12_000_000_000


@dataclass(frozen=True)
class Source:
    """A pristine kernel source.

    ``version`` is Linux's own (as in MADE_WITH), ``tree`` the folder, never
    written to, ``key`` names its content.
    """

    version: str
    tree: Path
    key: str

    @property
    def linux(self) -> str:
        """Its entry of VERSIONS."""
        return linux_of(self.version)


def linux_of(version: str) -> str:
    """The entry of VERSIONS for a version of Linux: 6.12 for 6.12.117."""
    return ".".join(re.findall(r"\d+", version)[:2])


def check_version(tree: Path) -> str:
    """The version in a tree's Makefile. UsageError when it is no kernel tree, or Quell has no hooks for it."""
    try:
        head = (tree / "Makefile").read_text(errors="replace")[:4096]
    except OSError:
        head = ""
    found: dict[str, str] = dict(
        re.findall(r"^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION) *= *(\S*)$", head, re.M)
    )
    if len(found) < 4 or not (tree / "Kconfig").exists():
        raise UsageError(f"{tree} is not a Linux source tree")
    version = "{VERSION}.{PATCHLEVEL}.{SUBLEVEL}{EXTRAVERSION}".format(**found)
    if linux_of(version) not in VERSIONS:
        raise UsageError(f"{tree} is Linux {version}, but Quell is for Linux {' and '.join(VERSIONS)}")
    return version


def get_source(cache: Cache, kernel: str = DEFAULT) -> Source:
    """The source of ``--kernel``: Debian's of that version, or a tree's."""
    if kernel in VERSIONS:
        return debian_source(cache, kernel)
    return user_tree(Path(kernel), cache)


def present_source(cache: Cache, linux: str = DEFAULT) -> Source | None:
    """Debian's source of this version if it is in the cache already, the newest one."""
    records = sorted(
        cache.root.glob(f"source/debian-{linux}[.-]*/source.json"), key=lambda path: path.stat().st_mtime
    )
    return _load(records[-1].parent) if records else None


def _load(folder: Path) -> Source:
    record = json.loads((folder / "source.json").read_text())
    return Source(version=record["version"], tree=folder / "linux", key=folder.name)


def _store(folder: Path) -> None:
    record = {"version": check_version(folder / "linux")}
    (folder / "source.json").write_text(json.dumps(record) + "\n")


def debian_source(cache: Cache, linux: str = DEFAULT) -> Source:
    """Debian's ``linux-source-VERSION``, fetched with ``apt-get download`` on first use.

    UsageError without network, disk space, apt-get or such a package.
    """
    with cache.lock("source"):
        if source := present_source(cache, linux):
            return source
        require_space(cache.root, NEEDED_SPACE, "building and comparing the kernels")
        prereq.ensure([item for item in prereq.BUILD if item.need == "xz"])
        with cache.scratch("source") as temp:
            package = _download(cache, f"linux-source-{linux}", linux, temp)
            with package.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            version = proc.run(["dpkg-deb", "-f", package, "Version"]).stdout.strip()
            # The kernel's Makefile cannot live under a path with a colon or a space.
            final = cache.source / f"debian-{re.sub(r'[^A-Za-z0-9.+-]', '-', version)}-{digest[:12]}"
            with atomic_dir(final) as folder:
                _extract(package, temp, folder / "linux")
                _store(folder)
        return _load(final)


def _download(cache: Cache, name: str, linux: str, temp: Path) -> Path:
    """Fetch a package into the folder ``temp``."""

    def fetch(options: Sequence[str] = prereq.APT_OPTIONS) -> None:
        with ui.progress(f"fetching Debian's {name} (150 MB)"):
            proc.run(["apt-get", *options, "-q", "download", name], cwd=temp, env=prereq.APT_ENV, timeout=3600)

    own = f"or give a {linux} tree of your own: --kernel DIR"
    if prereq.apt_get() is None:
        raise UsageError(f"without apt-get Debian's {name} cannot be fetched; {own}")
    suite = _SUITES.get(linux)
    failed = f"Debian's {name} could not be fetched from {suite or 'the package lists here'}; {own}"
    if suite is None:
        prereq.with_fresh_lists(fetch, failed)
    else:
        try:
            with debian.lists(temp / "apt", [suite]) as options:
                fetch(options)
        except QuellError as error:
            raise UsageError(failed, detail=f"{error.message}\n{error.detail}") from error
    return next(temp.glob("*.deb"))


def _extract(package: Path, temp: Path, tree: Path) -> None:
    """Unpack the package's tar archive into the folder ``tree``."""
    with ui.progress("unpacking the kernel source"):
        proc.run(["dpkg-deb", "-x", package, temp])
        archives = list(temp.glob("usr/src/linux-source-*.tar.xz"))
        if not archives:
            raise QuellError(f"{package.name} has no kernel source inside")
        tree.mkdir()
        proc.run(["tar", "-xJf", archives[0], "-C", tree, "--strip-components=1", "--no-same-owner"], timeout=3600)


# Git without the user's configuration, hooks and external programs, and without
# writes to the user's index.
GIT_ENV = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C.UTF-8",
}


def git(*args: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run git in ``cwd`` and return its standard output."""
    argv = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", *args]
    return proc.run(argv, cwd=cwd, env={**GIT_ENV, **(env or {})}).stdout


def plain_tree(tree: Path, *, quell: bool = False) -> Source:
    """The user's own tree, in its place and without a key; nothing is copied.

    UsageError for no kernel tree, another version, or (unless ``quell``) a tree with Quell.
    """
    if not tree.is_dir():
        raise UsageError(f"--kernel should be {', '.join(VERSIONS)} or the folder of a Linux tree, not '{tree}'")
    version = check_version(tree)
    if not quell and ((tree / "mm/Kconfig.quell").exists() or (tree / ".git/quell.json").exists()):
        raise UsageError(
            f"{tree} has Quell applied already; give a tree without it (for changes of Quell "
            "itself, use ./quell tree --refresh, then ./quell build)"
        )
    return Source(version, tree.resolve(), "")


def user_tree(tree: Path, cache: Cache, *, quell: bool = False) -> Source:
    """A copy in the cache of the user's own tree, which is only read.

    It has the files that the tree's own ``.gitignore`` files do not name. UsageError as in ``plain_tree``.
    """
    tree = plain_tree(tree, quell=quell).tree
    prereq.ensure([item for item in prereq.BUILD if item.need in ("git", "cpio")])
    with cache.lock("source"):
        names = _user_files(tree)
        digest = hashlib.sha256(str(tree).encode())
        for name in names:
            status = (tree / name).lstat()
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        final = cache.source / f"user-{digest.hexdigest()[:16]}"
        if (final / "source.json").exists():
            return _load(final)
        require_space(cache.root, NEEDED_SPACE, "building and comparing the kernels")
        with atomic_dir(final) as temp, ui.progress(f"copying {tree}"):
            (temp / "linux").mkdir()
            listing = "".join(f"{name}\0" for name in names)
            proc.run(["cpio", "-0pdm", "--quiet", temp / "linux"], cwd=tree, stdin=listing)
            _store(temp)
        return _load(final)


def _user_files(tree: Path) -> list[str]:
    """The names of a tree's source files. A repository there stays untouched: git gets another, empty one."""
    with tempfile.TemporaryDirectory() as scratch:
        git("init", "-q", "--template=", cwd=Path(scratch))
        env = {"GIT_DIR": f"{scratch}/.git", "GIT_WORK_TREE": str(tree)}
        listing = ["ls-files", "-z", "--others", "--exclude-standard"]
        names = git(*listing, cwd=tree, env=env).split("\0")
        if "Makefile" not in names:
            # Debian's linux-source ignores all of the top level.
            names = git(*listing, "-x", "!/*", "-x", "/.*", cwd=tree, env=env).split("\0")
    return sorted(name for name in names if name and not name.endswith("/"))
