# SPDX-License-Identifier: GPL-2.0-only
"""Print shell completion for quell and ./quell: commands, options and their values.

For one shell, run `eval "$(./quell completion bash)"` in it. For all shells, write
the output to the shell's completion folder, as in the examples.
"""

import argparse

from quell import generated

EXAMPLES = """\
./quell completion bash > /etc/bash_completion.d/quell
./quell completion zsh > /usr/local/share/zsh/site-functions/_quell
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell")


def main(args: argparse.Namespace) -> int:
    """Print it."""
    print(generated.completion(args.shell), end="")
    return 0
