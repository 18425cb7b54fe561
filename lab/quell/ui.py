# SPDX-License-Identifier: GPL-2.0-only
"""Messages and progress, on stderr: standard output is for results only."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Width of a table that goes to a file or a pipe.
_WIDTH = 125

_quiet = False


def set_quiet(quiet: bool) -> None:
    """Leave out notes and progress if ``quiet``; warnings stay."""
    global _quiet
    _quiet = quiet


def note(text: str) -> None:
    """Tell the user about an action."""
    if not _quiet:
        print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Tell the user about something that may matter; shown with ``--quiet`` too."""
    print(f"quell: warning: {text}", file=sys.stderr, flush=True)


def ask(question: str) -> bool:
    """Ask a yes/no question on the terminal (default yes). Call it only when ``can_ask()``."""
    print(f"{question} [Y/n] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    return answer != "" and answer.strip().lower() in ("", "y", "yes")


def can_ask() -> bool:
    """Whether input and messages are on a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Progress:
    """The bar of ``progress()``: lines for logs, at most one per interval."""

    interval_s = 10.0

    def __init__(self, description: str, total: float | None) -> None:
        self.description = description
        self.total = total
        self.completed = 0.0
        self.start = self.last = time.monotonic()

    def advance(self, amount: float = 1) -> None:
        """Add ``amount``, in the total's unit."""
        self.update(completed=self.completed + amount)

    def update(self, *, completed: float | None = None, description: str | None = None) -> None:
        """Set either of the two."""
        self.description = self.description if description is None else description
        self.completed = self.completed if completed is None else completed
        self.show()

    def show(self) -> None:
        """Print a line if it is time."""
        now = time.monotonic()
        if now - self.last >= self.interval_s:
            self.last = now
            done = f"{100 * self.completed / self.total:.0f} %" if self.total else "goes on"
            note(f"{self.description}: {done} after {duration(now - self.start)}")


def duration(seconds: float) -> str:
    """A duration in seconds as text: ``8 s``, ``3 min 05 s``, ``1 h 02 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(count: int) -> str:
    """A number of bytes as text: ``12 MB``, ``1.5 GB`` (powers of ten)."""
    if count < 1_000_000:
        return f"{count / 1000:.0f} kB"
    if count < 1_000_000_000:
        return f"{count / 1_000_000:.0f} MB"
    return f"{count / 1_000_000_000:.1f} GB"


def number(value: float | int | None) -> str:
    """A figure in at most 7 characters, with four digits where it is no whole number: 12,345, 1.234, 957.4k; "-" for None."""
    if value is None:
        return "-"
    unit, scale = "", 1.0
    if abs(value) >= 100_000:
        unit, scale = next((unit, scale) for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)) if abs(value) >= scale)
    elif float(value).is_integer():
        return f"{int(value):,}"
    share = value / scale
    digits = 3 if abs(share) < 10 else 2 if abs(share) < 100 else 1 if abs(share) < 1000 else 0
    return f"{share:,.{digits}f}{unit}"


def console(file: IO[str] | None = None) -> Console:
    """The console of tables: stdout, with a fixed width when it is no terminal."""
    from rich.console import Console

    target = file or sys.stdout
    width = None if target.isatty() else _WIDTH
    return Console(file=target, width=width, highlight=False, markup=False, emoji=False)


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Progress]:
    """A progress bar with the time left on a terminal, plain lines elsewhere, nothing if quiet.

    ``total`` in any unit, None when unknown. Yields a ``Progress``.
    """
    if _quiet or not sys.stderr.isatty():
        plain = Progress(description, total)
        note(f"{description} ...")
        yield plain
        note(f"{plain.description}: done in {duration(time.monotonic() - plain.start)}")
        return

    # The import of rich takes a tenth of a second.
    from rich import progress as rich
    from rich.console import Console

    class Bar(Progress):
        def show(self) -> None:
            bar.update(task, completed=self.completed, description=self.description)

    columns = (
        rich.SpinnerColumn(), rich.TextColumn("{task.description}", markup=False), rich.BarColumn(),
        rich.TaskProgressColumn(), rich.TimeElapsedColumn(), rich.TextColumn("left"),
        rich.TimeRemainingColumn(compact=True),
    )  # fmt: skip
    # rich would also capture stdout, which is for results.
    with rich.Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:
        task = bar.add_task(description, total=total)
        yield Bar(description, total)


@contextmanager
def watched(description: str, total: float | None, measure: Callable[[], float]) -> Iterator[None]:
    """A bar that follows ``measure()``, in the total's unit, while the block runs."""
    done = threading.Event()
    with progress(description, total) as bar:

        def follow() -> None:
            while not done.wait(0.4):
                with suppress(OSError):  # a file that is gone again
                    bar.update(completed=measure())

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
