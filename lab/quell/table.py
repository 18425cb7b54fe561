# SPDX-License-Identifier: GPL-2.0-only
"""Results as text tables: one row per figure, or one per side where there are many sides."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quell import machine, stats, ui

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_STYLES = {stats.BETTER: "green", stats.WORSE: "red"}
_MARKS = {stats.BETTER: " +", stats.WORSE: " -"}
_PUBLISHED_STYLES = {"agrees": "green", "opposite": "red"}
# With more sides, each has a row, and only the first figures have a column.
_WIDE = 3
COLUMNS = 5


def span(side: Mapping[str, Any] | None) -> str:
    """``median (min-max)`` of one side's runs."""
    if side is None:
        return "-"
    text = ui.number(side["median"])
    low, high = ui.number(side["min"]), ui.number(side["max"])
    return text if low == high else f"{text} ({low}-{high})"


def ratio(value: float | None) -> str:
    """A ratio; "-" when there is none (the base is 0)."""
    return "-" if value is None else f"{value:.3f}"


def label(figure: Mapping[str, Any], environment: Mapping[str, Any] | None = None) -> str:
    """A figure's title with its unit, "more is better" where that holds, and the clock of ``environment``."""
    title: str = figure["title"]
    unit = "" if figure["unit"].lower() in ("", *title.lower().split("_")) else f", {figure['unit']}"
    text = title + unit + (" (more is better)" if figure["better"] == "more" else "")
    if not environment or figure["carries_over"]:
        return text
    if environment["deterministic"]:
        return text + " (guest instructions)" * ("/" not in figure["unit"])
    return f"{text} (emulated)" if environment["accelerator"]["name"] == "tcg" else text


def many_sides(result: Mapping[str, Any]) -> bool:
    """Whether each side gets a row, and only the figures that matter a column."""
    return len(result["sides"]) > _WIDE


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style)


def _table(*columns: str) -> Table:
    """A table whose first column is text and wraps; the others are figures."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    return table


def print_result(result: Mapping[str, Any], out: Console) -> None:
    """A whole result: its sides, a table for each comparison, notes, published figures."""
    many = many_sides(result)
    environment = result["environment"]
    accelerator = environment["accelerator"]
    sides = f"{len(result['sides'])} sides" if many else ", ".join(
        f"{side['name']} ({' '.join((side['release'], *side['parameters']))})" for side in result["sides"]
    )
    out.print(f"Linux {environment['kernel_source']}: {sides}")
    out.print(f"{accelerator['name'].upper()} ({accelerator['reason']}): {accelerator['times']}.\n")
    for comparison in result["comparisons"]:
        summary = comparison["summary"] or " ".join(comparison["command"])
        out.print(f"{comparison['name']}: {summary}", style="bold")
        out.print(guest(result, comparison))
        out.print(_by_side(result, comparison) if many else _by_figure(result, comparison))
        for note in comparison["notes"]:
            out.print(f"{note}\n", soft_wrap=True)
    if many:
        out.print(f"{result['sides'][0]['name']}: medians; the others: median, ratio, + better, - worse.")
    if result["published"]:
        _print_published(result, out)
    for note in result["notes"]:
        out.print(note, soft_wrap=True)


def guest(result: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """The machine of a comparison."""
    memory = machine.format_memory(comparison["memory_kb"] * 1024)
    runs, cpus = result["environment"]["runs"], comparison["cpus"]
    options = f", {shlex.join(comparison['options'])}" if comparison["options"] else ""
    return f"{memory} memory, {cpus} CPU{'s' * (cpus > 1)}{options}, {runs} run{'s' * (runs > 1)} on each side"


def _by_figure(result: Mapping[str, Any], comparison: Mapping[str, Any]) -> Table:
    base, *others = (side["name"] for side in result["sides"])
    table = _table("figure: median (min-max)", base, *(c for other in others for c in (other, "ratio", "verdict")))
    for name in comparison["shown"]:
        figure = comparison["figures"][name]
        cells: list[str | Text] = [span(figure["sides"][base])]
        for other in others:
            against = figure["against"].get(other, {"ratio": None, "verdict": None})
            verdict = against["verdict"] or ""
            cells += [span(figure["sides"][other]), ratio(against["ratio"]), _text(verdict, _STYLES.get(verdict, ""))]
        table.add_row(_text(label(figure), "bold" if name in comparison["matters"] else ""), *cells)
    return table


def _by_side(result: Mapping[str, Any], comparison: Mapping[str, Any]) -> Table:
    """A row a side: medians, ratios to the first side, and the verdicts' marks."""
    figures = [comparison["figures"][name] for name in comparison["shown"][:COLUMNS]]
    table = _table("side", *map(label, figures))
    for side in result["sides"]:
        cells = []
        for figure in figures:
            verdict = figure["against"].get(side["name"], {}).get("verdict") or ""
            mark = _MARKS.get(verdict, "  " * (side["name"] in figure["against"]))
            cells.append(_text(median(figure, side["name"]) + mark, _STYLES.get(verdict, "")))
        table.add_row(side["title"], *cells)
    return table


def median(figure: Mapping[str, Any], side: str) -> str:
    """A side's median, and its ratio to the first side."""
    found, against = figure["sides"][side], figure["against"].get(side)
    text = ui.number(found["median"] if found else None)
    return f"{text} {ratio(against['ratio'])}" if found and against else text


def _print_published(result: Mapping[str, Any], out: Console) -> None:
    titles = {n: label(f) for c in result["comparisons"] for n, f in c["figures"].items()}
    out.print("Published results, on the authors' machines, beside the results here", style="bold")
    table = _table("", "measured here", "CPUs", "theirs", "ours", "direction")
    sources = []
    for at, row in enumerate(result["published"], 1):
        both = [
            ratio(ends["ratio"]) if ends["from"] is None
            else f"{ui.number(ends['from'])} -> {ui.number(ends['to'])}: {ratio(ends['ratio'])}"
            for ends in (row["theirs"], row["ours"])
        ]  # fmt: skip
        direction = _text(row["direction"], _PUBLISHED_STYLES.get(row["direction"], ""))
        title = titles.get(row["figure"], row["figure"])
        table.add_row(f"[{at}]", f"{row['workload']}: {title}", str(row["cpus"]), *both, direction)
        # Each source once, then the conditions of its figures, and reasons for differences.
        sources += [f"{row['source']}; here: {row['from']} -> {row['to']}", f"  [{at}] {row['conditions']}"]
        sources += [f"       differs: {row['why']}"] * bool(row["why"])
    out.print(table)
    out.print("Their sources, the matching rungs here, and reasons for differences:")
    for line in dict.fromkeys(sources):
        out.print(line, soft_wrap=True)


def print_claims(rows: Sequence[Mapping[str, Any]], out: Console) -> None:
    """The project's figures: claim, measurement, verdict."""
    table = _table("workload", "guest", "figure", "claim", "base", "other", "ratio", "")
    for row in rows:
        odd = "; ".join(side.partition("=")[2] for side in row["sides"] if "," in side)
        memory = machine.format_memory(row["memory_kb"] * 1024)
        table.add_row(
            row["workload"] + (f" ({odd})" if odd else ""),
            f"{memory}, {row['cpus']} CPUs" + ("*" if row["deterministic"] else ""),
            row["title"], row["claim"], ui.number(row["base"]["median"]), ui.number(row["other"]["median"]),
            ratio(row["ratio"]), _text("holds", "green") if row["holds"] else _text("does not hold", "bold red"),
        )  # fmt: skip
    out.print(table)
    if any(row["deterministic"] for row in rows):
        out.print("* with --deterministic: times are guest instructions")
