# SPDX-License-Identifier: GPL-2.0-only
"""Test the page of ``quell report`` in a real browser: phone, desktop, dark mode, print."""

from pathlib import Path

from checks.check_lab import run_tests
from checks.cases import Results
from quell import packages, prereq
from quell.paths import Cache, repo_root


def test_report(results: Results, cache: Cache, folder: Path) -> None:
    """Require the browser, install its driver if that is missing, and run the tests."""
    prereq.ensure(prereq.BROWSER)
    packages.install(repo_root() / "lab/requirements-browser.txt", "playwright and axe-core", cache)
    chromium = prereq.which("chromium")
    assert chromium is not None
    run_tests(results, "tests/browser", folder, {"QUELL_CHROMIUM": chromium})
