# SPDX-License-Identifier: GPL-2.0-only
"""The kept results that a report is made of: found, read, and checked whole."""

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
    """The results in these files or folders, or of these names in the cache; the newest without names.

    UsageError when there is none, ResultError when one cannot be read.
    """
    paths = [_path(name, cache) for name in names]
    if not names:
        newest = [results.latest(cache, (preset,)) for preset in _PRESETS]
        # Any other result, and the reason why the newest cannot be read.
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
