# SPDX-License-Identifier: GPL-2.0-only
"""Check the Promela models of the kernel part with spin.

``models/runs.toml`` lists the runs. Each explores all states. An intact model must
pass; with a barrier or check removed (a define ``NO_...``) spin must find a
violation. At least one run must reach each statement.
"""

import os
import re
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from checks.cases import Case, Results, text_of
from quell import prereq, proc
from quell.errors import QuellError
from quell.paths import repo_root

pytestmark = pytest.mark.models

RUNS = "runs.toml"
# On a quiet machine no search takes 30 s.
_SEARCH_S = 300
_MEMORY_MB = 2000
# A longer path cuts the search short; pan reports that, and the check fails.
_DEPTH = 1_000_000
_CC = ("gcc", "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", f"-DMEMLIM={_MEMORY_MB}")


@dataclass(frozen=True)
class Run:
    """One ``[[run]]`` of runs.toml."""

    name: str
    model: str
    defines: tuple[str, ...] = ()
    removals: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()


@dataclass(frozen=True)
class Search:
    """Result of a search: the first violation ("" if none), completeness, states.

    ``unreached`` counts the unreached instances of each statement: a statement of an
    inline has several.
    """

    violation: str
    complete: bool
    states: int
    unreached: Counter[str]


def read_runs(text: str) -> list[Run]:
    """The runs of runs.toml; QuellError if it is malformed."""
    try:
        return [
            Run(
                table["name"],
                table["model"],
                **{key: tuple(table[key]) for key in table.keys() - {"name", "model"}},
            )
            for table in tomllib.loads(text)["run"]
        ]
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise QuellError(f"{RUNS} of the models cannot be used: {error}") from error


def unlisted(runs: Sequence[Run], sources: Sequence[str]) -> list[str]:
    """The defines ``NO_...`` in the models' sources that no run lists."""
    removable = {name for text in sources for name in re.findall(r"\bNO_[A-Z0-9_]+\b", text)}
    listed = {name for run in runs for name in (*run.removals, *run.spare)}
    return sorted(removable - listed)


def read_search(output: str) -> Search:
    """Read pan's output."""
    found = re.search(r"^pan:\d+: (.*)", output, re.MULTILINE)
    states = re.search(r"^\s*(\d+) states, stored", output, re.MULTILINE)
    errors = re.search(r"errors: (\d+)", output)
    cut = ("Search not completed", "max search depth too small", "reached -DMEMLIM", "out of memory")
    unreached = re.findall(r'^\t\S+?:\d+, state \d+, "(.*)"$', output, re.MULTILINE)
    return Search(
        violation=found[1] if found else "",
        complete=errors is not None and not any(sign in output for sign in cut),
        states=int(states[1]) if states else 0,
        unreached=Counter(unreached),
    )


def statements(output: str) -> Counter[str]:
    """The instances of each statement, from the output of ``pan -d``."""
    # By their text: spin's line numbers depend on the defines. The text of a D_STEP has line numbers.
    found = re.findall(r"\] \S+?:\d+ => (.*)$", output, re.MULTILINE)
    return Counter(what for what in found if not re.match("-end-|D_STEP", what))


def dead(searched: Sequence[tuple[Search, Counter[str]]]) -> list[str]:
    """The statements that no complete search reached."""
    all_of: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    for result, have in searched:
        if result.complete:
            all_of += have
            reached += have - result.unreached
    return sorted(all_of.keys() - reached.keys())


def search(folder: Path, run: Run, extra: str, temp: Path) -> tuple[Search, Counter[str]]:
    """Explore a model, with the define ``extra`` unless it is empty; the result and its statements.

    QuellError if spin or gcc reject it, or it does not end.
    """
    defines = [f"-D{name}" for name in (*run.defines, *([extra] if extra else []))]
    with tempfile.TemporaryDirectory(dir=temp) as where:
        spin = proc.run(["spin", *defines, "-a", folder / run.model], cwd=Path(where), timeout=60, check=False)
        said = spin.stdout + spin.stderr
        if spin.returncode != 0 or "Error" in said:
            raise QuellError(f"spin does not take {run.model}", detail=said)
        proc.run([*_CC, "-o", "pan", "pan.c"], cwd=Path(where), timeout=_SEARCH_S)
        pan = proc.run(["./pan", f"-m{_DEPTH}", "-w22"], cwd=Path(where), timeout=_SEARCH_S, check=False)
        listed = proc.run(["./pan", "-d"], cwd=Path(where), timeout=60, check=False)
        return read_search(pan.stdout + pan.stderr), statements(listed.stdout)


def judge(run: Run, extra: str, result: Search) -> str:
    """The error in a result; "" if none."""
    if extra in run.removals:
        return "" if result.violation else "spin finds no violation"
    if result.violation:
        return result.violation
    if not result.complete:
        return "the search did not cover all states"
    return ""


def _check(folder: Path, temp: Path, run: Run, extra: str = "") -> tuple[Case, tuple[Search, Counter[str]] | None]:
    """One search; None instead of its result if it could not run."""
    name = " ".join(filter(None, (run.name, extra)))
    try:
        searched = search(folder, run, extra, temp)
    except QuellError as error:
        return Case(name, "failed", text_of(error)), None
    result = searched[0]
    if wrong := judge(run, extra, result):
        return Case(name, "failed", f"{wrong} ({result.states} states)"), searched
    how = f"caught: {result.violation}" if result.violation else "holds"
    return Case(name, said=f"{name}: {how} ({result.states} states)"), searched


def test_models(results: Results, folder: Path) -> None:
    """Run all; skip the removals of a run whose intact model fails."""
    prereq.ensure(prereq.MODELS)
    models = repo_root() / "models"
    runs = read_runs((models / RUNS).read_text())
    sources = [path.read_text() for path in sorted(models.glob("*.pml"))]
    wrong = [f"{RUNS} does not list the removal of {name}" for name in unlisted(runs, sources)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        intact = list(pool.map(lambda one: _check(models, folder, one), runs))
        results.add(*(case for case, _ in intact))
        good = {one.name for one, (case, _) in zip(runs, intact, strict=True) if case.status == "passed"}
        jobs = [(one, extra) for one in runs for extra in (*one.removals, *one.spare)]
        for one, extra in jobs:
            if one.name not in good:
                results.skip(f"{one.name} {extra}", "the intact model fails")
        todo = [job for job in jobs if job[0].name in good]
        results.add(*(case for case, _ in pool.map(lambda job: _check(models, folder, *job), todo)))
    wrong += [f"no run reaches: {statement}" for statement in dead([found for _, found in intact if found])]
    results.check(not wrong, "all removals are listed, all statements reached", "\n".join(wrong))
