# SPDX-License-Identifier: GPL-2.0-only
"""Fault injection and hostile events under load: no data may be lost, and no wrong data read.

The load is Quell's own readers of mapped files, which check each page that they read, under
memory pressure in a VM. Meanwhile allocations and I/O fail, memory and swap run out, CPUs and
memory go offline and online, tasks are frozen and killed. At last the power is cut, and a second
boot checks the disk.
"""

import re
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from checks import scenario, steps
from checks.benches import GUEST
from checks.cases import Case, settle
from quell import build, disks, machine, proc, procfs, prereq, source, workload
from quell.frames import DATA_DIR
from quell.paths import Cache

_SHORT_S, _LONG_S = 15, 90
# Seconds that a case may take beyond its time, until the last pass of the readers ends.
_MARGIN_S = 240
# Size of the readers' file, in MiB.
_DATA = 256


class Fault(scenario.Row, frozen=True):
    """One or more events while readers read.

    ``event`` is shell: it lasts while ``running``, counts in ``$count`` and calls ``wrong WHY`` on
    an error. ``prepare`` runs before the readers, ``after`` when they have ended. ``tolerate``, an
    extended regular expression, matches the last words of a reader that may die ("signal N" for a
    signal): it is started again. ``torture``: the user half of luf_torture reads too. ``expected``
    matches the kernel's complaints that belong to the event. ``least`` is the smallest number of
    events.
    """

    name: str
    event: str
    kernel: str = "quell"
    memory: str = "128M"
    cpus: int = 2
    append: tuple[str, ...] = ()
    prepare: str = ""
    after: str = ""
    tolerate: str = ""
    torture: bool = False
    expected: str = ""
    least: int = 1


class _Table(scenario.Row, frozen=True):
    fault: tuple[Fault, ...]


FAULTS = scenario.table("faults.toml", _Table).fault


def script(fault: Fault, seconds: int, work: Sequence[str], staged: Path) -> str:
    """The guest's script of a case: the readers, and the events around them."""
    private = [*work[:-1], "--private-write", "64", work[-1]]
    return scenario.shell(
        "faults.sh", BLOCKS=scenario.shell("vm/blocks.sh"), PREPARE=fault.prepare, EVENT=fault.event,
        AFTER=fault.after, TOLERATE=fault.tolerate, TORTURE=int(fault.torture), SECONDS=seconds, STAGED=staged,
        PRIVATE=shlex.join(private), WORK=shlex.join(work), DATA=DATA_DIR,
    )  # fmt: skip


_FIGURES = re.compile(r"^events: (\d+), passes: (\d+), deaths: (\d+)$", re.M)


def judge(fault: Fault, said: steps.Said) -> Case:
    """Read the result of a case."""
    figures = _FIGURES.search(said.text)
    events, passes, deaths = map(int, figures.groups()) if figures else (0, 0, 0)
    wrong = re.findall(r"^not ok: (.*)$", said.text, re.M)
    idle = [] if events >= fault.least else [f"{events} events, fewer than {fault.least}"]
    if not passes + deaths:
        idle.append("no reader finished a pass")
    row = f"{fault.name}, {fault.kernel}: {events} events, {passes} passes of a reader"
    return steps.judge(fault.name, said, wrong, idle, row, fault.expected)


def _readers(cache: Cache) -> workload.Prepared:
    return workload.prepare(workload.select(["mapped-read"])[0], _DATA // 4 * machine.MIB, cache, {})


# --- power cuts ---------------------------------------------------------------

_CUT_MEMORY = 192 * machine.MIB
_CUT_DATA = 240 * machine.MIB
_FILES = 3
# Durable records of each file before the power is cut, at least; the cut follows within 3 s.
_ENOUGH = 80
_PATIENCE_S = 240


def read_synced(text: str) -> dict[int, int]:
    """The last record of each file that was reported as durable; torn lines are ignored."""
    found: dict[int, int] = {}
    for file, number in re.findall(r"^synced (\d+) (\d+)\n", text, re.M):
        found[int(file)] = max(int(number), found.get(int(file), 0))
    return found


@dataclass
class Cut:
    """Decides when to cut: ``delay`` seconds after enough records of all files are durable."""

    stdout: Path
    delay: float
    ready: float = 0.0
    done: bool = False

    def __call__(self) -> bool:
        synced = read_synced(procfs.read(self.stdout))
        if not self.ready and len(synced) == _FILES and min(synced.values()) >= _ENOUGH:
            self.ready = time.monotonic()
        self.done = bool(self.ready) and time.monotonic() - self.ready >= self.delay
        return self.done


def _boot_disk(
    kernel: build.Kernel, text: str, disk: Path, rundir: Path, cache: Cache, cut: Cut | None = None
) -> machine.GuestResult:
    rundir.mkdir()
    guest = machine.Machine(
        accel=machine.choose_accelerator("auto", kernel.image, cache).name, memory=_CUT_MEMORY,
        qemu=("-drive", f"if=none,id=cut,file={disk},format=raw", "-device", "virtio-blk-pci,drive=cut"),
    )  # fmt: skip
    times = steps.patience()
    return machine.boot(
        guest, kernel.image, machine.Job(["/bin/sh", "-c", text]), rundir, cache=cache, timeout=_PATIENCE_S * times,
        cut=cut, boot_timeout=machine.BOOT_TIMEOUT_S[guest.accel] * times,
    )  # fmt: skip


def power_cut(kernel: build.Kernel, number: int, cache: Cache) -> Case:
    """Cut the power while records are written; all durable records must survive."""
    name = f"the power is cut: {kernel.name} ({number})"
    started = time.monotonic()
    [program] = _readers(cache).programs
    words = {"RECORDS": machine.guest_program("records", cache, GUEST), "READ": f"{program} --threads 2"}
    with cache.scratch("cut") as folder:
        root, disk = folder / "root", folder / "disk.ext4"
        root.mkdir()
        proc.run([program, "--make", root / "data", str(_CUT_DATA)], timeout=300)
        disks.make_ext4(disk, root, room=64 * machine.MIB)
        shutil.rmtree(root)
        # Vary the moment, in the same way for both kernels.
        cut = Cut(folder / "first/stdout", 0.37 * number % 3)
        script = scenario.shell("cut/write.sh", **words, FILES=_FILES)
        guests = [_boot_disk(kernel, script, disk, folder / "first", cache, cut)]
        wrong = re.findall(r"^(wrong: .*)$", guests[0].stdout, re.M)
        synced = read_synced(guests[0].stdout)
        if not cut.done:
            wrong.append(f"the guest ended before the cut: {proc.tail(guests[0].stdout + guests[0].stderr, 3)}")
        else:
            durable = " ".join(f"{file}:{number}" for file, number in sorted(synced.items()))
            script = scenario.shell("cut/look.sh", **words, SYNCED=durable)
            guests.append(_boot_disk(kernel, script, disk, folder / "second", cache))
            if guests[1].exit_code:
                said = proc.tail(guests[1].stdout + guests[1].stderr, 5)
                wrong.append(f"after the cut: exit code {guests[1].exit_code}: {said}")
            if "recovered" not in guests[1].stdout:
                wrong.append("the journal was not replayed: no write was in progress")
    for when, guest in zip(("cut", "after"), guests, strict=False):
        wrong += steps.complaints(guest.console)
        steps.keep(cache.logs / "faults", f"{name}-{when}", f"{guest.stdout}{guest.stderr}\n{guest.console}")
    took, said = time.monotonic() - started, f"{name}: {sum(synced.values())} durable records"
    return Case(name, "failed" if wrong else "passed", "\n".join(wrong), took, said)


# --- all of it ----------------------------------------------------------------


def _kernel(name: str, origin: source.Source, cache: Cache) -> build.Kernel:
    prereq.ensure([*prereq.VM, *prereq.FAULTS])
    return build.build_kernels(origin, (name,), cache)[name]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(fault: Fault, origin: source.Source, programs: dict[str, Path], cache: Cache, full: bool) -> None:
    """Each event in a guest of its own for _SHORT_S or longer; in the long form for _LONG_S."""
    # A busy host does less work in a second.
    seconds = _LONG_S if full else _SHORT_S * steps.patience()
    image = _kernel(fault.kernel, origin, cache).image
    ready = _readers(cache)
    text = script(fault, seconds, ready.argv, programs["luf_torture"].parent)
    step = steps.Step(fault.name, text, seconds + _MARGIN_S)
    guest = machine.Machine(memory=machine.parse_memory(fault.memory), cpus=fault.cpus, append=fault.append)
    said = steps.boot(fault.kernel, image, guest, [step], cache, data=ready.data, stage=ready.programs)[fault.name]
    steps.keep(cache.logs / "faults", f"{fault.name}-{origin.linux}", said.whole())
    settle(judge(fault, said))


@pytest.mark.parametrize("number", [1, *(pytest.param(number, marks=pytest.mark.full) for number in range(2, 6))])
@pytest.mark.parametrize("kernel", ["stock", "quell"])
def test_power_cut(kernel: str, number: int, origin: source.Source, cache: Cache) -> None:
    """One on each kernel; five in the long form."""
    settle(power_cut(_kernel(kernel, origin, cache), number, cache))
