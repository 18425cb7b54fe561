# SPDX-License-Identifier: GPL-2.0-only
"""VM tests: boot the Quell kernel, run its own selftests, check data."""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from checks import benches, scenario, tap
from checks.benches import BRD, Bench, Run, mounted
from checks.cases import LINUX, Results
from checks.configurations import MECHANISMS
from quell import build, counters, machine, prereq, source, tree, workload
from quell.frames import DATA_DIR
from quell.paths import Cache, repo_root

# Shootdowns in the long form; after each one other CPUs look for a stale translation.
_FULL_ROUNDS = 10**7
_CLASSIC = "classic LRU"


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest, cache: Cache) -> Bench:
    """The Quell kernel of a version of Linux. MGLRU is on, except with "classic LRU"."""
    prereq.ensure((*prereq.VM, *prereq.FILE_SYSTEMS))
    linux = source.DEFAULT if request.param == _CLASSIC else request.param
    kernel = build.build_kernels(source.debian_source(cache, linux), ("quell",), cache)["quell"]
    return Bench(kernel.image, cache, (machine.CLASSIC_LRU,) if request.param == _CLASSIC else ())


_on_each = pytest.mark.parametrize("bench", LINUX, indirect=True)


def _selftests() -> list[Any]:
    """Each run on the first version; on newer ones and with the classic LRU lists most with --full only."""
    return [
        pytest.param(
            kernel, run, id=f"{kernel}-{run.title()}",
            marks=() if kernel == source.DEFAULT or (kernel != _CLASSIC and run.newer) else pytest.mark.full,
        )
        for kernel in (*source.VERSIONS, _CLASSIC) for run in benches.runs() if kernel != _CLASSIC or not run.special
    ]  # fmt: skip


@pytest.mark.parametrize(("bench", "run"), _selftests(), indirect=["bench"])
def test_selftest(bench: Bench, run: Run, results: Results, programs: dict[str, Path], disk: Path) -> None:
    """Quell's selftests."""
    bench.selftest(results, run, programs[run.program], disk)


@_on_each
@pytest.mark.parametrize(
    ("script", "memory", "append"),
    [
        ("", "128M", ""), ("", "128M", "quell=off"), ("hotplug", "640M", "movablecore=384M"),
        ("cgroup-v1", "256M", "systemd.unified_cgroup_hierarchy=0"),
    ],
    ids=["on", "off", "hotplug", "cgroup-v1"],
)  # fmt: skip
def test_mapped_read(bench: Bench, script: str, memory: str, append: str, results: Results, cache: Cache) -> None:
    """The workload checks every page that it reads; lazy unmap flush must defer pages meanwhile, unless it is off."""
    # More data than the largest of these guests can cache. So reclaim is needed even if all blocks of
    # its memory are online most of the time.
    ready = workload.prepare(workload.select(["mapped-read"])[0], machine.parse_memory("160M"), cache, {})
    text = shlex.join(ready.argv)
    if script:
        text = scenario.shell(f"vm/{script}.sh", BLOCKS=scenario.shell("vm/blocks.sh"), WORK=text)
    guest = bench.guest(results, text, data=ready.data, stage=ready.programs, memory=memory, append=append.split())
    results.check(guest.exit_code == 0, f"mapped-read in {memory} reads right data", guest.stderr)
    # Lenient: a version 1 cgroup reports no peak.
    parked = int(counters.sample(guest.frames, lenient=True).extras["luf_park"]) if guest.frames else -1
    results.check(parked == 0 if append == "quell=off" else parked > 1000, f"luf_park rose by {parked}")


_ALL = {name.lower() for name in MECHANISMS}


@_on_each
@pytest.mark.parametrize(
    ("param", "on"),
    [
        ("quell=off", {"unmap_batch", "concurrent", "zap_batch"}),
        ("quell=luf", {"unmap_batch", "concurrent", "zap_batch", "luf"}),
        ("quell=off,-zap_batch", {"unmap_batch", "concurrent"}),
        ("quell=on,luff", _ALL),
        # A typing error leaves the default, CONFIG_QUELL_DEFAULT_ON.
        ("quell=luff", _ALL),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_boot_parameter(bench: Bench, param: str, on: set[str], results: Results) -> None:
    """The boot parameter switches mechanisms."""
    script = "grep . /sys/kernel/mm/quell/*/enabled; dmesg | grep 'quell=' | grep -v Command || :"
    guest = bench.guest(results, script, append=[param])
    found = set(re.findall(r"quell/(\w+)/enabled:1", guest.stdout))
    results.check(found == on, f"{param} switches on {sorted(on)}", f"it is {sorted(found)}")
    if "luff" in param:
        said = guest.stdout + guest.console
        results.check("no mechanism is called 'luff'" in said, f"{param} is complained about")


@_on_each
def test_folio_order_leaves_thp_anon(bench: Bench, results: Results) -> None:
    """A size that thp_anon= names is left to its control, and no other size is."""
    counts = "/sys/kernel/mm/transparent_hugepage/hugepages-*kB/stats/anon_fault_alloc"
    script = f"dd if=/dev/zero of=/dev/null bs=16M count=1 status=none; grep -H . {counts}"
    guest = bench.guest(results, script, memory="768M", append=["thp_anon=64K:never"])
    found = {size: int(count) for size, count in re.findall(r"hugepages-(\d+)kB/\S+:(\d+)", guest.stdout)}
    good = found.get("64") == 0 and found.get("32", 0) > 0
    results.check(good, "thp_anon=64K:never", f"folios by size: {found}\n{guest.stderr}")


# Cases of vm/excluded.sh, and the least number of files.
_EXCLUDED = {"space-cache": 1, "relocation": 1, "atomic-write": 2, "swapon": 1}


@_on_each
@pytest.mark.parametrize("name", _EXCLUDED)
def test_excluded(bench: Bench, name: str, results: Results, programs: dict[str, Path]) -> None:
    """luf_exclude() is called for files whose pages no selftest can check."""
    script = scenario.shell("vm/exclude.sh", MAKE=scenario.shell("vm/excluded.sh", NAME=name))
    script = mounted(programs["luf_stale"], script)
    guest = bench.guest(results, script, memory="1G")
    files = guest.stdout.splitlines()
    good = guest.exit_code == 0 and len(files) >= _EXCLUDED[name]
    results.check(good, "files are excluded", f"{len(files)} files: {files}\n{guest.stderr}")


_TRACEPOINT = re.compile(r"^TRACE_EVENT\((\w+),", re.M)


@_on_each
def test_tracepoints(bench: Bench, results: Results, programs: dict[str, Path], disk: Path) -> None:
    """Every tracepoint of Quell fires while its mechanism is at work."""
    headers = (tree.kernel_dir() / "files/include/trace/events").glob("*.h")
    names = sorted(name for header in headers for name in _TRACEPOINT.findall(header.read_text()))
    script = scenario.shell(
        "vm/tracepoints.sh", EVENTS=" ".join(names),
        EXCLUDE=mounted(programs["luf_stale"], scenario.shell("vm/excluded.sh", NAME="atomic-write")),
        LUF=programs["luf_stale"], DATA=DATA_DIR, EARLY=programs["early_ack"], WRITEOUT=programs["writeout_batch"],
    )  # fmt: skip
    guest = bench.guest(results, script, data=disk, cpus=3, memory="1G", append=[BRD])
    counts = dict(line.split() for line in guest.stdout.splitlines() if len(line.split()) == 2)
    silent = [name for name in names if int(counts.get(name, "0")) == 0]
    results.check(
        bool(names) and not silent, "every tracepoint fires",
        f"not seen: {' '.join(silent)}\n{guest.stdout}{guest.stderr}",
    )  # fmt: skip


# The share of the interrupts in /proc/interrupts by which the counts may differ.
_TOP_TOLERANCE = 0.15


@_on_each
def test_top(bench: Bench, results: Results, cache: Cache) -> None:
    """``top`` finds the initiators, and as many interrupts as arrive, in all its forms; nothing stays."""
    works = workload.select(["dontneed-touch", "dontneed-parallel"])
    touch, threads = (workload.prepare(one, machine.parse_memory("512M"), cache, {}) for one in works)
    script = scenario.shell(
        "vm/top.sh", LAB=shlex.quote(str(repo_root() / "lab")), PYTHON=sys.executable,
        TOUCH=shlex.join([touch.argv[0], "--iterations", "500"]),
        THREADS=shlex.join([threads.argv[0], "--calls", "100000000"]),
    )  # fmt: skip
    guest = bench.guest(results, script, stage=[*touch.programs, *threads.programs])
    parts = re.split(r"^end (\d+)\n", guest.stdout, flags=re.M)
    if parts[1::2] != ["0", "0", "0", "0", "127"]:
        results.check(False, "top in a guest", guest.stdout + guest.stderr)
        return
    whole, process, folded, events, _, left = parts[::2]
    _top_counts(results, "top", json.loads(whole), "dontneed-touch")
    _top_counts(results, "top with single events", json.loads(events), "dontneed-parall")
    rows = json.loads(process)["processes"]
    good = len(rows) == 1 and rows[0]["comm"] == "dontneed-parall" and len(rows[0]["threads"]) > 1
    results.check(good, "top --pid shows that process and its threads", process)
    lines = folded.splitlines()
    good = all(re.fullmatch(r"dontneed-parall;(\S+;)*native_flush_tlb_multi \d+", line) for line in lines)
    results.check(good and "sys_madvise;" in folded, "top --folded prints its stacks", folded)
    results.check(left == "left: 0\n", "top leaves nothing in tracefs", left)


def _top_counts(results: Results, what: str, found: Mapping[str, Any], initiator: str) -> None:
    """As many interrupts by target and by cause as in /proc/interrupts; the cause is madvise()."""
    received = found["interrupts"]
    by_process = sum(row["interrupts"] for row in found["receivers"]["processes"])
    sent = sum(row["interrupts"] for row in found["causes"])
    detail = f"{received} in /proc/interrupts, {by_process} by process, {sent} sent: {found}"
    results.check(received > 100, f"{what} saw {initiator} at work", detail)
    for name, count in (("were received", by_process), ("were sent", sent)):
        good = abs(count - received) <= _TOP_TOLERANCE * received
        results.check(good, f"{what} counts as many as /proc/interrupts {name}", detail)
    # Beside top itself, whose own munmap() interrupts CPUs that it has left.
    work = [row for row in found["processes"] if row["comm"] == initiator]
    main = max(work, key=lambda row: int(row["shootdowns"]), default=None)
    cause = next(iter(main["causes"]), "") if main else ""
    results.check(cause.startswith("madvise"), f"{what} tells that madvise() is the cause", detail)


@_on_each
@pytest.mark.full
@pytest.mark.parametrize("cpus", [*[2] * 10, 4])
def test_many_shootdowns(bench: Bench, cpus: int, results: Results, programs: dict[str, Path]) -> None:
    """early_ack for hours."""
    # --resume goes on with the next guest. Spinning on more CPUs than the host has stalls the others.
    rounds = _FULL_ROUNDS // (10 if cpus <= (os.cpu_count() or 1) else 1000)
    words = [str(programs["early_ack"]), str(rounds)]
    tap.count(results, bench.guest(results, words, cpus=cpus, timeout=3600))
