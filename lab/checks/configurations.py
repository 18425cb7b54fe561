# SPDX-License-Identifier: GPL-2.0-only
"""The kernel configurations that Quell has to compile in: ``scenarios/builds.toml``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checks import own_code, scenario
from quell import build, tree
from quell.errors import QuellError, UsageError
from quell.source import DEFAULT

# The options of mm/Kconfig.quell that are mechanisms.
MECHANISMS = (
    "UNMAP_BATCH", "CONCURRENT", "ZAP_BATCH", "RMAP_BATCH", "EARLY_ACK", "GATHER_RANGE", "FOLIO_ORDER", "LUF",
    "WRITEOUT_BATCH",
)  # fmt: skip


@dataclass(frozen=True)
class Arch:
    """An architecture: its folder below arch/, and the prefix and package of its compiler."""

    folder: str
    prefix: str = ""
    package: str = ""


ARCHES = {
    "x86_64": Arch("x86"),
    "i386": Arch("x86"),
    "arm64": Arch("arm64", "aarch64-linux-gnu-", "gcc-aarch64-linux-gnu"),
    # No batched flush.
    "s390": Arch("s390", "s390x-linux-gnu-", "gcc-s390x-linux-gnu"),
}

# Each base is allnoconfig with files of kernel/configs, or with a text; None is the
# architecture's defconfig.
_BASES: Mapping[str, Sequence[str] | str | None] = {
    "lab": ("lab.config", "filesystems.config"),
    "quell": ("lab.config", "filesystems.config", "quell.config"),
    "debug": ("lab.config", "quell.config", "debug.config"),
    "none": "",
    "small": scenario.shell("small.config"),
    "def": None,
}


@dataclass(frozen=True)
class Configuration:
    """One configuration.

    ``base`` is one of ``_BASES``. ``options`` (without CONFIG_) are set on top, and have to be in
    the result. With ``link`` the whole kernel is compiled and linked, modules too; with ``sparse``
    sparse also checks the objects. ``alone`` and ``without`` name a mechanism: its patch is
    applied without the others, or left out.
    """

    name: str
    base: str
    options: Mapping[str, str] = field(default_factory=dict)
    arch: str = "x86_64"
    link: bool = False
    sparse: bool = False
    alone: str = ""
    without: str = ""

    def part(self, whole: tree.KernelPart) -> tree.KernelPart:
        """The patches of ``whole`` that are applied."""
        name = self.alone or self.without
        return own_code.subset(whole, f"{name}.patch", alone=bool(self.alone)) if name else whole

    @property
    def is_def(self) -> bool:
        """Whether it starts from the architecture's defconfig."""
        return _BASES[self.base] is None

    def fragment(self, kernel_part: Path, *, quell: bool = True, linux: str = DEFAULT) -> str:
        """The lines of the fragment; for the stock source without Quell's."""
        base = _BASES[self.base]
        if base is None or isinstance(base, str):
            text = base or ""
        else:
            try:
                names = [*base, *([f"{linux}.config"] if linux != DEFAULT else [])]
                text = "\n".join((kernel_part / "configs" / name).read_text() for name in names)
            except FileNotFoundError as error:
                raise QuellError(f"the configuration {error.filename} is missing") from None
        lines = text.splitlines()
        lines += [f"CONFIG_{name}={value}" for name, value in self.options.items()]
        return "".join(f"{line}\n" for line in lines if quell or not line.startswith("CONFIG_QUELL"))

    def refused(self, config: str) -> list[str]:
        """The ``options`` that a ``.config`` lacks, as ``NAME=value``."""
        have = build.options(config)
        return [f"{name}={value}" for name, value in self.options.items() if have.get(f"CONFIG_{name}", "n") != value]


def _only(*wanted: str) -> dict[str, str]:
    """Quell with these mechanisms only."""
    return {"QUELL": "y"} | {f"QUELL_{name}": "y" if name in wanted else "n" for name in MECHANISMS}


class _Row(scenario.Row, frozen=True):
    base: str
    set: str = ""
    only: str | None = None
    arch: str = "x86_64"
    link: bool = False
    sparse: bool = False

    def configuration(self, name: str) -> Configuration:
        options = dict(word.split("=") for word in self.set.split())
        if self.only is not None:
            options |= _only(*(MECHANISMS if self.only == "ALL" else self.only.split()))
        return Configuration(name, self.base, options, self.arch, self.link, self.sparse)


def _of_mechanism(name: str) -> list[Configuration]:
    """A mechanism switched on, with its patch alone (a symbol of another patch shows), and all others without it."""
    low = name.lower()
    one = {"64BIT": "y", **_only(name)}
    others = {"64BIT": "y", **_only(*(other for other in MECHANISMS if other != name))}
    return [
        Configuration(low, "small", one, link=True),
        Configuration(f"{low}-alone", "small", one, link=True, alone=low),
        Configuration(f"no-{low}", "small", others, link=True, without=low),
    ]


CONFIGURATIONS = (
    *(row.configuration(name) for name, row in scenario.table("builds.toml", dict[str, _Row]).items()),
    *(one for name in MECHANISMS for one in _of_mechanism(name)),
)


def choose(names: Sequence[str]) -> list[Configuration]:
    """The configurations of these names, all without names. UsageError for an unknown name."""
    known = {one.name: one for one in CONFIGURATIONS}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no configuration {name!r}; there are {', '.join(known)}")
    return [one for one in CONFIGURATIONS if not names or one.name in names]
