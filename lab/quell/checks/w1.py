# SPDX-License-Identifier: GPL-2.0-only
"""Quell's own objects compiled with W=1: no warning about Quell's files."""

from __future__ import annotations

from quell import build, source
from quell.checks import CheckResult
from quell.paths import Cache


def run(cache: Cache) -> CheckResult:
    """One check per object."""
    count, warnings = build.w1_warnings(source.debian_source(cache), cache)
    files = {warning.split(":")[0] for warning in warnings}
    failed = min(len(files), count) if count else len(files)
    return CheckResult(count - failed, failed, 0, "\n".join(warnings))
