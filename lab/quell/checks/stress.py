# SPDX-License-Identifier: GPL-2.0-only
"""Run stress-ng's memory stressors on stock, on Quell and on the debug kernel.

Each runs alone, then all together, with --verify, in a VM with two nodes and swap. A failure or
kernel complaint on Quell counts unless stock has it too. On the debug kernel lockdep and the
ledger check. Throughput must not fall below stock's beyond the spread.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quell import build, disks, machine, prereq, proc, source, ui
from quell.checks import Case, CheckResult, ktap, steps
from quell.frames import DATA_DIR
from quell.paths import Cache

COMPARED = ("stock", "quell")
DEBUG = "debug"
# Stressors, with options if the defaults do not suit the guest.
STRESSORS = {
    "tlb-shootdown": "",
    "fault": "",
    "madvise": "",
    "mmap": "--mmap-bytes 2M",
    "mmapfork": "",
    "mremap": "--mremap-bytes 8M",
    "munmap": "",
    "pagemove": "--pagemove-bytes 4M",
    "rmap": "",
    "userfaultfd": "--userfaultfd-bytes 8M",
    "vm": "--vm-bytes 64M",
    "vm-addr": "",
    "numa": "",
    "memfd": "--memfd-bytes 32M",
    "fork": "",
    # stress-ng skips it without that option, because its pipes take all memory.
    "oom-pipe": "--pathological",
}
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
_RATE = {
    "kvm": "bogo-ops-per-second-real-time",
    "tcg": "bogo-ops-per-second-usr-sys-time",
}
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


def judge(name: str, runs: Runs, tolerance: float) -> tuple[Case, str]:
    """The case of a stressor, and its row of the table."""
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
    everyone = [*stock, *quell, *debug]
    skipped = [run for run in everyone if run.status == "skip"]
    bad = any(run.problems for run in quell + debug)
    if wrong:
        case = Case(name, "failed", "\n".join(wrong))
    elif skipped:
        case = Case(name, "skipped", skipped[0].why or "stress-ng skipped it")
    elif bad:
        case = Case(name, "skipped", f"stock fails too: {next(iter(known))}")
    else:
        case = Case(name)
    figures = [f"{statistics.median(r):.1f}" if (r := _rates(x)) else "-" for x in (stock, quell)]
    seen = ", ".join(dict.fromkeys(run.status for run in debug)) or "-"
    verdict = "ok" if case.status == "passed" else f"{case.status}: {case.why.splitlines()[0]}"
    return case, f"{name:<14} {figures[0]:>12} {figures[1]:>12} {change:<28} {seen:<8} {verdict}"


def report(found: dict[str, Runs], accel: str) -> CheckResult:
    """The table of all stressors, with one case each."""
    unit = "CPU second" if accel == "tcg" else "second"
    rows = [f"{'stressor':<14} {'stock':>12} {'Quell':>12} {'change':<28} {'debug':<8}"]
    judged = [judge(name, runs, TOLERANCE[accel]) for name, runs in found.items()]
    rows += [row for _, row in judged]
    rows += [f"not ok: {c.name}: {line}" for c, _ in judged if c.status == "failed" for line in c.why.splitlines()]
    rows.append(
        f"bogus operations per {unit}; a stressor is slower if it is below stock by more than"
        f" {TOLERANCE[accel]:.0%} in all runs"
    )
    return CheckResult.of([case for case, _ in judged], "\n".join(rows))


def _boot(
    bench: tuple[Path, Cache], kernel: str, image: Path, todo: Sequence[steps.Step]
) -> dict[str, steps.Said]:
    disk, cache = bench
    guest = machine.Machine(
        memory=2 * _NODE, nodes=(_NODE,) * 2, append=(f"brd.rd_size={_SWAP_KB}", "no_timer_check")
    )
    return steps.boot(kernel, image, guest, todo, cache, setup=_SETUP, data=disk)


def run_stressors(
    cache: Cache, names: Sequence[str], seconds: int, rounds: int, kernels: Sequence[str]
) -> CheckResult:
    """Run ``names``, each alone and all at once, for ``seconds``.

    They run on ``kernels`` in turn, ``rounds`` times; on the debug kernel once, last.
    """
    built = build.build_kernels(source.debian_source(cache), tuple(kernels), cache)
    accel = machine.choose_accelerator("auto", built[kernels[0]].image, cache).name
    logs = cache.logs / "stress"
    todo = [step_of(name, [name], seconds) for name in names]
    todo.append(step_of(TOGETHER, names, seconds))
    found: dict[str, Runs] = {step.name: {} for step in todo}
    turns = [kernel for _ in range(rounds) for kernel in kernels if kernel != DEBUG]
    turns += [kernel for kernel in kernels if kernel == DEBUG]
    with (
        tempfile.TemporaryDirectory(prefix="stress-", dir=cache.folder("run")) as temp,
        ui.progress("stress", len(turns)) as bar,
    ):
        root = Path(temp) / "root"
        root.mkdir()
        disk = Path(temp) / "disk.ext4"
        disks.make_ext4(disk, root)
        for number, kernel in enumerate(turns):
            image = built[kernel].image
            outcomes = steps.run_all(todo, partial(_boot, (disk, cache), kernel, image))
            for name, said in outcomes.items():
                steps.keep(logs, f"{name}.{kernel}.{number}", said.whole())
                found[name].setdefault(kernel, []).append(read_run(said, accel))
            bar.advance()
    result = report(found, accel)
    (logs / "summary.ktap").write_text(ktap(result.cases))
    return CheckResult.of(result.cases, f"{result.details}\noutput of stress-ng: {logs}")


def run(cache: Cache, seconds: int = SHORT_S, rounds: int = 1) -> CheckResult:
    """Run each stressor for ``seconds``, ``rounds`` times."""
    prereq.ensure([*prereq.VM, *prereq.STRESS])
    known = proc.run(["stress-ng", "--stressors"], timeout=30).stdout.split()
    names = [name for name in STRESSORS if name in known]
    lacking = [
        Case(name, "skipped", "stress-ng does not have it") for name in STRESSORS if name not in known
    ]
    result = run_stressors(cache, names, seconds, rounds, (*COMPARED, DEBUG))
    return CheckResult.of([*result.cases, *lacking], result.details)


def run_full(cache: Cache) -> CheckResult:
    """The same for LONG_S, LONG_ROUNDS times, to compare the kernels' speed."""
    return run(cache, LONG_S, LONG_ROUNDS)
