# SPDX-License-Identifier: GPL-2.0-only
"""Describe a mechanism in one screen: effect, costs, benefits, switches and counters.

Without a name, all mechanisms are listed. The text is from the mechanism's page in docs/.
"""

import argparse

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
    if args.mechanism is None:
        print("\n".join(mechanisms.overview()))
        print("\n./quell explain NAME describes one; ./quell status shows those of the running kernel.")
        return 0
    found = [one for one in mechanisms.load() if one.name == args.mechanism]
    if not found:
        raise UsageError(f"no mechanism is called {args.mechanism!r}; they are {', '.join(mechanisms.names())}")
    print("\n".join(mechanisms.screen(found[0])))
    return 0
