# SPDX-License-Identifier: GPL-2.0-only
"""Programs for guests: Quell's selftests, ``kernel/files/tools/testing/selftests/quell``."""

from __future__ import annotations

from pathlib import Path

from quell import proc, tree

# C programs and scripts that only the checks use.
GUEST = Path(__file__).parent / "guest"
SELFTESTS = "files/tools/testing/selftests/quell"


def selftest_names() -> list[str]:
    """The names of all selftests."""
    return sorted(path.stem for path in (tree.kernel_dir() / SELFTESTS).glob("*.c"))


def compile_selftests(folder: Path) -> dict[str, Path]:
    """The selftests by name, compiled into ``folder``."""
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
    built = {name: folder / name for name in selftest_names()}
    for name, program in built.items():
        source = tree.kernel_dir() / SELFTESTS / f"{name}.c"
        proc.run(["gcc", *flags, "-o", program, source], timeout=300)
    return built
