# SPDX-License-Identifier: GPL-2.0-only
"""Debian packages that are unpacked into the cache, not installed: servers for workloads.

The installation of a server would start it on this machine.
"""

import platform
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from quell import prereq, proc, ui
from quell.errors import QuellError, UsageError
from quell.paths import Cache


def root(programs: Mapping[str, str], cache: Cache) -> Path:
    """The root folder of the ``programs`` (name to package): "/", or a folder of the cache.

    The folder is fetched when a program is missing on this machine. UsageError when the
    download fails.
    """
    if all(prereq.which(program) for program in programs):
        return Path("/")
    final = fetch(programs.values(), cache, sorted(programs))
    for program in programs:
        if not (final / "usr/bin" / program).exists() and not prereq.which(program):
            raise QuellError(f"Debian's package {programs[program]} has no {program}")
    return final


def fetch(packages: Iterable[str], cache: Cache, lacking: Sequence[str], *, backports: bool = False) -> Path:
    """A folder of the cache with the packages and their dependencies that are not installed here.

    apt-get fetches them, without root. With ``backports`` they come from this Debian's backports,
    whose lists go into the cache: apt's own configuration stays. QuellError when the download
    fails; without apt-get it names the ``lacking`` programs.
    """
    names = sorted(set(packages))
    key = f"packages-{'-'.join(names)}" + ("-backports" if backports else "")

    def make(temp: Path) -> None:
        if prereq.apt_get() is None:
            raise UsageError(f"missing here: {', '.join(lacking)}; install them with your system's package tool")
        ui.note(f"fetching Debian packages into the cache: {', '.join(names)}")
        if not backports:
            prereq.with_fresh_lists(lambda: _unpack(names, temp), f"{', '.join(names)} could not be fetched")
            return
        name = _codename()
        with lists(temp / "apt", [f"{name}-backports", name, f"{name}-updates"]) as options:
            _unpack(names, temp, (*options, "-o", f"APT::Default-Release={name}-backports"))

    return cache.made(cache.data / key, make)


_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@contextmanager
def lists(folder: Path, suites: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """apt-get's options for signed package lists of these ``suites`` of Debian, fetched into ``folder``.

    They come from this system's own mirror; apt's own configuration and lists stay. QuellError
    without such a mirror, or when it cannot be reached.
    """
    codename = _codename()
    listed = proc.run(
        ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"],
        timeout=60,
    ).stdout
    mirrors = re.findall(rf"^{re.escape(codename)} main (\S+)$", listed, re.M)
    if not codename or not mirrors or not Path(_KEYRING).exists():
        raise UsageError("this system's package sources are not those of a Debian release, which has backports")
    (folder / "lists/partial").mkdir(parents=True)
    sources = folder / "quell.sources"
    sources.write_text(
        f"Types: deb\nURIs: {mirrors[0]}\nSuites: {' '.join(suites)}\nComponents: main\nSigned-By: {_KEYRING}\n"
    )
    options = (
        *prereq.APT_OPTIONS, "-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Etc::sourcelist={sources}",
        "-o", "Dir::Etc::sourceparts=-", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
        "-o", "Debug::NoLocking=1",
    )  # fmt: skip
    # Without the error mode it succeeds without any download.
    update = ["apt-get", *options, "-o", "APT::Update::Error-Mode=any", "update", "-qq"]
    proc.run(update, env=prereq.APT_ENV, timeout=300)
    yield options
    shutil.rmtree(folder)


def _codename() -> str:
    """This Debian's name, such as "bookworm"; "" on another system."""
    try:
        facts = platform.freedesktop_os_release()
    except OSError:
        return ""
    return facts.get("VERSION_CODENAME", "") if facts.get("ID") == "debian" else ""


def _unpack(names: list[str], folder: Path, options: Sequence[str] = prereq.APT_OPTIONS) -> None:
    archives = folder / "archives"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    where = ("-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1")
    proc.run(
        ["apt-get", *options, *where, "install", "-y", "-qq", "--download-only",
         "--no-install-recommends", *names],
        env=prereq.APT_ENV,
        timeout=1800,
    )  # fmt: skip
    for package in sorted(archives.glob("*.deb")):
        proc.run(["dpkg-deb", "-x", package, folder], timeout=600)
    shutil.rmtree(archives)
