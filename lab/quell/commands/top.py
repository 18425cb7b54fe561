# SPDX-License-Identifier: GPL-2.0-only
"""Shows the causes of TLB shootdowns on this machine, live, on any x86 Linux kernel.

A TLB shootdown interrupts other CPUs to have them flush their TLBs. The first lines say how much CPU
time shootdowns cost here, and whether Quell helps. The tables below list causes and processes.

Live until q or Ctrl-C, then the sums; with --once, or tables where the output is no terminal, one
interval; with -- CMD the whole machine while CMD runs. Needs root, and Python 3.9 with its standard
library: no Quell kernel, no network. Tracing uses instances of its own in tracefs, which are removed
at the end, also if top is killed.

--json prints one line per interval, an object of schema quell-top/2. --folded prints stacks at the
end, for flamegraph.pl and its like. With -- CMD the tables go to stderr; with --json or --folded CMD's
own output goes there. The exit code is then CMD's. How to read the figures: docs/top.md.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
# Columns and lines of the tables in files and pipes.
_SIZE = (110, 45)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``top``."""
    parser.add_argument("--once", action="store_true", help="one interval, then end")
    parser.add_argument(
        "--pid", type=int, metavar="PID", help="only shootdowns of this process and its threads"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "--json", action="store_true",
        help="one line per interval, an object each; with -- CMD one line for all of it",
    )  # fmt: skip
    output.add_argument(
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
    """Tells when to end: SIGINT, SIGQUIT, or the end of a process. Each makes one of ``files`` readable."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.files = list(os.pipe())
        self._waker = self.files.pop()
        for fd in (*self.files, self._waker):
            stack.callback(os.close, fd)
        for number in (signal.SIGINT, signal.SIGQUIT):
            stack.callback(signal.signal, number, signal.signal(number, self.interrupt))

    def interrupt(self, number: int, frame: object) -> None:
        """A signal's handler; the second signal raises KeyboardInterrupt."""
        signal.signal(number, signal.default_int_handler)
        os.write(self._waker, b"x")

    def wait(self, seconds: float) -> bool:
        """Sleep for so long at most; True when it is time to end."""
        return bool(select.select(self.files, [], [], seconds)[0])

    def at_end_of(self, pid: int) -> None:
        """Also when this process ends. OSError or OverflowError if there is none."""
        fd = os.pidfd_open(pid)
        self._stack.callback(os.close, fd)
        self.files.append(fd)


@contextmanager
def _live() -> Iterator[None]:
    """The terminal's alternate screen with the cursor hidden; q is SIGQUIT, and nothing is echoed."""
    with ExitStack() as stack:
        if sys.stdin.isatty():
            before, ours = termios.tcgetattr(sys.stdin), termios.tcgetattr(sys.stdin)
            ours[3] &= ~termios.ECHO
            ours[6][termios.VQUIT] = b"q"
            # TCSAFLUSH: the shell does not get the other keys.
            stack.callback(termios.tcsetattr, sys.stdin, termios.TCSAFLUSH, before)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, ours)
        stack.callback(sys.stdout.write, "\x1b[?25h\x1b[?1049l")
        sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J")
        yield


class _Watch:
    """Collects, interval after interval, and keeps the sum."""

    def __init__(self, args: argparse.Namespace, stop: Stop, stack: ExitStack) -> None:
        self.interval: float = args.interval
        self.stop = stop
        self.names = report.Names()
        self.process: Task | None = None
        self.mine: Callable[[Task], bool] | None = None
        if args.pid is not None:
            try:
                stop.at_end_of(args.pid)
            except (OSError, OverflowError) as error:
                raise UsageError(f"there is no process {args.pid}") from error
            self.process = self.names.process(Task(args.pid, ""))
            self.mine = lambda task: self.names.process(task).tid == args.pid
        self.source = sources.choose(args.source, stack)
        self.total = Snapshot()

    def look(self) -> Snapshot:
        """One interval."""
        whole, left = Snapshot(), self.interval
        until = time.monotonic() + left
        # A last part may be short, but not so short that it only costs.
        while left >= _MIN_INTERVAL_S and not (whole.seconds and self.stop.wait(0)):
            part = self.source.collect(min(left, _PART_S), self.stop.wait, self.mine)
            self.names.learn(part)
            whole.add(part)
            left = until - time.monotonic()
        self.total.add(whole)
        return whole

    def report(self, snapshot: Snapshot) -> dict[str, Any]:
        """That of an interval, or of the sum."""
        about = {"name": self.source.name, "not_taken": self.source.not_taken}
        return report.build(snapshot, about, self.names, self.process, report.switched_on())


def main(args: argparse.Namespace) -> int:
    """Watch; 0, or the command's exit code."""
    if not _MIN_INTERVAL_S <= args.interval <= _MAX_INTERVAL_S:
        raise UsageError(f"--interval is 0.1 to 3600 seconds, not {args.interval:g}")
    if args.once and args.command is not None:
        raise UsageError("--once is not for a command: with -- CMD its life is the interval")
    programs = args.json or args.folded
    once = args.once or not (programs or sys.stdout.isatty())
    code = 0
    with ExitStack() as stack:
        stop = Stop(stack)
        watch = _Watch(args, stop, stack)
        if args.command is not None:
            code = _command(args.command, watch, stop, sys.stderr if programs else None)
        elif once:
            watch.look()
        elif programs:
            while not stop.wait(0):
                one = watch.look()
                if args.json:
                    print(json.dumps(watch.report(one)), flush=True)
        else:
            stack.enter_context(_live())
            print(f"collecting for {args.interval:g} s; q ends", flush=True)
            while not stop.wait(0):
                lines = _screen(watch.report(watch.look()), sys.stdout)
                text = "".join(f"{line}\x1b[K\n" for line in lines)
                print(f"\x1b[H{text}\x1b[J", end="", flush=True)
        # Tracing ends before the output: a pager or a full pipe must not prolong it.
    result = watch.report(watch.total)
    if args.folded:
        print("".join(f"{line}\n" for line in report.folded(watch.total)), end="")
        ui.note(result["verdict"]["sentence"])
    elif not args.json:
        out = sys.stdout if args.command is None else sys.stderr
        print("\n".join(_screen(result, out)), file=out)
    elif args.once or args.command is not None:
        print(json.dumps(result))
    return code


def _command(command: list[str], watch: _Watch, stop: Stop, stdout: IO[str] | None) -> int:
    """Watch while the command runs; its exit code."""
    with foreground.started(command, stdout=stdout) as child:
        stop.at_end_of(child.pid)
        while not stop.wait(0):
            watch.look()
        code = child.wait()
    return code if code >= 0 else 128 - code


def _screen(result: dict[str, Any], out: IO[str]) -> list[str]:
    """The report for ``out``: on a terminal one screen, the prompt included."""
    size = shutil.get_terminal_size(_SIZE)
    bold = out.isatty() and not os.environ.get("NO_COLOR")
    # A serial console tells no size.
    return view.render(result, size.columns or 80, (size.lines or 24) - 1, bold)
