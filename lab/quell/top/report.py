# SPDX-License-Identifier: GPL-2.0-only
"""Figures and the verdict from a snapshot, as one object.

Shares, order and the verdict are all of one quantity, ``counted``: interrupts where the kernel tells
each initiator's (Linux 6.4), else shootdowns. The interrupts of a thread are spread evenly over its
shootdowns, as csd_queue_cpu has no stack.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quell import procfs
from quell.top.causes import CAUSES, classify, clean
from quell.top.sample import Snapshot, Task, Timing

SCHEMA = "quell-top/1"

# Seconds that an interrupt is taken to cost where nothing was timed.
ASSUMED_S = 2e-6
# Below this share of CPU time there is no problem; below this share of ``counted`` no mechanism helps.
_NO_PROBLEM = 0.001
_NO_REMEDY = 0.1
# So few shootdowns say nothing.
_FEW = 20

_RECLAIM = frozenset(cause for cause in CAUSES if cause.startswith("reclaim-"))


@dataclass(frozen=True)
class Mechanism:
    """One of Quell's and the causes that it is for.

    ``pages`` is the counter in /proc/vmstat of the reclaimed pages that it handles. ``of_wait``: it
    shortens waits and leaves the interrupts.
    """

    name: str
    title: str
    causes: frozenset[str]
    does: str
    condition: str
    pages: str = ""
    of_wait: bool = False


MECHANISMS = (
    Mechanism(
        "luf",
        "lazy unmap flush",
        _RECLAIM | {"demotion", "compaction", "numa-migration", "migration-call", "migration-other"},
        "avoids most of these",
        "if the pages are clean and of files on ext4, xfs, btrfs, f2fs, erofs or squashfs",
        pages="pgsteal_file",
    ),
    Mechanism(
        "writeout_batch",
        "batched write-out",
        _RECLAIM,
        "avoids most of these",
        "if the pages are anonymous or shmem and are written to swap",
        pages="pgsteal_anon",
    ),
    Mechanism(
        "early_ack",
        "early acknowledgment",
        frozenset({"madvise-dontneed", "madvise-free", "madvise-other", "mprotect", "cow"}),
        "shortens the waits for these",
        "as far as no page table is freed",
        of_wait=True,
    ),
)


def switched_on() -> dict[str, bool] | None:
    """Quell's switches on this kernel; None on any other kernel."""
    found = Path("/sys/kernel/mm/quell").glob("*/enabled")
    return {path.parent.name: path.read_text().strip() == "1" for path in found} or None


class Names:
    """The process of each thread, read from /proc while the thread lives, and remembered."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.proc = proc
        self._known: dict[Task, Task] = {}

    def learn(self, snapshot: Snapshot) -> None:
        """Look up all new ones."""
        for task in {*(one.task for one in snapshot.flushes), *(snapshot.victims or ())}:
            self.process(task)

    def process(self, task: Task) -> Task:
        """Its process; the thread itself when that is not known."""
        if task not in self._known:
            pid = self.tgid(task.tid) or task.tid
            comm = task.comm if task.tid else "(idle)"
            if pid != task.tid:
                comm = procfs.read(self.proc / f"{pid}/comm").strip() or comm
            self._known[task] = Task(pid, comm)
        return self._known[task]

    def tgid(self, tid: int) -> int | None:
        """The PID of a thread's process; None if there is no such thread."""
        text = procfs.read(self.proc / f"{tid}/status")
        return int(text.partition("\nTgid:")[2].split()[0]) if text else None


@dataclass
class _Cell:
    """The shootdowns of one thread for one cause."""

    process: Task
    task: Task
    cause: str
    sent: float
    ranged: float
    interrupts: float


def _cells(snapshot: Snapshot, names: Names, process: Task | None) -> list[_Cell]:
    by_thread: Counter[int] = Counter()
    for flush, count in snapshot.flushes.items():
        by_thread[flush.task.tid] += count
    targets: Counter[int] = Counter()
    for task, count in (snapshot.targets or Counter()).items():
        targets[task.tid] += count
    cells = []
    for flush, count in snapshot.flushes.items():
        task, ranged = flush.task, count if flush.ranged else 0
        hits = targets[task.tid] * count / by_thread[task.tid]
        owner = process or names.process(task)
        cells.append(_Cell(owner, task, classify(flush.stack), count, ranged, hits))
    return cells


@dataclass(frozen=True)
class _Whole:
    """The whole of all shares; ``interrupts`` None on kernels that do not tell each initiator's."""

    seconds: float
    sent: float
    interrupts: float | None

    def figures(self, cells: list[_Cell]) -> dict[str, Any]:
        sent = sum(one.sent for one in cells)
        hits = None if self.interrupts is None else sum(one.interrupts for one in cells)
        return {
            "shootdowns": round(sent),
            "per_second": _rate(sent, self.seconds),
            "share": _share(sent, self.sent),
            "for_ranges": round(sum(one.ranged for one in cells)),
            "interrupts": None if hits is None else round(hits),
            "interrupts_per_second": _rate(hits, self.seconds),
            "interrupts_share": None if hits is None else _share(hits, self.interrupts),
            "cpus_per_shootdown": None if hits is None or not sent else round(hits / sent, 2),
        }

    def rows(
        self, cells: list[_Cell], key: Callable[[_Cell], Any]
    ) -> list[tuple[Any, list[_Cell], dict[str, Any]]]:
        """(key, its cells, their figures), most of ``counted`` first."""
        groups: dict[Any, list[_Cell]] = {}
        for cell in cells:
            groups.setdefault(key(cell), []).append(cell)
        rows = [(one, part, self.figures(part)) for one, part in groups.items()]
        return sorted(rows, key=lambda row: (-(row[2]["interrupts"] or 0), -row[2]["shootdowns"]))

    def causes(self, cells: list[_Cell]) -> dict[str, int]:
        """Shootdowns by cause."""
        return {cause: row["shootdowns"] for cause, _, row in self.rows(cells, lambda one: one.cause)}


def _rate(count: float | None, seconds: float) -> float | None:
    return None if count is None or not seconds else round(count / seconds, 1)


def _share(part: float, whole: float | None) -> float:
    return round(part / whole, 6) if whole else 0.0


def lost_time(snapshot: Snapshot, cpus: int) -> dict[str, Any]:
    """The share of the CPU time of ``cpus`` CPUs that the shootdowns took.

    Interrupts times the mean time in the handler, plus shootdowns times the mean wait of the initiator.
    Entry to and exit from the interrupt are missing, so this is a lower bound, unless nothing was timed
    and ASSUMED_S stands for the handler.
    """
    timing: Timing = snapshot.timing
    capacity = snapshot.seconds * cpus
    handler = timing.handler_s / timing.handled if timing.handled else None
    # The wait for all targets of a shootdown, which handle it in parallel.
    wait = timing.wait_s / timing.sent if timing.waited else None
    receivers = _share(snapshot.interrupts * (ASSUMED_S if handler is None else handler), capacity)
    senders = None if wait is None else _share(snapshot.sent * wait, capacity)
    method = f"interrupts x {1e6 * (ASSUMED_S if handler is None else handler):.2f} us"
    method += " (assumed)" if handler is None else f" ({timing.handled} timed)"
    if wait is None:
        method += ", without the waits of initiators"
    else:
        method += f" + shootdowns x {wait * 1e6:.2f} us ({timing.sent} timed)"
    return {
        "share": round(receivers + (senders or 0), 6),
        "receivers_share": receivers,
        "senders_share": senders,
        "handler_us": None if handler is None else round(handler * 1e6, 3),
        "wait_us": None if wait is None else round(wait * 1e6, 3),
        "assumed": handler is None,
        "method": method,
    }


def percent(share: float) -> str:
    """A share of 0 to 1 for people: "12 %", "0.34 %", "less than 0.01 %"."""
    value = 100 * share
    if value and value < 0.01:
        return "less than 0.01 %"
    return f"{value:.0f} %" if value >= 10 else f"{value:.1f} %" if value >= 1 else f"{value:.2f} %"


def cost(lost: Mapping[str, Any]) -> str:
    """The share of CPU time lost, and how sure that is."""
    share = percent(lost["share"])
    if share.startswith("less"):
        return share
    return f"{'an assumed' if lost['assumed'] else 'at least'} {share}"


def share_of(row: Mapping[str, Any]) -> float:
    """A row's share of ``counted``."""
    return float(row["share"] if row["interrupts"] is None else row["interrupts_share"])


def verdict(
    snapshot: Snapshot,
    causes: list[dict[str, Any]],
    lost: Mapping[str, Any],
    subject: str,
    switches: Mapping[str, bool] | None,
) -> dict[str, Any]:
    """Whether Quell helps (``fixes``), and how much, in words of ``subject``.

    ``share`` of ``of`` is the sum of the rows that ``mechanism`` is for, ``gain_max`` the share of CPU
    time that it saves at most.
    """
    of = "shootdowns" if snapshot.targets is None else "interrupts"
    result: dict[str, Any] = {"fixes": False, "mechanism": None, "share": 0.0, "of": of, "gain_max": 0.0}
    if snapshot.interrupts < _FEW and snapshot.sent < _FEW:
        count = f"{round(snapshot.sent)} {subject}, {round(snapshot.interrupts)} interrupts"
        return {**result, "sentence": f"{count}: nothing for Quell to fix."}
    costs = f"{subject} cost {cost(lost)} of this machine's CPU time"
    most = ""
    if causes and share_of(causes[0]):
        most = f" {percent(share_of(causes[0]))} of the {of} come from {causes[0]['title']}."
    if lost["share"] < _NO_PROBLEM:
        return {**result, "sentence": f"{costs}: not a problem.{most}"}

    # Stacks of reclaim do not tell whether it takes files' or anonymous pages.
    stolen = sum(snapshot.vmstat.values())
    choices = []
    for one in MECHANISMS:
        pages = snapshot.vmstat[one.pages] / stolen if one.pages and stolen else 1.0
        rows = [(row["cause"], share_of(row)) for row in causes if row["cause"] in one.causes]
        share = sum(part * (pages if cause in _RECLAIM else 1.0) for cause, part in rows)
        gain = share * ((lost["senders_share"] or 0.0) if one.of_wait else lost["share"])
        choices.append((gain, share, sum(part for _, part in rows), one))
    gain, share, named, one = max(choices, key=lambda choice: choice[:2])
    if share < _NO_REMEDY:
        return {**result, "sentence": f"{costs}.{most} Quell leaves these as they are."}
    costs += f". {percent(named)} of the {of} have causes that Quell's {one.title} ({one.name}) is for."
    result.update(mechanism=one.name, share=round(named, 6))
    if switches is not None and switches.get(one.name):
        return {**result, "sentence": f"{costs} It is switched on here already."}
    result["fixes"] = True
    if one.of_wait and lost["senders_share"] is None:
        sentence = f"{costs} It {one.does}, which are not known here, {one.condition}."
        return {**result, "gain_max": None, "sentence": sentence}
    sentence = f"{costs} It {one.does} and saves at most {percent(gain)} of CPU time, {one.condition}."
    return {**result, "gain_max": round(gain, 6), "sentence": sentence}


def build(
    snapshot: Snapshot,
    source: Mapping[str, Any],
    names: Names,
    *,
    process: Task | None = None,
    cpus: int | None = None,
    switches: Callable[[], Mapping[str, bool] | None] = switched_on,
) -> dict[str, Any]:
    """The object that --json prints. ``process`` is the only one of the snapshot, if not None."""
    cpus = cpus or os.cpu_count() or 1
    sent, seconds, on = snapshot.sent, snapshot.seconds, switches()
    requests = None if snapshot.targets is None else sum(snapshot.targets.values())
    cells = _cells(snapshot, names, process)
    hits = None if requests is None else sum(one.interrupts for one in cells)
    whole = _Whole(seconds, sent, hits)
    causes = [
        {
            "cause": cause,
            "title": CAUSES[cause],
            "mechanisms": [one.name for one in MECHANISMS if cause in one.causes],
            **row,
        }
        for cause, _, row in whole.rows(cells, lambda one: one.cause)
    ]
    processes = []
    for task, part, row in whole.rows(cells, lambda one: one.process):
        threads = [
            {"tid": one.tid, "comm": one.comm, **figures, "causes": whole.causes(own)}
            for one, own, figures in whole.rows(part, lambda one: one.task)
        ]
        head = {"pid": task.tid, "comm": task.comm, **row, "causes": whole.causes(part)}
        processes.append({**head, "threads": threads})
    lost = lost_time(snapshot, cpus)
    subject = f"TLB shootdowns of {process.comm} ({process.tid})" if process else "TLB shootdowns"
    return {
        "schema": SCHEMA,
        "host": {"release": os.uname().release, "cpus": cpus, "quell": on},
        "source": dict(source),
        "pid": process.tid if process else None,
        "seconds": round(seconds, 3),
        "shootdowns": round(sent),
        "shootdowns_per_second": _rate(sent, seconds),
        "for_ranges": round(sum(one.ranged for one in cells)),
        "interrupts": round(snapshot.interrupts),
        "interrupts_per_second": _rate(snapshot.interrupts, seconds),
        "cpus_per_shootdown": round((snapshot.interrupts if requests is None else requests) / sent, 2)
        if sent
        else None,
        "lost_events": snapshot.lost,
        "seen_share": round(snapshot.seen, 4),
        "causes": causes,
        "processes": processes,
        "receivers": _receivers(snapshot, names),
        "cpu_time_lost": lost,
        "unknown_stacks": _unknown(snapshot),
        "verdict": verdict(snapshot, causes, lost, subject, on),
    }


def _receivers(snapshot: Snapshot, names: Names) -> dict[str, Any]:
    found: Counter[Task] = Counter()
    for task, count in (snapshot.victims or Counter()).items():
        found[names.process(task)] += count
    rows = [{"pid": task.tid, "comm": task.comm, "interrupts": round(n)} for task, n in found.most_common()]
    return {
        "cpus": {str(cpu): count for cpu, count in sorted(snapshot.received.items())},
        "processes": None if snapshot.victims is None else rows,
    }


def _unknown(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The most frequent stacks that no rule of causes.py knows."""
    found: Counter[tuple[str, ...]] = Counter()
    for flush, count in snapshot.flushes.items():
        if classify(flush.stack) == "other":
            found[flush.stack] += count
    return [{"shootdowns": round(n), "stack": list(stack)} for stack, n in found.most_common(5)]


def folded(snapshot: Snapshot) -> list[str]:
    """Stacks as flame graphs take them: "thread;outermost;...;innermost COUNT"."""
    found: Counter[str] = Counter()
    for flush, count in snapshot.flushes.items():
        frames = [flush.task.comm, *map(clean, reversed(flush.stack))]
        found[";".join(printable(one).replace(";", ":") for one in frames)] += count
    return [f"{stack} {round(count)}" for stack, count in sorted(found.items())]


def printable(text: str) -> str:
    """A name that a process chose, with nothing that a terminal obeys."""
    return "".join(one if " " <= one <= "~" else "?" for one in text)
