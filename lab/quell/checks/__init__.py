# SPDX-License-Identifier: GPL-2.0-only
"""The parts of ``quell test``: one module each, with ``run(cache: Cache) -> CheckResult``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One check: its name, ``status`` (passed, failed or skipped), and the reason if it did not pass."""

    name: str
    status: str = "passed"
    why: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class CheckResult:
    """Result of a part: counts of checks, and details (always shown if a check failed).

    ``cases`` are the single checks; empty where a part knows only their number.
    """

    passed: int
    failed: int
    skipped: int
    details: str = ""
    cases: tuple[Case, ...] = ()

    @classmethod
    def of(cls, cases: Sequence[Case], details: str = "") -> CheckResult:
        """Count ``cases`` by status."""
        count = Counter(case.status for case in cases)
        return cls(count["passed"], count["failed"], count["skipped"], details, tuple(cases))


def ktap(cases: Sequence[Case]) -> str:
    """``cases`` as KTAP; the reason of a failure stands before it, as comments."""
    lines = ["KTAP version 1", f"1..{len(cases)}"]
    for number, case in enumerate(cases, 1):
        # A hash would begin a directive.
        name = " ".join(case.name.replace("#", "").split())
        why = case.why.splitlines()
        if case.status == "failed":
            lines += [*(f"# {line}" for line in why), f"not ok {number} {name}"]
        elif case.status == "skipped":
            lines.append(f"ok {number} {name} # SKIP {why[0] if why else ''}".rstrip())
        else:
            lines.append(f"ok {number} {name}")
    return "\n".join(lines) + "\n"
