# SPDX-License-Identifier: GPL-2.0-only
"""ladder.json, described in docs/results.md: how it is made and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quell import measure, results, stats
from quell.paths import Cache

# Raised with every change that a reader of the old form would misread.
VERSION = 1
SCHEMA = f"quell.ladder/{VERSION}"
FILE = "ladder.json"

PER_SECOND = "shootdown_ipis_per_s"


def figures(samples: Sequence[measure.Sample]) -> dict[str, Any]:
    """A cell's figures from all its runs; a figure that a run lacks is left out."""
    values: dict[str, list[measure.Number]] = {}
    known: dict[str, tuple[str, bool]] = {}
    every = (*measure.METRICS, *measure.EXTRAS, measure.GUEST_INSTRUCTIONS)
    for sample in samples:
        found = {**sample.metrics, **sample.extras}
        for metric in every:
            if metric.name in found:
                values.setdefault(metric.name, []).append(found[metric.name])
                known[metric.name] = (metric.unit or "count", False)
        if sample.metrics.get("elapsed_s"):
            per_second = sample.metrics["shootdown_ipis"] / sample.metrics["elapsed_s"]
            values.setdefault(PER_SECOND, []).append(round(per_second, 3))
            known[PER_SECOND] = ("1/s", False)
        for name, figure in sample.figures.items():
            values.setdefault(name, []).append(figure.value)
            known[name] = (figure.unit, figure.higher_is_better)
    out = {}
    for name, runs in values.items():
        if len(runs) < len(samples):
            continue
        unit, more = known[name]
        summary = stats.summarize(runs)
        out[name] = {
            "unit": unit,
            "better": "more" if more else "less",
            "values": list(summary.runs),
            "median": summary.median,
            "min": summary.min,
            "max": summary.max,
        }
    return out


def cell(
    document: Mapping[str, Any], workload: str, cpus: int, rung: str
) -> Mapping[str, Any] | None:
    """The cell of a workload, a number of CPUs and a rung, or None."""
    for entry in document["cells"]:
        if (entry["workload"], entry["cpus"], entry["rung"]) == (workload, cpus, rung):
            found: Mapping[str, Any] = entry
            return found
    return None


def measured(document: Mapping[str, Any]) -> dict[str, list[int]]:
    """The workloads of a document, each with the numbers of CPUs it was measured with."""
    found: dict[str, list[int]] = {}
    for entry in document["cells"]:
        cpus = found.setdefault(entry["workload"], [])
        if entry["cpus"] not in cpus:
            cpus.append(entry["cpus"])
    return found


def load(path: Path) -> dict[str, Any]:
    """A document from its file or folder.

    ResultError when it cannot be read, is none, or is of another version.
    """
    file = path / FILE if path.is_dir() else path
    parts = {"environment": dict, "rungs": list, "cells": list, "published": list, "absent": list}
    return results.read(file, "ladder", SCHEMA, "quell ladder", parts)


def latest(cache: Cache) -> Path | None:
    """The newest folder with a complete ladder, or None."""
    found = sorted(path.parent for path in cache.results.glob(f"*/{FILE}"))
    return found[-1] if found else None
