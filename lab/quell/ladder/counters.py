# SPDX-License-Identifier: GPL-2.0-only
"""TLB misses, counted by the processor where the guest has its counters: under KVM."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from quell import compare, machine
from quell.paths import Cache

# The figures that guest/tlbmiss.c prints.
FIGURES = ("dtlb_load_misses", "dtlb_store_misses", "itlb_misses")


def program(cache: Cache) -> Path:
    """The program that runs a command and counts its TLB misses."""
    return machine.guest_program("tlbmiss", cache)


def counting(plan: compare.Plan, counter: Path) -> compare.Plan:
    """``plan``, its command run by the program that counts."""
    job = dataclasses.replace(plan.job, argv=(str(counter), *plan.job.argv))
    return dataclasses.replace(plan, job=job)
