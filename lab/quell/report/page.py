# SPDX-License-Identifier: GPL-2.0-only
"""The page: a section for each result, with a table and a chart for each of its workloads.

The template makes tables and charts. All text from results is untrusted: it is escaped there.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from quell import stats, table, ui

_FOLDER = Path(__file__).parent
# The headings of results by preset; others have the preset's name.
_HEADINGS = {
    "compare": "Comparison",
    "ladder": "The ladder: one mechanism more at each rung, then stock Linux",
    "scale": "The ladder with more CPUs",
}
# Kinds of verdicts (classes of the style sheet), and their marks.
MARKS = {"better": "●", "worse": "▲", "same": "■", "few": "×"}
_KINDS = {stats.BETTER: "better", stats.WORSE: "worse", stats.SAME: "same"}
# A word may break behind these, but not inside a number (6.12.117).
_PARTS = re.compile(r"(?<=[^\s_/=:;,.][_/=:;,.])(?=[^\s\d_/=:;,.])")
# A chart is as wide as a phone: its text is not scaled down there. Its texts have 11 units.
_WIDTH = 360
_CHARACTER = 6.2


def clean(value: object) -> object:
    """A value for the template: text without control characters and lone surrogates, which no document may have."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", " ", value)


def breakable(text: str) -> Markup:
    """Text whose words break between their parts if a line is too short for them."""
    return Markup("<wbr>").join(_PARTS.split(str(clean(text))))


def kind(verdict: str | None) -> str:
    """A verdict's kind; empty for a figure that was not judged."""
    return "" if verdict is None else _KINDS.get(verdict, "few")


def _charted(comparison: Mapping[str, Any]) -> list[str]:
    """The figures of a chart: those that matter, and the first ones of the terminal's table."""
    shown = comparison["shown"]
    return [key for n, key in enumerate(shown) if n < table.COLUMNS or key in comparison["matters"]]


def _scale(figure: Mapping[str, Any], left: float) -> Callable[[float], float]:
    """A linear scale from values to places in a chart, with 0 and all runs."""
    runs = [0, *(run for side in figure["sides"].values() if side for run in side["runs"])]
    low, high = min(runs), max(runs)
    return lambda value: round(left + (value - low) / ((high - low) or 1) * (_WIDTH - 56 - left), 1)


def _facts(result: Mapping[str, Any]) -> dict[str, str]:
    """The environment and the sides as terms and their values."""
    made = result["environment"]
    host, accelerator = made["host"], made["accelerator"]
    facts = {
        "Measured": made["date"].replace("T", " ").replace("Z", " UTC"),
        "Quell": f"{made['quell']}, series {made['series_hash']}",
        "Linux source": made["kernel_source"],
        "Host": f"{host['cpu']}, {host['cpus']} CPUs, {ui.size(host['memory_kb'] * 1024)} of memory, Linux {host['kernel']}",
        "Accelerator": f"{accelerator['name'].upper()} ({accelerator['reason']})",
        "QEMU": made["qemu"],
        "Compiler": made["compiler"],
    }
    for side in result["sides"]:
        more = f", with {' '.join(side['parameters'])}" if side["parameters"] else ""
        facts[f"Side {side['name']}"] = f"{side['title']}: {side['release']}, configuration {side['config_hash'][:12]}{more}"
    return facts


def render(found: Sequence[Mapping[str, Any]]) -> str:
    """The whole page for these results."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined,
        finalize=clean, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "breakable": breakable, "charted": _charted, "facts": _facts, "kind": kind, "number": ui.number,
        "many": table.many_sides, "ratio": table.ratio, "scale": _scale, "span": table.span,
    }  # fmt: skip
    made = [result["environment"] for result in found]
    verdicts = [
        kind(against["verdict"])
        for result in found if not table.many_sides(result)
        for one in result["comparisons"] for figure in one["figures"].values() for against in figure["against"].values()
    ]  # fmt: skip
    return environment.get_template("page.html.j2").render(
        style=Markup((_FOLDER / "style.css").read_text()),
        title=f"Quell report, Linux {', '.join(dict.fromkeys(one['kernel_source'] for one in made))}",
        when=", ".join(dict.fromkeys(one["date"][:10] for one in made)),
        times=dict.fromkeys(f"{one['accelerator']['name'].upper()}: {one['accelerator']['times']}." for one in made),
        counts=Counter(verdicts),
        results=found,
        headings=_HEADINGS,
        label=table.label,
        guest=table.guest,
        marks=MARKS,
        width=_WIDTH,
        character=_CHARACTER,
    )
