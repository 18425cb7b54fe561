# SPDX-License-Identifier: GPL-2.0-only
"""Switch the mechanisms on one at a time: the literature's table, on this machine.

The same Quell kernel with none of its mechanisms, then with one more on each
rung, and stock Linux beside them. Runs of the rungs alternate. What others
published of each mechanism stands beside what is measured here, with its source
and conditions; docs/ladder.md says how to read it.
"""

from __future__ import annotations

import argparse
import json

from quell import machine, table
from quell.commands.compare import add_clock_and_tree
from quell.ladder import run, view
from quell.paths import Cache

EXAMPLES = """\
./quell ladder
./quell ladder --workload zap,dontneed-touch --runs 1
./quell ladder --workload mapped-read --cpus 2,4
./quell ladder --scale --json > ladder.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ladder``."""
    parser.add_argument(
        "--runs", type=int, metavar="N",
        help=f"runs on each rung ({run.DEFAULT_RUNS}; {run.SCALE_RUNS} with --scale)",
    )  # fmt: skip
    parser.add_argument(
        "--workload", "-w", action="append", default=[], metavar="NAME[,NAME...]",
        help=f"only these workloads ({', '.join(run.DEFAULT)})",
    )  # fmt: skip
    parser.add_argument(
        "--memory", metavar="SIZE", help="guest memory, as in 512M (the workload's own)"
    )
    parser.add_argument(
        "--cpus", default="", metavar="N[,N...]", help="guest CPUs, by turns (the workload's own)"
    )
    add_clock_and_tree(parser)
    parser.add_argument(
        "--scale", action="store_true",
        help=f"how the rungs grow with CPUs: {', '.join(run.SCALE)} at "
        f"{', '.join(map(str, run.SCALE_CPUS))} CPUs, deterministic",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print ladder.json, no table")


def main(args: argparse.Namespace) -> int:
    """Climb the ladder and show it."""
    result, folder = run.climb(
        run.Options(
            workloads=args.workload,
            runs=args.runs,
            cpus=run.parse_cpus(args.cpus) if args.cpus else (),
            memory=machine.parse_memory(args.memory) if args.memory else None,
            accel=args.accel,
            deterministic=args.deterministic,
            scale=args.scale,
            tree=args.kernel_tree,
        ),
        Cache(),
    )
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        view.show(result, table.console())
    table.kept(folder)
    return 0
