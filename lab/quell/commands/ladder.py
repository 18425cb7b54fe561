# SPDX-License-Identifier: GPL-2.0-only
"""Switch the mechanisms on one at a time: the literature's table, on this machine.

The same Quell kernel with none of its mechanisms, then with one more on each
rung, and stock Linux beside them. Runs of the rungs alternate. What others
published of each mechanism stands beside what is measured here, with its source
and conditions; docs/ladder.md says how to read it.
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
