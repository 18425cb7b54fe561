# SPDX-License-Identifier: GPL-2.0-only
"""Measures the same thing under two kernels, A B A B, each run in a fresh guest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from quell import machine, measure, proc, stats, ui
from quell.errors import QuellError
from quell.paths import Cache
from quell.workload import DETERMINISTIC_SLOWDOWN, Prepared

if TYPE_CHECKING:
    from quell.build import Kernel

SIDES = ("stock", "quell")
# The name of the user's own command among the comparisons.
OWN_COMMAND = "command"
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True)
class Plan:
    """What is measured: one command, in guests of one kind.

    ``memory`` in bytes, ``timeout`` in seconds. A workload that exits with
    anything but 0 is an error; the user's ``own`` command may.
    """

    name: str
    job: machine.Job
    memory: int
    cpus: int
    timeout: float
    matters: tuple[str, ...] = ()
    summary: str = ""
    version: int | None = None
    own: bool = False
    nodes: tuple[int, ...] = ()


def plan_for(prepared: Prepared, memory: int, cpus: int, *, deterministic: bool = False) -> Plan:
    """The plan for a prepared workload."""
    workload = prepared.workload
    job = machine.Job(
        prepared.argv,
        data=prepared.data,
        ram=deterministic and prepared.data is not None,
        stage=prepared.programs,
        writes=workload.writes,
    )
    slow = DETERMINISTIC_SLOWDOWN if deterministic else 1
    return Plan(
        workload.name,
        job,
        memory,
        cpus,
        workload.timeout * slow,
        workload.matters,
        workload.summary,
        workload.version,
        nodes=workload.nodes_for(memory),
    )


class Guests(Protocol):
    """Where runs happen; the tests have their own."""

    def run(self, side: str, kernel: Kernel, plan: Plan, rundir: Path) -> measure.Sample:
        """One run of ``plan`` in a fresh guest with ``kernel``; files are kept in ``rundir``."""


@dataclass(frozen=True)
class VirtualMachines:
    """Guests as they really are. ``append`` are kernel parameters by side.

    ``called`` is what messages call a side.
    """

    cache: Cache
    accel: str
    deterministic: bool = False
    append: Mapping[str, Sequence[str]] = field(default_factory=dict)
    called: str = "{} kernel"

    def run(self, side: str, kernel: Kernel, plan: Plan, rundir: Path) -> measure.Sample:
        """See ``Guests``. Raises what machine.boot and measure.sample raise."""
        guest = machine.Machine(
            accel=self.accel,
            memory=plan.memory,
            cpus=plan.cpus,
            append=tuple(self.append.get(side, ())),
            deterministic=self.deterministic,
            nodes=plan.nodes,
        )
        result = machine.boot(
            guest, kernel.image, plan.job, rundir, cache=self.cache, timeout=plan.timeout
        )
        for line in result.warnings:
            ui.warn(f"{plan.name}, {self.called.format(side)}: {line.strip()}")
        assert result.frames is not None
        if not plan.own and result.exit_code != 0:
            killed = [line for line in result.warnings if "Killed" in line]
            last = (killed or result.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise QuellError(
                f"workload {plan.name} failed under the {self.called.format(side)} "
                f"with exit code {result.exit_code}: {last}",
                detail=proc.tail(result.stderr, 10),
                log=rundir / "console.log",
            )
        return measure.sample(result.frames, result.stdout, deterministic=self.deterministic)


@dataclass(frozen=True)
class Measured:
    """All runs of one plan, by side, in order."""

    plan: Plan
    samples: Mapping[str, Sequence[measure.Sample]]

    @property
    def exit_codes(self) -> dict[str, list[int]]:
        """The command's exit codes by side, in the order of the runs."""
        return {side: [s.exit_code for s in self.samples[side]] for side in SIDES}

    def to_json(self) -> dict[str, Any]:
        """The comparison as it stands in results (docs/results.md)."""
        metrics = self._table(lambda s: s.metrics)
        return {
            "workload": self.plan.name,
            "metrics": {name: c.to_json() for name, c in metrics.items()},
            "extras": {n: c.to_json() for n, c in self._table(lambda s: s.extras).items()},
            "figures": self._figures(),
            "matters": list(self.plan.matters),
            "exit_codes": self.exit_codes,
        }

    def _table(
        self, get: Callable[[measure.Sample], Mapping[str, measure.Number]]
    ) -> dict[str, stats.Comparison]:
        names = dict.fromkeys(n for side in SIDES for s in self.samples[side] for n in get(s))
        runs = {
            name: [[get(s)[name] for s in self.samples[side] if name in get(s)] for side in SIDES]
            for name in names
        }
        return {
            name: stats.compare(a, b, events=name in measure.EVENTS)
            for name, (a, b) in runs.items()
        }

    def _figures(self) -> dict[str, Any]:
        described: dict[str, measure.Figure] = {}
        for side in SIDES:
            for sample in self.samples[side]:
                described.update(sample.figures)
        out: dict[str, Any] = {}
        for name, figure in described.items():
            runs = [
                [s.figures[name].value for s in self.samples[side] if name in s.figures]
                for side in SIDES
            ]
            compared = stats.compare(*runs, higher_is_better=figure.higher_is_better)
            out[name] = {
                **compared.to_json(),
                "unit": figure.unit,
                "better": "higher" if figure.higher_is_better else "lower",
            }
        return out


def measure_all(
    kernels: Mapping[str, Kernel],
    plans: Sequence[Plan],
    runs: int,
    guests: Guests,
    folder: Path,
    sides: Sequence[str] = SIDES,
    called: str = "{} kernel",
) -> list[Measured]:
    """Every plan, ``runs`` times for each of ``sides``, by turns; ``kernels`` is by side.

    ``called`` is what messages call a side.
    Each run's files are kept in ``folder``/runs/PLAN/SIDE-N. The first run
    that fails ends it all with its error: there are no missing rows.
    """
    done: list[Measured] = []
    with ui.progress("measuring", total=len(plans) * runs * len(sides)) as progress:
        for plan in plans:
            samples: dict[str, list[measure.Sample]] = {side: [] for side in sides}
            same: _Same | None = None
            for number in range(1, runs + 1):
                for side in sides:
                    progress.update(description=f"{plan.name}: {side}, run {number} of {runs}")
                    rundir = folder / "runs" / plan.name / f"{side}-{number}"
                    rundir.mkdir(parents=True)
                    try:
                        sample = guests.run(side, kernels[side], plan, rundir)
                        if not plan.own:
                            same = _check_same(same, _Same(side, number, sample.same), rundir)
                    except QuellError as error:
                        error.message = _named(error.message, plan, called.format(side))
                        error.args = (error.message,)
                        raise
                    (rundir / "sample.json").write_text(
                        json.dumps({"metrics": sample.metrics, "extras": sample.extras}) + "\n"
                    )
                    samples[side].append(sample)
                    progress.advance()
            done.append(Measured(plan, samples))
    return done


@dataclass(frozen=True)
class _Same:
    """What a run said has to be the same in every run."""

    side: str
    number: int
    said: Mapping[str, str]


def _check_same(first: _Same | None, run: _Same, rundir: Path) -> _Same:
    """The first run, with which ``run`` has to agree; QuellError if it does not."""
    if first is None:
        return run
    for name in sorted({*first.said, *run.said}):
        texts = [one.said.get(name, "nothing") for one in (first, run)]
        if texts[0] != texts[1]:
            raise QuellError(
                f"{name} should be the same in every run, but run {first.number} under the "
                f"{first.side} kernel and run {run.number} under the {run.side} kernel differ",
                detail="\n".join(
                    f"{one.side} {one.number}: {text[:_SHOWN_CHARACTERS]}"
                    for one, text in zip((first, run), texts, strict=True)
                ),
                log=rundir / "stdout",
            )
    return first


def _named(message: str, plan: Plan, called: str) -> str:
    if plan.own or f"workload {plan.name}" in message:
        return message
    return f"workload {plan.name}, {called}: {message}"
