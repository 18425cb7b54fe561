# SPDX-License-Identifier: GPL-2.0-only
"""Made-up results for the tests of the report. No number in here was measured."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from quell import counters, judge, presets, results
from quell.sides import Side

MATTERS = ("shootdown_ipis", "flush_requests", "elapsed_s")
PAIR = (Side("stock", "stock"), Side("quell", "quell"))
THREE = (*PAIR, Side("no-luf", "quell", ("quell=-luf",)))
LADDER = presets.load("ladder").sides


def comparison(
    workload: str = "mapped-read", *, sides: Sequence[Side] = PAIR, cpus: int = 2, name: str = "",
    matters: Sequence[str] = MATTERS, emulated: bool = True, codes: Sequence[int] = (),
    **runs: Sequence[Sequence[float]],
) -> dict[str, Any]:  # fmt: skip
    """A workload. ``runs``: values of each side, by metric, or by another name for an own figure in ns."""
    usual: list[Sequence[float]] = [[100, 105, 110, 115, 120 + n] for n, _ in enumerate(sides)]
    metrics = {metric.name: usual for metric in counters.METRICS}
    metrics["shootdown_ipis"] = [[(900 + 50 * at) / 10 ** min(n, 2) for at in range(5)] for n, _ in enumerate(sides)]
    metrics |= {key: list(values) for key, values in runs.items() if key in metrics}
    own = {key: values for key, values in runs.items() if key not in metrics}
    samples = {
        side.name: [
            counters.Sample(
                {key: v[n][at] for key, v in metrics.items() if at < len(v[n])},
                {"luf_park": 5} if n else {},
                {key: counters.Figure(v[n][at], "ns", False) for key, v in own.items() if at < len(v[n])},
                codes[n] if codes else 0,
            )
            for at in range(max(len(values[n]) for values in (*metrics.values(), *own.values())))
        ]
        for n, side in enumerate(sides)
    }
    facts = {
        "workload": workload, "summary": f"Summary of {workload}", "version": 2, "cpus": cpus, "memory_kb": 262144,
        "command": ["/bin/x", workload], "options": [],
    }  # fmt: skip
    plan: Any = SimpleNamespace(name=name or workload, matters=matters, own=False, facts=lambda: facts)
    return judge.comparison(plan, samples, sides, emulated=emulated)


def result(
    *comparisons: dict[str, Any], preset: str = "compare", sides: Sequence[Side] = PAIR, runs: int = 5,
    accelerator: str = "tcg", deterministic: bool = False,
) -> dict[str, Any]:
    """A whole result, in the form of its file; it must be valid."""
    titles = presets.load("ladder").titles if sides is LADDER else {}
    times = results.TIMES["deterministic" if deterministic else accelerator]
    made = {
        "schema": results.SCHEMA, "preset": preset,
        "environment": {
            "date": "2026-01-02T03:04:05Z", "kernel_source": "6.12.7", "quell": "0123abc",
            "series_hash": "feed", "accelerator": {"name": accelerator, "reason": "made up", "times": times},
            "deterministic": deterministic, "runs": runs, "qemu": "7.2", "compiler": "gcc 12",
            "host": {"cpu": "A CPU", "cpus": 2, "kernel": "6.1", "memory_kb": 8 << 20},
        },
        "sides": [
            {**side.to_json(), "title": titles.get(side.name, side.name), "release": f"6.12.7-{side.kernel}",
             "config_hash": "c0ffee" * 8, "key": "k"}
            for side in sides
        ],
        "comparisons": list(comparisons) or [comparison(sides=sides)],
        "published": [], "notes": ["TLB misses were not counted."],
    }  # fmt: skip
    return made


def ladder(cpus: Sequence[int] = (2,), workloads: Sequence[str] = ("mapped-read",)) -> dict[str, Any]:
    """A result of ladder; with several ``cpus`` it has curves."""
    comparisons = []
    for workload in workloads:
        for count in cpus:
            base = [40000 * count / (n + 1) for n, _ in enumerate(LADDER)]
            runs: dict[str, Any] = {key: [[b * 0.9, b, b * 1.2] for b in base] for key in ("shootdown_ipis", "elapsed_s", "ns_round")}
            runs["ns_round"][0] = []
            name = f"{workload}-{count}cpus" if len(cpus) > 1 else workload
            comparisons.append(comparison(workload, sides=LADDER, cpus=count, name=name, **runs))
    made = result(*comparisons, preset="scale" if len(cpus) > 1 else "ladder", sides=LADDER, runs=3)
    if len(cpus) == 1:
        made["published"] = [
            {
                "id": f"p-{direction}", "work": "A work", "source": "Somebody, somewhere, 2015",
                "conditions": "48 CPUs", "workload": workloads[0], "cpus": cpus[0],
                "figure": "elapsed_s", "from": "nothing", "to": "unmap_batch",
                "theirs": {"from": None, "to": None, "ratio": 0.76},
                "ours": {"from": 8000, "to": 4000, "ratio": 0.5},
                "direction": direction, "why": "one line of why",
            }
            for direction in ("agrees", "opposite", "none")
        ]  # fmt: skip
    return made
