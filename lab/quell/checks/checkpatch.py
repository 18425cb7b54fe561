# SPDX-License-Identifier: GPL-2.0-only
"""Run the kernel's checkpatch --strict on each of Quell's files and patches."""

from __future__ import annotations

from quell import build, source
from quell.checks import CheckResult
from quell.paths import Cache


def run(cache: Cache) -> CheckResult:
    """One check per file."""
    count, complaints = build.checkpatch(source.debian_source(cache))
    return CheckResult(count - len(complaints), len(complaints), 0, "\n".join(complaints))
