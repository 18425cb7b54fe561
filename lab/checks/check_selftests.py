# SPDX-License-Identifier: GPL-2.0-only
"""Run Linux's own selftests on stock and on Quell: every single result must be the same.

They are built from the kernels' source. The VM runs one test at a time, each in its own
process group with its own time limit. A test that fails or is skipped on both kernels
says nothing about Quell. If results differ, both kernels run the test again.
"""

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path

import msgspec
from checks import scenario, steps
from checks.cases import Case, Results
from quell import build, disks, machine, prereq, proc, source, toolchain, ui
from quell.frames import DATA_DIR
from quell.paths import Cache

KERNELS = ("stock", "quell")
# Suffix of kernels that are KVM hosts themselves, for the tests of KVM.
_KVM_KERNEL = "-kvm"
# Raise it when images that an older lab built can no longer be used.
_FORMAT = 2
# Two nodes, for page migration; half a gigabyte may go to huge pages.
_NODE = 768 * machine.MIB
_SWAP_KB = 131072
_APPEND = (f"brd.rd_size={_SWAP_KB}",)
# Tests per boot: a hang of the whole guest is noticed only when all of them are overdue.
_GROUP = 12
# Runs of a test that differs, the first included, and of one that still differs after these. A test
# that fails on stock in one of three runs too often passes three times on stock and fails twice on Quell.
_ROUNDS = 3
_MOST_ROUNDS = 9
_CLEAN = "the kernel's log is clean"
# Stock with the folio sizes that Quell chooses from, for each fault that they fit. The parameter
# leaves PMD-sized pages alone.
LARGE = "stock-large"
LARGE_APPEND = ("thp_anon=16K-64K:always;2M:inherit",)


class Selftest(scenario.Row, frozen=True):
    """One run of a program.

    ``command`` is for the shell, in the folder of the programs of ``suite``. ``limit`` is in
    seconds, ``huge`` the initial number of huge pages, ``cpus`` the guest's. ``before`` is shell, run first.
    """

    suite: str = ""
    command: str = ""
    limit: int = 90
    huge: int = 0
    cpus: int = 2
    before: str = ""

    @property
    def name(self) -> str:
        """Its name in the tables."""
        return f"{self.suite}/{self.command}"

    @property
    def program(self) -> str:
        """Its executable file."""
        return self.command.split()[0]


_SUITES = scenario.table("selftests.toml", dict[str, tuple[str | Selftest, ...]])
TESTS = tuple(
    Selftest(suite, test) if isinstance(test, str) else msgspec.structs.replace(test, suite=suite)
    for suite, tests in _SUITES.items() for test in tests
)  # fmt: skip
# make's targets; the rest of memfd needs FUSE.
_TARGETS = {"memfd": ("memfd_test",)}
# Folders beside tools/testing that a suite's Makefile and sources use; drivers in 7.3.
_BESIDE = ("tools/build", "tools/include", "tools/arch", "tools/lib", "drivers")


# --- building -----------------------------------------------------------------


def _make(folder: Path, output: Path, src: Path, headers: Path, suite: str) -> list[str]:
    """make's command line for one suite."""
    return [
        *build.clean_env(), "make", "-C", str(folder), f"OUTPUT={output}", f"top_srcdir={src}",
        f"KHDR_INCLUDES=-isystem {headers}", "ARCH=x86_64", "LLVM=", "CROSS_COMPILE=",
        # The lab's kernels run no 32-bit programs. 6.12's khugepaged.c uses KSFT_SKIP without the
        # header that defines it.
        "CAN_BUILD_I386=0", "EXTRA_CFLAGS=-DKSFT_SKIP=4",
        *(str(output / target) for target in _TARGETS.get(suite, ())),
    ]  # fmt: skip


def _build(kernel_source: source.Source, cache: Cache) -> Path:
    """A disk image with all programs, one folder a suite; it is made once and kept."""
    prereq.ensure([*prereq.BUILD, *prereq.VM, *prereq.SELFTESTS])
    recipe = [_make(Path(), Path(), Path(), Path(), suite) for suite in _SUITES]
    facts = [_FORMAT, kernel_source.key, toolchain.version("gcc"), recipe, list(_SUITES)]
    key = f"selftests-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}"

    def make(temp: Path) -> None:
        _compile(kernel_source, temp, cache.logs / "build-selftests.log")
        disks.make_ext4(temp / "image.ext4", temp / "root")
        shutil.rmtree(temp / "work")

    return cache.made(cache.data / key, make) / "image.ext4"


def _compile(kernel_source: source.Source, temp: Path, log: Path) -> None:
    """Compile into ``temp``/root, in a copy of the sources: the suites' Makefiles write to them."""
    src, work = kernel_source.tree, temp / "work"
    copy = work / "src/tools/testing/selftests"
    shutil.copytree(src / "tools/testing/selftests", copy, symlinks=True)
    for name in _BESIDE:
        (work / "src" / name).symlink_to(src / name)
    (work / "src/mm").mkdir()
    shutil.copy(src / "mm/gup_test.h", work / "src/mm")
    headers = work / "headers"
    headers.mkdir()
    log.unlink(missing_ok=True)

    def run(argv: Sequence[str], what: str) -> None:
        ui.note(f"building {what}")
        made = proc.run(argv, log=log, check=False, timeout=1800)
        if made.returncode != 0:
            raise build.build_error(f"building {what} failed", made.stdout, log)

    make = [*build.clean_env(), "make", "-s", "-C", str(src), f"O={headers}", "ARCH=x86", "headers"]
    run(make, "the kernel's headers")
    for suite in _SUITES:
        output = temp / "root" / suite
        output.mkdir(parents=True)
        run(_make(copy / suite, output, src, headers / "usr/include", suite), f"the kernel's selftests in {suite}")
        for script in (copy / suite).glob("*.sh"):
            shutil.copy(script, output)
        for left in output.rglob("*.[od]"):
            left.unlink()
        if (output / "x86").is_dir():
            # As it was called in 6.12.
            (output / "x86").rename(output / "x86_64")


# --- output of the guests -----------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Result of a test on a kernel.

    ``status`` is pass, skip, fail, timeout, crash (the guest's kernel died), hang (the test could
    not be killed) or signal N. ``results`` are the single results by name: ok, not ok, skip or
    xfail.
    """

    status: str
    results: Mapping[str, str] = field(default_factory=dict)

    def whole(self) -> bool:
        """True if the test finished, so that no result is missing."""
        return self.status in ("pass", "skip", "fail")

    def says_nothing(self) -> bool:
        """True if nothing was tested: the test or all its results were skipped."""
        return self.status == "skip" or (self.status == "pass" and set(self.results.values()) == {"skip"})

    def values(self) -> dict[str, str]:
        """The status and the single results, by name."""
        return {"as a whole": self.status, **self.results}


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_KTAP = re.compile(r"^[#\s]*(not )?ok \d+\b *(?:- )?(.*?)(?: *# *(SKIP|TODO|XFAIL)\b(.*))?$", re.M)
# uffd-unit-tests and khugepaged have output formats of their own.
_UFFD = re.compile(r"^Testing (.+?)\.\.\. (done|skipped|failed)", re.M)
_UFFD_WORDS = {"done": "ok", "skipped": "skip", "failed": "not ok"}
_KHUGEPAGED = re.compile(r"^Run test: (.+)$", re.M)
_STEP = re.compile(r"\.{3,} (OK|Fail|Skip)\b")
_HEX = re.compile(r"\b0x[0-9a-f]+\b|\b[0-9a-f]{9,16}\b")


def _steps(text: str) -> str:
    """The worst of khugepaged's steps in a text."""
    words = set(_STEP.findall(text))
    return "not ok" if "Fail" in words else "ok" if "OK" in words else "skip"


def read_results(text: str) -> dict[str, str]:
    """The single results in a test's output, by name; repeated names are numbered.

    Addresses in names are left out, because they differ between runs.
    """
    text = _COLOUR.sub("", text).replace("\r", "")
    found = []
    for bad, name, directive, why in _KTAP.findall(text):
        word = "not ok" if bad else {"SKIP": "skip", "XFAIL": "xfail"}.get(directive, "ok")
        found.append((name or why.strip(" -") or "unnamed", word))
    found += [(name, _UFFD_WORDS[word]) for name, word in _UFFD.findall(text)]
    parts = _KHUGEPAGED.split(text)
    found += [(name, _steps(said)) for name, said in zip(parts[1::2], parts[2::2], strict=True)]
    results: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for name, word in found:
        name = _HEX.sub("ADDRESS", name.strip())
        seen[name] += 1
        results[name if seen[name] == 1 else f"{name} ({seen[name]})"] = word
    return results


def read_outcome(said: steps.Said) -> Outcome:
    """The outcome of a test that ran as a step."""
    results = read_results(said.text)
    if steps.complaints(said.log) and said.status != "hang":
        results[_CLEAN] = "not ok"
    return Outcome(said.status, results)


# --- comparing ----------------------------------------------------------------

Round = tuple[Outcome, Outcome]
# One occurrence is enough.
_GRAVE = ("crash", "hang")


def _seen(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    """The result ``name`` in each of the outcomes."""
    return [outcome.values().get(name, "missing") for outcome in outcomes]


def differences(stock: Outcome, quell: Outcome) -> list[str]:
    """The names of results that differ.

    A result that one kernel lacks is a difference, unless a test was cut short.
    """
    left, right = stock.values(), quell.values()
    whole = stock.whole() and quell.whole()
    return [
        name
        for name in dict.fromkeys([*left, *right])
        if left.get(name) != right.get(name) and (whole or (name in left and name in right))
    ]


def judge(rounds: Sequence[Round]) -> dict[str, tuple[list[str], list[str]]]:
    """The differences that count after some rounds: by name, (stock's, Quell's), one per round.

    A difference in at most half of the rounds is chance. So is a result that stock has at
    least a third as often. A crash, hang or complaint on Quell alone counts at once.
    """
    found = [name for each in rounds for name in differences(*each)]
    result = {}
    for name in dict.fromkeys(found):
        stock, quell = (_seen(name, side) for side in zip(*rounds, strict=True))
        often = 2 * found.count(name) > len(rounds)
        grave = name == _CLEAN or set(quell) & set(_GRAVE)
        usual = all(3 * stock.count(value) >= quell.count(value) for value in quell)
        if (often and not usual) or (grave and not set(quell) <= set(stock)):
            result[name] = (stock, quell)
    return result


def as_large(rounds: Sequence[Round], large: Sequence[Outcome]) -> bool:
    """Whether stock with large folios has the same results as Quell, wherever a difference counts."""
    found = [outcome for outcome in large if outcome.whole() and not outcome.says_nothing()]
    for name, (stock, quell) in judge(rounds).items():
        new = {value for value in quell if 3 * stock.count(value) < quell.count(value)}
        often = all(2 * _seen(name, found).count(value) > len(large) for value in new)
        if name == _CLEAN or new & {*_GRAVE, "missing"} or not often:
            return False
    return True


def case(name: str, rounds: Sequence[Round], large: Sequence[Outcome] = ()) -> Case:
    """The result of a test; skipped if the outcomes on stock with large folios explain the differences."""
    stock, quell = rounds[0]
    names = {*stock.values(), *quell.values()}
    status, why = "passed", ""
    if different := judge(rounds):
        found = [
            f"{what}: stock {', '.join(left)}; Quell {', '.join(right)}" for what, (left, right) in different.items()
        ]
        status, why = "failed", "\n".join(found)
        if as_large(rounds, large):
            status, why = "skipped", f"as stock with large folios: {'; '.join(found)}"
    elif stock.says_nothing() or (stock.status != "pass" and "ok" not in stock.results.values()):
        status, why = "skipped", f"{stock.status} on stock too"
    same = len(names - different.keys())
    said = f"{name:<42} {status}, {same} of {len(names)} results the same in {len(rounds)} runs"
    return Case(name, status, why, said=said)


# --- running ------------------------------------------------------------------

# One swap device for all tests of a guest.
_SETUP = "mkswap /dev/ram0 >/dev/null && swapon /dev/ram0"


def step_of(test: Selftest) -> steps.Step:
    """``test`` for the guest's shell."""
    # on-fault-limit needs an unprivileged user, with a limit for mlock().
    nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups "
    command = f"{nobody if test.program == 'on-fault-limit' else ''}./{test.command}"
    if test.suite != "proc":
        # Otherwise a killed program's buffered output is lost. Not for suite proc: its tests
        # check their own mappings.
        command = f"stdbuf -oL {command}"
    before = (
        "sync; echo 3 > /proc/sys/vm/drop_caches; echo 1 > /proc/sys/vm/compact_memory;"
        f" cd {DATA_DIR}/{test.suite}; echo 0 > /proc/sys/vm/overcommit_memory;"
        f" echo {test.huge} > /proc/sys/vm/nr_hugepages; {test.before}"
    )
    return steps.Step(test.name, command, test.limit, before)


def run(
    images: Mapping[str, Path], disk: Path, logs: Path, cache: Cache,
    kernel: str, tests: Sequence[Selftest], number: int,
) -> dict[str, Outcome]:  # fmt: skip
    """Run tests of the same kind for the ``number``-th time, in a new guest after one that killed its guest."""
    more = LARGE_APPEND if kernel == LARGE else ()
    guest = machine.Machine(cpus=tests[0].cpus, memory=2 * _NODE, nodes=(_NODE,) * 2, append=_APPEND + more)
    image = images[("stock" if kernel == LARGE else kernel) + (_KVM_KERNEL if tests[0].suite == "kvm" else "")]

    def boot(left: Sequence[Selftest]) -> dict[str, steps.Said]:
        return steps.boot(kernel, image, guest, [step_of(test) for test in left], cache, setup=_SETUP, data=disk)

    found = steps.run_all(tests, boot)
    for name, said in found.items():
        steps.keep(logs / kernel, f"{name}.{number}", said.whole())
    return {name: read_outcome(said) for name, said in found.items()}


def groups(tests: Sequence[Selftest]) -> list[list[Selftest]]:
    """``tests`` in order, in groups that share a guest: up to ``_GROUP`` of the same kind."""
    result = []
    for _, group in groupby(tests, lambda test: (test.cpus, test.suite == "kvm")):
        kind = list(group)
        result += [kind[first : first + _GROUP] for first in range(0, len(kind), _GROUP)]
    return result


def compare_all(
    tests: Sequence[Selftest], run_on: Callable[[str, Sequence[Selftest], int], dict[str, Outcome]]
) -> list[Case]:
    """Run ``tests`` on both kernels in turn, and again if they differ, in the end on stock with large folios."""
    rounds: dict[str, list[Round]] = {test.name: [] for test in tests}
    large: dict[str, list[Outcome]] = {test.name: [] for test in tests}

    def both(wanted: Sequence[Selftest], number: int) -> None:
        with ui.progress("selftests", len(wanted)) as bar:
            for group in groups(wanted):
                stock, quell = (run_on(kernel, group, number) for kernel in KERNELS)
                for test in group:
                    rounds[test.name].append((stock[test.name], quell[test.name]))
                bar.advance(len(group))

    both(tests, 1)
    again = [test for test in tests if differences(*rounds[test.name][0])]
    if again:
        ui.note(f"not the same: {', '.join(test.name for test in again)}; running them again")
    for first, last in ((2, _ROUNDS), (_ROUNDS + 1, _MOST_ROUNDS)):
        for number in range(first, last + 1) if again else ():
            both(again, number)
        again = [test for test in again if judge(rounds[test.name])]
    for number in range(1, _ROUNDS + 1):
        for group in groups(again):
            for name, outcome in run_on(LARGE, group, number).items():
                large[name].append(outcome)
    return [case(test.name, rounds[test.name], large[test.name]) for test in tests]


def test_selftests(results: Results, origin: source.Source, cache: Cache) -> None:
    """Build, run on both kernels, compare."""
    prereq.ensure(prereq.XFS)
    kernels = build.build_kernels(origin, [f"{name}{kvm}" for name in KERNELS for kvm in ("", _KVM_KERNEL)], cache)
    images = {name: kernel.image for name, kernel in kernels.items()}
    disk = _build(origin, cache)
    logs = cache.logs / "selftests" / origin.linux
    shutil.rmtree(logs, ignore_errors=True)
    there = [test for test in TESTS if (disk.parent / "root" / test.suite / test.program).exists()]
    results.add(*compare_all(there, partial(run, images, disk, logs, cache)))
    for test in (one for one in TESTS if one not in there):
        results.skip(test.name, f"Linux {origin.linux} does not have it")
    ui.note(f"output of the tests: {logs}")
