# SPDX-License-Identifier: GPL-2.0-only
"""A snapshot of shootdowns, and the parsers of the kernel's texts that it is made from.

All parsers are pure: text in, counts out. They follow kernel/trace/trace_output.c and
kernel/trace/trace_events_hist.c.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

# tlb:tlb_flush's reasons, include/trace/events/tlb.h.
RECEIVED = "1"
SENT = "4"


class Task(NamedTuple):
    """A thread as the trace names it, or a process by its first thread."""

    tid: int
    comm: str


class Flush(NamedTuple):
    """A kind of shootdown: its initiator, its stack (innermost function first), a range or all."""

    task: Task
    stack: tuple[str, ...] = ()
    ranged: bool = False


def by_task(flushes: Counter[Flush]) -> Counter[Task]:
    """Shootdowns by initiator."""
    result: Counter[Task] = Counter()
    for flush, count in flushes.items():
        result[flush.task] += count
    return result


class Timing(NamedTuple):
    """Sums over the timed shootdowns, in seconds.

    ``handler_s`` is the time of ``handled`` requests in the handler, ``wait_s`` the waits of initiators
    for their last target in ``sent`` shootdowns; some interrupt no CPU and wait for none.
    """

    handler_s: float = 0.0
    handled: int = 0
    wait_s: float = 0.0
    sent: int = 0


@dataclass
class Snapshot:
    """The shootdowns of ``seconds``.

    ``interrupts`` is from /proc/interrupts. ``targets`` counts interrupted CPUs by initiator, ``victims``
    interrupts by interrupted thread. ``seen`` is the share that was traced, the least of all parts:
    counts are scaled up by it. ``lost`` events are missing in them.
    """

    seconds: float = 0.0
    interrupts: float = 0
    flushes: Counter[Flush] = field(default_factory=Counter)
    targets: Counter[Task] = field(default_factory=Counter)
    victims: Counter[Task] = field(default_factory=Counter)
    timing: Timing = Timing()
    vmstat: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    seen: float = 1.0

    @property
    def sent(self) -> float:
        """All shootdowns."""
        return sum(self.flushes.values())

    def add(self, other: Snapshot) -> None:
        """Add a later one."""
        self.seconds += other.seconds
        self.interrupts += other.interrupts
        self.flushes.update(other.flushes)
        self.targets.update(other.targets)
        self.victims.update(other.victims)
        self.timing = Timing(*map(operator.add, self.timing, other.timing))
        self.vmstat.update(other.vmstat)
        self.lost += other.lost
        self.seen = min(self.seen, other.seen)

    def only(self, mine: Callable[[Task], bool]) -> None:
        """Keep the shootdowns of these threads. The threads that they interrupt are not known then."""
        self.flushes = Counter({one: n for one, n in self.flushes.items() if mine(one.task)})
        self.targets = Counter({task: n for task, n in self.targets.items() if mine(task)})
        self.interrupts = sum(self.targets.values())
        self.victims = Counter()


def arrived(after: Mapping[int, int], before: Mapping[int, int]) -> int:
    """The interrupts between two counts by CPU. Counters have 32 bits, and CPUs come and go."""
    return sum((count - before.get(cpu, count)) % (1 << 32) for cpu, count in after.items())


# comm may hold anything, even " [001] "; the first match from the left is the kernel's.
_LINE = re.compile(
    r"^ *(?P<comm>.*)-(?P<tid>\d+) +(?:\( *[-\d]+\) +)?\[(?P<cpu>\d+)\] +(?:\S+ +)?"
    r"(?P<time>\d+\.\d+): (?P<event>\w+|<stack trace>)(?:: ?(?P<rest>.*))?$"
)
_LOST = re.compile(r"^CPU:\d+ \[LOST (?:(\d+) )?EVENTS\]")
_VALUE = re.compile(r"(\w+)[=:](\S+)")
# tlb_flush ends in the reason's number.
_NUMBER = re.compile(r"\((\d+)\)$")
# Tracing's own functions above the flush.
_TRACING = re.compile(r"^(trace_event_|__?traceiter_|perf_trace_|__bpf_trace_|bpf_|trace_tlb_)")


@dataclass
class Event:
    """A line of trace_pipe: ``time`` in seconds, ``values`` its fields as text, and its stack."""

    task: Task
    cpu: int
    time: float
    name: str
    values: dict[str, str]
    stack: tuple[str, ...] = ()


def read_events(text: str) -> tuple[list[Event], int]:
    """trace_pipe's events with the stacks that follow them, and the number of lost events.

    A truncated last line is left out. An event whose stack was lost has none.
    """
    events: list[Event] = []
    lost = 0
    # CPUs' lines are merged by time: a stack belongs to the last event of its CPU.
    last: dict[int, Event] = {}
    owner: Event | None = None
    for line in text.splitlines():
        if line.startswith(" => "):
            if owner is not None and not _TRACING.match(line[4:]):
                owner.stack += (line[4:].strip(),)
            continue
        match = _LINE.match(line)
        if match is None:
            gone = _LOST.match(line)
            lost += int(gone[1] or 1) if gone else 0
            continue
        cpu, tid = int(match["cpu"]), int(match["tid"])
        if match["event"] == "<stack trace>":
            owner = last.pop(cpu, None)
            if owner is not None and owner.task.tid != tid:
                owner = None
            continue
        owner = None
        rest = match["rest"] or ""
        values = {key: value.rstrip(",") for key, value in _VALUE.findall(rest)}
        number = _NUMBER.search(rest)
        if number:
            values["reason"] = number[1]
        task = Task(tid, match["comm"].strip())
        last[cpu] = Event(task, cpu, float(match["time"]), match["event"], values)
        events.append(last[cpu])
    return events, lost


@dataclass
class _Request:
    """A shootdown under way: its open requests, and the time of the last answer."""

    begun: float
    open: int = 0
    ended: float = 0.0


def timing(events: list[Event], mine: Callable[[Task], bool] | None = None) -> Timing:
    """The time of handlers, and the waits of initiators; only of those that are ``mine`` if not None.

    Waits need csd:* (Linux 6.6): a request is queued for each CPU, and ``csd`` names it until it is
    acknowledged: at the end of its handler, or at its begin with Quell's early acknowledgment. The next
    request may have the same ``csd`` while that handler still runs. Before 6.6 irq_vectors:* times the
    handlers.
    """
    handler_s, handled = 0.0, 0
    flushes: list[_Request] = []
    last: dict[int, _Request] = {}
    queued: dict[str, _Request] = {}
    # By CPU. A handler that carries out several requests begins them all before it ends the first.
    begun: dict[int, list[float]] = {}
    unanswered: dict[int, _Request | None] = {}
    flushed: set[int] = set()

    for event in sorted(events, key=lambda one: one.time):
        name, tid, cpu, csd = event.name, event.task.tid, event.cpu, event.values.get("csd", "")
        reason = event.values.get("reason")
        if name in ("early_ack_ack", "csd_function_exit"):
            request = unanswered.pop(cpu, None)
            if request:
                request.open -= 1
                request.ended = event.time
        if reason == SENT and (mine is None or mine(event.task)):
            last[tid] = _Request(event.time)
            flushes.append(last[tid])
        elif reason == RECEIVED:
            flushed.add(cpu)
        elif name == "csd_queue_cpu":
            queued.pop(csd, None)
            if tid in last:
                queued[csd] = last[tid]
                last[tid].open += 1
        elif name == "csd_function_entry":
            begun.setdefault(cpu, []).append(event.time)
            unanswered[cpu] = queued.pop(csd, None)
        elif name.endswith("_entry"):
            begun[cpu] = [event.time]
            flushed.discard(cpu)
        elif name.endswith("_exit") and begun.get(cpu):
            start = begun[cpu].pop()
            if csd or cpu in flushed:
                handled += 1
                handler_s += 0.0 if begun[cpu] else event.time - start
    waits = [one.ended - one.begun for one in flushes if one.ended and not one.open]
    return Timing(handler_s, handled, sum(waits), len(flushes))


_DROPPED = re.compile(r"^    Dropped: (\d+)$", re.M)
_HIT = re.compile(r"\} hitcount: +(\d+)")
_EXECNAME = re.compile(r"common_pid: (.{16,}?)\[ *(\d+)\]")
# The bucket of ranges; a full flush is TLB_FLUSH_ALL, -1 as an unsigned number.
_RANGED = re.compile(r"pages: +~ 0-")


def read_hists(text: str) -> Iterator[tuple[bool, Counter[Flush], int]]:
    """An event's ``hist`` file, as printed by hist_trigger_show().

    For each histogram: whether stacks are keys, its counts, and the number of events that it had no room
    for. Only the thread is set where the others are no keys.
    """
    for part in text.split("# event histogram\n")[1:]:
        dropped = _DROPPED.search(part)
        stacks = "stacktrace" in part.partition("{")[0]
        yield stacks, Counter(dict(_entries(part))), int(dropped[1]) if dropped else 0


def _entries(text: str) -> Iterator[tuple[Flush, int]]:
    for chunk in re.split(r"^\{ ", text, flags=re.M)[1:]:
        hit, task = _HIT.search(chunk), _EXECNAME.search(chunk)
        if hit is None or task is None:
            continue
        # Lines of the stack are indented; the last, before the brace, holds further keys or nothing.
        lines = [line.strip() for line in chunk.splitlines() if line.startswith("         ")]
        stack = tuple(line for line in lines if not _TRACING.match(line))
        ranged = _RANGED.search(chunk) is not None
        yield Flush(Task(int(task[2]), task[1].strip()), stack, ranged), int(hit[1])
