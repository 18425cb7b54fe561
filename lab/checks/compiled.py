# SPDX-License-Identifier: GPL-2.0-only
"""Programs for guests: Quell's selftests, ``kernel/files/tools/testing/selftests/quell``."""

from pathlib import Path

from quell import build, proc, source, tree
from quell.paths import Cache

# C programs and scripts that only the checks use.
GUEST = Path(__file__).parent / "guest"
SELFTESTS = "files/tools/testing/selftests/quell"


def selftest_names() -> list[str]:
    """The names of all selftests: programs, of one or several files."""
    files = (tree.kernel_dir() / SELFTESTS).glob("*.c")
    return sorted(path.stem for path in files if "\nint main(" in path.read_text())


def compile_selftests(folder: Path) -> dict[str, Path]:
    """The selftests by name, compiled into ``folder`` by their Makefile with kselftest.h of Linux's source."""
    linux = source.debian_source(Cache()).tree / "tools/testing/selftests"
    # The Makefile includes ../lib.mk: make finds it from any folder of Linux's selftests.
    make = ["make", "-s", f"--directory={tree.kernel_dir() / SELFTESTS}", f"-I{linux / 'mm'}"]
    proc.run([*build.clean_env(), *make, f"OUTPUT={folder}", "USERCFLAGS=-Werror"], timeout=600)
    return {name: folder / name for name in selftest_names()}
