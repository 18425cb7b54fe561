# SPDX-License-Identifier: GPL-2.0-only
"""The commands that repeat the measurements of a result.

A result does not record its --timeout and --kernel.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quell import here, machine, presets, workload
from quell.sides import Side

# Presets with a command of their own; compare measures all others, with options.
_COMMANDS = {"ladder": ["ladder"], "scale": ["ladder", "--scale"], "sizes": ["sizes"]}


def commands(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Shell commands for these results, in the repository's folder, without duplicates."""
    out: list[str] = []
    versions = dict.fromkeys(d["environment"]["quell"] for d in documents)
    for version in versions:
        commit = version.removesuffix("-dirty")
        note = "  # the files had changes that are in no commit" if commit != version else ""
        out.append("# version unknown" if commit == "unknown" else f"git checkout {shlex.quote(commit)}{note}")
        for document in documents:
            if document["environment"]["quell"] == version:
                out += [line for line in _commands(document) if line not in out]
    return out


def _commands(result: Mapping[str, Any]) -> Iterator[str]:
    environment = result["environment"]
    accelerator = environment["accelerator"]["name"]
    on_host = accelerator == "here"
    sides = [Side(s["name"], s["kernel"], tuple(s["parameters"])).option() for s in result["sides"]]
    name = result["preset"] if result["preset"] in _COMMANDS else "compare"
    # Only compare takes sides: it also measures the former sides of a preset.
    if name != "compare" and sides != [side.option() for side in presets.load(name).sides]:
        name = "compare"
    preset = presets.load(name)
    words = ["--here"] if on_host else []
    if name == "compare" and sides != [side.option() for side in (here.SIDES if on_host else preset.sides)]:
        words += [word for side in sides for word in ("--side", side)]
    if environment["runs"] != preset.runs:
        words += ["--runs", str(environment["runs"])]
    if environment["deterministic"] and not preset.deterministic:
        words.append("--deterministic")
    elif not environment["deterministic"] and not on_host:
        words += ["--accel", accelerator]
    start = ["./quell", *_COMMANDS.get(name, ["compare"])]

    guests: dict[str, tuple[int, list[int]]] = {}
    for comparison in result["comparisons"]:
        guests.setdefault(comparison["workload"], (comparison["memory_kb"] * 1024, []))[1].append(comparison["cpus"])
    own = {c["workload"]: c["command"] for c in result["comparisons"] if c["version"] is None}
    given = {c["workload"]: c["options"] for c in result["comparisons"]}
    alike: dict[tuple[str, ...], list[str]] = {}
    for what, (memory, cpus) in guests.items():
        options = [*([] if on_host else _guest(preset, what, memory, cpus)), *given[what]]
        if what in own:
            yield shlex.join([*start, *words, *options, "--", *own[what]])
        else:
            alike.setdefault(tuple(options), []).append(what)
    usual = [item.name for item in workload.select(preset.workloads)]
    for guest, names in alike.items():
        which = [] if sorted(names) == sorted(usual) else ["--workload", ",".join(names)]
        yield shlex.join([*start, *which, *words, *guest])


def _guest(preset: presets.Preset, name: str, memory: int, cpus: Sequence[int]) -> list[str]:
    """The options for a guest that differs from the workload's own, or from the preset's."""
    item = workload.select([name])[0] if name in workload.known() else None
    usual = preset.memory.get(name) if isinstance(preset.memory, Mapping) else preset.memory
    options = []
    if item is None or memory != (usual or item.memory):
        options += ["--memory", machine.format_memory(memory)]
    if item is None or tuple(cpus) != (preset.cpus or (item.cpus,)):
        options += ["--cpus", ",".join(map(str, cpus))]
    return options
