# SPDX-License-Identifier: GPL-2.0-only
"""The option ``--ktap`` of the checks: results as KTAP, a subtest for each part."""

from pathlib import Path

import pytest


Reports = list[pytest.TestReport | pytest.CollectReport]


def lines(reports: Reports) -> list[str]:
    """``reports`` as KTAP; the reason of a failure stands before it, as comments."""
    found = ["KTAP version 1", f"1..{len(reports)}"]
    for number, report in enumerate(reports, 1):
        # A hash would begin a directive.
        name = " ".join((report.nodeid.partition("::")[2] or "its file").replace("#", "").split())
        if report.failed:
            found += [*(f"# {line}" for line in report.longreprtext.splitlines()), f"not ok {number} {name}"]
        elif report.skipped:
            why = report.longrepr[2].splitlines() if isinstance(report.longrepr, tuple) else []
            found.append(f"ok {number} {name} # SKIP {why[0] if why else ''}".rstrip())
        else:
            found.append(f"ok {number} {name}")
    return found


class Writer:
    """The plugin."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.parts: dict[str, Reports] = {}

    def _add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        part = Path(report.nodeid.partition("::")[0]).stem.removeprefix("check_")
        self.parts.setdefault(part, []).append(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._add(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._add(report)

    def pytest_sessionfinish(self) -> None:
        found = ["KTAP version 1", f"1..{len(self.parts)}"]
        for number, (part, reports) in enumerate(self.parts.items(), 1):
            found += [f"    # Subtest: {part}", *(f"    {line}" for line in lines(reports))]
            bad = "not " if any(report.failed for report in reports) else ""
            skip = " # SKIP" if all(report.skipped for report in reports) else ""
            found.append(f"{bad}ok {number} {part}{skip}")
        self.file.write_text("\n".join(found) + "\n")
