# SPDX-License-Identifier: GPL-2.0-only
"""Compile Quell's own objects with W=1, for each version of Linux: no warning about Quell's files."""

from pathlib import Path

import pytest

from checks import own_code
from checks.cases import Results
from quell import build, prereq, proc, source, tree
from quell.paths import Cache


def warnings(origin: source.Source, cache: Cache, kernel_part: Path) -> dict[str, list[str]]:
    """Compile Quell's own objects with W=1: the warnings about each of Quell's files.

    Each object's source is in it. The debug kernel's configuration has all of them. Of Linux only
    their prerequisites are built. QuellError when an object does not compile.
    """
    prereq.ensure(prereq.BUILD)
    with cache.lock(f"build-{build.folder_of('debug', origin.linux)}"):
        work = build.prepare("debug", origin, cache, kernel_part, quell=True)
        log = cache.logs / "w1.log"
        log.unlink(missing_ok=True)
        build.configure(work.src, work.obj, build.fragments("debug", kernel_part, origin.linux), "debug", cache, log)
        files = tree.read_kernel_part(kernel_part, origin.linux).files
        objects = own_code.own_objects(files)

        def remove() -> None:
            for name in objects:
                (work.obj / name).unlink(missing_ok=True)

        work.marker.touch()
        remove()
        try:
            make = build.make_argv(work.src, work.obj, "debug", cache, "W=1", "-k", *objects)
            result = proc.run(make, log=log, check=False)
        finally:
            # Their flags differ from the kernel's: they must not be linked into it.
            remove()
        work.marker.unlink()
    found: dict[str, list[str]] = {name.removesuffix(".o") + ".c": [] for name in objects}
    said = [text for text in own_code.warnings(result.stdout) if text.split(":")[0] in files]
    if result.returncode != 0 and not said:
        raise build.build_error("compiling Quell's files with W=1 failed", result.stdout, log)
    for text in said:
        found.setdefault(text.split(":")[0], []).append(text)
    return found


@pytest.mark.parametrize("linux", source.VERSIONS)
def test_warnings(linux: str, results: Results, cache: Cache) -> None:
    """One result per object, and one per other file with a warning."""
    for name, said in warnings(source.debian_source(cache, linux), cache, tree.kernel_dir()).items():
        results.check(not said, name, "\n".join(said))
