# SPDX-License-Identifier: GPL-2.0-only
"""The project's figures as a page (Markdown) with a chart (SVG), from kept results.

A group has a section for each version of Linux. Sections with a result in the cache are
updated; the others, and all text before the first section, stay. The chart is drawn from
the tables of all sections.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quell import counters, machine, presets, results, source, table, ui
from quell.errors import UsageError
from quell.paths import Cache, write_atomic

_HEADING = re.compile(r"^(?=## )", re.M)


def update(page: Path, groups: Sequence[presets.Preset], cache: Cache) -> tuple[int, int]:
    """Write ``page``, and the chart beside it; the numbers of updated and of all sections.

    UsageError when no result of these groups is kept, or the page cannot be written.
    """
    if page.is_dir() or not page.parent.is_dir():
        raise UsageError(f"the page {page} cannot be written: it takes a file in a folder that exists")
    preamble, *old = _HEADING.split(page.read_text() if page.exists() else "# Figures\n\n")
    sections = {part.partition("\n")[0]: part.rstrip() for part in old}
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for one in results.kept(cache):
        newest.setdefault((one["preset"], source.linux_of(one["environment"]["kernel_source"])), one)
    made = [
        (_heading(group, version), _section(group, result, _heading(group, version)))
        for group in groups for version in source.VERSIONS if (result := newest.get((group.name, version)))
    ]  # fmt: skip
    if not made:
        raise UsageError("no result of these groups is kept; ./quell figures GROUP makes one")
    sections |= dict(made)
    every = [(group, version, _heading(group, version)) for group in presets.groups() for version in source.VERSIONS]
    order = [heading for _, _, heading in every]
    ordered = sorted(sections, key=lambda head: order.index(head) if head in order else len(order))
    write_atomic(page, preamble + "\n\n".join(sections[head] for head in ordered) + "\n")
    bars = [bar for group, version, head in every for bar in _bars(group, version, sections.get(head, ""))]
    if bars:
        write_atomic(page.with_suffix(".svg"), _chart(bars))
    return len(made), len(sections)


def _heading(group: presets.Preset, version: str) -> str:
    return f"## {group.name}, Linux {version}"


def _section(group: presets.Preset, result: Mapping[str, Any], heading: str) -> str:
    made = result["environment"]
    settings = "; ".join(side.option() for side in group.sides if side.parameters and group.claims)
    how = "guest instructions" if made["deterministic"] else made["accelerator"]["name"].upper()
    conditions = [
        made["date"][:10], f"Linux {made['kernel_source']}", f"Quell {made['quell']}",
        f"{made['runs']} run{'s' * (made['runs'] > 1)} on each side, medians", f"{how} on {made['host']['cpus']} CPUs ({made['host']['cpu']})",
    ]  # fmt: skip
    conditions += [f"swap on {group.swap}"] * bool(group.swap) + [f"sides {settings}"] * bool(settings)
    names = [side.name for side in group.sides]
    rows = _claims(group, result) if group.claims else _shown(group, result)
    columns = ["workload", "guest", "figure", *(["claim", *names, "ratio", ""] if group.claims else names)]
    lines = [
        heading, "", f"{group.about[0].upper()}{group.about[1:]}.", "", "; ".join(conditions) + ".", "",
        f"| {' | '.join(columns)} |", "".join("|---:" if one in (*names, "ratio") else "|---" for one in columns) + "|",
    ]  # fmt: skip
    before = ("", "")
    for one, name, cells in rows:
        here = (f"`{one['workload']}`", f"{machine.format_memory(one['memory_kb'] * 1024)}, {one['cpus']} CPUs")
        figure = next(c["figures"][name] for c in result["comparisons"] if c["workload"] == one["workload"])
        cells = [*(("", "") if here == before else here), table.label(figure, made), *cells]
        lines.append(f"| {' | '.join(cells)} |")
        before = here
    return "\n".join(lines)


# A workload and its guest, a figure, and the cells to the right of both.
_Row = tuple[Mapping[str, Any], str, list[str]]


def _claims(group: presets.Preset, result: Mapping[str, Any]) -> Iterator[_Row]:
    for row in presets.check(group, result):
        medians = [ui.number(row[side]["median"]) for side in ("base", "other")]
        holds = "" if row["holds"] else "**does not hold**"
        yield row, row["figure"], [row["claim"].removeprefix("ratio "), *medians, table.ratio(row["ratio"]), holds]


def _shown(group: presets.Preset, result: Mapping[str, Any]) -> Iterator[_Row]:
    for one in result["comparisons"]:
        for name in group.shown.get(one["workload"], ()):
            yield one, name, [table.median(one["figures"][name], side.name) for side in group.sides]


# --- the chart --------------------------------------------------------------

_WIDTH, _LABEL, _ROW = 760, 400, 22
Bar = tuple[str, float]


def _bars(group: presets.Preset, version: str, section: str) -> list[Bar]:
    """The bars of a group: for each figure of its chart the first row in the table of its section."""
    bars = []
    rows = [[cell.strip() for cell in line.split("|")] for line in section.splitlines() if line.startswith("|")]
    for figure, text in group.chart.items():
        title = counters.KNOWN[figure].title if figure in counters.KNOWN else figure
        ratios = [row[7] for row in rows if re.split(r",| \(", row[3])[0] == title]
        if ratios and ratios[0] != "-":
            on = f", {group.swap}" * bool(group.swap)
            bars.append((f"{text}{on}, Linux {version}", float(ratios[0])))
    return bars


def _chart(bars: Sequence[Bar]) -> str:
    """Ratios to stock as horizontal bars; the line is stock's 1."""
    height = _ROW * (len(bars) + 2)
    scale = (_WIDTH - _LABEL - 60) / max(1.0, *(ratio for _, ratio in bars))
    svg = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {_WIDTH} {height}",
                             "font-family": "sans-serif", "font-size": "12", "role": "img"})  # fmt: skip
    ET.SubElement(svg, "title").text = "Quell as a share of stock Linux: less is better"
    ET.SubElement(svg, "rect", {"width": str(_WIDTH), "height": str(height), "fill": "#ffffff"})

    def text(x: float, y: float, what: str, anchor: str = "start") -> None:
        ET.SubElement(svg, "text", {"x": f"{x:.0f}", "y": f"{y:.0f}", "text-anchor": anchor, "fill": "#1f2328"}).text = what

    stock = _LABEL + scale
    text(stock, 15, "stock = 1", "middle")
    for number, (label, ratio) in enumerate(bars, 1):
        y = number * _ROW
        text(_LABEL - 8, y + 15, label, "end")
        bar = {"x": f"{_LABEL}", "y": f"{y + 3}", "width": f"{max(1.0, ratio * scale):.1f}", "height": f"{_ROW - 6}"}
        ET.SubElement(svg, "rect", {**bar, "fill": "#1a7f37" if ratio <= 1 else "#cf222e"})
        text(_LABEL + ratio * scale + 5, y + 15, f"{ratio:.3f}")
    ET.SubElement(svg, "line", {"x1": f"{stock:.1f}", "x2": f"{stock:.1f}", "y1": "20", "y2": f"{height - 18}",
                                "stroke": "#57606a", "stroke-dasharray": "3 3"})  # fmt: skip
    text(_LABEL, height - 5, "Share of stock Linux in the same run; less is better")
    return ET.tostring(svg, encoding="unicode") + "\n"
