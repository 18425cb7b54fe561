# SPDX-License-Identifier: GPL-2.0-only
"""Large anonymous folios: each fixed size on stock Linux, against Quell's own choice.

A fixed size is what an administrator can set on stock Linux, in
/sys/kernel/mm/transparent_hugepage/hugepages-SIZEkB/enabled. The changes are
against stock with single pages, as it is by default. Runs of all columns
alternate, each in a fresh VM. Of Quell only large folios are on, unless
--quell-args says otherwise.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from quell import sizes, table
from quell.commands import compare
from quell.paths import Cache

EXAMPLES = """\
./quell sizes
./quell sizes --workload redis --size 16K,64K --runs 2
./quell sizes --deterministic --workload fault --runs 1
./quell sizes --json > sizes.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``sizes``."""
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs per column (3)")
    parser.add_argument(
        "--workload", "-w", action="append", default=[], metavar="NAME[,NAME...]",
        help=f"only these workloads ({', '.join(sizes.WORKLOADS)})",
    )  # fmt: skip
    parser.add_argument(
        "--size", action="append", default=[], metavar="SIZE[,SIZE...]",
        help="only these fixed sizes (16K, 32K, 64K, 128K, 256K)",
    )  # fmt: skip
    compare.add_guest_arguments(parser)
    parser.add_argument(
        "--quell-args", default=sizes.QUELL_ARGS, metavar="PARAMS",
        help=f'boot parameters for the Quell kernel ("{sizes.QUELL_ARGS}"; quell=on for all of it)',
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result object, no table")


def main(args: argparse.Namespace) -> int:
    """Measure and print the table; 0."""
    columns = sizes.variants(sizes.parse_sizes(args.size))
    options = compare.guest_options(args)
    if not options.workloads:
        options = replace(options, workloads=sizes.WORKLOADS)
    outcome = sizes.measure_sizes(options, Cache(), columns)
    if args.json:
        print(json.dumps(outcome.result, indent=1))
    else:
        out = table.console()
        table.print_accelerator(outcome.result, out)
        out.print()
        table.print_sizes(outcome.result, outcome.summaries, out)
    table.kept(outcome.folder)
    return 0
