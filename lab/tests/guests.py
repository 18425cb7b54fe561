# SPDX-License-Identifier: GPL-2.0-only
"""Kernels and places that need no VM, shared by the tests."""

import io
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from quell import counters, engine, judge, machine, results, sides, table, ui
from quell.paths import repo_root

# Types of pytest's fixtures.
Patch = pytest.MonkeyPatch
Done = subprocess.CompletedProcess[str]

SIDES = (sides.parse("stock=stock"), sides.parse("quell=quell"))
BASE: dict[str, counters.Number] = {m.name: 100 for m in counters.METRICS}


def lab_env() -> dict[str, str]:
    """The environment of a program that imports quell."""
    return {**os.environ, "PYTHONPATH": str(repo_root() / "lab")}


def execute(*argv: str | Path, **options: Any) -> Done:
    """Run a program to its end and keep its output."""
    return subprocess.run(argv, capture_output=True, text=True, check=False, **options)


def compiled(source: Path, folder: Path, *flags: str) -> Path:
    """The program of a C file."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    program = folder / source.stem
    subprocess.run(["gcc", "-pthread", *flags, "-o", program, source], check=True)
    return program


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
    one = sample(0, **changed)
    return counters.Sample(one.metrics, one.extras, {"work": counters.Figure(value, unit, more)})


def plan(name: str = "tiny", *, own: bool = False) -> engine.Plan:
    """A plan for a guest of 64 MiB."""
    matters = judge.OWN_MATTERS if own else ("elapsed_s",)
    return engine.Plan(name, machine.Job(["x"]), 64 * machine.MIB, 1, 5, matters, "Sums up", 2, own)


def terminal(result: Mapping[str, Any]) -> str:
    """The table of a result."""
    text = io.StringIO()
    table.print_result(result, ui.console(text))
    return text.getvalue()


def guest_result(stdout: str, console: str = "", code: int = 0) -> machine.GuestResult:
    """The end of a guest."""
    return machine.GuestResult(code, stdout, "", console)


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
