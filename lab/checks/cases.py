# SPDX-License-Identifier: GPL-2.0-only
"""Results of a test with more than one: a guest's TAP, a kernel's KUnit, a table's rows."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from quell import source, ui
from quell.errors import QuellError

# Parameters: each version of Linux; all but the first belong to the long form.
LINUX = (source.DEFAULT, *(pytest.param(linux, marks=pytest.mark.full) for linux in source.VERSIONS[1:]))


@dataclass(frozen=True)
class Case:
    """One result: its name, ``status`` (passed, failed or skipped), and the reason if it did not pass.

    ``said`` is a line about it for the user.
    """

    name: str
    status: str = "passed"
    why: str = ""
    seconds: float = 0.0
    said: str = ""


class Results:
    """The fixture ``results``: each case becomes a result of the run at once."""

    def __init__(self, report: Callable[[Case], None] = lambda _: None) -> None:
        self.cases: list[Case] = []
        self._report = report

    def add(self, *cases: Case) -> None:
        """Report ``cases``."""
        for case in cases:
            self.cases.append(case)
            if case.said:
                ui.note(case.said)
            self._report(case)

    def check(self, good: bool, name: str, why: str = "") -> None:
        """Report a case that passed or failed."""
        self.add(Case(name, "passed" if good else "failed", "" if good else why))

    def skip(self, name: str, why: str) -> None:
        """Report a case that was left out."""
        self.add(Case(name, "skipped", why))


def settle(case: Case) -> None:
    """End a test that has this one result."""
    if case.said:
        ui.note(case.said)
    if case.status == "failed":
        pytest.fail(case.why or case.name, pytrace=False)
    if case.status == "skipped":
        pytest.skip(case.why)


def text_of(error: QuellError) -> str:
    """All of an error: the sentence, its detail, the log."""
    log = f"log: {error.log}" if error.log else ""
    return "\n".join(line for line in (error.message, error.detail.rstrip("\n"), log) if line)
