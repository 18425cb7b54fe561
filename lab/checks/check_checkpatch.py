# SPDX-License-Identifier: GPL-2.0-only
"""Run each version's checkpatch --strict on the patches of ``./quell export --all``."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from checks.cases import Results
from quell import export, prereq, proc, source, tree
from quell.paths import Cache

# Complaints of checkpatch --strict that do not apply, by path.
_NOT_CHECKED = (
    ("", "FILE_PATH_CHANGES"), ("", "COMMIT_LOG_LONG_LINE"),
    # linux/nmi.h includes it in some configurations only.
    ("arch/x86/mm/tests/early_ack_nmi.h", "ARCH_INCLUDE_LINUX"),
    # The layout of TRACE_EVENT() everywhere in Linux.
    ("include/trace/events/", "OPEN_ENDED_LINE"), ("include/trace/events/", "PARENTHESIS_ALIGNMENT"),
    # A list of names, each wrapped in a macro.
    ("include/linux/quell_mutants.h", "COMPLEX_MACRO"),
    ("include/linux/quell_mutants.h", "MACRO_ARG_REUSE"),
    ("include/linux/quell_mutants.h", "MACRO_ARG_UNUSED"),
    ("mm/quell_mutants.c", "COMPLEX_MACRO"),
    # A table with a macro that its users define, and code for several versions of Linux.
    ("include/linux/quell_events.h", "LINUX_VERSION_CODE"),
    ("include/linux/quell_events.h", "CONSTANT_COMPARISON"),
    ("mm/quell_compat.h", "LINUX_VERSION_CODE"),
    ("mm/quell_compat.h", "CONSTANT_COMPARISON"),
    ("include/linux/vm_event_item.h", "MACRO_ARG_UNUSED"),
    ("mm/vmstat.c", "MACRO_ARG_UNUSED"),
    ("mm/vmstat.c", "BRACKET_SPACE"),
    # Their new lines name files like theirs.
    ("mm/Kconfig", "EMBEDDED_FILENAME"),
    ("mm/Makefile", "EMBEDDED_FILENAME"),
    # linux/pgtable.h includes it.
    ("include/linux/luf_debug.h", "INCLUDE_LINUX"),
    # In a program volatile keeps an access.
    ("tools/testing/", "VOLATILE"),
)


def check_all(results: Results, origin: source.Source, kernel: Path, scratch: Path) -> None:
    """One result per patch."""
    files = export.patches(
        kernel, lambda path: tree.read_file(origin.tree, path), origin.version, export.date(), lab=True
    )
    export.write(scratch, files)

    def complaint(name: str) -> str:
        # checkpatch writes a cache file into its working folder.
        where = scratch / name.removesuffix(".patch")
        where.mkdir()
        result = proc.run(
            ["perl", origin.tree / "scripts/checkpatch.pl", "--root", origin.tree, "--strict", "--terse", "--showfile",
             "--show-types", "--no-summary", "--no-signoff", scratch / name],
            cwd=where,
            env={"LC_ALL": "C.UTF-8"},
            check=False,
        )  # fmt: skip
        said = (result.stdout + result.stderr).splitlines()
        if result.returncode and not said:
            return "checkpatch failed"
        return "\n".join(
            line for line in said if not any(line.startswith(start) and f":{kind}: " in line for start, kind in _NOT_CHECKED)
        )

    todo = export.numbered(files)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, text in zip(todo, pool.map(complaint, todo), strict=True):
            results.check(not text, name, text)


@pytest.mark.parametrize("linux", source.VERSIONS)
def test_style(linux: str, results: Results, cache: Cache, folder: Path) -> None:
    """No complaint that applies."""
    prereq.ensure([item for item in prereq.BUILD if item.need in ("git", "perl")])
    check_all(results, source.debian_source(cache, linux), tree.kernel_dir(), folder)
