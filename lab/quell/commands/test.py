# SPDX-License-Identifier: GPL-2.0-only
"""Run every check, part after part: lab, checkpatch, export, w1, models, kunit, vm, torture.

lab is the lab's own tests and types, checkpatch and w1 the kernel part's
style and warnings, export the series of ./quell export applied with git am,
models its protocol checked with spin, kunit its unit tests in a VM, vm what
only booted kernels show, torture lazy unmap flush under attack on the debug
kernel. Only where they are named, or with --full: mutants, the same with each
deliberate fault of that kernel, which has to be caught; selftests, Linux's own,
whose results have to be the same on stock and on Quell; sanitizers, kernels that
look for data races, undefined behaviour and leaks. With --full, those parts that
have a long form take it. The output of a part that failed is printed.
The last line is `N passed, N failed, N skipped` over all parts.
"""

from __future__ import annotations

import argparse
import importlib
import time

from quell import ui
from quell.checks import CheckResult
from quell.errors import QuellError
from quell.paths import Cache

PARTS = {
    "lab": "quell.checks.lab",
    "checkpatch": "quell.checks.checkpatch",
    "export": "quell.checks.export",
    "w1": "quell.checks.w1",
    "models": "quell.checks.models",
    "kunit": "quell.checks.kunit",
    "vm": "quell.checks.vm",
    "torture": "quell.checks.torture",
    "mutants": "quell.checks.mutants",
    "selftests": "quell.checks.selftests",
    "sanitizers": "quell.checks.sanitizers",
}
# Only with --only or --full.
EXTRA = ("mutants", "selftests", "sanitizers")

EXAMPLES = """\
./quell test
./quell test --only lab --only export
./quell test --full
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        choices=list(PARTS),
        help=f"only this part, one of {', '.join(PARTS)} (may be repeated)",
    )
    parser.add_argument(
        "--full", action="store_true",
        help="the long form: 100 million reads in torture, mutants, selftests, sanitizers, "
        "and each first part of the exported series compiled",
    )


def run_part(name: str, cache: Cache, full: bool = False) -> CheckResult:
    """One part; an error in it is one failed check, and the others still run."""
    try:
        module = importlib.import_module(PARTS[name])
        run = getattr(module, "run_full", module.run) if full else module.run
        result: CheckResult = run(cache)
    except QuellError as error:
        lines = [f"{name}: {error.message}", error.detail, f"log: {error.log}" if error.log else ""]
        return CheckResult(0, 1, 0, "\n".join(line for line in lines if line))
    return result


def main(args: argparse.Namespace) -> int:
    """Run the parts and print the sum."""
    cache = Cache()
    passed = failed = skipped = 0
    for name in PARTS:
        if name not in (args.only or PARTS) or (
            name in EXTRA and not (args.only or args.full)
        ):
            continue
        ui.note(f"--- {name}")
        started = time.monotonic()
        result = run_part(name, cache, args.full)
        if result.failed and result.details:
            print(result.details.rstrip("\n"), flush=True)
        elif result.details:
            ui.note(result.details.rstrip("\n"))
        print(
            f"{name}: {result.passed} passed, {result.failed} failed, {result.skipped} skipped "
            f"in {ui.duration(time.monotonic() - started)}",
            flush=True,
        )
        passed += result.passed
        failed += result.failed
        skipped += result.skipped
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0
