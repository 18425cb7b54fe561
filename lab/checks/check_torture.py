# SPDX-License-Identifier: GPL-2.0-only
"""The debug kernel under attack: torture test of lazy unmap flush, and attacks of all mechanisms.

``luf_torture`` (a selftest) reads and checks. The kernel's torture module poisons free
frames and drains. The ledger of the debug kernel (``luf_debug``) checks its rules. On the
intact kernel none of them may complain. A mutation of the debug kernel (part mutants) must be
revealed by one of these three, another selftest, KUnit or a crash. Otherwise the tests prove nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from checks import scenario, steps, tap
from checks.benches import BRD, XFS
from checks.cases import Case, settle
from quell import machine, tree, watch
from quell.frames import DATA_DIR
from quell.paths import Cache

_MUTANTS = "/sys/module/quell_mutants/parameters/mutants"
_HEADER = "files/include/linux/quell_mutants.h"
# The debug kernel boots in half a minute; with page_owner and KUnit on a busy host it takes longer.
_BOOT_S = 300
# Rounds for mutations that are found by chance; on a busy host the right moments are rarer.
_MANY = 8
# Limit of an attack that finds a mutation, on an idle host.
_ATTACK_S = 400
_INTACT_S = 60
_VARIANT_S = 15
_FULL_READS = 10**8
# Seconds that a guest may take beyond the torture itself, to boot, prepare files and stop.
_MARGIN_S = 150


class Attack(scenario.Row, frozen=True):
    """Tests that must catch the mutations of a mechanism.

    ``programs``: selftests with arguments, run in turn until one fails or the ledger
    complains. ``xfs``: an empty one on /mnt. ``suite``: KUnit's, at boot. ``append``: boot
    parameters. ``memory``: the guest's, in MiB, in two nodes.
    """

    programs: tuple[str, ...]
    xfs: bool = False
    suite: str = ""
    append: tuple[str, ...] = ()
    cpus: int = 2
    memory: int = 512

    def title(self) -> str:
        """The name in the results."""
        return ", ".join([self.programs[0].replace("DATA ", ""), *self.append])


class _Table(scenario.Row, frozen=True):
    variants: dict[str, tuple[str, ...]]
    attacks: dict[str, Attack]
    intact: tuple[Attack, ...]


_TABLE = scenario.table("torture.toml", _Table)
VARIANTS, ATTACKS, INTACT = _TABLE.variants, _TABLE.attacks, _TABLE.intact


def mutant_names() -> list[str]:
    """The mutations that the kernel part has."""
    return re.findall(r"^\tM\((\w+)\)", (tree.kernel_dir() / _HEADER).read_text(), re.M)


_USER = re.compile(r"^# VIOLATION: by user half after ([\d.]+) s: (.*)$", re.M)
_OTHER = re.compile(r"^# VIOLATION: by (.+?) after ([\d.]+) s$", re.M)
_RATE = re.compile(r"^# (\d+) reads checked in [\d.]+ s, (\d+) per second$", re.M)
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

    ``by`` is the first test that complained ("" if none did), ``what`` its message, or that of a
    test that gave up, ``seconds`` the time since the start of the torture. ``problems`` are all
    findings that an intact kernel must not have.
    """

    by: str
    what: str
    seconds: float
    problems: tuple[str, ...]


def read_outcome(guest: machine.GuestResult) -> Outcome:
    """Read the program's output, the console, and the lines of a crash."""
    user, other = _USER.search(guest.stdout), _OTHER.search(guest.stdout)
    ledger, half = _LEDGER.search(guest.console), _KERNEL_HALF.search(guest.console)
    by, what, seconds = "", "", 0.0
    if other and (not user or float(other[2]) < float(user[1])):
        known = {"ledger": ledger, "kernel half": half, "KUnit": _KUNIT.search(guest.console)}
        if said := known.get(other[1], _NOT_OK.search(guest.stdout)):
            by, what, seconds = other[1], said[1], float(other[2])
        else:
            # It could not go on: not a find.
            bail_out = _BAIL_OUT.search(guest.stdout)
            what = f"{other[1]} gave up: {bail_out[1] if bail_out else 'it said nothing'}"
    elif user:
        by, what, seconds = "user half", user[2], float(user[1])
    elif found := ledger or half:
        # The program ended before it could see this, or the guest died.
        by, what = "ledger" if ledger else "kernel half", found[1]
    elif guest.oops and not any(_SLOW.search(line) for line in guest.oops):
        by, what = "crash", guest.oops[0]
    problems = [": ".join(filter(None, (by, what)))] if by or what else []
    problems += [f"ledger: {text}" for text in _LEDGER.findall(guest.console)]
    problems += [f"kernel half: {text}" for text in _KERNEL_HALF.findall(guest.console)]
    problems += [f"console: {line}" for line in (*guest.oops, *watch.find_warnings(guest.console))]
    if "FAILURE" in _END.findall(guest.console):
        problems.append("kernel half: End of test: FAILURE")
    return Outcome(by, what, seconds, tuple(dict.fromkeys(problems)))


def attack_for(mutant: str) -> Attack:
    """The tests of a mutation."""
    return ATTACKS.get(mutant) or ATTACKS[mutant.partition("_")[0]]


@dataclass(frozen=True)
class Bench:
    """Kernel, program and disk of every guest."""

    image: Path
    program: Path
    disk: Path
    cache: Cache

    def boot(
        self, script: str, append: Sequence[str], timeout: float, cpus: int = 2, memory: int = 512
    ) -> machine.GuestResult:
        """Run a script. KASAN may report page tables of five levels as the CPU is identified."""
        return machine.run_script(
            self.image, script, cpus=cpus, append=[BRD, "no5lvl", *append], timeout=timeout, data=self.disk,
            boot_timeout=_BOOT_S, fail_on_oops=False, nodes=(memory // 2 * machine.MIB,) * 2, cache=self.cache,
        )  # fmt: skip

    def attack(self, attack: Attack, append: Sequence[str] = (), times: int = 1) -> machine.GuestResult:
        """Run an attack until it finds something."""
        script = scenario.shell(
            "until-caught.sh", PREPARE=XFS if attack.xfs else "", LOOKS="\n".join(f"look {p}" for p in attack.programs),
            FOLDER=self.program.parent, DATA=DATA_DIR, MANY=_MANY * steps.patience(),
        )  # fmt: skip
        suite = ("kunit.enable=1", f"kunit.filter_glob={attack.suite}", "loglevel=7") if attack.suite else ()
        limit = times * _ATTACK_S * steps.patience()
        return self.boot(script, [*append, *attack.append, *suite], limit, attack.cpus, attack.memory)

    def mutants(self) -> list[str]:
        """The names of all mutations of the kernel."""
        return self.boot(f"cat {_MUTANTS}", (), 60).stdout.split()

    # --- judging ----------------------------------------------------------------

    def intact(self, name: str, attack: Attack) -> Case:
        """Run an attack on the intact kernel: a test that finds something there cannot catch a mutation."""
        # Without a find all programs run, which takes longer.
        guest = self.attack(attack, times=4)
        tests = list(tap.read(guest.stdout))
        failed = [f"{test.name}\n{test.why}".rstrip() for test in tests if test.status == "failed"]
        passed = sum(test.status == "passed" for test in tests)
        problems = [*read_outcome(guest).problems, *failed, *([] if passed or failed else ["no test ran"])]
        if guest.exit_code and not problems:
            problems.append(f"exit code {guest.exit_code}")
        if problems:
            return Case(name, "failed", "\n".join(problems))
        return Case(name, said=f"{name}: {passed} tests found nothing")

    def torture(self, name: str, args: str, timeout: float, append: Sequence[str] = ()) -> Case:
        """Torture the intact kernel."""
        guest = self.boot(f"{self.program} {DATA_DIR} {args}", append, timeout)
        reads, per_second = rate[0] if (rate := _RATE.findall(guest.stdout)) else (0, 0)
        problems = list(read_outcome(guest).problems)
        problems += [test.name for test in tap.read(guest.stdout) if test.status == "failed"]
        if not _END.search(guest.console):
            problems.append("the kernel half did not finish")
        if not int(reads):
            problems.append("no read was checked")
        if guest.exit_code and not problems:
            problems.append(f"luf_torture exited with {guest.exit_code}")
        if problems:
            return Case(name, "failed", "\n".join([*problems, guest.stdout + guest.stderr]))
        return Case(name, said=f"{name}: {int(reads):,} reads checked, {int(per_second):,} per second, no violation")

    def mutant(self, name: str) -> Case:
        """Test the kernel with a mutation; a survivor has failed."""
        try:
            outcome = read_outcome(self.attack(attack_for(name), [f"quell_mutants.mutant={name}"]))
        except watch.GuestTimeout as error:
            # A hang alone does not catch a mutation.
            return Case(name, "failed", f"{name} survived: {error.message}")
        if not outcome.by:
            return Case(name, "failed", ": ".join(filter(None, (f"{name} survived", outcome.what))))
        return Case(name, said=f"{name:<22} {outcome.by:<12} {outcome.seconds:>7.2f} s  {outcome.what}")


# --- all of it ----------------------------------------------------------------


@pytest.mark.parametrize(
    "attack",
    [pytest.param(one, marks=pytest.mark.full if one.append else (), id=one.title()) for one in INTACT],
)
def test_selftest_finds_nothing(debug_bench: Bench, attack: Attack) -> None:
    """A test that fails on the intact kernel cannot catch a mutation."""
    settle(debug_bench.intact(attack.title(), attack))


def test_torture(debug_bench: Bench, full: bool) -> None:
    """A minute, or until _FULL_READS reads are checked."""
    args = f"--reads {_FULL_READS}" if full else f"--seconds {_INTACT_S}"
    settle(debug_bench.torture("intact", args, 4 * 3600 if full else _INTACT_S + _MARGIN_S))


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant(debug_bench: Bench, variant: str) -> None:
    """A shorter time with other boot parameters."""
    # A busy host does less work in a second.
    seconds = _VARIANT_S * steps.patience()
    settle(debug_bench.torture(variant, f"--seconds {seconds}", seconds + _MARGIN_S, VARIANTS[variant]))
