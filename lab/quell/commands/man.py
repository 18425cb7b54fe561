# SPDX-License-Identifier: GPL-2.0-only
"""Show the manual page quell(1); where stdout is no terminal, print its source."""

from __future__ import annotations

import argparse
import sys

from quell import foreground, prereq, shipped

EXAMPLES = """\
./quell man
./quell man > /usr/local/share/man/man1/quell.1
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""


def main(args: argparse.Namespace) -> int:
    """Show it with man(1), or print it."""
    text = shipped.read("quell.1")
    if sys.stdout.isatty() and prereq.which("man"):
        return foreground.run(["man", "-l", shipped.share_dir() / "quell.1"])
    print(text, end="")
    return 0
