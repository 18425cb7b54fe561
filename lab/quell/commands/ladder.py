# SPDX-License-Identifier: GPL-2.0-only
"""Measure the mechanisms one at a time, beside published results.

The first rung is the Quell kernel with all mechanisms off. Each further rung has
one more; the last is stock Linux. Runs of the rungs alternate. Published results
of each mechanism are listed with their source and conditions: docs/ladder.md.
"""

import argparse

from quell import presets
from quell.commands import compare

EXAMPLES = """\
./quell ladder
./quell ladder --workload zap,dontneed-touch
./quell ladder --workload mapped-read --cpus 2,4
./quell ladder --scale --json > ladder.json
"""

main = compare.main


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ladder``; --scale is another preset."""
    compare.add_arguments(parser, "ladder")
    scale = presets.load("scale")
    guests = f"{', '.join(scale.workloads)} at {', '.join(map(str, scale.cpus))} CPUs, deterministic"
    what = f"how the rungs grow with CPUs: {guests}"
    parser.add_argument("--scale", dest="preset", action="store_const", const="scale", help=what)
