# SPDX-License-Identifier: GPL-2.0-only
"""The user's own data and machine: disks of every file system, and ``compare --here`` in a guest."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from quell import build, disks, machine, prereq, source, stats, workload
from quell.checks import Case, CheckResult
from quell.errors import QuellError
from quell.paths import Cache, repo_root

# A guest takes one to four minutes, more on a busy host.
_TIMEOUT_S = 1500
_SWITCHES = "/sys/kernel/mm/quell"
# In a guest: the lab from the host's root, its cache in memory. One switch is not at its default.
_SETUP = (
    "export QUELL_CACHE=/dev/shm/quell PYTHONPATH={lab} PYTHONDONTWRITEBYTECODE=1\n"
    "here='{python} -P -m quell compare --here --quiet'\n"
    "state() {{ cat " + _SWITCHES + "/*/enabled | tr -d '\\n'; }}\n"
    "back() {{ [ $(state) = $before ] && echo back; }}\n"
    "echo 0 > " + _SWITCHES + "/early_ack/enabled; before=$(state)\n"
    "$here --runs 1 -- sh -c 'kill -SEGV $$' >/dev/null; echo crash $? $(back)\n"
)
# End the comparison once the switches have moved; a shell's background job ignores SIGINT.
_KILL = (
    "env --default-signal=INT $here -- sleep 99 & pid=$!\n"
    "while kill -0 $pid && [ $(state) = $before ]; do sleep 0.2; done\n"
    "kill -s {signal} $pid; wait $pid; echo {signal} $? $(back) $(pgrep -c sleep)\n"
)


def _data(cache: Cache, image: Path, temp: Path) -> list[Case]:
    """Each file system: the guest has a folder's content at the same path; its writes are discarded."""
    folder = temp / "own data"
    folder.mkdir()
    (folder / "file").write_bytes(bytes(range(256)) * 4096)
    (folder / "link").symlink_to("file")
    (folder / "file").chmod(0o640)
    wanted = f"ok {folder / 'file'} 640"
    script = (
        f"cd {shlex.quote(str(folder))} && cmp file {shlex.quote(str(temp / 'copy'))} && [ -L link ] && "
        "echo ok $PWD/file $(stat -c %a file) $(stat -f -c %T .); echo x > new 2>/dev/null; true"
    )
    (temp / "copy").write_bytes((folder / "file").read_bytes())
    cases = []
    for name in disks.MAKERS:
        # This folder is this run's alone: its image must not enter the cache that is kept.
        disk = disks.image_of(disks.parse_data(f"{folder}:{name}"), Cache(temp / "cache"))
        guest = machine.run_script(image, script, disks=[disk], timeout=_TIMEOUT_S, cache=cache)
        good = guest.stdout.startswith(wanted) and not (folder / "new").exists()
        cases.append(_case(f"--data on {name}", good, guest.stdout + guest.stderr))
    return cases


def _case(name: str, good: bool, why: str) -> Case:
    return Case(name) if good else Case(name, "failed", why)


def here(cache: Cache, image: Path, **how: Any) -> list[Case]:
    """A command without mm work shows no difference, mapped-read the known one; signals restore switches.

    ``how`` has further arguments for ``machine.run_script()``.
    """
    ready = workload.prepare(workload.select(["mapped-read"])[0], machine.parse_memory("96M"), cache, {"cpus": "2"})
    script = _SETUP.format(lab=shlex.quote(str(repo_root() / "lab")), python=sys.executable)
    script += "".join(_KILL.format(signal=name) for name in ("TERM", "INT"))
    script += "echo '#'; $here --json -- sh -c 'n=0; while [ $n -lt 1000 ]; do n=$((n+1)); done'; echo; echo '#'\n"
    script += f"$here --json -- {shlex.join(ready.argv)}\n"
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
    return [_case(name, good, detail + ends) for name, good in found.items()]


def _verdicts(result: dict[str, Any]) -> dict[str, str | None]:
    [one] = result["comparisons"]
    return {name: one["figures"][name]["against"]["on"]["verdict"] for name in one["matters"]}


def run(cache: Cache) -> CheckResult:
    """Check data on disks, then ``--here``; a guest that does not come up is a failed case."""
    prereq.ensure((*prereq.VM, *prereq.FILE_SYSTEMS))
    kernel = build.build_kernels(source.debian_source(cache), ("quell",), cache)["quell"]
    cases: list[Case] = []
    with tempfile.TemporaryDirectory(prefix="own-", dir=cache.folder("run")) as temp:
        parts = (partial(_data, cache, kernel.image, Path(temp)), partial(here, cache, kernel.image))
        for part in parts:
            try:
                cases += part()
            except QuellError as error:
                cases.append(Case(error.message, "failed", f"{error.detail}\nlog: {error.log}"))
    details = "\n".join(f"not ok: {case.name}\n{case.why}" for case in cases if case.status == "failed")
    return CheckResult.of(cases, details)
