# SPDX-License-Identifier: GPL-2.0-only
"""Quell's own code for the checks: parts of it, its objects, and their warnings."""

import re
from collections.abc import Iterable

from quell import tree

# Not compiled into a kernel.
OUTSIDE = ("tools/", "samples/", "Documentation/", "scripts/")


def mechanism_patches(part: tree.KernelPart) -> list[str]:
    """The names of the patches that are a mechanism each."""
    return [hook.name for hook in part.hooks if hook.name not in (*tree.COMMON, *tree.NEEDS)]


def subset(part: tree.KernelPart, patch: str, *, alone: bool) -> tree.KernelPart:
    """The mechanism of ``patch`` with the patches that all need, or everything but it."""
    own = {patch, *(more for more, of in tree.NEEDS.items() if of == patch)}
    hooks = [hook for hook in part.hooks if hook.name in tree.COMMON or (hook.name in own) == alone]
    return tree.KernelPart(part.files, hooks, part.linux)


def own_objects(paths: Iterable[str]) -> list[str]:
    """The objects of the C files among these: kernel code only."""
    return sorted(f"{path[:-2]}.o" for path in paths if path.endswith(".c") and not path.startswith(OUTSIDE))


WARNING = re.compile(r"^(?:\.\./)*([^\s:]+)(?::\d+)*: (?:fatal )?(?:warning|error): (.*)$")


def warnings(output: str) -> list[str]:
    """The warnings and errors of make, sparse and kernel-doc (7.3's has its own form), paths as in the source tree."""
    lines = (re.sub(r"^Warning: (\S+:\d+) ", r"\1: warning: ", text) for text in output.splitlines())
    return list(dict.fromkeys(re.sub(r"^(\.\./)+", "", text) for text in lines if WARNING.match(text)))
