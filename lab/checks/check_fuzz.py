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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from checks import steps
from checks.benches import BRD, GUEST, XFS
from checks.cases import Case, Results
from checks.check_torture import Bench
from quell import debian, machine, workload
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

# Selftests may fail because a switch is off, or give up; wrong data is a failure.
_WRONG = re.compile(
    r"^(?:not ok: .*"
    r"|# VIOLATION(?!.*ended with (?:exit code|signal 9)).*"
    r"|.*(?:page \d+: \d+ was written, |\bwrites to \d+ pages of \d+ were lost).*"
    r"|not ok \d+ .*(?:\b[1-9]\d* (?:stale|wrong|violations|words are wrong|of them (?:secrets|not zero))|not as they were).*"
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


@dataclass(frozen=True)
class Fuzz:
    """The fixture ``fuzz``: runs a fuzzer in a guest with the debug kernel, and reports its case."""

    image: Path
    seed: int
    seconds: int
    results: Results
    cache: Cache

    def run(
        self, name: str, argv: Sequence[object], *, node: int, cpus: int, data: Path, more: Sequence[object] = (),
        before: str = "", stage: Sequence[Path] = (),
    ) -> None:  # fmt: skip
        """The command is ``argv``, the seconds, the seed and ``more``. ``node``: size of each of two nodes, in MiB."""
        command = shlex.join(map(str, (*argv, self.seconds, self.seed, *more)))
        step = steps.Step(name, command, self.seconds + _MARGIN_S, before)
        nodes = (node * machine.MIB,) * 2
        guest = machine.Machine(memory=sum(nodes), nodes=nodes, cpus=cpus, append=(BRD, "brd.rd_nr=2"))
        said = steps.boot("debug", self.image, guest, [step], self.cache, data=data, stage=stage)[name]
        steps.keep(self.cache.logs / "fuzz", f"{name}-{self.seed}", said.whole())
        self.results.add(judge(f"{name}, --seed {self.seed}", said))


@pytest.fixture(params=[0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, LONG_GUESTS))])
def fuzz(request: pytest.FixtureRequest, debug_bench: Bench, results: Results, cache: Cache, full: bool) -> Fuzz:
    """A guest, for SHORT_S or longer; in the long form LONG_GUESTS, LONG_S each. Seeds count up from --seed."""
    first = request.config.getoption("seed")
    seed = random.randrange(1, 10**6) if first is None else first + request.param
    # A busy host does less work in a second.
    return Fuzz(debug_bench.image, seed, LONG_S if full else SHORT_S * steps.patience(), results, cache)


def test_trinity(fuzz: Fuzz, cache: Cache) -> None:
    """trinity beside readers; skipped if it cannot be fetched."""
    try:
        program = debian.root({"trinity": "trinity"}, cache) / "usr/bin/trinity"
    except QuellError as error:
        pytest.skip(error.message)
    ready = workload.prepare(workload.select(["mapped-read"])[0], _DATA // 4 * machine.MIB, cache, {})
    assert ready.data is not None
    # Staged: its unprivileged user may not read the cache.
    words = ("sh", GUEST / "trinity.sh", DATA_DIR, f"{STAGE_DIR}/trinity")
    fuzz.run("trinity", words, more=ready.argv, node=160, cpus=2, data=ready.data, stage=(*ready.programs, program))


def test_mixer(fuzz: Fuzz, programs: dict[str, Path], disk: Path, cache: Cache) -> None:
    """The mixer with the selftests."""
    words = (machine.guest_program("mixer", cache, GUEST), programs["luf_stale"].parent, DATA_DIR, "/mnt")
    # The selftests swap to the first RAM disk. Two requests meet only with a third CPU as target.
    before = f"{XFS}; mkswap /dev/ram1 && swapon /dev/ram1"
    fuzz.run("mixer", words, node=512, cpus=3, data=disk, before=before)
