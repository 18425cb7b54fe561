# SPDX-License-Identifier: GPL-2.0-only
"""Kept results: one folder per comparison, its result.json described in docs/results.md."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quell import machine, workload
from quell.errors import QuellError
from quell.paths import Cache, repo_root, write_atomic

# Raised with every change that a reader of the old form would misread.
VERSION = 1
SCHEMA = f"quell.results/{VERSION}"

TIMES = {
    "kvm": "times are those of this machine's CPU",
    "tcg": "times are emulated: only their direction means something; counts carry over",
    "deterministic": "times are guest instructions, one per ns, on a RAM disk: work, not seconds",
}


class ResultError(QuellError):
    """A kept result cannot be read."""


def new_folder(cache: Cache) -> Path:
    """A new folder under the cache's results, named by the time (UTC)."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1, 1000):
        folder = cache.results / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            continue
    raise QuellError(f"no folder for the result can be made in {cache.results}")


def save(folder: Path, result: Mapping[str, Any], name: str = "result.json") -> Path:
    """Write ``result`` as the file ``name`` in ``folder``, whole or not at all."""
    path = folder / name
    write_atomic(path, json.dumps(result, indent=1) + "\n")
    return path


def load(path: Path) -> dict[str, Any]:
    """A result from its file or folder.

    ResultError when it cannot be read, is no result, or is of another version.
    """
    file = path / "result.json" if path.is_dir() else path
    parts = {"environment": dict, "comparisons": list}
    return read(file, "result", SCHEMA, "quell compare", parts)


def read(
    file: Path, what: str, schema: str, command: str, parts: Mapping[str, type]
) -> dict[str, Any]:
    """What ``command`` wrote to ``file``: an object of this ``schema`` ("NAME/VERSION").

    ``parts`` are keys that it must have, by type. ResultError, which calls it
    ``what``, when it cannot be read, is something else, or of another version.
    """
    name, _, version = schema.partition("/")
    try:
        found = json.loads(file.read_text())
    except OSError as error:
        raise ResultError(f"the {what} {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ResultError(f"{file} is no JSON: {error}") from error
    given = found.get("schema") if isinstance(found, dict) else None
    match = re.fullmatch(rf"{re.escape(name)}/(\d+)", given) if isinstance(given, str) else None
    if not match:
        raise ResultError(f"{file} is no result of {command}")
    if match[1] != version:
        raise ResultError(
            f"{file} has version {match[1]} of the {what} format, "
            f"but this quell reads version {version} only"
        )
    for key, kind in parts.items():
        if not isinstance(found.get(key), kind):
            raise ResultError(f"{file} is damaged: it has no {key}")
    return dict(found)


def latest(cache: Cache) -> Path | None:
    """The newest folder with a complete result, or None."""
    found = sorted(path.parent for path in cache.results.glob("*/result.json"))
    return found[-1] if found else None


def series_hash(kernel: Path | None = None) -> str:
    """A hash of everything in kernel/ (patches, files, configs): what makes Quell Quell."""
    folder = kernel or repo_root() / "kernel"
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def quell_version() -> str:
    """What git calls the repository's state (with "-dirty" if edited), or "unknown"."""
    try:
        done = subprocess.run(
            ["git", "-C", str(repo_root()), "describe", "--always", "--dirty", "--tags"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 and done.stdout.strip() else "unknown"


def host() -> dict[str, Any]:
    """The machine that the guests ran on."""
    return {
        "cpu": machine.host_cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "memory_kb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024,
    }


def environment(
    *,
    kernels: Mapping[str, Any],
    accelerator: machine.Accelerator,
    deterministic: bool,
    runs: int,
    boot_parameters: Mapping[str, list[str]],
    workloads: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Everything that made a result, in the form of docs/results.md.

    ``kernels`` maps "stock" and "quell" to build.Kernel; ``workloads`` each
    workload's name to its version, CPUs, memory and command.
    """
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quell": quell_version(),
        "series_hash": series_hash(),
        "kernel_source": next(iter(kernels.values())).source_version,
        "kernels": {
            name: {
                "release": kernel.release,
                "config_hash": kernel.config_hash,
                "key": kernel.key,
                "boot_parameters": boot_parameters.get(name, []),
            }
            for name, kernel in kernels.items()
        },
        "accelerator": {
            "name": accelerator.name,
            "reason": accelerator.reason,
            "times": TIMES["deterministic" if deterministic else accelerator.name],
        },
        "deterministic": deterministic,
        "runs": runs,
        "workloads": {name: dict(facts) for name, facts in workloads.items()},
        "qemu": machine.qemu_version(),
        "compiler": workload.compiler_version(),
        "host": host(),
    }
