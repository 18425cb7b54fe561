# SPDX-License-Identifier: GPL-2.0-only
"""Check the Promela models of the kernel part with spin.

``models/runs.toml`` lists the runs. Each explores all states. An intact model must
pass; with a barrier or check removed (a define ``NO_...``) spin must find a
violation. At least one run must reach each statement.
"""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from checks import scenario
from checks.cases import Case, Results, text_of
from quell import prereq, proc
from quell.errors import QuellError
from quell.paths import repo_root

MODELS = repo_root() / "models"
# On a quiet machine no search takes 30 s.
_SEARCH_S = 300
_MEMORY_MB = 2000
# A longer path cuts the search short; pan reports that, and the check fails.
_DEPTH = 1_000_000
_CC = ("gcc", "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", f"-DMEMLIM={_MEMORY_MB}")


class Run(scenario.Row, frozen=True):
    """One ``[[run]]`` of runs.toml."""

    name: str
    model: str
    defines: tuple[str, ...] = ()
    removals: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()


class _Table(scenario.Row, frozen=True):
    run: tuple[Run, ...]


RUNS = scenario.table(MODELS / "runs.toml", _Table).run


@dataclass(frozen=True)
class Search:
    """Result of a search: the first violation ("" if none), completeness, states.

    ``instances`` counts those of each statement (one of an inline has several), ``unreached`` the
    unreached ones.
    """

    violation: str
    complete: bool
    states: int
    instances: Counter[str]
    unreached: Counter[str]


def unlisted(runs: Sequence[Run], sources: Iterable[str]) -> list[str]:
    """The defines ``NO_...`` in the models' sources that no run lists."""
    removable = {name for text in sources for name in re.findall(r"\bNO_[A-Z0-9_]+\b", text)}
    return sorted(removable - {name for run in runs for name in (*run.removals, *run.spare)})


def read_search(output: str, statements: str) -> Search:
    """Read the output of pan and of ``pan -d``."""
    found = re.search(r"^pan:\d+: (.*)", output, re.M)
    states = re.search(r"^\s*(\d+) states, stored", output, re.M)
    cut = ("Search not completed", "max search depth too small", "reached -DMEMLIM", "out of memory")
    # By their text: spin's line numbers depend on the defines. The text of a D_STEP has line numbers.
    instances = re.findall(r"\] \S+?:\d+ => (?!-end-|D_STEP)(.*)$", statements, re.M)
    return Search(
        violation=found[1] if found else "",
        complete="errors: " in output and not any(sign in output for sign in cut),
        states=int(states[1]) if states else 0,
        instances=Counter(instances),
        unreached=Counter(re.findall(r'^\t\S+?:\d+, state \d+, "(.*)"$', output, re.M)),
    )


def dead(searches: Iterable[Search]) -> list[str]:
    """The statements that no complete search reached."""
    complete = [one for one in searches if one.complete]
    reached = {what for one in complete for what in one.instances - one.unreached}
    return sorted({what for one in complete for what in one.instances} - reached)


def search(run: Run, extra: str, temp: Path) -> Search:
    """Explore a model, with the define ``extra`` unless it is empty.

    QuellError if spin or gcc reject it, or it does not end.
    """
    defines = [f"-D{name}" for name in (*run.defines, *filter(None, [extra]))]
    with tempfile.TemporaryDirectory(dir=temp) as name:
        where = Path(name)
        spin = proc.run(["spin", *defines, "-a", MODELS / run.model], cwd=where, timeout=60, check=False)
        said = spin.stdout + spin.stderr
        if spin.returncode != 0 or "Error" in said:
            raise QuellError(f"spin does not take {run.model}", detail=said)
        proc.run([*_CC, "-o", "pan", "pan.c"], cwd=where, timeout=_SEARCH_S)
        pan = proc.run(["./pan", f"-m{_DEPTH}", "-w22"], cwd=where, timeout=_SEARCH_S, check=False)
        listed = proc.run(["./pan", "-d"], cwd=where, timeout=60, check=False)
        return read_search(pan.stdout + pan.stderr, listed.stdout)


def judge(run: Run, extra: str, result: Search) -> str:
    """The error in a result; "" if none."""
    if extra in run.removals:
        return "" if result.violation else "spin finds no violation"
    return result.violation or ("" if result.complete else "the search did not cover all states")


def _check(temp: Path, run: Run, extra: str = "") -> tuple[Case, Search | None]:
    """One search; None instead of its result if it could not run."""
    name = f"{run.name} {extra}".strip()
    try:
        result = search(run, extra, temp)
    except QuellError as error:
        return Case(name, "failed", text_of(error)), None
    if wrong := judge(run, extra, result):
        return Case(name, "failed", f"{wrong} ({result.states} states)"), result
    how = f"caught: {result.violation}" if result.violation else "holds"
    return Case(name, said=f"{name}: {how} ({result.states} states)"), result


def test_models(results: Results, folder: Path) -> None:
    """Run all; skip the removals of a run whose intact model fails."""
    prereq.ensure(prereq.MODELS)
    unknown = unlisted(RUNS, (path.read_text() for path in MODELS.glob("*.pml")))
    wrong = [f"no run lists the removal of {name}" for name in unknown]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        intact = list(pool.map(lambda run: _check(folder, run), RUNS))
        results.add(*(case for case, _ in intact))
        good = [run for run, (case, _) in zip(RUNS, intact, strict=True) if case.status == "passed"]
        for run in RUNS:
            if run not in good:
                results.skip(f"{run.name}, with removals", "the intact model fails")
        jobs = [(run, extra) for run in good for extra in (*run.removals, *run.spare)]
        results.add(*(case for case, _ in pool.map(lambda job: _check(folder, *job), jobs)))
    wrong += [f"no run reaches: {statement}" for statement in dead(found for _, found in intact if found)]
    results.check(not wrong, "all removals are listed, all statements reached", "\n".join(wrong))
