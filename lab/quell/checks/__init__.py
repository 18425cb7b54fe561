# SPDX-License-Identifier: GPL-2.0-only
"""The parts of ``quell test``: one module each, with ``run(cache: Cache) -> CheckResult``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckResult:
    """How a part went: numbers of checks, and what to show (always shown if any failed)."""

    passed: int
    failed: int
    skipped: int
    details: str = ""
