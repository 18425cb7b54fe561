# SPDX-License-Identifier: GPL-2.0-only
"""The page: its text, tables and charts, for the template.

All text from results is untrusted: the template escapes it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from quell import presets, results, table, ui
from quell.report import charts, reproduce, svg
from quell.report.charts import Row

_FOLDER = Path(__file__).parent
# Results with many sides, by preset: the name in the contents, the heading, a description.
_LADDERS = {
    "ladder": ("Ladder", "The ladder", "The same Quell kernel with one mechanism more switched on at each rung, "
               "and stock Linux."),
    "scale": ("Scale", "More CPUs", "Each figure against the number of CPUs, a line per rung of the ladder."),
    "sizes": ("Folio sizes", "Folio sizes", "Stock Linux with one size of anonymous folios each, and Quell's choice."),
}  # fmt: skip
_SIDES = ("Sides", "Many sides", "Each figure on every side.")
_DIRECTIONS = {
    "agrees": (charts.BETTER, "same direction"),
    "opposite": (charts.WORSE, "opposite direction"),
    "none": (charts.SAME, "only one of the two differs"),
}
# Words of several parts; longer ones are too wide for a phone.
_IDENTIFIER = re.compile(r"(?=\S*[-_/=:;.]\S)\S{2,40}")
# A word may break behind these, but not inside a number (6.12.117).
_PARTS = re.compile(r"(?<=\S[_/=:;])(?=[^\s_/=:;])|(?<=\.)(?=[^\s.\d])")


def plural(count: int, word: str) -> str:
    """``1 figure``, ``2 figures``."""
    return f"{count:,} {word}{'s' * (count != 1)}"


def day(stamp: str) -> str:
    """An ISO 8601 time as readable text; other text is unchanged."""
    return stamp.replace("T", " ").replace("Z", " UTC") if len(stamp) == 20 else stamp


def identifiers(text: str) -> Markup:
    """Text with identifiers that break only if a line is too short for them, and between their parts.

    Lists may break behind their commas.
    """
    parts = re.split(r"((?<=,)(?=\S)|\s+)", svg.clean(text))
    return Markup("").join(
        Markup("<wbr>") if not part and n % 2
        else Markup('<span class="id">{}</span>').format(_breakable(part)) if _IDENTIFIER.fullmatch(part)
        else _breakable(part)
        for n, part in enumerate(parts)
    )  # fmt: skip


def _breakable(word: str) -> Markup:
    return Markup("<wbr>").join(_PARTS.split(word))


@dataclass(frozen=True)
class Pair:
    """A side against the base: the rows of the table, with emulated figures last."""

    ident: str
    name: str
    base: str
    other: str
    rows: list[Row]

    def ratios(self, domain: tuple[float, float]) -> Markup:
        """The chart of the figures that matter; empty when there are none."""
        matter = [row for row in self.rows if row.matters]
        return charts.ratios(self.ident, self.name, self.base, self.other, matter, domain) if matter else Markup("")


def _compared(found: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A section for each workload: headings, the pairs of sides, notes, the chart of every run."""
    numbers = itertools.count(1)
    for result in found:
        environment, sides = result["environment"], charts.sides(result)
        emulated = environment["accelerator"]["name"] == "tcg"
        for comparison in result["comparisons"]:
            anchor, name = f"w{next(numbers)}", comparison["name"]
            about, guest = _about(result, comparison)
            figures = {key: comparison["figures"][key] for key in comparison["shown"]}
            last = comparison is result["comparisons"][-1]
            yield {
                "anchor": anchor,
                "name": name,
                "about": about,
                "guest": guest + (f", {day(environment['date'])}" if len(found) > 1 else ""),
                "times": environment["accelerator"]["times"],
                "sides": sides,
                "pairs": [
                    Pair(f"{anchor}-{n}", name, sides[0].title, side.title, _rows(comparison, sides[0], side, emulated))
                    for n, side in enumerate(sides[1:])
                ],
                "notes": [*_exits(comparison), *comparison["notes"], *(result["notes"] if last else ())],
                "chart": charts.runs(f"{anchor}-runs", f"{name}: every run", figures, comparison["matters"], sides),
            }


def _rows(comparison: Mapping[str, Any], base: charts.Side, side: charts.Side, emulated: bool) -> list[Row]:
    rows = []
    for key in comparison["shown"]:
        figure = comparison["figures"][key]
        against = figure["against"].get(side.name, {"ratio": None, "verdict": None})
        rows.append(Row(
            table.label(figure), figure["sides"][base.name], figure["sides"][side.name], against["ratio"],
            against["verdict"] or "", key in comparison["matters"], emulated and not figure["carries_over"],
        ))  # fmt: skip
    return sorted(rows, key=lambda row: row.later)


def _about(result: Mapping[str, Any], comparison: Mapping[str, Any]) -> tuple[str, str]:
    """The description of a comparison, and its machine."""
    version = f", version {comparison['version']} of the workload" if comparison["version"] is not None else ""
    about = comparison["summary"] or " ".join(comparison["command"])
    return about.rstrip(".") + ".", table.heading(result, comparison)[1] + version


def _exits(comparison: Mapping[str, Any]) -> list[str]:
    """A sentence if the command failed alike in all runs; the notes report different exit codes."""
    codes = {code for side in comparison["exit_codes"].values() for code in side}
    return [f"The command exited with {codes.pop():g} in every run."] if len(codes) == 1 and codes != {0} else []


def _ladder_part(
    result: Mapping[str, Any], alike: Mapping[int, Mapping[str, Any]], sides: Sequence[charts.Side], ident: str
) -> dict[str, Any]:
    """A workload on many sides, by number of CPUs: charts, and a table for each number.

    A row of a table is its label, and for each side the figure and its comparison with the base.
    """
    first, *more = alike.values()
    name = first["workload"]
    wanted = presets.load(result["preset"]).shown.get(name, ()) if result["preset"] in _LADDERS else ()
    drawn = []
    for n, key in enumerate(key for key in first["shown"] if key in (*wanted, *first["matters"])):
        figure, chart = first["figures"][key], f"{ident}-{n}"
        by_cpus = {cpus: c["figures"][key] for cpus, c in alike.items() if key in c["figures"]}
        label = table.label(figure)
        if more:
            drawn.append(charts.curves(chart, f"{name}: {label} against the number of CPUs", label, by_cpus, sides))
        else:
            drawn.append(charts.runs(chart, f"{name}: {label} on each side", {key: figure}, [key], sides))
    tables = []
    for comparison in alike.values():
        figures = [comparison["figures"][key] for key in comparison["shown"]]
        rows = [
            (table.label(f), [(f["sides"][side.name], f["against"].get(side.name)) for side in sides]) for f in figures
        ]
        tables.append((_about(result, comparison)[1], rows))
    notes = dict.fromkeys(note for comparison in alike.values() for note in comparison["notes"])
    about = _about(result, first)[0]
    return {"name": name, "about": about, "charts": drawn, "tables": tables, "notes": list(notes)}


def _ladder(result: Mapping[str, Any], anchor: str) -> dict[str, Any]:
    short, heading, about = _LADDERS.get(result["preset"], _SIDES)
    environment, sides = result["environment"], charts.sides(result)
    by_workload: dict[str, dict[int, Mapping[str, Any]]] = {}
    for comparison in result["comparisons"]:
        by_workload.setdefault(comparison["workload"], {})[comparison["cpus"]] = comparison
    return {
        "anchor": anchor,
        "short": short,
        "heading": heading,
        "about": f"{about} Medians of {plural(environment['runs'], 'run')}; {environment['accelerator']['times']}.",
        "sides": result["sides"],
        "parts": [
            _ladder_part(result, alike, sides, f"{anchor}-{n}") for n, alike in enumerate(by_workload.values())
        ],
        "notes": result["notes"],
    }


def _published(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for result in found:
        titles = {key: table.label(f) for c in result["comparisons"] for key, f in c["figures"].items()}
        for item in result["published"]:
            css, outcome = _DIRECTIONS[item["direction"]]
            title = titles.get(item["figure"], item["figure"])
            rows.append({**item, "title": title, "css": css, "outcome": outcome})
    return rows


def _lead(parts: Sequence[Mapping[str, Any]], counts: Counter[str], published: Sequence[Mapping[str, Any]]) -> str:
    """A summary of the verdicts in one or two sentences."""
    said = []
    pairs = {(pair.base, pair.other) for part in parts for pair in part["pairs"]}
    if total := sum(counts.values()):
        [base, other] = pairs.pop() if len(pairs) == 1 else ("the base", "the other side")
        said.append(
            f"Of {plural(total, 'judged figure')} on {plural(len({p['name'] for p in parts}), 'workload')}, "
            f"{_are(counts['better'])} better on {other} than on {base}, {_are(counts['worse'])} worse, and "
            f"{counts['same']:,} {'shows' if counts['same'] == 1 else 'show'} no difference."
        )
        if few := counts["few"]:
            said.append(f"For {few:,} there are too few runs to tell.")
    elif parts:
        said.append("No figure was judged.")
    if published:
        ways = Counter(item["direction"] for item in published)
        said.append(
            f"Of {plural(len(published), 'published result')}, {ways['agrees']} went the same way here and "
            f"{ways['opposite']} the opposite way; for {ways['none']} only one of the two differs."
        )
    return " ".join(said) or "Every figure on every side."


def _are(count: int) -> str:
    return f"{count:,} {'is' if count == 1 else 'are'}"


def _facts(result: Mapping[str, Any]) -> dict[str, str]:
    """The environment as terms and their values."""
    environment = result["environment"]
    host, accelerator = environment["host"], environment["accelerator"]
    memory = f"{ui.size(host['memory_kb'] * 1024)} of memory"
    facts = {
        "Measured": day(environment["date"]),
        "Quell": f"{environment['quell']}, series {environment['series_hash']}",
        "Linux source": environment["kernel_source"],
        "Host": f"{host['cpu']}, {plural(host['cpus'], 'CPU')}, {memory}, Linux {host['kernel']}",
        "Accelerator": f"{accelerator['name'].upper()} ({accelerator['reason']})",
        "Times": accelerator["times"],
        "Runs": f"{environment['runs']} on each side for each workload",
        "QEMU": environment["qemu"],
        "Compiler": environment["compiler"],
    }
    for side in result["sides"] if not table.many_sides(result) else ():
        more = f", booted with {' '.join(side['parameters'])}" if side["parameters"] else ""
        facts[f"Side {side['title']}"] = f"{side['release']}, configuration {side['config_hash'][:12]}{more}"
    return facts


def _environments(found: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], list[tuple[str, dict[str, str]]]]:
    """The facts that all results share, and the others of each result."""
    facts = [_facts(result) for result in found]
    common, rest = {k: v for k, v in facts[0].items() if all(other.get(k) == v for other in facts)}, []
    for result, own in zip(found, facts, strict=True):
        what = _LADDERS.get(result["preset"], _SIDES)[0] if table.many_sides(result) else "Comparison"
        if more := {k: v for k, v in own.items() if k not in common}:
            rest.append((f"{what} of {own['Measured']}", more))
    return common, rest


def _clean(value: object) -> object:
    """A value for the template: text without control characters."""
    return svg.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def render(found: Sequence[Mapping[str, Any]]) -> str:
    """The whole page for these results."""
    import jinja2

    parts = list(_compared([result for result in found if not table.many_sides(result)]))
    rows = [row for part in parts for pair in part["pairs"] for row in pair.rows]
    counts = Counter(row.kind for row in rows if row.kind)
    ladders = [_ladder(result, f"l{n}") for n, result in enumerate(found) if table.many_sides(result)]
    published = _published(found)
    environments = [result["environment"] for result in found]
    common, others = _environments(found)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined,
        finalize=_clean, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"ids": identifiers, "kind": charts.kind}
    environment.filters |= {"number": ui.number, "ratio": table.ratio, "span": table.span}
    return environment.get_template("page.html.j2").render(
        style=Markup((_FOLDER / "style.css").read_text()),
        title=f"Quell report, Linux {', '.join(dict.fromkeys(e['kernel_source'] for e in environments))}",
        when=", ".join(dict.fromkeys(day(e["date"])[:10] for e in environments)),
        lead=_lead(parts, counts, published),
        times=list(dict.fromkeys(
            f"{e['accelerator']['name'].upper()}: {e['accelerator']['times']}." for e in environments
        )),
        counts=counts,
        emulated=sum(
            bool(row.kind) and row.later
            for part in parts if part["times"] == results.TIMES["tcg"] for pair in part["pairs"] for row in pair.rows
        ),
        parts=parts,
        domain=charts.ratio_domain([row for row in rows if row.matters]),
        ladders=ladders,
        published=published,
        common=common,
        environments=others,
        commands=reproduce.commands(found),
        glyph=_glyph,
        marks=charts.MARKS,
    )  # fmt: skip


def _glyph(css: str, shape: str) -> Markup:
    """A small mark for text."""
    drawn = '<svg class="glyph" viewBox="0 0 12 12" aria-hidden="true"><path class="mark {}" d="{}"/></svg>'
    return Markup(drawn).format(css, svg.outline(shape, 6, 6, 4))
