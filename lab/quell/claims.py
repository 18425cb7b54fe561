# SPDX-License-Identifier: GPL-2.0-only
"""The figures that the project claims (figures.toml), and whether they hold."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from quell import machine, measure, stats, workload
from quell.errors import QuellError, UsageError

SCHEMA = "quell.figures/1"
_METRICS = {m.name for m in (*measure.METRICS, *measure.EXTRAS, measure.GUEST_INSTRUCTIONS)}


@dataclass(frozen=True)
class Group:
    """Claims about the same guests: see the head of figures.toml for the fields."""

    name: str
    about: str
    workloads: tuple[str, ...]
    memory: str | None = None
    cpus: int | None = None
    deterministic: bool = False
    runs: int | None = None
    quell_args: str = ""
    stock_args: str = ""
    ratio_at_most: Mapping[str, float] = field(default_factory=dict)
    ratio_at_least: Mapping[str, float] = field(default_factory=dict)
    within: Mapping[str, float] = field(default_factory=dict)
    not_worse: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    tolerance: float = 0.0
    slack: float = 0.0

    @property
    def named(self) -> set[str]:
        """The figures that the claims are about."""
        return {*self.ratio_at_most, *self.ratio_at_least, *self.within, *self.not_worse, *self.same}


_FIELDS = {f.name for f in fields(Group)}


def load(path: Path | None = None) -> list[Group]:
    """The groups in figures.toml; QuellError naming what is wrong in it."""
    file = path or Path(__file__).parent / "figures.toml"
    try:
        tables = tomllib.loads(file.read_text())["group"]
        groups = []
        for table in tables:
            if unknown := set(table) - _FIELDS:
                raise QuellError(f"{file}: there is no field {sorted(unknown)[0]}")
            lists = {k: tuple(table.get(k, ())) for k in ("workloads", "not_worse", "same")}
            groups.append(Group(**{**table, **lists}))
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise QuellError(f"{file} cannot be used: {error}") from error
    for group in groups:
        own = {name for item in workload.select(group.workloads) for name in item.figures}
        for name in sorted(group.named - _METRICS - own):
            raise QuellError(f"{file}: group {group.name} names the unknown figure {name}")
    return groups


def select(groups: Sequence[Group], names: Sequence[str]) -> list[Group]:
    """The named groups (each may be a comma-separated list), or all."""
    wanted = [part for name in names for part in name.split(",") if part]
    known = {group.name: group for group in groups}
    for name in wanted:
        if name not in known:
            raise UsageError(f"there is no group '{name}' of figures; they are: {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(wanted)] if wanted else list(groups)


def check(group: Group, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a group for a result object: one for each workload and claim."""
    rows = []
    for comparison in result["comparisons"]:
        name = comparison["workload"]
        guest = result["environment"]["workloads"][name]

        def row(metric: str, claim: str, holds: bool, bound: float | None = None) -> None:
            figure = _figure(comparison, metric)  # noqa: B023
            rows.append(
                {
                    "group": group.name,
                    "workload": name,  # noqa: B023
                    "memory": machine.format_memory(guest["memory_kb"] * 1024),  # noqa: B023
                    "cpus": guest["cpus"],  # noqa: B023
                    "deterministic": group.deterministic,
                    "quell_args": group.quell_args,
                    "stock_args": group.stock_args,
                    "metric": metric,
                    "claim": claim,
                    "bound": bound,
                    **figure,
                    "holds": holds,
                }
            )

        for metric, bound in group.ratio_at_most.items():
            measured = _figure(comparison, metric)["ratio"]
            holds = measured is not None and measured <= bound
            row(metric, f"ratio at most {bound:g}", holds, bound)
        for metric, bound in group.ratio_at_least.items():
            measured = _figure(comparison, metric)["ratio"]
            holds = measured is not None and measured >= bound
            row(metric, f"ratio at least {bound:g}", holds, bound)
        for metric, share in group.within.items():
            measured = _figure(comparison, metric)["ratio"]
            holds = measured is not None and round(abs(measured - 1), 4) <= share
            row(metric, f"within {share * 100:g} % of stock", holds, share)
        for metric in group.not_worse:
            judged = _figure(comparison, metric)
            claim = "not below stock" if judged.get("better") == "higher" else "not above stock"
            row(metric, claim, judged["verdict"] not in (None, stats.WORSE))
        for metric in group.same:
            row(metric, "as stock", _same(_figure(comparison, metric), group))
    return rows


def _figure(comparison: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A figure of a comparison: one that every run has, or that the program printed."""
    for part in ("metrics", "extras", "figures"):
        if name in comparison[part]:
            figure: Mapping[str, Any] = comparison[part][name]
            return figure
    raise QuellError(f"workload {comparison['workload']} gave no figure {name}")


def _same(figure: Mapping[str, Any], group: Group) -> bool:
    if figure["verdict"] == stats.SAME:
        return True
    stock, quell = figure["stock"]["median"], figure["quell"]["median"]
    difference = abs(quell - stock)
    if difference <= group.tolerance * abs(stock):
        return True
    whole = all(float(v).is_integer() for v in (*figure["stock"]["runs"], *figure["quell"]["runs"]))
    return whole and difference <= group.slack
