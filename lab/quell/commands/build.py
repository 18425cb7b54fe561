# SPDX-License-Identifier: GPL-2.0-only
"""Build the stock kernel, the Quell kernel or both, or a kernel for checks.

Finished kernels in the cache are reused. Other commands build their kernels
themselves. The output has a line for each kernel: name, release, path of the image.
"""

import argparse

from quell import build, source
from quell.paths import Cache

EXAMPLES = """\
./quell build
./quell build --kernel 7.3
./quell build quell --kernel ~/linux-6.12.y
./quell build debug
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "which",
        nargs="?",
        default="all",
        choices=[*build.KERNELS, "all"],
        metavar="KERNEL",
        help=f"one of {', '.join(build.KERNELS)}, or all: stock and quell (all)",
    )
    parser.add_argument("--kernel", default=source.DEFAULT, metavar="LINUX", help=source.OPTION_HELP)


def main(args: argparse.Namespace) -> int:
    """Build and print."""
    cache = Cache()
    tree = source.get_source(cache, args.kernel)
    names = ["stock", "quell"] if args.which == "all" else [args.which]
    for kernel in build.build_kernels(tree, names, cache).values():
        print(f"{kernel.name}\t{kernel.release}\t{kernel.image}", flush=True)
    return 0
