# SPDX-License-Identifier: GPL-2.0-only
"""KUnit: boots the Quell kernel with its KUnit tests and reads what they say.

The tests are compiled into the Quell kernel and run at boot where
``kunit.enable=1`` is given. The output is read by the kernel's own parser,
``tools/testing/kunit/kunit.py parse``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from quell import build, machine, prereq, proc, source
from quell.checks import CheckResult
from quell.errors import QuellError
from quell.paths import Cache

SUITES = ("quell", "luf", "rmap_batch", "early_ack", "folio_order")


def _cases(group: dict[str, Any], suite: str = "") -> Iterator[tuple[str, str]]:
    """(suite.case, status) of every test case below ``group`` of kunit.py's JSON."""
    for case in group.get("test_cases", []):
        yield f"{suite}.{case['name']}" if suite else case["name"], case["status"]
    for sub in group.get("sub_groups", []):
        yield from _cases(sub, sub["name"])


def read(report: dict[str, Any]) -> CheckResult:
    """What kunit.py's JSON says. A suite that did not run is a failure."""
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


def read_log(log: str, tree: source.Source, cache: Cache) -> CheckResult:
    """What a kernel's log says, read by ``tree``'s parser; QuellError if that finds no results."""
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
            result = read(json.loads(report.read_text()))
        except (OSError, ValueError) as error:
            raise QuellError(
                "the kernel's KUnit parser found no results in the console log",
                detail=proc.tail(parsed.stdout + parsed.stderr),
                log=machine.save_log(file, cache),
            ) from error
    if result.failed:
        return replace(result, details=f"{result.details}\n{proc.tail(parsed.stdout, 60)}")
    return result


def run(cache: Cache) -> CheckResult:
    """Boot, parse, count; QuellError when the guest or the parser gives nothing to count."""
    prereq.ensure(prereq.VM)
    tree = source.debian_source(cache)
    kernel = build.build_kernels(tree, ("quell",), cache)["quell"]
    guest = machine.run_script(
        kernel.image, "true", append=["kunit.enable=1", "loglevel=7"], cache=cache
    )
    result = read_log(guest.console, tree, cache)
    if guest.warnings:
        said = "\n".join(("the kernel warned:", *guest.warnings))
        result = replace(result, failed=result.failed + 1, details=f"{result.details}\n{said}".strip())
    return result
