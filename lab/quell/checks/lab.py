# SPDX-License-Identifier: GPL-2.0-only
"""The lab's own checks: its tests with pytest, its types with mypy."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping

from quell import packages, prereq, proc
from quell.checks import CheckResult
from quell.paths import Cache, repo_root

_TIMEOUT_S = 900


def install(cache: Cache) -> None:
    """Install the test packages into our own environment. UsageError without a network."""
    packages.install(repo_root() / "lab/requirements-test.txt", "pytest and mypy", cache)
    # A test makes a small file of weights.
    needed = repo_root() / "workloads/llm/requirements.txt"
    packages.install(needed, "the packages of workload llm's weights", cache)


def pytest_counts(output: str) -> tuple[int, int, int]:
    """Passed, failed (errors too) and skipped, from pytest's last line."""
    lines = [line for line in output.splitlines() if re.search(r" in [\d.]+s", line)]
    counts = {
        word: int(number)
        for number, word in re.findall(r"(\d+) ([a-z]+)", lines[-1] if lines else "")
    }
    failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    passed = counts.get("passed", 0) + counts.get("xfailed", 0)
    return passed, failed, counts.get("skipped", 0)


def _environment() -> dict[str, str]:
    """Environment of pytest and mypy."""
    lab = repo_root() / "lab"
    return {"PYTHONPATH": str(lab), "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}


def run_tests(folder: str, env: Mapping[str, str] | None = None) -> CheckResult:
    """Run pytest on a folder or file below ``lab``, with ``env`` besides."""
    tests = proc.run(
        [sys.executable, "-m", "pytest", "-q", folder],
        cwd=repo_root() / "lab",
        env={**_environment(), **(env or {})},
        timeout=_TIMEOUT_S,
        check=False,
    )
    passed, failed, skipped = pytest_counts(tests.stdout)
    if tests.returncode == 0:
        return CheckResult(passed, failed, skipped)
    # pytest may have stopped before any test.
    return CheckResult(passed, max(failed, 1), skipped, tests.stdout + tests.stderr)


def run(cache: Cache) -> CheckResult:
    """Run pytest and mypy."""
    # The tests compile, and they make repositories and patches.
    prereq.ensure((*prereq.BUILD, *prereq.TOOLS))
    install(cache)
    lab = repo_root() / "lab"
    # One cache for each clone of the repository, so that two do not disturb each other.
    where = hashlib.sha256(os.fsencode(lab)).hexdigest()[:12]
    state = cache.folder("checks") / where
    tests = run_tests("tests")
    passed, failed, details = tests.passed, tests.failed, tests.details
    types = proc.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", state / "mypy", "quell"],
        cwd=lab,
        env=_environment(),
        timeout=_TIMEOUT_S,
        check=False,
    )
    if types.returncode == 0:
        passed += 1
    else:
        failed += 1
        details += types.stdout + types.stderr
    return CheckResult(passed, failed, tests.skipped, details)
