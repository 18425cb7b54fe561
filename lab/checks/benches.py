# SPDX-License-Identifier: GPL-2.0-only
"""Quell's selftests, and kernels with Quell in guests that run them (``scenarios/vm/runs.toml``)."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks import scenario, steps, tap
from checks.cases import Results
from quell import build, disks, machine, proc, source, tree
from quell.frames import DATA_DIR
from quell.paths import Cache

# C programs and scripts that only the checks use.
GUEST = Path(__file__).parent / "guest"
SELFTESTS = "files/tools/testing/selftests/quell"
# The RAM disk that selftests swap to.
BRD = "brd.rd_size=32768"
# A guest takes a minute, longer on a busy host.
_TIMEOUT_S = 1800
# Lines that are kept after a complaint of the kernel.
_TRACE_LINES = 40


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


class Run(scenario.Row, frozen=True):
    """A selftest in a guest.

    In ``args`` DATA is a folder on ext4. ``mount`` is shell with the functions of mount.sh, run
    first; such a guest has no ext4. ``nodes`` is the size of two nodes, in MiB. ``newer``: also on
    newer versions of Linux without --full. ``special``: not under other conditions.
    """

    program: str
    name: str = ""
    args: str = "DATA"
    mount: str = ""
    cpus: int = 2
    memory: str = "512M"
    nodes: int = 0
    append: tuple[str, ...] = ()
    newer: bool = False
    special: bool = False

    def title(self) -> str:
        """Its name in the results."""
        return self.name or self.program


def runs() -> list[Run]:
    """All runs; a selftest that the table lacks runs by itself."""
    listed = scenario.table("vm/runs.toml", dict[str, tuple[Run, ...]])["run"]
    known = {run.program for run in listed}
    return [*listed, *(Run(name) for name in selftest_names() if name not in known)]


def mounted(program: Path, *lines: str) -> str:
    """Shell that runs ``lines`` with the functions of mount.sh; $T is ``program``."""
    return "\n".join([scenario.shell("vm/mount.sh", PROGRAM=shlex.quote(str(program))), *lines])


# An empty xfs on /mnt.
XFS = mounted(Path("true"), "make xfs", "set +e")


@dataclass(frozen=True)
class Bench:
    """A kernel with its boot parameters; ``how`` has further arguments for ``machine.run_script()``."""

    image: Path
    cache: Cache
    append: tuple[str, ...] = ()
    how: Mapping[str, Any] = field(default_factory=dict)

    def guest(
        self, results: Results, script: str | Sequence[str], *, append: Sequence[str] = (), **kwargs: Any
    ) -> machine.GuestResult:
        """Run a script; a complaint of the kernel is a failure."""
        guest = machine.run_script(
            self.image, script, append=[*self.append, *append], cache=self.cache,
            **{"timeout": _TIMEOUT_S, **kwargs, **self.how},
        )  # fmt: skip
        if said := steps.complaints(guest.console):
            after = guest.console.partition(said[0])[2].splitlines()[:_TRACE_LINES]
            results.check(False, f"the kernel complained: {said[0]}", "\n".join(after))
        return guest

    def selftest(self, results: Results, run: Run, program: Path, disk: Path) -> None:
        """Run a selftest, and report its results."""
        line = f"{shlex.quote(str(program))} {run.args.replace('DATA', DATA_DIR)}"
        guest = self.guest(
            results, mounted(program, run.mount, line) if run.mount else line, cpus=run.cpus, memory=run.memory,
            nodes=(run.nodes * machine.MIB,) * 2 if run.nodes else (), append=run.append,
            data=None if run.mount else disk,
        )  # fmt: skip
        tap.count(results, guest)


def empty_disk(folder: Path) -> Path:
    """An empty ext4, with room for a swap file."""
    root, disk = folder / "root", folder / "disk.ext4"
    root.mkdir()
    disks.make_ext4(disk, root, room=64 * machine.MIB)
    return disk
