# SPDX-License-Identifier: GPL-2.0-only
"""A ladder as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quell import machine, table, workload
from quell.ladder import document, published

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Of each workload the figures that its rungs are about; of others those that matter.
_SHOWN: Mapping[str, tuple[str, ...]] = {
    "mapped-read": ("shootdown_ipis", "flush_requests", document.PER_SECOND, "elapsed_s"),
    "dontneed-touch": ("ns_round_1p_0_others", "ns_round_1p_1_others", "ns_round_1p_3_others"),
    "dontneed-scale": ("ns_1p_0_others", "ns_1p_all_others", "ns_33p_all_others"),
    "zap": (
        "munmap_small_ns_per_page", "munmap_large_ns_per_page",
        "dontneed_all_small_ns_per_page", "dontneed_all_large_ns_per_page",
    ),
    "kernel-build": ("minor_faults", "peak_memory_kb", "elapsed_s", "system_s"),
    "tiering": ("shootdown_ipis", "flush_requests", "pages_demoted", "elapsed_s"),
    "sysbench-mmap": ("events_per_s", "shootdown_ipis", "flush_requests"),
}  # fmt: skip
_TITLES = {document.PER_SECOND: "shootdown IPIs per s"}
_STYLES = {
    published.AGREES: "green",
    published.OPPOSITE: "red",
    published.SMALLER: "yellow",
    published.LARGER: "yellow",
}


def show(result: Mapping[str, Any], out: Console) -> None:
    """All of a document: the rungs by workload, then what was published beside it."""
    environment = result["environment"]
    accelerator = environment["accelerator"]
    out.print(f"Linux {environment['kernel_source']}, {_times(result['runs'], 'run')} on each rung, by turns")
    out.print(f"{accelerator['name'].upper()} ({accelerator['reason']}): {accelerator['times']}.")
    out.print()
    for name, cpus in document.measured(result).items():
        if len(cpus) == 1:
            _rungs(result, name, cpus[0], out)
        else:
            _growth(result, name, cpus, out)
    if result["published"]:
        _published(result["published"], out)
    for why in result["absent"]:
        out.print(f"Not measured: {why}.")


def _times(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def shown(result: Mapping[str, Any], name: str) -> list[str]:
    """The figures of a workload that are shown, as far as they were measured."""
    wanted = list(_SHOWN.get(name) or workload.select([name])[0].matters)
    if result["deterministic"]:
        wanted.append("guest_instructions")
    cells = [cell for cell in result["cells"] if cell["workload"] == name]
    return [figure for figure in wanted if any(figure in cell["figures"] for cell in cells)]


def title(name: str, figure: Mapping[str, Any] | None) -> str:
    """A figure with its unit, and which way is better if that is more."""
    text = _TITLES.get(name) or table.title(name)
    if figure is None:
        return text
    # Metrics have theirs in the title, and most of the programs' figures in the name.
    said = text != name or figure["unit"] == "count" or "per" in name.split("_")
    unit = "" if said or figure["unit"] in name.split("_") else f", {figure['unit']}"
    return text + unit + (" (more is better)" if figure["better"] == "more" else "")


def _figure(
    result: Mapping[str, Any], name: str, cpus: int, rung: str, figure: str
) -> Mapping[str, Any] | None:
    cell = document.cell(result, name, cpus, rung)
    found: Mapping[str, Any] | None = cell["figures"].get(figure) if cell else None
    return found


def _new_table(first: str, columns: Sequence[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    made.add_column(first, no_wrap=True)
    for column in columns:
        made.add_column(column, justify="right", overflow="fold")
    return made


def _heading(result: Mapping[str, Any], name: str, guest: str) -> str:
    facts = result["environment"]["workloads"][name]
    memory = machine.format_memory(facts["memory_kb"] * 1024)
    return f"{name}: {workload.select([name])[0].summary}\n{memory} memory, {guest}"


def _first(result: Mapping[str, Any], name: str, figure: str) -> Mapping[str, Any] | None:
    cells = (c["figures"].get(figure) for c in result["cells"] if c["workload"] == name)
    return next((found for found in cells if found), None)


def _rungs(result: Mapping[str, Any], name: str, cpus: int, out: Console) -> None:
    figures = shown(result, name)
    made = _new_table(
        "rung: median (min-max)", [title(f, _first(result, name, f)) for f in figures]
    )
    for rung in result["rungs"]:
        spans = [table.span(_figure(result, name, cpus, rung["name"], f)) for f in figures]
        made.add_row(rung["title"] if rung["name"] != "nothing" else "nothing", *spans)
    out.print(_heading(result, name, _times(cpus, "CPU")), style="bold")
    out.print(made)


def _growth(result: Mapping[str, Any], name: str, cpus: Sequence[int], out: Console) -> None:
    """A table for each figure: how it grows with CPUs."""
    out.print(_heading(result, name, f"{', '.join(map(str, cpus))} CPUs"), style="bold")
    for figure in shown(result, name):
        made = _new_table(
            title(figure, _first(result, name, figure)), [_times(count, "CPU") for count in cpus]
        )
        for rung in result["rungs"]:
            spans = [table.span(_figure(result, name, count, rung["name"], figure)) for count in cpus]
            made.add_row(rung["title"] if rung["name"] != "nothing" else "nothing", *spans)
        out.print(made)


def _change(side: Mapping[str, Any]) -> str:
    """Both ends and the ratio, or the ratio alone."""
    if side["from"] is None:
        return table.ratio(side["ratio"])
    return f"{table.number(side['from'])} -> {table.number(side['to'])}: {table.ratio(side['ratio'])}"


def _published(rows: Sequence[Mapping[str, Any]], out: Console) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    out.print("What others published, on their machines, and what is measured here", style="bold")
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    made.add_column("", justify="right", no_wrap=True)
    made.add_column("measured here", overflow="fold")
    made.add_column("CPUs", justify="right")
    for column in ("theirs", "ours"):
        made.add_column(column, justify="right", no_wrap=True)
    for column in ("direction", "size"):
        made.add_column(column, no_wrap=True)
    for number, row in enumerate(rows, 1):
        made.add_row(
            f"[{number}]",
            f"{row['workload']}: {title(row['figure'], None)}",
            str(row["cpus"]),
            _change(row["theirs"]),
            _change(row["ours"]),
            *(Text(row[key], style=_STYLES.get(row[key], "")) for key in ("direction", "size")),
        )
    out.print(made)
    out.print("Theirs, the rungs that stand for them here, and why ours may differ:")
    for line in sources(rows):
        out.print(line, soft_wrap=True)


def sources(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Where each row comes from: a work once, then by number its figures' conditions.

    Behind those that do not agree, why.
    """
    last = ""
    for number, row in enumerate(rows, 1):
        head = f"{row['source']}; here: {row['from']} -> {row['to']}"
        if head != last:
            yield head
        last = head
        yield f"  [{number}] {row['conditions']}"
        if row["why"]:
            yield f"       differs: {row['why']}"
