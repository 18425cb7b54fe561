# SPDX-License-Identifier: GPL-2.0-only
"""Print shell completion for quell and ./quell: commands, options and their values.

For one shell, run `eval "$(./quell completion bash)"` in it. For all shells, write
the output to the shell's completion folder, as in the examples.
"""

from __future__ import annotations

import argparse

from quell import generated
from quell.errors import UsageError

EXAMPLES = """\
./quell completion bash > /etc/bash_completion.d/quell
./quell completion zsh > /usr/local/share/zsh/site-functions/_quell
"""
_SHELLS = ("bash", "zsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("shell", nargs="?", choices=_SHELLS, help="the shell")


def main(args: argparse.Namespace) -> int:
    """Print it."""
    if args.shell is None:
        raise UsageError(f"name a shell: {' or '.join(_SHELLS)}")
    print(generated.completion(args.shell), end="")
    return 0
