# SPDX-License-Identifier: GPL-2.0-only
"""Where the figures come from: a ladder of four sources, the first that works is taken.

hist      tracefs histograms: the kernel adds up by thread and stack, nothing is copied out
bpf       the same by bpftrace, where the kernel has BTF but no histograms
events    single events with stacks, sampled so that they cost little where there are many
counters  /proc/interrupts: how many and on which CPUs, not who and why; needs no permission

All but counters also take the time of some shootdowns: a trace of some milliseconds every
interval, with as few events as tell when a request was sent and when it was done.
"""

from __future__ import annotations

import json
import os
import platform
import selectors
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from quell import proc, procfs
from quell.errors import UsageError
from quell.prereq import which
from quell.top import sample
from quell.top.sample import Event, Flush, Snapshot, Task, Timing
from quell.top.tracefs import Instance, NoAccess, Session, Tracefs

NAMES = ("hist", "bpf", "events", "counters")
# wait(seconds) sleeps; True when it is time to end.
Wait = Callable[[float], bool]

_FLUSH = "events/tlb/tlb_flush"
_QUEUE = "events/csd/csd_queue_cpu"
_ENTRY = "events/csd/csd_function_entry"
_EXIT = "events/csd/csd_function_exit"
_ACK = "events/early_ack/early_ack_ack"
_IS_FLUSH = "func.function == flush_tlb_func"
# The flush that the sender does itself runs through csd_function_entry without a request.
_IS_REMOTE = f"{_IS_FLUSH} && csd != 0"

# Per CPU; one second of what is sampled fits, with some to spare.
_BUFFER_KB = 512
_STACK_BUFFER_KB = 1024  # a stack takes some 200 bytes
# Seconds, and lines to read, of one sample of times.
_SLICE_S = 0.02
_SLICE_EVENTS = 5000
# Lines of events that are read in one interval; where there are more, they are sampled.
_LINES = 8000
# Interrupts while it looked from which on they say what share of all it saw.
_ENOUGH = 50
# Seconds at most without emptying the buffers.
_WINDOW_S = 0.2
_TAKE = 64 << 20
# Entries of a histogram (a power of 2), and when it is started afresh: reading it grows with them.
_HIST_SIZE = 4096
_HIST_FRESH = 1024
# The key under which the number of dropped events is kept.
_DROPPED = "dropped"

_BROADCAST = (
    "flushes that the CPUs broadcast in hardware (arm64, AMD's INVLPGB) or that the hypervisor "
    "carries out without an interrupt"
)
_KERNEL = "flushes of kernel addresses (vmalloc, modules): they go another way"
_INLINED = "functions that the compiler inlined: MADV_DONTNEED and MADV_FREE look alike since 6.16"


class Source:
    """A way to the figures. ``start()`` once, ``collect()`` any number of times, ``stop()``.

    ``cannot_see`` are clauses that follow "it cannot see".
    """

    name = ""
    title = ""

    def __init__(self) -> None:
        self.cannot_see: list[str] = []
        self._interrupts: Counter[int] = Counter()
        self._vmstat: Counter[str] = Counter()
        self._since = 0.0

    def start(self, interval: float) -> None:
        """Begin to count; ``interval`` in seconds is how often it will be collected."""
        self.mark()

    def collect(self, seconds: float, wait: Wait) -> Snapshot:
        """What happens in ``seconds`` from now, or until ``wait`` says to end."""
        wait(seconds)
        return self.counted()

    def stop(self) -> None:
        """Let go of everything; also after a failed ``start()``, and twice."""

    def mark(self) -> None:
        """Remember the counters that always run."""
        self._since = time.monotonic()
        self._interrupts = _interrupts()
        self._vmstat = _vmstat()

    def counted(self) -> Snapshot:
        """What these counted since."""
        before, before_vmstat, since = self._interrupts, self._vmstat, self._since
        self.mark()
        moved = Counter({name: count - before_vmstat[name] for name, count in self._vmstat.items()})
        return Snapshot(
            seconds=self._since - since,
            sent=moved.get("nr_tlb_remote_flush"),
            received=sample.difference(self._interrupts, before),
            vmstat=moved,
        )


def _interrupts() -> Counter[int]:
    try:
        return Counter(procfs.interrupts(Path("/proc/interrupts").read_text(), "TLB"))
    except ValueError as error:
        if platform.machine() not in ("x86_64", "i686", "i386"):
            raise UsageError(
                f"this kernel ({platform.machine()}) counts no TLB shootdowns: where the hardware "
                "broadcasts flushes, as on arm64, no CPU is interrupted, and Quell has nothing to mend"
            ) from error
        raise UsageError("/proc/interrupts has no TLB line: this kernel is built for one CPU") from error


def _vmstat() -> Counter[str]:
    return Counter(procfs.vmstat(Path("/proc/vmstat").read_text()))


class Counters(Source):
    """What every user may read."""

    name = "counters"
    title = "/proc/interrupts and /proc/vmstat"

    def __init__(self) -> None:
        super().__init__()
        self.cannot_see = ["who sends shootdowns, why, and what they cost", _BROADCAST, _KERNEL]
        if "nr_tlb_remote_flush" not in _vmstat():
            self.cannot_see.insert(1, "how many were sent, only how many arrived")


class _Clocked(Source):
    """With an instance in which the times of some shootdowns are taken."""

    def __init__(self, tracefs: Tracefs) -> None:
        super().__init__()
        self.tracefs = tracefs
        self.stack = ExitStack()
        self.session: Session | None = None
        self.times: Instance | None = None
        self.cannot_see = [_BROADCAST, _KERNEL, _INLINED]
        if not tracefs.has(_FLUSH):
            raise NoAccess("this kernel has no trace event tlb:tlb_flush")
        self.targets = tracefs.has(_QUEUE)
        self.handlers = tracefs.has(_ENTRY)
        if not self.targets:
            self.cannot_see.append("how many CPUs each process interrupted (needs Linux 6.4)")
        if not self.handlers:
            self.cannot_see.append("how long senders wait (needs Linux 6.6)")

    def open(self) -> None:
        """Make the instance, with its events enabled and tracing off.

        Enabling patches the kernel's text; so it is done once, and only tracing_on is switched.
        """
        self.session = self.stack.enter_context(self.tracefs.session())
        self.times = times = self.session.instance("times")
        times.write("trace_clock", "mono")
        times.write("buffer_size_kb", str(_BUFFER_KB))
        times.append(f"{_FLUSH}/filter", f"reason == {sample.SENT} || reason == {sample.RECEIVED}")
        wanted = [_FLUSH]
        for event, condition in ((_QUEUE, _IS_FLUSH), (_ENTRY, _IS_REMOTE), (_EXIT, _IS_REMOTE)):
            if times.has(event):
                times.append(f"{event}/filter", condition)
                wanted.append(event)
        wanted.append(_ACK)
        if not self.handlers:
            for kind in ("call_function", "call_function_single"):
                wanted += [f"events/irq_vectors/{kind}_{end}" for end in ("entry", "exit")]
        for event in wanted:
            if times.has(event):
                times.write(f"{event}/enable", "1")

    def clock(self, seconds: float, wait: Wait) -> float:
        """Trace for ``seconds``; the seconds it really was. ``taken()`` then has the events."""
        assert self.times is not None
        self.times.write("tracing_on", "1")
        began = time.monotonic()
        try:
            wait(seconds)
        finally:
            self.times.write("tracing_on", "0")
        return time.monotonic() - began

    def taken(self) -> tuple[list[Event], int]:
        """The events of ``clock()``, and how many were lost."""
        assert self.times is not None
        return sample.read_events(self.times.take(_TAKE))

    def slice(self) -> float:
        """Seconds to take times for: less where there is much to see."""
        # Four lines a shootdown at least: one for it, three for each CPU.
        rate = 4 * sum(self._interrupts_rate.values()) if self._interrupts_rate else 0
        return min(_SLICE_S, max(0.001, _SLICE_EVENTS / rate)) if rate else _SLICE_S

    _interrupts_rate: Counter[int] | None = None

    def counted(self) -> Snapshot:
        snapshot = super().counted()
        if snapshot.seconds:
            self._interrupts_rate = Counter(
                {cpu: round(count / snapshot.seconds) for cpu, count in snapshot.received.items()}
            )
        return snapshot

    def timed(self, seconds: float, wait: Wait) -> Timing:
        """Take times, then wait for the rest of ``seconds``."""
        began = time.monotonic()
        self.clock(min(self.slice(), seconds), wait)
        events, _ = self.taken()
        wait(max(0.0, seconds - (time.monotonic() - began)))
        return sample.timing(events)

    def stop(self) -> None:
        self.times = None
        self.stack.close()


class Hist(_Clocked):
    """The kernel's histograms."""

    name = "hist"
    title = "tracefs histograms of tlb:tlb_flush by thread and stack"

    def __init__(self, tracefs: Tracefs) -> None:
        super().__init__(tracefs)
        if not tracefs.has(f"{_FLUSH}/hist"):
            raise NoAccess("this kernel has no trace histograms (CONFIG_HIST_TRIGGERS)")
        self.cannot_see += ["more than 16 functions of a stack"]
        self.counts: Instance | None = None
        # By event and trigger: what each entry stood at, as they only ever grow.
        self._last: dict[tuple[str, str], Counter[object]] = {}
        self._triggers: list[tuple[str, str]] = []

    def start(self, interval: float) -> None:
        self.open()
        assert self.session is not None
        self.counts = self.session.instance("counts")
        # Histograms fill with tracing off, too, but not in every kernel.
        self.counts.write("tracing_on", "1")
        who = "common_pid.execname"
        # Without buckets (before 5.14) there is an entry for each number of pages, at most 34.
        pages = (f"pages.buckets={sample.MANY}", "pages")
        self._add(_FLUSH, *(_trigger(f"{who},{one},stacktrace", f"reason == {sample.SENT}") for one in pages))
        if self.targets:
            self._add(_QUEUE, _trigger(who, _IS_FLUSH))
        if self.handlers:
            self._add(_ENTRY, _trigger(who, _IS_REMOTE))
        else:
            self._add(_FLUSH, _trigger(who, f"reason == {sample.RECEIVED}"))
        self.mark()
        for event in dict.fromkeys(event for event, _ in self._triggers):
            self._read(event, self._empty())

    def _empty(self) -> Snapshot:
        return Snapshot(
            sent=0, targets=Counter() if self.targets else None, victims=Counter()
        )

    def _add(self, event: str, *choices: str) -> None:
        assert self.counts is not None
        for trigger in choices:
            if self.counts.accepts(f"{event}/trigger", trigger):
                self._triggers.append((event, trigger))
                return
        raise NoAccess(f"the kernel refused the histogram {choices[0]!r}")

    def collect(self, seconds: float, wait: Wait) -> Snapshot:
        taken = self.timed(seconds, wait)
        snapshot = self.counted()
        empty = self._empty()
        snapshot.timing, snapshot.sent = taken, 0
        snapshot.targets, snapshot.victims = empty.targets, empty.victims
        for event in dict.fromkeys(event for event, _ in self._triggers):
            self._read(event, snapshot)
        return snapshot

    def _read(self, event: str, snapshot: Snapshot) -> None:
        assert self.counts is not None
        full = False
        for hist in sample.read_hists(self.counts.read(f"{event}/hist")):
            last = self._last.setdefault((event, hist.trigger), Counter())
            dropped = hist.dropped - last[_DROPPED]
            last[_DROPPED] = hist.dropped
            snapshot.lost += max(0, dropped)
            full |= dropped > 0 or len(hist.entries) > _HIST_FRESH
            for entry in hist.entries:
                key = (entry.task, entry.pages, entry.stack)
                new = entry.count - last[key]
                last[key] = entry.count
                if new > 0:
                    self._count(event, hist.trigger, entry, new, snapshot)
        if full:
            self._fresh(event)

    def _count(
        self, event: str, trigger: str, entry: sample.HistEntry, new: int, snapshot: Snapshot
    ) -> None:
        if event == _QUEUE:
            assert snapshot.targets is not None
            snapshot.targets[entry.task] += new
        elif event == _ENTRY or "stacktrace" not in trigger:
            assert snapshot.victims is not None
            snapshot.victims[entry.task] += new
        else:
            ranged = entry.pages is not None and sample.is_range(entry.pages)
            snapshot.flushes[Flush(entry.task, entry.stack, ranged)] += new
            assert snapshot.sent is not None
            snapshot.sent += new

    def _fresh(self, event: str) -> None:
        """Start an event's histograms again; what comes in between is not counted.

        They are paused meanwhile, as the kernel clears those without a name under its own feet.
        Removed and added again, the kernel would patch its code, with interrupts to all CPUs.
        """
        assert self.counts is not None
        for other, trigger in self._triggers:
            if other == event:
                for what in ("pause", "clear", "continue"):
                    self.counts.accepts(f"{event}/trigger", trigger.replace(" if ", f":{what} if ", 1))
        self._last = {key: counts for key, counts in self._last.items() if key[0] != event}

    def stop(self) -> None:
        self.counts = None
        super().stop()


def _trigger(keys: str, condition: str) -> str:
    return f"hist:keys={keys}:size={_HIST_SIZE} if {condition}"


class Events(_Clocked):
    """Single events, sampled."""

    name = "events"
    title = "single tlb:tlb_flush events with stacks"

    def __init__(self, tracefs: Tracefs) -> None:
        super().__init__(tracefs)
        self.cannot_see += ["all shootdowns, where there are thousands a second: it samples them"]
        self.stacks: Instance | None = None
        # The first look is short: nobody knows yet how much there is.
        self._window = _WINDOW_S / 4

    def start(self, interval: float) -> None:
        self.open()
        assert self.session is not None
        self.stacks = self.session.instance("stacks")
        self.stacks.write("buffer_size_kb", str(_STACK_BUFFER_KB))
        self.stacks.write("options/stacktrace", "1")
        self.stacks.append(f"{_FLUSH}/filter", f"reason == {sample.SENT}")
        self.stacks.write(f"{_FLUSH}/enable", "1")
        self.mark()

    def collect(self, seconds: float, wait: Wait) -> Snapshot:
        assert self.stacks is not None
        began = time.monotonic()
        whole = Snapshot()
        lines, looked, received, ended = 0, 0.0, 0, False
        while not ended and (left := seconds - (time.monotonic() - began)) > 0:
            window = min(self._window, _WINDOW_S, left)
            # Also what is not traced while it is switched on and off: a few.
            before = _interrupts()
            self.stacks.write("tracing_on", "1")
            try:
                looked += self.clock(window, wait)
            finally:
                self.stacks.write("tracing_on", "0")
            received += sum(sample.difference(_interrupts(), before).values())
            events, missed = self.taken()
            flushes, lost = sample.read_events(self.stacks.take(_TAKE))
            part = _of_events(flushes, events, self.targets, self.handlers)
            # The kernel keeps the newest. Each flush is two entries, with its stack.
            _scale(part, _whole(2 * len(flushes), lost), _whole(len(events), missed))
            whole.add(part)
            lines += len(events) + len(flushes)
            # The same share of the time from now on as may be read of it.
            self._window = max(0.001, looked * _LINES / max(lines, 1))
            if lines >= _LINES / 2:
                ended = wait(max(0.0, seconds - (time.monotonic() - began)))
            else:
                ended = wait(0)
        result = self.counted()
        more = result.seconds / looked if looked else 1.0
        if received > _ENOUGH:
            # Better than by time: reading the events slows down those who cause them.
            more = sum(result.received.values()) / received
        more = max(1.0, more)
        _scale(whole, more, more)
        whole.seconds, whole.received, whole.vmstat = result.seconds, result.received, result.vmstat
        whole.seen = 1 / more
        return whole

    def stop(self) -> None:
        self.stacks = None
        super().stop()


def _of_events(
    flushes: Sequence[Event], events: list[Event], targets: bool, handlers: bool
) -> Snapshot:
    result = Snapshot(sent=len(flushes), timing=sample.timing(events))
    for one in flushes:
        ranged = sample.is_range(one.values.get("pages", "-1"))
        result.flushes[Flush(one.task, one.stack, ranged)] += 1
    result.targets = Counter() if targets else None
    result.victims = Counter()
    for one in events:
        if one.name == "csd_queue_cpu" and result.targets is not None:
            result.targets[one.task] += 1
        elif one.name == "csd_function_entry" or (
            not handlers and one.name == "tlb_flush" and one.values["reason"] == str(sample.RECEIVED)
        ):
            result.victims[one.task] += 1
    return result


def _whole(seen: int, lost: int) -> float:
    """What ``seen`` is to be multiplied with so that it stands for what was lost, too."""
    return (seen + lost) / seen if seen else 1.0


def _scale(snapshot: Snapshot, flushes: float, interrupts: float) -> None:
    """Make of what was looked at what there was."""
    snapshot.sent = (snapshot.sent or 0) * flushes
    # Fractions of events are what scaling makes; Counter's type knows only whole ones.
    for counts, by in (
        (snapshot.flushes, flushes),
        (snapshot.targets, interrupts),
        (snapshot.victims, interrupts),
    ):
        for key in counts or ():
            counts[key] *= by  # type: ignore


_SCRIPT = """
tracepoint:tlb:tlb_flush /args->reason == 4/ {
	@sent[pid, tid, (uint64)args->pages < MANY, comm, kstack(40)] = count();
}
QUEUE
VICTIMS
interval:ms:INTERVAL { PRINT }
"""
_SCRIPT_QUEUE = """
tracepoint:csd:csd_queue_cpu /(uint64)args->func == kaddr("flush_tlb_func")/ {
	@targets[pid, tid, comm] = count();
}
"""
_SCRIPT_ENTRY = """
tracepoint:csd:csd_function_entry
/(uint64)args->func == kaddr("flush_tlb_func") && (uint64)args->csd != 0/ {
	@victims[pid, tid, comm] = count();
}
"""
_SCRIPT_RECEIVED = """
tracepoint:tlb:tlb_flush /args->reason == 1/ { @victims[pid, tid, comm] = count(); }
"""


def bpf_script(interval: float, targets: bool, handlers: bool) -> str:
    """The bpftrace program; ``interval`` in seconds is how often it prints its maps."""
    maps = ["sent", "victims", *(["targets"] if targets else [])]
    return (
        _SCRIPT.replace("MANY", str(sample.MANY))
        .replace("QUEUE", _SCRIPT_QUEUE if targets else "")
        .replace("VICTIMS", _SCRIPT_ENTRY if handlers else _SCRIPT_RECEIVED)
        .replace("INTERVAL", str(max(1, round(interval * 1000))))
        .replace("PRINT", " ".join(f"print(@{m}); clear(@{m});" for m in maps))
    )


class Bpf(_Clocked):
    """bpftrace."""

    name = "bpf"
    title = "bpftrace on tlb:tlb_flush, counted in the kernel by thread and stack"
    # Seconds for it to compile and attach, or to print its last maps.
    patience_s = 30.0

    def __init__(self, tracefs: Tracefs) -> None:
        super().__init__(tracefs)
        if which("bpftrace") is None:
            raise NoAccess("bpftrace is not installed (apt-get install bpftrace)")
        if not Path("/sys/kernel/btf/vmlinux").exists():
            raise NoAccess("this kernel has no BTF (CONFIG_DEBUG_INFO_BTF)")
        self.child: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._arrived = Snapshot()
        self._attached = False
        self._said: list[str] = []

    def start(self, interval: float) -> None:
        self.open()
        script = bpf_script(interval, self.targets, self.handlers)
        argv = ["bpftrace", "-f", "json", "-e", script]
        if not self.tracefs.mounted:
            # It reads the events' formats by path; so it gets mounts that only it can see.
            mounts = "mount -t debugfs debugfs /sys/kernel/debug; mount -t tracefs tracefs /sys/kernel/tracing; "
            argv = ["unshare", "--mount", "sh", "-c", mounts + 'exec "$@"', "sh", *argv]
        parent = os.getpid()
        self.child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "BPFTRACE_MAP_KEYS_MAX": "16384"},
            start_new_session=True,
            preexec_fn=proc.die_with_parent(parent),
        )
        deadline = time.monotonic() + self.patience_s
        while not self._attached:
            if not self._pump(deadline - time.monotonic()):
                why = proc.tail("\n".join(self._said), 3) or "it does not answer"
                raise NoAccess("bpftrace does not run here: " + " ".join(why.split()))
        self.mark()

    def _pump(self, seconds: float) -> bool:
        """Take what it prints; False when it ended or ``seconds`` passed."""
        assert self.child is not None and self.child.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.child.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, seconds)):
                return False
        data = os.read(self.child.stdout.fileno(), 1 << 20)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        return bool(data)

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            kind, data = message["type"], message["data"]
        except (ValueError, KeyError, TypeError):
            if line.strip():
                self._said.append(line.decode(errors="replace"))
            return
        if kind == "attached_probes":
            self._attached = True
        elif kind == "lost_events":
            self._arrived.lost += int(data.get("events", 0))
        elif kind == "map":
            for name, counts in data.items():
                if isinstance(counts, dict):
                    self._count(name, counts)

    def _count(self, name: str, counts: dict[str, int]) -> None:
        for task, ranged, stack, count in sample.read_bpf(counts):
            if name == "@sent":
                self._arrived.flushes[Flush(task, stack, ranged)] += count
                self._arrived.sent = (self._arrived.sent or 0) + count
            elif name == "@targets":
                self._arrived.targets = self._arrived.targets or Counter()
                self._arrived.targets[task] += count
            elif name == "@victims":
                self._arrived.victims = self._arrived.victims or Counter()
                self._arrived.victims[task] += count

    def collect(self, seconds: float, wait: Wait) -> Snapshot:
        taken = self.timed(seconds, wait)
        if wait(0):
            self._finish()
        else:
            while self._pump(0):
                pass
        snapshot = self.counted()
        arrived, self._arrived = self._arrived, Snapshot()
        snapshot.timing = taken
        snapshot.sent = arrived.sent or 0
        snapshot.flushes, snapshot.lost = arrived.flushes, arrived.lost
        snapshot.targets = (arrived.targets or Counter()) if self.targets else None
        snapshot.victims = arrived.victims or Counter()
        return snapshot

    def _finish(self) -> None:
        """Have it print what it still holds, and end."""
        if self.child is None:
            return
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGINT)
        deadline = time.monotonic() + self.patience_s
        while self._pump(deadline - time.monotonic()):
            pass
        self._end()

    def _end(self) -> None:
        if self.child is None:
            return
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()
        self.child = None

    def stop(self) -> None:
        self._end()
        super().stop()


KINDS: dict[str, Callable[[Tracefs], Source]] = {"hist": Hist, "bpf": Bpf, "events": Events}


def choose(wanted: str, interval: float, stack: ExitStack) -> tuple[Source, list[str]]:
    """A started source, and why those before it on the ladder were not taken.

    ``wanted`` is one of NAMES, or "auto". ``stack`` stops it. UsageError when the one that is
    wanted does not work, or when the machine counts no shootdowns at all.
    """
    _interrupts()
    why: list[str] = []
    if wanted != "counters":
        names = [name for name in KINDS if wanted in ("auto", name)]
        try:
            tracefs = stack.enter_context(Tracefs())
        except NoAccess as error:
            if wanted != "auto":
                raise
            why.append(error.message)
            names = []
        for name in names:
            attempt = ExitStack()
            try:
                source = KINDS[name](tracefs)
                attempt.callback(source.stop)
                source.start(interval)
                stack.push(attempt)
                return source, why
            except (NoAccess, OSError) as error:
                attempt.close()
                text = error.message if isinstance(error, NoAccess) else str(error)
                if wanted != "auto":
                    raise UsageError(text) from error
                why.append(f"{name}: {text}")
    counters = Counters()
    counters.start(interval)
    return counters, why

