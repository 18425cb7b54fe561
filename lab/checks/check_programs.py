# SPDX-License-Identifier: GPL-2.0-only
"""Run common programs, with their own checks, under memory pressure.

They run on stock and on Quell, in VMs so small that reclaim never rests. The host computes the
expected results, or they follow from the program's own rules (balances that add up, checksums,
fsck). A program that is not installed is skipped.
"""

import hashlib
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from checks import scenario, steps
from checks.check_stress import LONG_ROUNDS, TOLERANCE, compare_rates
from checks.cases import Case, settle
from quell import build, debian, disks, machine, prereq, proc, source, tree
from quell.errors import UsageError
from quell.frames import DATA_DIR
from quell.paths import Cache, repo_root

KERNELS = ("stock", "quell")
# If reclaim frees fewer pages, there was no memory pressure.
_LEAST_STOLEN = 2000


@dataclass(frozen=True)
class Program:
    """A program, and its expected results.

    ``prepare`` fills a folder of the host, which becomes the guest's current folder, and returns the
    expected results; UsageError if the program is unavailable. ``scenarios/programs/NAME.sh`` prints
    lines ``result NAME VALUE``, and ``not ok WHY`` when a check fails. NAME-before.sh, if there is one,
    runs first, untimed. ``memory`` is the guest's, ``limit`` in seconds, ``room`` the free space of the
    disk, in MiB.
    """

    name: str
    prepare: Callable[[Path, Cache], Mapping[str, str]]
    memory: str
    limit: int
    room: int = 64


def _install(program: str, package: str) -> None:
    prereq.ensure([prereq.Prerequisite(program, package, "is tested under memory pressure")])


_LENGTH = 2432


def _value(number: int, factor: int) -> str:
    """Text of ``_LENGTH`` characters that differs for each number and factor."""
    return hashlib.sha256(f"{number} {factor}".encode()).hexdigest() * (_LENGTH // 64)


# --- SQLite: a mapped database, read by two while a third writes ----------------------------------

_ROWS = 25_000


def _prepare_sqlite(folder: Path, _: Cache) -> dict[str, str]:
    _install("sqlite3", "sqlite3")
    with closing(sqlite3.connect(folder / "db")) as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT)")
        db.executemany("INSERT INTO t VALUES (?, ?, ?)", ((i, i * 48271 % 1000003, _value(i, 1)) for i in range(_ROWS)))
        db.execute("CREATE INDEX tk ON t(k)")
        db.execute("PRAGMA journal_mode=WAL")
        db.commit()
    written = range(0, _ROWS, 3)
    keys = sum(i * 48271 % 1000003 for i in range(_ROWS))
    return {
        "integrity": "ok",
        "rows": f"{_ROWS}|{keys}|{_LENGTH * _ROWS - (_LENGTH - 5) * len(written)}",
        "written": f"{len(written)}|{sum(k * 48271 % 1000003 for k in written)}",
    }


# --- Redis: a snapshot by fork() while everything is overwritten -----------------------------------

_KEYS = 12_000


def _prepare_redis(folder: Path, _: Cache) -> dict[str, str]:
    _install("redis-check-rdb", "redis-tools")

    def lines(name: str, text: Callable[[int], str], numbers: Sequence[int]) -> None:
        with (folder / name).open("w", newline="") as file:
            file.writelines(text(i) for i in numbers)

    everything, some = range(_KEYS), range(0, _KEYS, 2)
    lines("load", lambda i: f"SET key:{i} {_value(i, 1)}\r\n", everything)
    lines("change", lambda i: f"SET key:{i} {_value(i, 2)}\r\n", some)
    lines("get", lambda i: f"GET key:{i}\n", everything)
    lines("snapshot", lambda i: f"{_value(i, 1)}\n", everything)
    lines("now", lambda i: f"{_value(i, 1 + (i % 2 == 0))}\n", everything)
    return {word: hashlib.sha256((folder / word).read_bytes()).hexdigest() for word in ("snapshot", "now")}


# --- PostgreSQL: money is neither made nor lost ----------------------------------------------------

_CLIENTS, _TRANSACTIONS, _SCALE = 4, 60, 2
_INSTALLED = Path("/")


def _postgres(cache: Cache) -> tuple[Path, Path]:
    """A root folder that has PostgreSQL, and the folder of its newest programs below it.

    If it is not installed it is fetched into the cache: installing it would start a server here.
    """
    pattern = "usr/lib/postgresql/*/bin/initdb"
    root = _INSTALLED
    if not any(root.glob(pattern)):
        root = debian.fetch(["postgresql"], cache, ["PostgreSQL"])
    newest = max(root.glob(pattern), key=lambda path: int(path.parts[-3]))
    return root, newest.parent.relative_to(root)


def _prepare_postgres(folder: Path, cache: Cache) -> dict[str, str]:
    root, programs = _postgres(cache)
    (folder / "root").symlink_to(root)
    (folder / "bin").symlink_to(f"/run/work/root/{programs}")
    return {
        "balances": "t|t|t", "history": str(_CLIENTS * _TRANSACTIONS),
        "accounts": str(_SCALE * 100_000), "indexes": "3",
    }  # fmt: skip


# --- git: a repository of loose objects is packed ---------------------------------------------------

_COMMITS = 3


def _prepare_git(folder: Path, cache: Cache) -> dict[str, str]:
    repo = folder / "repo"
    repo.mkdir()
    git = partial(source.git, cwd=repo, env={**tree.NOBODY.env("AUTHOR"), **tree.NOBODY.env("COMMITTER")})
    git("init", "-q")
    for name in ("mm", "lib", "kernel"):
        shutil.copytree(source.debian_source(cache).tree / name, repo / name, symlinks=True)
    for commit in range(_COMMITS):
        for number, path in enumerate(sorted(repo.glob("*/*.c"))):
            if number % _COMMITS == commit:
                path.write_text(f"{path.read_text()}/* {commit}: {_value(number, commit)} */\n")
        git("add", "-A")
        git("commit", "-q", "-m", f"commit {commit}")
    files = hashlib.sha256(git("ls-files", "-s").encode()).hexdigest()
    return {"head": git("rev-parse", "HEAD").strip(), "files": files, "status": "0", "loose": "0"}


# --- gcc: the same objects as on the host, and a program that works --------------------------------

# More would take minutes under emulation.
_COMPILED = ("workloads/mapped-read", "workloads/fault", "workloads/zap", "workloads/anon-memory")
_FLAGS = "-O2 -Wall -I workloads -pthread"


def _prepare_gcc(folder: Path, _: Cache) -> dict[str, str]:
    """The compiler itself is on the disk: a big executable that is mapped."""
    (folder / "bin").mkdir()
    for tool in ("cc1", "as", "ld", "collect2"):
        found = proc.run(["gcc", f"-print-prog-name={tool}"], timeout=30).stdout.strip()
        shutil.copy(os.path.realpath(shutil.which(found) or found), folder / "bin" / tool)
    shutil.copytree(repo_root() / "workloads", folder / "workloads")
    sources = [str(path.relative_to(folder)) for name in _COMPILED for path in sorted((folder / name).glob("*.c"))]
    (folder / "sources").write_text("".join(f"{name}\n" for name in sources))
    expected = {}
    with tempfile.TemporaryDirectory(prefix="quell-gcc-") as temp:
        for name in sources:
            out = Path(temp) / "out.o"
            proc.run(["gcc", *_FLAGS.split(), "-c", "-o", out, name], cwd=folder, timeout=300)
            expected[name] = hashlib.sha256(out.read_bytes()).hexdigest()
    return expected


PROGRAMS = (
    Program("sqlite", _prepare_sqlite, "96M", 400),
    Program("redis", _prepare_redis, "128M", 400, room=256),
    Program("postgresql", _prepare_postgres, "112M", 500, room=256),
    Program("git", _prepare_git, "96M", 600),
    Program("gcc", _prepare_gcc, "112M", 600),
)
_WORDS = {
    "LENGTH": _LENGTH, "CLIENTS": _CLIENTS, "TRANSACTIONS": _TRANSACTIONS, "SCALE": _SCALE, "FLAGS": _FLAGS,
}  # fmt: skip


def script(program: Program) -> str:
    """The guest's script of a program."""
    return scenario.shell(f"programs/{program.name}.sh", **_WORDS)


# --- judging ------------------------------------------------------------------------------------

_RESULT = re.compile(r"^result (\S+) (.*)$", re.M)
_NOT_OK = re.compile(r"^not ok (.*)$", re.M)


def problems(said: steps.Said, expected: Mapping[str, str]) -> list[str]:
    """The errors of one run."""
    found = dict(_RESULT.findall(said.text))
    wrong = _NOT_OK.findall(said.text)
    wrong += [
        f"{name} is {found.get(name, 'missing')}, not {value}"
        for name, value in expected.items() if found.get(name) != value
    ]  # fmt: skip
    if said.status != "pass":
        wrong.append(f"{said.status}: {proc.tail(said.text, 3)}")
    wrong += steps.complaints(said.log)
    if not wrong and said.stolen < _LEAST_STOLEN:
        wrong.append(f"reclaim freed only {said.stolen} pages: there was no memory pressure")
    return wrong


def judge(name: str, runs: Mapping[str, Sequence[steps.Said]], expected: Mapping[str, str], accel: str) -> Case:
    """The case of a program. If stock fails as well, the check is wrong or the guest too small."""
    why = [f"on {kernel}: {text}" for kernel in KERNELS for said in runs[kernel] for text in problems(said, expected)]
    stock, quell = ([1 / said.seconds for said in runs[kernel] if said.seconds] for kernel in KERNELS)
    fast, change = compare_rates(stock, quell, TOLERANCE[accel])
    if not fast:
        why.append(f"speed {change}")
    last = runs["quell"][-1]
    said = f"{name}: speed {change}, {last.stolen} pages reclaimed, {last.parked} deferred, {len(expected)} results"
    seconds = sum(said.seconds for said in runs["quell"])
    return Case(name, "failed" if why else "passed", "\n".join(dict.fromkeys(why)), seconds, said)


@pytest.fixture(scope="module")
def kernels(origin: source.Source, cache: Cache) -> dict[str, build.Kernel]:
    """Both kernels."""
    prereq.ensure(prereq.VM)
    return build.build_kernels(origin, KERNELS, cache)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program(
    program: Program, kernels: dict[str, build.Kernel], origin: source.Source, folder: Path, cache: Cache, full: bool
) -> None:
    """Run a program on both kernels in turn; three times in the long form, to compare the speed."""
    name, root, disk = program.name, folder / "root", folder / "disk.ext4"
    root.mkdir()
    try:
        expected = program.prepare(root, cache)
    except UsageError as error:
        pytest.skip(error.message)
    disks.make_ext4(disk, root, room=program.room * machine.MIB)
    guest = machine.Machine(memory=machine.parse_memory(program.memory))
    before = scenario.FOLDER / f"programs/{name}-before.sh"
    first = f"cd {DATA_DIR}\n{before.read_text() if before.exists() else ''}\necho 3 > /proc/sys/vm/drop_caches"
    step = steps.Step(name, script(program), program.limit, first)
    runs: dict[str, list[steps.Said]] = {kernel: [] for kernel in KERNELS}
    for number, kernel in enumerate(KERNELS * (LONG_ROUNDS if full else 1)):
        said = steps.boot(kernel, kernels[kernel].image, guest, [step], cache, data=disk)[name]
        steps.keep(cache.logs / "programs", f"{name}.{kernel}-{origin.linux}.{number}", said.whole())
        runs[kernel].append(said)
    accel = machine.choose_accelerator("auto", kernels["stock"].image, cache).name
    settle(judge(name, runs, expected, accel))
