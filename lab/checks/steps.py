# SPDX-License-Identifier: GPL-2.0-only
"""Steps: programs that a guest runs one after the other, and their results.

For the parts that run many programs in VMs. A step has its own time limit and its own
session, so that all its processes can be killed. If a step kills the guest, the next one
runs in a new guest.
"""

import math
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from checks import scenario
from checks.cases import Case
from quell import machine, proc, procfs, watch
from quell.errors import QuellError, UsageError
from quell.paths import Cache

# Seconds beyond its limit after which a step that cannot be killed brings the guest down.
_OVERDUE_S = 25
_BOOT_S = 60
# With fewer deferred pages lazy unmap flush was hardly at work, and the case tested nothing.
_LEAST_PARKED = 200


@dataclass(frozen=True)
class Step:
    """A command for the guest's shell.

    ``limit`` is in seconds. ``before`` is shell, run first, without limit and output; the command
    runs in its current folder.
    """

    name: str
    command: str
    limit: int
    before: str = ""


@dataclass(frozen=True)
class Said:
    """Result of a step.

    ``status`` is pass, skip (exit code 4), fail, timeout, crash (the guest's kernel died), hang
    (the step could not be killed) or signal N. ``text`` is its output, ``log`` the kernel's log
    meanwhile. ``seconds`` are the guest's. ``parked`` counts the pages that lazy unmap flush
    deferred meanwhile, ``stolen`` those that reclaim freed. All three are 0 if the step did not end.
    """

    status: str
    text: str = ""
    log: str = ""
    seconds: float = 0.0
    parked: int = 0
    stolen: int = 0

    def whole(self) -> str:
        """The status and all output, for a log."""
        return f"{self.status}\n{self.text}\n--- kernel log\n{self.log}"


def patience() -> int:
    """Factor by which limits grow on a busy host."""
    return min(3, max(1, math.ceil(os.getloadavg()[0] / (os.cpu_count() or 1))))


def script(steps: Sequence[Step], setup: str = "", times: int = 1) -> str:
    """The guest's script: ``setup``, then each step for at most ``times`` its limit."""
    lines = [
        f"run {shlex.join([str(number), str(step.limit * times), step.before, step.command])}"
        for number, step in enumerate(steps)
    ]
    return scenario.shell("steps.sh", SETUP=setup, OVERDUE=_OVERDUE_S, STEPS="\n".join(lines))


def read_status(code: int) -> str:
    """The status for a step's exit code, as the guest's timeout(1) and shell pass it on."""
    if code == 124:
        return "timeout"
    if code > 128:
        return f"signal {code - 128}"
    return {0: "pass", 4: "skip"}.get(code, "fail")


_SAID = re.compile(r"\n?@quell begin (\d+)\n(.*?)(?:\n@quell end \1 (\d+)((?: [\d.]+)*)\n|\Z)", re.S)
_LOGGED = re.compile(r"quell step (\d+)$", re.M)
# Lockup reports are ignored: a slow host stalls a guest's CPU. Lockdep writes WARNING too, or INFO
# for a possible deadlock.
_COMPLAINT = re.compile(
    r"WARNING: |BUG: (?!soft lockup|workqueue lockup)|\bOops\b|Kernel panic|general protection fault"
    r"|VIOLATION: |pagealloc: |INFO: (?:possible|trying to register)|EXT4-fs error"
)


def complaints(log: str) -> list[str]:
    """The lines of a kernel's log that a sound kernel does not write."""
    lines = log.replace("\r", "").splitlines()
    return [line.strip() for line in lines if _COMPLAINT.search(line)]


def judge(name: str, said: Said, wrong: Sequence[str], idle: Sequence[str], row: str, expected: str = "") -> Case:
    """The case of a step beside which lazy unmap flush has to defer pages.

    ``wrong`` are the errors in its output, ``idle`` the reasons why it tested nothing; ``expected``
    matches complaints of the kernel that belong to it.
    """
    why = list(wrong)
    if said.status != "pass" and not why:
        why.append(f"{said.status}: {proc.tail(said.text, 3)}")
    why += [text for text in complaints(said.log) if not (expected and re.search(expected, text))]
    if not why:
        why += idle
    if not why and said.parked < _LEAST_PARKED:
        why.append(f"only {said.parked} pages were deferred: lazy unmap flush was not at work")
    status = "failed" if why else "passed"
    return Case(name, status, "\n".join(why), said.seconds, f"{row}, {said.parked} pages deferred")


def read(stdout: str, console: str, steps: Sequence[Step]) -> dict[str, Said]:
    """Read a guest's output for each of ``steps`` that began, by name.

    A step without an end killed the guest: its status is crash. It is hang if the guest's own
    watchdog ended it, or nothing did.
    """
    console = console.replace("\r", "")
    logs = _LOGGED.split(console)
    kernel = {int(number): said for number, said in zip(logs[1::2], logs[2::2], strict=True)}
    found = {}
    for number, text, code, figures in _SAID.findall(stdout):
        log = kernel.get(int(number), "")
        if code:
            status = read_status(int(code))
        else:
            status = "crash" if watch.find_oops(log) and "sysrq: Trigger" not in log else "hang"
        said = Said(status, text, log)
        if len(words := figures.split()) == 6:
            seconds, parked, stolen = (
                float(after) - float(before)
                for before, after in zip(words[:3], words[3:], strict=True)
            )
            said = replace(said, seconds=seconds, parked=int(parked), stolen=int(stolen))
        found[steps[int(number)].name] = said
    return found


def boot(
    kernel: str,
    image: Path,
    guest: machine.Machine,
    steps: Sequence[Step],
    cache: Cache,
    *,
    setup: str = "",
    data: Path | None = None,
    stage: Sequence[Path] = (),
) -> dict[str, Said]:
    """Run ``steps`` in one guest until it ends; ``guest`` lacks only its accelerator.

    QuellError if the first step does not begin. ``kernel`` is the name of ``image``.
    """
    times = patience()
    guest = replace(guest, accel=machine.choose_accelerator("auto", image, cache).name)
    job = machine.Job(["/bin/sh", "-c", script(steps, setup, times)], data=data, stage=stage)
    limit = _BOOT_S + sum(step.limit * times + _OVERDUE_S for step in steps)
    with cache.scratch("steps") as rundir:
        failed = QuellError(f"the {kernel} kernel did not begin {steps[0].name}", log=rundir / "console.log")
        try:
            machine.boot(
                guest, image, job, rundir, cache=cache, timeout=limit, fail_on_oops=False,
                boot_timeout=machine.BOOT_TIMEOUT_S[guest.accel] * times,
            )  # fmt: skip
        except UsageError:
            raise
        except QuellError as error:
            # Results up to the error still count.
            failed = error
        found = read(procfs.read(rundir / "stdout"), procfs.read(rundir / "console.log"), steps)
        if not found:
            failed.log = machine.save_log(failed.log, cache)
            raise failed
    return found


_Found = TypeVar("_Found")


def run_all(items: Sequence[Any], boot_on: Callable[[Sequence[Any]], dict[str, _Found]]) -> dict[str, _Found]:
    """Run all of ``items`` (by name) with ``boot_on``; continue in a new guest after one that killed its guest."""
    found: dict[str, _Found] = {}
    while left := [item for item in items if item.name not in found]:
        found |= boot_on(left)
    return found


def keep(folder: Path, name: str, text: str) -> Path:
    """Write ``text`` to a log in ``folder`` that is named after ``name``; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (re.sub(r"[^\w.-]+", "-", name) + ".log")
    file.write_text(text)
    return file
