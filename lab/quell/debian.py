# SPDX-License-Identifier: GPL-2.0-only
"""Debian packages that are unpacked into the cache, not installed: servers, for workloads.

Installing a server would start it on this machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from quell import prereq, proc, ui
from quell.errors import QuellError, UsageError
from quell.paths import Cache, atomic_dir


def root(programs: Mapping[str, str], cache: Cache) -> Path:
    """Where the ``programs`` (name to its package) are: "/", or a folder of the cache.

    The folder is fetched when a program is missing on this machine. UsageError when that
    cannot be done.
    """
    if all(prereq.which(program) for program in programs):
        return Path("/")
    final = fetch(programs.values(), cache, sorted(programs))
    for program in programs:
        if not (final / "usr/bin" / program).exists() and not prereq.which(program):
            raise QuellError(f"Debian's package {programs[program]} has no {program}")
    return final


def fetch(packages: Iterable[str], cache: Cache, lacking: Sequence[str]) -> Path:
    """A folder of the cache with the packages and those they need that are not installed here.

    Fetched with apt-get, without root. UsageError when that cannot be done; ``lacking`` is what
    is missing then.
    """
    names = sorted(set(packages))
    key = f"packages-{'-'.join(names)}"
    final = cache.data / key
    with cache.lock(key):
        if not final.exists():
            if prereq.apt_get() is None:
                missing = ", ".join(lacking)
                raise UsageError(
                    f"missing here: {missing}; install them with your system's package tool"
                )
            ui.note(f"fetching Debian packages into the cache: {', '.join(names)}")
            with atomic_dir(final) as temp:
                prereq.with_fresh_lists(
                    lambda: _unpack(names, temp), f"{', '.join(names)} could not be fetched"
                )
    return final


def _unpack(names: list[str], folder: Path) -> None:
    archives = folder / "archives"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    where = ("-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1")
    proc.run(
        ["apt-get", *prereq.APT_OPTIONS, *where, "install", "-y", "-qq", "--download-only",
         "--no-install-recommends", *names],
        env=prereq.APT_ENV,
        timeout=1800,
    )  # fmt: skip
    for package in sorted(archives.glob("*.deb")):
        proc.run(["dpkg-deb", "-x", package, folder], timeout=600)
    shutil.rmtree(archives)
