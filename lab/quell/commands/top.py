# SPDX-License-Identifier: GPL-2.0-only
"""Shows who causes TLB shootdowns on this machine, live, on any x86 Linux kernel.

A TLB shootdown is an interrupt that makes other CPUs forget a translation. Per second, process
and thread: how many, why, how many CPUs each interrupted, who was interrupted, and what that costs.
It ends with a sentence: whether Quell mends this machine's problem.

With --once it shows the tables of one interval, with -- CMD those of the whole machine for as long
as CMD runs; else the live view, which q or Ctrl-C ends.

No Quell kernel is needed; the first run prepares the lab's Python environment. Tracing happens
in a trace instance of its own that is removed at the end, however that comes. Without root only
/proc/interrupts is left to look at: how many, not who and why. With -- CMD the tables go to stderr
(with --json, what CMD writes to stdout goes there) and its exit code is ours. docs/top.md tells how
to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from quell import proc, ui
from quell.errors import UsageError
from quell.top import report, sources, view
from quell.top.sample import Snapshot

EXAMPLES = """\
./quell top
./quell top --once
./quell top --once --json
./quell top -- make -j4
"""

_MIN_INTERVAL_S = 0.1
_MAX_INTERVAL_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``top``."""
    parser.add_argument("--once", action="store_true", help="one interval, then end")
    parser.add_argument("--json", action="store_true", help="print one object at the end, no view")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S",
        help="seconds between two looks, 0.1 to 3600 (1)",
    )  # fmt: skip
    parser.add_argument("--rows", type=int, default=12, metavar="N", help="rows of a table (12)")
    parser.add_argument(
        "--source", choices=("auto", *sources.NAMES), default="auto",
        help="where the figures come from (the first of these that works)",
    )  # fmt: skip


class Stop:
    """Tells when to end: Ctrl-C, q on the terminal, the command's end, or a number of seconds."""

    def __init__(self) -> None:
        self.ended = False
        self.deadline: float | None = None
        self.files: list[int] = []
        self.keys: int | None = None
        self._wake, self._waker = os.pipe()

    def interrupt(self, number: int, frame: object) -> None:
        """A signal's handler. The second time it is as usual."""
        if self.ended:
            raise KeyboardInterrupt
        self.ended = True
        os.write(self._waker, b"x")

    def wait(self, seconds: float) -> bool:
        """Sleep at most so long; True when it is time to end."""
        until = time.monotonic() + seconds
        while not self.ended:
            now = time.monotonic()
            if self.deadline is not None and now >= self.deadline:
                self.ended = True
                break
            ends = until if self.deadline is None else min(until, self.deadline)
            keys = [] if self.keys is None else [self.keys]
            ready, _, _ = select.select(
                [self._wake, *self.files, *keys], [], [], max(0.0, ends - now)
            )
            if any(fd in ready for fd in self.files):
                self.ended = True
            elif self.keys in ready:
                typed = os.read(self.keys, 64) if self.keys is not None else b""
                if not typed:
                    self.keys = None  # the terminal is gone
                self.ended = b"q" in typed or b"Q" in typed
            elif not ready and time.monotonic() >= until:
                break
        return self.ended

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._wake)
        os.close(self._waker)


@contextmanager
def _keys(stop: Stop) -> Iterator[None]:
    """Take single keys from the terminal, without showing them."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        stop.keys = fd
        yield
    finally:
        stop.keys = None
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _own_cpu() -> float:
    """Seconds of CPU time that we have used: without bpftrace, and without the command."""
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


class _Watch:
    """Collects, interval after interval, and keeps the sum."""

    def __init__(self, args: argparse.Namespace, stack: ExitStack) -> None:
        self.interval: float = args.interval
        self.names = report.Names()
        self.total = Snapshot()
        self.source, not_taken = sources.choose(args.source, args.interval, stack)
        self.about: dict[str, Any] = {
            "name": self.source.name,
            "title": self.source.title,
            "cannot_see": self.source.cannot_see,
            "not_taken": not_taken,
        }
        if self.source.name == "counters" and not_taken:
            ui.warn(f"only counters are left to look at: {'; '.join(not_taken)}")

    def look(self, stop: Stop) -> Snapshot:
        """One interval."""
        snapshot = self.source.collect(self.interval, stop.wait)
        self.names.learn(snapshot)
        self.total.add(snapshot)
        return snapshot

    def report(self, snapshot: Snapshot | None = None) -> dict[str, Any]:
        """That of ``snapshot``, or of all so far."""
        return report.build(snapshot or self.total, self.about, names=self.names)


def main(args: argparse.Namespace) -> int:
    """Watch; 0, or the command's exit code."""
    if not _MIN_INTERVAL_S <= args.interval <= _MAX_INTERVAL_S:
        raise UsageError(f"--interval is 0.1 to 3600 seconds, not {args.interval:g}")
    if args.rows < 1:
        raise UsageError(f"--rows is at least 1, not {args.rows}")
    if args.once and args.command is not None:
        raise UsageError("--once is not for a command: with -- CMD its life is the interval")
    code = 0
    with ExitStack() as stack:
        stop = Stop()
        stack.callback(stop.close)
        watch = _Watch(args, stack)
        began, own = time.monotonic(), _own_cpu()
        if args.command is not None:
            code = _command(args, watch, stop)
        else:
            previous = signal.signal(signal.SIGINT, stop.interrupt)
            stack.callback(signal.signal, signal.SIGINT, previous)
            if args.once:
                stop.deadline = began + args.interval
                watch.look(stop)
            elif args.json or not sys.stdout.isatty():
                _lines(args, watch, stop)
            else:
                _live(args, watch, stop)
        result = watch.report()
        result["own_cpu_share"] = round(
            (_own_cpu() - own) / max(time.monotonic() - began, 1e-9) / result["host"]["cpus"], 5
        )
        # Tracing ends before anything is printed: a pager or a full pipe must not keep it going.
    if args.json:
        print(json.dumps(result, indent=1))
        return code
    out = ui.console(sys.stderr if args.command is not None else None)
    out.print(view.render(result, args.rows))
    return code


def _lines(args: argparse.Namespace, watch: _Watch, stop: Stop) -> None:
    """A line each interval."""
    while not stop.wait(0):
        snapshot = watch.look(stop)
        if not args.json:
            print(view.line(watch.report(snapshot)), flush=True)


def _live(args: argparse.Namespace, watch: _Watch, stop: Stop) -> None:
    """The view."""
    from rich.live import Live

    with ExitStack() as stack:
        if sys.stdin.isatty():
            stack.enter_context(_keys(stop))
        live = stack.enter_context(
            Live(console=ui.console(), screen=True, auto_refresh=False, redirect_stdout=False)
        )
        live.update(f"looking for {args.interval:g} s ...", refresh=True)
        while not stop.wait(0):
            now = watch.report(watch.look(stop))
            sentence = watch.report()["verdict"]["sentence"]
            live.update(view.render(now, args.rows, sentence), refresh=True)


def _command(args: argparse.Namespace, watch: _Watch, stop: Stop) -> int:
    """Watch while the command runs; its exit code."""
    with proc.foreground(args.command, stdout=sys.stderr if args.json else None) as child:
        pidfd = os.pidfd_open(child.pid)
        stop.files.append(pidfd)
        try:
            while not stop.wait(0):
                watch.look(stop)
        finally:
            stop.files.remove(pidfd)
            os.close(pidfd)
        code = child.wait()
    return code if code >= 0 else 128 - code
