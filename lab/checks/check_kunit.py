# SPDX-License-Identifier: GPL-2.0-only
"""KUnit: boot the Quell kernel with its KUnit tests, and read their results.

The tests are compiled into the Quell kernel and run at boot with ``kunit.enable=1``. The kernel's
own parser, ``tools/testing/kunit/kunit.py parse``, reads the output. The long form also runs
Linux's own tests of mm and lib, on stock and on Quell: every single result must be the same.
"""

import functools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from checks import check_selftests as selftests, steps
from checks.cases import Case, Results
from quell import build, machine, prereq, proc, source
from quell.errors import QuellError
from quell.paths import Cache

SUITES = ("quell", "luf", "luf_lot", "rmap_batch", "early_ack", "early_ack_kvm", "folio_order")
# KUnit's status words, as those of the table of selftests.
_WORDS = {"PASS": "ok", "SKIP": "skip"}
# Some of Linux's tests loop for a minute under emulation.
_LINUX_BOOT_S = 600


def _cases(group: dict[str, Any], suite: str = "") -> Iterator[tuple[str, str]]:
    """(suite.case, status) of every test case below ``group`` of kunit.py's JSON."""
    for case in group.get("test_cases", []):
        yield f"{suite}.{case['name']}" if suite else case["name"], case["status"]
    for sub in group.get("sub_groups", []):
        yield from _cases(sub, sub["name"])


def read(report: dict[str, Any], said: str = "") -> list[Case]:
    """Read kunit.py's JSON; ``said`` belongs to each failure. A suite that did not run is one."""
    words = {"PASS": ("passed", ""), "SKIP": ("skipped", "KUnit skips it")}
    found = [
        Case(name, *words.get(status, ("failed", f"KUnit: {status}\n{said}".rstrip())))
        for name, status in _cases(report)
    ]
    ran = {case.name.partition(".")[0] for case in found}
    return found + [Case(suite, "failed", "the suite did not run") for suite in SUITES if suite not in ran]


def _parse(log: str, tree: source.Source, cache: Cache) -> tuple[dict[str, Any], str]:
    """kunit.py's JSON for a kernel's log, and its output; QuellError if it finds no results."""
    with cache.scratch("kunit") as temp:
        file, report = temp / "console.log", temp / "kunit.json"
        file.write_text(log)
        tool = tree.tree / "tools/testing/kunit/kunit.py"
        parse: list[str | Path] = [sys.executable, "-B", tool, "parse", f"--json={report}", file]
        parsed = proc.run(parse, cwd=tree.tree, timeout=60, check=False)
        if not report.exists():
            raise QuellError(
                "the kernel's KUnit parser found no results in the console log",
                detail=proc.tail(parsed.stdout + parsed.stderr), log=machine.save_log(file, cache),
            )  # fmt: skip
        return json.loads(report.read_text()), parsed.stdout


def read_log(log: str, tree: source.Source, cache: Cache) -> list[Case]:
    """Read a kernel's log with ``tree``'s parser; QuellError if that finds no results."""
    report, said = _parse(log, tree, cache)
    return read(report, proc.tail(said, 60))


@pytest.mark.parametrize("linux", source.VERSIONS)
def test_own(linux: str, results: Results, cache: Cache) -> None:
    """Boot, parse, report; QuellError if there are no results."""
    prereq.ensure(prereq.VM)
    tree = source.debian_source(cache, linux)
    kernel = build.build_kernels(tree, ("quell",), cache)["quell"]
    guest = machine.run_script(kernel.image, "true", append=["kunit.enable=1", "loglevel=7"], cache=cache)
    results.add(*read_log(guest.console, tree, cache))
    if guest.warnings:
        results.check(False, "the kernel warned", "\n".join(guest.warnings))


# --- Linux's own --------------------------------------------------------------


def outcomes(report: dict[str, Any]) -> dict[str, selftests.Outcome]:
    """Linux's suites in kunit.py's JSON, as outcomes of selftests."""
    results: dict[str, dict[str, str]] = {}
    for name, status in _cases(report):
        suite, _, case = name.partition(".")
        if suite not in SUITES:
            results.setdefault(suite, {})[case] = _WORDS.get(status, "not ok")
    return {
        suite: selftests.Outcome("fail" if "not ok" in found.values() else "pass", found)
        for suite, found in results.items()
    }


@pytest.mark.full
def test_linux(results: Results, origin: source.Source, cache: Cache) -> None:
    """Run Linux's suites, in one boot of each kernel; repeat those that differ."""
    kernels = build.build_kernels(origin, [f"{name}-kunit" for name in selftests.KERNELS], cache)
    logs = cache.logs / "kunit" / origin.linux

    @functools.cache
    def boot(name: str, number: int) -> dict[str, selftests.Outcome]:
        kernel, more = ("stock", selftests.LARGE_APPEND) if name == selftests.LARGE else (name, ())
        guest = machine.run_script(
            kernels[f"{kernel}-kunit"].image, "dmesg",
            append=["kunit.enable=1", "loglevel=3", "log_buf_len=16M", *more],
            boot_timeout=_LINUX_BOOT_S * steps.patience(), fail_on_oops=False, cache=cache,
        )  # fmt: skip
        steps.keep(logs, f"{name}.{number}", guest.stdout or guest.console)
        return outcomes(_parse(guest.stdout or guest.console, origin, cache)[0])

    def run_on(kernel: str, tests: Sequence[selftests.Selftest], number: int) -> dict[str, selftests.Outcome]:
        found = boot(kernel, number)
        return {test.name: found.get(test.command, selftests.Outcome("missing")) for test in tests}

    suites = dict.fromkeys(suite for kernel in selftests.KERNELS for suite in boot(kernel, 1))
    tests = [selftests.Selftest("kunit", suite) for suite in suites]
    results.add(*selftests.compare_all(tests, run_on))
