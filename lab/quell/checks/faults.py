# SPDX-License-Identifier: GPL-2.0-only
"""Fault injection and hostile events under load: no data may be lost, and no wrong data read.

The load is Quell's own readers of mapped files, which check each page that they read, under
memory pressure in a VM. Meanwhile allocations and I/O fail, memory and swap run out, CPUs and
memory go offline and online, tasks are frozen and killed. At last the power is cut, and a second
boot checks the disk.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quell import build, disks, machine, prereq, proc, source, ui, workload
from quell.checks import Case, CheckResult, ktap, steps
from quell.checks.torture import PROGRAM
from quell.checks.vm import BLOCKS, selftests
from quell.errors import QuellError, UsageError
from quell.frames import DATA_DIR
from quell.paths import Cache

SHORT_S, LONG_S = 15, 90
# Seconds that a case may take beyond its time, until the last pass of the readers ends.
_MARGIN_S = 240
# Seconds that the readers get to end a first pass, on a slow host.
_LATER_S = 90
# Size of the readers' file, in MiB.
_DATA = 256
_MEMORY = "128M"
# With fewer deferred pages lazy unmap flush was hardly at work, and the case tested nothing.
_LEAST_PARKED = 200


@dataclass(frozen=True)
class Fault:
    """One or more events while readers read.

    ``event`` is shell: it lasts while ``running``, counts in ``$count`` and calls ``wrong WHY`` on
    an error. ``prepare`` runs before the readers, ``after`` when they have ended. ``tolerate``, an
    extended regular expression, matches the last words of a reader that may die ("signal N" for a
    signal): it is started again. ``torture``: the user half of luf_torture reads too. Without the
    file ``needs`` the case is skipped. ``expected`` matches the kernel's complaints that belong to
    the event. ``least`` is the smallest number of events.
    """

    name: str
    event: str
    kernel: str = "quell"
    memory: str = _MEMORY
    cpus: int = 2
    append: tuple[str, ...] = ()
    prepare: str = ""
    after: str = ""
    tolerate: str = ""
    torture: bool = False
    needs: str = ""
    expected: str = ""
    least: int = 1


# Upper limit of injected failures. The kernel counts it down, which shows their number.
_TIMES = 10**9


def _inject(kind: str, probability: int, more: str = "") -> str:
    """Shell: switch on fault injection ``kind`` for tasks and disks that opted in, without kernel messages."""
    return f"""
F=/sys/kernel/debug/{kind}
for pair in verbose=0 interval=1 times={_TIMES} space=0 {more} probability={probability}; do
	echo ${{pair#*=}} > $F/${{pair%=*}} || wrong "cannot set $pair"
done
"""


# Signals that an unreadable page ends a program with. Wrong code would cause others.
_KILLED = "^signal (7|9)$"
# Allocations fail only in running readers and in kswapd: a failure in the 9p client would break the
# guest's root. The count is that of failures.
_ALLOCATIONS = dict(
    kernel="debug",
    memory="288M",
    event="""
fail() { for task in "$@"; do echo $on > $task/make-it-fail; done 2>/dev/null; }
# Reclaim fails too.
kswapd() { for pid in $(pgrep kswapd); do fail /proc/$pid; done; }
on=1; kswapd
while running; do
	fail /proc/$(cat /run/work/reading)/task/*
	echo 2 > /proc/sys/vm/drop_caches; sleep 0.3
done
""",
    after=f"echo 0 > $F/probability; on=0; kswapd; count=$(({_TIMES} - $(cat $F/times)))",
    # No memory to read a page.
    tolerate=f"SIGBUS|{_KILLED}",
    least=20,
)
_ALL_THERE = """
[ -s /run/work/deaths ] || wrong 'no read failed'
# Read again: all data must be there.
echo 3 > /proc/sys/vm/drop_caches
WORK >/dev/null 2>/run/work/said || wrong "after the errors: $(cat /run/work/said)"
"""
_GROUP = """
G=/sys/fs/cgroup/fault
mkdir $G; echo $1 > $G/memory.max; echo 0 > $G/memory.swap.max
killed() { while read name value; do [ $name = oom_kill ] && echo $value; done < $G/memory.events; }
"""
FAULTS = (
    Fault(
        "failing slab allocations (failslab)", needs="/sys/kernel/debug/failslab/probability",
        prepare=_inject("failslab", 3, "task-filter=1 ignore-gfp-wait=0 cache-filter=0"),
        **_ALLOCATIONS,  # type: ignore[arg-type]
    ),
    Fault(
        "failing page allocations (fail_page_alloc)",
        needs="/sys/kernel/debug/fail_page_alloc/probability",
        prepare=_inject(
            "fail_page_alloc", 3, "task-filter=1 ignore-gfp-wait=0 ignore-gfp-highmem=0 min-order=0"
        ),
        **_ALLOCATIONS,  # type: ignore[arg-type]
    ),
    Fault(
        "I/O errors in reclaim and refault", kernel="debug", memory="288M",
        needs="/sys/kernel/debug/fail_make_request/probability",
        prepare=_inject("fail_make_request", 10),
        event="""
while running; do
	echo 1 > /sys/block/vda/make-it-fail; sleep 1
	echo 0 > /sys/block/vda/make-it-fail; sleep 0.5
	count=$((count + 1))
done
""",
        after=_ALL_THERE, tolerate=f"SIGBUS|Input/output|{_KILLED}", expected="EXT4-fs error",
    ),
    Fault(
        "the disk is gone for a while (device mapper)", kernel="debug", memory="288M",
        needs="/dev/mapper/control",
        # Read-only: the first error would abort the journal.
        prepare="""
umount DATA || wrong 'the disk is busy'
sectors=$(blockdev --getsz /dev/vda)
dm() { dmsetup "$@" </dev/null 2>&1 || wrong "dmsetup $*"; }
dm create disk --noudevsync --noudevrules --table "0 $sectors linear /dev/vda 0"
# Without udev it has no node by its name.
mount -o ro /dev/dm-0 DATA || wrong 'cannot mount it'
become() {
	dm reload disk --table "0 $sectors $*"
	dm suspend disk --noflush --nolockfs --noudevsync
	dm resume disk --noudevsync
}
""",
        event="""
while running; do
	become error; sleep 0.7
	become linear /dev/vda 0; sleep 1
	count=$((count + 1))
done
""",
        after=_ALL_THERE, tolerate=f"SIGBUS|Input/output|{_KILLED}", expected="EXT4-fs error",
    ),
    Fault(
        "memory of a cgroup runs out", memory="160M",
        prepare=_GROUP.replace("$1", "48M") + "echo 0 > $G/cgroup.procs",
        event="""
while running; do
	timeout 20 sh -c 'echo 1000 > /proc/self/oom_score_adj; exec tail /dev/zero' 2>/dev/null
	count=$(killed)
done
""",
    ),
    Fault(
        "memory runs out", memory="192M",
        event="""
while running; do
	timeout 20 sh -c 'echo 1000 > /proc/self/oom_score_adj; exec tail /dev/zero' 2>/dev/null
	while read name value; do [ $name = oom_kill ] && count=$value; done < /proc/vmstat
done
""",
    ),
    Fault(
        "swap is full", memory="160M", append=("brd.rd_size=16384",),
        prepare="""
mkswap /dev/ram0 >/dev/null; swapon /dev/ram0; echo 200 > /proc/sys/vm/swappiness
H=/sys/fs/cgroup/hold; mkdir $H
""",
        # Each file holds 2 MB of random content in shmem pages, which reclaim can only swap. They are
        # in a group of their own: otherwise reclaim could take page cache instead. The loop ends when
        # swap is full.
        event="""
held=0 free=16384
while [ $held -lt 24 ] && [ $free -gt 256 ]; do
	sh -c "echo 0 > $H/cgroup.procs; exec head -c 2M /dev/urandom" > /dev/shm/hold.$held
	echo 2M > $H/memory.reclaim 2>/dev/null
	held=$((held + 1))
	while read name value unit; do [ $name = SwapFree: ] && free=$value; done < /proc/meminfo
	sleep 0.2
done
echo "$held files held, $free KB of swap left"
[ $free -le 256 ] && count=1
sha256sum /dev/shm/hold.* > /run/work/sums
while running; do sleep 0.5; done
""",
        after="sha256sum -c --quiet /run/work/sums || wrong 'what was in swap is not what it was'",
    ),
    Fault(
        "CPUs go and come", cpus=4, torture=True, memory="192M",
        event="""
while running; do
	for cpu in 1 2 3; do
		c=/sys/devices/system/cpu/cpu$cpu/online
		echo 0 > $c && count=$((count + 1)); sleep 0.1
		echo 1 > $c || wrong "CPU $cpu does not come back"
	done
done
""",
        least=3,
    ),
    Fault(
        # A block's 128 MB must fit into the remaining memory.
        "memory goes and comes", memory="512M", append=("movablecore=256M",), torture=True,
        prepare="head -c 100M /dev/zero > /dev/shm/fill",
        event=f"gone=0\nwhile running; do {BLOCKS} done\ncount=$gone",
    ),
    Fault(
        "tasks are frozen", prepare="mkdir /sys/fs/cgroup/frozen",
        # The other reader's page cache displaces the frozen reader's pages.
        event="""
Z=/sys/fs/cgroup/frozen
sh -c "echo 0 > $Z/cgroup.procs; while :; do WORK >/dev/null 2>/run/work/frozen || break; done" &
while running; do
	sleep 0.7
	echo 1 > $Z/cgroup.freeze; sleep 1
	grep -q 'frozen 1' $Z/cgroup.events && count=$((count + 1))
	echo 0 > $Z/cgroup.freeze
	[ -s /run/work/frozen ] && wrong "the frozen reader: $(cat /run/work/frozen)"
done
echo 1 > $Z/cgroup.kill
""",
    ),
    Fault(
        "readers are killed", memory="160M",
        event="""
random() { set -- $(od -An -N1 -tu1 /dev/urandom); echo $1; }
while running; do
	PRIVATE >/dev/null 2>/run/work/victim & victim=$!
	sleep 0.$(($(random) % 9 + 1))$(($(random) % 10))
	kill -KILL $victim && count=$((count + 1))
	wait $victim
	[ -s /run/work/victim ] && wrong "one that was killed: $(cat /run/work/victim)"
done
""",
    ),
)  # fmt: skip

_SCRIPT = """
end=SECONDS; read up rest < /proc/uptime; end=$((${up%.*} + end))
running() { read up rest < /proc/uptime; [ ${up%.*} -lt $end ]; }
wrong() { echo "not ok: $*"; : > /run/work/wrong; }
[ -z "NEEDS" ] || [ -e "NEEDS" ] || { echo "the kernel does not have NEEDS"; exit 4; }
count=0
rm -f /run/work/wrong /run/work/passes /run/work/deaths /run/work/done
PREPARE
reader() {
	while running; do
		sh -c 'echo -1000 > /proc/self/oom_score_adj; exec "$@"' reader WORK >/dev/null 2>/run/work/reader &
		echo $! > /run/work/reading
		wait $!
		code=$?
		[ $code = 0 ] && { echo pass >> /run/work/passes; continue; }
		# The last pass need not be complete.
		[ -e /run/work/done ] && [ ! -s /run/work/reader ] && break
		[ $code -gt 128 ] && echo "signal $((code - 128))" >> /run/work/reader
		echo x >> /run/work/deaths
		# Wrong content is never tolerated.
		if [ -z 'TOLERATE' ] || grep -qE 'holds|generation' /run/work/reader || ! grep -qE 'TOLERATE' /run/work/reader; then
			wrong "reader: exit code $code: $(cat /run/work/reader)"
		fi
	done
}
reader & reader=$!
torture=
if [ TORTURE = 1 ]; then
	STAGED/luf_torture DATA --seconds SECONDS >/run/work/torture 2>&1 & torture=$!
fi
EVENT
while running; do sleep 0.5; done
# On a slow host the first pass may still run.
for more in $(seq LATER); do
	[ -s /run/work/passes ] || [ -s /run/work/deaths ] && break
	sleep 1
done
: > /run/work/done
kill $(cat /run/work/reading)
wait $reader
if [ -n "$torture" ]; then
	wait $torture || wrong "luf_torture: $(cat /run/work/torture)"
fi
AFTER
touch /run/work/passes /run/work/deaths
echo "events: $count, passes: $(wc -l < /run/work/passes), deaths: $(wc -l < /run/work/deaths)"
[ ! -e /run/work/wrong ]
"""


def script(fault: Fault, seconds: int, work: Sequence[str], staged: Path) -> str:
    """The guest's script of a case: the readers, and the events around them."""
    text = _SCRIPT
    private = [*work[:-1], "--private-write", "64", work[-1]]
    for word, value in (
        ("PREPARE", fault.prepare), ("EVENT", fault.event), ("AFTER", fault.after),
        ("NEEDS", fault.needs), ("TOLERATE", fault.tolerate),
        ("LATER", str(_LATER_S)), ("TORTURE", str(int(fault.torture))),
        ("SECONDS", str(seconds)), ("STAGED", str(staged)),
        ("PRIVATE", shlex.join(private)), ("WORK", shlex.join(work)), ("DATA", DATA_DIR),
    ):  # fmt: skip
        text = text.replace(word, value)
    return text


_FIGURES = re.compile(r"^events: (\d+), passes: (\d+), deaths: (\d+)$", re.M)


@dataclass(frozen=True)
class Row:
    """A case and its figures in the table."""

    case: Case
    kernel: str
    events: str = "-"
    passes: str = "-"
    parked: str = "-"
    took: float = 0.0

    def text(self) -> str:
        """The row as text."""
        verdict = "ok" if self.case.status == "passed" else self.case.status
        why = f": {self.case.why.splitlines()[0]}" if self.case.why else ""
        return (
            f"{self.case.name:<44} {self.kernel:<6} {self.events:>7} {self.passes:>7} {self.parked:>8}"
            f"  {verdict}{why}"
        )


_HEAD = f"{'event':<44} {'kernel':<6} {'events':>7} {'passes':>7} {'deferred':>8}"


def judge(fault: Fault, said: steps.Said) -> Row:
    """Read the result of a case."""
    if said.status == "skip":
        return Row(Case(fault.name, "skipped", said.text.strip()), fault.kernel)
    figures = _FIGURES.search(said.text)
    events, passes, deaths = figures.groups() if figures else ("-", "-", "-")
    wrong = re.findall(r"^not ok: (.*)$", said.text, re.M)
    if said.status != "pass" and not wrong:
        wrong.append(f"{said.status}: {proc.tail(said.text, 3)}")
    wrong += [
        text for text in steps.complaints(said.log)
        if not (fault.expected and re.search(fault.expected, text))
    ]  # fmt: skip
    if figures and int(events) < fault.least:
        wrong.append(f"{events} events, fewer than {fault.least}")
    if figures and not int(passes) + int(deaths):
        wrong.append("no reader finished a pass")
    if not wrong and said.parked < _LEAST_PARKED:
        wrong.append(f"only {said.parked} pages were deferred: lazy unmap flush was not at work")
    case = Case(fault.name, "failed" if wrong else "passed", "\n".join(wrong), said.seconds)
    return Row(case, fault.kernel, events, passes, str(said.parked), said.seconds)


def run_fault(fault: Fault, image: Path, seconds: int, cache: Cache, programs: Path) -> Row:
    """One case, in a guest of its own."""
    one = workload.select(["mapped-read"])[0]
    ready = workload.prepare(one, _DATA // 4 * machine.MIB, cache, {})
    guest = machine.Machine(
        memory=machine.parse_memory(fault.memory), cpus=fault.cpus,
        append=("no_timer_check", *fault.append),
    )  # fmt: skip
    step = steps.Step(
        fault.name, script(fault, seconds, ready.argv, programs), seconds + _MARGIN_S
    )
    said = steps.boot(
        fault.kernel, image, guest, [step], cache, data=ready.data, stage=ready.programs
    )[fault.name]
    steps.keep(cache.logs / "faults", fault.name, said.whole())
    return judge(fault, said)


# --- power cuts ---------------------------------------------------------------

_CUT_MEMORY = 128 * machine.MIB
_CUT_DATA = 160 * machine.MIB
_FILES = 3
# Readers read and records are written until the power is cut.
_WRITE = """
PATH=$PATH:/usr/sbin:/sbin
mount /dev/vda /mnt || exit 2
(while READ /mnt/data >/dev/null; do :; done; echo 'wrong: a reader ended') &
RECORDS write /mnt FILES
"""
_LOOK = """
PATH=$PATH:/usr/sbin:/sbin
mount /dev/vda /mnt || exit 2
dmesg | grep -q 'vda.*recovery complete' && echo recovered
RECORDS check /mnt SYNCED || exit
READ /mnt/data >/dev/null || exit
umount /mnt && e2fsck -fn /dev/vda
"""
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
class _Cut:
    """Decide when to cut: ``delay`` seconds after enough records of all files are durable."""

    stdout: Path
    delay: float
    done: bool = False
    _ready: float = field(default=0.0)
    _asked: float = field(default=0.0)

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._asked < 0.2 or not self.stdout.exists():
            return False
        self._asked = now
        synced = read_synced(self.stdout.read_text(errors="replace"))
        if not self._ready and len(synced) == _FILES and min(synced.values()) >= _ENOUGH:
            self._ready = now
        self.done = bool(self._ready) and now - self._ready >= self.delay
        return self.done


def _program(cache: Cache, folder: Path) -> Path:
    path = folder / "records"
    origin = Path(__file__).parents[1] / "guest/records.c"
    proc.run(["gcc", "-O2", "-Wall", "-Wextra", "-static", "-o", path, origin], timeout=120)
    return path


def _boot_disk(
    kernel: build.Kernel, text: str, disk: Path, rundir: Path, cache: Cache,
    cut: Callable[[], bool] | None = None,
) -> machine.GuestResult:  # fmt: skip
    rundir.mkdir()
    guest = machine.Machine(
        accel=machine.choose_accelerator("auto", kernel.image, cache).name, memory=_CUT_MEMORY,
        append=("no_timer_check",),
        qemu=(
            "-drive", f"if=none,id=cut,file={disk},format=raw", "-device", "virtio-blk-pci,drive=cut",
        ),
    )  # fmt: skip
    job = machine.Job(["/bin/sh", "-c", text])
    times = steps.patience()
    return machine.boot(
        guest, kernel.image, job, rundir, cache=cache, timeout=_PATIENCE_S * times, cut=cut,
        boot_timeout=machine.BOOT_TIMEOUT_S[guest.accel] * times,
    )  # fmt: skip


def power_cut(kernel: build.Kernel, number: int, cache: Cache) -> Row:
    """Cut the power while records are written; all durable records must survive."""
    name = f"the power is cut: {kernel.name} ({number})"
    started = time.monotonic()
    wrong = []
    ready = workload.prepare(workload.select(["mapped-read"])[0], _DATA // 4 * machine.MIB, cache, {})
    assert ready.program is not None
    with tempfile.TemporaryDirectory(prefix="cut-", dir=cache.folder("run")) as temp:
        folder = Path(temp)
        root = folder / "root"
        root.mkdir()
        proc.run([ready.program, "--make", root / "data", str(_CUT_DATA)], timeout=300)
        disk = folder / "disk.ext4"
        disks.make_ext4(disk, root, room=64 * machine.MIB)
        shutil.rmtree(root)
        read = f"{ready.program} --threads 2"
        words = {"RECORDS": str(_program(cache, folder)), "READ": read, "FILES": str(_FILES)}
        # Vary the moment, in the same way for both kernels.
        cut = _Cut(folder / "first/stdout", 0.37 * number % 3)
        first = _boot_disk(kernel, _fill(_WRITE, words), disk, folder / "first", cache, cut)
        synced = read_synced(first.stdout)
        records = sum(synced.values())
        if not cut.done:
            wrong.append(f"the guest ended before the cut: {proc.tail(first.stdout + first.stderr, 3)}")
        wrong += re.findall(r"^(wrong: .*)$", first.stdout, re.M)
        wrong += steps.complaints(first.console)
        words["SYNCED"] = " ".join(f"{file}:{number}" for file, number in sorted(synced.items()))
        steps.keep(cache.logs / "faults", f"{name}-cut", f"{first.stdout}\n{first.console}")
        if cut.done:
            second = _boot_disk(kernel, _fill(_LOOK, words), disk, folder / "second", cache)
            said = second.stdout + second.stderr
            if second.exit_code:
                wrong.append(f"after the cut: exit code {second.exit_code}: {proc.tail(said, 5)}")
            if "recovered" not in second.stdout:
                wrong.append("the journal was not replayed: no write was in progress")
            wrong += steps.complaints(second.console)
            steps.keep(cache.logs / "faults", f"{name}-after", f"{said}\n{second.console}")
    took = time.monotonic() - started
    case = Case(name, "failed" if wrong else "passed", "\n".join(wrong), took)
    return Row(case, kernel.name, "1" if cut.done else "0", str(records), "-", took)


def _fill(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


# --- all of it ----------------------------------------------------------------


def report(rows: Sequence[Row]) -> CheckResult:
    """The table, with one case a row."""
    lines = [_HEAD, *(row.text() for row in rows)]
    lines += [
        f"not ok: {row.case.name}: {text}"
        for row in rows if row.case.status == "failed" for text in row.case.why.splitlines()
    ]  # fmt: skip
    lines.append("passes: a reader's passes over its file; for power cuts, durable records")
    return CheckResult.of([row.case for row in rows], "\n".join(lines))


def run_faults(cache: Cache, faults: Sequence[Fault], seconds: int, cuts: int) -> CheckResult:
    """Run ``faults`` for ``seconds`` each, then cut the power ``cuts`` times on each kernel."""
    prereq.ensure([*prereq.VM, *prereq.FAULTS])
    names = tuple(dict.fromkeys([*(fault.kernel for fault in faults), *(("stock", "quell") if cuts else ())]))
    kernels = build.build_kernels(source.debian_source(cache), names, cache)
    folder = cache.logs / "faults"
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="faults-", dir=cache.folder("run")) as temp,
        ui.progress("faults", len(faults) + 2 * cuts) as bar,
    ):
        programs = Path(temp)
        if any(fault.torture for fault in faults):
            assert PROGRAM in selftests(programs)
        todo: list[tuple[str, str, Callable[[], Row]]] = [
            (
                fault.name, fault.kernel,
                lambda fault=fault: run_fault(  # type: ignore[misc]
                    fault, kernels[fault.kernel].image, seconds, cache, programs
                ),
            )
            for fault in faults
        ]  # fmt: skip
        todo += [
            (f"the power is cut: {name} ({number})", name,
             lambda name=name, number=number: power_cut(kernels[name], number, cache))  # type: ignore[misc]
            for number in range(1, cuts + 1) for name in ("stock", "quell")
        ]  # fmt: skip
        for name, kernel, one in todo:
            try:
                rows.append(one())
            except UsageError:
                raise
            except QuellError as error:
                why = "\n".join(filter(None, [error.message, error.detail, str(error.log or "")]))
                rows.append(Row(Case(name, "failed", why), kernel))
            bar.advance()
    result = report(rows)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.ktap").write_text(ktap(result.cases))
    return CheckResult.of(result.cases, f"{result.details}\noutput of the guests: {folder}")


def run(cache: Cache) -> CheckResult:
    """Each event for SHORT_S or longer, one power cut on each kernel."""
    # A busy host does less work in a second.
    return run_faults(cache, FAULTS, SHORT_S * steps.patience(), 1)


def run_full(cache: Cache) -> CheckResult:
    """The same for LONG_S each, with five power cuts on each kernel."""
    return run_faults(cache, FAULTS, LONG_S, 5)
