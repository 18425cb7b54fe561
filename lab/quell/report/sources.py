# SPDX-License-Identifier: GPL-2.0-only
"""The kept results of a report: found, read, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quell import results
from quell.errors import UsageError
from quell.paths import Cache

# A report without names has the newest result of each of these presets.
_PRESETS = ("compare", "ladder", "scale")


def find(names: Sequence[str], cache: Cache) -> list[dict[str, Any]]:
    """The results in these files, folders, or names of the cache; without names the newest.

    UsageError when there is none, ResultError when one cannot be read.
    """
    paths = [_path(name, cache) for name in names]
    if not names:
        newest = [results.latest(cache, (preset,)) for preset in _PRESETS]
        # Any other result, or the error of the newest one.
        paths = [path for path in newest if path] or [path for path in [results.latest(cache)] if path]
    if not paths:
        raise UsageError("there are no results yet; ./quell compare makes them")
    return [results.load(path) for path in paths]


def _path(name: str, cache: Cache) -> Path:
    path = Path(name)
    if not path.exists() and "/" not in name:
        path = cache.results / name
    if not path.exists():
        raise UsageError(f"there is no result {name}: neither a file or folder, nor a name in {cache.results}")
    return path
