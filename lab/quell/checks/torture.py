# SPDX-License-Identifier: GPL-2.0-only
"""Torture test of lazy unmap flush on the debug kernel, and mutation testing of all mechanisms.

``luf_torture`` (a selftest) reads and checks. The kernel's torture module poisons free
frames and drains. The ledger of the debug kernel (``luf_debug``) checks its rules. On the
intact kernel none of them may complain. Part ``mutants`` switches on each mutation of the
debug kernel, of any mechanism. One of these three, another selftest, KUnit or a crash must
reveal it: otherwise the tests prove nothing.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quell import build, disks, machine, prereq, source, ui
from quell.checks import Case, CheckResult, steps
from quell.checks.vm import BRD, XFS, read_tap, selftests, tap_comments
from quell.errors import QuellError
from quell.frames import DATA_DIR
from quell.paths import Cache

PROGRAM = "luf_torture"
MUTANTS = "/sys/module/quell_mutants/parameters/mutants"
MEMORY_MIB = 512
NODES = 2
INTACT_S = 60
VARIANT_S = 15
MUTANT_S = 15
FULL_READS = 10**8
# The debug kernel boots in half a minute; with page_owner and KUnit on a busy host it takes longer.
_BOOT_S = 300
# A selftest on the intact kernel takes at most two minutes on an idle host.
_FOCUSED_S = 900
# Rounds for mutations that are found by chance; on a busy host the right moments are rarer.
_MANY = 8
# Seconds that a guest may take beyond the torture itself, to boot, prepare files and stop.
_MARGIN_S = 150
# Boot parameters that change preemption, the handling of freed memory, TLB flushes or the
# lists of reclaim.
VARIANTS = {
    "classic LRU": (machine.CLASSIC_LRU,),
    "preempt=full": ("preempt=full",),
    "preempt=none": ("preempt=none",),
    "page table isolation": ("pti=on",),
    "no PCID": ("nopcid", "pti=off"),
    "freed memory is touched": ("init_on_free=1", "page_poison=1", "page_owner=on"),
}
# For the selftests that swap.
_ZSWAP = {"zswap": ("zswap.enabled=1",)}


@dataclass(frozen=True)
class Attack:
    """Tests that must catch the mutations of a mechanism.

    ``programs``: selftests with arguments, run in turn until one fails or the ledger
    complains; DATA is a folder on ext4, MANY a number of rounds. ``prepare``: shell, run first.
    ``suite``: KUnit's, at boot. ``memory``: the guest's, in MiB, in two nodes.
    ``variant``: one of VARIANTS or _ZSWAP. ``limit``: seconds, on an idle host.
    """

    programs: tuple[str, ...]
    prepare: str = ""
    suite: str = ""
    variant: str = ""
    cpus: int = NODES
    memory: int = MEMORY_MIB
    limit: int = MUTANT_S + _MARGIN_S


# By the mutation's name, or by its first word.
ATTACKS = {
    # By itself: its allocations retry while the other programs keep a stale-TLB window open.
    "LUF_HOARD": Attack(("security DATA 2 memory",)),
    "LUF": Attack(
        (
            "luf_stale DATA 1", "luf_migrate DATA 1", "luf_stale DATA MANY open",
            "luf_stale DATA MANY private", "luf_stale DATA 4 drain", "luf_stale DATA 4 own",
            "luf_stale DATA 4 kept", "luf_stale DATA 4",
            "luf_migrate DATA 4", f"luf_torture DATA --seconds {MUTANT_S}",
        )
    ),
    "RMAP": Attack(
        ("rmap_batch /mnt", "rmap_torture /mnt"), XFS, suite="rmap_batch", memory=1024, limit=400
    ),
    "GATHER": Attack(("gather_range 30",)),
    "FOLIO": Attack(("folio_order",), memory=1024),
    "WRITEOUT": Attack(("writeout_batch",), limit=400),
    # Two requests meet at a target only if two initiators send them.
    "EARLY": Attack(("early_ack 4000",), cpus=4),
}  # fmt: skip
# Tests that must find nothing in the intact kernel.
INTACT = (
    Attack(("luf_stale DATA 4",)),
    Attack(("luf_stale DATA 4",), variant="classic LRU"),
    Attack(("luf_migrate DATA 4",)),
    Attack(("security DATA 2 memory",)),
    Attack(("security DATA 2 permissions",)),
    Attack(("rmap_batch /mnt",), XFS, memory=1024),
    Attack(("rmap_torture /mnt --seconds 5",), XFS, memory=1024),
    Attack(("writeout_batch 0.5",)),
    Attack(("writeout_batch 0.3",), variant="classic LRU"),
    Attack(("writeout_batch 0.3",), variant="zswap"),
    Attack(("folio_order",), memory=1024),
    Attack(("gather_range 30",)),
    Attack(("early_ack 2000",), cpus=4),
    Attack(("early_ack 500",), variant="page table isolation"),
    Attack(("early_ack 500",), variant="no PCID"),
)


_USER = re.compile(r"^# VIOLATION: by user half after ([\d.]+) s: (.*)$", re.M)
_OTHER = re.compile(r"^# VIOLATION: by (.+?) after ([\d.]+) s$", re.M)
_RATE = re.compile(r"^# (\d+) reads checked in ([\d.]+) s, (\d+) per second$", re.M)
_LEDGER = re.compile(r"luf_debug: VIOLATION: (.*?)\s*$", re.M)
_KERNEL_HALF = re.compile(r"luf_torture: VIOLATION: (.*?)\s*$", re.M)
_NOT_OK = re.compile(r"^not ok \d+ (.*)$", re.M)
_BAIL_OUT = re.compile(r"^Bail out! (.*)$", re.M)
_KUNIT = re.compile(r" not ok \d+ (\w+)")
_END = re.compile(r"luf_torture: End of test: (\w+)")
# Lines of a crash that a slow host causes: these catch no mutation.
_SLOW = re.compile(r"soft lockup|rcu: INFO|blocked for more than")


@dataclass(frozen=True)
class Outcome:
    """Findings of a tortured guest.

    ``by`` is the first test that complained ("" if none did), ``what`` its message,
    ``seconds`` the time since the start of the torture. ``problems`` are all
    findings that an intact kernel must not have.
    """

    by: str
    what: str
    seconds: float
    reads: int
    rate: int
    problems: tuple[str, ...]


def read_outcome(stdout: str, console: str, oops: Sequence[str] = ()) -> Outcome:
    """Read the program's output, the console, and the lines of a crash."""
    rate = _RATE.search(stdout)
    user, other = _USER.search(stdout), _OTHER.search(stdout)
    ledger, half = _LEDGER.search(console), _KERNEL_HALF.search(console)
    by, what, seconds, gave_up = "", "", 0.0, ""
    if other and (not user or float(other[2]) < float(user[1])):
        known = {"ledger": ledger, "kernel half": half, "KUnit": _KUNIT.search(console)}
        if said := known.get(other[1], _NOT_OK.search(stdout)):
            by, what, seconds = other[1], said[1], float(other[2])
        else:
            # It could not go on: not a find.
            bail_out = _BAIL_OUT.search(stdout)
            gave_up = f"{other[1]} gave up: {bail_out[1] if bail_out else 'it said nothing'}"
    elif user:
        by, what, seconds = "user half", user[2], float(user[1])
    elif ledger or half:
        # The program ended before it could see this, or the guest died.
        by = "ledger" if ledger else "kernel half"
        what = (ledger or half or [""])[1]
    elif oops and not any(_SLOW.search(line) for line in oops):
        by, what = "crash", oops[0]
    problems = [what and f"{by}: {what}" or by] if by else []
    problems += [gave_up] if gave_up else []
    problems += [f"ledger: {text}" for text in _LEDGER.findall(console)]
    problems += [f"kernel half: {text}" for text in _KERNEL_HALF.findall(console)]
    problems += [f"console: {line}" for line in oops]
    problems += [f"console: {line}" for line in machine.find_warnings(console)]
    if "FAILURE" in _END.findall(console):
        problems.append("kernel half: End of test: FAILURE")
    return Outcome(
        by=by,
        what=what,
        seconds=seconds,
        reads=int(rate[1]) if rate else 0,
        rate=int(rate[3]) if rate else 0,
        problems=tuple(dict.fromkeys(problems)),
    )


def _attack_for(mutant: str) -> Attack | None:
    return ATTACKS.get(mutant) or ATTACKS.get(mutant.partition("_")[0])


@dataclass(frozen=True)
class _Bench:
    """Kernel, program and disk of every guest of this part."""

    image: Path
    program: Path
    disk: Path
    cache: Cache

    def boot(
        self, words: Sequence[str], append: Sequence[str], timeout: float, cpus: int = NODES,
        memory: int = MEMORY_MIB,
    ) -> machine.GuestResult:
        return machine.run_script(
            self.image, list(words), cpus=cpus, append=[BRD, *append], timeout=timeout, data=self.disk,
            boot_timeout=_BOOT_S, fail_on_oops=False, nodes=(memory // NODES * machine.MIB,) * NODES,
            cache=self.cache,
        )  # fmt: skip

    def torture(self, args: Sequence[str], append: Sequence[str], timeout: float) -> machine.GuestResult:
        words = [str(self.program), DATA_DIR, *args]
        return self.boot(words, append, timeout)

    def script(self, attack: Attack, append: Sequence[str], timeout: float) -> machine.GuestResult:
        """Run the programs of ``attack`` until one fails or the ledger complains."""
        lines = "\n".join(f"look {line}" for line in attack.programs)
        script = _UNTIL_CAUGHT
        for word, text in (
            ("PREPARE", attack.prepare), ("PROGRAMS", lines), ("FOLDER", str(self.program.parent)),
            ("DATA", DATA_DIR), ("MANY", str(_MANY * steps.patience())),
        ):  # fmt: skip
            script = script.replace(word, text)
        return self.boot(["/bin/sh", "-c", script], append, timeout, attack.cpus, attack.memory)

    def mutants(self) -> list[str]:
        """The names of all mutations; QuellError if one has no attack."""
        guest = self.boot(["cat", MUTANTS], (), 60)
        if guest.exit_code:
            raise QuellError("the debug kernel does not list its mutations", detail=guest.stderr)
        found = guest.stdout.split()
        for name in found:
            if not _attack_for(name):
                raise QuellError(f"ATTACKS has no test for the mutation {name}")
        return found


def _intact(
    bench: _Bench, args: Sequence[str], timeout: float, name: str, append: Sequence[str] = ()
) -> tuple[bool, str]:
    """Torture the intact kernel; True if it passed, and the text to show."""
    guest = bench.torture(args, append, timeout)
    outcome = read_outcome(guest.stdout, guest.console, guest.oops)
    _, failed, _ = read_tap(guest.stdout)
    problems = list(outcome.problems) + failed
    if not _END.search(guest.console):
        problems.append("the kernel half did not finish")
    if not outcome.reads:
        problems.append("no read was checked")
    if guest.exit_code and not problems:
        problems.append(f"{PROGRAM} exited with {guest.exit_code}")
    if problems:
        return False, f"not ok: {name}\n" + "\n".join(f"  {text}" for text in problems) + (
            f"\n{guest.stdout}{guest.stderr}"
        )
    return True, f"{name}: {outcome.reads:,} reads checked, {outcome.rate:,} per second, no violation"


_UNTIL_CAUGHT = """
seconds() { read up idle < /proc/uptime; echo $((${up%.*} - start)).${up#*.}; }
start=0; start=$(seconds); start=${start%.*}
! dmesg | grep -q ' not ok [0-9]' || { echo "# VIOLATION: by KUnit after $(seconds) s"; exit 1; }
PREPARE
export TAP_STOP=1
look() {
	FOLDER/$*
	failed=$?
	read violations < /sys/module/luf_debug/parameters/violations
	[ $violations = 0 ] || { echo "# VIOLATION: by ledger after $(seconds) s"; exit 1; }
	[ $failed = 1 ] && { echo "# VIOLATION: by $1 after $(seconds) s"; exit 1; }
}
PROGRAMS
exit 0
"""


def _attack(
    bench: _Bench, attack: Attack, append: Sequence[str], times: int = 1
) -> machine.GuestResult:
    suite = ("kunit.enable=1", f"kunit.filter_glob={attack.suite}", "loglevel=7") if attack.suite else ()
    return bench.script(attack, [*append, *suite], times * attack.limit * steps.patience())


def _mutant(bench: _Bench, name: str) -> tuple[bool, str]:
    """Test the kernel with a mutation; True if it was caught, and the row of the table."""
    attack = _attack_for(name)
    assert attack, name
    try:
        guest = _attack(bench, attack, [f"quell_mutants.mutant={name}"])
    except machine.GuestTimeout as error:
        # A hang alone does not catch a mutation.
        return False, f"{name:<22} survived: {error.message}"
    outcome = read_outcome(guest.stdout, guest.console, guest.oops)
    if not outcome.by:
        why = next((text for text in outcome.problems if " gave up: " in text), "")
        return False, f"{name:<22} survived {outcome.reads:,} reads" + (f"; {why}" if why else "")
    return True, f"{name:<22} {outcome.by:<12} {outcome.seconds:>7.2f} s  {outcome.what}"


def _no_mutant(bench: _Bench, which: str) -> tuple[bool, str]:
    """The same tests on the intact kernel: a find there would not come from the mutation."""
    name = f"{which}, no fault"
    try:
        # Without a find all programs run, which takes longer.
        guest = _attack(bench, ATTACKS[which], (), 4)
    except machine.GuestTimeout as error:
        return False, f"not ok: {name}: {error.message}"
    outcome = read_outcome(guest.stdout, guest.console, guest.oops)
    passed, failed, _ = read_tap(guest.stdout)
    # Each program prints its own plan: their sum differs from the first.
    failed = [text for text in failed if not text.endswith(" came")]
    if problems := [*outcome.problems, *failed, *([] if passed else ["no test ran"])]:
        return False, f"not ok: {name}\n" + "\n".join(f"  {text}" for text in problems)
    return True, f"{name}: {len(passed)} tests found nothing"


def _with_bench(cache: Cache, use: Callable[[_Bench], CheckResult]) -> CheckResult:
    prereq.ensure([*prereq.VM, *(item for item in prereq.FILE_SYSTEMS if item.need == "mkfs.xfs")])
    kernel = build.build_kernels(source.debian_source(cache), ("debug",), cache)["debug"]
    with tempfile.TemporaryDirectory(prefix="torture-", dir=cache.folder("run")) as temp:
        folder = Path(temp)
        root = folder / "root"
        root.mkdir()
        disk = folder / "disk.ext4"
        disks.make_ext4(disk, root)
        return use(_Bench(kernel.image, selftests(folder)[PROGRAM], disk, cache))


def _focused(bench: _Bench, attack: Attack) -> tuple[bool, str]:
    """Run an attack on the intact kernel: a test that fails there cannot catch a mutation."""
    name = attack.programs[0].split()[0] + (attack.variant and f", {attack.variant}")
    try:
        guest = bench.script(attack, (VARIANTS | _ZSWAP).get(attack.variant, ()), _FOCUSED_S)
    except machine.GuestTimeout as error:
        return False, f"not ok: {name}: {error.message}"
    outcome = read_outcome(guest.stdout, guest.console, guest.oops)
    passed, failed, _ = read_tap(guest.stdout)
    problems = [*outcome.problems, *([] if passed or failed else ["no test ran"])]
    for test in failed:
        problems += [test, *tap_comments(guest.stdout, test).splitlines()]
    if problems or guest.exit_code:
        return False, f"not ok: {name}\n" + "\n".join(f"  {text}" for text in problems)
    return True, f"{name}: {len(passed)} tests passed on the debug kernel"


def _intact_and_variants(
    bench: _Bench, args: Sequence[str], timeout: float, attacks: Sequence[Attack]
) -> CheckResult:
    results = [_focused(bench, attack) for attack in attacks]
    results.append(_intact(bench, args, timeout, "intact"))
    # A busy host does less work in a second.
    seconds = VARIANT_S * steps.patience()
    args = ["--seconds", str(seconds)]
    for name, append in VARIANTS.items():
        results.append(_intact(bench, args, seconds + _MARGIN_S, name, append))
    return _result(results, [text for _, text in results])


def _result(results: Sequence[tuple[bool, str]], rows: Sequence[str]) -> CheckResult:
    """A case for each of ``results``; each text begins with the name."""
    cases = []
    for good, text in results:
        name = text.removeprefix("not ok: ").partition("\n")[0]
        cases.append(Case(name, "passed" if good else "failed", "" if good else text))
    return CheckResult.of(cases, "\n".join(rows))


def run(cache: Cache) -> CheckResult:
    """Torture the intact debug kernel, then for a shorter time with each variant of boot parameters."""
    args = ["--seconds", str(INTACT_S)]
    plain = [attack for attack in INTACT if not attack.variant]
    return _with_bench(
        cache, lambda bench: _intact_and_variants(bench, args, INTACT_S + _MARGIN_S, plain)
    )


def run_full(cache: Cache) -> CheckResult:
    """The same until FULL_READS reads are checked, with all of INTACT's selftests and variants."""
    args = ["--reads", str(FULL_READS)]
    return _with_bench(cache, lambda bench: _intact_and_variants(bench, args, 4 * 3600, INTACT))


def run_mutants(cache: Cache) -> CheckResult:
    """Test the debug kernel with each mutation: a survivor is a failure, and so is a find without one."""

    def each(bench: _Bench) -> CheckResult:
        results = []
        rows = [f"{'mutant':<22} {'caught by':<12} {'after':>9}"]
        names = bench.mutants()
        with ui.progress("mutants", len(names) + len(ATTACKS)) as bar:
            for which in ATTACKS:
                results.append(_no_mutant(bench, which))
                rows.append(results[-1][1])
                bar.advance()
            for name in names:
                results.append(_mutant(bench, name))
                rows.append(results[-1][1])
                bar.advance()
        if not names:
            results.append((False, "not ok: the debug kernel has no mutations"))
            rows.append(results[-1][1])
        return _result(results, rows)

    return _with_bench(cache, each)
