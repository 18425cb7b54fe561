# SPDX-License-Identifier: GPL-2.0-only
"""Run the checks, part after part. The last line is `N passed, N failed, N skipped`.

The default parts:
  lab         the lab's own tests and types
  report      the page of ./quell report in a browser
  checkpatch  the style of the kernel part
  export      the series of ./quell export, applied with git am
  w1          warnings of the kernel part with W=1
  models      the protocols, checked with spin
  kunit       unit tests of the kernel part, in a VM
  vm          checks of booted kernels
  own         your own data, and compare --here, in a VM

Parts that need --only or --full:
  torture     selftests and attacks on lazy unmap flush, on the debug kernel
  mutants     mutations of the debug kernel: each has to be caught
  selftests   Linux's own: stock and Quell have to agree
  builds      many configurations: no warning that stock does not have
  coccinelle  Linux's semantic checks of Quell's files
  stress      stress-ng's memory stressors on both kernels
  faults      fault injection under load: allocations, disks, CPUs, memory, power
  programs    databases, git and gcc under memory pressure on both kernels
  fuzz        random memory calls (trinity) and events; --seed repeats them
  sanitizers  kernels that detect data races, undefined behavior and leaks
  deb         the packages of ./quell deb: built twice, installed, booted
  distro      Debian's own configuration: built, booted, measured

--full takes the long form of parts that have one. --resume leaves out parts that
passed with the same inputs (--record). The output of a failed part is printed.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Sequence
from pathlib import Path

from quell import configurations, ui
from quell.checks import CheckResult, summary
from quell.errors import QuellError, UsageError
from quell.paths import Cache

PARTS = {
    "lab": "quell.checks.lab",
    "report": "quell.checks.report",
    "checkpatch": "quell.checks.checkpatch",
    "export": "quell.checks.export",
    "w1": "quell.checks.w1",
    "models": "quell.checks.models",
    "kunit": "quell.checks.kunit",
    "vm": "quell.checks.vm",
    "own": "quell.checks.own",
    "torture": "quell.checks.torture",
    "mutants": "quell.checks.mutants",
    "selftests": "quell.checks.selftests",
    "builds": "quell.checks.builds",
    "coccinelle": "quell.checks.coccinelle",
    "stress": "quell.checks.stress",
    "faults": "quell.checks.faults",
    "programs": "quell.checks.programs",
    "fuzz": "quell.checks.fuzz",
    "sanitizers": "quell.checks.sanitizers",
    "deb": "quell.checks.deb",
    "distro": "quell.checks.distro",
}
# Only with --only or --full.
EXTRA = (
    "torture", "mutants", "selftests", "builds", "coccinelle", "stress", "faults", "programs",
    "fuzz", "sanitizers", "deb", "distro",
)  # fmt: skip

EXAMPLES = """\
./quell test
./quell test --only lab --only export
./quell test --only torture
./quell test --only builds --build no-numa
./quell test --only fuzz --seed 4711
./quell test --full --resume
./quell test --only vm --junit results.xml --ktap results.ktap
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
        help="the long form: 100 million reads in torture, 10 million shootdowns in vm, the exported series "
        f"compiled after every patch, and {', '.join(EXTRA)}",
    )
    parser.add_argument(
        "--build",
        metavar="NAME",
        action="append",
        default=[],
        help="only this configuration of builds (may be repeated; implies --only builds)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="the first seed of fuzz (random without it)"
    )
    parser.add_argument(
        "--resume", action="store_true",
        help="leave out parts that passed with the same files of this repository",
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE",
        help="keep the result of each part in this file, not in the cache; --resume reads it",
    )
    parser.add_argument(
        "--junit", type=Path, metavar="FILE", help="write all results as JUnit XML"
    )
    parser.add_argument("--ktap", type=Path, metavar="FILE", help="the same as KTAP")


def run_part(
    name: str, cache: Cache, full: bool = False, builds: Sequence[str] = (), seed: int | None = None
) -> CheckResult:
    """One part; an error in it is one failed check, and the others still run.

    ``builds`` are the configurations of the part of that name, all for none; ``seed`` is for fuzz.
    """
    try:
        module = importlib.import_module(PARTS[name])
        run = getattr(module, "run_full", module.run) if full else module.run
        more = {"builds": (builds,), "fuzz": (seed,)}.get(name, ())
        result: CheckResult = run(cache, *more)
    except QuellError as error:
        lines = [f"{name}: {error.message}", error.detail, f"log: {error.log}" if error.log else ""]
        return CheckResult(0, 1, 0, "\n".join(line for line in lines if line))
    if not result.passed + result.failed + result.skipped:
        return CheckResult(0, 1, 0, f"{name}: nothing was tested\n{result.details}")
    return result


def _write(parts: Sequence[summary.Part], args: argparse.Namespace) -> None:
    """The summaries that were asked for; UsageError when one cannot be written."""
    try:
        if args.ktap:
            args.ktap.write_text(summary.ktap(parts))
        if args.junit:
            summary.write_junit(parts, args.junit)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from error


def main(args: argparse.Namespace) -> int:
    """Run the parts and print the sum."""
    cache = Cache()
    if args.build:
        configurations.choose(args.build)
        args.only = [*(args.only or ()), "builds"]
    summary.prepare((args.junit, args.ktap, args.record), args.junit is not None, cache)
    record = summary.Record(cache, args.record, args.full)
    # Before any part runs: a file that changes meanwhile has not been tested.
    keys = {name: summary.inputs(name) for name in PARTS}
    parts: list[summary.Part] = []
    for name in PARTS:
        if name not in (args.only or PARTS) or (
            name in EXTRA and not (args.only or args.full)
        ):
            continue
        earlier = record.passed_on(name, keys[name]) if args.resume else ""
        if earlier:
            print(f"{name}: passed on {earlier} with the same inputs", flush=True)
            parts.append(summary.Part(name, CheckResult(0, 0, 0), 0.0, earlier))
            continue
        ui.note(f"--- {name}")
        started = time.monotonic()
        result = run_part(name, cache, args.full, args.build, args.seed)
        took = time.monotonic() - started
        parts.append(summary.Part(name, result, took))
        if result.failed and result.details:
            print(result.details.rstrip("\n"), flush=True)
        elif result.details:
            ui.note(result.details.rstrip("\n"))
        print(
            f"{name}: {result.passed} passed, {result.failed} failed, {result.skipped} skipped "
            f"in {ui.duration(took)}",
            flush=True,
        )
        if not args.build:
            record.write(parts[-1], keys[name])
        # After each part: the next one may be interrupted.
        _write(parts, args)
    _write(parts, args)
    passed, failed, skipped = (
        sum(getattr(part.result, word) for part in parts) for word in ("passed", "failed", "skipped")
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0
