# SPDX-License-Identifier: GPL-2.0-only
"""The kernel configurations that Quell has to compile in: the table of ``./quell test --only builds``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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

# Little more than the needs of all mechanisms: it compiles and links in minutes.
_SMALL = """\
CONFIG_EXPERT=y
CONFIG_SMP=y
CONFIG_MULTIUSER=y
CONFIG_PRINTK=y
CONFIG_BUG=y
CONFIG_SYSFS=y
CONFIG_PROC_FS=y
CONFIG_BLOCK=y
CONFIG_EXT4_FS=y
CONFIG_SHMEM=y
CONFIG_TMPFS=y
CONFIG_SWAP=y
CONFIG_COMPACTION=y
CONFIG_MIGRATION=y
CONFIG_TRANSPARENT_HUGEPAGE=y
CONFIG_TRANSPARENT_HUGEPAGE_ALWAYS=y
CONFIG_VM_EVENT_COUNTERS=y
"""
# Each base is allnoconfig with files of kernel/configs, or with a text; None is the
# architecture's defconfig.
_BASES: Mapping[str, Sequence[str] | str | None] = {
    "lab": ("lab.config", "filesystems.config"),
    "quell": ("lab.config", "filesystems.config", "quell.config"),
    "debug": ("lab.config", "quell.config", "debug.config"),
    "none": "",
    "small": _SMALL,
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
        return tree.subset(whole, f"{name}.patch", alone=bool(self.alone)) if name else whole

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
        return "".join(
            f"{line}\n" for line in lines if quell or not line.startswith("CONFIG_QUELL")
        )

    def refused(self, config: str) -> list[str]:
        """The ``options`` that a ``.config`` lacks, as ``NAME=value``."""
        have = build.options(config)
        return [
            f"{name}={value}"
            for name, value in self.options.items()
            if have.get(f"CONFIG_{name}", "n") != value
        ]


def _only(*wanted: str) -> dict[str, str]:
    """Quell with these mechanisms only."""
    return {"QUELL": "y"} | {
        f"QUELL_{name}": "y" if name in wanted else "n" for name in MECHANISMS
    }


# The mechanisms available on an architecture, or without THP and event counters.
_ARM64 = ("UNMAP_BATCH", "ZAP_BATCH", "WRITEOUT_BATCH")
_I386 = (*_ARM64, "CONCURRENT", "RMAP_BATCH")
_SIMPLE = ("UNMAP_BATCH", "ZAP_BATCH", "CONCURRENT", "RMAP_BATCH", "EARLY_ACK", "GATHER_RANGE")

_NO_MIGRATION = {
    name: "n"
    for name in (
        "NUMA", "COMPACTION", "TRANSPARENT_HUGEPAGE", "CMA", "MEMORY_HOTPLUG", "HUGETLBFS",
        "MIGRATION",
    )
}  # fmt: skip
_KVM = {"VIRTUALIZATION": "y", "KVM": "y", "KVM_INTEL": "y", "KVM_AMD": "y", "MMU_NOTIFIER": "y"}
# File system code that the lab's kernels lack, with hooks of Quell.
_FILES = {
    "QUOTA": "y", "QFMT_V2": "y", "XFS_QUOTA": "y", "XFS_ONLINE_SCRUB": "y",
    "XFS_ONLINE_REPAIR": "y", "NFSD": "y", "NFSD_V4": "y", "NFSD_BLOCKLAYOUT": "y",
    "MEMORY_FAILURE": "y", "X86_MCE": "y",
}  # fmt: skip
_BARE = {
    name: "n"
    for name in (
        "FTRACE", "TRACEPOINTS", "DEBUG_FS", "KUNIT", "DEBUG_TLBFLUSH", "HYPERVISOR_GUEST",
        "PARAVIRT", "KALLSYMS",
    )
}  # fmt: skip

CONFIGURATIONS = (
    Configuration("quell", "quell", sparse=True),
    Configuration("debug", "debug", sparse=True),
    Configuration("off", "lab", {"QUELL": "n"}, link=True, sparse=True),
    # Without Debian's choices.
    Configuration("plain", "quell", {"JUMP_LABEL": "n", "LRU_GEN": "n", "NUMA_BALANCING": "n", "MAXSMP": "n",
                                     "PREEMPT_DYNAMIC": "n"}),
    Configuration("no-smp", "quell", {"SMP": "n", "NUMA": "n", "QUELL": "n"}),
    Configuration("no-numa", "quell", {"NUMA": "n"}),
    Configuration("no-memcg", "quell", {"MEMCG": "n", "MEMCG_V1": "n"}),
    Configuration("no-swap", "quell", {"SWAP": "n", "QUELL_WRITEOUT_BATCH": "n"}),
    Configuration("no-thp", "quell", {"TRANSPARENT_HUGEPAGE": "n", "QUELL_FOLIO_ORDER": "n"}),
    Configuration("no-hugetlb", "quell", {"HUGETLBFS": "n"}),
    Configuration("no-compaction", "quell", {"TRANSPARENT_HUGEPAGE": "n", "COMPACTION": "n"}),
    Configuration("no-migration", "quell", _NO_MIGRATION),
    Configuration("no-vmstat", "quell", {"VM_EVENT_COUNTERS": "n", "QUELL_LUF": "n"}),
    Configuration("no-proc", "quell", {"PROC_FS": "n", "TASKSTATS": "n"}),
    Configuration("bare", "quell", _BARE),
    Configuration("kvm", "quell", _KVM),
    Configuration("files", "quell", _FILES),
    Configuration("rt", "quell", {"PREEMPT_RT": "y"}),
    Configuration("debug-no-migration", "debug", {**_NO_MIGRATION, "SWAP": "n", "MEMCG": "n"}),
    Configuration("mutants", "small", {"64BIT": "y", **_only(*MECHANISMS), "DEBUG_KERNEL": "y",
                                       "QUELL_MUTANTS": "y", "QUELL_LUF_DEBUG": "y"}, link=True),
    # Hooks that are inlined into modules.
    Configuration("modules", "small", {"64BIT": "y", **_only(*MECHANISMS), "MODULES": "y",
                                       "EXT4_FS": "m", "F2FS_FS": "m", "MISC_FILESYSTEMS": "y",
                                       "EROFS_FS": "m"}, link=True),
    Configuration("allno", "none"),
    Configuration("allno-quell", "none", {"EXPERT": "y", "64BIT": "y", "SMP": "y", "SYSFS": "y",
                                          **_only(*_SIMPLE)}, link=True),
    Configuration("small-no-smp", "small", {"64BIT": "y", "SMP": "n"}, link=True),
    Configuration("no-mechanism", "small", {"64BIT": "y", **_only()}, link=True),
    *(
        Configuration(name.lower(), "small", {"64BIT": "y", **_only(name)}, link=True)
        for name in MECHANISMS
    ),
    # A symbol that belongs to another patch.
    *(
        Configuration(f"{name.lower()}-alone", "small", {"64BIT": "y", **_only(name)}, link=True, alone=name.lower())
        for name in MECHANISMS
    ),
    *(
        Configuration(f"no-{name.lower()}", "small", {
            "64BIT": "y", **_only(*(other for other in MECHANISMS if other != name)),
        }, link=True, without=name.lower())
        for name in MECHANISMS
    ),
    Configuration("def-off", "def", {"QUELL": "n"}),
    Configuration("def", "def", {"QUELL": "y"}),
    Configuration("i386-off", "def", {"QUELL": "n"}, "i386"),
    Configuration("i386", "def", {"QUELL": "y"}, "i386"),
    Configuration("i386-small", "small", _only(*_I386), "i386", link=True),
    Configuration("arm64-off", "def", {"QUELL": "n"}, "arm64"),
    Configuration("arm64", "def", {"QUELL": "y"}, "arm64", sparse=True),
    Configuration("arm64-small", "small", _only(*_ARM64), "arm64", link=True),
    Configuration("s390-off", "def", {"QUELL": "n"}, "s390"),
    Configuration("s390", "def", {"QUELL": "y"}, "s390"),
)  # fmt: skip


def choose(names: Sequence[str]) -> list[Configuration]:
    """The configurations of these names, all without names. UsageError for an unknown name."""
    known = {one.name: one for one in CONFIGURATIONS}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no configuration {name!r}; there are {', '.join(known)}")
    return [one for one in CONFIGURATIONS if not names or one.name in names]
