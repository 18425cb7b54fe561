# SPDX-License-Identifier: GPL-2.0-only
"""The figures that this project claims, measured here: stock and Quell in one go.

Exits with 1 if one of them does not hold. They are listed in figures.toml.
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

from quell import claims, machine, session, table, ui
from quell.paths import Cache

EXAMPLES = """\
./quell figures
./quell figures luf-256M --runs 3
./quell figures --json > figures.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``figures``."""
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help="only these groups of figures.toml (all)"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="GROUP[,GROUP...]", help="the same"
    )
    parser.add_argument(
        "--runs", type=int, metavar="N", help="runs per kernel (the group's own; 5)"
    )
    parser.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto")
    parser.add_argument(
        "--kernel-tree", type=Path, metavar="DIR", help="a Linux 6.12 tree instead of Debian's"
    )
    parser.add_argument("--json", action="store_true", help="print one object, no table")


def main(args: argparse.Namespace) -> int:
    """Measure and judge every group; 1 if a claim does not hold."""
    groups = claims.select(claims.load(), [*args.groups, *args.only])
    cache = Cache()
    rows = []
    environments = {}
    for group in groups:
        ui.note(f"{group.name}: {group.about}")
        outcome = session.measure(
            session.Options(
                workloads=group.workloads,
                runs=(group.runs or 5) if args.runs is None else args.runs,
                memory=machine.parse_memory(group.memory) if group.memory else None,
                cpus=group.cpus,
                # The instruction counter is TCG's, whatever runs the other groups.
                accel="tcg" if group.deterministic else args.accel,
                deterministic=group.deterministic,
                tree=args.kernel_tree,
                append={
                    "stock": tuple(shlex.split(group.stock_args)),
                    "quell": tuple(shlex.split(group.quell_args)),
                },
            ),
            cache,
        )
        table.kept(outcome.folder)
        rows += claims.check(group, outcome.result)
        environments[group.name] = outcome.result["environment"]
    failed = sum(not row["holds"] for row in rows)
    if args.json:
        document = {"schema": claims.SCHEMA, "environments": environments, "figures": rows}
        print(json.dumps(document, indent=1))
    else:
        out = table.console()
        table.print_claims(rows, out)
        out.print(f"{len(rows) - failed} of {len(rows)} figures hold")
    return 1 if failed else 0
