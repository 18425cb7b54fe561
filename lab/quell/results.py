# SPDX-License-Identifier: GPL-2.0-only
"""Results of comparisons: their form (docs/reading-the-numbers.md), their folders, reading and writing."""

import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypedDict

from quell import machine, version
from quell.errors import QuellError, UsageError
from quell.paths import Cache, require_space, write_atomic

# Raised with every incompatible change of the form.
SCHEMA = "quell.results/2"
FILE = "result.json"

# A report without names has the newest result of each of these presets.
_REPORTED = ("compare", "ladder", "scale")

TIMES = {
    "kvm": "times are those of this machine's CPU",
    "tcg": "times are emulated: only their direction means something; counts carry over",
    "deterministic": "times are guest instructions, one per ns, on a RAM disk: work, not seconds",
    "here": "times are this machine's",
}


class ResultError(QuellError):
    """A kept result cannot be read."""


@contextmanager
def new_folder(cache: Cache) -> Iterator[Path]:
    """A new folder for a result, named by the time (UTC).

    The folder is removed when the comparison is interrupted, and stays when a run fails.
    """
    require_space(cache.results, 64 << 20, "keeping the result")
    folder = cache.results / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    folder.mkdir()
    try:
        yield folder
    except (KeyboardInterrupt, OSError, UsageError):
        shutil.rmtree(folder, ignore_errors=True)
        raise


def save(folder: Path, result: Mapping[str, Any]) -> None:
    """Write ``result`` into ``folder``, whole or not at all."""
    write_atomic(folder / FILE, json.dumps(result, indent=1, allow_nan=False) + "\n")


# --- reading ----------------------------------------------------------------

_Accelerator = TypedDict("_Accelerator", {"name": str, "reason": str, "times": str})
_Host = TypedDict("_Host", {"cpu": str, "cpus": int, "kernel": str, "memory_kb": int})
_Summary = TypedDict("_Summary", {"median": float, "min": float, "max": float, "runs": list[float]})
_Against = TypedDict("_Against", {"ratio": float | None, "p": float | None, "verdict": str | None})
_Ends = TypedDict("_Ends", {"from": float | None, "to": float | None, "ratio": float | None})
_Figure = TypedDict("_Figure", {
    "title": str, "unit": str, "better": Literal["less", "more"], "source": Literal["metric", "counter", "program"],
    "carries_over": bool, "sides": dict[str, _Summary | None], "against": dict[str, _Against],
})  # fmt: skip
_Side = TypedDict("_Side", {
    "name": str, "title": str, "kernel": str, "parameters": list[str], "release": str, "config_hash": str, "key": str,
})  # fmt: skip
_Comparison = TypedDict("_Comparison", {
    "name": str, "workload": str, "summary": str, "version": int | None, "cpus": int, "memory_kb": int,
    "command": list[str], "options": list[str], "figures": dict[str, _Figure], "matters": list[str],
    "shown": list[str], "exit_codes": dict[str, list[int]], "notes": list[str],
})  # fmt: skip
_Published = TypedDict("_Published", {
    "id": str, "work": str, "source": str, "conditions": str, "workload": str, "cpus": int, "figure": str,
    "from": str, "to": str, "theirs": _Ends, "ours": _Ends, "direction": Literal["agrees", "opposite", "none"], "why": str,
})  # fmt: skip
_Environment = TypedDict("_Environment", {
    "date": str, "quell": str, "series_hash": str, "kernel_source": str, "accelerator": _Accelerator, "deterministic": bool,
    "runs": int, "qemu": str, "compiler": str, "host": _Host,
})  # fmt: skip
Result = TypedDict("Result", {
    "schema": str, "preset": str, "environment": _Environment, "sides": list[_Side],
    "comparisons": list[_Comparison], "published": list[_Published], "notes": list[str],
})  # fmt: skip


def load(path: Path) -> dict[str, Any]:
    """A result from its file or folder.

    ResultError when the file cannot be read, is no result, is damaged, or is of another version.
    """
    file = path / FILE if path.is_dir() else path
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        json.dumps(found, allow_nan=False)
    except OSError as error:
        raise ResultError(f"the result {file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{file} is no JSON: {error}") from error
    given = found.get("schema") if isinstance(found, dict) else None
    if not isinstance(given, str) or not re.fullmatch(r"quell\.results/\d+", given):
        raise ResultError(f"{file} is no result of quell compare")
    if given != SCHEMA:
        raise ResultError(
            f"{file} has the form {given} of another version, this quell reads {SCHEMA} only; measure again"
        )
    if fault := fault_of(found):
        raise ResultError(f"{file} is damaged: {fault}")
    return dict(found)


def fault_of(found: Mapping[str, Any]) -> str:
    """The first error in ``found``; empty for a whole result."""
    import msgspec
    try:
        msgspec.convert(found, Result)
    except msgspec.ValidationError as error:
        return str(error)
    host, comparisons = found["environment"]["host"], found["comparisons"]
    counts = [host["cpus"], host["memory_kb"], *(one[key] for one in comparisons for key in ("cpus", "memory_kb"))]
    codes = [abs(code) for one in comparisons for runs in one["exit_codes"].values() for code in runs]
    if min(counts) < 1 or max(*counts, *codes) > 1 << 53:
        return "it has a count that is none"
    sides = [side["name"] for side in found["sides"]]
    if len(sides) < 2 or len({*sides}) < len(sides) or not found["comparisons"]:
        return "it compares nothing"
    for comparison in found["comparisons"]:
        figures = comparison["figures"]
        for name in (*comparison["shown"], *comparison["matters"]):
            if name not in figures:
                return f"it has no figure {name!r}"
        for figure in figures.values():
            if set(figure["sides"]) != set(sides) or any(side and not side["runs"] for side in figure["sides"].values()):
                return "its figures are not those of its sides"
    return ""


def _folders(cache: Cache) -> list[Path]:
    """The folders with a result, newest first."""
    return [file.parent for file in sorted(cache.results.glob(f"*/{FILE}"), reverse=True)]


def kept(cache: Cache) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folders and contents of the cache's complete results, newest first."""
    for folder in _folders(cache):
        try:
            result = load(folder)
        except ResultError:
            continue
        yield folder, result


def find(names: Sequence[str], cache: Cache) -> list[dict[str, Any]]:
    """The results in these files, folders, or names of the cache; without names the newest ones of ``_REPORTED``.

    UsageError when there is none, ResultError when one cannot be read.
    """
    if names:
        return [load(_path(name, cache)) for name in names]
    newest: dict[str, dict[str, Any]] = {}
    for _, result in kept(cache):
        newest.setdefault(result["preset"], result)
    if found := [newest[preset] for preset in _REPORTED if preset in newest]:
        return found
    for folder in _folders(cache):
        return [load(folder)]  # of another preset; or its error
    raise UsageError("there are no results yet; ./quell compare makes them")


def _path(name: str, cache: Cache) -> Path:
    path = Path(name)
    if not path.exists() and "/" not in name:
        path = cache.results / name
    if not path.exists():
        raise UsageError(f"there is no result {name}: neither a file or folder, nor a name in {cache.results}")
    return path


def environment(
    *, source: str, accelerator: Mapping[str, str], deterministic: bool, runs: int, qemu: str, compiler: str
) -> dict[str, Any]:
    """The conditions of a result, without its sides and workloads.

    ``source`` is the version of Linux, ``accelerator`` its ``name`` and ``reason``.
    """
    times = TIMES["deterministic" if deterministic else accelerator["name"]]
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "quell": version.quell(), "series_hash": version.series_hash(), "kernel_source": source,
        "accelerator": {**accelerator, "times": times},
        "deterministic": deterministic, "runs": runs, "qemu": qemu, "compiler": compiler,
        "host": {
            "cpu": machine.host_cpu(), "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "memory_kb": machine.host_memory() // 1024,
        },
    }  # fmt: skip
