# SPDX-License-Identifier: GPL-2.0-only
"""The page of ``quell report`` in a real browser: on a phone, a desktop, in the dark, in print."""

from __future__ import annotations

from quell import prereq
from quell.checks import CheckResult, lab
from quell.paths import Cache


def run(cache: Cache) -> CheckResult:
    """Install the browser and its driver if they are not here, and run the tests."""
    prereq.ensure(prereq.BROWSER)
    lab.install(cache)
    lab.install(cache, "requirements-browser.txt", "playwright and axe-core")
    chromium = prereq.which("chromium")
    assert chromium is not None
    return lab.run_tests("tests/browser", {"QUELL_CHROMIUM": chromium})
