# SPDX-License-Identifier: GPL-2.0-only
"""Shows the causes of TLB shootdowns on this machine, live, on any x86 Linux kernel.

A TLB shootdown interrupts other CPUs to have them flush their TLBs. The first lines say how much CPU
time shootdowns cost here, and whether Quell helps. The tables below list causes and processes.

Live until q or Ctrl-C, then the sums; with --once one interval; with -- CMD the whole machine while
CMD runs. Needs root, and Python 3.9 with its standard library: no Quell kernel, no network. Tracing
uses instances of its own in tracefs, which are removed at the end, also if top is killed.

--json prints one line per interval, an object of schema quell-top/1 with all keys of earlier
versions; these printed one object at the end, indented. --folded prints stacks at the end, for
flamegraph.pl and its like. With -- CMD the tables go to stderr; with --json or --folded CMD's own
output goes there. The exit code is then CMD's. How to read the figures: docs/top.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from quell import foreground, ui
from quell.errors import UsageError
from quell.top import report, sources, view
from quell.top.sample import Snapshot, Task

EXAMPLES = """\
./quell top
./quell top --once
./quell top --pid 1234
./quell top --json -- make -j4
./quell top --folded --once --interval 10 > shootdowns.folded
"""

_MIN_INTERVAL_S = 0.1
_MAX_INTERVAL_S = 3600.0
# Longer intervals are collected in parts: names are looked up while the processes live.
_PART_S = 1.0
# The width of tables in files and pipes.
_WIDTH = 110


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``top``."""
    parser.add_argument("--once", action="store_true", help="one interval, then end")
    parser.add_argument(
        "--pid", type=int, metavar="PID", help="only shootdowns of this process and its threads"
    )
    parser.add_argument(
        "--json", action="store_true",
        help="one line per interval, an object each; with -- CMD one line for all of it",
    )  # fmt: skip
    parser.add_argument(
        "--folded", action="store_true",
        help="at the end the stacks as flame graphs take them: thread;function;... COUNT",
    )  # fmt: skip
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds of an interval, 0.1 to 3600 (1)"
    )
    parser.add_argument(
        "--source", choices=("auto", *sources.SOURCES), default="auto",
        help="tracefs histograms, or single events (the first of these that works)",
    )  # fmt: skip


class Stop:
    """Tells when to end: a signal, q on the terminal, or the end of a process."""

    def __init__(self) -> None:
        self.ended = False
        self.files: list[int] = []
        self.keys: int | None = None
        self._wake, self._waker = os.pipe()

    def interrupt(self, number: int, frame: object) -> None:
        """A signal's handler; the second signal raises KeyboardInterrupt."""
        if self.ended:
            raise KeyboardInterrupt
        self.ended = True
        os.write(self._waker, b"x")

    def wait(self, seconds: float) -> bool:
        """Sleep for so long at most; True when it is time to end."""
        until = time.monotonic() + seconds
        while not self.ended:
            keys = [] if self.keys is None else [self.keys]
            left = max(0.0, until - time.monotonic())
            ready, _, _ = select.select([self._wake, *self.files, *keys], [], [], left)
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

    @contextmanager
    def at_end_of(self, pid: int) -> Iterator[None]:
        """Also when this process ends."""
        fd = os.pidfd_open(pid)
        self.files.append(fd)
        try:
            yield
        finally:
            self.files.remove(fd)
            os.close(fd)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._wake)
        os.close(self._waker)


@contextmanager
def _keys(stop: Stop) -> Iterator[None]:
    """Take single keys from the terminal, without echo."""
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


class _Watch:
    """Collects, interval after interval, and keeps the sum."""

    def __init__(self, args: argparse.Namespace, stack: ExitStack) -> None:
        self.names = report.Names()
        self.process = None if args.pid is None else self._process(args.pid)
        # All threads that the process ever had, as far as seen.
        self.tids: set[int] | None = None if args.pid is None else set()
        self.interval: float = args.interval
        self.total = Snapshot()
        self.source, not_taken = sources.choose(args.source, stack)
        self.about = {
            "name": self.source.name,
            "title": self.source.title,
            "cannot_see": self.source.cannot_see,
            "not_taken": not_taken,
        }
        self._began, self._own = time.monotonic(), self._used()

    def _process(self, pid: int) -> Task:
        tgid = self.names.tgid(pid)
        if tgid is None:
            raise UsageError(f"there is no process {pid}")
        if tgid != pid:
            raise UsageError(f"{pid} is a thread of process {tgid}: use --pid {tgid}")
        return Task(pid, report.printable(Path(f"/proc/{pid}/comm").read_text().strip()))

    @staticmethod
    def _used() -> float:
        """Seconds of our own CPU time."""
        return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])

    def _threads(self) -> None:
        if self.tids is not None and self.process is not None:
            try:
                self.tids.update(map(int, os.listdir(f"/proc/{self.process.tid}/task")))
            except OSError:
                pass  # it has ended

    def look(self, stop: Stop) -> Snapshot:
        """One interval."""
        whole = Snapshot()
        until = time.monotonic() + self.interval
        while True:
            self._threads()
            left = until - time.monotonic()
            part = self.source.collect(max(0.0, min(left, _PART_S)), stop.wait, self.tids)
            self._threads()
            if self.tids is not None:
                part.only(self.tids)
            self.names.learn(part)
            whole.add(part)
            # A last part may be short, but not so short that it only costs.
            if stop.wait(0) or until - time.monotonic() < _MIN_INTERVAL_S:
                break
        self.total.add(whole)
        return whole

    def report(self, snapshot: Snapshot | None = None) -> dict[str, Any]:
        """That of ``snapshot``, or of all so far."""
        result = report.build(snapshot or self.total, self.about, self.names, process=self.process)
        wall = max(time.monotonic() - self._began, 1e-9) * result["host"]["cpus"]
        return {**result, "own_cpu_share": round((self._used() - self._own) / wall, 5)}


def main(args: argparse.Namespace) -> int:
    """Watch; 0, or the command's exit code."""
    if not _MIN_INTERVAL_S <= args.interval <= _MAX_INTERVAL_S:
        raise UsageError(f"--interval is 0.1 to 3600 seconds, not {args.interval:g}")
    if args.once and args.command is not None:
        raise UsageError("--once is not for a command: with -- CMD its life is the interval")
    if args.json and args.folded:
        raise UsageError("--json and --folded exclude each other")
    if args.command is not None:
        foreground.check(args.command[0])
    code = 0
    with ExitStack() as stack:
        stop = Stop()
        stack.callback(stop.close)
        watch = _Watch(args, stack)
        if args.pid is not None:
            stack.enter_context(stop.at_end_of(args.pid))
        if args.command is not None:
            code = _command(args, watch, stop)
        else:
            previous = signal.signal(signal.SIGINT, stop.interrupt)
            stack.callback(signal.signal, signal.SIGINT, previous)
            if args.once:
                watch.look(stop)
            elif args.json or args.folded or not sys.stdout.isatty():
                _lines(args, watch, stop)
            else:
                _live(args, watch, stop)
        result = watch.report()
        # Tracing ends before the output: a pager or a full pipe must not prolong it.
    if args.folded:
        print("".join(f"{line}\n" for line in report.folded(watch.total)), end="")
        ui.note(result["verdict"]["sentence"])
    elif not args.json:
        out = sys.stdout if args.command is None else sys.stderr
        print("\n".join(_screen(result, out)), file=out)
    elif args.once or args.command is not None:
        print(json.dumps(result))
    return code


def _screen(result: dict[str, Any], out: IO[str]) -> list[str]:
    """The report for ``out``: on a terminal one screen, the prompt included."""
    if not out.isatty():
        return view.render(result, _WIDTH, rows=12)
    size = shutil.get_terminal_size()
    bold = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return view.render(result, size.columns, height=size.lines - 1, bold=bold)


def _lines(args: argparse.Namespace, watch: _Watch, stop: Stop) -> None:
    """A line each interval."""
    while not stop.wait(0):
        snapshot = watch.look(stop)
        if args.json:
            print(json.dumps(watch.report(snapshot)), flush=True)
        elif not args.folded:
            print(view.line(watch.report(snapshot)), flush=True)


def _live(args: argparse.Namespace, watch: _Watch, stop: Stop) -> None:
    """The view, on the terminal's alternate screen with the cursor hidden."""
    with ExitStack() as stack:
        if sys.stdin.isatty():
            stack.enter_context(_keys(stop))
        stack.callback(sys.stdout.write, "\x1b[?25h\x1b[?1049l")
        sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J")
        print(f"collecting for {args.interval:g} s; q ends", flush=True)
        while not stop.wait(0):
            lines = _screen(watch.report(watch.look(stop)), sys.stdout)
            lines = lines[: shutil.get_terminal_size().lines - 1]
            print("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J", end="", flush=True)


def _command(args: argparse.Namespace, watch: _Watch, stop: Stop) -> int:
    """Watch while the command runs; its exit code."""
    stdout = sys.stderr if args.json or args.folded else None
    with foreground.started(args.command, stdout=stdout) as child:
        with stop.at_end_of(child.pid):
            watch.look(stop)
            while not stop.wait(0):
                watch.look(stop)
        code = child.wait()
    return code if code >= 0 else 128 - code
