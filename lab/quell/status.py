# SPDX-License-Identifier: GPL-2.0-only
"""The state of a running Quell kernel: switches, counters since boot, deferred pages.

This module needs nothing but Python: it runs on machines without the lab.
"""

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quell import procfs, ui

SCHEMA = "quell.status/1"
SYSFS = "sys/kernel/mm/quell"
_KB_PER_PAGE = 4


def read(root: Path = Path("/")) -> dict[str, Any]:
    """The state below ``root``, as ``--json`` prints it.

    ``switches``: by mechanism, on or not. ``tunables``: by mechanism, its other
    readable files. ``counters``: Quell's in /proc/vmstat, since boot, in pages or
    events. ``parked_kb``: KiB on the deferred-free lists. ``shootdown_ipis``: received
    since boot by all CPUs. ``uptime_s``: seconds. Unknown values are None. If the kernel
    is not Quell's, ``quell`` is False and ``reason`` says so.
    """
    release = procfs.read(root / "proc/sys/kernel/osrelease").strip() or "of unknown version"
    switches: dict[str, bool] = {}
    tunables: dict[str, dict[str, str]] = {}
    for file in sorted((root / SYSFS).glob("*/enabled")):
        name, files = file.parent.name, sorted(file.parent.iterdir())
        values = {one.name: value for one in files if (value := procfs.read(one).strip())}
        # "0 (REASON)": the kernel refuses to switch it on.
        enabled, _, refused = values.pop("enabled", "0").partition(" ")
        switches[name] = enabled == "1"
        tunables[name] = {**values, **({"refused": refused} if refused else {})}
    if not switches:
        reason = f"the running kernel, {release}, is not Quell's: it has no /{SYSFS}; "
        reason += "./quell deb makes packages, ./quell top works on any kernel"
        return {"schema": SCHEMA, "quell": False, "release": release, "reason": reason}
    vmstat = procfs.vmstat(procfs.read(root / "proc/vmstat"))
    own = re.compile(rf"(?:nr_)?(?:{'|'.join(switches)})_")
    parked = vmstat.get("nr_luf_parked")
    try:
        shootdowns = sum(procfs.interrupts(procfs.read(root / "proc/interrupts"), "TLB").values())
    except ValueError:
        shootdowns = None
    uptime = procfs.read(root / "proc/uptime").split()
    return {
        "schema": SCHEMA, "quell": True, "release": release, "uptime_s": float(uptime[0]) if uptime else None,
        "switches": switches, "tunables": tunables,
        "counters": {name: value for name, value in vmstat.items() if own.match(name)},
        "parked_kb": None if parked is None else parked * _KB_PER_PAGE, "shootdown_ipis": shootdowns,
    }  # fmt: skip


def describe(status: Mapping[str, Any]) -> list[str]:
    """The state of a Quell kernel as lines of text."""
    up = f", up {ui.duration(status['uptime_s'])}" if status["uptime_s"] is not None else ""
    lines = [f"Linux {status['release']}{up}: a Quell kernel", ""]
    width = max(map(len, status["switches"]))
    for name, on in status["switches"].items():
        more = ", ".join(f"{file} {value}" for file, value in status["tunables"][name].items())
        lines.append(f"  {name:{width}}  {'on ' if on else 'OFF'}  {more}".rstrip())
    counters = status["counters"]
    for name in status["switches"]:
        start = f"{name}_"
        found = [f"{key.removeprefix(start)} {value:,}" for key, value in counters.items() if key.startswith(start)]
        if found:
            lines += ["", *textwrap.wrap(f"{name}, since boot: {', '.join(found)}", 100, subsequent_indent="  ")]
    if status["parked_kb"] is not None and (released := counters.get("luf_park", 0) - counters["nr_luf_parked"]) > 0:
        share = 100 * counters.get("luf_release_aged", 0) / released
        lines += ["", f"Of {released:,} pages that luf released, {share:.0f} % were released without an IPI."]
        lines += [f"Deferred now: {ui.size(status['parked_kb'] * 1024)}, which is available memory."]
    if status["shootdown_ipis"] is not None:
        lines += ["", f"All CPUs together received {status['shootdown_ipis']:,} shootdown interrupts since boot."]
    return lines
