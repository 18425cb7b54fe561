# SPDX-License-Identifier: GPL-2.0-only
"""Python packages from PyPI for parts of the lab, installed when first needed."""

import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from quell import proc, ui
from quell.errors import QuellError, UsageError
from quell.paths import Cache

_TIMEOUT_S = 600


def missing(requirements: Path) -> list[str]:
    """The lines ``name==version`` of a requirements file that this Python does not have."""
    lacking = []
    for line in requirements.read_text().splitlines():
        name, _, version = line.partition("==")
        if not version or line.startswith("#"):
            continue
        try:
            have = metadata.version(name)
        except metadata.PackageNotFoundError:
            have = ""
        if have != version:
            lacking.append(line)
    return lacking


def pip(args: Sequence[str | Path], what: str, *, cwd: Path | None = None) -> None:
    """Run pip with ``args``. UsageError with ``what`` (a subject and a verb) when it fails."""
    argv = [sys.executable, "-m", "pip", *args, "--quiet", "--disable-pip-version-check", "--no-input"]
    try:
        proc.run(argv, cwd=cwd, timeout=_TIMEOUT_S)
    except QuellError as error:
        raise UsageError(f"{what} (is there a network?)", detail=proc.tail(error.detail, 5)) from error


def install(requirements: Path, why: str, cache: Cache) -> None:
    """Install a file's missing packages into the lab's environment; ``why`` is for the user.

    UsageError without a network.
    """
    with cache.lock("python-packages"):
        if not missing(requirements):
            return
        ui.note(f"installing Python packages: {why}")
        pip(["install", "-r", requirements], f"the Python packages in {requirements} could not be installed")
