# SPDX-License-Identifier: GPL-2.0-only
"""Workloads: their descriptions (workloads/NAME/workload.toml), programs and data images."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quell import debian, disks, forms, machine, packages, prereq, proc, sides, toolchain, ui
from quell import tool as tools
from quell.errors import QuellError, UsageError, failing
from quell.frames import DATA_DIR, STAGE_DIR
from quell.paths import Cache, repo_root, require_space

if TYPE_CHECKING:
    from quell.build import Kernel
    from quell.source import Source

MIB = 1 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_CC = ["gcc", "-O2", "-Wall", "-Wextra", "-static", "-pthread"]
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


# The fields of the three tables that every description has.
_TABLES = {"guest": ("memory", "cpus", "nodes", "swap", "writes"), "program": ("sources", "of"), "run": ("argv", "timeout_s")}


def load(folder: Path, *, as_base: bool = False) -> Workload:
    """The workload in ``folder``; QuellError with the file and the wrong field.

    ``as_base``: another workload shares its program.
    """
    file = folder / "workload.toml"
    top = forms.read_toml(file)

    def need(right: object, what: str) -> None:
        if not right:
            raise QuellError(f"{file}: {what}")

    for name, known_fields in _TABLES.items():
        table = forms.convert(top.pop(name, {}), dict[str, Any], f"{file} [{name}]")
        for key in table:
            need(key in known_fields, f"[{name}]: there is no field {key}")
        top |= table
    if sizes := top.get("nodes"):
        need("memory" not in top, "memory should be left out: the nodes make it up")
        top["nodes"] = [machine.parse_memory(str(size)) for size in sizes]
        top["memory"] = sum(top["nodes"])
    elif "memory" in top:
        top["memory"] = machine.parse_memory(str(top["memory"]))
    base = None
    if of := top.pop("of", None):
        there = not as_base and of != folder.name and of in known(folder.parent)
        need(there, "of should be the name of another workload, one with its own program")
        base = load(folder.parent / of, as_base=True)
        own = {field: value for field in ("sources", "data", "tool") if (value := getattr(base, field))}
        if base.data and "data" in top:
            top["data"] = {**vars(base.data), "filesystem": "ext4", **top["data"]}
        top = {**own, **top}
    for name, form, more in (("data", Data, {}), ("tool", tools.Tool, {"folder": folder})):
        if isinstance(top.get(name), dict):
            top[name] = forms.convert({**top[name], **more}, form, f"{file} [{name}]")
    workload = forms.convert({**top, "folder": folder, "base": base}, Workload, str(file))
    need(workload.name == folder.name and _NAME.fullmatch(workload.name), f'name should be the folder\'s, "{folder.name}"')
    need(min(workload.version, workload.cpus, workload.timeout_s) > 0, "version, cpus and timeout_s should be 1 or more")
    need(workload.argv, "argv should be a command")
    need(not workload.tool or re.fullmatch("[0-9a-f]{64}", workload.tool.sha256), "sha256 should be 64 hexadecimal digits")
    size = workload.data.size if workload.data else ""
    need(re.fullmatch(r"(\d+(\.\d+)?x|\d+[KMG])?", size), 'size should be a multiple of guest memory ("4x") or a size ("64M")')
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
            near = difflib.get_close_matches(name, there, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the workloads are: {', '.join(there) or 'none'}"
            raise UsageError(f"there is no workload '{name}'; {hint}")
    workloads = [load(folder / name) for name in wanted or there]
    return workloads if wanted else [item for item in workloads if item.default]


@dataclass(frozen=True)
class Prepared:
    """A workload ready to run with a certain guest memory: program and data image in the cache.

    ``tool`` is the lab's build of its tool, None without a tool or for the user's own.
    """

    workload: Workload
    argv: tuple[str, ...]
    data: Path | None
    program: Path | None
    tool: Path | None = None

    @property
    def programs(self) -> tuple[Path, ...]:
        """The programs that are copied into the guest."""
        return tuple(path for path in (self.program, self.tool) if path is not None)


def prepare(workload: Workload, memory: int, cache: Cache, values: Mapping[str, str]) -> Prepared:
    """Build the program and make the data image, or find both in the cache.

    ``memory`` is the guest's, in bytes. ``values`` replace {NAME} in a command: {cpus}
    (else the workload's own), {kernel_source}, {kernel_build} and their {kernel_key}.
    Always known are {program}, {tool}, {workload} (its folder), {data}, {bytes}, {out},
    {python} (the lab's), {packages} (the root of the data's ``programs``).
    """
    # Program and data are keyed by the base: both are made once.
    maker = workload.base or workload
    base = {"cpus": str(workload.cpus), **values, "workload": str(maker.folder)}
    base["python"] = sys.executable
    own = workload.tool.own_program() if workload.tool else None
    built = tools.build(workload.tool, cache) if workload.tool and not own else None
    program = _program(maker, cache) if maker.sources else None
    if program is not None:
        base["program"] = str(program)
    data = None
    if workload.data is not None:
        size = workload.data.bytes_for(memory)
        if size:
            base["bytes"] = str(size)
        if workload.data.programs:
            base["packages"] = str(debian.root(workload.data.programs, cache))
        data = _image(maker, workload.data, size, base, cache)
        base["data"] = DATA_DIR
    if program is not None:
        base["program"] = f"{STAGE_DIR}/{program.name}"
    if workload.tool is not None:
        # The user's own program may need files beside it: it is not copied.
        base["tool"] = str(own or f"{STAGE_DIR}/{workload.tool.name}")
    return Prepared(workload, _fill(workload.argv, base, workload), data, program, built)


def kernel_values(origin: Source, kernel: Kernel) -> dict[str, str]:
    """The values of the kernels for ``prepare``."""
    return {
        "kernel_source": str(origin.tree),
        "kernel_build": str(kernel.build_dir),
        "kernel_key": kernel.key,
    }


def _fill(argv: Sequence[str], values: Mapping[str, str], workload: Workload) -> tuple[str, ...]:
    def one(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise QuellError(f"workload {workload.name}: there is no value for {match[0]}")
        return values[match[1]]

    return tuple(re.sub(r"\{([a-z_]+)\}", one, word) for word in argv)


def _program(workload: Workload, cache: Cache) -> Path:
    """The workload's program, built when its sources, headers or the compiler changed."""
    digest = hashlib.sha256(" ".join(_CC).encode())
    digest.update(toolchain.version("gcc").encode())
    headers = sorted([*workload.folder.glob("*.h"), *workload.folder.parent.glob("*.h")])
    sources = [workload.folder / name for name in workload.sources]
    for path in [*sources, *headers]:
        try:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        except OSError as error:
            raise QuellError(f"workload {workload.name}: {path}: {error.strerror}") from error

    def make(temp: Path) -> None:
        includes = [f"-I{workload.folder}", f"-I{workload.folder.parent}"]
        with failing(f"the program of workload {workload.name} does not build"):
            proc.run([*_CC, *includes, "-o", temp / workload.name, *sources], timeout=300)

    return cache.made(cache.data / f"{workload.name}-{digest.hexdigest()[:16]}", make) / workload.name


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
