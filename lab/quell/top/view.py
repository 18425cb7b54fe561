# SPDX-License-Identifier: GPL-2.0-only
"""A report as plain text: the verdict, then the tables. And as one line."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from quell.top.causes import CAUSES
from quell.top.report import cost, percent, printable, share_of
from quell.ui import number

_FORMAT = "{:>6}  {:>12}  {:>12}  {}"


def _rate(value: float | None) -> str:
    return f"{value:.1f}" if value is not None and value < 10 else number(value and round(value))


def headline(report: Mapping[str, Any]) -> str:
    """Totals and rates in one line."""
    parts = [
        f"{number(report[name])} {name} ({_rate(report[f'{name}_per_second'])}/s)"
        for name in ("shootdowns", "interrupts")
    ]
    if report["shootdowns"]:
        parts.append(f"{report['cpus_per_shootdown']:.1f} CPUs each")
        parts.append(f"{percent(report['for_ranges'] / report['shootdowns'])} for ranges")
    return ", ".join(parts)


def line(report: Mapping[str, Any]) -> str:
    """An interval as one line for logs."""
    causes = [f"{row['title']} {percent(share_of(row))}" for row in report["causes"][:3]]
    names = [f"{_name(row)} {percent(share_of(row))}" for row in report["processes"][:2]]
    parts = [f"{headline(report)}, {cost(report['cpu_time_lost'])} of CPU time"]
    parts += [", ".join(words) for words in (causes, names) if words]
    return " | ".join(parts)


def _name(row: Mapping[str, Any]) -> str:
    return f"{printable(row['comm'])} ({row.get('pid', row.get('tid'))})"


def _row(row: Mapping[str, Any], text: str) -> str:
    rates = _rate(row["interrupts_per_second"]), _rate(row["per_second"])
    return _FORMAT.format(percent(share_of(row)).replace("less than", "<"), *rates, text)


def _source(report: Mapping[str, Any]) -> str:
    source = report["source"]
    text = f"source: {source['name']}"
    if report["seen_share"] < 0.9:
        text += f", a sample of {percent(report['seen_share'])}"
    if report["lost_events"]:
        text += f", {number(report['lost_events'])} events lost"
    return "; ".join([text, *(f"not {why}" for why in source["not_taken"])])


def render(
    report: Mapping[str, Any], width: int, rows: int | None = None, height: int = 0, bold: bool = False
) -> list[str]:
    """The lines: ``rows`` in each table, or if None as many as fit into ``height`` lines."""
    host = report["host"]
    text = [f"quell top: Linux {host['release']}, {host['cpus']} CPUs, {report['seconds']:.1f} s"]
    strong = textwrap.wrap(report["verdict"]["sentence"], width)
    text += [*strong, "", headline(report)]
    end = []
    hit = report["receivers"]["processes"]
    if hit:
        names = [f"{_name(row)} {number(row['interrupts'])}" for row in hit[:8]]
        end.append(f"interrupted: {', '.join(names)}")
    end += [f"CPU time: {report['cpu_time_lost']['method']}", _source(report)]

    one = report["processes"][0]["threads"] if report["pid"] and report["processes"] else None
    tables = [
        ("cause [Quell's mechanisms]", [_row(row, _cause(row)) for row in report["causes"]]),
        (
            "process, its main cause" if one is None else "thread, its main cause",
            [_row(row, f"{_name(row):25}  {_main(row)}") for row in one or report["processes"]],
        ),
    ]
    counts = [len(lines) for _, lines in tables]
    if rows is not None:
        counts = [min(count, rows) for count in counts]
    else:
        # Two lines each for a blank one and the header.
        room = max(2, height - len(text) - len(end) - 2 * len(tables))
        counts[0] = min(counts[0], max(room // 2, room - counts[1]))
        counts[1] = min(counts[1], room - counts[0])
    for (title, lines), count in zip(tables, counts):
        if lines:
            strong.append(_FORMAT.format("share", "interrupts/s", "shootdowns/s", title))
            text += ["", strong[-1], *lines[:count]]
    text = [line[:width] for line in [*text, *end]]
    if not bold:
        return text
    return [f"\x1b[1m{line}\x1b[0m" if line in strong else line for line in text]


def _cause(row: Mapping[str, Any]) -> str:
    return f"{row['title']} [{', '.join(row['mechanisms'])}]" if row["mechanisms"] else str(row["title"])


def _main(row: Mapping[str, Any]) -> str:
    return CAUSES[next(iter(row["causes"]))]
