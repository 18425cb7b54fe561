# SPDX-License-Identifier: GPL-2.0-only
"""A snapshot of shootdowns, and the parsers of the kernel's texts that it is made from.

All parsers are pure: text in, counts out. They follow kernel/trace/trace_output.c and
kernel/trace/trace_events_hist.c.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Optional

# tlb:tlb_flush's reasons, include/trace/events/tlb.h.
RECEIVED = 1
SENT = 4
# More pages than any range has. A full flush is TLB_FLUSH_ALL, -1, printed as an unsigned number.
MANY = 1 << 20


@dataclass(frozen=True)
class Task:
    """A thread as the trace names it, or a process by its first thread."""

    tid: int
    comm: str


@dataclass(frozen=True)
class Flush:
    """A kind of shootdown: its initiator, its stack (innermost function first), a range or all."""

    task: Task
    stack: tuple[str, ...]
    ranged: bool


@dataclass
class Timing:
    """Sums over the timed shootdowns, in seconds.

    ``handler_s`` is the time of ``handled`` runs of the handler, ``wait_s`` the wait of initiators for
    their last target in ``waited`` of ``sent`` shootdowns. The others interrupted no CPU: all were idle
    or had left the address space.
    """

    handler_s: float = 0.0
    handled: int = 0
    wait_s: float = 0.0
    waited: int = 0
    sent: int = 0

    def add(self, other: Timing) -> None:
        """Add another's sums."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass
class Snapshot:
    """The shootdowns of ``seconds``; None is unknown on this kernel.

    ``interrupts`` and ``received`` (by CPU) are from /proc/interrupts. ``targets`` counts interrupted
    CPUs by initiator, ``victims`` interrupts by interrupted thread. ``seen`` is the share that was
    traced: counts are scaled up by it. ``lost`` events are missing in them.
    """

    seconds: float = 0.0
    interrupts: float = 0
    received: Counter[int] = field(default_factory=Counter)
    flushes: Counter[Flush] = field(default_factory=Counter)
    targets: Counter[Task] | None = None
    victims: Counter[Task] | None = None
    timing: Timing = field(default_factory=Timing)
    vmstat: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    seen: float = 1.0

    @property
    def sent(self) -> float:
        """All shootdowns."""
        return sum(self.flushes.values())

    def add(self, other: Snapshot) -> None:
        """Add a later one."""
        both = self.seconds + other.seconds
        if both:
            self.seen = (self.seen * self.seconds + other.seen * other.seconds) / both
        self.seconds = both
        self.interrupts += other.interrupts
        self.received.update(other.received)
        self.flushes.update(other.flushes)
        if other.targets is not None:
            self.targets = (self.targets or Counter()) + other.targets
        if other.victims is not None:
            self.victims = (self.victims or Counter()) + other.victims
        self.timing.add(other.timing)
        self.vmstat.update(other.vmstat)
        self.lost += other.lost

    def only(self, tids: Collection[int]) -> None:
        """Keep the shootdowns of these threads. Their targets' names and CPUs are not known then."""
        every = self.sent
        self.flushes = Counter({one: n for one, n in self.flushes.items() if one.task.tid in tids})
        if self.targets is None:
            # As many CPUs each as the shootdowns of the whole machine.
            self.interrupts *= self.sent / every if every else 0
        else:
            self.targets = Counter({task: n for task, n in self.targets.items() if task.tid in tids})
            self.interrupts = sum(self.targets.values())
        self.received, self.victims = Counter(), None


def difference(after: Mapping[int, int], before: Mapping[int, int]) -> Counter[int]:
    """By CPU. A new CPU starts at 0, and a 32-bit counter may have wrapped."""
    return Counter({cpu: (count - before.get(cpu, 0)) % (1 << 32) for cpu, count in after.items()})


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
            before = last.pop(cpu, None)
            owner = before if before is not None and before.task.tid == tid else None
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


def is_range(pages: str | int) -> bool:
    """Whether a tlb_flush event's ``pages`` (of the trace, or as an unsigned number) is a range."""
    return 0 <= int(pages) < MANY


@dataclass
class _Request:
    """A shootdown under way: its open requests, and the time of the last answer."""

    begun: float
    open: int = 0
    ended: float = 0.0


@dataclass
class _Handler:
    """A run of the handler; ``request`` until it is acknowledged."""

    csd: str
    entered: float
    request: _Request | None

    def answer(self, time: float) -> None:
        """Acknowledge, unless that has happened already."""
        if self.request:
            self.request.open -= 1
            self.request.ended = time
            self.request = None


def timing(events: list[Event], tids: Collection[int] | None = None) -> Timing:
    """The time of handlers and the waits of initiators, of ``tids`` only if not None.

    Waits need csd:* (Linux 6.6): a request is queued for each CPU, and ``csd`` names it until it is
    acknowledged: at the end of its handler, or earlier with Quell's early acknowledgment. The next
    request may have the same ``csd`` while that handler still runs. Before 6.6 irq_vectors:* times the
    handlers.
    """
    result = Timing()
    flushes: list[_Request] = []
    last: dict[int, _Request] = {}
    queued: dict[str, _Request] = {}
    # By CPU. A handler that carries out several requests has nested entries and exits.
    running: dict[int, list[_Handler]] = {}
    vector: dict[int, float] = {}
    flushing: dict[int, bool] = {}

    for event in sorted(events, key=lambda one: one.time):
        name, tid, csd = event.name, event.task.tid, event.values.get("csd", "")
        handlers = running.setdefault(event.cpu, [])
        if name == "tlb_flush" and event.values.get("reason") == str(SENT):
            if tids is None or tid in tids:
                last[tid] = _Request(event.time)
                flushes.append(last[tid])
        elif name == "tlb_flush" and event.values.get("reason") == str(RECEIVED):
            flushing[event.cpu] = True
        elif name == "csd_queue_cpu":
            queued.pop(csd, None)
            if tid in last:
                queued[csd] = last[tid]
                last[tid].open += 1
        elif name == "csd_function_entry" and csd.strip("0"):
            handlers.append(_Handler(csd, event.time, queued.pop(csd, None)))
        elif name == "early_ack_ack" and handlers:
            handlers[-1].answer(event.time)
        elif name == "csd_function_exit" and csd.strip("0"):
            handler = next((one for one in handlers if one.csd == csd), None)
            if handler is None:
                continue
            handler.answer(event.time)
            handlers.remove(handler)
            result.handled += 1
            result.handler_s += 0.0 if handlers else event.time - handler.entered
        elif name.startswith("call_function") and name.endswith("_entry"):
            vector[event.cpu] = event.time
            flushing[event.cpu] = False
        elif name.startswith("call_function") and name.endswith("_exit"):
            start = vector.pop(event.cpu, None)
            if start is not None and flushing.pop(event.cpu, False):
                result.handler_s += event.time - start
                result.handled += 1
    answered = [one for one in flushes if one.ended and not one.open]
    result.sent, result.waited = len(flushes), len(answered)
    result.wait_s = sum(one.ended - one.begun for one in answered)
    return result


_DROPPED = re.compile(r"^    Dropped: (\d+)$", re.M)
_HIT = re.compile(r"\} hitcount: +(\d+)")
_EXECNAME = re.compile(r"common_pid: (.{16,}?)\[ *(\d+)\]")
_PAGES = re.compile(r"pages: +(?:~ )?(\d+)")


# What a histogram counts: the thread, the pages and the stack, None and empty where they are no keys.
HistKey = tuple[Task, Optional[int], tuple[str, ...]]


def read_hists(text: str) -> Iterator[tuple[str, dict[HistKey, int], int]]:
    """An event's ``hist`` file, as printed by hist_trigger_show().

    For each histogram: its trigger, its counts, and the number of events that it had no room for.
    """
    for part in text.split("# event histogram\n")[1:]:
        info = re.search(r"^# trigger info: (.*?)(?: \[\w+\])?$", part, re.M)
        dropped = _DROPPED.search(part)
        yield info[1] if info else "", dict(_entries(part)), int(dropped[1]) if dropped else 0


def _entries(text: str) -> Iterator[tuple[HistKey, int]]:
    for chunk in re.split(r"^\{ ", text, flags=re.M)[1:]:
        hit, task = _HIT.search(chunk), _EXECNAME.search(chunk)
        if hit is None or task is None:
            continue
        pages = _PAGES.search(chunk[: hit.start()])
        stack = chunk[: hit.start()].partition("stacktrace:\n")[2]
        # The last line, before the brace, holds further keys or nothing.
        lines = [line.strip() for line in stack.splitlines() if line.startswith("         ")]
        functions = tuple(line for line in lines if not _TRACING.match(line))
        yield (Task(int(task[2]), task[1].strip()), int(pages[1]) if pages else None, functions), int(hit[1])
