# SPDX-License-Identifier: GPL-2.0-only
"""The report's charts, as inline SVG that is readable without color.

Elements have classes; the page's style sheet sets colors and fonts, for light, dark
and print. Lengths are in user units. Charts are WIDTH wide, as a phone: their text
is not scaled down there.
"""

import re
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from quell import table, ui

WIDTH = 360.0
# The average width of a character, as a share of the font size; wide ones (CJK) take all.
_CHARACTER = 0.56


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


def clean(text: str) -> str:
    """Text without control characters and lone surrogates, which no document may have."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", " ", re.sub(r"[\ud800-\udfff]", "\ufffd", text))


def width_of(text: str) -> float:
    """The approximate width of a text of 11 units."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return 11 * (wide + _CHARACTER * (len(text) - wide))


def fit(text: str, width: float) -> str:
    """The text, cut with an ellipsis if it is wider."""
    if width_of(text) <= width:
        return text
    while text and width_of(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"


class Chart:
    """One chart: ``name`` and ``description`` are for screen readers.

    ``ident`` has to be unique on the page.
    """

    def __init__(self, ident: str, name: str, description: str, height: float) -> None:
        self.root = ET.Element("svg", {
            "viewBox": f"0 0 {_text(WIDTH)} {_text(height)}", "role": "img", "class": "chart",
            "aria-labelledby": f"{ident}-t", "aria-describedby": f"{ident}-d",
        })  # fmt: skip
        ET.SubElement(self.root, "title", {"id": f"{ident}-t"}).text = clean(name)
        ET.SubElement(self.root, "desc", {"id": f"{ident}-d"}).text = clean(description)

    def markup(self) -> Markup:
        """The element as HTML; everything in it is escaped."""
        return Markup(ET.tostring(self.root, encoding="unicode"))

    def add(self, tag: str, css: str, text: str = "", tip: str = "", **attributes: object) -> None:
        """An element with a text; ``tip`` is its tooltip."""
        named = {key.replace("_", "-"): _text(value) for key, value in attributes.items()}
        element = ET.SubElement(self.root, tag, {"class": css, **named})
        if tip:
            title = ET.SubElement(element, "title")
            title.text, title.tail = clean(tip), clean(text)
        else:
            element.text = clean(text)

    def line(self, css: str, x1: float, y1: float, x2: float, y2: float, tip: str = "") -> None:
        """A straight line."""
        self.add("line", css, tip=tip, x1=x1, y1=y1, x2=x2, y2=y2)

    def label(self, css: str, x: float, y: float, text: str, width: float) -> None:
        """A text of 11 units, cut to ``width``; a cut text has the whole as its tooltip."""
        shown = fit(text, width)
        self.add("text", css, shown, text if shown != text else "", x=x, y=y)


@dataclass(frozen=True)
class Side:
    """A side of the charts."""

    name: str
    title: str
    css: str


def sides(result: Mapping[str, Any]) -> list[Side]:
    """The sides: the base and stock kernels are gray, the last side with a Quell kernel is highlighted."""
    own = [n for n, side in enumerate(result["sides"]) if n and side["kernel"] != "stock"]
    css = {n: "between" for n in own} | dict.fromkeys(own[-1:], "other")
    return [Side(side["name"], side["title"], css.get(n, "base")) for n, side in enumerate(result["sides"])]


class Scale:
    """A linear scale from values to places, with 0 and all ``values``."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, high = min(0.0, *values), max(0.0, *values)
        self.high = high if high > self.low else self.low + 1
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        # Halved first: the difference of two large numbers may overflow.
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + share * (self.end - self.start)


def _values(figure: Mapping[str, Any], side: Side) -> str:
    found = figure["sides"][side.name]
    return ", ".join(map(ui.number, found["runs"])) if found else "none"


def runs(
    ident: str, name: str, figures: Mapping[str, Mapping[str, Any]], matters: Sequence[str], every: Sequence[Side]
) -> Markup:
    """Every run of these figures: a lane per side with a bar to the median, each figure on its own scale.

    The median of the base is a line through all lanes.
    """
    left = min(104, 8 + max(width_of(side.name) for side in every))
    lane = 15.0
    step = 24 + lane * len(every)
    words = "; ".join(
        f"{table.label(figure)}: " + ", ".join(f"{side.name} {_values(figure, side)}" for side in every)
        for figure in figures.values()
    )
    chart = Chart(ident, name, f"Each run: {words}.", step * len(figures))
    for n, (key, figure) in enumerate(figures.items()):
        top = n * step + 17
        bottom = top + lane * len(every)
        chart.label("name strong" if key in matters else "name", 0, top - 5, table.label(figure), WIDTH)
        scale = Scale([run for side in figure["sides"].values() if side for run in side["runs"]], left, WIDTH - 56)
        if base := figure["sides"][every[0].name]:
            chart.line("baseline", scale(base["median"]), top, scale(base["median"]), bottom)
        for m, side in enumerate(every):
            y = top + lane * (m + 0.5)
            chart.label("side", 0, y + 4, side.name, left - 6)
            found = figure["sides"][side.name]
            if found is None:
                chart.add("text", "side", "not counted", x=left + 6, y=y + 4)
                continue
            zero, end = sorted((scale(0), scale(found["median"])))
            chart.add("rect", f"bar {side.css}", x=zero, y=y - 5, width=end - zero, height=10.0)
            chart.line(f"span {side.css}", scale(found["min"]), y, scale(found["max"]), y)
            for value in found["runs"]:
                chart.line(f"run {side.css}", scale(value), y - 5, scale(value), y + 5, f"{side.name}: {value:,}")
            tip = f"{side.name}: median {found['median']:,} of {_values(figure, side)}"
            chart.add("circle", f"mark {side.css}", tip=tip, cx=scale(found["median"]), cy=y, r=3.4)
            chart.add("text", "value", ui.number(found["median"]), x=WIDTH, y=y + 4, text_anchor="end")
        chart.line("axis", scale(0), top, scale(0), bottom)
    return chart.markup()
