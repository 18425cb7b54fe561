# SPDX-License-Identifier: GPL-2.0-only
"""The report's charts. Each is small and readable without color, by shapes and labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from quell import stats, table, ui
from quell.report import svg

# Kinds of verdicts (classes of the style sheet), and their marks.
BETTER, WORSE, SAME, FEW = "better", "worse", "same", "few"
MARKS = {BETTER: "circle", WORSE: "triangle", SAME: "square", FEW: "cross"}
_KINDS = {stats.BETTER: BETTER, stats.WORSE: WORSE, stats.SAME: SAME}
_FEW_TEXT = stats.too_few(1).partition(" (")[0]
# Ratios beyond these are drawn at the edge, beside their value.
_RATIO_LIMITS = (1e-3, 1e3)

_Figure = Mapping[str, Any]


def kind(verdict: str | None) -> str:
    """A verdict's kind; empty for a figure that was not judged."""
    text = verdict or ""
    return FEW if text.startswith(_FEW_TEXT) else _KINDS.get(text, "")


@dataclass(frozen=True)
class Side:
    """A side of the charts."""

    name: str
    title: str
    css: str
    shape: str


def sides(result: Mapping[str, Any]) -> list[Side]:
    """The sides: the base and stock kernels are gray, the last side with a Quell kernel is highlighted."""
    own = [n for n, side in enumerate(result["sides"]) if n and side["kernel"] != "stock"]
    css = {n: "between" for n in own} | dict.fromkeys(own[-1:], "other")
    return [
        Side(side["name"], side["title"], css.get(n, "base"), svg.SHAPES[n % len(svg.SHAPES)])
        for n, side in enumerate(result["sides"])
    ]


@dataclass(frozen=True)
class Row:
    """A figure of a side against the base; ``base`` and ``other`` are summaries of a result.

    ``later``: emulation changes the figure, so it comes last.
    """

    label: str
    base: Mapping[str, Any] | None
    other: Mapping[str, Any] | None
    ratio: float | None
    verdict: str
    matters: bool
    later: bool

    @property
    def kind(self) -> str:
        """The verdict's kind."""
        return kind(self.verdict)

    @property
    def range(self) -> tuple[float, float] | None:
        """The minimum and the maximum ratio of any two runs, or None."""
        if self.base and self.other and self.base["min"] > 0 and self.other["min"] >= 0:
            return self.other["min"] / self.base["max"], self.other["max"] / self.base["min"]
        return None


def ratio_domain(rows: Sequence[Row]) -> tuple[float, float]:
    """A range for a logarithmic axis with 1 and all ratios, within ``_RATIO_LIMITS``."""
    values = [1.0]
    for row in rows:
        values += [v for v in (row.ratio, *(row.range or ())) if v is not None and v > 0]
    low = max(min(values), _RATIO_LIMITS[0])
    high = min(max(values), _RATIO_LIMITS[1])
    return min(low * 0.8, 0.45), max(high * 1.25, 2.2)


def ratios(
    ident: str, name: str, base: str, other: str, rows: Sequence[Row], domain: tuple[float, float]
) -> Markup:
    """Ratios to the base on a logarithmic axis, one row each; the base is the line at 1."""
    top, step, left, right = 8.0, 22.0, 158.0, svg.WIDTH - 48
    labels = [svg.wrap(row.label, left - 10) for row in rows]
    heights = [step + svg.LINE * (len(parts) - 1) for parts in labels]
    bottom = top + sum(heights)
    tips = [
        f"{row.label}: {base} {table.span(row.base)}, {other} {table.span(row.other)}, "
        f"ratio {table.ratio(row.ratio)}, {row.verdict}"
        for row in rows
    ]
    chart = svg.Chart(
        ident, f"{name}: ratio of {other} to {base}", f"Medians of {other} divided by those of {base}. "
        f"{'; '.join(tips)}.", bottom + 32,
    )  # fmt: skip
    scale = svg.Log(*domain, left, right)
    marks = svg.log_ticks(*domain)
    # As many tick labels as fit.
    every = max(1, round(len(marks) * 34 / (right - left) + 0.49))
    one = marks.index(1.0) if 1.0 in marks else 0
    for n, value in enumerate(marks):
        css = "reference" if value == 1 else "grid"
        chart.line(css, scale(value), top, scale(value), bottom + 4)
        if (n - one) % every == 0:
            chart.text("tick", scale(value), bottom + 15, f"{value:g}", "middle")
    room = 2 * min(scale(1), svg.WIDTH - scale(1))
    chart.text("tick", scale(1), bottom + 28, svg.fit(f"1: as {base}", room), "middle")
    for n, (row, tip) in enumerate(zip(rows, tips, strict=True)):
        y = top + sum(heights[:n]) + heights[n] / 2
        chart.lines("name", 0, y + 4, labels[n], left - 10)
        if row.ratio is None or row.ratio < 0:
            chart.text("value", svg.WIDTH, y + 4, "-", "end")
            continue
        css = row.kind or SAME
        if row.range:
            chart.line(f"span {css}", scale(row.range[0]), y, scale(row.range[1]), y)
        chart.mark(css, MARKS[css], scale(row.ratio), y, tip=tip)
        chart.text("value", svg.WIDTH, y + 4, table.ratio(row.ratio), "end")
    return chart.markup()


def _each_run(figure: _Figure, every: Sequence[Side]) -> str:
    """All runs of all sides as text."""
    return ", ".join(
        f"{side.name} {_values(found) if (found := figure['sides'][side.name]) else 'none'}" for side in every
    )


def _values(found: Mapping[str, Any]) -> str:
    return ", ".join(map(ui.number, found["runs"]))


def _scale(figures: Sequence[_Figure], start: float, end: float) -> svg.Linear:
    """A scale with 0 and every run of these figures."""
    found = [side for figure in figures for side in figure["sides"].values() if side]
    return svg.zero_based([value for side in found for value in side["runs"]], start, end)


def runs(
    ident: str, name: str, figures: Mapping[str, _Figure], matters: Sequence[str], every: Sequence[Side]
) -> Markup:
    """Every run of these figures: a lane per side with a bar to the median, each figure on its own scale.

    The median of the base is a line through all lanes.
    """
    left = min(104, 8 + max(svg.width_of(side.name, 11) for side in every))
    right, lane = svg.WIDTH - 56, 15.0
    step = 24 + lane * len(every)
    words = "; ".join(f"{table.label(figure)}: {_each_run(figure, every)}" for figure in figures.values())
    chart = svg.Chart(ident, name, f"Each run: {words}.", step * len(figures))
    for n, (key, figure) in enumerate(figures.items()):
        top = n * step + 17
        bottom = top + lane * len(every)
        chart.label("name strong" if key in matters else "name", 0, top - 5, table.label(figure), svg.WIDTH)
        scale = _scale([figure], left, right)
        if base := figure["sides"][every[0].name]:
            chart.line("baseline", scale(base["median"]), top, scale(base["median"]), bottom)
        for m, side in enumerate(every):
            y = top + lane * (m + 0.5)
            chart.label("side", 0, y + 4, side.name, left - 6)
            found = figure["sides"][side.name]
            if found is None:
                chart.text("side", left + 6, y + 4, "not counted")
                continue
            zero, end = sorted((scale(0), scale(found["median"])))
            chart.add("rect", f"bar {side.css}", x=zero, y=y - 5, width=end - zero, height=10.0)
            chart.line(f"span {side.css}", scale(found["min"]), y, scale(found["max"]), y)
            for value in found["runs"]:
                chart.line(f"run {side.css}", scale(value), y - 5, scale(value), y + 5, f"{side.name}: {value:,}")
            tip = f"{side.name}: median {found['median']:,} of {_values(found)}"
            chart.mark(side.css, side.shape, scale(found["median"]), y, 3.4, tip)
            chart.text("value", svg.WIDTH, y + 4, ui.number(found["median"]), "end")
        chart.line("axis", scale(0), top, scale(0), bottom)
    return chart.markup()


def _tick(value: float) -> str:
    """A round number at an axis: 500k, 0.2."""
    return re.sub(r"\.?0+(?=[kMG]?$)", "", text) if "." in (text := ui.number(value)) else text


def curves(ident: str, name: str, label: str, by_cpus: Mapping[int, _Figure], every: Sequence[Side]) -> Markup:
    """A figure against the number of CPUs, a line per side; the lines are named at their ends."""
    left, right, top, bottom = 44.0, svg.WIDTH - 104, 28.0, 206.0
    counts = sorted(by_cpus)
    lines = {side: [(n, f) for n in counts if (f := by_cpus[n]["sides"][side.name])] for side in every}
    words = "; ".join(
        f"{side.name}: " + ", ".join(f"{ui.number(f['median'])} with {n} CPUs" for n, f in points)
        for side, points in lines.items()
    )
    chart = svg.Chart(ident, name, f"Medians. {words}.", bottom + 34)
    chart.label("name strong", 0, 12, label, svg.WIDTH)
    y_of = _scale(list(by_cpus.values()), bottom, top)
    x_of = svg.Log(counts[0], counts[-1], left + 8, right)
    for value in svg.ticks(y_of.low, y_of.high):
        chart.line("grid", left, y_of(value), right, y_of(value))
        chart.text("tick", left - 6, y_of(value) + 4, _tick(value), "end")
    chart.line("axis", left, y_of(0), right, y_of(0))
    for n in counts:
        chart.text("tick", x_of(n), bottom + 15, str(n), "middle")
    chart.text("tick", (left + right) / 2, bottom + 29, "CPUs", "middle")
    ends: list[tuple[float, Side]] = []
    for at, (side, points) in enumerate(lines.items()):
        if not points:
            continue
        path = "L".join(f"{x_of(n):.2f} {y_of(f['median']):.2f}" for n, f in points)
        chart.add("path", f"curve {side.css} dash{at % 3}", side.title, d=f"M{path}")
        for n, f in points:
            chart.line(f"span {side.css}", x_of(n), y_of(f["min"]), x_of(n), y_of(f["max"]))
            tip = f"{side.name}, {n} CPUs: median {f['median']:,} of {_values(f)}"
            chart.mark(side.css, side.shape, x_of(n), y_of(f["median"]), 3.4, tip)
        ends.append((y_of(points[-1][1]["median"]), side))
    places = svg.spread_out([y for y, _ in ends], 13, top, bottom)
    for (y, side), place in zip(ends, places, strict=True):
        chart.line("leader", right + 6, y, right + 14, place)
        chart.mark(side.css, side.shape, right + 20, place, 3)
        css = "name strong" if side.css == "other" else "name"
        chart.label(css, right + 27, place + 4, side.name, svg.WIDTH - right - 27)
    return chart.markup()
