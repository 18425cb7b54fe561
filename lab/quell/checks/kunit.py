# SPDX-License-Identifier: GPL-2.0-only
"""KUnit: boot the Quell kernel with its KUnit tests, and read their results.

The tests are compiled into the Quell kernel and run at boot with ``kunit.enable=1``. The kernel's
own parser, ``tools/testing/kunit/kunit.py parse``, reads the output. The long form also runs
Linux's own tests of mm and lib, on stock and on Quell: every single result must be the same.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quell import build, machine, prereq, proc, source
from quell.checks import Case, CheckResult, selftests, steps
from quell.errors import QuellError
from quell.paths import Cache

SUITES = ("quell", "luf", "rmap_batch", "early_ack", "folio_order")
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


def read(report: dict[str, Any]) -> CheckResult:
    """Read kunit.py's JSON. A suite that did not run is a failure."""
    cases = list(_cases(report))
    failed = [f"KUnit {name}: {status}" for name, status in cases if status not in ("PASS", "SKIP")]
    ran = {name.partition(".")[0] for name, _ in cases}
    failed += [f"KUnit suite {suite} did not run" for suite in SUITES if suite not in ran]
    return CheckResult(
        passed=sum(status == "PASS" for _, status in cases),
        failed=len(failed),
        skipped=sum(status == "SKIP" for _, status in cases),
        details="\n".join(failed),
    )


def _parse(log: str, tree: source.Source, cache: Cache) -> tuple[dict[str, Any], str]:
    """kunit.py's JSON for a kernel's log, and its output; QuellError if it finds no results."""
    with tempfile.TemporaryDirectory(prefix="kunit-", dir=cache.folder("run")) as temp:
        file, report = Path(temp) / "console.log", Path(temp) / "kunit.json"
        file.write_text(log)
        tool = tree.tree / "tools/testing/kunit/kunit.py"
        parsed = proc.run(
            [sys.executable, "-B", tool, "parse", f"--json={report}", file],
            cwd=tree.tree,
            timeout=60,
            check=False,
        )
        try:
            found: dict[str, Any] = json.loads(report.read_text())
        except (OSError, ValueError) as error:
            raise QuellError(
                "the kernel's KUnit parser found no results in the console log",
                detail=proc.tail(parsed.stdout + parsed.stderr),
                log=machine.save_log(file, cache),
            ) from error
    return found, parsed.stdout


def read_log(log: str, tree: source.Source, cache: Cache) -> CheckResult:
    """Read a kernel's log with ``tree``'s parser; QuellError if that finds no results."""
    report, said = _parse(log, tree, cache)
    result = read(report)
    if result.failed:
        return replace(result, details=f"{result.details}\n{proc.tail(said, 60)}")
    return result


def run(cache: Cache) -> CheckResult:
    """Boot, parse, count, for each version of Linux; QuellError if there are no results."""
    prereq.ensure(prereq.VM)
    results = [_own(cache, linux) for linux in source.VERSIONS]
    passed, failed, skipped = (sum(counts) for counts in zip(*((r.passed, r.failed, r.skipped) for r in results), strict=True))
    return CheckResult(passed, failed, skipped, "\n".join(filter(None, (one.details for one in results))))


def _own(cache: Cache, linux: str) -> CheckResult:
    tree = source.debian_source(cache, linux)
    # The part vm boots the same kernel.
    name = "quell" + build.EXT4 * (linux != source.DEFAULT)
    kernel = build.build_kernels(tree, (name,), cache)[name]
    guest = machine.run_script(
        kernel.image, "true", append=["kunit.enable=1", "loglevel=7"], cache=cache
    )
    result = read_log(guest.console, tree, cache)
    said = [f"Linux {linux}:", result.details] if result.failed else []
    if guest.warnings:
        said += [f"Linux {linux} warned:", *guest.warnings]
        result = replace(result, failed=result.failed + 1)
    return replace(result, details="\n".join(said))


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


def rows(stock: Iterable[str], quell: Iterable[str]) -> list[selftests.Selftest]:
    """A row for each suite that ran on either kernel."""
    return [selftests.Selftest("kunit", suite) for suite in dict.fromkeys([*stock, *quell])]


def _linux(cache: Cache) -> CheckResult:
    """Run Linux's suites, in one boot of each kernel; repeat those that differ."""
    tree = source.debian_source(cache)
    kernels = build.build_kernels(tree, [f"{name}-kunit" for name in selftests.KERNELS], cache)
    logs = cache.logs / "kunit"

    @functools.cache
    def boot(name: str, number: int) -> dict[str, selftests.Outcome]:
        kernel, more = ("stock", selftests.LARGE_APPEND) if name == selftests.LARGE else (name, ())
        guest = machine.run_script(
            kernels[f"{kernel}-kunit"].image, "dmesg",
            append=["kunit.enable=1", "loglevel=3", "log_buf_len=16M", *more],
            boot_timeout=_LINUX_BOOT_S * steps.patience(), fail_on_oops=False, cache=cache,
        )  # fmt: skip
        steps.keep(logs, f"{name}.{number}", guest.stdout or guest.console)
        return outcomes(_parse(guest.stdout or guest.console, tree, cache)[0])

    def run_on(
        kernel: str, tests: Sequence[selftests.Selftest], number: int
    ) -> dict[str, selftests.Outcome]:
        found = boot(kernel, number)
        return {test.name: found.get(test.command, selftests.Outcome("missing")) for test in tests}

    tests = rows(*(boot(kernel, 1) for kernel in selftests.KERNELS))
    if not tests:
        return CheckResult.of([Case("kunit of Linux", "failed", "the kernels ran none of Linux's suites")])
    result = selftests.report(tests, *selftests.compare_all(tests, run_on))
    return replace(result, details=f"{result.details}\noutput of the kernels: {logs}")


def run_full(cache: Cache) -> CheckResult:
    """Quell's own tests, then Linux's of mm and lib on both kernels."""
    own, linux = run(cache), _linux(cache)
    return CheckResult(
        own.passed + linux.passed, own.failed + linux.failed, own.skipped + linux.skipped,
        "\n".join(filter(None, (own.details, linux.details))),
        # Only the counts of Quell's own tests are known.
        (Case("Quell's own", "failed" if own.failed else "passed", own.details), *linux.cases),
    )  # fmt: skip
