# SPDX-License-Identifier: GPL-2.0-only
"""The version of Quell: the repository's state, and its kernel part."""

import hashlib
from pathlib import Path

from quell import proc
from quell.errors import QuellError
from quell.paths import repo_root

# This release, or the next one: CHANGELOG.md has the same at its top.
RELEASE = "0.9.0"
# The state of files that are in no git repository.
UNKNOWN = "unknown"


def between_releases() -> bool:
    """Whether git's state differs from the tag of RELEASE (v0.9.0)."""
    return quell() not in (UNKNOWN, f"v{RELEASE}")


def line() -> str:
    """The line of ``--version``: the release, and its versions of Linux."""
    from quell.source import VERSIONS

    return f"quell {RELEASE} (Linux {', '.join(f'{linux}.y' for linux in VERSIONS)})"


def series_hash(kernel: Path | None = None) -> str:
    """A hash of all files in kernel/ (patches, files, configs)."""
    folder = kernel or repo_root() / "kernel"
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def quell(besides: str = "") -> str:
    """Git's name of the repository's state (with "-dirty" if a file other than ``besides`` is edited), or UNKNOWN."""
    try:
        named, edited = (
            proc.run(["git", "-C", repo_root(), *words], timeout=30, check=False)
            for words in (("describe", "--always", "--tags"), ("diff", "--name-only", "HEAD"))
        )
    except QuellError:
        return UNKNOWN
    dirty = set(edited.stdout.split("\n")) - {"", besides}
    return f"{named.stdout.strip()}{'-dirty' * bool(dirty)}" if named.stdout else UNKNOWN
