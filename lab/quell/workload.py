# SPDX-License-Identifier: GPL-2.0-only
"""Workloads: their descriptions (workloads/NAME/workload.toml), programs and data images."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from quell import debian, disks, forms, machine, packages, prereq, proc, sides, toolchain, ui
from quell import tool as tools
from quell.errors import QuellError, UsageError, failing
from quell.frames import DATA_DIR, STAGE_DIR
from quell.paths import Cache, repo_root, require_space

MIB = 1 << 20
# With an instruction counter emulation uses one host thread.
DETERMINISTIC_SLOWDOWN = 5


@dataclass(frozen=True)
class Data:
    """A disk image made on the host: ``make`` fills its root, ``size`` is "4x", "64M" or empty.

    ``programs`` are those that ``make`` takes from Debian's packages, with the package.
    ``requirements`` is a requirements file in the workload's folder, for {python}.
    """

    make: tuple[str, ...]
    size: str = ""
    filesystem: Literal["ext4", "xfs", "btrfs", "f2fs", "erofs", "squashfs"] = "ext4"
    programs: Mapping[str, str] = field(default_factory=dict)
    requirements: str = ""

    def bytes_for(self, memory: int) -> int:
        """Bytes of data for a guest with ``memory`` bytes: "4x" is four times that; 0 if unset."""
        if not self.size:
            return 0
        if self.size.endswith("x"):
            return int(float(self.size[:-1]) * memory)
        return machine.parse_memory(self.size)


@dataclass(frozen=True)
class Workload:
    """One folder under workloads/: the fields of its workload.toml, but for ``folder`` and ``base``.

    ``memory`` (bytes) and ``cpus`` are the guest's defaults; ``version`` rises whenever results stop being comparable.
    ``nodes`` are NUMA nodes as in machine.Machine, ``writes`` as in machine.Job.
    ``base`` is another workload: its program is used, and its data unless this one
    has some. Without ``default`` it is measured only when named. ``figures`` are
    the program's figures that claims and publications may name. ``tool`` is a third-party
    program. ``swap`` is one of machine.SWAPS, "own" for the program's own, or empty.
    """

    name: str
    version: int
    summary: str
    origin: str
    stresses: str
    matters: tuple[str, ...]
    folder: Path
    argv: tuple[str, ...]
    memory: int = 256 * MIB
    cpus: int = 2
    sources: tuple[str, ...] = ()
    data: Data | None = None
    timeout_s: int = 240
    nodes: tuple[int, ...] = ()
    writes: Mapping[str, str] = field(default_factory=dict)
    base: Workload | None = None
    default: bool = True
    figures: tuple[str, ...] = ()
    tool: tools.Tool | None = None
    swap: Literal["", "ramdisk", "zram", "zswap", "own"] = ""

    def nodes_for(self, memory: int) -> tuple[int, ...]:
        """The NUMA nodes of a guest with ``memory`` bytes: in proportion, in whole MiB."""
        sizes = [size * memory // self.memory // MIB * MIB for size in self.nodes]
        return (*sizes[:-1], memory - sum(sizes[:-1])) if sizes else ()

    def prerequisites(self) -> list[prereq.Prerequisite]:
        """Its programs from Debian's packages."""
        programs = self.data.programs if self.data else {}
        return [
            prereq.Prerequisite(name, package, f"runs in workload {self.name}")
            for name, package in programs.items()
        ]


def load(folder: Path, *, as_base: bool = False) -> Workload:
    """The workload in ``folder``; QuellError with the file and the wrong field.

    ``as_base``: another workload shares its program.
    """
    file = folder / "workload.toml"
    top = forms.read_toml(file)
    for name in ("guest", "program", "run"):
        top |= forms.convert(top.pop(name, {}), dict[str, Any], f"{file} [{name}]")
    if sizes := top.get("nodes"):
        top["nodes"] = [machine.parse_memory(str(size)) for size in sizes]
        top["memory"] = sum(top["nodes"])
    elif "memory" in top:
        top["memory"] = machine.parse_memory(str(top["memory"]))
    base = None
    if of := top.pop("of", None):
        if as_base or of == folder.name or of not in known(folder.parent):
            raise QuellError(f"{file}: of should be the name of another workload, one with its own program")
        base = load(folder.parent / of, as_base=True)
        own = {field: value for field in ("sources", "data", "tool") if (value := getattr(base, field))}
        if base.data and "data" in top:
            top["data"] = {**vars(base.data), "filesystem": "ext4", **top["data"]}
        top = {**own, **top}
    for name, form, more in (("data", Data, {}), ("tool", tools.Tool, {"folder": folder})):
        if isinstance(top.get(name), dict):
            top[name] = forms.convert({**top[name], **more}, form, f"{file} [{name}]")
    workload = forms.convert({**top, "folder": folder, "base": base}, Workload, str(file))
    if workload.name != folder.name:
        raise QuellError(f'{file}: name should be the folder\'s, "{folder.name}"')
    if workload.data and not re.fullmatch(r"(\d+(\.\d+)?x|\d+[KMG])?", workload.data.size):
        raise QuellError(f'{file}: size should be a multiple of guest memory ("4x") or a size ("64M")')
    return workload


def known(root: Path | None = None) -> list[str]:
    """The names of all workloads, sorted."""
    folder = root or repo_root() / "workloads"
    return sorted(path.parent.name for path in folder.glob("*/workload.toml"))


def select(names: Sequence[str], root: Path | None = None) -> list[Workload]:
    """The named workloads (each may be a comma-separated list), or the default set without any.

    UsageError listing the known ones when a name is unknown.
    """
    folder = root or repo_root() / "workloads"
    there = known(folder)
    wanted = sides.names(names)
    for name in wanted:
        if name not in there:
            raise UsageError(f"there is no workload '{name}'; the workloads are: {', '.join(there)}")
    workloads = [load(folder / name) for name in wanted or there]
    return workloads if wanted else [item for item in workloads if item.default]


@dataclass(frozen=True)
class Prepared:
    """A workload ready to run with a certain guest memory; ``programs`` are copied into the guest."""

    workload: Workload
    argv: tuple[str, ...]
    data: Path | None
    programs: tuple[Path, ...] = ()


def prepare(workload: Workload, memory: int, cache: Cache, values: Mapping[str, str]) -> Prepared:
    """Build the program and make the data image, or find both in the cache.

    ``memory`` is the guest's, in bytes. ``values`` replace {NAME} in a command: {cpus}
    (else the workload's own), {kernel_source}, {kernel_build} and their {kernel_key}.
    Always known are {program}, {tool}, {workload} (its folder), {data}, {bytes}, {out},
    {python} (the lab's), {packages} (the root of the data's ``programs``).
    """
    # Program and data are keyed by the base: both are made once.
    maker = workload.base or workload
    base = {"cpus": str(workload.cpus), **values, "workload": str(maker.folder), "python": sys.executable}
    programs: list[Path] = []
    if maker.sources:
        programs.append(_program(maker, cache))
        base["program"] = str(programs[0])
    if tool := workload.tool:
        # The user's own program may need files beside it: it is not copied.
        if own := tool.own_program():
            base["tool"] = str(own)
        else:
            programs.append(tools.build(tool, cache))
            base["tool"] = f"{STAGE_DIR}/{tool.name}"
    data = None
    if workload.data is not None:
        size = workload.data.bytes_for(memory)
        if size:
            base["bytes"] = str(size)
        if workload.data.programs:
            base["packages"] = str(debian.root(workload.data.programs, cache))
        data = _image(maker, workload.data, size, base, cache)
        base["data"] = DATA_DIR
    if maker.sources:
        base["program"] = f"{STAGE_DIR}/{programs[0].name}"
    return Prepared(workload, _fill(workload.argv, base, workload), data, tuple(programs))


def _fill(argv: Sequence[str], values: Mapping[str, str], workload: Workload) -> tuple[str, ...]:
    def one(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise QuellError(f"workload {workload.name}: there is no value for {match[0]}")
        return values[match[1]]

    return tuple(re.sub(r"\{([a-z_]+)\}", one, word) for word in argv)


def _program(workload: Workload, cache: Cache) -> Path:
    """The workload's program, built when its sources, headers or the compiler changed."""
    headers = sorted([*workload.folder.glob("*.h"), *workload.folder.parent.glob("*.h")])
    with failing(f"the program of workload {workload.name} does not build"):
        return machine.compiled(workload.name, [workload.folder / name for name in workload.sources], headers, cache)


def _image(workload: Workload, data: Data, size: int, values: Mapping[str, str], cache: Cache) -> Path:
    """The data image for ``size`` bytes, made once and kept."""
    facts = [data.make, size, values.get("program", ""), workload.version]
    if data.filesystem != "ext4":
        facts.append(data.filesystem)
    if any("{kernel_" in word for word in data.make):
        facts += [values.get("kernel_key", ""), toolchain.version("gcc")]
    for program in data.programs:
        unpacked = Path(values["packages"]) / "usr/bin" / program
        path = unpacked if unpacked.exists() else Path(prereq.which(program) or unpacked)
        facts.append(hashlib.sha256(path.read_bytes()).hexdigest())
    for path in sorted(workload.folder.iterdir()):
        if path.name == data.requirements or any(path.name in word for word in data.make):
            facts.append(hashlib.sha256(path.read_bytes()).hexdigest())
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    name, what = f"image.{data.filesystem}", f"the data of workload {workload.name}"

    def make(temp: Path) -> None:
        require_space(cache.data, size * 2 + 64 * MIB, what)
        if data.requirements:
            packages.install(workload.folder / data.requirements, what, cache)
        ui.note(f"making {what}{f' ({ui.size(size)})' if size else ''} ...")
        with tempfile.TemporaryDirectory(prefix="root-", dir=temp) as root, failing(f"{what} cannot be made"):
            proc.run(_fill(data.make, {**values, "out": root}, workload), timeout=1800)
            disks.make(data.filesystem, temp / name, Path(root))

    return cache.made(cache.data / f"{workload.name}-data-{digest}", make) / name
