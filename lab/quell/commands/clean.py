# SPDX-License-Identifier: GPL-2.0-only
"""Free the cache: kernel source, builds, compiler cache, data and logs.

Two parts stay unless --all is given. The results of comparisons cannot be fetched
or built again. The next command needs the Python environment (270 MB) at once.
"""

import argparse
import shutil

from quell import ui
from quell.paths import Cache, tree_size

_KEPT = ("results", "venv")

EXAMPLES = """\
./quell clean
./quell clean --all
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--all", action="store_true", help="remove results and everything else too")


def main(args: argparse.Namespace) -> int:
    """Remove, and print the freed size."""
    cache = Cache()
    if not cache.root.is_dir():
        print(f"nothing to clean: there is no {cache.root}")
        return 0
    with cache.exclusive():
        before = tree_size(cache.root)
        for path in sorted(cache.root.iterdir()):
            if path.name in (("locks",) if args.all else ("locks", *_KEPT)):
                continue
            if path.is_dir() and not path.is_symlink():
                ui.note(f"removing {path}")
                shutil.rmtree(path)
            else:
                path.unlink()
        after = tree_size(cache.root)
    print(f"freed {ui.size(before - after)} in {cache.root}")
    kept = cache.root / "results"
    if kept.is_dir() and any(kept.iterdir()):
        print(f"kept the results, {ui.size(tree_size(kept))} (--all removes them too)")
    return 0
