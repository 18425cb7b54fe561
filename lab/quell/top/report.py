# SPDX-License-Identifier: GPL-2.0-only
"""Figures and the verdict from a snapshot, as one object.

Shares, order and the verdict are all of interrupts. Those of a thread are spread evenly over its
shootdowns, as csd_queue_cpu has no stack.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from quell import procfs
from quell.top.causes import CAUSES, classify, clean
from quell.top.sample import Snapshot, Task

# Seconds that an interrupt is taken to cost where nothing was timed.
ASSUMED_S = 2e-6
# Below this share of CPU time there is no problem; below this share of interrupts no mechanism helps.
_NO_PROBLEM = 0.001
_NO_REMEDY = 0.1

_RECLAIM = frozenset(cause for cause in CAUSES if cause.startswith("reclaim-"))


class Mechanism(NamedTuple):
    """One of Quell's and the causes that it is for.

    ``pages`` is the counter in /proc/vmstat of the reclaimed pages that it handles. ``of_wait``: it
    shortens waits and leaves the interrupts.
    """

    name: str
    title: str
    causes: frozenset[str]
    condition: str
    pages: str = ""
    of_wait: bool = False


MECHANISMS = (
    Mechanism(
        "luf",
        "lazy unmap flush",
        _RECLAIM | {"demotion", "compaction", "numa-migration", "migration-call", "migration-other"},
        "if the pages are clean and of files on ext4, xfs, btrfs, f2fs, erofs or squashfs",
        pages="pgsteal_file",
    ),
    Mechanism(
        "writeout_batch",
        "batched write-out",
        _RECLAIM,
        "if the pages are anonymous or shmem and are written to swap",
        pages="pgsteal_anon",
    ),
    Mechanism(
        "early_ack",
        "early acknowledgment",
        frozenset({"madvise-dontneed", "madvise-free", "madvise-other", "mprotect", "cow"}),
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
        for task in {*(one.task for one in snapshot.flushes), *snapshot.victims}:
            self.process(task)

    def process(self, task: Task) -> Task:
        """Its process; the thread itself when that is not known."""
        if task not in self._known:
            _, found, rest = procfs.read(self.proc / f"{task.tid}/status").partition("\nTgid:")
            pid = int(rest.split()[0]) if found else task.tid
            comm = procfs.read(self.proc / f"{pid}/comm").strip() if task.tid else "(idle)"
            self._known[task] = Task(pid, comm or task.comm)
        return self._known[task]


class _Cell(NamedTuple):
    """The shootdowns of one thread for one cause."""

    process: Task
    task: Task
    cause: str
    sent: float
    interrupts: float


def _cells(snapshot: Snapshot, names: Names) -> list[_Cell]:
    # Of a thread, whose name may change.
    sent: Counter[int] = Counter()
    for flush, count in snapshot.flushes.items():
        sent[flush.task.tid] += count
    targets: Counter[int] = Counter()
    for task, count in snapshot.targets.items():
        targets[task.tid] += count
    cells = []
    for flush, count in snapshot.flushes.items():
        task = flush.task
        hits = targets[task.tid] * count / sent[task.tid]
        cells.append(_Cell(names.process(task), task, classify(flush.stack), count, hits))
    return cells


def _rows(cells: list[_Cell], key: str, whole: float) -> list[tuple[Any, list[_Cell], dict[str, Any]]]:
    """(a value of the field ``key``, its cells, their figures), most interrupts of ``whole`` first."""
    groups: dict[Any, list[_Cell]] = {}
    for cell in cells:
        groups.setdefault(getattr(cell, key), []).append(cell)
    rows = []
    for value, part in groups.items():
        sent, hits = sum(one.sent for one in part), sum(one.interrupts for one in part)
        figures = {"shootdowns": round(sent), "interrupts": round(hits), "share": _share(hits, whole)}
        rows.append((value, part, figures))
    return sorted(rows, key=lambda row: (-row[2]["share"], -row[2]["shootdowns"]))


def _share(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 0.0


def lost_time(snapshot: Snapshot, cpus: int) -> dict[str, Any]:
    """The share of the CPU time of ``cpus`` CPUs that the shootdowns took.

    Interrupts times the mean time in the handler, plus shootdowns times the mean wait of the initiator.
    Entry to and exit from the interrupt are missing, so this is a lower bound, unless nothing was timed
    and ASSUMED_S stands for the handler.
    """
    timing = snapshot.timing
    capacity = snapshot.seconds * cpus
    handler = timing.handler_s / timing.handled if timing.handled else ASSUMED_S
    handlers = _share(snapshot.interrupts * handler, capacity)
    method = f"interrupts x {handler * 1e6:.2f} us"
    method += f" ({timing.handled} timed)" if timing.handled else " (assumed)"
    waits = None
    if timing.wait_s:
        # For all targets of a shootdown, which handle it in parallel.
        wait = timing.wait_s / timing.sent
        waits = _share(snapshot.sent * wait, capacity)
        method += f" + shootdowns x {wait * 1e6:.2f} us ({timing.sent} timed)"
    return {
        "share": round(handlers + (waits or 0), 6),
        "initiators_share": waits,
        "assumed": not timing.handled,
        "method": method,
    }


def percent(share: float) -> str:
    """A share of 0 to 1 for people: "12 %", "0.34 %"."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2f} %"


def verdict(
    vmstat: Counter[str],
    causes: list[dict[str, Any]],
    lost: Mapping[str, Any],
    subject: str,
    switches: Mapping[str, bool] | None,
) -> dict[str, Any]:
    """Whether Quell helps (``fixes``), and how much, in words of ``subject``.

    ``share`` of the interrupts is the sum of the rows that ``mechanism`` is for, ``gain_max`` the share
    of CPU time that it saves at most, None if not known.
    """
    result: dict[str, Any] = {"fixes": False, "mechanism": None, "share": 0.0, "gain_max": 0.0}
    sure = "an assumed" if lost["assumed"] else "at least"
    costs = f"{subject} cost {sure} {percent(lost['share'])} of this machine's CPU time"
    most = ""
    if causes and causes[0]["share"]:
        most = f" {percent(causes[0]['share'])} of the interrupts come from {CAUSES[causes[0]['cause']]}."
    if lost["share"] < _NO_PROBLEM:
        return {**result, "sentence": f"{costs}: not a problem.{most}"}

    # Stacks of reclaim do not tell whether it takes files' or anonymous pages.
    stolen = sum(vmstat.values())
    choices = []
    for one in MECHANISMS:
        pages = vmstat[one.pages] / stolen if one.pages and stolen else 1.0
        rows = [(row["cause"], row["share"]) for row in causes if row["cause"] in one.causes]
        share = sum(part * (pages if cause in _RECLAIM else 1.0) for cause, part in rows)
        gain = share * ((lost["initiators_share"] or 0.0) if one.of_wait else lost["share"])
        choices.append((gain, share, sum(part for _, part in rows), one))
    gain, share, named, one = max(choices, key=lambda choice: choice[:2])
    if share < _NO_REMEDY:
        return {**result, "sentence": f"{costs}.{most} Quell leaves these as they are."}
    whose = f"Quell's {one.title} ({one.name})"
    costs += f". {percent(named)} of the interrupts have causes that {whose} is for."
    result.update(mechanism=one.name, share=round(named, 6))
    if switches is not None and switches.get(one.name):
        return {**result, "sentence": f"{costs} It is switched on here already."}
    does = "shortens the waits for these" if one.of_wait else "avoids most of these"
    known = not one.of_wait or lost["initiators_share"] is not None
    saves = f" and saves at most {percent(gain)} of CPU time" if known else ""
    result.update(fixes=True, gain_max=round(gain, 6) if known else None)
    return {**result, "sentence": f"{costs} It {does}{saves}, {one.condition}."}


def build(
    snapshot: Snapshot,
    source: Mapping[str, Any],
    names: Names,
    process: Task | None,
    switches: Mapping[str, bool] | None,
    cpus: int | None = None,
) -> dict[str, Any]:
    """The object that --json prints. ``process`` is the only one of the snapshot, if not None."""
    cpus = cpus or os.cpu_count() or 1
    cells = _cells(snapshot, names)
    whole = sum(one.interrupts for one in cells)

    def by_cause(cells: list[_Cell]) -> dict[str, int]:
        return {cause: row["shootdowns"] for cause, _, row in _rows(cells, "cause", whole)}

    causes = [
        {"cause": cause, "mechanisms": [one.name for one in MECHANISMS if cause in one.causes], **row}
        for cause, _, row in _rows(cells, "cause", whole)
    ]
    processes = []
    for task, part, row in _rows(cells, "process", whole):
        threads = [
            {"tid": one.tid, "comm": one.comm, **figures, "causes": by_cause(own)}
            for one, own, figures in _rows(part, "task", whole)
        ]
        head = {"pid": task.tid, "comm": task.comm, **row, "causes": by_cause(part)}
        processes.append({**head, "threads": threads})
    lost = lost_time(snapshot, cpus)
    subject = f"TLB shootdowns of {process.comm} ({process.tid})" if process else "TLB shootdowns"
    return {
        "schema": "quell-top/2",
        "host": {"release": os.uname().release, "cpus": cpus, "quell": switches},
        "source": dict(source),
        "pid": process.tid if process else None,
        "seconds": round(snapshot.seconds, 3),
        "shootdowns": round(snapshot.sent),
        "for_ranges": round(sum(count for flush, count in snapshot.flushes.items() if flush.ranged)),
        "interrupts": round(snapshot.interrupts),
        "lost_events": snapshot.lost,
        "seen_share": round(snapshot.seen, 4),
        "causes": causes,
        "processes": processes,
        "receivers": {"processes": _receivers(snapshot, names)},
        "cpu_time_lost": lost,
        "verdict": verdict(snapshot.vmstat, causes, lost, subject, switches),
    }


def _receivers(snapshot: Snapshot, names: Names) -> list[dict[str, Any]]:
    found: Counter[Task] = Counter()
    for task, count in snapshot.victims.items():
        found[names.process(task)] += count
    return [{"pid": task.tid, "comm": task.comm, "interrupts": round(n)} for task, n in found.most_common()]


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
