# SPDX-License-Identifier: GPL-2.0-only
"""The engine of compare, figures and ladder.

From the command to QEMU: ``commands/compare.py`` makes a Request, ``compare()`` prepares
the place and the plans, ``measure()`` alternates between the sides, ``Guests.run()`` makes
one run in a fresh guest, ``machine.boot()`` starts QEMU.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from quell import build, counters, disks, judge, machine, presets, proc, published, qemu, results, source, stats
from quell import toolchain, ui, workload
from quell.errors import QuellError, UsageError, failing
from quell.paths import Cache
from quell.sides import Side

# The name of the user's own command among the comparisons, and its guest by default.
OWN_COMMAND = "command"
OWN_MEMORY, OWN_CPUS = 1 << 30, 2
# Variables about the host, and those of the launcher: guests do not get them.
_NOT_PASSED = {
    "PYTHONPATH", "VIRTUAL_ENV", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", "TMUX", "STY",
    "DBUS_SESSION_BUS_ADDRESS", "QUELL_CACHE",
}  # fmt: skip


@dataclass(frozen=True)
class Request(presets.Preset):
    """A preset's comparison, and its place; None and empty mean the workload's own value.

    ``timeout`` (own command only) in seconds. ``command`` is the user's own, instead of ``workloads``
    (none named: the standard set). ``data`` and ``attached`` are disks for its guests. With ``here``
    it runs on this machine.
    """

    command: Sequence[str] | None = None
    accel: str = "auto"
    kernel: str = source.DEFAULT
    timeout: float = 600
    data: Sequence[disks.Data] = ()
    attached: Sequence[disks.Disk] = ()
    here: bool = False
    keep_caches: bool = False

    def __post_init__(self) -> None:
        own = self.command is not None
        option = "--here" if self.here else "--data" if self.data else "--disk"
        other = self.kernel != source.DEFAULT or self.accel != "auto"
        guest = self.data or self.attached or self.swap or self.memory or self.cpus or self.deterministic or other
        there = machine.host_memory()
        asked = self.memory if isinstance(self.memory, int) else 0
        for wrong, why in (
            (asked > there, f"a guest with {machine.format_memory(asked)} of memory does not fit into this machine, which "
             f"has {there / (1 << 30):.1f}G"),
            (self.runs < 1, f"--runs should be 1 or more, not {self.runs}"),
            (not 0 < self.timeout < 1e9, f"--timeout should be more than 0 seconds, not {self.timeout:g}"),
            (self.deterministic and self.accel == "kvm", "--deterministic needs emulation; leave out --accel kvm"),
            (own and self.workloads, "give either --workload or a command after --, not both"),
            (not own and (self.data or self.attached or self.here),
             f"{option} is for your own command: give it after --"),
            (self.keep_caches and not self.here, "--keep-caches is for --here: guests are fresh"),
            (self.here and guest, "--here measures this machine without changes: no --data, --disk, --swap, --memory, "
             "--cpus, --accel, --kernel or --deterministic"),
        ):  # fmt: skip
            if wrong:
                raise UsageError(why)
        # Errors of these come before a build.
        for cpus in self.cpus or (OWN_CPUS,):
            machine.Machine(memory=self.memory if isinstance(self.memory, int) else OWN_MEMORY, cpus=cpus)


def request(preset: presets.Preset, **changes: Any) -> Request:
    """The request of a preset, with other values for some of its fields."""
    return Request(**{**vars(preset), **changes})


@dataclass(frozen=True)
class Plan:
    """One command, in guests of one kind.

    ``name`` is the plan's among the comparisons, ``workload`` that of its description.
    ``memory`` in bytes, ``timeout`` in seconds. Another exit code than 0 is an error, except for
    the user's ``own`` command. ``options`` are those of its disks and swap.
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
    workload: str = ""
    options: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """The plan's part of a result."""
        return {
            "workload": self.workload or self.name, "summary": self.summary, "version": self.version, "cpus": self.cpus,
            "memory_kb": self.memory // 1024, "command": list(self.job.argv), "options": list(self.options),
        }  # fmt: skip


class Place(Protocol):
    """The place of runs: guests, this machine, or a test's fake."""

    def run(self, side: Side, plan: Plan, rundir: Path) -> counters.Sample:
        """One run of ``plan`` on ``side``; its files are kept in ``rundir``."""

    def facts(self, request: Request) -> tuple[dict[str, Any], dict[str, dict[str, str]], list[str]]:
        """For the result: the environment, each side's kernel, and its limits, a sentence each."""


@dataclass(frozen=True)
class Guests:
    """Fresh guests of the lab: ``kernels`` by side."""

    cache: Cache
    kernels: Mapping[str, build.Kernel]
    accelerator: machine.Accelerator
    deterministic: bool = False

    def run(self, side: Side, plan: Plan, rundir: Path) -> counters.Sample:
        """See ``Place``. Raises the errors of machine.boot and counters.sample."""
        guest = machine.Machine(
            accel=self.accelerator.name, memory=plan.memory, cpus=plan.cpus, append=side.boot,
            deterministic=self.deterministic, nodes=plan.nodes,
        )  # fmt: skip
        image = self.kernels[side.name].image
        job = replace(plan.job, writes={**plan.job.writes, **side.settings})
        result = machine.boot(guest, image, job, rundir, cache=self.cache, timeout=plan.timeout)
        for line in result.warnings:
            ui.warn(f"{plan.name}, side {side.name}: {line.strip()}")
        assert result.frames is not None
        # The kernel passes unknown boot parameters to init.
        handed = result.frames.sections.get("unknown", b"").decode(errors="replace").split("\0")
        if unknown := [parameter for parameter in side.boot if parameter in handed]:
            raise UsageError(f"side {side.name}: its kernel does not know the parameter {unknown[0]}")
        if not plan.own and result.exit_code != 0:
            raise QuellError(
                f"it failed with exit code {result.exit_code}",
                detail=proc.tail(result.stderr, 10),
                log=rundir / "console.log",
            )
        return counters.sample(result.frames, result.stdout, deterministic=self.deterministic)

    def facts(self, request: Request) -> tuple[dict[str, Any], dict[str, dict[str, str]], list[str]]:
        """See ``Place``."""
        environment = results.environment(
            source=", ".join(dict.fromkeys(one.source_version for one in self.kernels.values())),
            accelerator={"name": self.accelerator.name, "reason": self.accelerator.reason},
            deterministic=self.deterministic, runs=request.runs,
            qemu=qemu.find(self.cache).version, compiler=toolchain.version("gcc"),
        )  # fmt: skip
        kept = ("release", "config_hash", "key")
        kernels = {name: {fact: getattr(one, fact) for fact in kept} for name, one in self.kernels.items()}
        emulated = "TLB misses were not counted: emulation (TCG) has no counters for them, KVM may."
        return environment, kernels, [emulated] * (self.accelerator.name == "tcg")


def check_command(command: Sequence[str]) -> None:
    """UsageError when there is no such command. Guests have this machine's root file system."""
    if shutil.which(command[0]) is None:
        raise UsageError(f"the command {command[0]} does not exist or cannot be run")


def own_job(
    command: Sequence[str],
    cache: Cache,
    data: Sequence[disks.Data] = (),
    attached: Sequence[disks.Disk] = (),
    swap: str = "",
) -> machine.Job:
    """The user's command as a job: in the current directory, with our environment, the disks and swap."""
    for number, disk in enumerate(attached):
        ui.note(f"{disk.image} is /dev/vd{chr(ord('a') + number)} in the guest")
    env = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED}
    every = (*attached, *(disks.image_of(one, cache) for one in data))
    usual = {"PATH": machine.DEFAULT_PATH, "HOME": "/root", "TERM": "dumb"}
    return machine.Job(command, env={**usual, **env}, cwd=os.getcwd(), disks=every, swap=swap)


def _plans(request: Request, items: Sequence[workload.Workload], values: Mapping[str, str], cache: Cache) -> list[Plan]:
    plans = []
    swap = ("--swap", request.swap) if request.swap else ()
    if request.command is not None:
        memory = request.memory if isinstance(request.memory, int) else OWN_MEMORY
        every = request.cpus or (OWN_CPUS,)
        options = [word for disk in request.attached for word in ("--disk", str(disk.image))]
        options += [word for one in request.data for word in ("--data", f"{one.path}:{one.filesystem}")]
        options += [*swap, *["--keep-caches"] * request.keep_caches]
        if request.here:
            job, memory, every = machine.Job(request.command), machine.host_memory(), (len(os.sched_getaffinity(0)),)
        else:
            job = own_job(request.command, cache, request.data, request.attached, request.swap)
        plans += [
            Plan(
                OWN_COMMAND, job, memory, count, request.timeout, judge.OWN_MATTERS, own=True, workload=OWN_COMMAND,
                options=tuple(options),
            )
            for count in every
        ]  # fmt: skip
    for item in items:
        asked = request.memory.get(item.name) if isinstance(request.memory, Mapping) else request.memory
        memory = asked or item.memory
        for count in request.cpus or (item.cpus,):
            prepared = workload.prepare(item, memory, cache, {**values, "cpus": str(count)})
            plan = plan_for(prepared, memory, count, deterministic=request.deterministic, swap=request.swap)
            plans.append(replace(plan, options=swap))
    # Several numbers of CPUs: each needs a name of its own.
    return [replace(p, name=f"{p.name}-{p.cpus}cpus") if len(request.cpus) > 1 else p for p in plans]


def plan_for(
    prepared: workload.Prepared, memory: int, cpus: int, *, deterministic: bool = False, swap: str = ""
) -> Plan:
    """The plan for a prepared workload; ``swap`` instead of its own."""
    item = prepared.workload
    swap = swap or item.swap
    job = machine.Job(
        prepared.argv, data=prepared.data, ram=deterministic and prepared.data is not None,
        stage=prepared.programs, writes=item.writes, swap="" if swap == "own" else swap,
    )  # fmt: skip
    slow = workload.DETERMINISTIC_SLOWDOWN if deterministic else 1
    return Plan(
        item.name, job, memory, cpus, item.timeout_s * slow, item.matters, item.summary, item.version,
        nodes=item.nodes_for(memory), workload=item.name,
    )  # fmt: skip


def measure(
    plans: Sequence[Plan], sides: Sequence[Side], runs: int, place: Place, folder: Path
) -> list[dict[str, list[counters.Sample]]]:
    """Run every plan ``runs`` times on each side, by turns; the runs of each plan by side.

    Every other round goes through the sides backwards: no side is always first. The files of a
    run are kept in ``folder``/runs/PLAN/SIDE-N. The first failed run ends the measurement with
    its error: no row is ever missing.
    """
    done = []
    with ui.progress("measuring", total=len(plans) * runs * len(sides)) as progress:
        for plan in plans:
            samples: dict[str, list[counters.Sample]] = {side.name: [] for side in sides}
            for number in range(1, runs + 1):
                for side in sides if number % 2 else reversed(sides):
                    progress.update(description=f"{plan.name}: {side.name}, run {number} of {runs}")
                    rundir = folder / "runs" / plan.name / f"{side.name}-{number}"
                    rundir.mkdir(parents=True)
                    with failing(f"workload {plan.name}, side {side.name}"):
                        sample = place.run(side, plan, rundir)
                        if not plan.own:
                            _check_same(samples, side, sample, rundir)
                    kept = {"metrics": sample.metrics, "extras": sample.extras}
                    (rundir / "sample.json").write_text(json.dumps(kept) + "\n")
                    samples[side.name].append(sample)
                    progress.advance()
            done.append(samples)
    return done


def _check_same(
    samples: Mapping[str, Sequence[counters.Sample]], side: Side, run: counters.Sample, rundir: Path
) -> None:
    """QuellError unless ``run`` repeats the first run's ``same`` lines."""
    name, first = next(((name, made[0]) for name, made in samples.items() if made), (side.name, run))
    for key in sorted({*first.same, *run.same}):
        one, other = (sample.same.get(key, "nothing") for sample in (first, run))
        if one != other:
            raise QuellError(
                f"{key} should be the same in every run, but differs from run 1 on side {name}",
                detail=f"{name}: {one[:300]}\n{side.name}: {other[:300]}", log=rundir / "stdout",
            )  # fmt: skip


def compare(request: Request, cache: Cache) -> tuple[dict[str, Any], Path]:
    """Prepare, measure and keep a comparison: the result object, and its folder."""
    items = [] if request.command is not None else workload.select(request.workloads)
    # Errors of these come before downloads and builds.
    if request.command is not None:
        check_command(request.command)
    for item in items:
        if item.tool is not None:
            item.tool.own_program()
        if request.swap and item.swap == "own":
            raise UsageError(f"workload {item.name} brings its own swap: leave out --swap")
        if request.deterministic and item.nodes and item.data is not None:
            raise UsageError(
                f"workload {item.name} cannot be measured with the instruction counter: "
                "its data on a RAM disk would fill the guest's fast NUMA node"
            )
    rows = published.load() if request.published else []
    place: Place
    signals: AbstractContextManager[None] = nullcontext()
    if request.here:
        from quell import here

        place = machine_here = here.Here.prepare(request, cache)
        signals, plans = machine_here.noted(), _plans(request, [], {}, cache)
    else:
        systems = {one.filesystem for one in request.data} | {item.data.filesystem for item in items if item.data}
        # The file systems of attached disks are not known.
        ext4 = not request.attached and systems <= {"ext4"}
        origin, kernels = build.for_sides(request.kernel, cache, request.sides, ext4=ext4)
        accelerator = machine.Accelerator("tcg", "the instruction counter needs it")
        if not request.deterministic:
            accelerator = machine.choose_accelerator(request.accel, kernels[request.sides[0].name].image, cache)
        place = Guests(cache, kernels, accelerator, request.deterministic)
        base = next(iter(kernels.values()))
        values = {"kernel_source": str(origin.tree), "kernel_build": str(base.build_dir), "kernel_key": base.key}
        plans = _plans(request, items, values, cache)
        if request.published and accelerator.name == "kvm":
            # Under KVM the processor counts TLB misses; tlbmiss runs the command and reads them.
            tlbmiss = str(machine.guest_program("tlbmiss", cache))
            plans = [replace(p, job=replace(p.job, argv=(tlbmiss, *p.job.argv))) for p in plans]
    figures = min((len(plan.matters) for plan in plans), default=1)
    needed = stats.runs_needed(figures)
    if request.runs < needed and not request.deterministic:
        ui.warn(f"--runs {request.runs} is too few for verdicts on {figures} figures, {needed} would do")
    with results.new_folder(cache) as folder:
        with signals:
            samples = measure(plans, request.sides, request.runs, place, folder)
        environment, described, notes = place.facts(request)
        emulated = environment["accelerator"]["name"] == "tcg"
        result = {
            "schema": results.SCHEMA, "preset": request.name, "environment": environment, "notes": notes,
            "sides": [
                {**side.to_json(), "title": request.titles.get(side.name, side.name), **described[side.name]}
                for side in request.sides
            ],
            "comparisons": [
                judge.comparison(plan, runs, request.sides, emulated, request.shown.get(plan.workload, ()))
                for plan, runs in zip(plans, samples, strict=True)
            ],
        }  # fmt: skip
        result["published"] = published.compare(rows, result)
        results.save(folder, result)
    return result, folder
