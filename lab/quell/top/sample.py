# SPDX-License-Identifier: GPL-2.0-only
"""What one snapshot holds, and reading it from the kernel's own texts.

All parsers are pure: text in, counts out. They follow kernel/trace/trace_output.c,
trace_events_hist.c and arch/x86/kernel/irq.c.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# tlb:tlb_flush's reasons, include/trace/events/tlb.h.
RECEIVED = 1
SENT = 4
# More pages than any range has: what is above is TLB_FLUSH_ALL, -1.
MANY = 1 << 20


@dataclass(frozen=True)
class Task:
    """A thread as the trace names it. ``pid`` is its process, 0 where the source does not say."""

    tid: int
    comm: str
    pid: int = 0


@dataclass(frozen=True)
class Flush:
    """A kind of shootdown: who sent it, from where (innermost function first), for a range or all."""

    task: Task
    stack: tuple[str, ...]
    ranged: bool


@dataclass
class Timing:
    """Sums over the shootdowns whose time was taken, in seconds.

    ``handler_s`` is what interrupted CPUs spent in the handler ``handled`` times, ``wait_s`` what
    senders spent from sending to the last CPU's answer in ``waited`` of ``sent`` shootdowns. The
    others reached nobody: all their CPUs were idle or had left the address space.
    """

    handler_s: float = 0.0
    handled: int = 0
    wait_s: float = 0.0
    waited: int = 0
    sent: int = 0

    def add(self, other: Timing) -> None:
        """Add another's sums."""
        self.handler_s += other.handler_s
        self.handled += other.handled
        self.wait_s += other.wait_s
        self.waited += other.waited
        self.sent += other.sent


@dataclass
class Snapshot:
    """What happened in ``seconds``; None is what the source cannot see.

    ``targets`` counts interrupted CPUs by sender, ``victims`` interrupts by the thread they hit,
    ``received`` interrupts by CPU. Counts of a source that samples are scaled up.
    ``lost`` is how many events it missed, ``seen`` the share of the time it looked.
    """

    seconds: float = 0.0
    sent: float | None = None
    flushes: Counter[Flush] = field(default_factory=Counter)
    targets: Counter[Task] | None = None
    victims: Counter[Task] | None = None
    received: Counter[int] = field(default_factory=Counter)
    timing: Timing = field(default_factory=Timing)
    vmstat: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    seen: float = 1.0

    def add(self, other: Snapshot) -> None:
        """Add a later one."""
        both = self.seconds + other.seconds
        if both:
            self.seen = (self.seen * self.seconds + other.seen * other.seconds) / both
        self.seconds = both
        if other.sent is not None:
            self.sent = (self.sent or 0) + other.sent
        self.flushes.update(other.flushes)
        if other.targets is not None:
            self.targets = (self.targets or Counter()) + other.targets
        if other.victims is not None:
            self.victims = (self.victims or Counter()) + other.victims
        self.received.update(other.received)
        self.timing.add(other.timing)
        self.vmstat.update(other.vmstat)
        self.lost += other.lost


def difference(after: Mapping[int, int], before: Mapping[int, int]) -> Counter[int]:
    """By CPU; one that came meanwhile starts at 0, and its 32-bit counter may have wrapped."""
    return Counter({cpu: (count - before.get(cpu, 0)) % (1 << 32) for cpu, count in after.items()})


# comm may hold anything, even " [001] "; the first that fits from the left is the kernel's.
_LINE = re.compile(
    r"^ *(?P<comm>.*)-(?P<tid>\d+) +(?:\( *[-\d]+\) +)?\[(?P<cpu>\d+)\] +(?:\S+ +)?"
    r"(?P<time>\d+\.\d+): (?P<event>\w+|<stack trace>)(?:: ?(?P<rest>.*))?$"
)
_LOST = re.compile(r"^CPU:\d+ \[LOST (?:(\d+) )?EVENTS\]")
_VALUE = re.compile(r"(\w+)[=:](\S+)")
# tlb_flush ends in the reason's number.
_NUMBER = re.compile(r"\((\d+)\)$")
# Not the flush's own callers: what tracing adds on top.
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
    """trace_pipe's events with the stacks that follow them, and how many the kernel lost.

    A last line cut short is left out. An event whose stack was lost has none.
    """
    events: list[Event] = []
    lost = 0
    # CPUs' lines are merged by time: a stack belongs to the last event of its CPU.
    last: dict[int, Event] = {}
    owner: Event | None = None
    stack: list[str] = []

    def close() -> None:
        if owner is not None:
            owner.stack = _callers(stack)

    for line in text.splitlines():
        if line.startswith(" => "):
            stack.append(line[4:].strip())
            continue
        match = _LINE.match(line)
        if match is None:
            gone = _LOST.match(line)
            if gone:
                lost += int(gone[1] or 1)
            continue
        close()
        owner, stack = None, []
        cpu, tid = int(match["cpu"]), int(match["tid"])
        if match["event"] == "<stack trace>":
            before = last.pop(cpu, None)
            if before is not None and before.task.tid == tid:
                owner = before
            continue
        rest = match["rest"] or ""
        values = {key: value.rstrip(",") for key, value in _VALUE.findall(rest)}
        number = _NUMBER.search(rest)
        if number:
            values["reason"] = number[1]
        event = Event(
            Task(tid, match["comm"].strip()), cpu, float(match["time"]), match["event"], values
        )
        events.append(event)
        last[cpu] = event
    close()
    return events, lost


def _callers(stack: list[str]) -> tuple[str, ...]:
    """Without what tracing itself put on the stack."""
    return tuple(one for one in stack if not _TRACING.match(one))


def is_range(pages: str | int) -> bool:
    """Whether a tlb_flush event's ``pages`` (of the trace, or as an unsigned number) is a range."""
    return 0 <= int(pages) < MANY


@dataclass
class _Sent:
    """A shootdown: how many requests are not answered, and when the last one was."""

    begun: float
    open: int = 0
    ended: float = 0.0


@dataclass
class _Handler:
    """A request that is handled; ``sent`` until it is answered."""

    csd: str
    entered: float
    sent: _Sent | None

    def answered(self, time: float) -> None:
        """Once, whoever says it first."""
        if self.sent:
            self.sent.open -= 1
            self.sent.ended = time
            self.sent = None


def timing(events: list[Event]) -> Timing:
    """What handlers and senders spent, from events in the order of time.

    Needs csd:* (6.6 and later) for the senders: a request is queued for each CPU, and its
    ``csd`` names it until it is answered: at the end of its handler, or before, if that
    acknowledges early; then the next one may have the same ``csd`` while the handler runs.
    Before 6.6, irq_vectors says how long handlers ran.
    """
    result = Timing()
    flushes: list[_Sent] = []
    last: dict[int, _Sent] = {}
    queued: dict[str, _Sent] = {}
    # By CPU: handlers that run, of which one contains those that came with it.
    running: dict[int, list[_Handler]] = {}
    vector: dict[int, float] = {}
    flushing: dict[int, bool] = {}

    for event in sorted(events, key=lambda one: one.time):
        tid, csd = event.task.tid, event.values.get("csd", "")
        handlers = running.setdefault(event.cpu, [])
        if event.name == "tlb_flush" and event.values.get("reason") == str(SENT):
            flushes.append(_Sent(event.time))
            last[tid] = flushes[-1]
        elif event.name == "tlb_flush" and event.values.get("reason") == str(RECEIVED):
            flushing[event.cpu] = True
        elif event.name == "csd_queue_cpu":
            if tid in last:
                queued[csd] = last[tid]
                last[tid].open += 1
        elif event.name == "csd_function_entry" and csd.strip("0"):
            handlers.append(_Handler(csd, event.time, queued.pop(csd, None)))
        elif event.name == "early_ack_ack" and handlers:
            handlers[-1].answered(event.time)
        elif event.name == "csd_function_exit" and csd.strip("0"):
            handler = next((one for one in handlers if one.csd == csd), None)
            if handler is None:
                continue
            handler.answered(event.time)
            handlers.remove(handler)
            result.handled += 1
            result.handler_s += 0.0 if handlers else event.time - handler.entered
        elif event.name.startswith("call_function") and event.name.endswith("_entry"):
            vector[event.cpu] = event.time
            flushing[event.cpu] = False
        elif event.name.startswith("call_function") and event.name.endswith("_exit"):
            start = vector.pop(event.cpu, None)
            if start is not None and flushing.pop(event.cpu, False):
                result.handler_s += event.time - start
                result.handled += 1
    answered = [one for one in flushes if one.ended and not one.open]
    result.sent, result.waited = len(flushes), len(answered)
    result.wait_s = sum(one.ended - one.begun for one in answered)
    return result


_TOTAL = re.compile(r"^    (Hits|Entries|Dropped): (\d+)$", re.M)
_HIT = re.compile(r"\} hitcount: +(\d+)")
_EXECNAME = re.compile(r"common_pid: (.{16,}?)\[ *(\d+)\]")
_PAGES = re.compile(r"pages: +(?:~ )?(\d+)")


@dataclass(frozen=True)
class HistEntry:
    """An entry of a ``hist`` file; ``pages`` is None and ``stack`` empty where not among the keys."""

    task: Task
    pages: int | None
    stack: tuple[str, ...]
    count: int


@dataclass
class Hist:
    """One histogram: what it counts by, its entries, and how many events it had no room for."""

    trigger: str
    entries: list[HistEntry]
    dropped: int


def read_hists(text: str) -> list[Hist]:
    """An event's ``hist`` file: one histogram per trigger, as printed by hist_trigger_show()."""
    found = []
    for part in text.split("# event histogram\n")[1:]:
        info = re.search(r"^# trigger info: (.*?)(?: \[\w+\])?$", part, re.M)
        totals = {name: int(number) for name, number in _TOTAL.findall(part)}
        found.append(
            Hist(info[1] if info else "", list(_entries(part)), totals.get("Dropped", 0))
        )
    return found


def _entries(text: str) -> Iterator[HistEntry]:
    for chunk in re.split(r"^\{ ", text, flags=re.M)[1:]:
        hit = _HIT.search(chunk)
        who = _EXECNAME.search(chunk)
        if hit is None or who is None:
            continue
        pages = _PAGES.search(chunk[: hit.start()])
        keys, _, stack = chunk[: hit.start()].partition("stacktrace:\n")
        yield HistEntry(
            Task(int(who[2]), who[1].strip()),
            int(pages[1]) if pages else None,
            # The last line is what stands before the brace: further keys, or nothing.
            _callers([line.strip() for line in stack.splitlines() if line.startswith("         ")]),
            int(hit[1]),
        )


_BPF_KEY = re.compile(r"^(\d+),(\d+),(?:([01]),)?(.*?)(?:,\n(.*))?$", re.S)


def read_bpf(data: Mapping[str, int]) -> Iterator[tuple[Task, bool, tuple[str, ...], int]]:
    """A map of our bpftrace script as JSON: key ``pid,tid[,ranged],comm[,stack]``, value a count.

    Yields (task, ranged, stack, count).
    """
    for key, count in data.items():
        match = _BPF_KEY.match(key)
        if match is None:
            continue
        stack = [line.strip() for line in (match[5] or "").splitlines() if line.strip()]
        task = Task(int(match[2]), match[4], int(match[1]))
        yield task, match[3] == "1", _callers(stack), int(count)
