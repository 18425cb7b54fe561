# SPDX-License-Identifier: GPL-2.0-only
"""Print a shell's completion for quell and ./quell: its commands, options and their values.

For one shell, put `eval "$(./quell completion bash)"` into it; for all, write it
to where the shell looks.
"""

from __future__ import annotations

import argparse

from quell import shipped
from quell.errors import UsageError

EXAMPLES = """\
./quell completion bash > /etc/bash_completion.d/quell
./quell completion zsh > /usr/local/share/zsh/site-functions/_quell
"""
_SHELLS = {"bash": "quell.bash", "zsh": "_quell"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("shell", nargs="?", choices=list(_SHELLS), help="whose completion")
    parser.add_argument(
        "--write", action="store_true",
        help="make the files in lab/share anew, the manual page too (after a change of options)",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Print it, or make it anew."""
    if args.write:
        print("\n".join(map(str, shipped.write())) or "lab/share is up to date")
        return 0
    if args.shell is None:
        raise UsageError(f"name a shell: {' or '.join(_SHELLS)}")
    print(shipped.read(_SHELLS[args.shell]), end="")
    return 0
