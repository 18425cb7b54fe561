# SPDX-License-Identifier: GPL-2.0-only
"""The page: what it says in words, its tables and charts, put into the template.

Everything that comes from results is untrusted text: the template escapes it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from quell import stats, table, ui, workload
from quell.report import charts, reproduce, svg
from quell.report.sources import Sources, is_scale

_FOLDER = Path(__file__).parent
_KINDS = {stats.BETTER: "better", stats.WORSE: "worse", stats.SAME: "same"}
_DIRECTIONS = {
    "agrees": ("better", "same direction"),
    "opposite": ("worse", "opposite direction"),
    "none": ("same", "only one of the two differs"),
}
_SIZES = {"agrees": "about as much", "smaller": "less than published", "larger": "more than published"}


@dataclass(frozen=True)
class Compared:
    """A workload's section: heading, table, charts."""

    anchor: str
    workload: str
    about: str
    guest: str
    when: str
    rows: list[table.Row]
    later: list[table.Row]
    times: str
    counts: Counter[str]
    exits: str
    ratios: list[charts.Ratio]
    emulated: bool
    runs: int
    chart: Markup = Markup("")
    overview: Markup = Markup("")


def plural(count: int, word: str) -> str:
    """``1 figure``, ``2 figures``."""
    return f"{count:,} {word}{'s' * (count != 1)}"


def day(stamp: str) -> str:
    """An ISO 8601 time as people read it, other text as it is."""
    return stamp.replace("T", " ").replace("Z", " UTC") if len(stamp) == 20 else stamp


def _summaries(names: Sequence[str]) -> dict[str, str]:
    """A line on each workload, from those descriptions that are here."""
    there = set(workload.known())
    return {item.name: item.summary for item in workload.select([n for n in names if n in there])}


def _compared(documents: Sequence[Mapping[str, Any]]) -> Iterator[Compared]:
    number = 0
    for document in documents:
        environment = document["environment"]
        emulated = environment["accelerator"]["name"] == "tcg"
        summaries = _summaries([c["workload"] for c in document["comparisons"]])
        for comparison in document["comparisons"]:
            number += 1
            head, guest = table.heading(environment, comparison["workload"], summaries)
            rows = table.rows(comparison, emulated=emulated)
            matters = any(r.matters for r in rows)
            here = [r for r in rows if not emulated or table.carries_over(comparison, r.key)]
            yield Compared(
                anchor=f"w{number}",
                workload=comparison["workload"],
                about=head.partition(": ")[2],
                guest=guest,
                when=day(environment["date"]) if len(documents) > 1 else "",
                rows=here,
                later=[r for r in rows if r not in here],
                times=environment["accelerator"]["times"],
                counts=Counter(_KINDS[r.verdict] for r in rows if r.verdict in _KINDS),
                exits=_exits(comparison["exit_codes"]),
                ratios=[charts.ratio_row(r) for r in rows if r.matters or not matters],
                emulated=emulated and not environment["deterministic"],
                runs=environment["runs"],
            )  # fmt: skip


def _exits(codes: Mapping[str, Sequence[float]]) -> str:
    """The command's exit codes, if any is not 0."""
    if not any(code for side in codes.values() for code in side):
        return ""
    shown = "; ".join(f"{side} {', '.join(map(str, codes[side]))}" for side in ("stock", "quell"))
    return f"The command did not exit with 0: {shown}."


@dataclass(frozen=True)
class LadderPart:
    """A workload on the ladder: its charts, and a table for each number of vCPUs.

    A table is its caption, the rungs, and a row for each figure.
    """

    heading: str
    charts: list[Markup]
    tables: list[tuple[str, list[str], list[tuple[str, list[str]]]]]


def _figures(cells: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The figures of cells, by name, with their titles."""
    return {
        name: charts.figure_title(name, figure["unit"])
        for cell in cells for name, figure in cell["figures"].items()
    }  # fmt: skip


def _rungs(
    document: Mapping[str, Any], figures: Mapping[str, Mapping[str, Any]]
) -> list[charts.Rung]:
    """All rungs, with what is in ``figures`` for each. The last that is no stock is all of Quell."""
    last = [r["name"] for r in document["rungs"] if r["kernel"] != "stock"][-1:]
    return [
        charts.Rung(r["name"], r["title"], r["kernel"], figures.get(r["name"]), r["name"] in last)
        for r in document["rungs"]
    ]


def _ladder_parts(document: Mapping[str, Any], ident: str) -> Iterator[LadderPart]:
    for n, name in enumerate(dict.fromkeys(c["workload"] for c in document["cells"])):
        drawn_figures = _that_matter(document, name)
        cells = [c for c in document["cells"] if c["workload"] == name]
        titles = _figures(cells)
        cpus = sorted({c["cpus"] for c in cells})
        drawn = []
        for m, (figure, title) in enumerate(titles.items()):
            if drawn_figures and figure not in drawn_figures:
                continue
            by_cpus = {
                count: {
                    c["rung"]: c["figures"][figure]
                    for c in cells if c["cpus"] == count and figure in c["figures"]
                }
                for count in cpus
            }  # fmt: skip
            by_cpus = {count: found for count, found in by_cpus.items() if found}
            chart_id, better = f"{ident}-{n}-{m}", _better(by_cpus)
            if len(by_cpus) > 1:
                rungs = _rungs(document, {})
                drawn.append((f"{title}{better}", charts.scale_curves(
                    chart_id, f"{name}: {title} against the number of vCPUs", rungs, by_cpus)))  # fmt: skip
            else:
                rungs = _rungs(document, next(iter(by_cpus.values())))
                drawn.append((f"{title}{better}", charts.ladder(
                    chart_id, f"{name}: {title} on each rung of the ladder", rungs)))  # fmt: skip
        tables = []
        for count in cpus:
            found = {c["rung"]: c["figures"] for c in cells if c["cpus"] == count}
            there = [r["name"] for r in document["rungs"] if r["name"] in found]
            rows = [
                (title, [table.span(found[rung].get(figure)) for rung in there])
                for figure, title in titles.items()
            ]
            tables.append((plural(count, "vCPU"), there, rows))
        heading = name if len(cpus) > 1 else f"{name}, {plural(cpus[0], 'vCPU')}"
        yield LadderPart(heading, [_captioned(*pair) for pair in drawn], tables)


def _that_matter(document: Mapping[str, Any], name: str) -> set[str]:
    """The figures of a workload that are drawn: its own description's, the published; else all."""
    there = {f for c in document["cells"] if c["workload"] == name for f in c["figures"]}
    wanted = {p["figure"] for p in document["published"] if p["workload"] == name}
    if name in workload.known():
        wanted |= set(workload.select([name])[0].matters)
    return wanted & there


def _better(by_cpus: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> str:
    more = any(f["better"] == "more" for found in by_cpus.values() for f in found.values())
    return " (more is better)" if more else ""


def _captioned(caption: str, chart: Markup) -> Markup:
    return Markup('<figure class="small"><figcaption>{}</figcaption>{}</figure>').format(
        svg.clean(caption), chart
    )


def _published(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for document in documents:
        for item in document["published"]:
            css, direction = _DIRECTIONS[item["direction"]]
            rows.append({
                **item,
                "css": css,
                "verdict": direction,
                "much": _SIZES.get(item["size"], ""),
                "title": table.title(item["figure"]),
                **{f"{who}_{key}": table.number(item[who][key])
                   for who in ("theirs", "ours") for key in ("from", "to")},
                **{f"{who}_ratio": table.ratio(item[who]["ratio"]) for who in ("theirs", "ours")},
            })  # fmt: skip
    return rows


def _extremes(parts: Sequence[Compared]) -> list[str]:
    """The largest difference to either side, in words; what is emulated only where nothing else is."""
    said = []
    for verdict in (stats.BETTER, stats.WORSE):
        found = [
            (not (part.emulated and row in part.later), _distance(row), part, row)
            for part in parts
            for row in [*part.rows, *part.later]
            if row.verdict == verdict
        ]
        if found:
            counted, _, part, row = max(found, key=lambda item: item[:2])
            stock, quell = (table.number(row.figure[side]["median"]) for side in ("stock", "quell"))
            said.append(
                f"Furthest {verdict}{'' if counted else ' (emulated)'}: {row.label} in "
                f"{part.workload}, {stock} on stock and {quell} on Quell (ratio {row.ratio})."
            )
    return said


def _emulated(parts: Sequence[Compared]) -> list[str]:
    """How much of what was counted are emulated times, in a sentence, if any are."""
    rows = [row for part in parts if part.emulated for row in part.later]
    counts = Counter(_KINDS[row.verdict] for row in rows if row.verdict in _KINDS)
    if not counts:
        return []
    return [
        f"Of these, {plural(sum(counts.values()), 'figure')} "
        f"{'is an' if sum(counts.values()) == 1 else 'are'} emulated "
        f"time{'s' * (sum(counts.values()) != 1)}: {counts['better']:,} better, "
        f"{counts['worse']:,} worse, {counts['same']:,} without a difference."
    ]


def _distance(row: table.Row) -> float:
    """How far apart both kernels are; something against nothing is farthest."""
    value = row.figure["ratio"]
    return abs(math.log(value)) if value is not None and value > 0 else math.inf


def _chance(runs: int) -> str:
    """What the spread of so many runs a side is worth."""
    if runs == 1:
        return "With one run a side there is no spread: every difference counts as one."
    one_in = math.comb(2 * runs, runs) // 2
    return (
        f"With {runs} runs a side, two equal kernels would be told apart by this rule in "
        f"1 of {one_in:,} figures."
    )


def _lead(parts: Sequence[Compared], counts: Counter[str], published: Sequence[Any]) -> str:
    """What was compared and what came out, in a sentence or two: what the verdicts say."""
    said = ""
    if parts:
        where = len({p.workload for p in parts})
        total = sum(counts.values())
        said = (
            f"Of {plural(total, 'figure')} on {plural(where, 'workload')}, {counts['better']:,} "
            f"{'is' if counts['better'] == 1 else 'are'} better on Quell than on stock Linux, "
            f"{counts['worse']:,} {'is' if counts['worse'] == 1 else 'are'} worse, and "
            f"{counts['same']:,} {'shows' if counts['same'] == 1 else 'show'} "
            f"no difference within the spread."
        )
    if published:
        ways = Counter(item["direction"] for item in published)
        said += (
            f" Of {plural(len(published), 'published result')}, {ways['agrees']} went the same way "
            f"here and {ways['opposite']} the opposite way; for {ways['none']} only one of the "
            f"two differs."
        )
    return said.strip() or "Quell's mechanisms, switched on one at a time."


def _facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """The environment as terms and what they are."""
    host, kernels = environment["host"], environment["kernels"]
    accelerator = environment["accelerator"]
    facts = {
        "Measured": day(environment["date"]),
        "Quell": f"{environment['quell']}, series {environment['series_hash']}",
        "Linux source": environment["kernel_source"],
        "Host": f"{host['cpu']}, {plural(host['cpus'], 'CPU')}, "
        f"{ui.size(host['memory_kb'] * 1024)} of memory, Linux {host['kernel']}",
        "Accelerator": f"{accelerator['name'].upper()} ({accelerator['reason']})",
        "Times": accelerator["times"],
        "Runs": f"{environment['runs']} for each kernel and workload",
        "QEMU": environment["qemu"],
        "Compiler": environment["compiler"],
    }
    for name, kernel in kernels.items():
        more = " ".join(kernel["boot_parameters"])
        facts[f"Kernel {name}"] = (
            f"{kernel['release']}, configuration {kernel['config_hash'][:12]}"
            + (f", booted with {more}" if more else "")
        )
    for name in environment["workloads"]:
        guest = table.heading(environment, name, {})[1].rpartition(", ")[0]
        version = environment["workloads"][name]["version"]
        facts[f"Workload {name}"] = guest + (f", version {version}" if version is not None else "")
    return facts


def _environments(
    documents: Sequence[tuple[str, Mapping[str, Any]]],
) -> tuple[dict[str, str], list[tuple[str, dict[str, str]]]]:
    """What all results have in common, and what else each has."""
    facts = [(name, _facts(document["environment"])) for name, document in documents]
    first = facts[0][1]
    common = {k: v for k, v in first.items() if all(other.get(k) == v for _, other in facts)}
    rest = [(name, {k: v for k, v in own.items() if k not in common}) for name, own in facts]
    return common, [(name, own) for name, own in rest if own]


def _clean(value: object) -> object:
    """What the template puts out: text without control characters."""
    return svg.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def render(sources: Sources) -> str:
    """The whole page."""
    import jinja2

    parts = _with_charts(list(_compared(sources.comparisons)))
    counts = sum((part.counts for part in parts), Counter[str]())
    published = _published(sources.ladders)
    ladders = [
        {
            "anchor": f"l{n}",
            "scale": is_scale(document),
            "rungs": document["rungs"],
            "parts": list(_ladder_parts(document, f"l{n}")),
            "absent": document["absent"],
            "runs": document["runs"],
            "times": document["environment"]["accelerator"]["times"],
        }
        for n, document in enumerate(sources.ladders)
    ]
    named = [(_name("Comparison", d), d) for d in sources.comparisons]
    named += [(_name("Scale" if is_scale(d) else "Ladder", d), d) for d in sources.ladders]
    environments = [document["environment"] for _, document in named]
    common, others = _environments(named)
    versions = ", ".join(dict.fromkeys(e["kernel_source"] for e in environments))
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("page.html.j2")
    return template.render(
        style=Markup((_FOLDER / "style.css").read_text()),
        title=f"Quell against stock Linux {versions}",
        when=", ".join(dict.fromkeys(day(e["date"])[:10] for e in environments)),
        lead=_lead(parts, counts, published),
        times=list(dict.fromkeys(
            f"{e['accelerator']['name'].upper()}: {e['accelerator']['times']}." for e in environments
        )),
        counts=counts,
        extremes=[*_emulated(parts), *_extremes(parts)],
        chances=list(dict.fromkeys(_chance(p.runs) for p in parts)),
        parts=parts,
        ladders=ladders,
        published=published,
        common=common,
        environments=others,
        commands=reproduce.commands([document for _, document in named]),
        glyphs=_glyphs(),
        kinds=_KINDS,
    )  # fmt: skip


def _name(what: str, document: Mapping[str, Any]) -> str:
    return f"{what} of {day(document['environment']['date'])}"


def _with_charts(parts: list[Compared]) -> list[Compared]:
    """The parts with their charts; those of ratios share one axis."""
    domain = charts.ratio_domain([row for part in parts for row in part.ratios])
    return [
        replace(
            part,
            chart=charts.runs(
                f"{part.anchor}-runs", f"{part.workload}: every run, stock and Quell",
                [*part.rows, *part.later],
            ),
            overview=charts.ratios(
                f"{part.anchor}-ratios", f"{part.workload}: ratio of Quell to stock",
                part.ratios, domain,
            ) if part.ratios else Markup(""),
        )
        for part in parts
    ]  # fmt: skip


def _glyphs() -> dict[str, Markup]:
    """The marks of verdicts and kernels, small, for use beside words."""
    shapes = {css: shape for css, shape in charts.VERDICTS.values()}
    shapes |= {"stock": "circle", "quell": "diamond"}
    return {
        css: Markup(
            '<svg class="glyph" viewBox="0 0 12 12" aria-hidden="true">'
            '<path class="mark {}" d="{}"/></svg>'
        ).format(css, svg.outline(shape, 6, 6, 4))
        for css, shape in shapes.items()
    }

