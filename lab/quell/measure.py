# SPDX-License-Identifier: GPL-2.0-only
"""What the guest's runner sent, turned into figures.

The runner (``guest/runner.c``) frames the guest's own /proc files from just
before and just after the command; every figure is a difference between the
two. The frames are kept, so figures can be computed again later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from quell.errors import QuellError

# The runner's protocol that is understood here.
PROTOCOL = 1
# Where the guest mounts a workload's data image.
DATA_DIR = "/run/quell/data"
# Where the guest finds a workload's own program: in its memory, not on the host.
STAGE_DIR = "/run/quell/bin"

Number = int | float


@dataclass(frozen=True)
class Metric:
    """A figure every run has: its name in results, its unit, a title for tables.

    ``carries_over`` says that emulation (TCG) leaves it as it is on hardware.
    All are better when lower.
    """

    name: str
    title: str
    unit: str
    carries_over: bool


METRICS: tuple[Metric, ...] = (
    Metric("shootdown_ipis", "shootdown IPIs", "", True),
    Metric("flush_requests", "flush requests", "", True),
    Metric("minor_faults", "minor faults", "", True),
    Metric("major_faults", "major faults", "", True),
    Metric("pages_scanned", "pages scanned", "", True),
    Metric("pages_reclaimed", "pages reclaimed", "", True),
    Metric("elapsed_s", "elapsed", "s", False),
    Metric("user_s", "user", "s", False),
    Metric("system_s", "system", "s", False),
    Metric("peak_memory_kb", "peak memory", "kB", True),
)
# Those that count what happened in the guest, a little of which always does.
EVENTS = frozenset(metric.name for metric in METRICS if not metric.unit)
# Further figures that every run has; they stand among a result's extras.
EXTRAS: tuple[Metric, ...] = (
    Metric("kswapd_s", "kswapd", "s", False),
    Metric("kswapd_us_per_page", "kswapd per page it reclaimed", "us", False),
    Metric("pages_demoted", "pages demoted", "", True),
)
GUEST_INSTRUCTIONS = Metric("guest_instructions", "guest instructions", "", True)


class FramesError(QuellError):
    """What the guest sent is truncated, or not what it should be."""


@dataclass(frozen=True)
class Frames:
    """The sections that a guest sent, by name."""

    sections: dict[str, bytes]

    def text(self, name: str) -> str:
        """A section as text; FramesError if the guest did not send it."""
        if name not in self.sections:
            raise FramesError(f"the guest sent no section '{name}'")
        return self.sections[name].decode(errors="replace")

    def values(self, name: str) -> dict[str, str]:
        """A section of lines "KEY REST" as a dictionary."""
        pairs = (line.partition(" ") for line in self.text(name).splitlines() if line)
        return {key: rest for key, _, rest in pairs}

    @property
    def failure(self) -> str | None:
        """Why the guest could not be prepared, or None."""
        return self.text("failure") if "failure" in self.sections else None

    @property
    def status(self) -> tuple[str, int, str]:
        """How the command ended: (how, number, text).

        "exited" with a code, "signalled" by a signal, or not started because of
        an errno: "noexec", "nodir", "notty".
        """
        values = self.values("result")
        match = re.fullmatch(r"(\w+) (\d+)", values.get("status", ""))
        if not match:
            raise FramesError("the guest did not say how the command ended")
        return match[1], int(match[2]), values.get("message", "")


def parse_frames(data: bytes) -> Frames:
    """The sections in a guest's stream.

    Raises FramesError when it is empty, of another protocol, or truncated: a
    stream without its last line is worth nothing, however much came.
    """
    if not data:
        raise FramesError("the guest ended without a word")
    head, _, rest = data.partition(b"\n")
    match = re.fullmatch(rb"quell-runner (\d+)", head)
    if not match:
        raise FramesError("what the guest sent does not come from Quell's runner")
    if int(match[1]) != PROTOCOL:
        raise FramesError(
            f"the guest speaks protocol {int(match[1])} of Quell's runner, not {PROTOCOL}"
        )
    sections: dict[str, bytes] = {}
    while True:
        line, newline, rest = rest.partition(b"\n")
        match = re.fullmatch(rb"@(\S+) (\d+)", line)
        if not match or not newline:
            raise FramesError("the guest ended in the middle of its report: it is truncated")
        name, size = match[1].decode(), int(match[2])
        if name == "end":
            if size != len(sections) or rest:
                raise FramesError("the guest's report does not add up: it is damaged")
            return Frames(sections)
        if len(rest) < size + 1 or rest[size : size + 1] != b"\n":
            raise FramesError("the guest ended in the middle of its report: it is truncated")
        sections[name] = rest[:size]
        rest = rest[size + 1 :]


def parse_vmstat(text: str) -> dict[str, int]:
    """/proc/vmstat: a counter a line."""
    counters: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if not value.lstrip("-").isdigit():
            raise FramesError(f"'{line}' is no line of /proc/vmstat")
        counters[name] = int(value)
    return counters


def parse_interrupts(text: str, label: str) -> int:
    """The line ``label`` of /proc/interrupts, summed over all CPUs."""
    lines = text.splitlines()
    if not lines:
        raise FramesError("the guest's /proc/interrupts is empty")
    cpus = len(lines[0].split())
    for line in lines[1:]:
        name, _, rest = line.strip().partition(":")
        if name == label:
            counts = rest.split()[:cpus]
            if len(counts) < cpus or not all(c.isdigit() for c in counts):
                raise FramesError(f"the line {label} of the guest's /proc/interrupts is damaged")
            return sum(map(int, counts))
    raise FramesError(f"the guest's /proc/interrupts has no line {label}")


def parse_kswapd(text: str) -> int:
    """CPU time of all kswapd threads in clock ticks, from their /proc/PID/stat lines."""
    ticks = 0
    for line in text.splitlines():
        # The name is in parentheses and may hold anything; utime and stime are fields 14 and 15.
        fields = line.rpartition(")")[2].split()
        if len(fields) < 13:
            raise FramesError("the guest's /proc/PID/stat of kswapd is damaged")
        ticks += int(fields[11]) + int(fields[12])
    return ticks


@dataclass(frozen=True)
class Figure:
    """A figure that a program printed: ``figure NAME VALUE UNIT``."""

    value: float
    unit: str
    higher_is_better: bool


_FIGURE = re.compile(r"^figure(\+?) ([A-Za-z0-9_.-]+) (\S+)(?: (\S+))?\s*$", re.MULTILINE)


def parse_figures(stdout: str) -> dict[str, Figure]:
    """The ``figure`` lines in a program's output; a value that is no number is an error."""
    figures: dict[str, Figure] = {}
    for plus, name, value, unit in _FIGURE.findall(stdout):
        try:
            figures[name] = Figure(float(value), unit, plus == "+")
        except ValueError:
            raise FramesError(f"the program's figure {name} is '{value}', no number") from None
    return figures


_SAME = re.compile(r"^same ([A-Za-z0-9_.-]+) (.*?)\s*$", re.MULTILINE)


def parse_same(stdout: str) -> dict[str, str]:
    """The ``same NAME TEXT`` lines in a program's output: what no kernel may change."""
    return dict(_SAME.findall(stdout))


@dataclass(frozen=True)
class Sample:
    """The figures of one run: METRICS, further counters, and the program's own.

    ``same`` is what the program says has to be the same in every run.
    """

    metrics: dict[str, Number]
    extras: dict[str, Number] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    exit_code: int = 0
    same: dict[str, str] = field(default_factory=dict)


_EXTRA_COUNTERS = re.compile(
    r"^(luf_|rmap_batch_|early_ack_|folio_order_|tlb_|nr_tlb_|allocstall_|pgscan_direct$"
    r"|pgsteal_direct$)"
)


def sample(frames: Frames, stdout: str = "", *, deterministic: bool = False) -> Sample:
    """All figures of one run.

    Raises FramesError when a counter is missing, rather than calling it 0.
    """
    before = parse_vmstat(frames.text("before/vmstat"))
    after = parse_vmstat(frames.text("after/vmstat"))
    result = frames.values("result")
    guest = frames.values("guest")

    def delta(name: str) -> int:
        if name not in before or name not in after:
            hint = " (CONFIG_DEBUG_TLBFLUSH)" if name.startswith("nr_tlb") else ""
            raise FramesError(f"the guest's /proc/vmstat has no {name}{hint}")
        return after[name] - before[name]

    def number(name: str) -> int:
        value = result.get(name, "")
        if not value.isdigit():
            raise FramesError(f"the guest did not report {name}")
        return int(value)

    shootdowns = [
        parse_interrupts(frames.text(f"{when}/interrupts"), "TLB") for when in ("before", "after")
    ]
    kswapd = [parse_kswapd(frames.text(f"{when}/kswapd")) for when in ("before", "after")]
    metrics: dict[str, Number] = {
        "shootdown_ipis": shootdowns[1] - shootdowns[0],
        "flush_requests": delta("nr_tlb_remote_flush"),
        "minor_faults": number("minflt"),
        "major_faults": number("majflt"),
        # Unlike pgscan_kswapd and its like, these also count reclaim at a memcg's limit.
        "pages_scanned": delta("pgscan_anon") + delta("pgscan_file"),
        "pages_reclaimed": delta("pgsteal_anon") + delta("pgsteal_file"),
        "elapsed_s": number("elapsed_ns") / 1e9,
        "user_s": number("user_us") / 1e6,
        "system_s": number("system_us") / 1e6,
        "peak_memory_kb": number("memory_peak") // 1024,
    }
    if deterministic:
        # At shift=0 the guest's clock advances by 1 ns for each instruction.
        metrics["guest_instructions"] = number("elapsed_ns")
    extras: dict[str, Number] = {"kswapd_s": (kswapd[1] - kswapd[0]) / int(guest.get("hz", "100"))}
    if stolen := delta("pgsteal_kswapd"):
        extras["kswapd_us_per_page"] = round(extras["kswapd_s"] * 1e6 / stolen, 3)
    # Moved by reclaim to a slower memory tier; a kernel without NUMA has no such counters.
    demoted = [name for name in after if name.startswith("pgdemote_")]
    if demoted:
        extras["pages_demoted"] = sum(delta(name) for name in demoted)
    for name in after:
        if _EXTRA_COUNTERS.match(name):
            extras[name] = after[name] - before.get(name, 0)
    status, code, _ = frames.status
    return Sample(
        metrics,
        extras,
        parse_figures(stdout),
        code if status == "exited" else 128 + code,
        parse_same(stdout),
    )
