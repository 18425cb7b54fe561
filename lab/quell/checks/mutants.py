# SPDX-License-Identifier: GPL-2.0-only
"""Mutation testing: a test must catch each mutation of the debug kernel; see checks/torture.py."""

from __future__ import annotations

from quell.checks import CheckResult, torture
from quell.paths import Cache


def run(cache: Cache) -> CheckResult:
    """Count the mutations that were caught and those that survived."""
    return torture.run_mutants(cache)
