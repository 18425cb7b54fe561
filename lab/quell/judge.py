# SPDX-License-Identifier: GPL-2.0-only
"""Turn the runs of all sides into a comparison: figures, verdicts, and the limits of both.

The figures that matter to a workload get verdicts, each side against the first. A count
is judged per unit of work where the sides took the same time and did different work.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quell import counters, stats
from quell.sides import Side, switches

if TYPE_CHECKING:
    from quell.engine import Plan

Samples = Mapping[str, Sequence[counters.Sample]]

# The figures of the user's own command that are judged, beside those that it prints.
OWN_MATTERS = ("shootdown_ipis", "flush_requests", "elapsed_s", "peak_memory_kb")
# Times agree if their medians are within this share.
_AGREE = 0.05
# A command runs for a fixed time if all its runs take equally long, to this share, and at
# least so many seconds.
_FIXED_TIME = 0.01
_FIXED_S = 1.0
# Pages of files reclaimed in a run that are many, and the share that has to be eligible.
_MANY_PAGES = 4096
_FEW_ELIGIBLE = 0.01
_TIMES = ("s", "ms", "us", "ns")


def comparison(
    plan: Plan, samples: Samples, sides: Sequence[Side], emulated: bool, first: Sequence[str] = ()
) -> dict[str, Any]:
    """One workload, in the form of results (docs/reading-the-numbers.md).

    ``first`` names the figures that tables begin with.
    """
    figures = _figures(samples)
    matters = [n for n in plan.matters if n in figures]
    if plan.own:
        matters += [n for n, f in figures.items() if f["source"] == "program" and n not in matters]
    shown = list(dict.fromkeys([*matters, *(n for n, f in figures.items() if f["source"] != "counter")]))
    notes = []
    counts: dict[str, str] = {}
    if work := _work(plan, samples, figures):
        notes.append(work.note)
        counts = _per_work(figures, samples, work)
        matters = [counts.get(n, n) for n in matters if n not in counters.EVENTS or (work.judged and n in counts)]
        shown = [counts.get(n, n) for n in shown]
    _judge(figures, matters, list(samples), {key: name for name, key in counts.items()})
    if emulated:
        shown.sort(key=lambda name: not figures[name]["carries_over"])
    notes += _eligible(plan, figures, sides)
    codes = {name: [s.exit_code for s in runs] for name, runs in samples.items()}
    if any(code for runs in codes.values() for code in runs):
        said = ", ".join(f"{name} {' '.join(map(str, runs))}" for name, runs in codes.items())
        notes.append(f"The command's exit codes: {said}.")
    shown = list(dict.fromkeys([*(n for n in first if n in figures), *shown]))
    return {
        "name": plan.name, **plan.facts(), "figures": figures, "matters": matters, "shown": shown,
        "exit_codes": codes, "notes": notes,
    }  # fmt: skip


def _figures(samples: Samples) -> dict[str, Any]:
    """Every figure that any run has, with the runs of each side; None where a side lacks it."""
    runs: dict[str, dict[str, list[counters.Number]]] = {}
    figures: dict[str, Any] = {}
    for side, made in samples.items():
        for sample in made:
            for name, found in {**sample.metrics, **sample.figures, **sample.extras}.items():
                value = found.value if isinstance(found, counters.Figure) else found
                figures.setdefault(name, _described(name, found))
                runs.setdefault(name, {}).setdefault(side, []).append(value)
    for name, figure in figures.items():
        figure["sides"] = {side: stats.summarize(runs[name].get(side, ())) for side in samples}
    return figures


def _described(name: str, value: counters.Number | counters.Figure) -> dict[str, Any]:
    metric = counters.KNOWN.get(name, counters.Metric(name, name))
    described = {
        "title": metric.title, "unit": metric.unit, "better": "less", "carries_over": metric.carries_over,
        "source": "counter" if metric in counters.EXTRAS or name not in counters.KNOWN else "metric",
        "sides": {}, "against": {},
    }  # fmt: skip
    if isinstance(value, counters.Figure):
        better = "more" if value.higher_is_better else "less"
        carries = value.unit.rpartition("/")[2] not in _TIMES
        described |= {"unit": value.unit, "better": better, "carries_over": carries, "source": "program"}
    return described


def _judge(figures: dict[str, Any], matters: Sequence[str], sides: Sequence[str], bare: Mapping[str, str]) -> None:
    """Ratios of all figures to the first side, verdicts of those that matter.

    ``bare`` names the count of each figure that is per unit of work: few events are no difference.
    """
    base, *others = sides
    for other in others:
        both = {
            n: (f["sides"][base], f["sides"][other])
            for n, f in figures.items() if f["sides"][base] and f["sides"][other]
        }  # fmt: skip
        judged = [n for n in matters if n in both]
        corrected = stats.holm({n: stats.p_value(*(side["runs"] for side in both[n])) for n in judged})
        for name, (a, b) in both.items():
            figure = figures[name]
            against: dict[str, Any] = {"ratio": stats.ratio(a["median"], b["median"]), "p": None, "verdict": None}
            if name in corrected:
                against["p"] = round(corrected[name], 6)
                against["verdict"] = stats.verdict(
                    a, b, corrected[name], len(judged),
                    higher_is_better=figure["better"] == "more", least=counters.LEAST.get(name, 0),
                )  # fmt: skip
                if name in bare and max(side["median"] for side in both[bare[name]]) < counters.LEAST[bare[name]]:
                    against["verdict"] = stats.SAME
            figure["against"][other] = against


@dataclass(frozen=True)
class _Work:
    """The work of each run by side, its unit, a sentence for the reader, and whether counts per unit are judged."""

    runs: Mapping[str, Sequence[float]]
    unit: str
    note: str
    judged: bool = False


def _work(plan: Plan, samples: Samples, figures: Mapping[str, Any]) -> _Work | None:
    """The divisor of counts; None where they are comparable without one.

    Work is the first figure that the program prints as ``figure+`` (more is better); a rate
    is multiplied by the time. Counts are divided if a side took the same time as the first one
    and did different work. Without the work of every run no count is judged.
    """
    times = {side: [run.metrics.get("elapsed_s", 0) for run in runs] for side, runs in samples.items()}
    unknown = _Work(times, "s", (
        "The runs took the same time, and not every one reports its work: counts are shown per second and get "
        "no verdict. With a line 'figure+ work N ops' in the command's output they are judged per unit of work."
    ))  # fmt: skip
    name = next((n for n, f in figures.items() if f["source"] == "program" and f["better"] == "more"), None)
    if name is None:
        every = [time for runs in times.values() for time in runs]
        fixed = plan.own and min(every) >= _FIXED_S and max(every) - min(every) <= _FIXED_TIME * min(every)
        return unknown if fixed else None
    unit = re.sub(r"/(s|sec|second)$", "", figures[name]["unit"])
    rate = unit != figures[name]["unit"]
    runs = {
        side: [
            run.figures[name].value * (time if rate else 1) if name in run.figures else 0
            for run, time in zip(samples[side], times[side], strict=True)
        ]
        for side in samples
    }
    time, work = ({side: statistics.median(one) for side, one in all_.items()} for all_ in (times, runs))
    base, *others = samples
    same_time = [side for side in others if abs(time[side] - time[base]) <= _AGREE * time[base]]
    if min(value for done in runs.values() for value in done) <= 0:
        return unknown if same_time else None
    if not any(abs(work[side] - work[base]) > stats.LEAST_SHARE * work[base] for side in same_time):
        return None
    unit = unit if unit not in ("", "1") else name
    said = ", ".join(f"{side} {work[side] / work[base]:.2f}" for side in others)
    note = f"Sides took the same time and did different work ({name}: {said} of {base}'s): counts are judged per {unit}."
    return _Work(runs, unit, note, judged=True)


def _per_work(figures: dict[str, Any], samples: Samples, work: _Work) -> dict[str, str]:
    """Add the counts per unit of work; their names by those of the bare counts."""
    names = {name: f"{name}_per_{work.unit}" for name in figures if name in counters.EVENTS}
    names = {name: key for name, key in names.items() if figures.get(key, {}).get("source") != "program"}
    for name, key in names.items():
        per = {
            side: [run.metrics[name] / done for run, done in zip(runs, work.runs[side], strict=True)
                   if name in run.metrics and done]
            for side, runs in samples.items()
        }  # fmt: skip
        figures[key] = {
            **figures[name], "title": f"{figures[name]['title']} per {work.unit}", "carries_over": work.judged,
            "sides": {side: stats.summarize(runs) for side, runs in per.items()}, "against": {},
        }  # fmt: skip
    return names


def _eligible(plan: Plan, figures: Mapping[str, Any], sides: Sequence[Side]) -> list[str]:
    """A sentence where reclaim took many pages of files and lazy unmap flush none of them."""
    for side in sides if plan.own and "luf_park" in figures else ():
        taken, parked = (figures[n]["sides"][side.name] for n in ("file_pages_reclaimed", "luf_park"))
        if not (taken and parked and switches(side)["luf"]) or taken["median"] < _MANY_PAGES:
            continue
        if parked["median"] < _FEW_ELIGIBLE * taken["median"]:
            return [
                f"Reclaim took {taken['median']:,.0f} pages of files on {side.name}, and lazy unmap flush could defer "
                "the flush of hardly any: it takes pages that a program has mapped, not read, of files on ext4, xfs, "
                "btrfs, f2fs, erofs and squashfs. In a guest --data PATH gives the command's data such a disk."
            ]
    return []
