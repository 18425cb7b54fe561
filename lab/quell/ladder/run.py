# SPDX-License-Identifier: GPL-2.0-only
"""Climbs the ladder: every workload on every rung, by turns, and a document of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quell import compare, machine, results, session, ui, workload
from quell.errors import UsageError
from quell.ladder import counters, document, published
from quell.ladder.rungs import NAMES, RUNGS
from quell.paths import Cache

if TYPE_CHECKING:
    from quell.build import Kernel
    from quell.source import Source

DEFAULT = ("mapped-read", "dontneed-touch", "zap", "kernel-build", "tiering", "sysbench-mmap")
DEFAULT_RUNS = 3
# --scale: what the cost of a mechanism shows in when CPUs are added, and with how many.
SCALE = ("dontneed-scale", "zap", "mapped-read")
SCALE_CPUS = (2, 4, 8, 16)
SCALE_RUNS = 1
# Bytes; the data of mapped-read is four times this, on a RAM disk beside it.
SCALE_MEMORY = {"mapped-read": 96 << 20}

# Seconds that a run takes with 2 CPUs on 2 cores, its boot included: emulated, and
# deterministic. They are for the estimate only.
_SECONDS: Mapping[str, tuple[float, float]] = {
    "mapped-read": (14, 60),
    "dontneed-touch": (7, 30),
    "zap": (10, 20),
    "kernel-build": (14, 60),
    "tiering": (11, 60),
    "sysbench-mmap": (10, 40),
    "dontneed-scale": (7, 15),
}
_OTHER_SECONDS = (15.0, 75.0)
# A guest that has to be brought up CPU by CPU, all on one thread of the host.
_DETERMINISTIC_BOOT_S = 40.0


@dataclass(frozen=True)
class Options:
    """What to measure; None and empty mean the default.

    ``cpus`` are guest CPUs, ``memory`` is in bytes. ``scale`` measures how the
    rungs grow with CPUs, and is ``deterministic``.
    """

    workloads: Sequence[str] = ()
    runs: int | None = None
    cpus: tuple[int, ...] = ()
    memory: int | None = None
    accel: str = "auto"
    deterministic: bool = False
    scale: bool = False
    tree: Path | None = None

    def __post_init__(self) -> None:
        # Says what is wrong with them before anything is built.
        for cpus in self.cpus or (2,):
            session.Options(
                runs=self.repeats, cpus=cpus, memory=self.memory, accel=self.accel,
                deterministic=self.instructions,
            )  # fmt: skip
        if len(set(self.cpus)) < len(self.cpus):
            raise UsageError("--cpus names a number twice")

    @property
    def repeats(self) -> int:
        """Runs per rung."""
        if self.runs is not None:
            return self.runs
        return SCALE_RUNS if self.scale else DEFAULT_RUNS

    @property
    def instructions(self) -> bool:
        """Whether guest instructions are the clock."""
        return self.deterministic or self.scale

    def select(self) -> list[workload.Workload]:
        """The workloads; UsageError for one that cannot be measured this way."""
        if self.workloads:
            chosen = workload.select(self.workloads)
            for item in chosen:
                if self.instructions and item.nodes:
                    raise UsageError(
                        f"workload {item.name} cannot be measured with the instruction counter: "
                        "its data on a RAM disk would fill the guest's fast NUMA node"
                    )
            return chosen
        return [
            item
            for item in workload.select(SCALE if self.scale else DEFAULT)
            if not (self.instructions and item.nodes)
        ]

    def cpus_for(self, item: workload.Workload) -> tuple[int, ...]:
        """The numbers of CPUs to measure a workload with."""
        return self.cpus or (SCALE_CPUS if self.scale else (item.cpus,))

    def memory_for(self, item: workload.Workload) -> int:
        """The guest's memory in bytes."""
        small = SCALE_MEMORY.get(item.name) if self.scale else None
        return self.memory or small or item.memory


@dataclass(frozen=True)
class Step:
    """A plan and what it is of: a workload with a number of CPUs."""

    workload: str
    cpus: int
    plan: compare.Plan


def parse_cpus(text: str) -> tuple[int, ...]:
    """ "2,4" as (2, 4); UsageError otherwise."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise UsageError(f"--cpus should be numbers such as 2,4,8, not '{text}'")
    return tuple(map(int, parts))


def estimate(items: Sequence[workload.Workload], options: Options) -> float:
    """Seconds that it may take under emulation on 2 cores."""
    total = 0.0
    for item in items:
        emulated, counted = _SECONDS.get(item.name, _OTHER_SECONDS)
        for cpus in options.cpus_for(item):
            if options.instructions:
                total += counted + _DETERMINISTIC_BOOT_S * max(0, cpus - 2) / 14
            else:
                total += emulated * max(1.0, cpus / 2)
    return total * options.repeats * len(RUNGS)


def climb(options: Options, cache: Cache) -> tuple[dict[str, Any], Path]:
    """Measure everything and keep it; the document, and its folder.

    Errors as everywhere: QuellError. An interrupted ladder leaves no folder.
    """
    items = options.select()
    rows = published.load()
    origin, kernels = session.build(
        options.tree, cache, compare.SIDES, deterministic=options.instructions
    )
    accelerator = session.choose(
        session.Options(accel=options.accel, deterministic=options.instructions), kernels, cache
    )
    steps = _steps(options, items, origin, kernels["stock"], cache, accelerator)
    count = len(steps) * options.repeats * len(RUNGS)
    ui.note(
        f"{count} runs on {len(RUNGS)} rungs: about {ui.duration(estimate(items, options))} "
        "under emulation on 2 idle cores; less under KVM, more on a busy host"
    )
    if options.repeats == 1 and not options.instructions:
        ui.warn("with one run a rung there is no spread: every difference counts as one")
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    guests = compare.VirtualMachines(
        cache,
        accelerator.name,
        options.instructions,
        {rung.name: (rung.args,) if rung.args else () for rung in RUNGS},
        "kernel on rung {}",
    )
    with session.result_folder(cache) as folder:
        measured = compare.measure_all(
            {rung.name: kernels[rung.kernel] for rung in RUNGS},
            [step.plan for step in steps],
            options.repeats,
            guests,
            folder,
            NAMES,
            "rung {}",
        )
    result = {
        "schema": document.SCHEMA,
        "quell": results.quell_version(),
        "started": started,
        "environment": _environment(options, steps, kernels, accelerator),
        "deterministic": options.instructions,
        "runs": options.repeats,
        "rungs": [rung.to_json() for rung in RUNGS],
        "cells": [
            {
                "workload": step.workload,
                "cpus": step.cpus,
                "rung": rung.name,
                "figures": document.figures(done.samples[rung.name]),
            }
            for step, done in zip(steps, measured, strict=True)
            for rung in RUNGS
        ],
    }
    result["published"] = published.compare(rows, result)
    result["absent"] = absent(options, result)
    results.save(folder, result, document.FILE)
    return result, folder


def _steps(
    options: Options,
    items: Sequence[workload.Workload],
    origin: Source,
    stock: Kernel,
    cache: Cache,
    accelerator: machine.Accelerator,
) -> list[Step]:
    counter = counters.program(cache) if accelerator.name == "kvm" else None
    steps = []
    for item in items:
        for cpus in options.cpus_for(item):
            memory = options.memory_for(item)
            values = session.kernel_values(origin, stock)
            prepared = workload.prepare(item, memory, cache, {**values, "cpus": str(cpus)})
            plan = compare.plan_for(prepared, memory, cpus, deterministic=options.instructions)
            if len(options.cpus_for(item)) > 1:
                # Each has a folder of its own for its runs.
                plan = dataclasses.replace(plan, name=f"{item.name}-{cpus}cpus")
            steps.append(
                Step(item.name, cpus, counters.counting(plan, counter) if counter else plan)
            )
    return steps


def _environment(
    options: Options,
    steps: Sequence[Step],
    kernels: Mapping[str, Kernel],
    accelerator: machine.Accelerator,
) -> dict[str, Any]:
    """As in result.json; of a workload with several numbers of CPUs the first."""
    facts: dict[str, Any] = {}
    for step in steps:
        facts.setdefault(step.workload, session.facts(step.plan))
    return results.environment(
        kernels=kernels,
        accelerator=accelerator,
        deterministic=options.instructions,
        runs=options.repeats,
        boot_parameters={},
        workloads=facts,
    )


def absent(options: Options, result: Mapping[str, Any]) -> list[str]:
    """What could not be measured, and why: a sentence each."""
    out = []
    if options.instructions and not options.workloads and not options.scale:
        out += [
            f"{name}: its data on a RAM disk would fill the guest's fast NUMA node"
            for name in DEFAULT
            if name not in document.measured(result)
        ]
    if not any(name in cell["figures"] for cell in result["cells"] for name in counters.FIGURES):
        accelerator = result["environment"]["accelerator"]["name"]
        why = (
            "the guest's processor has no counters for them, although it runs under KVM"
            if accelerator == "kvm"
            else "emulation (TCG) has no counters for them, they need KVM"
        )
        out.append(f"TLB misses (iTLB, dTLB loads and stores): {why}")
    return out
