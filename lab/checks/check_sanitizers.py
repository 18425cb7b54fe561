# SPDX-License-Identifier: GPL-2.0-only
"""Run two more kernels, with sanitizers that the debug kernel lacks; every complaint is a failure.

``sanitize`` looks for undefined behavior, leaks, and use of debug objects after their lifetime;
``kcsan`` for data races. Both boot with Quell's KUnit tests, run its selftests, the torture
test for a while, and two workloads. The kernel's log has their complaints.

Linux has data races of its own. A race is a failure if one of its two accesses is in a
function of Quell. In a hooked function of Linux it is a failure unless stock Linux
(``kcsan-stock``, under the same load) reports it too. Other races are listed.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from checks import check_kunit as kunit, scenario, steps
from checks.benches import BRD, XFS
from checks.cases import Case, Results
from checks.tap import read_tap, tap_comments
from quell import build, machine, placement, prereq, source, tree, ui, workload
from quell.errors import QuellError
from quell.frames import DATA_DIR
from quell.paths import Cache

pytestmark = pytest.mark.sanitizers

WORKLOADS = ("mapped-read", "dontneed-touch")
_CPUS = 4
_NODE = 512 * machine.MIB
_TORTURE_S = 20
_TIMEOUT_S = 1800
# A complaint must not end the guest: it goes to the log, not to the console, which is watched.
_APPEND = ("loglevel=3", "log_buf_len=16M", "page_poison=1", "csdlock_debug=1", BRD)
_LOG = "@quell log"
# Selftests with their arguments; DATA is ext4, /mnt xfs, which has large folios.
PROGRAMS = (
    "switches DATA", "luf_stale DATA 3", "luf_migrate DATA 3", "early_ack 500", "security DATA 2",
    "folio_order", "rmap_batch /mnt", "writeout_batch 1", f"luf_torture DATA --seconds {_TORTURE_S}",
)  # fmt: skip
# Load for stock, which passes or skips it.
_ANY_KERNEL = ("early_ack 500",)

_FRAME = re.compile(r"^\s+(\w+)(?:\.\w+)*\+0x")
_STAMP = re.compile(r"^\[[^]]*\](?:\[[^]]*\])? ?")
_ACCESS = re.compile(r"(?:reads?|writes?|assert no writes|assert no accesses|race at unknown)\b.* (?:to|by) ", re.I)
_KCSAN = re.compile(r"BUG: KCSAN: (.*)$")
_OTHER = re.compile(
    r"(UBSAN: .*|ODEBUG: .*|BUG: (?!KCSAN).*|WARNING: .*|(?:smp: )?csd: .*|INFO: .*(?:stall|hung).*"
    r"|\d+ new suspected memory leaks.*|page_poisoning: .*|kernel BUG at .*)$"
)
_LEAK = re.compile(r"^unreferenced object .*$", re.M)


@dataclass(frozen=True)
class Race:
    """A report of KCSAN: its title, the functions of the accesses, all of its lines."""

    title: str
    where: tuple[str, ...]
    text: str


def races(log: str) -> list[Race]:
    """The reports of KCSAN in a kernel's log, each title once."""
    found: dict[str, Race] = {}
    lines: list[str] = []
    for line in [_STAMP.sub("", line) for line in log.replace("\r", "").splitlines()]:
        if match := _KCSAN.search(line):
            lines = [match[1]]
        elif lines and line.startswith("====="):
            where = [
                frame[1]
                for above, below in zip(lines, lines[1:], strict=False)
                if _ACCESS.search(above) and (frame := _FRAME.match(below))
            ]
            found.setdefault(lines[0], Race(lines[0], tuple(where), "\n".join(lines)))
            lines = []
        elif lines:
            lines.append(line)
    return list(found.values())


def complaints(log: str) -> list[str]:
    """All other complaints, each line once."""
    lines = (_STAMP.sub("", line) for line in log.replace("\r", "").splitlines())
    return list(dict.fromkeys(match[1] for line in lines if (match := _OTHER.search(line))))


_DEFINED = re.compile(r"^(?!#|\s|typedef|struct \w+ \{)[\w\s*]*?\b(\w+)\([^;]*$", re.M)
_NO_NAMES = {"if", "while", "for", "switch", "return", "sizeof", "defined"}


def own_functions(part: tree.KernelPart) -> set[str]:
    """The functions in Quell's own kernel files, tests and tools left out."""
    names: set[str] = set()
    for path, data in part.files.items():
        if path.endswith((".c", ".h")) and not path.startswith("tools/"):
            names.update(_DEFINED.findall(data.content.decode()))
    return names - _NO_NAMES


def hooked_functions(part: tree.KernelPart) -> set[str]:
    """The hooked functions of Linux, as Quell's patches name them."""
    return {
        hunk.function
        for hook in part.hooks
        for path, section in hook.sections.items()
        if path.endswith((".c", ".h"))
        for hunk in placement.hunks(section)
    } - {""}


@dataclass(frozen=True)
class Judgement:
    """Races in Quell's functions, in hooked functions (to be compared with stock), and others."""

    ours: tuple[Race, ...]
    hooked: tuple[Race, ...]
    others: tuple[Race, ...]


def judge(found: Iterable[Race], own: set[str], hooked: set[str]) -> Judgement:
    """Sort races by the functions of the two accesses."""
    groups: tuple[list[Race], ...] = ([], [], [])
    for race in found:
        groups[0 if own & {*race.where} else 1 if hooked & {*race.where} else 2].append(race)
    return Judgement(*(tuple(group) for group in groups))


@dataclass(frozen=True)
class Said:
    """A guest's output: of the selftests, of kmemleak, and the kernel's log.

    ``whole``: the guest finished; otherwise the log is the console's.
    """

    tests: str
    leaks: str
    log: str
    whole: bool

    @classmethod
    def of(cls, guest: machine.GuestResult) -> Self:
        """Split a guest's output."""
        before, found, log = guest.stdout.partition(f"{_LOG}\n")
        tests, _, leaks = before.partition(f"{_LOG} leaks\n")
        return cls(tests, leaks, log if found else guest.console, bool(found))

    def results(self) -> list[Case]:
        """The results of the selftests."""
        found = []
        for part in self.tests.split("@quell test ")[1:]:
            name, _, text = part.partition("\n")
            for status, tests in zip(("passed", "failed", "skipped"), read_tap(text), strict=True):
                found += [Case(f"{name}: {test}", status, tap_comments(text, test)) for test in tests]
        return found

    def entire(self) -> str:
        """The whole output, for a log."""
        return f"{self.tests}\n{_LOG} leaks\n{self.leaks}\n{_LOG}\n{self.log}"

    def problems(self) -> list[str]:
        """All complaints of sanitizers, except races."""
        early = [] if self.whole else ["the guest did not finish"]
        return complaints(self.log) + _LEAK.findall(self.leaks) + early


@dataclass(frozen=True)
class _Bench:
    """A kernel and its load."""

    image: Path
    folder: Path
    disk: Path
    cache: Cache

    def test(self, programs: Sequence[str]) -> Said:
        """Boot with the KUnit tests, and run selftests."""
        guest = machine.run_script(
            self.image, self._script(programs), cpus=_CPUS, nodes=(_NODE, _NODE), data=self.disk,
            append=(*_APPEND, "kunit.enable=1"), timeout=_TIMEOUT_S, boot_timeout=_TIMEOUT_S,
            fail_on_oops=False, cache=self.cache,
        )  # fmt: skip
        return Said.of(guest)

    def work(self, one: workload.Workload) -> Said:
        """Run a workload; QuellError if that fails."""
        ready = workload.prepare(one, machine.parse_memory("256M"), self.cache, {})
        guest = machine.run_script(
            self.image, scenario.shell("sanitizers.sh", LOAD=f"{shlex.join(ready.argv)} || failed=1"), memory="512M",
            data=ready.data, stage=ready.programs, append=_APPEND, timeout=_TIMEOUT_S,
            boot_timeout=_TIMEOUT_S, fail_on_oops=False, cache=self.cache,
        )  # fmt: skip
        if guest.exit_code:
            raise QuellError(f"{one.name} failed", detail=guest.stderr or guest.console[-2000:])
        return Said.of(guest)

    def _script(self, programs: Sequence[str]) -> str:
        """A line with its name precedes the output of each program."""
        lines = [XFS]
        for program in programs:
            words = f"{self.folder}/{program.replace('DATA', DATA_DIR)}"
            lines.append(f"echo '@quell test {program.split()[0]}'; {words} 2>&1 || [ $? = 4 ] || failed=1")
        return scenario.shell("sanitizers.sh", LOAD="\n".join(lines))


def _at_work(bench: _Bench, programs: Sequence[str]) -> list[Said]:
    """The selftests first, then the workloads."""
    return [bench.test(programs), *(bench.work(one) for one in workload.select(WORKLOADS))]


def _races_in_stock(bench: _Bench, kernel_source: source.Source) -> set[str]:
    """Titles of the races in stock."""
    kernel = build.build_kernels(kernel_source, ("kcsan-stock",), bench.cache)["kcsan-stock"]
    stock = _Bench(kernel.image, bench.folder, bench.disk, bench.cache)
    return {race.title for said in _at_work(stock, _ANY_KERNEL) for race in races(said.log)}


def look(results: Results, name: str, bench: _Bench, kernel_source: source.Source) -> None:
    """Run the load on the kernel ``name``, and judge its complaints."""
    said = _at_work(bench, PROGRAMS)
    for number, each in enumerate(said):
        steps.keep(bench.cache.logs / "sanitizers", f"{name}-{kernel_source.linux}.{number}", each.entire())
    results.add(*said[0].results(), *kunit.read_log(said[0].log, kernel_source, bench.cache))
    problems = [text for each in said for text in each.problems()]
    part = tree.read_kernel_part(tree.kernel_dir(), kernel_source.linux)
    found = {race.title: race for each in said for race in races(each.log)}
    judged = judge(found.values(), own_functions(part), hooked_functions(part))
    known = _races_in_stock(bench, kernel_source) if judged.hooked else set()
    new = [race for race in judged.hooked if race.title not in known]
    problems += [f"data race: {race.text}" for race in (*judged.ours, *new)]
    results.check(not problems, "no complaint", "\n".join(dict.fromkeys(problems)))
    for what, listed in (
        ("races that stock has, too, where Quell has a hook", [race for race in judged.hooked if race.title in known]),
        ("races of stock", judged.others),
    ):
        if listed:
            ui.note("\n".join([f"{name}: {what}: {len(listed)}", *(f"  {race.title}" for race in listed)]))


@pytest.mark.parametrize("name", ["sanitize", "kcsan"])
def test_sanitizers(
    name: str, results: Results, origin: source.Source, programs: dict[str, Path], disk: Path, cache: Cache
) -> None:
    """Each kernel."""
    prereq.ensure((*prereq.VM, *prereq.XFS))
    kernel = build.build_kernels(origin, (name,), cache)[name]
    folder = programs["luf_torture"].parent
    look(results, name, _Bench(kernel.image, folder, disk, cache), origin)
