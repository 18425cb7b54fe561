# SPDX-License-Identifier: GPL-2.0-only
"""Write the kept results to one HTML file, with tables and charts. It needs no network.

Without RESULT, the page has the newest results of compare, ladder and ladder --scale.
RESULT is a folder, a file, or the name of a folder in the cache. It may be repeated.
"""

import argparse
import sys
from pathlib import Path

from quell import paths, results, ui
from quell.errors import UsageError
from quell.paths import Cache

DEFAULT = "quell-report.html"

EXAMPLES = """\
./quell report
./quell report -o /tmp/report.html 20261121T113239Z
./quell report ~/results/before ~/results/after
./quell report -o - > report.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("results", nargs="*", metavar="RESULT", help="these results (the newest)")
    parser.add_argument(
        "--output", "-o", type=Path, default=Path(DEFAULT), metavar="FILE",
        help=f"file of the page, - for standard output ({DEFAULT})",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Read everything, then write the page, whole or not at all."""
    # jinja2 is imported by this command only.
    from quell.report import page

    to_stdout = str(args.output) == "-"
    # A link stays; its target is replaced.
    target = args.output.resolve()
    if not to_stdout and (not target.parent.is_dir() or (target.exists() and not target.is_file())):
        raise UsageError(f"{args.output} cannot be written: -o takes a file in a folder that exists, or - for standard output")
    text = page.render(results.find(args.results, Cache()))
    if to_stdout:
        sys.stdout.write(text)
        return 0
    paths.write_atomic(target, text)
    print(args.output)
    ui.note(f"{ui.size(len(text.encode()))}; open it in a browser")
    return 0
