# SPDX-License-Identifier: GPL-2.0-only
"""Show the running Quell kernel's switches, its counters since boot, and deferred pages.

Start it on the machine that runs the kernel; Python is enough. The exit code is 1
if the running kernel is not Quell's. ./quell explain describes each mechanism.
"""

import argparse
import json
from pathlib import Path

from quell import status
from quell.errors import QuellError

EXAMPLES = """\
./quell status
./quell status --json
./quell run -- ./quell status
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, on any kernel")
    parser.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="read DIR/proc and DIR/sys (/)")


def main(args: argparse.Namespace) -> int:
    """Read and print."""
    now = status.read(args.root)
    if args.json:
        print(json.dumps(now, indent=1))
    if not now["quell"]:
        raise QuellError(now["reason"])
    if not args.json:
        print("\n".join(status.describe(now)))
    return 0
