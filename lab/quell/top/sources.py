# SPDX-License-Identifier: GPL-2.0-only
"""The two ways to count shootdowns; ``choose()`` takes the first that works.

hist    tracefs histograms: the kernel counts by thread and stack, and copies no event out
events  single events with stacks, a sample where there are many: needs CONFIG_EVENT_TRACING alone

Both also trace events without stacks for a part of the time, to time handlers and waits.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from quell import procfs
from quell.errors import UsageError
from quell.top import sample
from quell.top.sample import RECEIVED, SENT, Event, Flush, Snapshot, Task, by_task
from quell.top.tracefs import Instance, Session, session

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
# Seconds of the first sample.
_FIRST_S = 0.05
# The least number of interrupts in a sample that gives its share of all.
_ENOUGH = 50
# Entries of a histogram (a power of 2), and when it is started afresh: reading takes longer with each.
_HIST_SIZE = 4096
_HIST_FRESH = 1024


class Source:
    """A way to count, from the beginning to the session's end; ``collect()`` takes the counts.

    ``targets``: the kernel has csd_queue_cpu (6.4), so the CPUs of each initiator are known.
    ``handlers``: it has csd_function_entry and _exit (6.6), so waits are known.
    ``not_taken``: the reasons against sources that were tried before.
    """

    name = ""
    # Seconds and events at most of the sample that is traced in each ``collect()``.
    sample_s = 0.0
    sample_events = 0

    def __init__(self, tracefs: Session) -> None:
        self.tracefs = tracefs
        if not tracefs.has(_FLUSH):
            raise UsageError("this kernel has no trace event tlb:tlb_flush")
        self.targets, self.handlers = tracefs.has(_QUEUE), tracefs.has(_ENTRY)
        # The instances of which samples are taken: events of times, and in Events those with stacks.
        self.sampled: list[Instance] = []
        wanted = {_FLUSH: f"reason == {SENT} || reason == {RECEIVED}"}
        wanted.update({_QUEUE: _IS_FLUSH, _ENTRY: _IS_REMOTE, _EXIT: _IS_REMOTE, _ACK: ""})
        if not self.handlers:
            for kind in ("call_function", "call_function_single"):
                wanted.update({f"events/irq_vectors/{kind}_{end}": "" for end in ("entry", "exit")})
        self._sample("times", wanted)
        self.prepare()
        self._last = self.counters()
        # A first sample gives the number of events in a second.
        self.rate = 0.0
        self.not_taken: list[str] = []
        self.collect(_FIRST_S, time.sleep)

    def prepare(self) -> None:
        """The source's own part of the beginning."""

    def counters(self) -> tuple[float, dict[int, int], Counter[str]]:
        """The time, and the counters that always run: shootdown interrupts and reclaimed pages."""
        every = procfs.vmstat(Path("/proc/vmstat").read_text())
        pages = Counter({name: every.get(name, 0) for name in ("pgsteal_file", "pgsteal_anon")})
        return time.monotonic(), interrupts(), pages

    def fill(self, snapshot: Snapshot, events: list[Event], factor: float) -> None:
        """Add the counts; ``events`` is the sample without stacks, ``factor`` that from samples to all."""
        raise NotImplementedError

    def _sample(self, suffix: str, wanted: dict[str, str]) -> Instance:
        """An instance of which samples are taken, with these events and their filters.

        Enabling an event patches the kernel's text. So it is done once, and tracing_on is switched.
        """
        made = self.tracefs.instance(suffix)
        made.write("trace_clock", "mono")
        made.write("buffer_size_kb", str(max(64, min(1024, _BUFFERS_KB // (os.cpu_count() or 1)))))
        for event, condition in wanted.items():
            if self.tracefs.has(event):
                if condition:
                    made.write(f"{event}/filter", condition)
                made.write(f"{event}/enable", "1")
        self.sampled.append(made)
        return made

    def collect(
        self, seconds: float, wait: Callable[[float], object], mine: Callable[[Task], bool] | None = None
    ) -> Snapshot:
        """The next ``seconds``, which ``wait`` may cut short; only threads that are ``mine`` if not None."""
        window = min(seconds, self.sample_s, max(0.001, self.sample_events / max(self.rate, 1.0)))
        began, at_first = time.monotonic(), interrupts()
        for one in self.sampled:
            one.write("tracing_on", "1")
        wait(window)
        for one in self.sampled:
            one.write("tracing_on", "0")
        looked = time.monotonic() - began
        # Includes the few that come while tracing is switched.
        caught = sample.arrived(interrupts(), at_first)
        events, lost = sample.read_events(self.sampled[0].take())
        wait(max(0.0, seconds - (time.monotonic() - began)))

        (since, before, old), self._last = self._last, self.counters()
        now, after, pages = self._last
        snapshot = Snapshot(now - since, sample.arrived(after, before), vmstat=pages - old)
        snapshot.timing = sample.timing(events, mine)
        # At least four events for an interrupt: the shootdown's own, three for the target.
        self.rate = max(4 * snapshot.interrupts / snapshot.seconds, (len(events) + lost) / looked)
        # Reading the events slows initiators down, so in a short sample time is the worse measure.
        factor = snapshot.interrupts / caught if caught > _ENOUGH else snapshot.seconds / looked
        self.fill(snapshot, events, max(1.0, factor))
        if not self.targets:
            snapshot.targets = _spread(snapshot.interrupts, by_task(snapshot.flushes))
        if mine is not None:
            snapshot.only(mine)
        return snapshot


def interrupts() -> dict[int, int]:
    """Shootdown interrupts by CPU since boot. UsageError where none are counted."""
    try:
        return procfs.interrupts(Path("/proc/interrupts").read_text(), "TLB")
    except ValueError as error:
        raise UsageError("this kernel counts no shootdowns: it is for one CPU, or not for x86") from error


def _spread(total: float, weights: Counter[Task]) -> Counter[Task]:
    """Share out ``total``."""
    whole = sum(weights.values())
    # The counts become fractions, which Counter's type does not know.
    return Counter({task: total * weight / whole for task, weight in weights.items()})


class Hist(Source):
    """The kernel's histograms of tlb:tlb_flush by thread and stack."""

    name = "hist"
    sample_s = 0.02
    sample_events = 5000

    def prepare(self) -> None:
        if not self.tracefs.has(f"{_FLUSH}/hist"):
            raise UsageError("this kernel lacks CONFIG_HIST_TRIGGERS")
        thread = "common_pid.execname"
        # In two buckets: ranges, and full flushes, which have more pages than any range.
        stacks = f"{thread},pages.buckets={1 << 20},stacktrace"
        self._triggers = [(_FLUSH, _trigger(stacks, f"reason == {SENT}"))]
        if self.targets:
            self._triggers.append((_QUEUE, _trigger(thread, _IS_FLUSH)))
        if self.handlers:
            self._triggers.append((_ENTRY, _trigger(thread, _IS_REMOTE)))
        else:
            self._triggers.append((_FLUSH, _trigger(thread, f"reason == {RECEIVED}")))
        self.counts = self.tracefs.instance("counts")
        # Some kernels fill histograms with tracing off, too, but not all.
        self.counts.write("tracing_on", "1")
        for event, trigger in self._triggers:
            self.counts.write(f"{event}/trigger", trigger)
        # By event, and whether stacks are keys: the last counts, which only grow.
        self._known: dict[tuple[str, bool], Counter[Flush]] = {}

    def counters(self) -> tuple[float, dict[int, int], Counter[str]]:
        # Parsing takes long: texts as old as the counters, so that both hold the same shootdowns.
        events = dict.fromkeys(event for event, _ in self._triggers)
        self._texts = {event: self.counts.read(f"{event}/hist") for event in events}
        return super().counters()

    def fill(self, snapshot: Snapshot, events: list[Event], factor: float) -> None:
        full = False
        for event, text in self._texts.items():
            for stacks, counts, dropped in sample.read_hists(text):
                new = counts - self._known.get((event, stacks), Counter())
                self._known[event, stacks] = counts
                snapshot.lost += dropped
                full |= dropped > 0 or len(counts) > _HIST_FRESH
                if stacks:
                    snapshot.flushes = new
                elif event == _QUEUE:
                    snapshot.targets = by_task(new)
                else:
                    snapshot.victims = by_task(new)
        if full:
            self._start_afresh()

    def _start_afresh(self) -> None:
        """Empty all histograms; shootdowns meanwhile are not counted.

        They are paused because the kernel clears unnamed histograms while events still add to them.
        Removing and adding them would patch the kernel's text, with an interrupt to all CPUs.
        """
        for event, trigger in self._triggers:
            for action in ("pause", "clear", "continue"):
                self.counts.write(f"{event}/trigger", trigger.replace(" if ", f":{action} if ", 1))
        self._known.clear()


def _trigger(keys: str, condition: str) -> str:
    return f"hist:keys={keys}:size={_HIST_SIZE} if {condition}"


class Events(Source):
    """Single events: all, or the first of each interval where there are many."""

    name = "events"
    sample_s = 1.0
    sample_events = 8000

    def prepare(self) -> None:
        self.stacks = self._sample("stacks", {_FLUSH: f"reason == {SENT}"})
        self.stacks.write("options/stacktrace", "1")

    def fill(self, snapshot: Snapshot, events: list[Event], factor: float) -> None:
        flushes, lost = sample.read_events(self.stacks.take())
        snapshot.seen = 1 / factor
        # The kernel keeps the newest events. Each flush is two of them, with its stack.
        factor *= 1 + lost / max(1, 2 * len(flushes))
        for one in flushes:
            ranged = one.values.get("pages") != "-1"  # TLB_FLUSH_ALL
            snapshot.flushes[Flush(one.task, one.stack, ranged)] += factor  # type: ignore
        sent = Counter(one.task for one in events if one.name == "csd_queue_cpu")
        entry = "csd_function_entry" if self.handlers else "tlb_flush"
        hits = [one for one in events if one.name == entry and one.values.get("reason") != SENT]
        snapshot.targets = _spread(snapshot.interrupts, sent)
        snapshot.victims = _spread(snapshot.interrupts, Counter(one.task for one in hits))


SOURCES = {kind.name: kind for kind in (Hist, Events)}


def choose(wanted: str, stack: ExitStack) -> Source:
    """A source that counts, until the end of ``stack``. UsageError if none works here.

    ``wanted`` is a key of SOURCES, or "auto".
    """
    interrupts()
    why: list[str] = []
    for name in SOURCES if wanted == "auto" else [wanted]:
        with ExitStack() as attempt:
            tracefs = attempt.enter_context(session())
            try:
                source = SOURCES[name](tracefs)
            except UsageError as error:
                why.append(f"{name}: {error}")
            else:
                source.not_taken = why
                stack.push(attempt.pop_all())
                return source
    raise UsageError("; ".join(why))
