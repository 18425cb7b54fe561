# SPDX-License-Identifier: GPL-2.0-only
"""Comparisons as tables for people."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from quell import machine, measure, sizes, stats, ui

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_STYLES = {stats.BETTER: "green", stats.WORSE: "red"}
_ALL = {m.name: m for m in (*measure.METRICS, *measure.EXTRAS, measure.GUEST_INSTRUCTIONS)}
# Width of a table that goes to a file or a pipe.
_WIDTH = 125


def number(value: float | int | None) -> str:
    """A figure in at most 7 characters: 12,345, 1.234, 957.4k; "-" for None."""
    if value is None:
        return "-"
    if abs(value) >= 100_000:
        for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if abs(value) >= size:
                return f"{value / size:.{_digits(value / size)}f}{unit}"
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.{_digits(value)}f}"


def _digits(value: float) -> int:
    """Decimals that leave four significant digits."""
    return 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0


def span(side: Mapping[str, Any] | None) -> str:
    """``median (min-max)`` of one kernel's runs."""
    if side is None:
        return "-"
    text = number(side["median"])
    low, high = number(side["min"]), number(side["max"])
    return text if low == high else f"{text} ({low}-{high})"


def ratio(value: float | None) -> str:
    """A ratio; "-" when there is none (something against nothing)."""
    return "-" if value is None else f"{value:.3f}"


def order(comparison: Mapping[str, Any], *, emulated: bool) -> list[str]:
    """The figures of a comparison as rows: those that matter first, then the rest.

    With ``emulated``, what emulation leaves as it is comes before times.
    """
    metrics, extras, own = (comparison[k] for k in ("metrics", "extras", "figures"))
    first = [n for n in comparison.get("matters", []) if n in metrics or n in extras or n in own]
    rest = [n for n in metrics if n not in first]
    names = [*first, *rest]
    if emulated:
        carried = [n for n in names if carries_over(comparison, n)]
        names = [*carried, *(n for n in names if n not in carried)]
    return [*names, *(n for n in own if n not in names)]


def carries_over(comparison: Mapping[str, Any], name: str) -> bool:
    """Whether emulation leaves this figure as it is on hardware, as far as is known."""
    own = comparison["figures"].get(name)
    if own is not None and own["unit"].rpartition("/")[2] in ("s", "ms", "us", "ns"):
        return False
    return name not in _ALL or _ALL[name].carries_over


@dataclass(frozen=True)
class Row:
    """A figure of a comparison as tables show it; ``figure`` is what stands in the result."""

    key: str
    label: str
    stock: str
    quell: str
    ratio: str
    verdict: str
    matters: bool
    figure: Mapping[str, Any]


def rows(comparison: Mapping[str, Any], *, emulated: bool) -> list[Row]:
    """A comparison's table, row by row, in the order of ``order()``."""
    matters = set(comparison.get("matters", []))
    out = []
    for key in order(comparison, emulated=emulated):
        label, figure = _row(comparison, key)
        out.append(
            Row(
                key,
                label,
                span(figure["stock"]),
                span(figure["quell"]),
                ratio(figure["ratio"]),
                figure["verdict"] or "-",
                key in matters,
                figure,
            )
        )
    return out


def _row(comparison: Mapping[str, Any], name: str) -> tuple[str, Mapping[str, Any]]:
    """(title with unit, figure) of a row."""
    if name in comparison["metrics"]:
        return title(name), comparison["metrics"][name]
    if name in comparison["figures"]:
        figure = comparison["figures"][name]
        more = " (more is better)" if figure["better"] == "higher" else ""
        return f"{name}, {figure['unit']}{more}".replace(", (", " ("), figure
    return title(name), comparison["extras"][name]


def title(name: str) -> str:
    """A metric for people, with its unit: "elapsed, s"."""
    metric = _ALL.get(name)
    if metric is None:
        return name
    return f"{metric.title}, {metric.unit}" if metric.unit else metric.title


def console(file: IO[str] | None = None) -> Console:
    """Where tables go: stdout, wide enough for a table when it is no terminal."""
    from rich.console import Console

    target = file or sys.stdout
    width = None if target.isatty() else _WIDTH
    return Console(file=target, width=width, highlight=False, markup=False, emoji=False)


def print_result(result: Mapping[str, Any], summaries: Mapping[str, str], out: Console) -> None:
    """A result object as one table per workload; ``summaries`` are one line each by workload."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    environment = result["environment"]
    emulated = environment["accelerator"]["name"] == "tcg"
    for comparison in result["comparisons"]:
        head, guest = heading(environment, comparison["workload"], summaries)
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("figure: median (min-max)", overflow="fold")
        for column in ("stock", "Quell", "ratio"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("verdict")
        for row in rows(comparison, emulated=emulated):
            table.add_row(
                Text(row.label, style="bold" if row.matters else ""),
                row.stock,
                row.quell,
                row.ratio,
                Text(row.verdict, style=_STYLES.get(row.verdict, "")),
            )
        out.print(Text(head, style="bold"))
        out.print(Text(guest))
        out.print(table)


def print_sizes(result: Mapping[str, Any], summaries: Mapping[str, str], out: Console) -> None:
    """The object of ``sizes.measure_sizes``: per workload a table of changes, and what was best."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    environment = result["environment"]
    columns = [variant["name"] for variant in result["variants"]]
    for entry in result["workloads"]:
        name = entry["workload"]
        titles = {key: title(key) for key in entry["figures"]}
        head, guest = heading(environment, name, summaries)
        out.print(Text(head, style="bold"))
        out.print(guest)
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("median, change against stock", overflow="fold")
        for column in columns:
            shown = "Quell" if column == sizes.QUELL else column
            table.add_column(shown, justify="right", no_wrap=True)
        for key in entry["shown"]:
            figure = entry["figures"][key]
            cells = [figure["variants"][column] for column in columns]
            unit = f", {figure['unit']}" if figure["unit"] and key not in _ALL else ""
            more = " (more is better)" if figure["better"] == "higher" else ""
            first = number(cells[0]["median"] if cells[0] else None)
            table.add_row(
                f"{titles[key]}{unit}{more}", first, *(_change(cell) for cell in cells[1:])
            )
        out.print(table)
        for line in sizes.verdict(entry, {key: text.partition(",")[0] for key, text in titles.items()}):
            out.print(line)
        out.print()
    quell = environment["kernels"][sizes.QUELL]["boot_parameters"]
    if quell:
        out.print(f"Quell was booted with {' '.join(quell)}.")


def _change(cell: Mapping[str, Any] | None) -> Text:
    """A variant's figure against stock's: nothing is called a change that is within the spread."""
    from rich.text import Text

    if cell is None:
        return Text("-")
    if cell["verdict"] == stats.SAME:
        return Text("same")
    return Text(sizes.percent(cell["ratio"]), style=_STYLES.get(cell["verdict"] or "", ""))


def heading(
    environment: Mapping[str, Any], workload: str, summaries: Mapping[str, str]
) -> tuple[str, str]:
    """What stands above a workload's table: what it is, and in what guests it ran."""
    facts = environment["workloads"][workload]
    memory = machine.format_memory(facts["memory_kb"] * 1024)
    runs = environment["runs"]
    return (
        f"{workload}: {summaries.get(workload) or ' '.join(facts['command'])}",
        f"{memory} memory, {facts['cpus']} CPUs, {runs} run{'s' * (runs > 1)} each",
    )


def accelerator_lines(environment: Mapping[str, Any]) -> list[str]:
    """The kernels, and what the accelerator means for the figures: two lines or three."""
    accelerator = environment["accelerator"]
    kernels = environment["kernels"]
    releases = f"{kernels['stock']['release']} against {kernels['quell']['release']}"
    lines = [
        f"Linux {environment['kernel_source']}: {releases}",
        f"{accelerator['name'].upper()} ({accelerator['reason']}): {accelerator['times']}.",
    ]
    if accelerator["name"] == "tcg":
        names = [m.title for m in measure.METRICS if m.carries_over]
        lines.append(f"What carries over to hardware comes first: {', '.join(names)}.")
    return lines


def print_accelerator(result: Mapping[str, Any], out: Console) -> None:
    """What the accelerator means for the figures, in a line or two."""
    for line in accelerator_lines(result["environment"]):
        out.print(line)


def print_claims(rows: Sequence[Mapping[str, Any]], out: Console) -> None:
    """The project's figures: what is claimed, what was measured, whether it holds."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("workload", "guest", "figure", "claim", "stock", "Quell", "ratio", ""):
        table.add_column(column, no_wrap=column != "claim")
    for row in rows:
        # Boot parameters of either kernel that are not as usual.
        sides = (row["quell_args"], row["stock_args"] and f"stock: {row['stock_args']}")
        with_args = ", ".join(filter(None, sides))
        table.add_row(
            row["workload"] + (f" ({with_args})" if with_args else ""),
            f"{row['memory']}, {row['cpus']} CPUs" + ("*" if row["deterministic"] else ""),
            title(row["metric"]),
            row["claim"],
            *(number(row[side]["median"] if row[side] else None) for side in ("stock", "quell")),
            ratio(row["ratio"]),
            Text(*(("holds", "green") if row["holds"] else ("does not hold", "bold red"))),
        )
    out.print(table)
    if any(row["deterministic"] for row in rows):
        out.print("* with --deterministic: times are guest instructions")


def kept(folder: object) -> None:
    """Tell where a result and its runs' output are kept."""
    ui.note(f"kept in {folder}")
