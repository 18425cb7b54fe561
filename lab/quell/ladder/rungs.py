# SPDX-License-Identifier: GPL-2.0-only
"""The rungs: the same Quell kernel with one mechanism more at each, and stock beside them."""

from __future__ import annotations

from dataclasses import dataclass

# What each rung adds, in the order in which Linux got them or was offered them.
_STEPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("nothing", "a flush per page, remote then local, PTE by PTE, base pages", ()),
    ("unmap_batch", "+ batched unmap flush", ("unmap_batch",)),
    ("concurrent", "+ concurrent flush", ("concurrent",)),
    ("early_ack", "+ early acknowledgment", ("early_ack",)),
    ("clearing", "+ batched PTE clearing", ("zap_batch", "rmap_batch")),
    ("folio_order", "+ large anonymous folios", ("folio_order",)),
    ("quell", "+ lazy unmap flush = Quell", ("luf",)),
)


@dataclass(frozen=True)
class Rung:
    """A rung: the ``kernel`` ("stock", "quell") and the boot parameters ``args`` it is."""

    name: str
    title: str
    kernel: str
    args: str

    def to_json(self) -> dict[str, str]:
        """As it stands in ladder.json."""
        return {"name": self.name, "title": self.title, "kernel": self.kernel, "args": self.args}


def mechanisms() -> tuple[str, ...]:
    """The mechanisms in the order in which they are switched on."""
    return tuple(name for _, _, added in _STEPS for name in added)


def _ladder() -> tuple[Rung, ...]:
    off = list(mechanisms())
    rungs = []
    for name, title, added in _STEPS:
        off = [mechanism for mechanism in off if mechanism not in added]
        args = "quell=" + (",".join(f"-{mechanism}" for mechanism in off) or "on")
        rungs.append(Rung(name, title, "quell", args))
    return (*rungs, Rung("stock", "stock Linux", "stock", ""))


RUNGS = _ladder()
NAMES = tuple(rung.name for rung in RUNGS)
