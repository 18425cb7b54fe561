# SPDX-License-Identifier: GPL-2.0-only
"""Compile Quell's own objects with W=1, for each version of Linux: no warning about Quell's files."""

from __future__ import annotations

from quell import build, source
from quell.checks import CheckResult
from quell.paths import Cache


def run(cache: Cache) -> CheckResult:
    """One check per object and version."""
    passed, failed, said = 0, 0, []
    for linux in source.VERSIONS:
        count, warnings = build.w1_warnings(source.debian_source(cache, linux), cache)
        files = {warning.split(":")[0] for warning in warnings}
        wrong = min(len(files), count) if count else len(files)
        passed, failed = passed + count - wrong, failed + wrong
        said += [f"{linux}: {warning}" for warning in warnings]
    return CheckResult(passed, failed, 0, "\n".join(said))
