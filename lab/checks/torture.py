# SPDX-License-Identifier: GPL-2.0-only
"""The debug kernel under attack: its boots, and their output. For torture and mutants.

``luf_torture`` (a selftest) reads and checks. The kernel's torture module poisons free
frames and drains. The ledger of the debug kernel (``luf_debug``) checks its rules. On the
intact kernel none of them may complain. With a mutation of the debug kernel one of these
three, another selftest, KUnit or a crash must reveal it: otherwise the tests prove nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from checks import scenario, steps
from checks.benches import BRD, XFS
from checks.cases import Case
from checks.tap import read_tap, tap_comments
from quell import build, machine, prereq, source, tree, watch
from quell.errors import QuellError
from quell.frames import DATA_DIR
from quell.paths import Cache

PROGRAM = "luf_torture"
MUTANTS = "/sys/module/quell_mutants/parameters/mutants"
_HEADER = "files/include/linux/quell_mutants.h"
MEMORY_MIB = 512
NODES = 2
# The debug kernel boots in half a minute; with page_owner and KUnit on a busy host it takes longer.
_BOOT_S = 300
# A selftest on the intact kernel takes at most two minutes on an idle host.
_FOCUSED_S = 900
# Rounds for mutations that are found by chance; on a busy host the right moments are rarer.
_MANY = 8


class Attack(scenario.Row, frozen=True):
    """Tests that must catch the mutations of a mechanism.

    ``programs``: selftests with arguments, run in turn until one fails or the ledger
    complains. ``xfs``: an empty one on /mnt. ``suite``: KUnit's, at boot. ``memory``: the guest's,
    in MiB, in two nodes. ``variant``: one of the variants. ``limit``: seconds, on an idle host.
    """

    programs: tuple[str, ...]
    xfs: bool = False
    suite: str = ""
    variant: str = ""
    cpus: int = NODES
    memory: int = MEMORY_MIB
    limit: int = 165

    def title(self) -> str:
        """The name in the results."""
        return self.programs[0].replace("DATA ", "") + (self.variant and f", {self.variant}")

    def parameters(self) -> tuple[str, ...]:
        """The boot parameters of its variant."""
        variants = {**VARIANTS, **_TABLE.other_variants}
        return variants[self.variant] if self.variant else ()


class _Table(scenario.Row, frozen=True):
    variants: dict[str, tuple[str, ...]]
    other_variants: dict[str, tuple[str, ...]] = msgspec.field(name="other-variants")
    attacks: dict[str, Attack]
    intact: tuple[Attack, ...]


_TABLE = scenario.table("torture.toml", _Table)
VARIANTS, ATTACKS, INTACT = _TABLE.variants, _TABLE.attacks, _TABLE.intact


def mutant_names() -> list[str]:
    """The mutations that the kernel part has."""
    return re.findall(r"^\tM\((\w+)\)", (tree.kernel_dir() / _HEADER).read_text(), re.M)


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
    problems += [f"console: {line}" for line in watch.find_warnings(console)]
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


def attack_for(mutant: str) -> Attack | None:
    """The tests of a mutation."""
    return ATTACKS.get(mutant) or ATTACKS.get(mutant.partition("_")[0])


@dataclass(frozen=True)
class Bench:
    """Kernel, program and disk of every guest."""

    image: Path
    program: Path
    disk: Path
    cache: Cache

    def boot(
        self, words: Sequence[str], append: Sequence[str], timeout: float, cpus: int = NODES,
        memory: int = MEMORY_MIB,
    ) -> machine.GuestResult:
        """Run a command."""
        return machine.run_script(
            self.image, list(words), cpus=cpus, append=[BRD, *append], timeout=timeout, data=self.disk,
            boot_timeout=_BOOT_S, fail_on_oops=False, nodes=(memory // NODES * machine.MIB,) * NODES,
            cache=self.cache,
        )  # fmt: skip

    def script(self, attack: Attack, append: Sequence[str], timeout: float) -> machine.GuestResult:
        """Run the programs of ``attack`` until one fails or the ledger complains."""
        script = scenario.shell(
            "until-caught.sh", PREPARE=XFS if attack.xfs else "", LOOKS="\n".join(f"look {p}" for p in attack.programs),
            FOLDER=self.program.parent, DATA=DATA_DIR, MANY=_MANY * steps.patience(),
        )  # fmt: skip
        return self.boot(["/bin/sh", "-c", script], append, timeout, attack.cpus, attack.memory)

    def attack(self, attack: Attack, append: Sequence[str], times: int = 1) -> machine.GuestResult:
        """The same with the KUnit suite of ``attack``, for ``times`` its limit."""
        suite = ("kunit.enable=1", f"kunit.filter_glob={attack.suite}", "loglevel=7") if attack.suite else ()
        return self.script(attack, [*append, *attack.parameters(), *suite], times * attack.limit * steps.patience())

    def mutants(self) -> list[str]:
        """The names of all mutations of the kernel."""
        guest = self.boot(["cat", MUTANTS], (), 60)
        if guest.exit_code:
            raise QuellError("the debug kernel does not list its mutations", detail=guest.stderr)
        return guest.stdout.split()

    # --- judging ----------------------------------------------------------------

    def torture(self, name: str, args: Sequence[str], timeout: float, append: Sequence[str] = ()) -> Case:
        """Torture the intact kernel."""
        guest = self.boot([str(self.program), DATA_DIR, *args], append, timeout)
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
            return Case(name, "failed", "\n".join([*problems, guest.stdout + guest.stderr]))
        said = f"{name}: {outcome.reads:,} reads checked, {outcome.rate:,} per second, no violation"
        return Case(name, said=said)

    def focused(self, attack: Attack) -> Case:
        """Run an attack on the intact kernel: a test that fails there cannot catch a mutation."""
        guest = self.script(attack, attack.parameters(), _FOCUSED_S)
        outcome = read_outcome(guest.stdout, guest.console, guest.oops)
        passed, failed, _ = read_tap(guest.stdout)
        problems = [*outcome.problems, *([] if passed or failed else ["no test ran"])]
        for test in failed:
            problems += [test, *tap_comments(guest.stdout, test).splitlines()]
        if guest.exit_code and not problems:
            problems.append(f"exit code {guest.exit_code}")
        if problems:
            return Case(attack.title(), "failed", "\n".join(problems))
        return Case(attack.title(), said=f"{attack.title()}: {len(passed)} tests passed on the debug kernel")

    def no_mutant(self, which: str) -> Case:
        """The tests of mutations on the intact kernel: a find there would not come from the mutation."""
        # Without a find all programs run, which takes longer.
        guest = self.attack(ATTACKS[which], (), 4)
        outcome = read_outcome(guest.stdout, guest.console, guest.oops)
        passed, failed, _ = read_tap(guest.stdout)
        # Each program prints its own plan: their sum differs from the first.
        failed = [text for text in failed if not text.endswith(" came")]
        if problems := [*outcome.problems, *failed, *([] if passed else ["no test ran"])]:
            return Case(which, "failed", "\n".join(problems))
        return Case(which, said=f"{which}, no fault: {len(passed)} tests found nothing")

    def mutant(self, name: str) -> Case:
        """Test the kernel with a mutation; a survivor has failed."""
        attack = attack_for(name)
        if attack is None:
            return Case(name, "failed", f"torture.toml has no test for the mutation {name}")
        try:
            guest = self.attack(attack, [f"quell_mutants.mutant={name}"])
        except watch.GuestTimeout as error:
            # A hang alone does not catch a mutation.
            return Case(name, "failed", f"{name} survived: {error.message}")
        outcome = read_outcome(guest.stdout, guest.console, guest.oops)
        if not outcome.by:
            why = next((text for text in outcome.problems if " gave up: " in text), "")
            return Case(name, "failed", f"{name} survived {outcome.reads:,} reads" + (f"; {why}" if why else ""))
        return Case(name, said=f"{name:<22} {outcome.by:<12} {outcome.seconds:>7.2f} s  {outcome.what}")


def make_bench(origin: source.Source, cache: Cache, programs: dict[str, Path], disk: Path) -> Bench:
    """Build the debug kernel."""
    prereq.ensure((*prereq.VM, *prereq.XFS))
    kernel = build.build_kernels(origin, ("debug",), cache)["debug"]
    return Bench(kernel.image, programs[PROGRAM], disk, cache)
