# SPDX-License-Identifier: GPL-2.0-only
"""The state of a running Quell kernel: switches, counters since boot, deferred pages.

This module needs nothing but Python: it runs on machines without the lab.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quell import procfs, ui
from quell.errors import QuellError

SCHEMA = "quell.status/1"
SYSFS = "sys/kernel/mm/quell"
# Folios that stock reclaim unmaps before it flushes: a folio_batch.
STOCK_BATCH = 31
_KB_PER_PAGE = 4


class NotQuell(QuellError):
    """The running kernel is not Quell's."""

    def __init__(self, release: str) -> None:
        super().__init__(f"the running kernel, {release}, is not Quell's: it has no /{SYSFS}; ./quell deb makes packages, ./quell top works on any kernel")
        self.release = release

    def to_json(self) -> dict[str, Any]:
        """As one object, for ``--json``."""
        return {"schema": SCHEMA, "quell": False, "release": self.release, "reason": self.message}


@dataclass(frozen=True)
class Status:
    """The state.

    ``switches``: by mechanism, on or not. ``tunables``: by mechanism, its other
    readable files. ``counters``: Quell's in /proc/vmstat, since boot, in pages or
    events. ``parked_kb``: KiB on the deferred-free lists, None without lazy unmap
    flush. ``shootdown_ipis``: received since boot by all CPUs, None where
    /proc/interrupts has no such line. ``uptime_s``: seconds.
    """

    release: str
    uptime_s: float | None
    switches: Mapping[str, bool]
    tunables: Mapping[str, Mapping[str, str]]
    counters: Mapping[str, int]
    parked_kb: int | None
    shootdown_ipis: int | None

    @property
    def flushes_avoided(self) -> int | None:
        """Flushes that reclaim did not send, at most: see ``STOCK_BATCH``. None without the counters."""
        if not {"luf_park", "luf_migrate", "luf_flush"} <= self.counters.keys():
            return None
        reclaimed = self.counters["luf_park"] - self.counters["luf_migrate"]
        return max(0, reclaimed // STOCK_BATCH - self.counters["luf_flush"])

    def to_json(self) -> dict[str, Any]:
        """As one object, for ``--json``."""
        return {"schema": SCHEMA, "quell": True, **vars(self), "flushes_avoided_at_most": self.flushes_avoided}


def read(root: Path = Path("/")) -> Status:
    """Read the state below ``root``. NotQuell when the kernel is not Quell's."""
    release = procfs.read(root / "proc/sys/kernel/osrelease").strip() or "of unknown version"
    folder = root / SYSFS
    switches: dict[str, bool] = {}
    tunables: dict[str, dict[str, str]] = {}
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not (enabled := procfs.read(entry / "enabled").strip()):
            continue
        switches[entry.name] = enabled == "1"
        tunables[entry.name] = {
            file.name: value
            for file in sorted(entry.iterdir())
            if file.name != "enabled" and (value := procfs.read(file).strip())
        }
        # "0 (REASON)": the kernel refuses to switch it on.
        if reason := enabled[2:]:
            tunables[entry.name]["refused"] = reason
    if not switches:
        raise NotQuell(release)
    vmstat = procfs.vmstat(procfs.read(root / "proc/vmstat"))
    own = re.compile(rf"(?:nr_)?(?:{'|'.join(map(re.escape, switches))})_")
    parked = vmstat.get("nr_luf_parked")
    try:
        shootdowns = sum(procfs.interrupts(procfs.read(root / "proc/interrupts"), "TLB").values())
    except ValueError:
        shootdowns = None
    uptime = procfs.read(root / "proc/uptime").split()
    return Status(
        release=release,
        uptime_s=float(uptime[0]) if uptime else None,
        switches=switches,
        tunables=tunables,
        counters={name: value for name, value in vmstat.items() if own.match(name)},
        parked_kb=None if parked is None else parked * _KB_PER_PAGE,
        shootdown_ipis=shootdowns,
    )


def describe(status: Status) -> list[str]:
    """The status as lines of text."""
    up = f", up {ui.duration(status.uptime_s)}" if status.uptime_s is not None else ""
    lines = [f"Linux {status.release}{up}: a Quell kernel", ""]
    width = max(map(len, status.switches))
    for name, on in status.switches.items():
        more = ", ".join(f"{file} {value}" for file, value in status.tunables[name].items())
        lines.append(f"  {name:{width}}  {'on ' if on else 'OFF'}  {more}".rstrip())
    told: set[str] = set()
    for name, words in (("luf", _lazy), ("rmap_batch", _runs)):
        if name in status.switches and (said := words(status)):
            lines += ["", f"{name}, since boot:", *(f"  {line}" for line in said)]
            told.add(name)
    for name in status.switches:
        found = {
            counter.removeprefix(f"{name}_"): value
            for counter, value in status.counters.items()
            if counter.startswith(f"{name}_")
        }
        if name not in told and found:
            words_ = ", ".join(f"{counter} {value:,}" for counter, value in found.items())
            lines += ["", f"{name}, since boot: {words_}"]
    if status.shootdown_ipis is not None:
        lines += ["", f"All CPUs together received {status.shootdown_ipis:,} shootdown interrupts since boot."]
    return lines


def _pages(count: int) -> str:
    return f"{count:,} pages ({ui.size(count * _KB_PER_PAGE * 1024)})"


def _lazy(status: Status) -> list[str]:
    """The counters of lazy unmap flush as text."""
    get = status.counters.get
    parked, flushes = get("luf_park"), get("luf_flush")
    if parked is None or flushes is None:
        return []
    released = parked - get("nr_luf_parked", 0)
    lines = [f"{_pages(parked)} were deferred without a flush, {get('luf_migrate', 0):,} of them by migration"]
    if released > 0:
        share = 100 * get("luf_release_aged", 0) / released
        lines.append(f"{_pages(released)} were released, {share:.0f} % of them without an IPI")
    now = status.parked_kb
    if now is not None:
        lines.append(
            f"deferred now: {ui.size(now * 1024)}, which is available memory"
            if now
            else "deferred now: nothing"
        )
    lines.append(f"{flushes:,} flushes served all of them")
    if status.flushes_avoided:
        lines.append(
            f"flushes avoided in reclaim: up to {status.flushes_avoided:,} (stock flushes once for "
            f"{STOCK_BATCH} folios; with large folios fewer)"
        )
    lines.append(
        f"waited for a flush: {get('luf_write', 0):,} opens for writing and write faults; "
        f"{get('luf_kept', 0):,} folios were not freed"
    )
    if not status.switches["luf"]:
        lines.append("switched off: reclaim and migration flush as in stock Linux")
    return lines


def _runs(status: Status) -> list[str]:
    """The counters of batched PTE clearing as text."""
    runs, pages = (status.counters.get(f"rmap_batch_{what}") for what in ("runs", "pages"))
    if runs is None or pages is None:
        return []
    if not runs:
        return ["no large folio was unmapped in a run"]
    return [f"{pages:,} page table entries were cleared in {runs:,} runs, {pages / runs:.1f} at a time"]
