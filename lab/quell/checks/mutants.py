# SPDX-License-Identifier: GPL-2.0-only
"""Mutants: each mutation of the debug kernel has to be caught; see checks/torture.py."""

from __future__ import annotations

from quell.checks import CheckResult, torture
from quell.paths import Cache


def run(cache: Cache) -> CheckResult:
    """Count those that were caught, and those that survived."""
    return torture.run_mutants(cache)
