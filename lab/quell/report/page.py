# SPDX-License-Identifier: GPL-2.0-only
"""The page: its text, tables and charts, for the template.

All text from results is untrusted: the template escapes it.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from quell import presets, results, stats, table, ui
from quell.report import charts

_FOLDER = Path(__file__).parent
# Results with many sides, by preset: the name in the contents, the heading, a description.
_LADDERS = {
    "ladder": ("Ladder", "The ladder", "The same Quell kernel with one mechanism more switched on at each rung, "
               "and stock Linux."),
    "scale": ("Scale", "More CPUs", "The ladder with more CPUs."),
    "sizes": ("Folio sizes", "Folio sizes", "Stock Linux with one size of anonymous folios each, and Quell's choice."),
}  # fmt: skip
_SIDES = ("Sides", "Many sides", "Each figure on every side.")
_DIRECTIONS = {
    "agrees": ("better", "same direction"),
    "opposite": ("worse", "opposite direction"),
    "none": ("same", "only one of the two differs"),
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
    parts = re.split(r"((?<=,)(?=\S)|\s+)", charts.clean(text))
    return Markup("").join(
        Markup("<wbr>") if not part and n % 2
        else Markup('<span class="id">{}</span>').format(_breakable(part)) if _IDENTIFIER.fullmatch(part)
        else _breakable(part)
        for n, part in enumerate(parts)
    )  # fmt: skip


def _breakable(word: str) -> Markup:
    return Markup("<wbr>").join(_PARTS.split(word))


# Kinds of verdicts (classes of the style sheet), and their marks.
MARKS = {"better": "●", "worse": "▲", "same": "■", "few": "×"}
_KINDS = {stats.BETTER: "better", stats.WORSE: "worse", stats.SAME: "same"}
_FEW = stats.too_few(1).partition(" (")[0]


def kind(verdict: str | None) -> str:
    """A verdict's kind; empty for a figure that was not judged."""
    text = verdict or ""
    return "few" if text.startswith(_FEW) else _KINDS.get(text, "")


@dataclass(frozen=True)
class Row:
    """A figure of a side against the base; ``base`` and ``other`` are summaries of a result.

    ``later``: emulation changes the figure, so it comes last.
    """

    label: str
    base: Mapping[str, Any] | None
    other: Mapping[str, Any] | None
    ratio: float | None
    verdict: str
    matters: bool
    later: bool

    @property
    def kind(self) -> str:
        """The verdict's kind."""
        return kind(self.verdict)


def _compared(found: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A section for each workload: headings, a table for each pair of sides, notes, the chart of every run."""
    numbers = itertools.count(1)
    for result in found:
        environment, (base, *others) = result["environment"], charts.sides(result)
        emulated = environment["accelerator"]["name"] == "tcg"
        for comparison in result["comparisons"]:
            anchor, name = f"w{next(numbers)}", comparison["name"]
            about, guest = _about(result, comparison)
            last = comparison is result["comparisons"][-1]
            yield {
                "anchor": anchor,
                "name": name,
                "about": about,
                "guest": guest + (f", {day(environment['date'])}" if len(found) > 1 else ""),
                "times": environment["accelerator"]["times"],
                "base": base.title,
                "pairs": [(side.title, _rows(comparison, base, side, emulated)) for side in others],
                "notes": [*_exits(comparison), *comparison["notes"], *(result["notes"] if last else ())],
                "chart": _chart(anchor, name, comparison, comparison["shown"], [base, *others]),
            }


def _chart(
    anchor: str, name: str, comparison: Mapping[str, Any], keys: Sequence[str], sides: Sequence[charts.Side]
) -> Markup:
    figures = {key: comparison["figures"][key] for key in keys}
    return charts.runs(f"{anchor}-runs", f"{name}: every run", figures, comparison["matters"], sides)


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


def _ladder(result: Mapping[str, Any], anchor: str) -> dict[str, Any]:
    """A result with many sides: for each workload a chart, and a table with a column for each side.

    A row of a table is its label, and for each side the figure and its comparison with the base.
    """
    short, heading, about = _LADDERS.get(result["preset"], _SIDES)
    environment, sides = result["environment"], charts.sides(result)
    first = presets.load(result["preset"]).shown if result["preset"] in _LADDERS else {}
    parts = []
    for number, one in enumerate(result["comparisons"]):
        wanted = {*first.get(one["workload"], ()), *one["matters"]}
        figures = [one["figures"][key] for key in one["shown"]]
        parts.append({
            "name": one["name"], "about": " ".join(_about(result, one)) + ".", "notes": one["notes"],
            "chart": _chart(
                f"{anchor}-{number}", f"{one['name']} ({heading})", one,
                [key for key in one["shown"] if key in wanted], sides,
            ),
            "rows": [
                (table.label(f), [(f["sides"][side.name], f["against"].get(side.name)) for side in sides])
                for f in figures
            ],
        })  # fmt: skip
    return {
        "anchor": anchor,
        "short": short,
        "heading": heading,
        "about": f"{about} Medians of {plural(environment['runs'], 'run')}; {environment['accelerator']['times']}.",
        "sides": result["sides"],
        "parts": parts,
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
    pairs = {(part["base"], other) for part in parts for other, _ in part["pairs"]}
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


def _environments(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, dict[str, str]]]:
    """The facts of each result, under its name."""
    return [
        ((_LADDERS.get(result["preset"], _SIDES)[0] if table.many_sides(result) else "Comparison"), _facts(result))
        for result in found
    ]


def _clean(value: object) -> object:
    """A value for the template: text without control characters."""
    return charts.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def render(found: Sequence[Mapping[str, Any]]) -> str:
    """The whole page for these results."""
    import jinja2

    parts = list(_compared([result for result in found if not table.many_sides(result)]))
    judged = [(part, row) for part in parts for _, rows in part["pairs"] for row in rows if row.kind]
    counts = Counter(row.kind for _, row in judged)
    ladders = [_ladder(result, f"l{n}") for n, result in enumerate(found) if table.many_sides(result)]
    published = _published(found)
    environments = [result["environment"] for result in found]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined,
        finalize=_clean, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"ids": identifiers, "kind": kind}
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
        emulated=sum(row.later and part["times"] == results.TIMES["tcg"] for part, row in judged),
        parts=parts,
        ladders=ladders,
        published=published,
        environments=_environments(found),
        marks=MARKS,
    )  # fmt: skip
