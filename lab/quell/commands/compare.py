# SPDX-License-Identifier: GPL-2.0-only
"""Stock Linux against Quell: the standard workloads, or your own command after --.

Installs what is missing, builds both kernels (later calls reuse them), and
runs everything in VMs on the host's root file system: reads go through, writes
are discarded. Runs alternate, stock and Quell, each in a fresh VM.
"""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import replace
from pathlib import Path

from quell import compare, machine, session, table, ui
from quell.paths import Cache

EXAMPLES = """\
./quell compare
./quell compare --workload mapped-read --runs 3
./quell compare -- make -j4
./quell compare --quell-args quell=luf --json > result.json
"""


def add_guest_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say in what guests is measured."""
    parser.add_argument(
        "--memory", metavar="SIZE", help="guest memory, as in 512M (the workload's own; 1G for --)"
    )
    parser.add_argument("--cpus", type=int, metavar="N", help="guest CPUs (the workload's own; 2)")
    add_clock_and_tree(parser)


def guest_options(args: argparse.Namespace) -> session.Options:
    """What ``add_guest_arguments`` and --workload, --runs and --quell-args ask for."""
    return session.Options(
        workloads=args.workload,
        runs=args.runs,
        memory=machine.parse_memory(args.memory) if args.memory else None,
        cpus=args.cpus,
        accel=args.accel,
        deterministic=args.deterministic,
        tree=args.kernel_tree,
        append={"quell": tuple(shlex.split(args.quell_args))},
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``compare``."""
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs per kernel (5)")
    parser.add_argument(
        "--workload", "-w", action="append", default=[], metavar="NAME[,NAME...]",
        help="only these workloads (the standard ones)",
    )  # fmt: skip
    add_guest_arguments(parser)
    parser.add_argument(
        "--quell-args", default="", metavar="PARAMS",
        help='boot parameters for the Quell kernel only, as in "quell=off"',
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=float, default=600, metavar="S", help="seconds for your command (600)"
    )
    parser.add_argument("--json", action="store_true", help="print the result object, no table")


def add_clock_and_tree(parser: argparse.ArgumentParser) -> None:
    """The options of everything that measures: what runs the guests, and which source."""
    parser.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto")
    parser.add_argument(
        "--deterministic", action="store_true",
        help="guest instructions as the clock, data on a RAM disk: slow, repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--kernel-tree", type=Path, metavar="DIR", help="a Linux 6.12 tree instead of Debian's"
    )


def main(args: argparse.Namespace) -> int:
    """Run the comparison; your command's exit code, or 0."""
    cache = Cache()
    options = replace(guest_options(args), command=args.command, timeout=args.timeout)
    outcome = session.measure(options, cache)
    if args.json:
        print(json.dumps(outcome.result, indent=1))
    else:
        out = table.console()
        table.print_accelerator(outcome.result, out)
        out.print()
        table.print_result(
            outcome.result, {m.plan.name: m.plan.summary for m in outcome.measured}, out
        )
    if args.command is None:
        table.kept(outcome.folder)
        return 0
    ui.note(f"the command's output is kept in {outcome.folder / 'runs' / compare.OWN_COMMAND}")
    return own_exit_code(outcome.measured[0].exit_codes)


def own_exit_code(codes: dict[str, list[int]]) -> int:
    """What to exit with after the user's own command: its code; says so when runs disagree."""
    every = [code for side in compare.SIDES for code in codes[side]]
    if len(set(every)) > 1:
        shown = ", ".join(f"{side} {' '.join(map(str, codes[side]))}" for side in compare.SIDES)
        ui.warn(f"the command's exit codes differ: {shown}")
    failed = [code for side in reversed(compare.SIDES) for code in codes[side] if code]
    return failed[0] if failed else 0
