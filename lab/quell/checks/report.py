# SPDX-License-Identifier: GPL-2.0-only
"""Test the page of ``quell report`` in a real browser: phone, desktop, dark mode, print."""

from __future__ import annotations

from quell import packages, prereq
from quell.checks import CheckResult, lab
from quell.paths import Cache, repo_root


def run(cache: Cache) -> CheckResult:
    """Require the browser, install its driver if that is missing, and run the tests."""
    prereq.ensure(prereq.BROWSER)
    lab.install(cache)
    needed = repo_root() / "lab/requirements-browser.txt"
    packages.install(needed, "playwright and axe-core", cache)
    chromium = prereq.which("chromium")
    assert chromium is not None
    return lab.run_tests("tests/browser", {"QUELL_CHROMIUM": chromium})
