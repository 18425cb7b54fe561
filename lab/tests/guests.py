# SPDX-License-Identifier: GPL-2.0-only
"""Kernels and guests that need no VM, shared by the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from quell import compare, machine, measure


@dataclass(frozen=True)
class FakeKernel:
    """As much of build.Kernel as results need."""

    name: str
    release: str
    image: Path = Path("/kernels/bzImage")
    config_hash: str = "c0ffee"
    source_version: str = "6.12.117"
    key: str = "k"
    build_dir: Path = Path("/kernels")


KERNELS: Mapping[str, Any] = {
    "stock": FakeKernel("stock", "6.12.117"),
    "quell": FakeKernel("quell", "6.12.117-quell"),
}
BASE: dict[str, measure.Number] = {m.name: 100 for m in measure.METRICS}


def sample(exit_code: int = 0, **changed: measure.Number) -> measure.Sample:
    """A run in which every figure is 100, but for ``changed``."""
    metrics = {**BASE, **{k: v for k, v in changed.items() if k in BASE}}
    extras = {k: v for k, v in changed.items() if k not in BASE}
    return measure.Sample(metrics, extras, {}, exit_code)


def plan(name: str = "tiny", *, own: bool = False) -> compare.Plan:
    """A plan for a guest of 64 MiB."""
    return compare.Plan(
        name, machine.Job(["x"]), 64 * machine.MIB, 1, 5, ("elapsed_s",), "Sums up", 2, own
    )


@dataclass
class FakeGuests:
    """Guests whose runs are what ``answer(side, plan name, number)`` says."""

    answer: Callable[[str, str, int], measure.Sample]
    log: list[tuple[str, str]] = field(default_factory=list)

    def run(self, side: str, kernel: Any, plan: compare.Plan, rundir: Path) -> measure.Sample:
        """One run."""
        assert rundir.is_dir() and kernel is cast(Any, KERNELS[side])
        self.log.append((plan.name, side))
        return self.answer(side, plan.name, self.log.count((plan.name, side)))
