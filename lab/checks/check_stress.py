# SPDX-License-Identifier: GPL-2.0-only
"""Run stress-ng's memory stressors on stock, on Quell and on the debug kernel.

Each runs alone, then all together, with --verify, in a VM with two nodes and swap. A failure or
kernel complaint on Quell counts unless stock has it too. On the debug kernel lockdep and the
ledger check. Throughput must not fall below stock's beyond the spread.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from checks import scenario, steps
from checks.cases import Case, Results
from quell import build, machine, prereq, source, ui
from quell.frames import DATA_DIR
from quell.paths import Cache

COMPARED = ("stock", "quell")
DEBUG = "debug"
STRESSORS = scenario.table("stress.toml", dict[str, str])
TOGETHER = "all together"
SHORT_S, LONG_S = 3, 10
LONG_ROUNDS = 3
# Workers of a stressor that runs alone.
_WORKERS = 2
# Seconds that a run may take beyond its time, to start and to clean up.
_MARGIN_S = 90
_NODE = 384 * machine.MIB
_SWAP_KB = 65536
_SETUP = f"mkswap /dev/ram0 >/dev/null && swapon /dev/ram0; cd {DATA_DIR}"
# All of Quell's runs must be below all of stock's by more than this share to be a failure. Under
# emulation a guest's CPU time differs from a real CPU's, and includes other work of the host.
TOLERANCE = {"kvm": 0.10, "tcg": 0.25}
# With fewer operations a rate is noise.
_LEAST_OPS = 10


def step_of(name: str, names: Sequence[str], seconds: int) -> steps.Step:
    """A step that runs ``names`` at once, for some seconds."""
    workers = _WORKERS if len(names) == 1 else 1
    words = " ".join(f"--{each} {workers} {STRESSORS[each]}" for each in names)
    # Without the resources that it needs stress-ng's exit code is 3.
    command = f"stress-ng {words} --timeout {seconds} --verify --metrics || exit $(($? == 3 ? 4 : $?))"
    return steps.Step(name, command, seconds + _MARGIN_S)


# Name, operations, seconds (real, user, system), operations a second of real time, and of CPU time.
_METRIC = re.compile(r"^stress-ng: \w+: *\[\d+\] ([\w-]+) +(\d+)(?: +[\d.]+){3} +([\d.]+) +([\d.]+)(?: |$)", re.M)
# Its message if it skipped all stressors; the exit code varies.
_NOTHING = "No stress workers invoked"
# The madvise stressor poisons its own pages if the kernel can, and sometimes dies of one.
_POISONED = re.compile(r"Memory failure: .*: Sending SIGBUS to stress-ng")
_FAILED = re.compile(r"stress-ng: (?:fail|error): *\[\d+\] (.*)")


@dataclass(frozen=True)
class Run:
    """One run of a step on a kernel: bogus operations per second of each stressor, and its errors."""

    status: str
    rates: Mapping[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read_run(said: steps.Said, accel: str) -> Run:
    """Read the output of a step of ``step_of``.

    Rates are per second of CPU time in an emulated guest ("tcg"), else of real time; stressors with
    fewer than _LEAST_OPS operations have none.
    """
    found = {name: rates for name, ops, *rates in _METRIC.findall(said.text) if int(ops) >= _LEAST_OPS}
    # A stressor whose CPU time is not counted has a rate of 0.
    rates = {name: rate for name, both in found.items() if (rate := float(both[accel == "tcg"]))}
    poisoned = said.status == "fail" and _POISONED.search(said.log)
    status = "skip" if poisoned or _NOTHING in said.text else said.status
    problems = steps.complaints(said.log)
    if status not in ("pass", "skip"):
        why = _FAILED.search(said.text)
        problems.insert(0, f"{status}: {why[1] if why else 'it does not say why'}")
    return Run(status, rates, tuple(problems))


Runs = dict[str, list[Run]]


def _kind(problem: str) -> str:
    """A problem without the numbers, which differ between runs."""
    return re.sub(r"0x[0-9a-f]+|\d+", "N", problem)


def _rates(runs: Sequence[Run], others: Sequence[Run]) -> list[float]:
    """For each run the geometric mean of the stressors that have a rate in all runs of both kernels."""
    good, compared = ([run.rates for run in group if run.rates and run.status == "pass"] for group in (runs, others))
    names = [name for name in STRESSORS if all(name in rates for rates in (*good, *compared))]
    return [statistics.geometric_mean(rates[name] for name in names) for rates in good if names]


def compare_rates(stock: Sequence[float], quell: Sequence[float], tolerance: float) -> tuple[bool, str]:
    """False if Quell is slower, and the change in words.

    Quell is slower if there are enough runs, and its best is below stock's worst by more
    than ``tolerance`` (a share of stock's).
    """
    if not stock or not quell:
        return True, "-"
    change = statistics.median(quell) / statistics.median(stock) - 1
    if len(stock) < LONG_ROUNDS or len(quell) < LONG_ROUNDS:
        return True, f"{change:+.0%}, too few runs to tell"
    if min(quell) <= max(stock) and max(quell) >= min(stock):
        return True, f"{change:+.0%}, in the spread"
    if max(quell) < min(stock) * (1 - tolerance):
        return False, f"{change:+.0%}, SLOWER"
    return True, f"{change:+.0%}, beyond the spread"


def judge(name: str, runs: Runs, tolerance: float) -> Case:
    """The case of a stressor."""
    stock, quell, debug = (runs.get(kernel, []) for kernel in (*COMPARED, DEBUG))
    fast, change = compare_rates(_rates(stock, quell), _rates(quell, stock), tolerance)
    known = {_kind(text) for run in stock for text in run.problems}
    found = [("quell", text) for run in quell for text in run.problems]
    found += [(DEBUG, text) for run in debug for text in run.problems]
    wrong = [f"on {kernel}: {text}" for kernel, text in dict.fromkeys(found) if _kind(text) not in known]
    if not fast:
        wrong.append(f"throughput {change}")
    status, why = "passed", ""
    if wrong:
        status, why = "failed", "\n".join(wrong)
    elif any(runs and all(run.status == "skip" for run in runs) for runs in (stock, quell, debug)):
        status, why = "skipped", "stress-ng skipped it"
    elif found:
        status, why = "skipped", f"stock fails too: {next(iter(known))}"
    seen = ", ".join(dict.fromkeys(run.status for run in debug)) or "-"
    return Case(name, status, why, said=f"{name}: throughput with Quell {change}; debug kernel: {seen}")


def test_stressors(results: Results, origin: source.Source, cache: Cache, disk: Path, full: bool) -> None:
    """Run each stressor alone, and all at once.

    They run on both kernels in turn, three times in the long form; on the debug kernel once, last.
    """
    prereq.ensure([*prereq.VM, *prereq.STRESS])
    seconds, rounds = (LONG_S, LONG_ROUNDS) if full else (SHORT_S, 1)
    kernels = build.build_kernels(origin, (*COMPARED, DEBUG), cache)
    accel = machine.choose_accelerator("auto", kernels[DEBUG].image, cache).name
    todo = [step_of(name, [name], seconds) for name in STRESSORS] + [step_of(TOGETHER, list(STRESSORS), seconds)]
    found: dict[str, Runs] = {step.name: {} for step in todo}
    guest = machine.Machine(memory=2 * _NODE, nodes=(_NODE,) * 2, append=(f"brd.rd_size={_SWAP_KB}",))
    for number, kernel in enumerate([*COMPARED * rounds, DEBUG]):
        ui.note(f"the stressors on {kernel}")
        boot = partial(steps.boot, kernel, kernels[kernel].image, guest, cache=cache, setup=_SETUP, data=disk)
        for name, said in steps.run_all(todo, boot).items():
            steps.keep(cache.logs / "stress", f"{name}.{kernel}-{origin.linux}.{number}", said.whole())
            found[name].setdefault(kernel, []).append(read_run(said, accel))
    results.add(*(judge(name, runs, TOLERANCE[accel]) for name, runs in found.items()))
