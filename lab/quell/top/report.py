# SPDX-License-Identifier: GPL-2.0-only
"""Figures and a verdict from a snapshot: everything that is printed, as one object."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quell.paths import repo_root
from quell.top.causes import CAUSES, classify
from quell.top.sample import Snapshot, Task, Timing

SCHEMA = "quell-top/1"

# Seconds of a CPU that an interrupt is taken to cost where nothing could be timed.
ASSUMED_S = 2e-6
# Below this share of CPU time there is no problem; below this share of the shootdowns no remedy.
_NO_PROBLEM = 0.001
_NO_REMEDY = 0.1
# So few shootdowns say nothing.
_FEW = 20

_RECLAIM = frozenset(cause for cause in CAUSES if cause.startswith("reclaim-"))


@dataclass(frozen=True)
class Mechanism:
    """One of Quell's, and which causes it can take away.

    ``of_wait`` when it shortens what senders wait and leaves the interrupts. ``condition`` is what
    top cannot see and the gain depends on.
    """

    name: str
    title: str
    causes: frozenset[str]
    does: str
    condition: str
    of_wait: bool = False


# The one list of what mends what. Those without a patch in kernel/hooks do not count.
MECHANISMS = (
    Mechanism(
        "luf",
        "lazy unmap flush",
        _RECLAIM
        | {"demotion", "compaction", "numa-migration", "migration-call", "migration-other"},
        "sends almost none of these",
        "as far as these are clean pages of files on ext4, xfs, btrfs, f2fs, erofs or squashfs "
        "that nobody has open for writing, or move while mapped read-only",
    ),
    Mechanism(
        "early_ack",
        "early acknowledgement",
        frozenset({"madvise-dontneed", "madvise-free", "madvise-other", "mprotect", "cow"}),
        "lets their senders go on sooner",
        "as far as these free no page tables",
        of_wait=True,
    ),
)


def available() -> tuple[Mechanism, ...]:
    """Those of MECHANISMS that this tree has."""
    names = {patch.stem for patch in (repo_root() / "kernel/hooks").glob("*/*.patch")}
    return tuple(one for one in MECHANISMS if one.name in names)


def switched_on() -> dict[str, bool] | None:
    """Quell's switches on this kernel; None on any other kernel."""
    switches = {}
    for path in Path("/sys/kernel/mm/quell").glob("*/enabled"):
        switches[path.parent.name] = path.read_text().strip() == "1"
    return switches or None


class Names:
    """Which process a thread belongs to, asked of /proc while it lives, and remembered."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.proc = proc
        self._known: dict[Task, Task] = {}
        self._comm: dict[int, str] = {}

    def learn(self, snapshot: Snapshot) -> None:
        """Look up all that are new."""
        for flush in snapshot.flushes:
            self.process(flush.task)
        for tasks in (snapshot.targets, snapshot.victims):
            for task in tasks or ():
                self.process(task)

    def process(self, task: Task) -> Task:
        """The process as a task (its first thread); the thread itself when that is not known."""
        if task in self._known:
            return self._known[task]
        pid = task.pid or self._tgid(task.tid) or task.tid
        comm = task.comm
        if pid != task.tid:
            if pid not in self._comm:
                try:
                    self._comm[pid] = (self.proc / f"{pid}/comm").read_text().strip()
                except OSError:
                    self._comm[pid] = task.comm
            comm = self._comm[pid]
        elif pid == 0:
            comm = "(idle)"
        found = self._known[task] = Task(pid, comm, pid)
        return found

    def _tgid(self, tid: int) -> int | None:
        try:
            text = (self.proc / f"{tid}/status").read_text()
        except OSError:
            return None
        for line in text.splitlines():
            if line.startswith("Tgid:"):
                return int(line.split()[1])
        return None


def _rate(count: float | None, seconds: float) -> float | None:
    return None if count is None or not seconds else round(count / seconds, 1)


def _share(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 0.0


def _senders(snapshot: Snapshot, names: Names) -> list[dict[str, Any]]:
    """By process, with its threads and causes; most first."""
    threads: dict[Task, dict[Task, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for flush, count in snapshot.flushes.items():
        of = threads[names.process(flush.task)][Task(flush.task.tid, flush.task.comm)]
        of[classify(flush.stack)] += count
        of["for_ranges"] += count if flush.ranged else 0
    interrupted: Counter[int] = Counter()
    for task, count in (snapshot.targets or Counter()).items():
        interrupted[task.tid] += count

    def row(causes: Counter[str], tids: list[int]) -> dict[str, Any]:
        causes = Counter(causes)
        ranges = causes.pop("for_ranges", 0)
        sent = sum(causes.values())
        cpus = None if snapshot.targets is None else sum(interrupted[tid] for tid in tids)
        return {
            "shootdowns": round(sent),
            "per_second": _rate(sent, snapshot.seconds),
            "for_ranges": round(ranges),
            "interrupts": None if cpus is None else round(cpus),
            "cpus_per_shootdown": None if cpus is None or not sent else round(cpus / sent, 2),
            "causes": {name: round(count) for name, count in causes.most_common()},
        }

    rows = []
    for process, own in threads.items():
        total: Counter[str] = sum(own.values(), Counter())
        rows.append(
            {
                "pid": process.tid,
                "comm": process.comm,
                **row(total, list({task.tid for task in own})),
                "threads": sorted(
                    (
                        {"tid": task.tid, "comm": task.comm, **row(causes, [task.tid])}
                        for task, causes in own.items()
                    ),
                    key=lambda one: -one["shootdowns"],
                ),
            }
        )
    return sorted(rows, key=lambda one: (-one["shootdowns"], one["pid"]))


def _causes(snapshot: Snapshot) -> list[dict[str, Any]]:
    """By cause, most first. Interrupts are spread over a thread's causes evenly."""
    sent: Counter[str] = Counter()
    ranges: Counter[str] = Counter()
    interrupts: Counter[str] = Counter()
    by_thread: Counter[int] = Counter()
    for flush, count in snapshot.flushes.items():
        by_thread[flush.task.tid] += count
    targets: Counter[int] = Counter()
    for task, count in (snapshot.targets or Counter()).items():
        targets[task.tid] += count
    for flush, count in snapshot.flushes.items():
        cause = classify(flush.stack)
        sent[cause] += count
        ranges[cause] += count if flush.ranged else 0
        tid = flush.task.tid
        # A float in a Counter of ints is what Counter's typing does not foresee.
        interrupts[cause] += targets[tid] * count / by_thread[tid]  # type: ignore
    total = sum(sent.values())
    return [
        {
            "cause": cause,
            "title": CAUSES[cause],
            "shootdowns": round(count),
            "per_second": _rate(count, snapshot.seconds),
            "share": _share(count, total),
            "for_ranges": round(ranges[cause]),
            "interrupts": None if snapshot.targets is None else round(interrupts[cause]),
        }
        for cause, count in sent.most_common()
    ]


def _receivers(snapshot: Snapshot, names: Names) -> dict[str, Any]:
    by_process: Counter[Task] | None = None
    if snapshot.victims is not None:
        by_process = Counter()
        for task, count in snapshot.victims.items():
            by_process[names.process(task)] += count
    return {
        "cpus": {str(cpu): count for cpu, count in sorted(snapshot.received.items())},
        "processes": by_process
        and [
            {"pid": task.tid, "comm": task.comm, "interrupts": round(count)}
            for task, count in by_process.most_common()
        ],
    }


def lost_time(snapshot: Snapshot, cpus: int) -> dict[str, Any]:
    """The share of the machine's CPU time, ``cpus`` CPUs for the snapshot's seconds.

    Interrupts times the mean time in the handler, plus shootdowns times the mean wait of the
    sender. Both leave out the way into and out of the interrupt, so the sum is a lower bound.
    Where no handler was timed, ASSUMED_S stands for it, and the method says so.
    """
    timing: Timing = snapshot.timing
    received = sum(snapshot.received.values())
    capacity = snapshot.seconds * cpus
    handler = timing.handler_s / timing.handled if timing.handled else None
    wait = timing.wait_s / timing.sent if timing.waited else None
    receivers = received * (ASSUMED_S if handler is None else handler)
    # Each sender waits once for all of its CPUs, in parallel to their handlers.
    senders = None if snapshot.sent is None or wait is None else snapshot.sent * wait
    if handler is None:
        method = f"interrupts received x {ASSUMED_S * 1e6:g} us (assumed, nothing was timed)"
    else:
        method = f"interrupts received x {handler * 1e6:.2f} us (mean of {timing.handled} handlers)"
    if senders is None:
        method += "; what senders wait is not included"
    else:
        assert wait is not None
        method += f" + shootdowns x {wait * 1e6:.2f} us (mean wait of {timing.sent} senders)"
    return {
        "share": round((receivers + (senders or 0)) / capacity, 6) if capacity else 0.0,
        "receivers_share": round(receivers / capacity, 6) if capacity else 0.0,
        "senders_share": None
        if senders is None
        else (round(senders / capacity, 6) if capacity else 0.0),
        "handler_us": None if handler is None else round(handler * 1e6, 3),
        "wait_us": None if wait is None else round(wait * 1e6, 3),
        "assumed": handler is None,
        "method": method + ", of all CPUs' time",
    }


def percent(share: float) -> str:
    """A share of 0 to 1 for people: "12 %", "0.34 %", "less than 0.01 %"."""
    value = 100 * share
    if value and value < 0.01:
        return "less than 0.01 %"
    return f"{value:.0f} %" if value >= 10 else f"{value:.1f} %" if value >= 1 else f"{value:.2f} %"


def _weight(row: Mapping[str, Any]) -> float:
    """What a cause counts for: its interrupts, or its shootdowns where those are not known."""
    return float(row["shootdowns"] if row["interrupts"] is None else row["interrupts"])


def cost(lost: Mapping[str, Any]) -> str:
    """The share of CPU time lost, and how sure that is."""
    share = percent(lost["share"])
    if share.startswith("less"):
        return share
    return f"{'an assumed' if lost['assumed'] else 'at least'} {share}"


def _mended(
    mechanism: Mechanism, snapshot: Snapshot, causes: list[dict[str, Any]]
) -> tuple[float, float]:
    """(share of shootdowns by its causes, the part of it that may really be mended)."""
    total = sum(_weight(row) for row in causes)
    stolen = snapshot.vmstat["pgsteal_file"] + snapshot.vmstat["pgsteal_anon"]
    # Reclaim of anonymous pages flushes as before; the stack does not tell the two apart.
    files = snapshot.vmstat["pgsteal_file"] / stolen if stolen else 1.0
    named = mends = 0.0
    for row in causes:
        if row["cause"] in mechanism.causes:
            named += _weight(row)
            mends += _weight(row) * (files if row["cause"] in _RECLAIM else 1.0)
    return _share(named, total), _share(mends, total)


def verdict(
    snapshot: Snapshot,
    causes: list[dict[str, Any]],
    lost: Mapping[str, Any],
    mechanisms: tuple[Mechanism, ...],
    switches: Mapping[str, bool] | None,
) -> dict[str, Any]:
    """Whether Quell mends it: ``mends`` (None when that cannot be told), and one sentence.

    ``gain_max`` is the share of CPU time that is to gain at most, by ``mechanism``.
    """
    result: dict[str, Any] = {"mends": False, "mechanism": None, "share": 0.0, "gain_max": 0.0}
    received = sum(snapshot.received.values())
    costs = f"TLB shootdowns cost this machine {cost(lost)} of its CPU time"
    if not received and not snapshot.sent:
        return {**result, "sentence": "There were no TLB shootdowns: nothing for Quell to mend."}
    if received < _FEW and (snapshot.sent or 0) < _FEW:
        sentence = f"There were only {received} shootdown interrupts: nothing for Quell to mend."
        return {**result, "sentence": sentence}
    if lost["share"] < _NO_PROBLEM:
        return {**result, "sentence": f"{costs}: not a problem, and nothing for Quell to mend."}
    if not causes:
        sentence = (
            f"{costs}; whether Quell mends that depends on their causes, which this source "
            "cannot see."
        )
        return {**result, "mends": None, "gain_max": None, "sentence": sentence}

    def gain(mechanism: Mechanism, share: float) -> float:
        part = (lost["senders_share"] or 0.0) if mechanism.of_wait else lost["share"]
        return float(share * part)

    best = max(
        ((one, *_mended(one, snapshot, causes)) for one in mechanisms),
        key=lambda item: gain(item[0], item[2]),
        default=None,
    )
    first = max(causes, key=_weight)
    of_all = _share(_weight(first), sum(map(_weight, causes)))
    top = f"{percent(of_all)} of them come from {first['title']}"
    if best is None or best[2] < _NO_REMEDY:
        anonymous = best is not None and best[1] >= _NO_REMEDY
        why = (
            "reclaim takes anonymous pages here, which Quell flushes as stock Linux does"
            if anonymous
            else "Quell leaves that as it is"
        )
        sentence = f"{costs}, and {top}: {why}, so this is not a problem that Quell mends."
        return {**result, "share": best[2] if best else 0.0, "sentence": sentence}
    mechanism, _, share = best
    most = gain(mechanism, share)
    what = f"{mechanism.title} ({mechanism.name})"
    result.update(mechanism=mechanism.name, share=share, gain_max=round(most, 6))
    if switches is not None and switches.get(mechanism.name):
        return {
            **result,
            "gain_max": 0.0,
            "sentence": f"{costs}; {percent(share)} of them have causes that Quell's {what} is for, "
            "and it is switched on here already: what is left is not for it to mend.",
        }
    return {
        **result,
        "mends": True,
        "sentence": f"{costs}, and {percent(share)} of them have causes that Quell mends: its {what} "
        f"{mechanism.does}, so up to {percent(most)} of CPU time is to gain, {mechanism.condition}.",
    }


def build(
    snapshot: Snapshot,
    source: Mapping[str, Any],
    *,
    names: Names | None = None,
    cpus: int | None = None,
    mechanisms: tuple[Mechanism, ...] | None = None,
    switches: Callable[[], Mapping[str, bool] | None] = switched_on,
) -> dict[str, Any]:
    """The object that is printed. ``source`` is passed through; the rest is asked of the machine."""
    names = names or Names()
    cpus = cpus or os.cpu_count() or 1
    received = sum(snapshot.received.values())
    sent = snapshot.sent
    causes = _causes(snapshot)
    lost = lost_time(snapshot, cpus)
    on = switches()
    requests = None if snapshot.targets is None else sum(snapshot.targets.values())
    return {
        "schema": SCHEMA,
        "host": {"release": os.uname().release, "cpus": cpus, "quell": on},
        "source": dict(source),
        "seconds": round(snapshot.seconds, 3),
        "shootdowns": None if sent is None else round(sent),
        "shootdowns_per_second": _rate(sent, snapshot.seconds),
        "for_ranges": round(sum(n for f, n in snapshot.flushes.items() if f.ranged))
        if snapshot.flushes
        else (None if sent else 0),
        "interrupts": received,
        "interrupts_per_second": _rate(received, snapshot.seconds),
        "cpus_per_shootdown": None
        if not sent
        else round((received if requests is None else requests) / sent, 2),
        "lost_events": snapshot.lost,
        "seen_share": round(snapshot.seen, 4),
        "causes": causes,
        "processes": _senders(snapshot, names),
        "receivers": _receivers(snapshot, names),
        "cpu_time_lost": lost,
        "unknown_stacks": _unknown(snapshot),
        "verdict": verdict(
            snapshot, causes, lost, available() if mechanisms is None else mechanisms, on
        ),
    }


def _unknown(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The commonest stacks that no rule knows, to be reported."""
    found: Counter[tuple[str, ...]] = Counter()
    for flush, count in snapshot.flushes.items():
        if classify(flush.stack) == "other":
            found[flush.stack] += count
    return [{"shootdowns": round(n), "stack": list(stack)} for stack, n in found.most_common(5)]
