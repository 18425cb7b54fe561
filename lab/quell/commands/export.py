# SPDX-License-Identifier: GPL-2.0-only
"""Write the kernel part as patches for a Linux tree: a series for git am, and one roll-up patch.

One commit per patch of kernel/hooks/VERSION, with the new files that belong to it, and one
for its tests; any first part of the series builds. The patches are made for Debian's source or
the tree that is given. Their author is that of Quell's own history. Patches that serve the lab
only (switches for Linux's own mechanisms, the run-time checker of luf) are left out.
"""

import argparse
from functools import partial
from pathlib import Path

from quell import export, prereq, series, sides, source, tree, ui
from quell.errors import UsageError
from quell.paths import Cache

EXAMPLES = """\
./quell export /tmp/series
git -C ~/linux am --empty=drop /tmp/series/0*.patch
./quell export --kernel 7.3 --only luf,early_ack --signoff /tmp/series-7.3
./quell export --kernel ~/linux-6.12.y /tmp/series
patch -d ~/linux-6.12.y -p1 < /tmp/series/quell-6.12.*.patch
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("dir", type=Path, metavar="DIR", help="a new folder, or an empty one")
    parser.add_argument("--kernel", default=source.DEFAULT, metavar="LINUX", help=source.OPTION_HELP)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="with the lab-only patches")
    which.add_argument(
        "--only", metavar="PATCH[,PATCH...]",
        help="these patches of kernel/hooks/VERSION and what they need: a series that builds by itself",
    )  # fmt: skip
    parser.add_argument(
        "--signoff", action="store_true", help="add your Signed-off-by, from git's user.name and user.email"
    )


def main(args: argparse.Namespace) -> int:
    """Make the patches, and print their names."""
    signer = export.identity() if args.signoff else None
    only = sides.names([args.only or ""])
    if args.only is not None and not only:
        raise UsageError(f"--only: '{args.only}' is not a list of names")
    origin = None if args.kernel in source.VERSIONS else source.plain_tree(Path(args.kernel))
    # Before any download: the names of --only.
    series.select(series.read(tree.kernel_dir(), origin.linux if origin else args.kernel), only)
    export.make_target(args.dir)
    prereq.ensure([item for item in prereq.BUILD if item.need == "git"])
    linux = origin or source.debian_source(Cache(), args.kernel)
    files = export.patches(
        tree.kernel_dir(), partial(tree.read_file, linux.tree), linux.version, export.date(),
        signer=signer, only=only, lab=args.all,
    )  # fmt: skip
    export.write(args.dir, files)
    for name in files:
        print(args.dir / name)
    ui.note(f"to apply the series: git am --empty=drop {args.dir}/0*.patch; all at once: patch -p1 with the last")
    return 0
