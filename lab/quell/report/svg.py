# SPDX-License-Identifier: GPL-2.0-only
"""Charts as inline SVG: elements, scales, ticks, marks.

Elements have classes; the page's style sheet sets colors and fonts, for light, dark
and print. Lengths are in user units. Charts are WIDTH wide, as a phone: their text
is not scaled down there.
"""

from __future__ import annotations

import math
import re
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence

from markupsafe import Markup

WIDTH = 360.0
# From one line of text to the next.
LINE = 12.0
# The average width of a character, as a share of the font size; wide ones (CJK) take all.
_CHARACTER = 0.56


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


class Chart:
    """One figure: ``name`` and ``description`` are for screen readers.

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

    def add(self, tag: str, css: str, tip: str = "", **attributes: object) -> ET.Element:
        """An element; ``tip`` is its tooltip."""
        named = {key.replace("_", "-"): _text(value) for key, value in attributes.items()}
        element = ET.SubElement(self.root, tag, {"class": css, **named})
        if tip:
            ET.SubElement(element, "title").text = clean(tip)
        return element

    def line(self, css: str, x1: float, y1: float, x2: float, y2: float, tip: str = "") -> None:
        """A straight line."""
        self.add("line", css, tip, x1=x1, y1=y1, x2=x2, y2=y2)

    def text(self, css: str, x: float, y: float, text: str, anchor: str = "start") -> None:
        """A line of text at a base line."""
        self.add("text", css, x=x, y=y, text_anchor=anchor).text = clean(text)

    def label(self, css: str, x: float, y: float, text: str, width: float) -> None:
        """A text of 11 units, cut to ``width``; a cut text has the whole as its tooltip."""
        shown = fit(text, width)
        element = self.add("text", css, text if shown != text else "", x=x, y=y)
        title = element.find("title")
        if title is None:
            element.text = clean(shown)
        else:
            title.tail = clean(shown)

    def lines(self, css: str, x: float, y: float, parts: Sequence[str], width: float) -> None:
        """The lines of ``wrap``, around a base line."""
        for n, part in enumerate(parts):
            self.label(css, x, y + LINE * (n - (len(parts) - 1) / 2), part, width)

    def mark(self, css: str, shape: str, x: float, y: float, r: float = 4, tip: str = "") -> None:
        """A mark of one of SHAPES."""
        self.add("path", f"mark {css}", tip, d=outline(shape, x, y, r))


SHAPES = ("circle", "diamond", "triangle", "square", "down", "plus", "cross")


def outline(shape: str, x: float, y: float, r: float) -> str:
    """The path of a mark around (x, y)."""
    if shape == "circle":
        arc = f"a{_text(r)} {_text(r)} 0 1 0"
        return f"M{_text(x - r)} {_text(y)}{arc} {_text(2 * r)} 0{arc} {_text(-2 * r)} 0Z"
    w = r * 0.4
    corners: dict[str, Sequence[tuple[float, float]]] = {
        "diamond": [(0, -r * 1.25), (r * 1.25, 0), (0, r * 1.25), (-r * 1.25, 0)],
        "triangle": [(0, -r * 1.15), (r * 1.15, r * 0.95), (-r * 1.15, r * 0.95)],
        "down": [(0, r * 1.15), (r * 1.15, -r * 0.95), (-r * 1.15, -r * 0.95)],
        "square": [(-r * 0.9, -r * 0.9), (r * 0.9, -r * 0.9), (r * 0.9, r * 0.9), (-r * 0.9, r * 0.9)],
        "plus": [(-w, -r), (w, -r), (w, -w), (r, -w), (r, w), (w, w),
                 (w, r), (-w, r), (-w, w), (-r, w), (-r, -w), (-w, -w)],
    }  # fmt: skip
    points = corners["plus" if shape == "cross" else shape]
    if shape == "cross":
        points = [((a - b) * math.sqrt(0.5), (a + b) * math.sqrt(0.5)) for a, b in points]
    return "M" + "L".join(f"{_text(x + a)} {_text(y + b)}" for a, b in points) + "Z"


def clean(text: str) -> str:
    """Text without control characters and lone surrogates, which no document may have."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", " ", re.sub(r"[\ud800-\udfff]", "\ufffd", text))


def width_of(text: str, size: float) -> float:
    """The approximate width of a text."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return size * (wide + _CHARACTER * (len(text) - wide))


def fit(text: str, width: float, size: float = 11) -> str:
    """The text, cut with an ellipsis if it is wider."""
    if width_of(text, size) <= width:
        return text
    while text and width_of(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def wrap(text: str, width: float, size: float = 11) -> list[str]:
    """The text on several lines if it is wider, broken behind words and parts of identifiers only."""
    ends = [m.end() for m in re.finditer(r"[\s_./=:-](?=\S)", text) if width_of(text[: m.end()].rstrip(), size) <= width]
    if width_of(text, size) <= width or not ends:
        return [text]
    return [text[: ends[-1]].rstrip(), *wrap(text[ends[-1] :], width, size)]


class Linear:
    """A scale from values to places; an empty range is widened."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = low, high if high > low else low + 1
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        # Halved first: the difference of two large numbers may overflow.
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + share * (self.end - self.start)


class Log:
    """A logarithmic scale; values outside of it go to its ends."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = low, high
        self._linear = Linear(math.log(low), math.log(high), start, end)

    def __call__(self, value: float) -> float:
        if value <= 0:
            return self._linear.start
        return self._linear(math.log(min(max(value, self.low), self.high)))


def zero_based(values: Iterable[float], start: float, end: float) -> Linear:
    """A linear scale with 0 and all values."""
    every = [0.0, *values]
    return Linear(min(every), max(every), start, end)


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round values between two others: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high / 2 - low / 2) / about * 2
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.7)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two values; with fewer than two 0.2, 0.5, 1, 2 and 5."""
    powers = [10.0**n for n in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    if len(powers) > 1:
        return powers
    return [value for value in (0.2, 0.5, 1.0, 2.0, 5.0) if low <= value <= high]


def spread_out(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels near the given ones, ``gap`` apart as far as they fit."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    out = list(places)
    floor = low
    for i in order:
        out[i] = max(places[i], floor)
        floor = out[i] + gap
    ceiling = high
    for i in reversed(order):
        out[i] = min(out[i], ceiling)
        ceiling = out[i] - gap
    return out
