# SPDX-License-Identifier: GPL-2.0-only
"""Quell's own code for the checks: parts of it, its objects, and their warnings."""

import re
from collections.abc import Iterable
from pathlib import Path

from quell import build, export, prereq, proc, tree
from quell.errors import QuellError
from quell.paths import Cache
from quell.source import GIT_ENV, Source


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


def am(repo: Path, mails: list[Path]) -> None:
    """Apply the patches with ``git am`` in a clean repository, without the cover letter. QuellError with git's words."""
    result = proc.run(
        ["git", "-c", "safe.directory=*", *export.GIT_OPTIONS, "am", "-q", "--whitespace=nowarn", "--empty=drop", *mails],
        cwd=repo,
        env={**GIT_ENV, **export.NOBODY.env("COMMITTER")},
        check=False,
    )
    if result.returncode != 0:
        raise QuellError("git am does not take the series", detail=proc.tail(result.stdout + result.stderr))


def compile_tree(
    src: Path, fragment: str, name: str, cache: Cache, log: Path, *, all_taken: bool = True
) -> None:
    """Compile and link a tree, with objects in ``src``/obj, which may exist.

    QuellError with the compiler's lines or, if ``all_taken``, the options that were not taken.
    """
    obj = src / "obj"
    obj.mkdir(exist_ok=True)
    build.configure(src, obj, fragment, name, cache, log, all_taken=all_taken)
    result = proc.run(build.make_argv(src, obj, name, cache, "vmlinux"), log=log, check=False)
    if result.returncode != 0:
        raise build.build_error(f"{name} does not compile", result.stdout, log)


def own_objects(paths: Iterable[str]) -> list[str]:
    """The objects of the C files among these: kernel code only."""
    return sorted(f"{path[:-2]}.o" for path in paths if path.endswith(".c") and not path.startswith(OUTSIDE))


WARNING = re.compile(r"^(?:\.\./)*([^\s:]+)(?::\d+)*: (?:fatal )?(?:warning|error): (.*)$")


def warnings(output: str) -> list[str]:
    """The warnings and errors in the output of make or sparse, paths as in the source tree."""
    found = [re.sub(r"^(\.\./)+", "", text) for text in output.splitlines() if WARNING.match(text)]
    return list(dict.fromkeys(found))


def w1_warnings(
    source: Source, cache: Cache | None = None, kernel_part: Path | None = None
) -> tuple[int, list[str]]:
    """Compile Quell's own objects with W=1: their number, and the warnings about Quell's files.

    The debug kernel's configuration has all of them. Of Linux only their prerequisites are
    built. QuellError when an object does not compile.
    """
    cache = cache or Cache()
    kernel_part = kernel_part or tree.kernel_dir()
    prereq.ensure(prereq.BUILD)
    with cache.lock(f"build-{build.folder_of('debug', source.linux)}"):
        work = build.prepare("debug", source, cache, kernel_part, quell=True)
        log = cache.logs / "w1.log"
        log.unlink(missing_ok=True)
        asked = build.fragments("debug", kernel_part, source.linux)
        build.configure(work.src, work.obj, asked, "debug", cache, log)
        files = build.quell_part(kernel_part, source.linux).files
        objects = own_objects(files)
        if not objects:
            return 0, []
        work.marker.touch()
        try:
            for name in objects:
                (work.obj / name).unlink(missing_ok=True)
            make = build.make_argv(work.src, work.obj, "debug", cache, "W=1", "-k", *objects)
            result = proc.run(make, log=log, check=False)
        finally:
            # Their flags differ from the kernel's: they must not be linked into it.
            for name in objects:
                (work.obj / name).unlink(missing_ok=True)
        work.marker.unlink()
        found = [text for text in warnings(result.stdout) if text.split(":")[0] in files]
        if result.returncode != 0 and not found:
            raise build.build_error("compiling Quell's files with W=1 failed", result.stdout, log)
        return len(objects), found
