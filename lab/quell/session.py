# SPDX-License-Identifier: GPL-2.0-only
"""From a user's wishes to a kept result: kernels, accelerator, plans, measuring."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quell import compare, machine, results, ui, workload
from quell.errors import UsageError
from quell.paths import Cache, require_space

if TYPE_CHECKING:
    from quell.build import Kernel
    from quell.source import Source

# What a guest for the user's own command has, unless told otherwise.
OWN_MEMORY = 1 << 30
OWN_CPUS = 2
# Of the user's environment, what would point to things the guest does not have,
# and what the launcher sets for the lab itself.
_NOT_PASSED = {"PYTHONPATH", "VIRTUAL_ENV", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"}
_NOT_PASSED |= {"SSH_AUTH_SOCK", "TMUX", "STY", "DBUS_SESSION_BUS_ADDRESS", "QUELL_CACHE"}


@dataclass(frozen=True)
class Options:
    """What to measure and in what; None means the workload's own value.

    ``memory`` in bytes, ``timeout`` (own command only) in seconds. ``command``
    is the user's own, instead of ``workloads`` (none named: all).
    """

    workloads: Sequence[str] = ()
    command: Sequence[str] | None = None
    runs: int = 5
    memory: int | None = None
    cpus: int | None = None
    accel: str = "auto"
    deterministic: bool = False
    tree: Path | None = None
    append: Mapping[str, Sequence[str]] = field(default_factory=dict)
    timeout: float = 600

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise UsageError(f"--runs should be 1 or more, not {self.runs}")
        if self.deterministic and self.accel == "kvm":
            raise UsageError("--deterministic needs emulation; leave out --accel kvm")
        if self.command is not None and self.workloads:
            raise UsageError("give either --workload or a command after --, not both")
        # Says what is wrong with them before anything is built.
        cpus = OWN_CPUS if self.cpus is None else self.cpus
        machine.Machine(memory=OWN_MEMORY if self.memory is None else self.memory, cpus=cpus)


@dataclass(frozen=True)
class Outcome:
    """A finished comparison: what was measured, the result object, the folder it is kept in."""

    measured: list[compare.Measured]
    result: dict[str, Any]
    folder: Path


def build(
    tree: Path | None, cache: Cache, names: Sequence[str], *, deterministic: bool = False
) -> tuple[Source, dict[str, Kernel]]:
    """The kernel source (Debian's or the user's ``tree``), and the named kernels from it.

    ``deterministic``: their variants that are for counting instructions, under the same names.
    """
    from quell import build as builder
    from quell import prereq, source

    prereq.ensure()
    origin = source.debian_source(cache) if tree is None else source.user_tree(tree, cache)
    variants = {name: f"{name}-keys" if deterministic else name for name in names}
    built = builder.build_kernels(origin, tuple(variants.values()), cache)
    return origin, {name: built[variant] for name, variant in variants.items()}


def guest_environment(*, terminal: bool = False) -> dict[str, str]:
    """Our environment, as far as it makes sense in a guest."""
    env = {k: v for k, v in os.environ.items() if k not in _NOT_PASSED and "\0" not in v}
    env.setdefault("PATH", machine.DEFAULT_PATH)
    env.setdefault("HOME", "/root")
    if not terminal:
        env.setdefault("TERM", "dumb")
    return env


def own_job(command: Sequence[str], *, terminal: bool = False) -> machine.Job:
    """The user's command as a job: in the current directory, with our environment."""
    return machine.Job(command, env=guest_environment(terminal=terminal), cwd=os.getcwd())


def choose(options: Options, kernels: Mapping[str, Kernel], cache: Cache) -> machine.Accelerator:
    """The accelerator that fits the options."""
    if options.deterministic:
        return machine.Accelerator("tcg", "the instruction counter needs it")
    image = (kernels.get("stock") or next(iter(kernels.values()))).image
    return machine.choose_accelerator(options.accel, image, cache)


@dataclass(frozen=True)
class Setup:
    """What measuring needs, all of it there: the plans, and what carries them out."""

    options: Options
    cache: Cache
    kernels: Mapping[str, Kernel]
    accelerator: machine.Accelerator
    plans: list[compare.Plan]

    def guests(self) -> compare.VirtualMachines:
        """Guests as the options want them."""
        options = self.options
        return compare.VirtualMachines(
            self.cache, self.accelerator.name, options.deterministic, options.append
        )

    def environment(self) -> dict[str, Any]:
        """The environment as it stands in results."""
        append = self.options.append
        return results.environment(
            kernels=self.kernels,
            accelerator=self.accelerator,
            deterministic=self.options.deterministic,
            runs=self.options.runs,
            boot_parameters={side: list(append.get(side, ())) for side in compare.SIDES},
            workloads={plan.name: facts(plan) for plan in self.plans},
        )


def set_up(options: Options, cache: Cache) -> Setup:
    """Build both kernels and prepare what is to be measured."""
    workloads = [] if options.command is not None else workload.select(options.workloads)
    for item in workloads:
        if item.tool is not None:
            item.tool.own_program()  # says what is wrong before anything is built
    if options.runs == 1:
        ui.warn("with one run a side there is no spread: every difference counts as one")
    origin, kernels = build(
        options.tree, cache, compare.SIDES, deterministic=options.deterministic
    )
    accelerator = choose(options, kernels, cache)
    plans = _plans(options, workloads, origin, kernels["stock"], cache)
    return Setup(options, cache, kernels, accelerator, plans)


@contextmanager
def result_folder(cache: Cache) -> Iterator[Path]:
    """A new folder for a result; gone again when interrupted, left when a run fails."""
    require_space(cache.results, 64 << 20, "keeping the result")
    folder = results.new_folder(cache)
    try:
        yield folder
    except (KeyboardInterrupt, OSError, UsageError):
        shutil.rmtree(folder, ignore_errors=True)
        raise


def measure(options: Options, cache: Cache) -> Outcome:
    """Build both kernels, measure, and keep the result. Errors as everywhere: QuellError."""
    setup = set_up(options, cache)
    with result_folder(cache) as folder:
        measured = compare.measure_all(
            setup.kernels, setup.plans, options.runs, setup.guests(), folder
        )
    result = {
        "schema": results.SCHEMA,
        "environment": setup.environment(),
        "comparisons": [m.to_json() for m in measured],
    }
    results.save(folder, result)
    return Outcome(measured, result, folder)


def kernel_values(origin: Source, stock: Kernel) -> dict[str, str]:
    """What workload.prepare wants to know of the kernels."""
    return {
        "kernel_source": str(origin.tree),
        "kernel_build": str(stock.build_dir),
        "kernel_key": stock.key,
    }


def _plans(
    options: Options,
    workloads: Sequence[workload.Workload],
    origin: Source,
    stock: Kernel,
    cache: Cache,
) -> list[compare.Plan]:
    if options.command is not None:
        return [
            compare.Plan(
                compare.OWN_COMMAND,
                own_job(options.command),
                options.memory or OWN_MEMORY,
                options.cpus or OWN_CPUS,
                options.timeout,
                own=True,
            )
        ]
    values = kernel_values(origin, stock)
    plans = []
    for item in workloads:
        memory, cpus = options.memory or item.memory, options.cpus or item.cpus
        prepared = workload.prepare(item, memory, cache, {**values, "cpus": str(cpus)})
        plans.append(
            compare.plan_for(prepared, memory, cpus, deterministic=options.deterministic)
        )
    return plans


def facts(plan: compare.Plan) -> dict[str, Any]:
    """What a result's environment says of a workload."""
    return {
        "version": plan.version,
        "cpus": plan.cpus,
        "memory_kb": plan.memory // 1024,
        "command": list(plan.job.argv),
    }
