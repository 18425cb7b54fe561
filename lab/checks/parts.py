# SPDX-License-Identifier: GPL-2.0-only
"""The report of ``quell test``: a line for each part, and its failures; it keeps the record."""

import time
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import PurePath

import pytest

from checks import record
from checks.cases import Case
from quell import ui


def part_of(nodeid: str) -> str:
    """The part that a test belongs to."""
    return PurePath(nodeid.partition("::")[0]).stem.removeprefix("check_")


class Parts:
    """A plugin for pytest, instead of its own report; ``cases`` has the results of parts that have not ended.

    ``resume``: parts that passed with the same inputs are left out. Without ``kept`` nothing is
    recorded.
    """

    def __init__(self, wanted: Sequence[str], kept: record.Record | None, resume: bool) -> None:
        # Before any part runs: a file that changes meanwhile has not been tested.
        self.keys = {part: record.inputs(part) for part in wanted}
        self.kept = kept
        self.count = Counter[str]()
        self.cases: dict[str, list[Case]] = {}
        self.started = time.monotonic()
        for part, key in self.keys.items():
            if date := resume and kept and kept.passed_on(part, key):
                print(f"{part}: passed on {date} with the same inputs", flush=True)
            else:
                self.cases[part] = []

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.unregister(name="terminalreporter")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.cases[part_of(report.nodeid)].append(Case("its file", "failed", report.longreprtext))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            name = report.nodeid.partition("::")[2]
            self.cases[part_of(report.nodeid)].append(Case(name, report.outcome, why))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        part = part_of(item.nodeid)
        ui.note(f"--- {part}: {item.name}")
        result = yield
        if nextitem is None or part_of(nextitem.nodeid) != part:
            self._end(part)
        return result

    def _end(self, part: str) -> None:
        cases = self.cases.pop(part) or [Case(part, "failed", "nothing was tested")]
        for case in cases:
            if case.status == "failed":
                print(f"not ok: {case.name}\n{case.why}".rstrip("\n"))
        count = Counter(case.status for case in cases)
        took = time.monotonic() - self.started
        self.started += took
        print(f"{part}: {_sum(count)} in {ui.duration(took)}", flush=True)
        self.count += count
        if self.kept:
            self.kept.write(part, cases, took, self.keys[part])

    def finish(self) -> bool:
        """Print the sum; True if nothing failed. A part without any test has failed."""
        for part in list(self.cases):
            self._end(part)
        print(_sum(self.count))
        return not self.count["failed"]


def _sum(count: Counter[str]) -> str:
    return ", ".join(f"{count[word]} {word}" for word in ("passed", "failed", "skipped"))
