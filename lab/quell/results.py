# SPDX-License-Identifier: GPL-2.0-only
"""Results of comparisons: their form (docs/reading-the-numbers.md), their folders, reading and writing."""

import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
    "schema": Literal["quell.results/2"], "preset": str, "environment": _Environment, "sides": list[_Side],
    "comparisons": list[_Comparison], "published": list[_Published], "notes": list[str],
})  # fmt: skip


def load(path: Path) -> dict[str, Any]:
    """A result from its file or folder; QuellError when it cannot be read, or is none of this form."""
    import msgspec

    file = path / FILE if path.is_dir() else path
    try:
        found: dict[str, Any] = msgspec.json.decode(file.read_bytes())
        msgspec.convert(found, Result)
    except OSError as error:
        raise QuellError(f"the result {file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise QuellError(f"{file} is no result of this version ({SCHEMA}): {error}") from error
    return found


def kept(cache: Cache) -> Iterator[dict[str, Any]]:
    """The complete results in the cache, newest first; those of other versions are left out."""
    for file in sorted(cache.results.glob(f"*/{FILE}"), reverse=True):
        with suppress(QuellError):
            yield load(file)


def find(names: Sequence[str], cache: Cache) -> list[dict[str, Any]]:
    """The results in these files, folders, or names of the cache; without names the newest ones of ``_REPORTED``.

    UsageError when there is none, QuellError when one cannot be read.
    """
    if names:
        return [load(path if (path := Path(name)).exists() else cache.results / name) for name in names]
    newest: dict[str, dict[str, Any]] = {}
    for result in kept(cache):
        newest.setdefault(result["preset"], result)
    found = [newest[preset] for preset in _REPORTED if preset in newest]
    if not found:
        raise UsageError("there are no results of compare or ladder yet; ./quell compare makes them")
    return found


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
