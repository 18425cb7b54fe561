# SPDX-License-Identifier: GPL-2.0-only
"""The commands that measure again what is in a result."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quell import compare, machine, workload


def commands(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Shell commands, in the repository's folder, for these results; each once."""
    out: list[str] = []
    versions = dict.fromkeys(d["environment"]["quell"] for d in documents)
    for version in versions:
        if len(versions) > 1:
            out.append(f"# with Quell {version}")
        commit = version.removesuffix("-dirty")
        if commit != "unknown":
            note = "  # the files had changes that are in no commit" if commit != version else ""
            out.append(f"git checkout {shlex.quote(commit)}{note}")
        for document in documents:
            if document["environment"]["quell"] == version:
                made = _ladder(document) if "cells" in document else _compare(document)
                out += [line for line in made if line not in out]
    return out


def _common(environment: Mapping[str, Any]) -> list[str]:
    """The options that compare and ladder share."""
    words = ["--runs", str(environment["runs"])]
    if environment["deterministic"]:
        return [*words, "--deterministic"]
    return [*words, "--accel", environment["accelerator"]["name"]]


def _compare(document: Mapping[str, Any]) -> Iterator[str]:
    environment = document["environment"]
    words = _common(environment)
    boot = environment["kernels"]["quell"]["boot_parameters"]
    if boot:
        words += [f"--quell-args={shlex.join(boot)}"]
    there = _known()
    alike: dict[tuple[str, ...], list[str]] = {}
    for comparison in document["comparisons"]:
        name = comparison["workload"]
        facts = environment["workloads"][name]
        memory = machine.format_memory(facts["memory_kb"] * 1024)
        if name == compare.OWN_COMMAND and facts["version"] is None:
            guest = ["--memory", memory, "--cpus", str(facts["cpus"])]
            yield shlex.join(["./quell", "compare", *words, *guest, "--", *facts["command"]])
            continue
        known = there.get(name)
        guest = []
        if known is None or known.memory != facts["memory_kb"] * 1024:
            guest += ["--memory", memory]
        if known is None or known.cpus != facts["cpus"]:
            guest += ["--cpus", str(facts["cpus"])]
        alike.setdefault(tuple(guest), []).append(name)
    for options, names in alike.items():
        yield shlex.join(["./quell", "compare", "--workload", ",".join(names), *words, *options])


def _known() -> dict[str, workload.Workload]:
    """The workloads that are here, by name."""
    return {name: workload.select([name])[0] for name in workload.known()}


def _ladder(document: Mapping[str, Any]) -> Iterator[str]:
    environment, there = document["environment"], _known()
    cpus: dict[str, list[int]] = {}
    for cell in document["cells"]:
        if cell["cpus"] not in cpus.setdefault(cell["workload"], []):
            cpus[cell["workload"]].append(cell["cpus"])
    scale = document["deterministic"] and any(len(counts) > 1 for counts in cpus.values())
    words = ["--scale", "--runs", str(environment["runs"])] if scale else _common(environment)
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, counts in cpus.items():
        memory = environment["workloads"][name]["memory_kb"] * 1024
        known = there.get(name)
        guest = []
        # With --scale some workloads have another size than their own.
        if scale or known is None or known.memory != memory:
            guest += ["--memory", machine.format_memory(memory)]
        if known is None or [known.cpus] != counts:
            guest += ["--cpus", ",".join(map(str, counts))]
        alike.setdefault(tuple(guest), []).append(name)
    for options, names in alike.items():
        yield shlex.join(["./quell", "ladder", "--workload", ",".join(names), *words, *options])
