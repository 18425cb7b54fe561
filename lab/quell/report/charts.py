# SPDX-License-Identifier: GPL-2.0-only
"""The report's charts. Each is small and reads without colour: shapes and labels tell things apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from quell import stats, table
from quell.report import svg

SIDES = (("stock", "stock", "circle"), ("quell", "Quell", "diamond"))
VERDICTS = {
    stats.BETTER: ("better", "circle"),
    stats.WORSE: ("worse", "triangle"),
    stats.SAME: ("same", "square"),
}
# Ratios beyond these are drawn at the edge, with an arrow.
_RATIO_LIMITS = (1e-3, 1e3)


def _values(values: Sequence[float]) -> str:
    return ", ".join(map(table.number, values))


def _tick(value: float) -> str:
    """A round number at an axis: 500k, 0.2."""
    return re.sub(r"\.?0+(?=[kMG]?$)", "", text) if "." in (text := table.number(value)) else text


@dataclass(frozen=True)
class Ratio:
    """A row of a chart of ratios: the mark, and from where to where it may be."""

    label: str
    value: float | None
    low: float | None
    high: float | None
    css: str
    shape: str
    tip: str


def ratio_row(row: table.Row) -> Ratio:
    """A row of a comparison: the ratio of medians, and those of any two runs."""
    css, shape = VERDICTS.get(row.verdict, VERDICTS[stats.SAME])
    stock, quell = row.figure["stock"], row.figure["quell"]
    low = high = None
    if stock and quell and stock["min"] > 0 and quell["min"] >= 0:
        low, high = quell["min"] / stock["max"], quell["max"] / stock["min"]
    tip = f"{row.label}: stock {row.stock}, Quell {row.quell}, ratio {row.ratio}, {row.verdict}"
    value = row.figure["ratio"]
    return Ratio(row.label, value if value is None or value >= 0 else None, low, high, css, shape, tip)


def ratio_domain(rows: Sequence[Ratio]) -> tuple[float, float]:
    """A range for a logarithmic axis that has 1 and all ratios, as far as is sensible."""
    values = [1.0]
    for row in rows:
        values += [v for v in (row.value, row.low, row.high) if v is not None and v > 0]
    low = max(min(values), _RATIO_LIMITS[0])
    high = min(max(values), _RATIO_LIMITS[1])
    return min(low * 0.8, 0.45), max(high * 1.25, 2.2)


def ratios(
    ident: str, name: str, rows: Sequence[Ratio], domain: tuple[float, float]
) -> Markup:
    """Ratios to stock on a logarithmic axis, one row each; stock's own is the line at 1."""
    top, step, left, right = 8.0, 22.0, 158.0, svg.WIDTH - 48
    bottom = top + step * len(rows)
    words = "; ".join(row.tip for row in rows)
    chart = svg.Chart(ident, name, f"Quell's figure divided by stock's. {words}.", bottom + 32)
    scale = svg.Log(*domain, left, right)
    marks = svg.log_ticks(*domain)
    # As many tick labels as have room.
    every = max(1, round(len(marks) * 34 / (right - left) + 0.49))
    one = marks.index(1.0) if 1.0 in marks else 0
    for n, value in enumerate(marks):
        css = "reference" if value == 1 else "grid"
        chart.line(css, scale(value), top, scale(value), bottom + 4)
        if (n - one) % every == 0:
            chart.text("tick", scale(value), bottom + 15, f"{value:g}", "middle")
    chart.text("tick", scale(1), bottom + 28, "1: as stock", "middle")
    for n, row in enumerate(rows):
        y = top + step * (n + 0.5)
        chart.label("name", 0, y + 4, row.label, left - 10)
        if row.value is None:
            chart.text("value", svg.WIDTH, y + 4, "-", "end")
            continue
        if row.low is not None and row.high is not None:
            chart.line(f"span {row.css}", scale(row.low), y, scale(row.high), y)
        x = scale(row.value)
        if row.value < domain[0] or row.value > domain[1]:
            tip = -6 if row.value < domain[0] else 6
            chart.add("path", "arrow", d=f"M{x + tip:.1f} {y}l{-tip / 2:.1f} -3v6Z")
        chart.mark(row.css, row.shape, x, y, tip=row.tip)
        chart.text("value", svg.WIDTH, y + 4, table.ratio(row.value), "end")
    return chart.markup()


def runs(ident: str, name: str, rows: Sequence[table.Row]) -> Markup:
    """Every run of every figure of a workload, stock above Quell, each figure on its own scale."""
    left, right, step, lane = 42.0, svg.WIDTH - 56, 50.0, 14.0
    words = "; ".join(
        f"{row.label}: " + ", ".join(
            f"{title} {_values(row.figure[side]['runs']) if row.figure[side] else 'none'}"
            for side, title, _ in SIDES
        )
        for row in rows
    )  # fmt: skip
    chart = svg.Chart(ident, name, f"Each run: {words}.", step * len(rows))
    for n, row in enumerate(rows):
        y = n * step + 12
        chart.label("name strong" if row.matters else "name", 0, y, row.label, svg.WIDTH)
        sides = [(row.figure[side], title, css, shape)
                 for (side, title, shape), css in zip(SIDES, ("stock", "quell"), strict=True)]  # fmt: skip
        every = [value for side, *_ in sides if side for value in side["runs"]]
        scale = svg.zero_based(every, left, right)
        chart.line("axis", scale(0), y + 5, scale(0), y + 5 + 2 * lane)
        for m, (side, title, css, shape) in enumerate(sides):
            middle = y + 5 + lane * (m + 0.5)
            chart.text("side", 0, middle + 4, title)
            if not side:
                chart.text("side", left + 6, middle + 4, "not counted by this kernel")
                continue
            chart.line("lane", left, middle, right, middle)
            _spread(chart, css, shape, scale, middle, side, side["runs"], title)
            chart.text("value", svg.WIDTH, middle + 4, table.number(side["median"]), "end")
    return chart.markup()


def _spread(
    chart: svg.Chart, css: str, shape: str, scale: svg.Linear, y: float,
    side: Mapping[str, Any], values: Sequence[float], title: str,
) -> None:  # fmt: skip
    """A bar from the least to the greatest run, a tick for each run, a mark at the median."""
    chart.line(f"span {css}", scale(side["min"]), y, scale(side["max"]), y)
    for value in values:
        chart.line(f"run {css}", scale(value), y - 5, scale(value), y + 5, f"{title}: {value:,}")
    tip = f"{title}: median {side['median']:,} of {_values(values)}"
    chart.mark(css, shape, scale(side["median"]), y, 3.4, tip)


@dataclass(frozen=True)
class Rung:
    """A rung of the ladder with its figure: as in the result, None if it was not measured."""

    name: str
    title: str
    kernel: str
    figure: Mapping[str, Any] | None
    full: bool

    @property
    def css(self) -> str:
        """How it is drawn: stock, Quell in full, or something between."""
        return "stock" if self.kernel == "stock" else "quell" if self.full else "between"


def figure_title(name: str, unit: str) -> str:
    """A ladder's figure for people: the lab's own have titles, others their unit."""
    title = table.title(name)
    return title if title != name or not unit else f"{name}, {unit}"


def ladder(ident: str, name: str, rungs: Sequence[Rung]) -> Markup:
    """A figure on each rung, from nothing to Quell; stock is a line across."""
    stock = next((r for r in rungs if r.kernel == "stock" and r.figure), None)
    own = [r for r in rungs if r.kernel != "stock"]
    left, right, step, top = 104.0, svg.WIDTH - 56, 24.0, 22.0
    bottom = top + step * len(own)
    words = "; ".join(
        f"{r.name}: {_values(r.figure['values']) if r.figure else 'not measured'}" for r in rungs
    )
    chart = svg.Chart(ident, name, f"Each run: {words}.", bottom + 20)
    every = [value for r in rungs if r.figure for value in r.figure["values"]]
    scale = svg.zero_based(every, left, right)
    for value in svg.ticks(scale.low, scale.high, 3):
        chart.line("grid", scale(value), top, scale(value), bottom)
        chart.text("tick", scale(value), bottom + 14, _tick(value), "middle")
    if stock and stock.figure:
        f = stock.figure
        x = scale(f["median"])
        if f["max"] > f["min"]:
            wide = scale(f["max"]) - scale(f["min"])
            chart.add("rect", "band", x=scale(f["min"]), y=top, width=wide, height=bottom - top)
        tip = f"stock: median {f['median']:,} of {_values(f['values'])}"
        chart.line("stockline", x, top - 6, x, bottom, tip)
        text = f"stock {table.number(f['median'])}"
        half = svg.width_of(text, 11) / 2
        chart.text("side", min(max(x, half), svg.WIDTH - half), top - 10, text, "middle")
    for n, rung in enumerate(own):
        y = top + step * (n + 0.5)
        chart.label("name strong" if rung.full else "name", 0, y + 4, rung.name, left - 8)
        if not rung.figure:
            chart.text("value", svg.WIDTH, y + 4, "-", "end")
            continue
        f = rung.figure
        zero, end = sorted((scale(0), scale(f["median"])))
        chart.add("rect", f"bar {rung.css}", x=zero, y=y - 5, width=end - zero, height=10.0)
        shape = "diamond" if rung.full else "circle"
        _spread(chart, rung.css, shape, scale, y, f, f["values"], rung.name)
        chart.text("value", svg.WIDTH, y + 4, table.number(f["median"]), "end")
    chart.line("axis", scale(0), top, scale(0), bottom)
    return chart.markup()


def scale_curves(
    ident: str, name: str, rungs: Sequence[Rung], by_cpus: Mapping[int, Mapping[str, Mapping[str, Any]]]
) -> Markup:
    """A figure against the number of vCPUs, a line per rung; the lines are named at their ends.

    ``by_cpus`` has the figure by number of vCPUs and rung.
    """
    left, right, top, bottom = 44.0, svg.WIDTH - 104, 12.0, 190.0
    counts = sorted(by_cpus)
    words = "; ".join(
        f"{rung.name}: " + ", ".join(
            f"{table.number(by_cpus[n][rung.name]['median'])} with {n} vCPUs"
            for n in counts if rung.name in by_cpus[n]
        )
        for rung in rungs
    )  # fmt: skip
    chart = svg.Chart(ident, name, f"Medians. {words}.", bottom + 34)
    every = [v for cells in by_cpus.values() for f in cells.values() for v in f["values"]]
    y_of = svg.zero_based(every, bottom, top)
    x_of = svg.Log(counts[0], counts[-1], left + 8, right)
    for value in svg.ticks(y_of.low, y_of.high):
        chart.line("grid", left, y_of(value), right, y_of(value))
        chart.text("tick", left - 6, y_of(value) + 4, _tick(value), "end")
    chart.line("axis", left, y_of(0), right, y_of(0))
    for n in counts:
        chart.text("tick", x_of(n), bottom + 15, str(n), "middle")
    chart.text("tick", (left + right) / 2, bottom + 29, "vCPUs", "middle")
    ends: list[tuple[float, Rung, str, str]] = []
    between = 0
    for rung in rungs:
        points = [(n, by_cpus[n][rung.name]) for n in counts if rung.name in by_cpus[n]]
        if not points:
            continue
        if rung.css == "between":
            shape, line = svg.SHAPES[2 + between % 5], f"between dash{between % 3}"
            between += 1
        else:
            shape, line = ("circle" if rung.css == "stock" else "diamond"), rung.css
        path = "L".join(f"{x_of(n):.2f} {y_of(f['median']):.2f}" for n, f in points)
        chart.add("path", f"curve {line}", rung.title, d=f"M{path}")
        for n, f in points:
            chart.line(f"span {rung.css}", x_of(n), y_of(f["min"]), x_of(n), y_of(f["max"]))
            tip = f"{rung.name}, {n} vCPUs: median {f['median']:,} of {_values(f['values'])}"
            chart.mark(rung.css, shape, x_of(n), y_of(f["median"]), 3.4, tip)
        ends.append((y_of(points[-1][1]["median"]), rung, shape, line))
    places = svg.spread_out([y for y, *_ in ends], 13, top, bottom)
    for (y, rung, shape, _), place in zip(ends, places, strict=True):
        chart.line("leader", right + 6, y, right + 14, place)
        chart.mark(rung.css, shape, right + 20, place, 3)
        css = "name strong" if rung.full else "name"
        chart.label(css, right + 27, place + 4, rung.name, svg.WIDTH - right - 27)
    return chart.markup()
