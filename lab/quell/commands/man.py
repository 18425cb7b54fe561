# SPDX-License-Identifier: GPL-2.0-only
"""Show the manual page quell(1); where stdout is no terminal, print its source."""

import argparse
import sys
import tempfile

from quell import foreground, prereq, generated

EXAMPLES = """\
./quell man
./quell man > /usr/local/share/man/man1/quell.1
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""


def main(args: argparse.Namespace) -> int:
    """Show it with man(1), or print it."""
    text = generated.manual()
    if sys.stdout.isatty() and prereq.which("man"):
        with tempfile.NamedTemporaryFile("w", suffix=".1") as file:
            file.write(text)
            file.flush()
            return foreground.run(["man", "-l", file.name])
    print(text, end="")
    return 0
