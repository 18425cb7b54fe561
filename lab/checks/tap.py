# SPDX-License-Identifier: GPL-2.0-only
"""The output of Quell's selftests: TAP."""

import re
from itertools import takewhile

from checks.cases import Results
from quell import machine

_TAP = re.compile(r"^(not )?ok \d+ (?:- )?(.*?)( # SKIP.*)?$", re.M)
_PLAN = re.compile(r"^1\.\.(\d+).*", re.M)
_BAIL_OUT = re.compile(r"^Bail out!.*", re.M)


def read_tap(text: str) -> tuple[list[str], list[str], list[str]]:
    """(passed, failed, skipped) names of a TAP stream.

    If the plan is missing or has another number, the test died halfway: one more
    failure.
    """
    found: tuple[list[str], list[str], list[str]] = ([], [], [])
    for bad, name, skip in _TAP.findall(text):
        found[1 if bad else 2 if skip else 0].append(name)
    plan = _PLAN.search(text)
    total = sum(map(len, found))
    if plan is None:
        found[1].append(f"the test ended early, after {total} results")
    elif int(plan[1]) != total:
        found[1].append(f"{plan[1]} results were planned, {total} came")
    elif total == 0:
        found[2].append(plan[0])
    return found


def tap_comments(text: str, name: str) -> str:
    """The comments after the result of test ``name`` in a TAP stream."""
    lines = text.splitlines()
    results = [number for number, line in enumerate(lines) if (hit := _TAP.match(line)) and hit[2] == name]
    if not results:
        return ""
    after = lines[results[0] + 1 :]
    return "\n".join(takewhile(lambda line: line.startswith("#"), after))


def count(results: Results, guest: machine.GuestResult) -> None:
    """Report the results of a guest that ran a selftest."""
    passed, failed, skipped = read_tap(guest.stdout)
    died = "\n".join(_BAIL_OUT.findall(guest.stdout))
    for test in passed:
        results.check(True, test)
    for test in skipped:
        results.skip(test, "the selftest skips it")
    for test in failed:
        why = (tap_comments(guest.stdout, test), died, guest.stderr.strip())
        results.check(False, test, "\n".join(filter(None, why)))
    if guest.exit_code and not failed:
        results.check(False, f"exit code {guest.exit_code}", guest.stderr)
