# SPDX-License-Identifier: GPL-2.0-only
"""Anonymous folios of one fixed size on stock Linux, against Quell, which chooses by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quell import compare, measure, results, session, stats
from quell.errors import UsageError
from quell.paths import Cache

if TYPE_CHECKING:
    from quell.build import Kernel

SCHEMA = "quell.sizes/1"
FILE = "sizes.json"
# What is measured unless told otherwise.
WORKLOADS = ("fault", "kernel-build", "redis", "memcached")
SIZES_KB = (16, 32, 64, 128, 256)
BASE, QUELL = compare.SIDES
# Nothing else of Quell's: what differs then is due to the size of folios.
QUELL_ARGS = "quell=folio_order"
# A fixed size may need so much more memory to count as one that needs no more.
SAME_MEMORY = 1.02
_CONTROL = "/sys/kernel/mm/transparent_hugepage/hugepages-{}kB/enabled"


@dataclass(frozen=True)
class Variant:
    """One column: a kernel, and on stock the size in kB that is always used, if any."""

    name: str
    kernel: str
    size_kb: int | None = None

    @property
    def writes(self) -> dict[str, str]:
        """What is written to the guest's files before the workload starts."""
        return {} if self.size_kb is None else {_CONTROL.format(self.size_kb): "always"}


def variants(sizes_kb: Sequence[int] = SIZES_KB) -> list[Variant]:
    """Stock with single pages, stock with each size, Quell."""
    fixed = [Variant(f"{size}K", BASE, size) for size in sizes_kb]
    return [Variant(BASE, BASE), *fixed, Variant(QUELL, QUELL)]


def parse_sizes(texts: Sequence[str]) -> tuple[int, ...]:
    """Sizes such as "16K" or "16K,64K", in kB and in order; all without any. UsageError."""
    known = {f"{size}K": size for size in SIZES_KB}
    wanted = [part for text in texts for part in text.split(",") if part]
    for part in wanted:
        if part not in known:
            raise UsageError(f"there is no size '{part}'; the sizes are: {', '.join(known)}")
    return tuple(size for name, size in known.items() if name in wanted) or SIZES_KB


@dataclass(frozen=True)
class Sized:
    """Guests by variant: those of its kernel, with its size set."""

    guests: compare.Guests
    variants: Mapping[str, Variant]

    def run(
        self, side: str, kernel: Kernel, plan: compare.Plan, rundir: Path
    ) -> measure.Sample:
        """See ``compare.Guests``; ``side`` is a variant's name."""
        variant = self.variants[side]
        job = replace(plan.job, writes={**plan.job.writes, **variant.writes})
        return self.guests.run(variant.kernel, kernel, replace(plan, job=job), rundir)


@dataclass(frozen=True)
class Outcome:
    """A finished table: the object of docs/results.md, and the folder it is kept in."""

    result: dict[str, Any]
    folder: Path
    summaries: Mapping[str, str]


def measure_sizes(
    options: session.Options, cache: Cache, columns: Sequence[Variant]
) -> Outcome:
    """Measure every workload of ``options`` in every column, by turns, and keep the result."""
    setup = session.set_up(options, cache)
    by_name = {variant.name: variant for variant in columns}
    kernels = {variant.name: setup.kernels[variant.kernel] for variant in columns}
    with session.result_folder(cache) as folder:
        guests = Sized(setup.guests(), by_name)
        measured = compare.measure_all(
            kernels, setup.plans, options.runs, guests, folder, tuple(by_name)
        )
    result = {
        "schema": SCHEMA,
        "environment": setup.environment(),
        "variants": [
            {"name": v.name, "kernel": v.kernel, "size_kb": v.size_kb} for v in columns
        ],
        "workloads": [
            to_json(item, list(by_name), deterministic=options.deterministic) for item in measured
        ],
    }
    results.save(folder, result, FILE)
    return Outcome(result, folder, {plan.name: plan.summary for plan in setup.plans})


def to_json(
    measured: compare.Measured, names: Sequence[str], *, deterministic: bool = False
) -> dict[str, Any]:
    """One workload of the table: each figure of each variant, against stock's single pages."""
    pairs = {
        name: compare.Measured(
            measured.plan,
            {BASE: measured.samples[BASE], QUELL: measured.samples[name]},
        ).to_json()
        for name in names
    }
    figures: dict[str, Any] = {}
    for part in ("metrics", "extras", "figures"):
        titles = dict.fromkeys(n for pair in pairs.values() for n in pair[part])
        for title in titles:
            cells = {name: pair[part].get(title) for name, pair in pairs.items()}
            some = next(cell for cell in cells.values() if cell)
            figures[title] = {
                "unit": some.get("unit", _unit(title)),
                "better": some.get("better", "lower"),
                "variants": {name: _cell(cell) for name, cell in cells.items()},
            }
    time = measure.GUEST_INSTRUCTIONS.name if deterministic else "elapsed_s"
    shown = dict.fromkeys([time, "system_s", "minor_faults", "peak_memory_kb"])
    shown |= dict.fromkeys(n for n in measured.plan.matters if n in pairs[BASE]["figures"])
    if deterministic:
        del shown["system_s"]  # in ticks of the clock, that are in time already
    memory = ["peak_memory_kb", *(n for n in pairs[BASE]["figures"] if figures[n]["unit"] == "kB")]
    return {
        "workload": measured.plan.name,
        "figures": figures,
        "shown": list(shown),
        "best": best(figures, names, time, [n for n in memory if _lower(figures[n])]),
    }


def _unit(title: str) -> str:
    known = (*measure.METRICS, *measure.EXTRAS, measure.GUEST_INSTRUCTIONS)
    return next((metric.unit for metric in known if metric.name == title), "")


def _lower(figure: Mapping[str, Any]) -> bool:
    return bool(figure["better"] == "lower")


def _cell(cell: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A variant's figure: its runs, and how they stand to stock's; None if it has none."""
    if cell is None or cell[QUELL] is None:
        return None
    return {**cell[QUELL], "ratio": cell["ratio"], "verdict": cell["verdict"]}


def best(
    figures: Mapping[str, Any], names: Sequence[str], time: str, memory: Sequence[str]
) -> dict[str, Any]:
    """The fixed size with the least median of ``time``, and how Quell stands to it.

    ``memory`` are the figures of memory: what counts is the one that grew most.
    ``frugal`` is the fastest of those fixed sizes that need no more memory than
    SAME_MEMORY times stock's, None if all need more.
    """
    times = figures[time]["variants"]

    def entry(name: str) -> dict[str, Any]:
        worst = max(memory, key=lambda n: _ratio(figures[n], name))
        return {
            "variant": name,
            "time": times[name]["ratio"],
            "memory": _ratio(figures[worst], name),
            "memory_figure": worst,
        }

    fixed = sorted(
        (entry(name) for name in names if name not in (BASE, QUELL)),
        key=lambda item: float(times[item["variant"]]["median"]),
    )
    frugal = [item for item in fixed if item["memory"] <= SAME_MEMORY]
    out: dict[str, Any] = {"time": time, "quell": entry(QUELL)}
    for name, items in (("fastest", fixed), ("frugal", frugal)):
        out[name] = {**items[0], "quell": _against(times, items[0]["variant"])} if items else None
    return out


def _ratio(figure: Mapping[str, Any], name: str) -> float:
    cell = figure["variants"][name]
    return float(cell["ratio"]) if cell and cell["ratio"] is not None else 1.0


def _against(times: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Quell's time against that of a fixed size."""
    compared = stats.compare(times[name]["runs"], times[QUELL]["runs"])
    return {"ratio": compared.ratio, "verdict": compared.verdict}


def percent(ratio: float | None) -> str:
    """A ratio as a change: "-12.3 %", "x 15.0" from tenfold on, "-" for None."""
    if ratio is None:
        return "-"
    return f"x {ratio:.1f}" if ratio >= 10 else f"{(ratio - 1) * 100:+.1f} %"


def verdict(entry: Mapping[str, Any], titles: Mapping[str, str]) -> list[str]:
    """In words which fixed size was best in a workload, and where Quell stands; one line each.

    ``titles`` are the names of figures for people.
    """
    answer = entry["best"]
    time = titles.get(answer["time"], answer["time"])

    def words(item: Mapping[str, Any]) -> str:
        more = titles.get(item["memory_figure"], item["memory_figure"])
        return f"{time} {percent(item['time'])}, memory at most {percent(item['memory'])} ({more})"

    lines = []
    for name, what in (("fastest", "fastest fixed size"), ("frugal", "fastest of those that need no more memory")):
        item = answer[name]
        if item is None:
            lines.append(f"{what}: none")
        elif name == "frugal" and item["variant"] == answer["fastest"]["variant"]:
            continue
        else:
            none = ", no faster than single pages" if item["time"] >= 1 else ""
            lines.append(f"{what}: {item['variant']}{none}, {words(item)}; {_stands(item['quell'])}")
    return [*lines, f"Quell: {words(answer['quell'])}"]


def _stands(quell: Mapping[str, Any]) -> str:
    if quell["verdict"] == stats.SAME:
        return "Quell as fast, within the spread"
    word = "faster" if quell["verdict"] == stats.BETTER else "slower"
    return f"Quell {word} than that: {percent(quell['ratio'])}"

