# SPDX-License-Identifier: GPL-2.0-only
"""The kernel source: Debian's package, or a tree of the user's own.

The cache keeps both, pristine, keyed by content. They are never changed, nor is the
user's own tree.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quell import debian, prereq, proc, ui
from quell.errors import QuellError, UsageError
from quell.paths import Cache, atomic_dir, require_space, tree_size

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


def kernel_version(tree: Path) -> str:
    """The version in a tree's Makefile. UsageError when it is no kernel tree."""
    try:
        with (tree / "Makefile").open(errors="replace") as file:
            head = file.read(4096)
    except OSError:
        head = ""
    found: dict[str, str] = dict(
        re.findall(r"^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION) *= *(\S*)$", head, re.M)
    )
    if not {"VERSION", "PATCHLEVEL"} <= found.keys() or not (tree / "Kconfig").exists():
        raise UsageError(f"{tree} is not a Linux source tree")
    version = f"{found['VERSION']}.{found['PATCHLEVEL']}"
    if found.get("SUBLEVEL"):
        version += f".{found['SUBLEVEL']}"
    return version + found.get("EXTRAVERSION", "")


def check_version(tree: Path) -> str:
    """The version of a tree, UsageError unless Quell has hooks for it."""
    version = kernel_version(tree)
    if not any(re.match(rf"{re.escape(one)}(?!\d)", version) for one in VERSIONS):
        raise UsageError(f"{tree} is Linux {version}, but Quell is for Linux {' and '.join(VERSIONS)}")
    return version


def get_source(cache: Cache, kernel: str = DEFAULT) -> Source:
    """The source of ``--kernel``: Debian's of that version, or a tree's."""
    if kernel in VERSIONS:
        return debian_source(cache, kernel)
    if not Path(kernel).is_dir():
        raise UsageError(f"--kernel should be {', '.join(VERSIONS)} or the folder of a Linux tree, not '{kernel}'")
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


def _store(folder: Path, origin: str) -> None:
    version = check_version(folder / "linux")
    record = {"version": version, "origin": origin}
    (folder / "source.json").write_text(json.dumps(record, indent=1) + "\n")


def debian_source(cache: Cache, linux: str = DEFAULT) -> Source:
    """Debian's ``linux-source-VERSION``, fetched with ``apt-get download`` on first use.

    A package in the cache's downloads folder is used. UsageError without network, disk
    space, apt-get or such a package.
    """
    with cache.lock("source"):
        source = present_source(cache, linux)
        if source is not None:
            return source
        require_space(cache.root, NEEDED_SPACE, "building and comparing the kernels")
        prereq.ensure([item for item in prereq.BUILD if item.need == "xz"])
        name = f"linux-source-{linux}"
        package = _downloaded(cache, name) or _download(cache, name, linux)
        with package.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        deb_version = proc.run(["dpkg-deb", "-f", package, "Version"]).stdout.strip()
        # The kernel's Makefile cannot live under a path with a colon or a space.
        safe = re.sub(r"[^A-Za-z0-9.+-]", "-", deb_version)
        final = cache.source / f"debian-{safe}-{digest[:12]}"
        with atomic_dir(final) as temp:
            _extract(package, temp)
            _store(temp, f"{name} {deb_version}")
        return _load(final)


def _downloaded(cache: Cache, name: str) -> Path | None:
    packages = sorted(cache.downloads.glob(f"{name}_*.deb"), key=lambda path: path.stat().st_mtime)
    return packages[-1] if packages else None


def _download(cache: Cache, name: str, linux: str) -> Path:
    own = f"give a {linux} tree of your own: --kernel DIR"
    if prereq.apt_get() is None:
        raise UsageError(f"without apt-get Debian's {name} cannot be fetched; {own}")
    suite = _SUITES.get(linux)
    try:
        if suite is None:
            found: list[Path] = []
            prereq.with_fresh_lists(
                lambda: found.append(_apt_download(cache, name, prereq.APT_OPTIONS)), f"{name} could not be fetched"
            )
            return found[0]
        with cache.scratch("apt") as temp, debian.lists(temp / "apt", [suite]) as options:
            return _apt_download(cache, name, options)
    except QuellError as error:
        if "unable to locate package" not in error.detail.lower():
            if isinstance(error, UsageError):
                raise
            hint = prereq.network_hint(error.detail)
            raise UsageError(f"{name} could not be fetched: {hint}", detail=error.detail) from error
        if suite is not None:
            raise UsageError(f"Debian's {suite} has no {name} any more; {own}") from error
        raise UsageError(
            f"the package lists here have no {name} (Debian 12 has it in its security archive); add that, or {own}"
        ) from error


def _apt_download(cache: Cache, name: str, options: Sequence[str]) -> Path:
    apt = ["apt-get", *options, "-q"]
    uris = proc.run([*apt, "--print-uris", "download", name], env=prereq.APT_ENV, timeout=60).stdout
    size = re.search(r"^'[^']*' \S+ (\d+)", uris, re.M)
    with atomic_dir(cache.downloads / "fetch") as temp:
        with ui.watched(f"fetching Debian's {name}", int(size.group(1)) if size else None, lambda: tree_size(temp)):
            proc.run([*apt, "download", name], cwd=temp, env=prereq.APT_ENV, timeout=3600)
        packages = list(temp.glob("*.deb"))
        if not packages:
            raise QuellError(f"apt-get fetched no {name}")
        package = cache.downloads / packages[0].name
        packages[0].rename(package)
    shutil.rmtree(cache.downloads / "fetch", ignore_errors=True)
    return package


def _extract(package: Path, temp: Path) -> None:
    """Unpack the package's tar archive into ``temp``/linux."""
    inner = temp / "package"
    proc.run(["dpkg-deb", "-x", package, inner])
    archives = list(inner.glob("usr/src/linux-source-*.tar.xz"))
    if not archives:
        raise QuellError(f"{package.name} has no kernel source inside")
    totals = proc.run(["xz", "--robot", "--list", archives[0]]).stdout
    size = re.search(r"^totals\t\d+\t\d+\t\d+\t(\d+)", totals, re.M)
    tree = temp / "linux"
    tree.mkdir()
    # One checkpoint is 10 KiB, tar's record.
    every = 500
    with ui.progress("unpacking the kernel source", int(size.group(1)) if size else None) as bar:

        def on_line(line: str) -> None:
            if line == "checkpoint":
                bar.advance(every * 10240)

        proc.run(
            [
                "tar", "-xJf", archives[0], "-C", tree, "--strip-components=1", "--no-same-owner",
                f"--checkpoint={every}", "--checkpoint-action=exec=echo checkpoint",
            ],
            on_line=on_line,
            timeout=3600,
        )  # fmt: skip
    shutil.rmtree(inner)


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


def plain_tree(tree: Path, *, quell: bool = False) -> tuple[Path, str]:
    """The real path and the version of the user's own tree; nothing is copied.

    UsageError for no kernel tree, another version, or (unless ``quell``) a tree with Quell.
    """
    if not tree.is_dir():
        raise UsageError(f"there is no folder {tree}")
    tree = tree.resolve()
    version = check_version(tree)
    if quell:
        return tree, version
    if (tree / "mm/Kconfig.quell").exists() or (tree / ".git/quell.json").exists():
        raise UsageError(
            f"{tree} has Quell applied already; give a tree without it (for changes of Quell "
            "itself, use ./quell tree --refresh, then ./quell build)"
        )
    return tree, version


def user_tree(tree: Path, cache: Cache, *, quell: bool = False) -> Source:
    """A copy in the cache of the user's own tree, which is only read.

    It has the files that git does not ignore; without a checkout, by the tree's own
    ``.gitignore`` files. UsageError as in ``plain_tree``.
    """
    tree, _ = plain_tree(tree, quell=quell)
    prereq.ensure([item for item in prereq.BUILD if item.need == "git"])
    with cache.lock("source"):
        names, key = _user_files(tree)
        final = cache.source / f"user-{key}"
        if (final / "source.json").exists():
            return _load(final)
        require_space(cache.root, NEEDED_SPACE, "building and comparing the kernels")
        with atomic_dir(final) as temp:
            _copy(tree, names, temp / "linux")
            _store(temp, str(tree))
        return _load(final)


def _user_files(tree: Path) -> tuple[list[str], str]:
    """The names of a tree's source files, and a key for their content."""
    digest = hashlib.sha256()
    if _is_checkout(tree):
        names = _split(git("ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=tree))
        digest.update(git("rev-parse", "HEAD", cwd=tree).encode())
        digest.update(git("diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD", cwd=tree).encode())
        others = _split(git("ls-files", "-z", "--others", "--exclude-standard", cwd=tree))
        for name in sorted(others):
            digest.update(name.encode() + b"\0" + (tree / name).read_bytes())
    else:
        with tempfile.TemporaryDirectory() as scratch:
            env = {"GIT_DIR": f"{scratch}/git", "GIT_WORK_TREE": str(tree)}
            git("init", "-q", "--template=", cwd=Path(scratch), env={"GIT_DIR": env["GIT_DIR"]})
            listing = ["ls-files", "-z", "--others", "--exclude-standard"]
            names = _split(git(*listing, cwd=tree, env=env))
            if "Makefile" not in names:
                # Debian's linux-source ignores all of the top level.
                names = _split(git(*listing, "-x", "!/*", "-x", "/.*", cwd=tree, env=env))
        digest.update(str(tree).encode())
        for name in sorted(names):
            status = (tree / name).lstat()
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    names = sorted({name for name in names if os.path.lexists(tree / name)})
    return names, digest.hexdigest()[:16]


def _is_checkout(tree: Path) -> bool:
    # A tree inside another repository is not a checkout of its own.
    if not (tree / ".git").exists():
        return False
    try:
        return Path(git("rev-parse", "--show-toplevel", cwd=tree).strip()).resolve() == tree
    except QuellError:
        return False


def _split(output: str) -> list[str]:
    return [name for name in output.split("\0") if name]


def _copy(tree: Path, names: list[str], target: Path) -> None:
    with ui.progress(f"copying {tree}", len(names)) as bar:
        for name in names:
            source = tree / name
            if source.is_dir() and not source.is_symlink():
                continue  # a nested repository
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
            bar.advance()
