# SPDX-License-Identifier: GPL-2.0-only
"""The output of Quell's selftests: TAP."""

import re
from collections.abc import Iterator
from dataclasses import replace

from checks.cases import Case, Results
from quell import machine

_TAP = re.compile(r"^(not )?ok \d+ (?:- )?(.*?)( # SKIP.*)?\n((?:#.*\n)*)", re.M)
_PROGRAM = re.compile(r"^@quell test (.*)\n", re.M)
_PLAN = re.compile(r"^1\.\.(\d+).*", re.M)
_BAIL_OUT = re.compile(r"^Bail out!.*", re.M)


def read(text: str) -> Iterator[Case]:
    """The results of a TAP stream, or of several that follow a line ``@quell test NAME`` each."""
    first, *more = _PROGRAM.split(text)
    if not more:
        yield from _read(first)
    for name, stream in zip(more[::2], more[1::2], strict=True):
        yield from (replace(case, name=f"{name}: {case.name}") for case in _read(stream))


def _read(text: str) -> Iterator[Case]:
    """The results of a stream; the reason of a failure are the comments after it.

    If the plan is missing or has another number, the test died halfway: one more
    failure.
    """
    total = 0
    for total, (bad, name, skip, comments) in enumerate(_TAP.findall(f"{text}\n"), 1):
        if bad:
            yield Case(name, "failed", comments.rstrip())
        else:
            yield Case(name, "skipped", "the selftest skips it") if skip else Case(name)
    plan, died = _PLAN.search(text), "\n".join(_BAIL_OUT.findall(text))
    if plan is None:
        yield Case(f"the test ended early, after {total} results", "failed", died)
    elif int(plan[1]) != total:
        yield Case(f"{plan[1]} results were planned, {total} came", "failed", died)
    elif total == 0:
        yield Case(plan[0], "skipped", "the selftest skips it")


def count(results: Results, guest: machine.GuestResult) -> None:
    """Report the results of a guest that ran a selftest."""
    cases = list(read(guest.stdout))
    failed = any(case.status == "failed" for case in cases)
    for case in cases:
        why = f"{case.why}\n{guest.stderr}".strip() if case.status == "failed" else case.why
        results.add(replace(case, why=why))
    if guest.exit_code and not failed:
        results.check(False, f"exit code {guest.exit_code}", guest.stderr)
