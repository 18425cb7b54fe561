# SPDX-License-Identifier: GPL-2.0-only
"""The compiler's version, and the settings of its cache."""

import functools
from pathlib import Path

from quell import proc
from quell.paths import Cache


@functools.cache
def version(tool: str) -> str:
    """The first line of ``TOOL --version``."""
    return proc.run([tool, "--version"], timeout=30).stdout.partition("\n")[0]


def ccache(base: Path, cache: Cache) -> dict[str, str]:
    """ccache's environment for a compilation below ``base``."""
    return {
        "CCACHE_DIR": str(cache.ccache),
        "CCACHE_BASEDIR": str(base),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_MAXSIZE": "4G",
        # The compiler lists its own inputs; a second run of the preprocessor takes a fifth of a build.
        "CCACHE_DEPEND": "1",
        "LC_ALL": "C",
    }
