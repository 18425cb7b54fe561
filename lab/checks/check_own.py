# SPDX-License-Identifier: GPL-2.0-only
"""The user's own data and machine: disks of every file system, and ``compare --here`` in a guest."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from checks import scenario
from checks.cases import Case, Results
from quell import build, disks, machine, prereq, source, stats, workload
from quell.paths import Cache, repo_root

# A guest takes one to four minutes, more on a busy host.
_TIMEOUT_S = 1500


@pytest.fixture(scope="module")
def image(origin: source.Source, cache: Cache) -> Path:
    """The Quell kernel."""
    prereq.ensure((*prereq.VM, *prereq.FILE_SYSTEMS))
    return build.build_kernels(origin, ("quell",), cache)["quell"].image


@pytest.mark.parametrize("file_system", disks.FILE_SYSTEMS)
def test_data(file_system: str, image: Path, folder: Path, cache: Cache) -> None:
    """The guest has a folder's content at the same path; its writes are discarded."""
    own = folder / "own data"
    own.mkdir()
    (own / "file").write_bytes(bytes(range(256)) * 4096)
    (own / "link").symlink_to("file")
    (own / "file").chmod(0o640)
    (folder / "copy").write_bytes((own / "file").read_bytes())
    script = (
        f"cd {shlex.quote(str(own))} && cmp file {shlex.quote(str(folder / 'copy'))} && [ -L link ] && "
        "echo ok $PWD/file $(stat -c %a file) $(stat -f -c %T .); echo x > new 2>/dev/null; true"
    )
    # This folder is this run's alone: its image must not enter the cache that is kept.
    disk = disks.image_of(disks.parse_data(f"{own}:{file_system}"), Cache(folder / "cache"))
    guest = machine.run_script(image, script, disks=[disk], timeout=_TIMEOUT_S, cache=cache)
    assert guest.stdout.startswith(f"ok {own / 'file'} 640"), guest.stdout + guest.stderr
    assert not (own / "new").exists()


def here(cache: Cache, image: Path, **how: Any) -> list[Case]:
    """A command without mm work shows no difference, mapped-read the known one; signals restore switches.

    ``how`` has further arguments for ``machine.run_script()``.
    """
    ready = workload.prepare(workload.select(["mapped-read"])[0], machine.parse_memory("96M"), cache, {"cpus": "2"})
    script = scenario.shell(
        "here.sh", LAB=shlex.quote(str(repo_root() / "lab")), PYTHON=sys.executable, WORK=shlex.join(ready.argv)
    )
    guest = machine.run_script(
        image, script, data=ready.data, stage=ready.programs, cache=cache,
        **{"memory": "256M", "timeout": _TIMEOUT_S, **how},
    )  # fmt: skip
    try:
        ends, nothing, mapped = guest.stdout.split("\n#\n")
        verdicts = [_verdicts(json.loads(text)) for text in (nothing, mapped)]
    except ValueError:
        return [Case("compare --here in a guest", "failed", guest.stdout + guest.stderr)]
    detail = f"{verdicts}\n{guest.stderr}"
    # A distribution's kernel has no counter of flush requests.
    fewer = "flush_requests" if "flush_requests" in verdicts[1] else "shootdown_ipis"
    found = {
        # Time is left out: one comparison of equal sides in twenty may have a verdict. Counts have
        # none where all runs last equally long.
        "--here: a command that changes nothing shows no difference": all(
            verdicts[0].get(name, stats.SAME) == stats.SAME
            for name in ("flush_requests", "shootdown_ipis", "peak_memory_kb")
        ),
        # Per page if its sides took the same time and did different work.
        f"--here: mapped-read has fewer {fewer.replace('_', ' ')}": stats.BETTER in (
            verdicts[1].get(fewer), verdicts[1].get(f"{fewer}_per_pages")
        ),
        "--here: switches are back after a crash": "crash 139 back\n" in ends,
        "--here: switches are back after SIGTERM": "TERM 130 back 0" in ends,
        "--here: switches are back after Ctrl-C": "INT 130 back 0" in ends,
    }
    return [Case(name, "passed" if good else "failed", "" if good else detail + ends) for name, good in found.items()]


def _verdicts(result: dict[str, Any]) -> dict[str, str | None]:
    [one] = result["comparisons"]
    return {name: one["figures"][name]["against"]["on"]["verdict"] for name in one["matters"]}


def test_here(results: Results, image: Path, cache: Cache) -> None:
    """``compare --here`` in a guest."""
    results.add(*here(cache, image))
