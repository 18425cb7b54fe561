# SPDX-License-Identifier: GPL-2.0-only
"""Build Debian packages (linux-image, linux-headers) of the Quell kernel from your own configuration.

FILE is a kernel configuration (.config, gzipped or not); `running` takes the
running kernel's, from /boot or /proc/config.gz. Quell's options are added, except
those that FILE has off, and the lab's switches for Linux's own mechanisms. The
rest is as it was, as far as this Linux has it; what was changed is said. The
release gets the suffix -quell. The packages come out the same, byte by byte,
from the same source and configuration. They are not signed. Prints a line for each:
path, size and SHA-256.
"""

import argparse
from pathlib import Path

from quell import deb, source, ui
from quell.errors import UsageError
from quell.paths import Cache, make_folder

EXAMPLES = """\
./quell deb --config running
./quell deb --config ~/linux/.config -o /tmp/packages --jobs 4
./quell deb --config running --kernel ~/linux-6.12.y
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "--config", required=True, metavar="FILE|running", help="the configuration to start from"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", default=Path(), help="folder of the packages (default: here)"
    )
    parser.add_argument("--kernel", default=source.DEFAULT, metavar="LINUX", help=source.OPTION_HELP)
    parser.add_argument(
        "--jobs", "-j", type=int, metavar="N", help="compilers at once (default: one for each CPU)"
    )


def main(args: argparse.Namespace) -> int:
    """Build and print."""
    if args.jobs is not None and not 1 <= args.jobs <= 1024:
        raise UsageError(f"--jobs is 1 to 1024, not {args.jobs}")
    cache = Cache()
    config = deb.read_config(args.config)
    make_folder(args.output)
    tree = source.get_source(cache, args.kernel)
    made = deb.build_packages(tree, config, args.output, cache=cache, jobs=args.jobs)
    for package in made.packages:
        print(f"{package.path}\t{ui.size(package.size)}\t{package.sha256}", flush=True)
    names = " ".join(f"{'' if p.path.is_absolute() else './'}{p.path}" for p in made.packages)
    kinds = " ".join(p.path.name.split("_")[0] for p in made.packages)
    ui.note(f"to install, as root: apt install {names}")
    ui.note(
        f"then boot {made.release}; your kernels stay in the boot menu. To go back: boot one of them, "
        f"and apt remove {kinds}. Without removal: quell=off on the kernel's command line switches all mechanisms off"
    )
    return 0
