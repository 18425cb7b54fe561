# SPDX-License-Identifier: GPL-2.0-only
"""The kernel configurations that Quell has to compile in: ``scenarios/builds.toml``."""

from collections.abc import Sequence

from msgspec.structs import replace

from checks import own_code, scenario
from quell import build, prereq, tree
from quell.errors import UsageError

# The options of mm/Kconfig.quell that are mechanisms.
MECHANISMS = (
    "UNMAP_BATCH", "CONCURRENT", "ZAP_BATCH", "RMAP_BATCH", "EARLY_ACK", "GATHER_RANGE", "FOLIO_ORDER", "LUF",
    "WRITEOUT_BATCH",
)  # fmt: skip
_CROSS = {"arm64": "aarch64-linux-gnu", "s390": "s390x-linux-gnu"}


class Configuration(scenario.Row, frozen=True):
    """One configuration.

    ``base`` is a kernel of ``build.KERNELS``, "small" (small.config), "none" (allnoconfig) or "def"
    (the architecture's defconfig). The options in ``set`` and the mechanisms of ``only`` come on top,
    and have to be in the result. With ``link`` the whole kernel is compiled and linked, modules too;
    with ``sparse`` sparse also checks the objects. ``alone`` and ``without`` name a mechanism: its
    patch is applied without the others, or left out.
    """

    base: str
    set: str = ""
    only: str | None = None
    arch: str = "x86_64"
    link: bool = False
    sparse: bool = False
    alone: str = ""
    without: str = ""
    name: str = ""

    @property
    def folder(self) -> str:
        """The architecture's folder below arch/."""
        return self.arch if self.arch in _CROSS else "x86"

    @property
    def prefix(self) -> str:
        """The prefix of the compiler's name."""
        return f"{_CROSS[self.arch]}-" if self.arch in _CROSS else ""

    @property
    def options(self) -> dict[str, str]:
        """The options on top, without CONFIG_."""
        options = dict(word.split("=") for word in self.set.split())
        if self.only is not None:
            on = MECHANISMS if self.only == "ALL" else self.only.split()
            options |= {"QUELL": "y"} | {f"QUELL_{name}": "y" if name in on else "n" for name in MECHANISMS}
        return options

    def tools(self) -> list[prereq.Prerequisite]:
        """The tools beyond ``prereq.BUILD``."""
        what = f"{self.prefix}gcc", f"gcc-{self.prefix[:-1]}", "compiles for another architecture"
        return [*(prereq.SPARSE if self.sparse else ()), *([prereq.Prerequisite(*what)] if self.prefix else ())]

    def part(self, whole: tree.KernelPart) -> tree.KernelPart:
        """The patches of ``whole`` that are applied."""
        name = self.alone or self.without
        return own_code.subset(whole, name, alone=bool(self.alone)) if name else whole

    def fragment(self, linux: str, *, quell: bool = True) -> str:
        """The lines of the fragment; for the stock source without Quell's."""
        text = scenario.shell("small.config") if self.base == "small" else ""
        if self.base in build.KERNELS:
            text = build.fragments(self.base, tree.kernel_dir(), linux)
        lines = [*text.splitlines(), *(f"CONFIG_{name}={value}" for name, value in self.options.items())]
        return "".join(f"{line}\n" for line in lines if quell or not line.startswith("CONFIG_QUELL"))

    def refused(self, config: str) -> list[str]:
        """The ``options`` that a ``.config`` lacks, as ``NAME=value``."""
        have = build.options(config)
        return [f"{name}={value}" for name, value in self.options.items() if have.get(f"CONFIG_{name}", "n") != value]


def _all() -> list[Configuration]:
    """The table; each mechanism on, on with its patch alone (a symbol of another patch shows), and off without it."""
    found = scenario.table("builds.toml", dict[str, Configuration])
    for name in MECHANISMS:
        one, low = Configuration("small", "64BIT=y", name, link=True), name.lower()
        others = " ".join(other for other in MECHANISMS if other != name)
        found |= {low: one, f"{low}-alone": replace(one, alone=low)}
        found[f"no-{low}"] = replace(one, only=others, without=low)
    return [replace(one, name=name) for name, one in found.items()]


CONFIGURATIONS = _all()


def choose(names: Sequence[str]) -> list[Configuration]:
    """The configurations of these names, all without names. UsageError for an unknown name."""
    known = [one.name for one in CONFIGURATIONS]
    for name in names:
        if name not in known:
            raise UsageError(f"there is no configuration {name!r}; there are {', '.join(known)}")
    return [one for one in CONFIGURATIONS if not names or one.name in names]
