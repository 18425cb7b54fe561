# SPDX-License-Identifier: GPL-2.0-only
"""Kernels and places that need no VM, shared by the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quell import counters, engine, judge, machine, results, sides

SIDES = (sides.parse("stock=stock"), sides.parse("quell=quell"))
BASE: dict[str, counters.Number] = {m.name: 100 for m in counters.METRICS}


@dataclass(frozen=True)
class FakeKernel:
    """The part of build.Kernel that results need."""

    name: str
    release: str
    image: Path = Path("/kernels/bzImage")
    config_hash: str = "c0ffee"
    source_version: str = "6.12.117"
    key: str = "k"
    build_dir: Path = Path("/kernels")


KERNELS: dict[str, Any] = {
    "stock": FakeKernel("stock", "6.12.117"),
    "quell": FakeKernel("quell", "6.12.117-quell"),
}


def sample(exit_code: int = 0, **changed: counters.Number) -> counters.Sample:
    """A run in which every figure is 100, except ``changed``."""
    metrics = {**BASE, **{k: v for k, v in changed.items() if k in BASE}}
    extras = {k: v for k, v in changed.items() if k not in BASE}
    return counters.Sample(metrics, extras, {}, exit_code)


def printed(value: float, unit: str, *, more: bool = True, **changed: counters.Number) -> counters.Sample:
    """A run with the figure ``work``, printed by its program."""
    one = sample(**changed)
    return counters.Sample(one.metrics, one.extras, {"work": counters.Figure(value, unit, more)})


def plan(name: str = "tiny", *, own: bool = False) -> engine.Plan:
    """A plan for a guest of 64 MiB."""
    matters = judge.OWN_MATTERS if own else ("elapsed_s",)
    return engine.Plan(name, machine.Job(["x"]), 64 * machine.MIB, 1, 5, matters, "Sums up", 2, own)


@dataclass
class FakePlace:
    """A place that returns ``answer(side, plan name, number)`` for each run."""

    answer: Callable[[str, str, int], counters.Sample]
    log: list[tuple[str, str]] = field(default_factory=list)

    def run(self, side: sides.Side, plan: engine.Plan, rundir: Path) -> counters.Sample:
        """One run."""
        assert rundir.is_dir()
        self.log.append((plan.name, side.name))
        return self.answer(side.name, plan.name, self.log.count((plan.name, side.name)))

    def facts(self, request: engine.Request) -> tuple[dict[str, Any], dict[str, dict[str, str]], list[str]]:
        """Made-up facts."""
        environment = results.environment(
            source="6.12.117", accelerator={"name": "tcg", "reason": "made up"}, deterministic=False,
            runs=request.runs, qemu="7.2", compiler="gcc 12",
        )  # fmt: skip
        kernel = {"config_hash": "c0ffee", "key": "k"}
        return environment, {s.name: {"release": f"6.12.117-{s.kernel}", **kernel} for s in request.sides}, []
