# SPDX-License-Identifier: GPL-2.0-only
"""Make a git tree for work on Quell's kernel part, or write its changes back.

The tree's first commit is the pristine source. Quell lies on top, uncommitted:
`git diff` there shows all of Quell. After your edits, --refresh writes them back
into kernel/files and kernel/hooks. A new file is copied. An edit of a Linux file
goes into the last patch of the series that touches the file. Without --refresh, an
unedited tree is brought up to date with kernel/.
"""

import argparse
from pathlib import Path

from quell import prereq, source, tree, ui
from quell.errors import UsageError
from quell.paths import Cache

EXAMPLES = """\
./quell tree
./quell tree --kernel 7.3
./quell tree ~/quell-linux --kernel ~/linux-6.12.y
./quell tree --refresh
./quell tree --refresh --patch luf_fs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("dir", nargs="?", type=Path, metavar="DIR", help="default: linux; linux-7.3 with --kernel 7.3")
    parser.add_argument("--kernel", default=source.DEFAULT, metavar="LINUX", help=source.OPTION_HELP)
    parser.add_argument("--refresh", action="store_true", help="write DIR's changes into kernel/")
    parser.add_argument(
        "--patch",
        metavar="NAME",
        help="with --refresh: the patch for edited Linux files that no patch touches yet",
    )
    parser.add_argument(
        "--take",
        metavar="FILE",
        action="append",
        default=[],
        help="with --patch: the new edits of this Linux file go there too, though another patch "
        "touches it (may be repeated)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="drop changes in DIR that kernel/ does not have; with --refresh, those in kernel/ "
        "that DIR does not",
    )


def main(args: argparse.Namespace) -> int:
    """Make or refresh the tree."""
    dest = args.dir or tree.default_tree(args.kernel)
    prereq.ensure([item for item in prereq.BUILD if item.need == "git"])
    cache = Cache()
    # One at a time: they write the same tree, and kernel/.
    with cache.lock("tree"):
        if args.refresh:
            if args.kernel not in source.VERSIONS:
                raise UsageError("--refresh takes no folder with --kernel: the tree knows its source")
            done = tree.refresh(dest, patch=args.patch, take=args.take, force=args.force)
            print("\n".join(done) if done else "kernel/ is up to date")
            return 0
        if args.patch or args.take:
            raise UsageError("--patch and --take go with --refresh")
        tree.tree_at(dest)
        origin = source.get_source(cache, args.kernel)
        message = tree.make_git_tree(dest, origin, force=args.force)
    ui.note(message)
    return 0
