# SPDX-License-Identifier: GPL-2.0-only
"""Write the kernel part as patches for a Linux tree: a series for git am, and one roll-up patch.

Each patch of kernel/hooks/VERSION is a commit, with the new files that belong to it.
The tree builds after every patch. The patches apply to Debian's source, or to the
tree given with --kernel. Signed-off-by has git's user.name and user.email.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from quell import export, prereq, source, tree, ui
from quell.paths import Cache

EXAMPLES = """\
./quell export /tmp/series
git -C ~/linux am /tmp/series/0*.patch
./quell export --kernel 7.3 /tmp/series-7.3
./quell export --kernel ~/linux-6.12.y /tmp/series
patch -d ~/linux-6.12.y -p1 < /tmp/series/quell-6.12.*.patch
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("dir", type=Path, metavar="DIR", help="a new folder, or an empty one")
    parser.add_argument("--kernel", default=source.DEFAULT, metavar="LINUX", help=source.OPTION_HELP)


def main(args: argparse.Namespace) -> int:
    """Make the patches, and print their names."""
    with export.target(args.dir):
        prereq.ensure([item for item in prereq.BUILD if item.need == "git"])
        if args.kernel in source.VERSIONS:
            origin = source.debian_source(Cache(), args.kernel)
            root, version = origin.tree, origin.version
        else:
            root, version = source.plain_tree(Path(args.kernel))
        who = export.identity()
        files = export.patches(
            tree.kernel_dir(), lambda path: tree.read_file(root, path), version, who, export.date()
        )
        export.write(args.dir, files)
    for name in files:
        print(args.dir / name)
    if who is None:
        ui.note(
            "the patches have no Signed-off-by: git here has no user.name and user.email"
        )
    ui.note(f"to apply the series: git am {args.dir}/0*.patch; all at once: patch -p1 with the last")
    return 0
