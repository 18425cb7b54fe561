# SPDX-License-Identifier: GPL-2.0-only
"""Random work on the debug kernel: a system-call fuzzer, and a mixer of selftests and events.

``trinity`` (Debian's package, unpacked into the cache) makes random memory calls as an
unprivileged user, beside readers of a mapped file (guest/trinity.sh). The mixer
(guest/mixer.c) runs Quell's selftests with random arguments, while switches, reclaim, swap
and CPUs change at random. Lazy unmap flush must defer pages meanwhile. Wrong data, a complaint
of the ledger or the kernel, and a hang are failures. A case is a guest with a seed; ``--seed``
repeats it.
"""

import random
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from checks import steps
from checks.compiled import GUEST, compile_selftests
from checks.benches import BRD, XFS, empty_disk
from checks.cases import Case, Results
from quell import build, debian, machine, prereq, source, workload
from quell.errors import QuellError
from quell.frames import DATA_DIR, STAGE_DIR
from quell.paths import Cache

pytestmark = pytest.mark.fuzz

SHORT_S = 180
# With --full: an hour each, in guests of ten minutes.
LONG_S, LONG_GUESTS = 600, 6
# Seconds that a guest may take beyond its time, until its programs end or are killed.
_MARGIN_S = 240
# Size of the readers' file in MiB; the debug kernel leaves less memory than that.
_DATA = 256


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
    words = ["sh", str(GUEST / "trinity.sh"), DATA_DIR, f"{STAGE_DIR}/{program.name}", "SECONDS", "SEED"]
    command = shlex.join([*words, *ready.argv])
    return Fuzzer("trinity", command, ready.data, 160, 2, stage=(*ready.programs, program))


def mixer(cache: Cache, folder: Path) -> Fuzzer:
    """The mixer, with the selftests compiled into ``folder``."""
    programs = folder / "selftests"
    programs.mkdir()
    compile_selftests(programs)
    program = machine.guest_program("mixer", cache, GUEST)
    command = shlex.join([str(program), str(programs), DATA_DIR, "/mnt", "SECONDS", "SEED"])
    # The selftests swap to the first RAM disk. Two requests meet only with a third CPU as target.
    before = f"{XFS}; mkswap /dev/ram1 && swapon /dev/ram1"
    return Fuzzer("mixer", command, empty_disk(folder), 512, 3, before)


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


def judge(name: str, said: steps.Said) -> Case:
    """The case of a guest."""
    wrong = _WRONG.findall(said.text)
    done = _DONE.search(said.text)
    idle = ["no call, program or event was run"] if not done or "0" in done.groups() else []
    return steps.judge(name, said, wrong, idle, f"{name}: {done[0] if done else '-'}")


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


@pytest.fixture(scope="module")
def image(origin: source.Source, cache: Cache) -> Path:
    """The debug kernel."""
    prereq.ensure((*prereq.VM, *prereq.XFS))
    return build.build_kernels(origin, ("debug",), cache)["debug"].image


@pytest.fixture(scope="module")
def first_seed(request: pytest.FixtureRequest) -> int:
    """The seed of each fuzzer's first guest."""
    seed = request.config.getoption("seed")
    return random.randrange(1, 10**6) if seed is None else int(seed)


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, LONG_GUESTS))])
@pytest.mark.parametrize("name", FUZZERS)
def test_fuzzer(
    name: str, number: int, results: Results, image: Path, first_seed: int, folder: Path, cache: Cache, full: bool
) -> None:
    """One guest for each fuzzer, SHORT_S or longer; in the long form LONG_GUESTS, LONG_S each."""
    try:
        fuzzer = FUZZERS[name](cache, folder)
    except QuellError as error:
        if name != "trinity":
            raise
        pytest.skip(error.message)
    # A busy host does less work in a second.
    seconds = LONG_S if full else SHORT_S * steps.patience()
    seed = first_seed + number
    results.add(judge(f"{name}, --seed {seed}", run_guest(fuzzer, image, seed, seconds, cache)))
