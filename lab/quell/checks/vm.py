# SPDX-License-Identifier: GPL-2.0-only
"""VM tests: boot the Quell kernel, run its own selftests, check data.

The selftests are C programs in ``kernel/files/tools/testing/selftests/quell``, Linux's
folder for such tests; their output is TAP.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from quell import build, counters, disks, machine, prereq, proc, source, tree, workload
from quell.checks import Case, CheckResult, steps
from quell.errors import QuellError
from quell.frames import DATA_DIR
from quell.paths import Cache, repo_root

_TAP = re.compile(r"^(not )?ok \d+ (?:- )?(.*?)( # SKIP.*)?$", re.M)
_PLAN = re.compile(r"^1\.\.(\d+)", re.M)
_BAIL_OUT = re.compile(r"^Bail out!.*", re.M)
SELFTESTS = "files/tools/testing/selftests/quell"
# Selftests that move pages between NUMA nodes.
_NEED_NODES = ("luf_migrate",)
# Selftests that need nodes, a RAM disk for swap, and a file system with large folios.
_LARGE_FOLIOS = ("rmap_batch", "rmap_torture")
# The selftest that swaps, and needs no data.
_SWAPS = "writeout_batch"
_SWAP_KB = 32768
# Two requests meet at a target only if two initiators send them. security's attackers and victims
# run on separate CPUs.
_CPUS = {"early_ack": 4, "security": 4}
# Zeroing in the allocator would hide a fault handler that does not zero.
_APPEND = {"security": ("init_on_alloc=0",)}
# Spinning on more CPUs than the host has is slow; this many rounds find every mutation.
_ROUNDS = {"early_ack": ("4000",)}
# Lines that are kept after a complaint of the kernel.
_TRACE_LINES = 40
# A guest takes a minute, longer on a busy host.
_TIMEOUT_S = 900
# Shootdowns in the long form; after each one other CPUs look for a stale translation.
_FULL_ROUNDS = 10**7
# Not "mount -o loop": mount(8) would keep the loop device open for writing, which a kernel may refuse.
_MAKE = "truncate -s 400M $I; mkfs.%s $I >/dev/null 2>&1; mount $O $(losetup -f --show $I) $M"
_WRITABLE = _MAKE + "; $T $M $N"
_READ_ONLY = (
    "mkdir /dev/shm/src; $T --make /dev/shm/src; %s >/dev/null;"
    " mount -r $(losetup -f -r --show $I) $M; $T $M"
)
_FILE_SYSTEMS = {
    "ext4 with quotas": "O='-o usrquota'; " + _WRITABLE % "ext4" + " quota",
    "xfs": _WRITABLE % "xfs",
    "btrfs": _WRITABLE % "btrfs",
    "f2fs": _WRITABLE % "f2fs",
    "erofs": _READ_ONLY % "mkfs.erofs $I /dev/shm/src",
    "squashfs": _READ_ONLY % "mksquashfs /dev/shm/src $I -comp gzip",
}


@dataclass
class _Tally:
    """Collects results; ``how`` has further arguments for ``machine.run_script()``."""

    cases: list[Case] = field(default_factory=list)
    details: str = ""
    how: Mapping[str, Any] = field(default_factory=dict)

    def check(self, good: bool, name: str, detail: str = "") -> None:
        self.cases.append(Case(name, "passed" if good else "failed", "" if good else detail))
        if not good:
            self.details += f"not ok: {name}\n" + (f"{detail}\n" if detail else "")


def read_tap(text: str) -> tuple[list[str], list[str], list[str]]:
    """(passed, failed, skipped) names of a TAP stream.

    If the plan is missing or has another number, the test died halfway: one more
    failure.
    """
    found: tuple[list[str], list[str], list[str]] = ([], [], [])
    for bad, name, skip in _TAP.findall(text):
        found[1 if bad else 2 if skip else 0].append(name)
    plan = _PLAN.search(text)
    total = sum(map(len, found))
    if plan is None:
        found[1].append(f"the test ended early, after {total} results")
    elif int(plan[1]) != total:
        found[1].append(f"{plan[1]} results were planned, {total} came")
    elif total == 0:
        found[2].append(text.strip())
    return found


def tap_comments(text: str, name: str) -> str:
    """The comments after the result of test ``name`` in a TAP stream."""
    lines = text.splitlines()
    results = [number for number, line in enumerate(lines) if (hit := _TAP.match(line)) and hit[2] == name]
    if not results:
        return ""
    after = lines[results[0] + 1 :]
    return "\n".join(takewhile(lambda line: line.startswith("#"), after))


def selftests(folder: Path) -> dict[str, Path]:
    """The selftests by name, compiled into ``folder``."""
    built = {}
    for path in sorted((tree.kernel_dir() / SELFTESTS).glob("*.c")):
        built[path.stem] = folder / path.stem
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
        proc.run(["gcc", *flags, "-o", built[path.stem], path], timeout=300)
    return built


def _guest(tally: _Tally, *args: Any, **kwargs: Any) -> machine.GuestResult:
    """``machine.run_script()``; a complaint of the kernel is a failure."""
    append = [*tally.how.get("append", ()), *kwargs.get("append", ())]
    guest = machine.run_script(*args, **{**kwargs, **tally.how, "append": append})
    if said := steps.complaints(guest.console):
        after = guest.console.partition(said[0])[2].splitlines()[:_TRACE_LINES]
        tally.check(False, f"the kernel complained: {said[0]}", "\n".join(after))
    return guest


def _count(tally: _Tally, name: str, guest: machine.GuestResult) -> None:
    """Count the results of a selftest."""
    passed, failed, skipped = read_tap(guest.stdout)
    died = "\n".join(_BAIL_OUT.findall(guest.stdout))
    tally.cases += [Case(f"{name}: {test}") for test in passed]
    tally.cases += [Case(f"{name}: {test}", "skipped") for test in skipped]
    for test in failed:
        why = (tap_comments(guest.stdout, test), died, guest.stderr.strip())
        tally.check(False, f"{name}: {test}", "\n".join(filter(None, why)))
    if guest.exit_code and not failed:
        tally.check(False, f"{name} exited with {guest.exit_code}", guest.stderr)


# Selftests of the mechanisms, for versions of Linux after the first.
_CORE = ("switches", "luf_stale", "early_ack", "gather_range", "folio_order")


def _core(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    """The selftests in _CORE."""
    _selftests(tally, image, temp, cache, _CORE)


def _selftests(tally: _Tally, image: Path, temp: Path, cache: Cache, only: Sequence[str] = ()) -> None:
    root = temp / "root"
    root.mkdir()
    disk = temp / "disk.ext4"
    disks.make_ext4(disk, root)
    for name, program in selftests(temp).items():
        if name in (*_LARGE_FOLIOS, _SWAPS) or (only and name not in only):
            continue
        words = [str(program), DATA_DIR, *_ROUNDS.get(name, ())]
        try:
            guest = _guest(
                tally, image, words, data=disk, timeout=_TIMEOUT_S, cpus=_CPUS.get(name, 2),
                nodes=(256 * machine.MIB,) * 2 if name in _NEED_NODES else (), append=_APPEND.get(name, ()), cache=cache,
            )  # fmt: skip
        except machine.GuestTimeout as error:
            tally.check(False, f"{name}: {error.message}", f"log: {error.log}")
            continue
        _count(tally, name, guest)


_NAMES = "set -e; PATH=$PATH:/usr/sbin:/sbin; I=/dev/shm/image; M=/mnt"
# An empty xfs on /mnt, as shell, and the RAM disk that rmap_batch swaps to.
XFS = f"{_NAMES}; {_MAKE % 'xfs'}; set +e"
BRD = f"brd.rd_size={_SWAP_KB}"


def _mounted(program: Path, script: str, rounds: str = "") -> str:
    """One of _FILE_SYSTEMS for the guest's shell."""
    return f"{_NAMES}; T={program}; N={rounds}; {script}"


def _file_systems(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    """luf_stale on every file system that opted in; on ext4 only with quotas, which _selftests() lacks."""
    prereq.ensure(prereq.FILE_SYSTEMS)
    program = selftests(temp)["luf_stale"]
    for name, script in _FILE_SYSTEMS.items():
        guest = _guest(
            tally, image, _mounted(program, script, "5"), memory="1G", timeout=_TIMEOUT_S, cache=cache
        )
        _count(tally, f"luf_stale on {name}", guest)


def _by_itself(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    """The test of luf_stale that must run undisturbed by others."""
    words = [str(selftests(temp)["luf_stale"]), DATA_DIR, "5", "swap in"]
    guest = _guest(
        tally, image, words, data=temp / "disk.ext4", nodes=(256 * machine.MIB,) * 2, timeout=_TIMEOUT_S, cache=cache
    )
    _count(tally, "luf_stale", guest)


def _cma(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    """luf_stale with a CMA area, which page cache takes first as it is more than half of the memory."""
    prereq.ensure(prereq.FILE_SYSTEMS)
    script = _mounted(selftests(temp)["luf_stale"], _FILE_SYSTEMS["xfs"] + " CMA", "3")
    guest = _guest(
        tally, image, script, memory="512M", append=["cma=288M"], timeout=_TIMEOUT_S, cache=cache
    )
    _count(tally, "luf_stale", guest)


def _large_folios(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    """The selftests in _LARGE_FOLIOS, on xfs."""
    prereq.ensure(prereq.FILE_SYSTEMS)
    programs = selftests(temp)
    for name in _LARGE_FOLIOS:
        guest = _guest(
            tally, image, _mounted(programs[name], _FILE_SYSTEMS["xfs"]), nodes=(512 * machine.MIB,) * 2,
            append=[BRD], timeout=_TIMEOUT_S, cache=cache,
        )  # fmt: skip
        _count(tally, name, guest)


def _swaps(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    """writeout_batch, with a RAM disk to swap to and nodes to move pages between."""
    guest = _guest(
        tally, image, [str(selftests(temp)[_SWAPS]), "1"], nodes=(256 * machine.MIB,) * 2, append=[BRD],
        timeout=_TIMEOUT_S, cache=cache,
    )  # fmt: skip
    _count(tally, _SWAPS, guest)


def _mapped_read(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    """The workload checks every page that it reads; lazy unmap flush must defer pages meanwhile."""
    memory = "128M"
    one = workload.select(["mapped-read"])[0]
    ready = workload.prepare(one, machine.parse_memory(memory), cache, {})
    for args, parks in (((), True), (("quell=off",), False)):
        guest = _guest(
            tally, image, list(ready.argv), data=ready.data, stage=ready.programs, memory=memory, append=args,
            timeout=_TIMEOUT_S, cache=cache,
        )  # fmt: skip
        name = f"mapped-read in {memory}" + (f" with {args[0]}" if args else "")
        tally.check(guest.exit_code == 0, f"{name} reads right data", guest.stderr)
        parked = counters.sample(guest.frames).extras["luf_park"] if guest.frames else -1
        tally.check(
            parked > 1000 if parks else parked == 0, f"{name}: luf_park rose by {parked}"
        )


# Take each memory block offline and online once; count in $gone.
BLOCKS = """
	for block in /sys/devices/system/memory/memory*; do
		case $(cat $block/valid_zones) in *Movable*) ;; *) continue;; esac
		timeout 10 sh -c "echo offline > $block/state" && gone=$((gone + 1))
		sleep 0.2
		echo online_movable > $block/state || :
	done
"""
# The same while a workload runs that checks its data.
_HOTPLUG = f"""
WORK & work=$!; gone=0
for round in 1 2 3 4; do {BLOCKS} done
wait $work || exit
echo "$gone blocks went offline" >&2
[ $gone -ge 4 ]
"""
_CGROUP_V1 = """
mount -t cgroup -o memory none /mnt && mkdir /mnt/it &&
echo 64M > /mnt/it/memory.limit_in_bytes && echo $$ > /mnt/it/cgroup.procs || exit
WORK || exit
[ $(cat /mnt/it/memory.failcnt) -gt 0 ] || { echo 'the limit was never hit' >&2; exit 1; }
"""
_SURROUNDINGS = {
    "memory goes and comes": (_HOTPLUG, "640M", ("movablecore=384M",)),
    "limit of a version 1 cgroup": (_CGROUP_V1, "256M", (
        "systemd.unified_cgroup_hierarchy=0",
    )),
}


def _surroundings(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    """mapped-read's program, which checks all its data, with memory hotplug and a version 1 cgroup."""
    one = workload.select(["mapped-read"])[0]
    # More data than the largest of these guests can cache with every block online: reclaim is needed
    # even if all blocks are online most of the time.
    ready = workload.prepare(one, machine.parse_memory("160M"), cache, {})
    for name, (script, memory, append) in _SURROUNDINGS.items():
        guest = _guest(
            tally, image, script.replace("WORK", shlex.join(ready.argv)), data=ready.data,
            stage=ready.programs, memory=memory, append=append, timeout=_TIMEOUT_S, cache=cache,
        )  # fmt: skip
        parked = -1
        if guest.frames:
            # Lenient: a version 1 cgroup reports no peak.
            parked = int(counters.sample(guest.frames, lenient=True).extras["luf_park"])
        tally.check(
            guest.exit_code == 0 and parked > 1000, name, f"luf_park rose by {parked}\n{guest.stderr}"
        )


_ALL = {
    "unmap_batch", "concurrent", "zap_batch", "rmap_batch", "luf", "early_ack", "folio_order", "writeout_batch",
    "gather_range",
}  # fmt: skip


def _boot_parameter(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    script = "grep . /sys/kernel/mm/quell/*/enabled; dmesg | grep 'quell=' | grep -v Command || :"
    for param, on in (
        ("quell=off", {"unmap_batch", "concurrent", "zap_batch"}),
        ("quell=luf", {"unmap_batch", "concurrent", "zap_batch", "luf"}),
        ("quell=off,-zap_batch", {"unmap_batch", "concurrent"}),
        ("quell=on,luff", _ALL),
        # A typing error leaves the default, CONFIG_QUELL_DEFAULT_ON.
        ("quell=luff", _ALL),
    ):
        guest = _guest(tally, image, script, append=[param], cache=cache)
        found = set(re.findall(r"quell/(\w+)/enabled:1", guest.stdout))
        tally.check(found == on, f"{param} switches on {sorted(on)}", f"it is {sorted(found)}")
        if "luff" in param:
            said = guest.stdout + guest.console
            tally.check("no mechanism is called 'luff'" in said, f"{param} is complained about")


# Files that luf_exclude() must see: their smallest number, and a script that makes them. A btrfs
# block group smaller than 100M has no free space cache. mkfs.btrfs has -O instead of -R after
# version 6.2.
_BTRFS = (
    "truncate -s 4G $I; for o in R O; do mkfs.btrfs -f -$o ^free-space-tree $I >/dev/null 2>&1 && break; done;"
    " L=$(losetup -f --show $I);"
)
_ATOMIC_WRITE = _WRITABLE % "f2fs" + " 'after an atomic'"
_EXCLUDED = {
    "btrfs excludes its free space cache": (
        1, _BTRFS + " mount -o space_cache=v1 $L $M; head -c 64M /dev/zero > $M/file; sync"
    ),
    "btrfs excludes what it relocates by": (
        1,
        _BTRFS + " mount -o nospace_cache $L $M; head -c 1M /dev/zero > $M/file;"
        " btrfs balance start --full-balance $M >/dev/null",
    ),
    "f2fs excludes both files of an atomic write": (2, _ATOMIC_WRITE),
    "swapon excludes the file": (
        1,
        _MAKE % "ext4" + "; head -c 4M /dev/zero > $M/swap; chmod 600 $M/swap; mkswap $M/swap; sync;"
        " swapon $M/swap && swapoff $M/swap",
    ),
}  # fmt: skip
_EXCLUDE = """
mkdir /dev/shm/trace; mount -t tracefs tracefs /dev/shm/trace
echo 1 > /dev/shm/trace/events/luf/luf_exclude/enable
{ MAKE; } >&2
sed -n 's/.* luf_exclude: //p' /dev/shm/trace/trace | sort -u
"""


def _excluded(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    """luf_exclude() is called for files whose pages no selftest can check."""
    prereq.ensure(prereq.FILE_SYSTEMS)
    program = selftests(temp)["luf_stale"]
    for name, (least, make) in _EXCLUDED.items():
        script = _mounted(program, _EXCLUDE.replace("MAKE", make), "1")
        guest = _guest(tally, image, script, memory="1G", timeout=_TIMEOUT_S, cache=cache)
        files = guest.stdout.splitlines()
        good = guest.exit_code == 0 and len(files) >= least
        tally.check(good, name, f"{len(files)} files: {files}\n{guest.stderr}")


_TRACEPOINT = re.compile(r"^TRACE_EVENT\((\w+),", re.M)
_TRACE = """
D=/dev/shm/trace; mkdir $D && mount -t tracefs tracefs $D && echo 8192 > $D/buffer_size_kb || exit
for event in EVENTS; do echo 1 > $(echo $D/events/*/$event/enable) || exit; done
# EARLY clears the buffer before its probe.
{ EARLY 100 && LUF DATA 2 release && WRITEOUT 0.1; } > /dev/null || exit
( EXCLUDE ) > /dev/null || exit
for event in EVENTS; do
	# Only some of each: the buffer holds the last ones.
	echo $event $(grep -c " $event: " $D/trace)
done
"""


def _tracepoints(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    """Every tracepoint of Quell fires while its mechanism is at work."""
    prereq.ensure(prereq.FILE_SYSTEMS)
    headers = (tree.kernel_dir() / "files/include/trace/events").glob("*.h")
    names = sorted(name for header in headers for name in _TRACEPOINT.findall(header.read_text()))
    programs = selftests(temp)
    disk = temp / "disk.ext4"
    script = _TRACE
    exclude = _mounted(programs["luf_stale"], _ATOMIC_WRITE, "1")
    for word, text in (
        ("EXCLUDE", exclude), ("EVENTS", " ".join(names)), ("LUF", str(programs["luf_stale"])),
        ("DATA", DATA_DIR), ("EARLY", str(programs["early_ack"])), ("WRITEOUT", str(programs[_SWAPS])),
    ):  # fmt: skip
        script = script.replace(word, text)
    guest = _guest(
        tally, image, script, data=disk, cpus=3, memory="1G", append=[BRD], timeout=_TIMEOUT_S, cache=cache
    )
    counts = dict(line.split() for line in guest.stdout.splitlines() if len(line.split()) == 2)
    silent = [name for name in names if int(counts.get(name, "0")) == 0]
    tally.check(
        bool(names) and not silent, "every tracepoint fires",
        f"not seen: {' '.join(silent)}\n{guest.stdout}{guest.stderr}",
    )  # fmt: skip


# The share of the interrupts in /proc/interrupts by which the counts may differ.
_TOP_TOLERANCE = 0.15
# Ends follow each output: of a command, of one process, its stacks, of single events, of no command.
_TOP = """
cd /
export PYTHONPATH={lab}
top() {{ {python} -P -m quell top "$@" 2>/dev/null; echo end $?; }}
top --json -- {touch}
{threads} >/dev/null & sleep 1
top --json --once --pid $!
top --folded --once --pid $!
top --json --once --source events
kill $!
top -- nosuchcmd
mkdir -p /tmp/t && mount -t tracefs t /tmp/t && echo left: $(ls /tmp/t/instances) $(cat /tmp/t/events/enable)
"""


def _top(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    """``top`` finds the initiators, and as many interrupts as arrive, in all its forms; nothing stays."""
    works = workload.select(["dontneed-touch", "dontneed-parallel"])
    touch, threads = (workload.prepare(one, machine.parse_memory("512M"), cache, {}) for one in works)
    script = _TOP.format(
        lab=shlex.quote(str(repo_root() / "lab")),
        python=sys.executable,
        touch=shlex.join([touch.argv[0], "--iterations", "500"]),
        threads=shlex.join([threads.argv[0], "--calls", "100000000"]),
    )
    stage = [*touch.programs, *threads.programs]
    guest = _guest(tally, image, script, stage=stage, memory="512M", timeout=_TIMEOUT_S, cache=cache)
    parts = re.split(r"^end (\d+)\n", guest.stdout, flags=re.M)
    if parts[1::2] != ["0", "0", "0", "0", "127"]:
        tally.check(False, "top in a guest", guest.stdout + guest.stderr)
        return
    whole, process, folded, events, _, left = parts[::2]
    _top_counts(tally, "top", json.loads(whole), "dontneed-touch")
    _top_counts(tally, "top with single events", json.loads(events), "dontneed-parall")
    rows = json.loads(process)["processes"]
    good = len(rows) == 1 and rows[0]["comm"] == "dontneed-parall" and len(rows[0]["threads"]) > 1
    tally.check(good, "top --pid shows that process and its threads", process)
    lines = folded.splitlines()
    good = all(re.fullmatch(r"dontneed-parall;(\S+;)*native_flush_tlb_multi \d+", line) for line in lines)
    tally.check(good and "sys_madvise;" in folded, "top --folded prints its stacks", folded)
    tally.check(left == "left: 0\n", "top leaves nothing in tracefs", left)


def _top_counts(tally: _Tally, what: str, found: Mapping[str, Any], initiator: str) -> None:
    """As many interrupts by target and by cause as in /proc/interrupts; the cause is madvise()."""
    received = found["interrupts"]
    by_process = sum(row["interrupts"] for row in found["receivers"]["processes"])
    sent = sum(row["interrupts"] for row in found["causes"])
    detail = f"{received} in /proc/interrupts, {by_process} by process, {sent} sent: {found}"
    tally.check(received > 100, f"{what} saw {initiator} at work", detail)
    for name, count in (("were received", by_process), ("were sent", sent)):
        good = abs(count - received) <= _TOP_TOLERANCE * received
        tally.check(good, f"{what} counts as many as /proc/interrupts {name}", detail)
    # Beside top itself, whose own munmap() interrupts CPUs that it has left.
    work = [row for row in found["processes"] if row["comm"] == initiator]
    main = max(work, key=lambda row: int(row["shootdowns"]), default=None)
    cause = next(iter(main["causes"]), "") if main else ""
    tally.check(cause.startswith("madvise"), f"{what} tells that madvise() is the cause", detail)


def _early_ack(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    program = selftests(temp)["early_ack"]
    for cpus in (2, 4):
        # Spinning on more CPUs than the host has stalls the others.
        rounds = _FULL_ROUNDS if cpus <= (os.cpu_count() or 1) else _FULL_ROUNDS // 1000
        words = [str(program), str(rounds)]
        guest = _guest(tally, image, words, cpus=cpus, timeout=8 * 3600, cache=cache)
        _count(tally, f"early_ack on {cpus} CPUs", guest)


Part = Callable[[_Tally, Path, Path, Cache], None]
# For any kernel with Quell: the selftests, and those that need a file system of their own.
SELFTEST_PARTS: tuple[Part, ...] = (_selftests, _by_itself, _swaps)
FILE_SYSTEM_PARTS: tuple[Part, ...] = (_file_systems, _large_folios)
_PARTS: tuple[Part, ...] = (
    *SELFTEST_PARTS, _file_systems, _excluded, _cma, _large_folios, _mapped_read, _surroundings, _boot_parameter,
    _tracepoints, _top,
)  # fmt: skip


_NEWER_PARTS: tuple[Part, ...] = (_core, _swaps)


def look(image: Path, cache: Cache, parts: Sequence[Part], **how: Any) -> CheckResult:
    """Run ``parts`` on a kernel; ``how`` has further arguments of each guest's ``run_script()``."""
    tally = _Tally(how=how)
    with tempfile.TemporaryDirectory(prefix="vm-", dir=cache.folder("run")) as temp:
        for part in parts:
            try:
                part(tally, image, Path(temp), cache)
            except QuellError as error:
                log = f"\nlog: {error.log}" if error.log else ""
                tally.check(False, error.message, f"{error.detail}{log}")
    return CheckResult.of(tally.cases, tally.details)


def _classic(tally: _Tally, image: Path, temp: Path, cache: Cache) -> None:
    """Run the selftests with the classic LRU lists; MGLRU is on by default."""
    found = look(image, cache, (*SELFTEST_PARTS, *FILE_SYSTEM_PARTS), append=[machine.CLASSIC_LRU])
    tally.cases += [replace(case, name=f"classic LRU: {case.name}") for case in found.cases]
    tally.details += found.details


def _newer(tally: _Tally, cache: Cache, parts: Sequence[Part]) -> None:
    """Run ``parts`` on the kernels of newer versions of Linux."""
    name = "quell" + build.EXT4 * (parts == _NEWER_PARTS)
    for linux in source.VERSIONS[1:]:
        kernel = build.build_kernels(source.debian_source(cache, linux), (name,), cache)[name]
        found = look(kernel.image, cache, parts)
        tally.cases += [replace(case, name=f"{linux}: {case.name}") for case in found.cases]
        tally.details += found.details


def run_full(cache: Cache) -> CheckResult:
    """Run all parts on each version of Linux; on the first also classic LRU and the long early_ack test."""
    return run(cache, (_classic, _early_ack), newer=_PARTS)


def run(cache: Cache, more: Sequence[Part] = (), newer: Sequence[Part] = _NEWER_PARTS) -> CheckResult:
    """Run all parts and ``more``; ``newer`` on newer versions of Linux. An error of a guest is a failure."""
    prereq.ensure(prereq.VM)
    kernel = build.build_kernels(source.debian_source(cache), ("quell",), cache)["quell"]
    first = look(kernel.image, cache, (*_PARTS, *more))
    tally = _Tally(list(first.cases), first.details)
    _newer(tally, cache, newer)
    return CheckResult.of(tally.cases, tally.details)
