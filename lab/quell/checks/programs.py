# SPDX-License-Identifier: GPL-2.0-only
"""Run common programs, with their own checks, under memory pressure.

They run on stock and on Quell, in VMs so small that reclaim never rests. The host computes the
expected results, or they follow from the program's own rules (balances that add up, checksums,
fsck). A program that is not installed is skipped.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from quell import build, debian, disks, machine, prereq, proc, source, ui
from quell.checks import Case, CheckResult, ktap, steps
from quell.checks.stress import TOLERANCE, compare_rates
from quell.errors import QuellError, UsageError
from quell.frames import DATA_DIR
from quell.paths import Cache, repo_root

KERNELS = ("stock", "quell")
LONG_ROUNDS = 3
# If reclaim frees fewer pages, there was no memory pressure.
_LEAST_STOLEN = 2000


@dataclass(frozen=True)
class Program:
    """A program, and its expected results.

    ``prepare`` fills a folder of the host, which becomes the guest's current folder, and returns
    the expected results: ``script`` prints lines ``result NAME VALUE``, and ``not ok WHY`` when a
    check fails. ``memory`` is the guest's, ``limit`` in seconds. ``room`` is the free space of the
    disk, in MiB. ``before`` runs in the guest first, untimed. ``fetch`` gets a program that the
    package manager must not install; QuellError if it is unavailable.
    """

    name: str
    prepare: Callable[[Path, Cache], Mapping[str, str]]
    script: str
    memory: str
    limit: int
    needs: tuple[prereq.Prerequisite, ...] = ()
    room: int = 64
    before: str = ""
    fetch: Callable[[Cache], object] | None = None


_LENGTH = 2432


def _value(number: int, factor: int) -> str:
    """Text of ``_LENGTH`` characters that differs for each number and factor."""
    return hashlib.sha256(f"{number} {factor}".encode()).hexdigest() * (_LENGTH // 64)


# --- SQLite: a mapped database, read by two while a third writes ----------------------------------

_ROWS = 25_000


def _prepare_sqlite(folder: Path, _: Cache) -> dict[str, str]:
    with closing(sqlite3.connect(folder / "db")) as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT)")
        db.executemany(
            "INSERT INTO t VALUES (?, ?, ?)",
            ((i, i * 48271 % 1000003, _value(i, 1)) for i in range(_ROWS)),
        )
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


_SQLITE = f"""
P='PRAGMA mmap_size=1073741824; PRAGMA busy_timeout=600000; PRAGMA cache_size=-2000;'
ask() {{ sqlite3 -batch -noheader db "$P $1" | tail -n 1; }}
SUMS='SELECT count(*), sum(k), sum(length(v)) FROM t'
reader() {{
	while [ ! -e /run/work/written ]; do
		[ "$(ask 'SELECT count(*) FROM t WHERE length(v) NOT IN (5, {_LENGTH})')" = 0 ] || echo 'not ok a reader'
	done
}}
reader & one=$!
reader & two=$!
for part in 0 1 2 3; do
	ask "UPDATE t SET v = 'short' WHERE id % 3 = 0 AND id / 3 % 4 = $part" >/dev/null
done
touch /run/work/written; wait $one $two
echo "result integrity $(ask 'PRAGMA integrity_check')"
echo "result rows $(ask "$SUMS")"
echo "result written $(ask "SELECT count(*), sum(k) FROM t INDEXED BY tk WHERE k >= 0 AND v = 'short'")"
"""


# --- Redis: a snapshot by fork() while everything is overwritten -----------------------------------

_KEYS = 12_000


def _prepare_redis(folder: Path, _: Cache) -> dict[str, str]:
    def lines(name: str, text: Callable[[int], str], numbers: Sequence[int]) -> None:
        with (folder / name).open("w", newline="") as file:
            file.writelines(text(i) for i in numbers)

    everything, some = range(_KEYS), range(0, _KEYS, 2)
    lines("load", lambda i: f"SET key:{i} {_value(i, 1)}\r\n", everything)
    lines("change", lambda i: f"SET key:{i} {_value(i, 2)}\r\n", some)
    lines("get", lambda i: f"GET key:{i}\n", everything)
    lines("snapshot", lambda i: f"{_value(i, 1)}\n", everything)
    lines("now", lambda i: f"{_value(i, 1 + (i % 2 == 0))}\n", everything)
    return {
        word: hashlib.sha256((folder / word).read_bytes()).hexdigest() for word in ("snapshot", "now")
    }


# The server is redis-check-rdb under another name: the server's package would start it on the host.
_REDIS = """
rm -f snapshot now
truncate -s 0 swap; fallocate -l 128M swap; chmod 600 swap; mkswap swap >/dev/null; swapon swap
ln -s "$(command -v redis-check-rdb)" redis-server
cli() { redis-cli -s /run/work/redis "$@"; }
serve() {
	./redis-server --port 0 --unixsocket /run/work/redis --save '' --appendonly no --dir . >/run/work/log 2>&1 &
	server=$!
	until [ "$(cli ping 2>&1)" = PONG ]; do
		kill -0 $server || { cat /run/work/log; echo 'not ok the server ended'; exit 1; }
		sleep 0.3
	done
}
content() { cli --raw < get | sha256sum | cut -d' ' -f1; }
serve
cli --pipe < load | grep -q 'errors: 0' || echo 'not ok loading'
cli bgsave >/dev/null
cli --pipe < change | grep -q 'errors: 0' || echo 'not ok changing'
while cli info persistence | grep -q bgsave_in_progress:1; do sleep 0.5; done
cli info persistence | grep -q last_bgsave_status:ok || echo 'not ok the snapshot'
echo "result now $(content)"
cli shutdown nosave; wait $server
serve
echo "result snapshot $(content)"
cli shutdown nosave
"""


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
    found = sorted(root.glob(pattern), key=lambda path: int(path.parts[-3]))
    if not found:
        raise QuellError("Debian's package postgresql has no initdb")
    return root, found[-1].parent.relative_to(root)


def _prepare_postgres(folder: Path, cache: Cache) -> dict[str, str]:
    root, programs = _postgres(cache)
    (folder / "root").symlink_to(root)
    (folder / "bin").symlink_to(f"/run/work/root/{programs}")
    return {
        "balances": "t|t|t", "history": str(_CLIENTS * _TRANSACTIONS),
        "accounts": str(_SCALE * 100_000), "indexes": "3",
    }  # fmt: skip


# The server refuses root. The mount is for folders above the cache that are closed to other users.
_POSTGRES_BEFORE = """
export as='setpriv --reuid=65534 --regid=65534 --clear-groups'
export LD_LIBRARY_PATH=/run/work/root/usr/lib/x86_64-linux-gnu
mkdir /run/work/root && mount --bind "$(readlink root)" /run/work/root
mkdir pg && chown 65534:65534 pg && chmod 755 .
$as bin/initdb -N -k -A trust -U postgres -D pg >/run/work/initdb 2>&1
"""
_POSTGRES_SCRIPT = f"""
[ -e pg/PG_VERSION ] || {{ cat /run/work/initdb; echo 'not ok initdb'; exit 1; }}
$as touch /run/work/pglog
control() {{
	$as bin/pg_ctl -s -w -t 300 -D pg -l /run/work/pglog \\
		-o '-k /run/work -c listen_addresses= -c shared_buffers=12MB -c max_wal_size=64MB' "$@" ||
		{{ cat /run/work/pglog; echo "not ok pg_ctl $*"; exit 1; }}
}}
ask() {{ bin/psql -h /run/work -U postgres -AtXq -c "$1" postgres; }}
control start
bin/pgbench -h /run/work -U postgres -i -q -s {_SCALE} postgres >/run/work/init 2>&1 || {{ cat /run/work/init; echo 'not ok pgbench -i'; }}
bin/pgbench -h /run/work -U postgres -c {_CLIENTS} -j 2 -t {_TRANSACTIONS} postgres >/run/work/bench 2>&1 ||
	{{ cat /run/work/bench; echo 'not ok pgbench'; }}
# Like a power cut: the log must restore everything.
control -m immediate stop
control start
echo "result balances $(ask 'SELECT a = b, a = t, a = h FROM
	(SELECT sum(abalance) a FROM pgbench_accounts) q1, (SELECT sum(bbalance) b FROM pgbench_branches) q2,
	(SELECT sum(tbalance) t FROM pgbench_tellers) q3, (SELECT sum(delta) h FROM pgbench_history) q4')"
echo "result history $(ask 'SELECT count(*) FROM pgbench_history')"
echo "result accounts $(ask 'SELECT count(*) FROM pgbench_accounts')"
ask 'CREATE EXTENSION amcheck'
echo "result indexes $(ask "SELECT count(bt_index_parent_check(oid, true)) FROM pg_class
	WHERE relname LIKE 'pgbench%pkey'")"
control -m fast stop
$as bin/pg_checksums -c -D pg >/run/work/sums 2>&1 || {{ cat /run/work/sums; echo 'not ok pg_checksums'; }}
"""


# --- git: a repository of loose objects is packed ---------------------------------------------------

_GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "quell", "GIT_AUTHOR_EMAIL": "quell", "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_NAME": "quell", "GIT_COMMITTER_EMAIL": "quell",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
}  # fmt: skip
_COMMITS = 3


def _prepare_git(folder: Path, cache: Cache) -> dict[str, str]:
    repo = folder / "repo"
    repo.mkdir()
    tree = source.debian_source(cache).tree

    def git(*args: str) -> str:
        return proc.run(["git", *args], cwd=repo, env=_GIT, timeout=600).stdout.strip()

    git("init", "-q")
    for name in ("mm", "lib", "kernel"):
        shutil.copytree(tree / name, repo / name, symlinks=True)
    for commit in range(_COMMITS):
        for number, path in enumerate(sorted(repo.glob("*/*.c"))):
            if number % _COMMITS == commit:
                path.write_text(f"{path.read_text()}/* {commit}: {_value(number, commit)} */\n")
        git("add", "-A")
        git("commit", "-q", "-m", f"commit {commit}")
    head = git("rev-parse", "HEAD")
    files = git("ls-files", "-s")
    return {
        "head": head, "files": hashlib.sha256(files.encode() + b"\n").hexdigest(), "status": "0",
        "loose": "0",
    }  # fmt: skip


_GIT_SCRIPT = """
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_OPTIONAL_LOCKS=0
cd repo; chown -R root:root .
git -c pack.threads=2 -c pack.windowMemory=24m -c gc.writeCommitGraph=true gc -q --prune=now || echo 'not ok git gc'
git fsck --full --strict >/run/work/fsck 2>&1 || { cat /run/work/fsck; echo 'not ok git fsck'; }
rm -rf mm lib kernel
git checkout -q . || echo 'not ok git checkout'
echo "result head $(git rev-parse HEAD)"
echo "result files $(git ls-files -s | sha256sum | cut -d' ' -f1)"
# New times make git status read each file again.
sleep 1; git ls-files | xargs -d '\\n' touch
echo "result status $(git status --porcelain | wc -l)"
echo "result loose $(git count-objects | cut -d' ' -f1)"
"""


# --- gcc: the same objects as on the host, and a program that works --------------------------------

# More would take minutes under emulation.
_COMPILED = ("workloads/mapped-read", "workloads/fault", "workloads/zap", "workloads/spin-read")
_FLAGS = "-O2 -Wall -I workloads -pthread"


def _prepare_gcc(folder: Path, _: Cache) -> dict[str, str]:
    """The compiler itself is on the disk: a big executable that is mapped."""
    (folder / "bin").mkdir()
    for tool in ("cc1", "as", "ld", "collect2"):
        found = proc.run(["gcc", f"-print-prog-name={tool}"], timeout=30).stdout.strip()
        path = found if "/" in found else prereq.which(found)
        if path is None:
            raise QuellError(f"gcc does not say where {tool} is")
        shutil.copy(os.path.realpath(path), folder / "bin" / tool)
    root = repo_root()
    shutil.copytree(root / "workloads", folder / "workloads")
    sources = [
        str(path.relative_to(folder))
        for name in _COMPILED for path in sorted((folder / name).glob("*.c"))
    ]
    (folder / "sources").write_text("".join(f"{name}\n" for name in sources))
    expected = {}
    with tempfile.TemporaryDirectory(prefix="quell-gcc-") as temp:
        for name in sources:
            out = Path(temp) / "out.o"
            proc.run(["gcc", *_FLAGS.split(), "-c", "-o", out, name], cwd=folder, timeout=300)
            expected[name] = hashlib.sha256(out.read_bytes()).hexdigest()
    return expected


_GCC_SCRIPT = f"""
export TMPDIR=$PWD
xargs -P 2 -I @ sh -c 'gcc -B ./bin/ {_FLAGS} -c -o @.o @ || echo "not ok compiling @"' < sources
while read name; do echo "result $name $(sha256sum < $name.o | cut -d' ' -f1)"; done < sources
gcc -B ./bin/ -static -pthread -o read workloads/mapped-read/mapped-read.c.o || echo 'not ok linking'
./read --make data 33554432 && ./read --threads 2 data >/dev/null || echo 'not ok running'
"""

PROGRAMS = (
    Program(
        "sqlite", _prepare_sqlite, _SQLITE, "96M", 400,
        (prereq.Prerequisite("sqlite3", "sqlite3", "is tested under memory pressure"),),
    ),
    Program(
        "redis", _prepare_redis, _REDIS, "128M", 400,
        (prereq.Prerequisite("redis-check-rdb", "redis-tools", "is tested under memory pressure"),),
        room=256,
    ),
    Program(
        "postgresql", _prepare_postgres, _POSTGRES_SCRIPT, "112M", 500,
        room=256, before=_POSTGRES_BEFORE, fetch=_postgres,
    ),
    Program(
        "git", _prepare_git, _GIT_SCRIPT, "96M", 600,
        (prereq.Prerequisite("git", "git", "is tested under memory pressure"),),
    ),
    Program(
        "gcc", _prepare_gcc, _GCC_SCRIPT, "112M", 600,
        (prereq.Prerequisite("gcc", "gcc", "is tested under memory pressure"),),
    ),
)  # fmt: skip


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


def judge(
    name: str, runs: Mapping[str, Sequence[steps.Said]], expected: Mapping[str, str], accel: str
) -> tuple[Case, str]:
    """The case of a program, and its row of the table."""
    wrong = {kernel: [text for said in runs[kernel] for text in problems(said, expected)] for kernel in KERNELS}
    stock, quell = ([said.seconds for said in runs[kernel] if said.seconds] for kernel in KERNELS)
    fast, change = compare_rates(
        [1 / value for value in stock], [1 / value for value in quell], TOLERANCE[accel]
    )
    why = [f"on Quell: {text}" for text in wrong["quell"]]
    # If stock fails as well, the check is wrong or the guest too small.
    why += [f"on stock: {text}" for text in wrong["stock"]]
    if not fast:
        why.append(f"speed {change}")
    case = Case(name, "failed" if why else "passed", "\n".join(dict.fromkeys(why)), sum(quell))
    figures = [f"{statistics.median(values):.1f} s" if values else "-" for values in (stock, quell)]
    last = runs["quell"][-1]
    verdict = "ok" if not why else f"failed: {why[0]}"
    return case, (
        f"{name:<12} {figures[0]:>9} {figures[1]:>9} {change:<28} {last.stolen:>9} {last.parked:>9}"
        f"  {len(expected)} results {verdict}"
    )


_HEAD = f"{'program':<12} {'stock':>9} {'Quell':>9} {'speed':<28} {'reclaimed':>9} {'deferred':>9}"


def _run_program(
    program: Program, rounds: int, kernels: Mapping[str, build.Kernel], accel: str, cache: Cache
) -> tuple[Case, str]:
    with tempfile.TemporaryDirectory(prefix="programs-", dir=cache.folder("run")) as temp:
        root, disk = Path(temp) / "root", Path(temp) / "disk.ext4"
        root.mkdir()
        expected = program.prepare(root, cache)
        disks.make_ext4(disk, root, room=program.room * machine.MIB)
        shutil.rmtree(root)
        guest = machine.Machine(
            memory=machine.parse_memory(program.memory), append=("no_timer_check",)
        )
        step = steps.Step(
            program.name, program.script, program.limit,
            f"cd {DATA_DIR}\n{program.before}\necho 3 > /proc/sys/vm/drop_caches",
        )  # fmt: skip
        runs: dict[str, list[steps.Said]] = {kernel: [] for kernel in KERNELS}
        for number in range(rounds):
            for kernel in KERNELS:
                image = kernels[kernel].image
                said = steps.boot(kernel, image, guest, [step], cache, data=disk)[program.name]
                name = f"{program.name}.{kernel}.{number}"
                steps.keep(cache.logs / "programs", name, said.whole())
                runs[kernel].append(said)
        return judge(program.name, runs, expected, accel)


def run_programs(cache: Cache, programs: Sequence[Program], rounds: int) -> CheckResult:
    """Run ``programs`` on both kernels in turn, ``rounds`` times."""
    prereq.ensure(prereq.VM)
    kernels = build.build_kernels(source.debian_source(cache), KERNELS, cache)
    accel = machine.choose_accelerator("auto", kernels["stock"].image, cache).name
    cases, rows = [], [_HEAD]
    with ui.progress("programs", len(programs)) as bar:
        for program in programs:
            try:
                prereq.ensure(program.needs)
                if program.fetch:
                    program.fetch(cache)
            except QuellError as error:
                case, row = Case(program.name, "skipped", error.message), f"{program.name}: {error.message}"
            else:
                try:
                    case, row = _run_program(program, rounds, kernels, accel, cache)
                except UsageError:
                    raise
                except QuellError as error:
                    why = "\n".join(filter(None, [error.message, error.detail, str(error.log or "")]))
                    case, row = Case(program.name, "failed", why), f"{program.name}: {error.message}"
            cases.append(case)
            rows.append(row)
            bar.advance()
    rows += [f"not ok: {c.name}: {line}" for c in cases if c.status == "failed" for line in c.why.splitlines()]
    logs = cache.logs / "programs"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "summary.ktap").write_text(ktap(cases))
    rows.append(f"output of the programs: {logs}")
    return CheckResult.of(cases, "\n".join(rows))


def run(cache: Cache) -> CheckResult:
    """Run each program once on each kernel."""
    return run_programs(cache, PROGRAMS, 1)


def run_full(cache: Cache) -> CheckResult:
    """The same LONG_ROUNDS times, to compare the kernels' speed."""
    return run_programs(cache, PROGRAMS, LONG_ROUNDS)
