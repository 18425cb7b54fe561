# SPDX-License-Identifier: GPL-2.0-only
"""Measure the project's claims on this machine: stock and Quell by turns.

figures.toml lists the claims. The exit code is 1 if one of them does not hold.
With --page nothing is measured: the newest kept results go to a page.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from quell import engine, figures_page, machine, presets, source, table, ui
from quell.paths import Cache

SCHEMA = "quell.figures/2"
EXAMPLES = """\
./quell figures
./quell figures luf-256M --runs 6
./quell figures sizes --workload redis
./quell figures --json > figures.json
./quell figures --page docs/results.md
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``figures``."""
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="only these groups of figures.toml (all)")
    parser.add_argument("--workload", "-w", action="append", metavar="NAME[,NAME...]", help="only these workloads")
    parser.add_argument("--runs", type=int, metavar="N", help="runs on each side (the group's own; 5)")
    parser.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto", help=machine.ACCEL_HELP)
    parser.add_argument("--kernel", default=source.DEFAULT, metavar="LINUX", help=source.OPTION_HELP)
    parser.add_argument("--json", action="store_true", help="print one object, no table")
    page = "measure nothing; write the newest kept result of each group into this page (Markdown, with a chart)"
    parser.add_argument("--page", type=Path, metavar="FILE", help=page)


def main(args: argparse.Namespace) -> int:
    """Measure and judge every group; 1 if a claim does not hold."""
    if args.page:
        made, total = figures_page.update(args.page, presets.groups(args.groups), Cache())
        print(f"{args.page}: {made} of {total} sections updated")
        return 0
    rows = []
    environments = {}
    for group in presets.groups(args.groups):
        ui.note(f"{group.name}: {group.about}")
        runs = group.runs if args.runs is None else args.runs
        group = replace(group, runs=runs, workloads=args.workload or group.workloads)
        request = engine.request(group, accel="tcg" if group.deterministic else args.accel, kernel=args.kernel)
        result, folder = engine.compare(request, Cache())
        ui.note(f"kept in {folder}")
        rows += presets.check(group, result)
        if not group.claims and not args.json:
            table.print_result(result, ui.console())
        environments[group.name] = result["environment"]
    holds = [row["holds"] for row in rows]
    if args.json:
        print(json.dumps({"schema": SCHEMA, "environments": environments, "figures": rows}, indent=1))
    elif rows:
        table.print_claims(rows, ui.console())
        print(f"{sum(holds)} of {len(holds)} figures hold")
    return 0 if all(holds) else 1
