# SPDX-License-Identifier: GPL-2.0-only
"""Figures from the kernel's counters before and after a command.

Every figure is a difference between the two. The frames are kept, so that figures can
be computed again.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from quell import procfs
from quell.frames import Frames, FramesError

Number = int | float
T = TypeVar("T")


@dataclass(frozen=True)
class Metric:
    """A figure of every run: its name in results, title in tables, unit. Less is better.

    ``carries_over``: emulation (TCG) gives the same value as hardware.
    """

    name: str
    title: str
    unit: str = ""
    carries_over: bool = True


METRICS = (
    Metric("shootdown_ipis", "shootdown IPIs"), Metric("flush_requests", "flush requests"),
    Metric("minor_faults", "minor faults"), Metric("major_faults", "major faults"),
    Metric("pages_scanned", "pages scanned"), Metric("pages_reclaimed", "pages reclaimed"),
    Metric("elapsed_s", "elapsed", "s", False), Metric("user_s", "user", "s", False),
    Metric("system_s", "system", "s", False), Metric("peak_memory_kb", "peak memory", "kB"),
)  # fmt: skip
# Events: an idle guest has a few of each.
EVENTS = frozenset(metric.name for metric in METRICS if not metric.unit)
# Figures that differ by less count as equal: the start of a process causes a few events, and Linux
# charges a cgroup for 64 pages at a time on each CPU (two CPUs' charges are 512 kB).
LEAST = {**dict.fromkeys(EVENTS, 16), "peak_memory_kb": 512}
# Further figures that every run has; they stand among a result's extras.
EXTRAS = (
    Metric("kswapd_s", "kswapd", "s", False),
    Metric("kswapd_us_per_page", "kswapd per page it reclaimed", "us", False),
    Metric("shootdown_ipis_per_s", "shootdown IPIs per s", "1/s", False),
    Metric("pages_demoted", "pages demoted"), Metric("pages_promoted", "pages promoted"),
    Metric("file_pages_reclaimed", "pages of files reclaimed"),
    Metric("pages_swapped_out", "pages swapped out"), Metric("pages_refaulted", "anonymous pages refaulted"),
    Metric("flushes_per_page_out", "flush requests per page swapped out"),
    Metric("instructions_per_page_out", "guest instructions per page swapped out"),
)  # fmt: skip
# Counted by the processor: in guests under KVM, and on this machine.
HARDWARE = (
    Metric("dtlb_load_misses", "dTLB load misses"), Metric("dtlb_store_misses", "dTLB store misses"),
    Metric("itlb_misses", "iTLB misses"), Metric("cycles", "cycles"), Metric("context_switches", "context switches"),
)  # fmt: skip
INSTRUCTIONS = Metric("guest_instructions", "guest instructions")
KNOWN = {m.name: m for m in (*METRICS, *EXTRAS, *HARDWARE, INSTRUCTIONS)}


@dataclass(frozen=True)
class Figure:
    """A figure that a program printed: ``figure NAME VALUE UNIT``."""

    value: float
    unit: str
    higher_is_better: bool


_EXTRA_COUNTERS = re.compile(
    r"(luf_|rmap_batch_|writeout_batch_|early_ack_|gather_range_|folio_order_|tlb_|nr_tlb_|allocstall_|(pgscan|pgsteal)_direct$)"
)
_TAKEN = KNOWN.keys() - {m.name for m in HARDWARE}
_FIGURE = re.compile(r"^figure(\+?) ([A-Za-z0-9_.-]+) (\S+)(?: (\S+))?\s*$", re.MULTILINE)


def parse_figures(stdout: str) -> dict[str, Figure]:
    """The ``figure`` lines in a program's output.

    FramesError for a value that is no number below 1e100, and for the name of a metric.
    """
    figures: dict[str, Figure] = {}
    for plus, name, value, unit in _FIGURE.findall(stdout):
        if name in _TAKEN or _EXTRA_COUNTERS.match(name):
            raise FramesError(f"the program's figure {name} has the name of one that every run has")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not abs(number) < 1e100:
            raise FramesError(f"the program's figure {name} is '{value}', no number of a sensible size")
        figures[name] = Figure(number, unit, plus == "+")
    return figures


_SAME = re.compile(r"^same ([A-Za-z0-9_.-]+) (.*?)\s*$", re.MULTILINE)


def parse_same(stdout: str) -> dict[str, str]:
    """The ``same NAME TEXT`` lines in a program's output: equal in every run."""
    return dict(_SAME.findall(stdout))


@dataclass(frozen=True)
class Sample:
    """The figures of one run: METRICS, further counters, and the program's own.

    ``same``: the program's ``same`` lines.
    """

    metrics: dict[str, Number]
    extras: dict[str, Number] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    exit_code: int = 0
    same: dict[str, str] = field(default_factory=dict)


def sample(frames: Frames, stdout: str = "", *, deterministic: bool = False, lenient: bool = False) -> Sample:
    """All figures of one run.

    A missing counter is a FramesError; with ``lenient`` its figure is left out.
    """
    def both(name: str, read: Callable[[str], T]) -> tuple[T, T]:
        try:
            return read(frames.text(f"before/{name}")), read(frames.text(f"after/{name}"))
        except ValueError as error:
            raise FramesError(f"the guest's {name} is damaged: {error}") from error

    before, after = both("vmstat", procfs.vmstat)
    result = frames.values("result")

    def delta(*names: str) -> int:
        for name in names:
            if name not in before or name not in after:
                hint = " (CONFIG_DEBUG_TLBFLUSH)" if name.startswith("nr_tlb") else ""
                raise FramesError(f"/proc/vmstat has no {name}{hint}")
        return sum(after[name] - before[name] for name in names)

    def number(name: str) -> int:
        if not result.get(name, "").isdigit():
            raise FramesError(f"the guest did not report {name}")
        return int(result[name])

    def of_section(name: str, read: Callable[[str], int]) -> int:
        first, last = both(name, read)
        return last - first

    sources: dict[str, Callable[[], Number]] = {
        "shootdown_ipis": lambda: of_section("interrupts", lambda text: sum(procfs.interrupts(text, "TLB").values())),
        "flush_requests": lambda: delta("nr_tlb_remote_flush"),
        "minor_faults": lambda: number("minflt"),
        "major_faults": lambda: number("majflt"),
        # Unlike pgscan_kswapd and its like, these also count reclaim at a memcg's limit.
        "pages_scanned": lambda: delta("pgscan_anon", "pgscan_file"),
        "pages_reclaimed": lambda: delta("pgsteal_anon", "pgsteal_file"),
        "elapsed_s": lambda: number("elapsed_ns") / 1e9,
        "user_s": lambda: number("user_us") / 1e6,
        "system_s": lambda: number("system_us") / 1e6,
        "peak_memory_kb": lambda: number("memory_peak") // 1024,
    }
    metrics: dict[str, Number] = {}
    for name, read in sources.items():
        try:
            metrics[name] = read()
        except FramesError:
            if not lenient:
                raise
    if deterministic:
        # At shift=0 the guest's clock advances by 1 ns for each instruction.
        metrics["guest_instructions"] = number("elapsed_ns")
    kswapd_s = of_section("kswapd", procfs.ticks) / int(frames.values("guest").get("hz", "100"))
    extras: dict[str, Number] = {"kswapd_s": kswapd_s, "file_pages_reclaimed": delta("pgsteal_file")}
    if stolen := delta("pgsteal_kswapd"):
        extras["kswapd_us_per_page"] = round(kswapd_s * 1e6 / stolen, 3)
    if metrics.get("elapsed_s") and "shootdown_ipis" in metrics:
        extras["shootdown_ipis_per_s"] = round(metrics["shootdown_ipis"] / metrics["elapsed_s"], 3)
    # Pages moved to a slower memory tier by reclaim, and back by NUMA balancing. A kernel may lack both.
    for figure, prefix in ("pages_demoted", "pgdemote_"), ("pages_promoted", "pgpromote_success"):
        if moved := [name for name in after if name.startswith(prefix)]:
            extras[figure] = delta(*moved)
    if out := sum(after.get(name, 0) - before.get(name, 0) for name in ("pswpout", "zswpout")):
        extras["pages_swapped_out"] = out
        extras["pages_refaulted"] = delta("workingset_refault_anon")
        if "flush_requests" in metrics:
            extras["flushes_per_page_out"] = round(metrics["flush_requests"] / out, 5)
        if "guest_instructions" in metrics:
            extras["instructions_per_page_out"] = round(metrics["guest_instructions"] / out, 1)
    extras |= {name: after[name] - before.get(name, 0) for name in after if _EXTRA_COUNTERS.match(name)}
    status, code, _ = frames.status
    code += 128 * (status != "exited")
    return Sample(metrics, extras, parse_figures(stdout), code, parse_same(stdout))
