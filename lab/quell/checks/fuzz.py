# SPDX-License-Identifier: GPL-2.0-only
"""Random work on the debug kernel: a system-call fuzzer, and a mixer of selftests and events.

``trinity`` (Debian's package, unpacked into the cache) makes random memory calls as an
unprivileged user, beside readers of a mapped file (guest/trinity.sh). The mixer
(guest/mixer.c) runs Quell's selftests with random arguments, while switches, reclaim, swap
and CPUs change at random. Lazy unmap flush must defer pages meanwhile. Wrong data, a complaint
of the ledger or the kernel, and a hang are failures. A case is a guest with a seed; ``--seed``
repeats it.
"""

from __future__ import annotations

import random
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quell import build, debian, disks, machine, prereq, proc, source, ui, workload
from quell.checks import Case, CheckResult, ktap, steps
from quell.checks.vm import BRD, XFS, selftests
from quell.errors import QuellError
from quell.frames import DATA_DIR, STAGE_DIR
from quell.paths import Cache

SHORT_S = 180
# With --full: an hour each, in guests of ten minutes.
LONG_S, LONG_GUESTS = 600, 6
# Seconds that a guest may take beyond its time, until its programs end or are killed.
_MARGIN_S = 240
# Size of the readers' file in MiB; the debug kernel leaves less memory than that.
_DATA = 256
# With fewer deferred pages lazy unmap flush was hardly at work, and the case tested nothing.
_LEAST_PARKED = 200
_GUEST = Path(__file__).parents[1] / "guest"


@dataclass(frozen=True)
class Fuzzer:
    """A guest and its shell command, in which SEED and SECONDS are replaced.

    ``memory`` is that of each of two nodes, in MiB.
    """

    name: str
    command: str
    data: Path
    memory: int
    cpus: int
    before: str = ""
    stage: tuple[Path, ...] = ()


def trinity(cache: Cache, _: Path) -> Fuzzer:
    """trinity beside readers; QuellError if it cannot be fetched."""
    root = debian.root({"trinity": "trinity"}, cache)
    # Other distributions than Debian may have it in another folder.
    program = root / "usr/bin/trinity"
    if not program.exists():
        program = Path(prereq.which("trinity") or program)
    one = workload.select(["mapped-read"])[0]
    ready = workload.prepare(one, _DATA // 4 * machine.MIB, cache, {})
    assert ready.data is not None
    # Staged: its unprivileged user may not read the cache.
    words = ["sh", str(_GUEST / "trinity.sh"), DATA_DIR, f"{STAGE_DIR}/{program.name}", "SECONDS", "SEED"]
    command = shlex.join([*words, *ready.argv])
    return Fuzzer("trinity", command, ready.data, 160, 2, stage=(*ready.programs, program))


def mixer(cache: Cache, folder: Path) -> Fuzzer:
    """The mixer, with the selftests compiled into ``folder``."""
    programs, root = folder / "selftests", folder / "root"
    programs.mkdir()
    root.mkdir()
    selftests(programs)
    disk = folder / "disk.ext4"
    disks.make_ext4(disk, root)
    program = machine.guest_program("mixer", cache)
    command = shlex.join([str(program), str(programs), DATA_DIR, "/mnt", "SECONDS", "SEED"])
    # The selftests swap to the first RAM disk. Two requests meet only with a third CPU as target.
    before = f"{XFS}; mkswap /dev/ram1 && swapon /dev/ram1"
    return Fuzzer("mixer", command, disk, 512, 3, before)


FUZZERS: dict[str, Callable[[Cache, Path], Fuzzer]] = {"trinity": trinity, "mixer": mixer}

# Selftests may fail because a switch is off, or give up; wrong data is a failure.
_WRONG = re.compile(
    r"^(?:not ok: .*"
    r"|# VIOLATION(?!.*ended with (?:exit code|signal 9)).*"
    r"|not ok \d+ .*\b[1-9]\d* (?:stale|wrong|violations|words are wrong|of them (?:secrets|not zero)).*"
    r"|not ok \d+ luf_migrate lost writes, .*: in [1-9].*)$",
    re.M,
)
_DONE = re.compile(r"^(calls|programs): (\d+)(?:, events: (\d+))?$", re.M)


def judge(name: str, said: steps.Said) -> tuple[Case, str]:
    """The case of a guest, and its row of the table."""
    wrong = _WRONG.findall(said.text)
    done = _DONE.search(said.text)
    if said.status != "pass" and not wrong:
        wrong.append(f"{said.status}: {proc.tail(said.text, 3)}")
    wrong += steps.complaints(said.log)
    if not wrong and (not done or "0" in done.groups()):
        wrong.append("no call, program or event was run")
    if not wrong and said.parked < _LEAST_PARKED:
        wrong.append(f"only {said.parked} pages were deferred: lazy unmap flush was not at work")
    case = Case(name, "failed" if wrong else "passed", "\n".join(wrong), said.seconds)
    return case, f"{name:<28} {done[0] if done else '-':<30} {said.parked:>9} deferred  {wrong[0] if wrong else 'ok'}"


def run_guest(fuzzer: Fuzzer, image: Path, seed: int, seconds: int, cache: Cache) -> steps.Said:
    """Run a guest with ``seed``; its output is kept."""
    command = fuzzer.command.replace("SECONDS", str(seconds)).replace("SEED", str(seed))
    step = steps.Step(fuzzer.name, command, seconds + _MARGIN_S, fuzzer.before)
    node = fuzzer.memory * machine.MIB
    guest = machine.Machine(
        memory=2 * node, nodes=(node,) * 2, cpus=fuzzer.cpus, append=("no_timer_check", BRD, "brd.rd_nr=2")
    )
    said = steps.boot("debug", image, guest, [step], cache, data=fuzzer.data, stage=fuzzer.stage)
    steps.keep(cache.logs / "fuzz", f"{fuzzer.name}-{seed}", said[fuzzer.name].whole())
    return said[fuzzer.name]


def run_fuzzers(cache: Cache, seconds: int, guests: int, seed: int | None) -> CheckResult:
    """Run each fuzzer in ``guests`` guests, for ``seconds`` each; the first one has ``seed``."""
    prereq.ensure([*prereq.VM, *(item for item in prereq.FILE_SYSTEMS if item.need == "mkfs.xfs")])
    image = build.build_kernels(source.debian_source(cache), ("debug",), cache)["debug"].image
    first = random.randrange(1, 10**6) if seed is None else seed
    cases, rows = [], []
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-", dir=cache.folder("run")) as temp,
        ui.progress("fuzz", len(FUZZERS) * guests) as bar,
    ):
        for name, prepare in FUZZERS.items():
            try:
                fuzzer = prepare(cache, Path(temp))
            except QuellError as error:
                if name != "trinity":
                    raise
                cases.append(Case(name, "skipped", error.message))
                rows.append(f"{name}: skipped: {error.message}")
                continue
            for number in range(first, first + guests):
                title = f"{name}, --seed {number}"
                try:
                    case, row = judge(title, run_guest(fuzzer, image, number, seconds, cache))
                except QuellError as error:
                    why = "\n".join(filter(None, [error.message, error.detail, str(error.log or "")]))
                    case, row = Case(title, "failed", why), f"{title}: {error.message}"
                cases.append(case)
                rows.append(row)
                bar.advance()
    return _result(cache, cases, rows)


def _result(cache: Cache, cases: Sequence[Case], rows: Sequence[str]) -> CheckResult:
    lines = [*rows, *(f"not ok: {c.name}: {line}" for c in cases if c.status == "failed" for line in c.why.splitlines())]
    folder = cache.folder("logs") / "fuzz"
    folder.mkdir(exist_ok=True)
    (folder / "summary.ktap").write_text(ktap(cases))
    return CheckResult.of(cases, "\n".join([*lines, f"output of the guests: {folder}"]))


def run(cache: Cache, seed: int | None = None) -> CheckResult:
    """One guest for each fuzzer, SHORT_S or longer."""
    # A busy host does less work in a second.
    return run_fuzzers(cache, SHORT_S * steps.patience(), 1, seed)


def run_full(cache: Cache, seed: int | None = None) -> CheckResult:
    """LONG_GUESTS guests for each fuzzer, LONG_S each: an hour."""
    return run_fuzzers(cache, LONG_S, LONG_GUESTS, seed)
