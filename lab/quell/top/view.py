# SPDX-License-Identifier: GPL-2.0-only
"""A report as plain text: the verdict, then the tables."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from quell.top.causes import CAUSES
from quell.top.report import percent, printable
from quell.ui import number

_FORMAT = "{:>6}  {:>12}  {:>12}  {}"


def headline(report: Mapping[str, Any]) -> str:
    """Totals and rates in one line."""
    names = ("shootdowns", "interrupts")
    parts = [f"{number(report[name])} {name} ({_rate(report, report[name])}/s)" for name in names]
    if sent := report["shootdowns"]:
        parts.append(f"{report['interrupts'] / sent:.1f} CPUs each")
        parts.append(f"{percent(report['for_ranges'] / sent)} for ranges")
    return ", ".join(parts)


def _rate(report: Mapping[str, Any], count: float) -> str:
    value = count / (report["seconds"] or 1)
    return f"{value:.1f}" if value < 10 else number(round(value))


def _name(row: Mapping[str, Any]) -> str:
    return f"{printable(row['comm'])} ({row.get('pid', row.get('tid'))})"


def _row(report: Mapping[str, Any], row: Mapping[str, Any], text: str) -> str:
    rates = _rate(report, row["interrupts"]), _rate(report, row["shootdowns"])
    return _FORMAT.format(percent(row["share"]), *rates, text)


def _source(report: Mapping[str, Any]) -> str:
    source = report["source"]
    text = f"source: {source['name']}"
    if report["seen_share"] < 0.9:
        text += f", a sample of {percent(report['seen_share'])}"
    if report["lost_events"]:
        text += f", {number(report['lost_events'])} events lost"
    return "; ".join([text, *(f"not {why}" for why in source["not_taken"])])


def render(report: Mapping[str, Any], width: int, height: int, bold: bool = False) -> list[str]:
    """The lines, at most ``height``."""
    host = report["host"]
    text = [f"quell top: Linux {host['release']}, {host['cpus']} CPUs, {report['seconds']:.1f} s"]
    strong = textwrap.wrap(report["verdict"]["sentence"], width)
    text += [*strong, "", headline(report)]
    end = [f"CPU time: {report['cpu_time_lost']['method']}", _source(report)]
    hit = [f"{_name(row)} {number(row['interrupts'])}" for row in report["receivers"]["processes"][:8]]
    if hit:
        end.insert(0, f"interrupted: {', '.join(hit)}")

    rows, what = report["processes"], "process"
    if report["pid"]:
        rows, what = [thread for row in rows for thread in row["threads"]], "thread"
    causes = [_row(report, row, _cause(row)) for row in report["causes"]]
    initiators = [_row(report, row, f"{_name(row):25}  {_main(row)}") for row in rows]
    # Two lines each for a blank one and the header.
    room = max(2, height - len(text) - len(end) - 4)
    shown = min(len(causes), max(room // 2, room - len(initiators)))
    for title, lines, count in (
        ("cause [Quell's mechanisms]", causes, shown),
        (f"{what}, its main cause", initiators, room - shown),
    ):
        if lines:
            strong.append(_FORMAT.format("share", "interrupts/s", "shootdowns/s", title))
            text += ["", strong[-1], *lines[:count]]
    text = [line[:width] for line in [*text, *end][:height]]
    return [f"\x1b[1m{line}\x1b[0m" if bold and line in strong else line for line in text]


def _cause(row: Mapping[str, Any]) -> str:
    title = CAUSES[row["cause"]]
    return f"{title} [{', '.join(row['mechanisms'])}]" if row["mechanisms"] else title


def _main(row: Mapping[str, Any]) -> str:
    return CAUSES[next(iter(row["causes"]))]
