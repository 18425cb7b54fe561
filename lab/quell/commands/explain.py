# SPDX-License-Identifier: GPL-2.0-only
"""Describe a mechanism in one screen: effect, costs, benefits, switches and counters.

Without a name, all mechanisms are listed. The text is from the mechanism's page in docs/.
"""

import argparse
import difflib

from quell import mechanisms
from quell.errors import UsageError

EXAMPLES = """\
./quell explain
./quell explain luf
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("mechanism", nargs="?", metavar="MECHANISM", help="default: list them")


def main(args: argparse.Namespace) -> int:
    """Print it."""
    known = mechanisms.load()
    if args.mechanism is None:
        print("\n".join(mechanisms.overview(known)))
        print("\n./quell explain NAME describes one; ./quell status shows those of the running kernel.")
        return 0
    for one in known:
        if one.name == args.mechanism:
            print("\n".join(mechanisms.screen(one)))
            return 0
    names = [one.name for one in known]
    near = difflib.get_close_matches(args.mechanism.lower().replace("-", "_"), names, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"they are {', '.join(names)}"
    raise UsageError(f"no mechanism is called {args.mechanism!r}; {hint}")
