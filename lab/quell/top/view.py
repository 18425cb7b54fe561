# SPDX-License-Identifier: GPL-2.0-only
"""A report as tables, and as one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quell.ui import number
from quell.top.causes import CAUSES
from quell.top.report import cost, percent

if TYPE_CHECKING:
    from rich.console import RenderableType

# CPUs that are listed one by one.
_CPUS = 16


def _rate(value: float | None) -> str:
    """A rate: one decimal where that matters."""
    return f"{value:.1f}" if value is not None and value < 10 else number(value and round(value))


def headline(report: Mapping[str, Any]) -> str:
    """Rates and cost in one line."""
    parts = [f"{_rate(report['interrupts_per_second'])} shootdown interrupts/s"]
    if report["shootdowns"] is not None:
        parts.insert(0, f"{_rate(report['shootdowns_per_second'])} shootdowns/s")
        if report["cpus_per_shootdown"] is not None:
            parts.append(f"{report['cpus_per_shootdown']:.1f} CPUs each")
        if report["for_ranges"] is not None and report["shootdowns"]:
            parts.append(f"{percent(report['for_ranges'] / report['shootdowns'])} for ranges")
    parts.append(f"{cost(report['cpu_time_lost'])} of CPU time lost")
    return ", ".join(parts)


def line(report: Mapping[str, Any]) -> str:
    """An interval as one line for logs."""
    causes = ", ".join(
        f"{row['title']} {_rate(row['per_second'])}/s" for row in report["causes"][:3]
    )
    senders = ", ".join(f"{row['comm']}({row['pid']})" for row in report["processes"][:2])
    text = headline(report)
    if causes:
        text += f" | {causes}"
    return f"{text} | by {senders}" if senders else text


def source_lines(report: Mapping[str, Any]) -> list[str]:
    """Which source it is, why not a better one, and what it cannot see."""
    source = report["source"]
    lines = [f"source: {source['name']} ({source['title']})"]
    lines += [f"not taken: {why}" for why in source["not_taken"]]
    lines.append(f"it cannot see {'; '.join(source['cannot_see'])}")
    if report["seen_share"] < 0.95:
        lines.append(
            f"it saw {percent(report['seen_share'])} of what there was; counts are scaled up"
        )
    if report["lost_events"]:
        lines.append(f"it lost {number(report['lost_events'])} events: counts are too low")
    return lines


def _main_cause(row: Mapping[str, Any]) -> str:
    causes = list(row["causes"].items())
    if not causes:
        return "-"
    name, count = causes[0]
    share = count / row["shootdowns"] if row["shootdowns"] else 1.0
    return CAUSES[name] if share > 0.95 else f"{CAUSES[name]} {percent(share)}"


def _table(*columns: str) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        left = column in ("cause", "process", "main cause", "who is interrupted")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    return table


def render(report: Mapping[str, Any], rows: int = 12, sentence: str | None = None) -> RenderableType:
    """The tables, at most ``rows`` rows each, ending in ``sentence`` (the report's verdict)."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(headline(report), style="bold")]
    if report["causes"]:
        table = _table("shootdowns/s", "share", "total", "for ranges", "interrupts", "cause")
        for row in report["causes"][:rows]:
            table.add_row(
                _rate(row["per_second"]),
                percent(row["share"]),
                number(row["shootdowns"]),
                number(row["for_ranges"]),
                number(row["interrupts"]),
                Text(row["title"]),
            )
        parts.append(table)
    if report["processes"]:
        table = _table(
            "shootdowns/s", "total", "for ranges", "interrupts", "CPUs each", "process", "main cause"
        )
        left = rows
        for process in report["processes"]:
            threads = process["threads"] if len(process["threads"]) > 1 else []
            for depth, row in [(0, process), *((1, one) for one in threads[:3])]:
                if left == 0:
                    break
                left -= 1
                name = (
                    f"  {row['comm']} [{row['tid']}]"
                    if depth
                    else f"{row['comm']} ({row['pid']})"
                )
                table.add_row(
                    _rate(row["per_second"]),
                    number(row["shootdowns"]),
                    number(row["for_ranges"]),
                    number(row["interrupts"]),
                    _rate(row["cpus_per_shootdown"]),
                    Text(name, style="dim" if depth else ""),
                    Text(_main_cause(row)),
                )
        parts.append(table)
    parts.append(Text(_received(report)))
    who = report["receivers"]["processes"]
    if who:
        names = ", ".join(
            f"{one['comm']} ({one['pid']}) {number(one['interrupts'])}" for one in who[:6]
        )
        parts.append(Text(f"interrupted: {names}"))
    parts.append(Text(f"time lost: {report['cpu_time_lost']['method']}", style="dim"))
    parts += [Text(text, style="dim") for text in source_lines(report)]
    parts.append(Text(sentence or report["verdict"]["sentence"], style="bold"))
    return Group(*parts)


def _received(report: Mapping[str, Any]) -> str:
    cpus = report["receivers"]["cpus"]
    most = sorted(cpus.items(), key=lambda item: -item[1])[:_CPUS]
    shown = sorted(most, key=lambda item: int(item[0]))
    more = f" and {len(cpus) - _CPUS} more" if len(cpus) > _CPUS else ""
    return "interrupts by CPU: " + ", ".join(f"{cpu}: {number(n)}" for cpu, n in shown) + more
