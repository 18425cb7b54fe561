# SPDX-License-Identifier: GPL-2.0-only
"""Run stress-ng's memory stressors on stock, on Quell and on the debug kernel.

Each runs alone, then all together, with --verify, in a VM with two nodes and swap. A failure or
kernel complaint on Quell counts unless stock has it too. On the debug kernel lockdep and the
ledger check. Throughput must not fall below stock's beyond the spread.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from checks import scenario, steps
from checks.cases import Case, Results
from quell import build, machine, prereq, proc, source, ui
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
# stress-ng's exit code if it lacks resources.
_NO_RESOURCE = 3


def step_of(name: str, names: Sequence[str], seconds: int) -> steps.Step:
    """A step that runs ``names`` at once; the metrics follow stress-ng's output."""
    workers = _WORKERS if len(names) == 1 else 1
    words = " ".join(f"--{each} {workers} {STRESSORS[each]}" for each in names)
    command = (
        f"stress-ng {words} --timeout {seconds} --verify --metrics --yaml /run/work/metrics; code=$?;"
        f" cat /run/work/metrics; [ $code = {_NO_RESOURCE} ] && code=4; exit $code"
    )
    return steps.Step(name, command, seconds + _MARGIN_S, "rm -f /run/work/metrics")


_METRIC = re.compile(r"^ +- stressor: (\S+)\n((?: +[\w-]+: .*\n)*)", re.M)
_RATE = {"kvm": "bogo-ops-per-second-real-time", "tcg": "bogo-ops-per-second-usr-sys-time"}
_SKIPPED = re.compile(r"stress-ng: \w+ *: *\[\d+\] (.*(?:skipp|not implemented|not supported|disabled ').*)", re.I)
# Its message if it skipped all stressors; the exit code varies.
_NOTHING = "No stress workers invoked"
# The madvise stressor poisons its own pages if the kernel can, and sometimes dies of one.
_POISONED = re.compile(r"Memory failure: .*: Sending SIGBUS to stress-ng")
_FAILED = re.compile(r"stress-ng: (?:fail|error): *\[\d+\] (.*)")


def read_rates(text: str, accel: str) -> dict[str, float]:
    """Bogus operations per second by stressor, from stress-ng's YAML.

    The rate is per second of CPU time in an emulated guest ("tcg"), else of real time. A
    stressor with fewer than _LEAST_OPS operations is left out.
    """
    rates = {}
    for name, lines in _METRIC.findall(text):
        values = dict(line.strip().split(": ", 1) for line in lines.splitlines())
        rate = float(values.get(_RATE[accel], 0))
        if rate > 0 and int(values.get("bogo-ops", 0)) >= _LEAST_OPS:
            rates[name] = rate
    return rates


@dataclass(frozen=True)
class Run:
    """One run of a stressor on a kernel: bogus operations per second (0: none), and its errors."""

    status: str
    rate: float
    problems: tuple[str, ...]
    why: str = ""


def read_run(said: steps.Said, accel: str) -> Run:
    """Read the output of a step of ``step_of``; several stressors have a geometric mean as rate."""
    rates = read_rates(said.text, accel)
    rate = statistics.geometric_mean(rates.values()) if rates else 0.0
    skipped = _SKIPPED.search(said.text)
    status = "skip" if _NOTHING in said.text else said.status
    why = skipped[1] if skipped else ""
    if status == "fail" and _POISONED.search(said.log):
        status, why = "skip", "it died of memory that it had poisoned itself (MADV_HWPOISON)"
    problems = [] if status in ("pass", "skip") else [f"{status}: {_last(said.text)}"]
    return Run(status, rate, (*problems, *steps.complaints(said.log)), why)


def _last(text: str) -> str:
    """The line with the reason of a failure."""
    found = _FAILED.search(text)
    return found[1] if found else (text.strip().splitlines() or ["it said nothing"])[-1]


Runs = dict[str, list[Run]]


def _kinds(runs: Sequence[Run]) -> set[str]:
    """Problems without the numbers, which differ between runs."""
    return {re.sub(r"0x[0-9a-f]+|\d+", "N", text) for run in runs for text in run.problems}


def _rates(runs: Sequence[Run]) -> list[float]:
    return [run.rate for run in runs if run.rate and run.status == "pass"]


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
    fast, change = compare_rates(_rates(stock), _rates(quell), tolerance)
    known = _kinds(stock)
    wrong = [
        f"on {kernel}: {text}"
        for kernel in (COMPARED[1], DEBUG)
        for text in dict.fromkeys(text for run in runs.get(kernel, []) for text in run.problems)
        if re.sub(r"0x[0-9a-f]+|\d+", "N", text) not in known
    ]
    if not fast:
        wrong.append(f"throughput {change}")
    skipped = [run for run in (*stock, *quell, *debug) if run.status == "skip"]
    status, why = "passed", ""
    if wrong:
        status, why = "failed", "\n".join(wrong)
    elif skipped:
        status, why = "skipped", skipped[0].why or "stress-ng skipped it"
    elif any(run.problems for run in quell + debug):
        status, why = "skipped", f"stock fails too: {next(iter(known))}"
    figures = [f"{statistics.median(r):.1f}" if (r := _rates(x)) else "-" for x in (stock, quell)]
    seen = ", ".join(dict.fromkeys(run.status for run in debug)) or "-"
    said = f"{name}: stock {figures[0]}, Quell {figures[1]} operations per second, {change}; debug kernel: {seen}"
    return Case(name, status, why, said=said)


def _boot(bench: tuple[Path, Cache], kernel: str, image: Path, todo: Sequence[steps.Step]) -> dict[str, steps.Said]:
    disk, cache = bench
    guest = machine.Machine(memory=2 * _NODE, nodes=(_NODE,) * 2, append=(f"brd.rd_size={_SWAP_KB}", "no_timer_check"))
    return steps.boot(kernel, image, guest, todo, cache, setup=_SETUP, data=disk)


def test_stressors(results: Results, origin: source.Source, cache: Cache, disk: Path, full: bool) -> None:
    """Run each stressor alone, and all at once.

    They run on both kernels in turn, three times in the long form; on the debug kernel once, last.
    """
    prereq.ensure([*prereq.VM, *prereq.STRESS])
    seconds, rounds = (LONG_S, LONG_ROUNDS) if full else (SHORT_S, 1)
    known = proc.run(["stress-ng", "--stressors"], timeout=30).stdout.split()
    names = [name for name in STRESSORS if name in known]
    for name in STRESSORS.keys() - names:
        results.skip(name, "stress-ng does not have it")
    kernels = build.build_kernels(origin, (*COMPARED, DEBUG), cache)
    accel = machine.choose_accelerator("auto", kernels[DEBUG].image, cache).name
    todo = [step_of(name, [name], seconds) for name in names]
    todo.append(step_of(TOGETHER, names, seconds))
    found: dict[str, Runs] = {step.name: {} for step in todo}
    for number, kernel in enumerate([*COMPARED * rounds, DEBUG]):
        ui.note(f"the stressors on {kernel}")
        outcomes = steps.run_all(todo, partial(_boot, (disk, cache), kernel, kernels[kernel].image))
        for name, said in outcomes.items():
            steps.keep(cache.logs / "stress", f"{name}.{kernel}-{origin.linux}.{number}", said.whole())
            found[name].setdefault(kernel, []).append(read_run(said, accel))
    results.add(*(judge(name, runs, TOLERANCE[accel]) for name, runs in found.items()))
