# SPDX-License-Identifier: GPL-2.0-only
"""The two ways to count shootdowns; ``choose()`` takes the first that works.

hist    tracefs histograms: the kernel counts by thread and stack, and copies no event out
events  single events with stacks, a sample where there are many: needs CONFIG_EVENT_TRACING alone

Both also trace events without stacks for a part of the time, to time handlers and waits.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path

from quell import procfs
from quell.errors import UsageError
from quell.top import sample
from quell.top.sample import Event, Flush, Snapshot
from quell.top.tracefs import Instance, Session, session

# wait(seconds) sleeps; True when it is time to end.
Wait = Callable[[float], bool]

_FLUSH = "events/tlb/tlb_flush"
_QUEUE = "events/csd/csd_queue_cpu"
_ENTRY = "events/csd/csd_function_entry"
_EXIT = "events/csd/csd_function_exit"
_ACK = "events/early_ack/early_ack_ack"
_IS_FLUSH = "func.function == flush_tlb_func"
# The initiator's own flush runs through csd_function_entry without a request.
_IS_REMOTE = f"{_IS_FLUSH} && csd != 0"

# The buffers of an instance, all CPUs together. A burst fills them, and reading them takes long.
_BUFFERS_KB = 4096
# Seconds of a first sample, which gives the rate.
_FIRST_S = 0.05
# The least number of interrupts in a sample that gives its share of all.
_ENOUGH = 50
# Entries of a histogram (a power of 2), and when it is started afresh: reading takes longer with each.
_HIST_SIZE = 4096
_HIST_FRESH = 1024


class Source:
    """A way to count. ``start()`` once, then ``collect()``; the session's end stops it.

    ``targets``: the kernel has csd_queue_cpu (6.4), so the CPUs of each initiator are known.
    ``handlers``: it has csd_function_entry and _exit (6.6), so waits are known.
    """

    name = ""
    title = ""
    # Seconds and events at most of the sample that is traced in each ``collect()``.
    sample_s = 0.0
    sample_events = 0

    def __init__(self, tracefs: Session) -> None:
        self.tracefs = tracefs
        self.cannot_see = [
            "flushes that the hardware broadcasts or the hypervisor carries out without an interrupt",
            "flushes of kernel addresses",
            "functions that the compiler inlined",
        ]
        if not tracefs.has(_FLUSH):
            raise UsageError("this kernel has no trace event tlb:tlb_flush")
        self.targets, self.handlers = tracefs.has(_QUEUE), tracefs.has(_ENTRY)
        if not self.targets:
            self.cannot_see.append("the CPUs that each process interrupted (Linux 6.4)")
        if not self.handlers:
            self.cannot_see.append("the waits of initiators (Linux 6.6)")
        # The instances of which samples are taken: events of times, and in Events those with stacks.
        self.sampled: list[Instance] = []
        self.rate = 0.0

    def start(self) -> None:
        """Begin to count.

        Enabling an event patches the kernel's text. So it is done once, and tracing_on is switched.
        """
        wanted = {_FLUSH: f"reason == {sample.SENT} || reason == {sample.RECEIVED}"}
        wanted.update({_QUEUE: _IS_FLUSH, _ENTRY: _IS_REMOTE, _EXIT: _IS_REMOTE, _ACK: ""})
        if not self.handlers:
            for kind in ("call_function", "call_function_single"):
                wanted.update({f"events/irq_vectors/{kind}_{end}": "" for end in ("entry", "exit")})
        self.sampled.append(self._instance("times", wanted))
        self.prepare()
        self._mark()
        self.collect(_FIRST_S, _sleep)

    def prepare(self) -> None:
        """The source's own part of ``start()``."""

    def fill(self, snapshot: Snapshot, events: list[Event], sent: float, hits: float) -> None:
        """Add the counts; ``sent`` and ``hits`` are the factors from the sample of ``events`` to all."""
        raise NotImplementedError

    def _instance(self, suffix: str, wanted: dict[str, str]) -> Instance:
        made = self.tracefs.instance(suffix)
        made.write("trace_clock", "mono")
        made.write("buffer_size_kb", str(max(64, min(1024, _BUFFERS_KB // (os.cpu_count() or 1)))))
        for event, condition in wanted.items():
            if self.tracefs.has(event):
                if condition:
                    made.write(f"{event}/filter", condition)
                made.write(f"{event}/enable", "1")
        return made

    def collect(self, seconds: float, wait: Wait, tids: Collection[int] | None = None) -> Snapshot:
        """The next ``seconds``, or less if ``wait`` says so; times are those of ``tids`` if not None."""
        window = min(seconds, self.sample_s, max(0.001, self.sample_events / max(self.rate, 1.0)))
        began, before = time.monotonic(), interrupts()
        for one in self.sampled:
            one.write("tracing_on", "1")
        wait(window)
        for one in self.sampled:
            one.write("tracing_on", "0")
        looked = time.monotonic() - began
        # Includes the few that come while tracing is switched.
        caught = sum(sample.difference(interrupts(), before).values())
        events, lost = sample.read_events(self.sampled[0].take())
        wait(max(0.0, seconds - (time.monotonic() - began)))
        snapshot = self._counted()
        self.rate = max(self.rate, (len(events) + lost) / looked)
        # Reading the events slows initiators down, so in a short sample time is the worse measure.
        sent = snapshot.seconds / looked
        hits = snapshot.interrupts / caught if caught else sent
        if caught > _ENOUGH and window < seconds:
            sent = hits
        snapshot.timing = sample.timing(events, tids)
        self.fill(snapshot, events, max(1.0, sent), max(1.0, hits) * (1 + lost / max(1, len(events))))
        return snapshot

    def _mark(self) -> None:
        self._since, self._interrupts, self._vmstat = time.monotonic(), interrupts(), _vmstat()

    def _counted(self) -> Snapshot:
        """The counters that always run, since the last call; also sets ``rate``."""
        since, before, vmstat = self._since, self._interrupts, self._vmstat
        self._mark()
        received = sample.difference(self._interrupts, before)
        result = Snapshot(self._since - since, sum(received.values()), received, victims=Counter())
        result.targets = Counter() if self.targets else None
        result.vmstat = Counter({name: n - vmstat[name] for name, n in self._vmstat.items()})
        # At least four events for each: the shootdown's own, three for the target.
        self.rate = 4 * result.interrupts / max(result.seconds, 1e-9)
        return result


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def interrupts() -> Counter[int]:
    """Shootdown interrupts by CPU since boot. UsageError where none are counted."""
    try:
        return Counter(procfs.interrupts(Path("/proc/interrupts").read_text(), "TLB"))
    except ValueError as error:
        machine = platform.machine()
        if machine in ("x86_64", "i686", "i386"):
            why = "/proc/interrupts has no TLB line: this kernel is built for one CPU"
        else:
            why = (
                f"this kernel ({machine}) counts no TLB shootdowns: where the hardware broadcasts "
                "flushes, as on arm64, no CPU is interrupted, and Quell has nothing to fix"
            )
        raise UsageError(why) from error


def _vmstat() -> Counter[str]:
    every = procfs.vmstat(Path("/proc/vmstat").read_text())
    return Counter({name: every.get(name, 0) for name in ("pgsteal_file", "pgsteal_anon")})


class Hist(Source):
    """The kernel's histograms."""

    name = "hist"
    title = "tracefs histograms of tlb:tlb_flush by thread and stack"
    sample_s = 0.02
    sample_events = 5000

    def __init__(self, tracefs: Session) -> None:
        super().__init__(tracefs)
        if not tracefs.has(f"{_FLUSH}/hist"):
            raise UsageError("this kernel lacks CONFIG_HIST_TRIGGERS")
        self.cannot_see.append("stack functions beyond the 16th")
        # By event and trigger: the last counts, which only grow, and the events dropped until then.
        self._last: dict[tuple[str, str], tuple[dict[sample.HistKey, int], int]] = {}
        self._triggers: list[tuple[str, str]] = []
        self._texts: dict[str, str] = {}

    def prepare(self) -> None:
        self.counts = self.tracefs.instance("counts")
        # Some kernels fill histograms with tracing off, too, but not all.
        self.counts.write("tracing_on", "1")
        thread, sent = "common_pid.execname", f"reason == {sample.SENT}"
        # Without buckets (before 5.14) there is an entry for each number of pages, at most 34.
        pages = (f"pages.buckets={sample.MANY}", "pages")
        self._add(_FLUSH, *(_trigger(f"{thread},{one},stacktrace", sent) for one in pages))
        if self.targets:
            self._add(_QUEUE, _trigger(thread, _IS_FLUSH))
        if self.handlers:
            self._add(_ENTRY, _trigger(thread, _IS_REMOTE))
        else:
            self._add(_FLUSH, _trigger(thread, f"reason == {sample.RECEIVED}"))

    def _add(self, event: str, *choices: str) -> None:
        for trigger in choices:
            try:
                self.counts.write(f"{event}/trigger", trigger)
            except UsageError:
                continue
            self._triggers.append((event, trigger))
            return
        raise UsageError(f"the kernel refused the histogram {choices[0]!r}")

    def _counted(self) -> Snapshot:
        # Parsing takes long: texts as old as the counters, so that both hold the same shootdowns.
        for event in dict.fromkeys(event for event, _ in self._triggers):
            self._texts[event] = self.counts.read(f"{event}/hist")
        return super()._counted()

    def fill(self, snapshot: Snapshot, events: list[Event], sent: float, hits: float) -> None:
        assert snapshot.victims is not None
        for event, text in self._texts.items():
            full = False
            for trigger, counts, dropped in sample.read_hists(text):
                last, last_dropped = self._last.get((event, trigger), ({}, 0))
                self._last[event, trigger] = counts, dropped
                snapshot.lost += dropped - last_dropped
                full |= dropped > last_dropped or len(counts) > _HIST_FRESH
                for (task, pages, stack), count in counts.items():
                    new = count - last.get((task, pages, stack), 0)
                    if new <= 0:
                        continue
                    if "stacktrace" in trigger:
                        ranged = pages is not None and sample.is_range(pages)
                        snapshot.flushes[Flush(task, stack, ranged)] += new
                    elif event != _QUEUE:
                        snapshot.victims[task] += new
                    elif snapshot.targets is not None:
                        snapshot.targets[task] += new
            if full:
                self._fresh(event)

    def _fresh(self, event: str) -> None:
        """Start an event's histograms again; shootdowns meanwhile are not counted.

        They are paused because the kernel clears unnamed histograms while events still add to them.
        Removing and adding them would patch the kernel's text, with an interrupt to all CPUs.
        """
        for other, trigger in self._triggers:
            if other == event:
                for action in ("pause", "clear", "continue"):
                    self.counts.write(f"{event}/trigger", trigger.replace(" if ", f":{action} if ", 1))
        self._last = {key: last for key, last in self._last.items() if key[0] != event}


def _trigger(keys: str, condition: str) -> str:
    return f"hist:keys={keys}:size={_HIST_SIZE} if {condition}"


class Events(Source):
    """Single events: all, or the first of each interval where there are many."""

    name = "events"
    title = "single tlb:tlb_flush events with stacks"
    sample_s = 1.0
    sample_events = 8000

    def __init__(self, tracefs: Session) -> None:
        super().__init__(tracefs)
        self.cannot_see.append("all of thousands of shootdowns a second: it samples them")

    def prepare(self) -> None:
        wanted = {_FLUSH: f"reason == {sample.SENT}"}
        self.stacks = self._instance("stacks", wanted)
        self.stacks.write("options/stacktrace", "1")
        self.sampled.append(self.stacks)

    def fill(self, snapshot: Snapshot, events: list[Event], sent: float, hits: float) -> None:
        flushes, lost = sample.read_events(self.stacks.take())
        snapshot.seen = 1 / sent
        # The kernel keeps the newest events. Each flush is two of them, with its stack.
        sent *= 1 + lost / max(1, 2 * len(flushes))
        assert snapshot.victims is not None
        # The counts become fractions, which Counter's type does not know.
        for one in flushes:
            ranged = sample.is_range(one.values.get("pages", "-1"))
            snapshot.flushes[Flush(one.task, one.stack, ranged)] += sent  # type: ignore
        for one in events:
            if one.name == "csd_queue_cpu" and snapshot.targets is not None:
                snapshot.targets[one.task] += hits  # type: ignore
            elif one.name == "csd_function_entry" or (
                not self.handlers and one.values.get("reason") == str(sample.RECEIVED)
            ):
                snapshot.victims[one.task] += hits  # type: ignore


def choose(wanted: str, stack: ExitStack) -> tuple[Source, list[str]]:
    """A started source, and the reasons against those before it. ``stack`` ends it.

    ``wanted`` is a key of SOURCES, or "auto". UsageError if it does not work here.
    """
    interrupts()
    why: list[str] = []
    for kind in (kind for name, kind in SOURCES.items() if wanted in ("auto", name)):
        with ExitStack() as attempt:
            tracefs = attempt.enter_context(session())
            try:
                source = kind(tracefs)
                source.start()
            except UsageError as error:
                why.append(f"{kind.name}: {error}")
            else:
                stack.push(attempt.pop_all())
                return source, why
    raise UsageError("; ".join(why))


SOURCES: dict[str, type[Source]] = {"hist": Hist, "events": Events}
