# SPDX-License-Identifier: GPL-2.0-only
"""Made-up results for the tests of the report. No number in here was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quell import measure, results, stats

RUNGS = (
    ("nothing", "a flush per page, PTE by PTE, base pages", "quell", "quell=-unmap_batch,-luf"),
    ("unmap_batch", "+ batched unmap flush", "quell", "quell=-luf"),
    ("concurrent", "+ concurrent flush", "quell", "quell=-luf"),
    ("early_ack", "+ early acknowledgment", "quell", "quell=-luf"),
    ("clearing", "+ batched PTE clearing", "quell", "quell=-luf"),
    ("folio_order", "+ large anonymous folios", "quell", "quell=-luf"),
    ("quell", "+ lazy unmap flush = Quell", "quell", "quell=on"),
    ("stock", "stock Linux", "stock", ""),
)


def environment(
    workloads: Sequence[str], *, runs: int = 3, accelerator: str = "tcg", deterministic: bool = False
) -> dict[str, Any]:
    """As results.environment() makes it."""
    kernel = {"config_hash": "c0ffee" * 8, "key": "k", "boot_parameters": []}
    return {
        "date": "2026-01-02T03:04:05Z",
        "quell": "0123abc",
        "series_hash": "feed",
        "kernel_source": "6.12.7",
        "kernels": {
            "stock": {"release": "6.12.7-stock", **kernel},
            "quell": {"release": "6.12.7-quell", **kernel},
        },
        "accelerator": {
            "name": accelerator,
            "reason": "made up",
            "times": results.TIMES["deterministic" if deterministic else accelerator],
        },
        "deterministic": deterministic,
        "runs": runs,
        "workloads": {
            name: {"version": 2, "cpus": 2, "memory_kb": 262144, "command": ["/bin/x", name]}
            for name in workloads
        },
        "qemu": "7.2",
        "compiler": "gcc 12",
        "host": {"cpu": "A CPU", "cpus": 2, "kernel": "6.1", "memory_kb": 8 << 20},
    }


def comparison(workload: str = "mapped-read", **runs: tuple[Sequence[float], Sequence[float]]) -> dict[str, Any]:
    """A workload; ``runs`` are stock's and Quell's of a metric or, with another name, an own figure."""
    names = [m.name for m in measure.METRICS]
    metrics = {n: stats.compare([100, 110, 120], [105, 110, 115]).to_json() for n in names}
    metrics["shootdown_ipis"] = stats.compare([900, 1000, 1100], [9, 10, 12], events=True).to_json()
    figures = {}
    for name, (stock, quell) in runs.items():
        compared = stats.compare(stock, quell).to_json()
        if name in metrics:
            metrics[name] = compared
        else:
            figures[name] = {**compared, "unit": "ns", "better": "lower"}
    return {
        "workload": workload,
        "metrics": metrics,
        "extras": {"luf_park": stats.compare([], [5, 6]).to_json()},
        "figures": figures,
        "matters": ["shootdown_ipis", "flush_requests", "elapsed_s"],
        "exit_codes": {"stock": [0, 0, 0], "quell": [0, 0, 0]},
    }


def result(*comparisons: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """A whole quell.results/1."""
    entries = list(comparisons) or [comparison()]
    return {
        "schema": "quell.results/1",
        "environment": environment([c["workload"] for c in entries], **changed),
        "comparisons": entries,
    }


def ladder(cpus: Sequence[int] = (2,), workloads: Sequence[str] = ("mapped-read",)) -> dict[str, Any]:
    """A whole quell.ladder/1; with several ``cpus`` it has curves."""
    cells = []
    for workload in workloads:
        for count in cpus:
            for n, (rung, *_) in enumerate(RUNGS):
                base = 40000 * count / (n + 1) if rung != "stock" else 19000 * count
                values = [base * 0.9, base, base * 1.2]
                figures = {
                    "shootdown_ipis": {"unit": "count", "better": "less"},
                    "elapsed_s": {"unit": "s", "better": "less"},
                    "rate": {"unit": "pages/s", "better": "more"},
                }
                for name, figure in figures.items():
                    if name == "rate" and rung == "nothing":
                        continue
                    figure.update(values=values, median=values[1], min=values[0], max=values[2])  # type: ignore[call-overload]
                kept = {k: v for k, v in figures.items() if "values" in v}
                cells.append({"workload": workload, "cpus": count, "rung": rung, "figures": kept})
    published = [
        {
            "id": f"p-{direction}", "work": "A work", "source": "Somebody, somewhere, 2015",
            "conditions": "48 CPUs", "workload": workloads[0], "cpus": cpus[0],
            "figure": "elapsed_s", "from": "nothing", "to": "unmap_batch",
            "theirs": {"from": None, "to": None, "ratio": 0.76},
            "ours": {"from": 8000, "to": 4000, "ratio": 0.5},
            "direction": direction, "size": size, "why": "one line of why",
        }
        for direction, size in (("agrees", "larger"), ("opposite", "-"), ("none", "-"))
    ]  # fmt: skip
    return {
        "schema": "quell.ladder/1",
        "quell": "0123abc",
        "started": "2026-01-02T03:04:05Z",
        "environment": environment(workloads),
        "deterministic": False,
        "runs": 3,
        "rungs": [dict(zip(("name", "title", "kernel", "args"), r, strict=True)) for r in RUNGS],
        "cells": cells,
        "published": published if len(cpus) == 1 else [],
        "absent": ["TLB misses: emulation has no counters for them"],
    }
