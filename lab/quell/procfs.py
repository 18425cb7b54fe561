# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's counters, parsed from the texts of files in /proc.

Parsers take a file's text. ValueError, with the reason, for an unknown form.
"""

from __future__ import annotations

import re
from pathlib import Path


def read(path: Path) -> str:
    """A file's text as it stands; empty if it cannot be read."""
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def vmstat(text: str) -> dict[str, int]:
    """/proc/vmstat: a counter a line."""
    found = re.findall(r"^(\S+) (-?\d+)$", text, re.MULTILINE)
    if len(found) != len(text.splitlines()):
        raise ValueError("a line is no counter")
    return {name: int(value) for name, value in found}


def interrupts(text: str, label: str) -> dict[int, int]:
    """The line ``label`` of /proc/interrupts by CPU number (arch/x86/kernel/irq.c)."""
    cpus = [int(word[3:]) for word in text.partition("\n")[0].split()]
    match = re.search(rf"^ *{label}:(.*)$", text, re.MULTILINE)
    if not match:
        raise ValueError(f"there is no line {label}")
    counts = match[1].split()[: len(cpus)]
    if len(counts) < len(cpus):
        raise ValueError(f"the line {label} has too few counts")
    return dict(zip(cpus, map(int, counts)))


def ticks(text: str) -> int:
    """CPU time in clock ticks, user and system, of the threads of these /proc/PID/stat lines."""
    total = 0
    for line in text.splitlines():
        # The name is in parentheses and may hold anything; utime and stime are fields 14 and 15.
        fields = line.rpartition(")")[2].split()
        if len(fields) < 13:
            raise ValueError("a line has too few fields")
        total += int(fields[11]) + int(fields[12])
    return total
