# SPDX-License-Identifier: GPL-2.0-only
"""Steps: programs that a guest runs one after the other, and what became of each.

For the parts that run many programs in VMs. A step has a limit of its own and a session
of its own, so that all it started can be ended with it. One that takes the guest with
it is noted, and the next one runs in a new guest.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from quell import machine
from quell.errors import QuellError, UsageError
from quell.paths import Cache

# Seconds beyond its limit after which a step that cannot be killed brings the guest down.
_OVERDUE_S = 25
_BOOT_S = 60


@dataclass(frozen=True)
class Step:
    """A command for the guest's shell.

    ``limit`` is in seconds. ``before`` is what the shell prepares, without limit and output;
    a folder that it changes to is the command's.
    """

    name: str
    command: str
    limit: int
    before: str = ""


@dataclass(frozen=True)
class Said:
    """How a step went.

    ``status`` is pass, skip (exit code 4), fail, timeout, crash (the guest's kernel died), hang
    (it could not be killed) or signal N. ``text`` is all it said, ``log`` what the kernel said
    meanwhile. ``seconds`` are the guest's; ``parked`` and ``stolen`` the pages that lazy unmap
    flush parked and that reclaim freed meanwhile: all three 0 if it did not end.
    """

    status: str
    text: str = ""
    log: str = ""
    seconds: float = 0.0
    parked: int = 0
    stolen: int = 0

    def whole(self) -> str:
        """All that was said, for a log."""
        return f"{self.status}\n{self.text}\n--- kernel log\n{self.log}"


# A step that even SIGKILL does not end is waited for in vain: the kernel is made to say where it
# hangs, and to die.
_DRIVER = """
PATH=$PATH:/usr/sbin:/sbin
# For the steps' files: what the guest has in /tmp is the host's.
mkdir -m 1777 /run/work
SETUP
echo -1000 > /proc/self/oom_score_adj
# The kernel's clock, and its counts of pages: in $up, $parked and $stolen.
look() {
	parked=0 stolen=0
	read up rest < /proc/uptime
	while read name value; do
		case $name in
		luf_park) parked=$value;;
		pgsteal_kswapd|pgsteal_direct) stolen=$((stolen + value));;
		esac
	done < /proc/vmstat
}
run() {
	eval "$3" >/dev/null 2>&1
	look; from="$up $parked $stolen"
	echo "<4>quell step $1" > /dev/kmsg
	printf '\\n@quell begin %s\\n' $1
	setsid timeout -k 5 $2 sh -c "echo 0 > /proc/self/oom_score_adj; $4" </dev/null 2>&1 &
	step=$!
	setsid sh -c "sleep $(($2 + OVERDUE)); echo w > /proc/sysrq-trigger; echo c > /proc/sysrq-trigger" &
	guard=$!
	wait $step
	code=$?
	kill -s KILL -- -$guard -$step 2>/dev/null
	look
	printf '\\n@quell end %s %s %s\\n' $1 $code "$from $up $parked $stolen"
}
"""


def patience() -> int:
    """By how much limits are longer on a host that is busy with other things."""
    return min(3, max(1, math.ceil(os.getloadavg()[0] / (os.cpu_count() or 1))))


def script(steps: Sequence[Step], setup: str = "", times: int = 1) -> str:
    """What the guest's shell does: ``setup``, then each step for at most ``times`` its limit."""
    lines = [_DRIVER.replace("SETUP", setup).replace("OVERDUE", str(_OVERDUE_S))]
    for number, step in enumerate(steps):
        words = [str(number), str(step.limit * times), step.before, step.command]
        lines.append(f"run {shlex.join(words)}")
    return "\n".join(lines) + "\ntrue\n"


def read_status(code: int) -> str:
    """What a step's exit code, as the guest's timeout(1) and shell pass it on, means."""
    if code == 124:
        return "timeout"
    if code > 128:
        return f"signal {code - 128}"
    return {0: "pass", 4: "skip"}.get(code, "fail")


_SAID = re.compile(r"\n?@quell begin (\d+)\n(.*?)(?:\n@quell end \1 (\d+)((?: [\d.]+)*)\n|\Z)", re.S)
_LOGGED = re.compile(r"quell step (\d+)$", re.M)
# A host that is slow lets a guest's CPU stand still: no lockup is one. Lockdep says WARNING too,
# or INFO where nothing is lost yet.
_COMPLAINT = re.compile(
    r"WARNING: |BUG: (?!soft lockup|workqueue lockup)|\bOops\b|Kernel panic|general protection fault"
    r"|VIOLATION: |INFO: (?:possible|trying to register)|EXT4-fs error"
)


def complaints(log: str) -> list[str]:
    """The lines of a kernel's log that a sound kernel does not write."""
    lines = log.replace("\r", "").splitlines()
    return [line.strip() for line in lines if _COMPLAINT.search(line)]


def read(stdout: str, console: str, steps: Sequence[Step]) -> dict[str, Said]:
    """What a guest that was given ``steps`` said of each that began, by name.

    The one that has no end took the guest with it: its status is crash, or hang when it was
    the guest's own watchdog that ended it, or nobody did.
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
            status = "crash" if machine.find_oops(log) and "sysrq: Trigger" not in log else "hang"
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
    """Run ``steps`` in one guest, as far as it comes; ``guest`` but for its accelerator.

    QuellError when it does not begin the first; ``kernel`` is the name of ``image``.
    """
    times = patience()
    guest = replace(guest, accel=machine.choose_accelerator("auto", image, cache).name)
    job = machine.Job(["/bin/sh", "-c", script(steps, setup, times)], data=data, stage=stage)
    limit = _BOOT_S + sum(step.limit * times + _OVERDUE_S for step in steps)
    with tempfile.TemporaryDirectory(prefix="steps-", dir=cache.folder("run")) as temp:
        rundir = Path(temp)
        try:
            machine.boot(
                guest, image, job, rundir, cache=cache, timeout=limit, fail_on_oops=False,
                boot_timeout=machine.BOOT_TIMEOUT_S[guest.accel] * times,
            )  # fmt: skip
        except UsageError:
            raise
        except QuellError as error:
            # What it said until then is worth reading, if it said anything.
            error.log = machine.save_log(error.log, cache)
            if not (rundir / "stdout").exists() or not (rundir / "stdout").stat().st_size:
                raise
        said, console = (
            (rundir / name).read_text(errors="replace") for name in ("stdout", "console.log")
        )
        found = read(said, console, steps)
        if not found:
            raise QuellError(
                f"the {kernel} kernel did not begin {steps[0].name}",
                log=machine.save_log(rundir / "console.log", cache),
            )
    return found


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Item = TypeVar("_Item", bound=_Named)
_Found = TypeVar("_Found")


def run_all(
    items: Sequence[_Item], boot_on: Callable[[Sequence[_Item]], dict[str, _Found]]
) -> dict[str, _Found]:
    """All of ``items`` with ``boot_on``, after one that took the guest with it in a new guest."""
    found: dict[str, _Found] = {}
    left = list(items)
    while left:
        found |= boot_on(left)
        left = [item for item in left if item.name not in found]
    return found


def keep(folder: Path, name: str, text: str) -> Path:
    """Write ``text`` to a log in ``folder`` that is called after ``name``; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (re.sub(r"[^\w.-]+", "-", name) + ".log")
    file.write_text(text)
    return file
