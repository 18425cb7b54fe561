# SPDX-License-Identifier: GPL-2.0-only
"""Presets of the engine: presets.toml, and figures.toml with claims."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quell import counters, forms, machine, sides, source, stats
from quell.errors import QuellError, UsageError

# The figure, a kind as in the head of figures.toml, the bound or 0, and a version of Linux or "".
Claim = tuple[str, str, float, str]
_CLAIM = re.compile(r"(\S+) (?:(<=|>=|\+-) ([\d.]+)|(not worse|same))(?: on ([\d.]+))?")
_FOLDER = Path(__file__).parent
_FIGURES = _FOLDER / "figures.toml"
# Before the name of a group: the same with machine.CLASSIC_LRU.
_CLASSIC = "classic-"


@dataclass(frozen=True)
class Preset:
    """A comparison as data: the heads of presets.toml and figures.toml describe the fields."""

    name: str = "compare"
    about: str = ""
    sides: tuple[sides.Side, ...] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    workloads: tuple[str, ...] = ()
    runs: int = 5
    memory: int | Mapping[str, int] | None = None
    cpus: tuple[int, ...] = ()
    deterministic: bool = False
    swap: str = ""
    published: bool = False
    shown: Mapping[str, Sequence[str]] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    chart: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 0.0
    slack: float = 0.0


def load(name: str) -> Preset:
    """The preset ``name`` of presets.toml or figures.toml; the lab's tests check both files."""
    tables = forms.read_toml(_FOLDER / "presets.toml") | forms.read_toml(_FIGURES)
    plain = name.removeprefix(_CLASSIC)
    setting = f",{machine.CLASSIC_LRU}" * (name != plain)
    plain, _, swap = (plain, "", "") if plain in tables else plain.rpartition("-")
    given = {"sides": ["stock=stock", "quell=quell"], **tables[tables[plain].get("like", plain)], **tables[plain]}
    given |= given.pop("measure", {})
    for key in ("like", "classic", "swaps", *(("chart",) if setting else ())):
        given.pop(key, None)
    given |= {"swap": swap} if swap else {}
    given |= {key: tuple(given.get(key, ())) for key in ("workloads", "cpus")}
    given["sides"] = sides.parse_all([side + setting for side in given["sides"]])
    given["claims"] = tuple(claim for text in given.get("claims", ()) for claim in parse_claims(text))
    if isinstance(memory := given.get("memory"), dict):
        given["memory"] = {item: machine.parse_memory(size) for item, size in memory.items()}
    elif memory is not None:
        given["memory"] = machine.parse_memory(memory)
    return Preset(name, **given)


def parse_claims(text: str) -> list[Claim]:
    """The claims of one text in figures.toml, one for each figure."""
    match = _CLAIM.fullmatch(text)
    if not match:
        raise QuellError(f"'{text}' is no claim")
    kind, bound, linux = match[2] or match[4], float(match[3] or 0), match[5] or ""
    return [(figure, kind, bound, linux) for figure in sides.names([match[1]])]


def group_names() -> list[str]:
    """The names of the groups of figures.toml."""
    tables = forms.read_toml(_FIGURES)
    names = [name + end for name, one in tables.items() for end in ("", *(f"-{swap}" for swap in one.get("swaps", ())))]
    return [*names, *(_CLASSIC + name for name, one in tables.items() if "classic" in one)]


def groups(names: Sequence[str] = ()) -> list[Preset]:
    """The groups of figures.toml, all or the named ones (each may be a comma list)."""
    known, wanted = group_names(), sides.names(names)
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(f"there is no group '{unknown[0]}' of figures; they are: {', '.join(known)}")
    return [load(name) for name in wanted or known]


def check(group: Preset, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The claims of a group for a result: one row for each workload and claim, with ``holds``."""
    linux = source.linux_of(result["environment"]["kernel_source"])
    claims = [claim for claim in group.claims if claim[3] in ("", linux)]
    return [_row(group, claim, one, result["sides"]) for one in result["comparisons"] for claim in claims]


def _row(group: Preset, claim: Claim, comparison: Mapping[str, Any], sides: Sequence[Any]) -> dict[str, Any]:
    name, kind, bound, _ = claim
    figure = comparison["figures"].get(name, {"sides": {}})
    base, other = (figure["sides"].get(side["name"]) for side in sides[:2])
    if not base or not other:
        raise QuellError(f"workload {comparison['workload']} gave no figure {name}")
    more = figure["better"] == "more"
    ratio, verdict = stats.compare(base["runs"], other["runs"], higher_is_better=more, least=counters.LEAST.get(name, 0))
    share = float("nan") if ratio is None else ratio  # nothing holds of nan
    least = max(group.tolerance * abs(base["median"]), group.slack * (name in counters.EVENTS))
    text, holds = {
        "<=": (f"ratio at most {bound:g}", share <= bound),
        ">=": (f"ratio at least {bound:g}", share >= bound),
        "+-": (f"within {bound * 100:g} %", round(abs(share - 1), 4) <= bound),
        "not worse": ("not worse", verdict in (stats.SAME, stats.BETTER)),
        "same": ("no difference", verdict == stats.SAME or abs(other["median"] - base["median"]) <= least),
    }[kind]
    return {
        "group": group.name, **{key: comparison[key] for key in ("workload", "memory_kb", "cpus")},
        "deterministic": group.deterministic, "sides": [side.option() for side in group.sides],
        "figure": name, "title": figure["title"], "claim": text, "base": base, "other": other,
        "ratio": ratio, "verdict": verdict, "holds": holds,
    }  # fmt: skip
