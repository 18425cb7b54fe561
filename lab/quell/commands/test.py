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

--full takes the long form of parts that have one, on each version of Linux but
in distro. --resume leaves out parts, and tests of an interrupted part, that
passed with the same inputs (--record).
The output of a failed part is printed.
"""

import argparse
import importlib
import os
from pathlib import Path

from quell import packages
from quell.errors import QuellError, UsageError
from quell.paths import Cache, repo_root

CHECKS = repo_root() / "lab/checks"
# The modules check_NAME.py there, in this order.
PARTS = (
    "lab", "report", "checkpatch", "export", "w1", "models", "kunit", "vm", "own", "torture", "mutants", "selftests",
    "builds", "coccinelle", "stress", "faults", "programs", "fuzz", "sanitizers", "deb", "distro",
)  # fmt: skip
# Only with --only or --full.
EXTRA = PARTS[PARTS.index("torture") :]

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
        "--only", metavar="NAME", action="append", choices=PARTS, help="only this part (may be repeated)"
    )
    parser.add_argument(
        "--full", action="store_true",
        help="the long form: 100 million reads in torture, 10 million shootdowns in vm, the exported series "
        f"compiled after every patch, and {', '.join(EXTRA)}",
    )
    parser.add_argument(
        "--build", metavar="NAME", action="append", default=[],
        help="only this configuration of builds (may be repeated; implies --only builds)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the first seed of fuzz (random without it)")
    parser.add_argument(
        "--resume", action="store_true",
        help="leave out parts, and tests of an interrupted part, that passed with the same inputs",
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE",
        help="keep the result of each part in this file, not in the cache; --resume reads it",
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write all results as JUnit XML")
    parser.add_argument("--ktap", type=Path, metavar="FILE", help="the same as KTAP")


def _install(cache: Cache) -> None:
    """Install the test packages into our own environment. UsageError without a network."""
    root = repo_root()
    packages.install(root / "lab/requirements-test.txt", "pytest and mypy", cache)
    # A test of the lab makes a small file of weights.
    packages.install(root / "workloads/llm/requirements.txt", "the packages of workload llm's weights", cache)
    importlib.invalidate_caches()


def main(args: argparse.Namespace) -> int:
    """Run pytest on the parts."""
    cache = Cache()
    for file in filter(None, (args.junit, args.ktap, args.record)):
        try:
            file.open("a").close()
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    _install(cache)
    # A selection there would be recorded as the whole part.
    os.environ.pop("PYTEST_ADDOPTS", None)
    import pytest

    from checks import configurations, parts

    if args.build:
        configurations.choose(args.build)
        args.only = [*(args.only or ()), "builds"]
    wanted = [part for part in PARTS if (part in args.only if args.only else args.full or part not in EXTRA)]
    kept = None if args.build else parts.Record(cache, args.record, args.full)
    report = parts.Parts(wanted, kept, args.resume)
    options = [f"--config-file={repo_root()}/lab/pyproject.toml", f"--rootdir={CHECKS.parent}", "--capture=no"]
    options += ["--continue-on-collection-errors", *(["--full"] if args.full else [])]
    values = [("junitxml", args.junit), ("ktap", args.ktap), ("seed", args.seed), *(("build", b) for b in args.build)]
    options += [f"--{name}={value}" for name, value in values if value is not None]
    # Without a file pytest would run others.
    files = [f"{CHECKS}/check_{part}.py" for part in report.cases]
    code = pytest.main([*options, *files], plugins=[report]) if files else 0
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        raise QuellError("pytest ended with an error")
    return 0 if report.finish() else 1
