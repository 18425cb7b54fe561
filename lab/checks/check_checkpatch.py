# SPDX-License-Identifier: GPL-2.0-only
"""Run the kernel's checkpatch --strict on each of Quell's files and patches."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from checks.cases import Results
from quell import prereq, proc, source, tree
from quell.paths import Cache

pytestmark = pytest.mark.checkpatch

# Complaints of checkpatch --strict that do not apply, by path.
_NOT_CHECKED = (
    ("", "FILE_PATH_CHANGES"),
    ("", "COMMIT_LOG_LONG_LINE"),
    # The layout of TRACE_EVENT() everywhere in Linux.
    ("include/trace/events/", "OPEN_ENDED_LINE"),
    ("include/trace/events/", "PARENTHESIS_ALIGNMENT"),
    # A list of names, each wrapped in a macro.
    ("include/linux/quell_mutants.h", "COMPLEX_MACRO"),
    ("include/linux/quell_mutants.h", "MACRO_ARG_REUSE"),
    ("include/linux/quell_mutants.h", "MACRO_ARG_UNUSED"),
    ("mm/quell_mutants.c", "COMPLEX_MACRO"),
    # A table with a macro that its users define, and code for several versions of Linux.
    ("include/linux/quell_events.h", "LONG_LINE_COMMENT"),
    ("include/linux/quell_events.h", "LINUX_VERSION_CODE"),
    ("include/linux/quell_events.h", "CONSTANT_COMPARISON"),
    ("mm/quell_compat.h", "LINUX_VERSION_CODE"),
    ("mm/quell_compat.h", "CONSTANT_COMPARISON"),
    ("hooks/6.12/quell.patch", "MACRO_ARG_UNUSED"),
    ("hooks/7.3/quell.patch", "MACRO_ARG_UNUSED"),
    ("hooks/7.3/quell.patch", "BRACKET_SPACE"),
    # linux/pgtable.h includes it.
    ("include/linux/luf_debug.h", "INCLUDE_LINUX"),
    # Programs: no kernel macros there, and volatile keeps an access.
    ("tools/testing/", "VOLATILE"),
    ("tools/testing/", "ARRAY_SIZE"),
)
# The patches are a quilt series: no mail, and prose directly before the diff.
_NOT_IN_PATCHES = (
    "MISSING_SIGN_OFF", "NO_AUTHOR_SIGN_OFF", "EMAIL_SUBJECT", "DIFF_IN_COMMIT_MSG",
    "EMBEDDED_FILENAME",
)  # fmt: skip


def jobs(kernel: Path) -> dict[Path, list[str]]:
    """Quell's files and patches, with checkpatch's options."""
    found = {}
    for path in sorted((kernel / "files").rglob("*")):
        if path.is_file() and path.suffix in (".c", ".h", ".S", ".rst", ".sh", ""):
            inside = str(path.relative_to(kernel / "files"))
            types = [kind for start, kind in _NOT_CHECKED if inside.startswith(start)]
            found[path] = ["--file", "--ignore", ",".join(types)]
    for linux in source.VERSIONS:
        for name in tree.series(kernel, linux):
            types = [kind for start, kind in _NOT_CHECKED if start in ("", f"hooks/{linux}/{name}")]
            found[tree.hooks_dir(kernel, linux) / name] = ["--ignore", ",".join([*types, *_NOT_IN_PATCHES])]
    return found


def check_all(results: Results, origin: source.Source, kernel: Path, scratch: Path) -> None:
    """One result per file."""
    checker = origin.tree / "scripts/checkpatch.pl"

    def complaint(job: tuple[Path, list[str]]) -> str:
        path, options = job
        # checkpatch writes a cache file into its working folder.
        where = scratch / str(threading.get_ident())
        where.mkdir(exist_ok=True)
        result = proc.run(
            ["perl", checker, "--root", origin.tree, "--strict", "--terse", "--show-types",
             "--no-summary", *options, path],
            cwd=where,
            check=False,
        )  # fmt: skip
        text = (result.stdout + result.stderr).strip().replace(f"{kernel}/", "kernel/")
        return text or ("checkpatch failed" if result.returncode != 0 else "")

    todo = jobs(kernel)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, text in zip(todo, pool.map(complaint, todo.items()), strict=True):
            results.check(not text, str(path.relative_to(kernel)), text)


def test_style(results: Results, cache: Cache, folder: Path) -> None:
    """No complaint that applies."""
    prereq.ensure([item for item in prereq.BUILD if item.need == "perl"])
    check_all(results, source.debian_source(cache), tree.kernel_dir(), folder)
