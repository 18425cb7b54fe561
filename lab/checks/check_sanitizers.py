# SPDX-License-Identifier: GPL-2.0-only
"""Run two more kernels, with sanitizers that the debug kernel lacks; every complaint is a failure.

``sanitize`` looks for undefined behavior, leaks, and use of debug objects after their lifetime;
``kcsan`` for data races. Both boot with Quell's KUnit tests, run its selftests, the torture
test for a while, and three workloads. The kernel's log has their complaints.

Linux has data races of its own. A race is a failure if one of its two accesses is in a
function of Quell. In a hooked function of Linux it is a failure unless stock Linux reports it
too (``kcsan-stock``, in one of three runs of what it can run). Other races are listed.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from checks import check_kunit as kunit, scenario, steps, tap
from checks.benches import BRD, XFS
from checks.cases import Results
from quell import build, machine, prereq, source, tree, ui, workload
from quell.errors import QuellError
from quell.frames import DATA_DIR
from quell.paths import Cache

WORKLOADS = ("mapped-read", "dontneed-touch", "page-out")
_CPUS = 4
_NODE = 512 * machine.MIB
_TORTURE_S = 20
_TIMEOUT_S = 5400
# A complaint must not end the guest: it goes to the log, not to the console, which is watched.
_APPEND = ("loglevel=3", "log_buf_len=16M", "page_poison=1", "csdlock_debug=1", "smp.csd_lock_timeout=120000", BRD)
_LOG = "@quell log"
# Selftests with their arguments; DATA is ext4, /mnt xfs, which has large folios.
PROGRAMS = (
    "switches DATA", "luf_stale DATA 3", "luf_migrate DATA 3", "early_ack 500", "security DATA 2",
    "folio_order", "rmap_batch /mnt", "writeout_batch 1", f"luf_torture DATA --seconds {_TORTURE_S}",
)  # fmt: skip
_ANY_KERNEL = ("early_ack 500",)  # stock passes or skips it

_STAMP = re.compile(r"^\[[^]]*\](?:\[[^]]*\])? ?")
_KCSAN = re.compile(r"BUG: KCSAN: (.*)\n((?:.*\n)*?)(?======)")
# An access, and below it the function.
_ACCESS = re.compile(
    r"^.*(?:reads?|writes?|assert no writes|assert no accesses|race at unknown)\b.* (?:to|by) .*\n"
    r"[ \t]+(\w+)(?:\.\w+)*\+0x",
    re.I | re.M,
)
_OTHER = re.compile(
    r"(UBSAN: .*|ODEBUG: (?!Out of memory).*|(?<!ODE)BUG: (?!KCSAN).*|WARNING: .*|(?:smp: )?csd: .*"
    r"|INFO: .*(?:stall|blocked for).*|\d+ new suspected memory leaks.*|pagealloc: .*|kernel BUG at .*)$"
)
_LEAK = re.compile(r"^unreferenced object .*$", re.M)


@dataclass(frozen=True)
class Race:
    """A report of KCSAN: the functions of the accesses, and all of its lines."""

    where: set[str]
    text: str


def races(log: str) -> dict[str, Race]:
    """The complete reports of KCSAN in a kernel's log by title."""
    text = "\n".join(_STAMP.sub("", line) for line in log.replace("\r", "").splitlines())
    return {
        title: Race(set(_ACCESS.findall(report)), f"{title}\n{report}".rstrip())
        for title, report in _KCSAN.findall(text)
    }


def complaints(log: str) -> list[str]:
    """All other complaints, each line once."""
    lines = (_STAMP.sub("", line) for line in log.replace("\r", "").splitlines())
    return list(dict.fromkeys(match[1] for line in lines if (match := _OTHER.search(line))))


_DEFINED = re.compile(r"^(?!#|\s|typedef|struct \w+ \{)[\w\s*]*?\b(\w+)\([^;{}()]*(?:\([^()]*\)[^;{}()]*)*\)\s*\{", re.M)


def own_functions(part: tree.KernelPart) -> set[str]:
    """The functions in Quell's own kernel files, tests and tools left out."""
    names: set[str] = set()
    for path, data in part.files.items():
        if path.endswith((".c", ".h")) and not path.startswith("tools/"):
            names.update(_DEFINED.findall(data.decode()))
    return names


def hooked_functions(part: tree.KernelPart) -> set[str]:
    """The hooked functions of Linux, as Quell's patches name them."""
    return {
        name
        for hook in part.hooks
        for path, section in hook.sections.items()
        if path.endswith((".c", ".h"))
        for name in re.findall(r"^@@ .* @@ .*?(\w+)\s*\(", section, re.M)
    }


@dataclass(frozen=True)
class Bench:
    """A kernel with its load: selftests, from a folder and on an empty disk, and workloads."""

    image: Path
    folder: Path
    disk: Path
    cache: Cache

    def run(self, programs: Sequence[str]) -> list[machine.GuestResult]:
        """The guests: one with ``programs``, and one for each workload; QuellError if that fails."""
        guests = [
            self._guest(
                load(programs, self.folder), cpus=_CPUS, nodes=(_NODE, _NODE), data=self.disk,
                append=(*_APPEND, "kunit.enable=1"),
            )
        ]  # fmt: skip
        for one in workload.select(WORKLOADS):
            ready = workload.prepare(one, machine.parse_memory("256M"), self.cache, {})
            guests.append(self._guest(
                f"workload {shlex.join(ready.argv)}", memory="512M", data=ready.data, stage=ready.programs,
                append=_APPEND,
            ))  # fmt: skip
            if guests[-1].exit_code:
                raise QuellError(f"{one.name} failed", detail=guests[-1].stderr or guests[-1].console[-2000:])
        return guests

    def _guest(self, text: str, **how: Any) -> machine.GuestResult:
        return machine.run_script(
            self.image, scenario.shell("sanitizers.sh", LOAD=text), timeout=_TIMEOUT_S * steps.patience(),
            boot_timeout=_TIMEOUT_S, fail_on_oops=False, cache=self.cache, **how,
        )  # fmt: skip


def load(programs: Sequence[str], folder: Path) -> str:
    """Shell that runs programs of ``folder``. A line with its name precedes the output of each."""
    lines = [XFS]
    for program in programs:
        words = f"{folder}/{program.replace('DATA', DATA_DIR)}"
        lines.append(f"echo '@quell test {program.split()[0]}'; {words} 2>&1 || [ $? = 4 ] || failed=1")
    return "\n".join(lines)


def log_of(guest: machine.GuestResult) -> str:
    """The kernel's log: the console's if the guest did not finish."""
    return guest.stdout.partition(f"{_LOG}\n")[2] or guest.console


def problems(guest: machine.GuestResult) -> list[str]:
    """All complaints of sanitizers, except races."""
    early = [] if f"{_LOG}\n" in guest.stdout else ["the guest did not finish"]
    return [*complaints(log_of(guest)), *_LEAK.findall(guest.stdout), *early]


def look(results: Results, name: str, bench: Bench, kernel_source: source.Source) -> None:
    """Run the load on the kernel ``name``, and judge its complaints."""
    guests = bench.run(PROGRAMS)
    for number, guest in enumerate(guests):
        log = f"{guest.stdout}\n{guest.console}"
        steps.keep(bench.cache.logs / "sanitizers", f"{name}-{kernel_source.linux}.{number}", log)
    results.add(*tap.read(guests[0].stdout.partition(_LOG)[0]))
    results.add(*kunit.read_log(log_of(guests[0]), kernel_source, bench.cache))
    wrong = [text for guest in guests for text in problems(guest)]
    part = tree.read_kernel_part(tree.kernel_dir(), kernel_source.linux)
    found = {title: race for guest in guests for title, race in races(log_of(guest)).items()}
    own, hooked = own_functions(part), hooked_functions(part)
    ours = {title for title, race in found.items() if own & race.where}
    at_hooks = {title for title, race in found.items() if hooked & race.where} - ours
    new = ours | at_hooks
    for _ in range(3):
        if new & at_hooks:
            image = build.build_kernels(kernel_source, ("kcsan-stock",), bench.cache)["kcsan-stock"].image
            for guest in replace(bench, image=image).run(_ANY_KERNEL):
                new -= at_hooks & races(log_of(guest)).keys()
    wrong += [f"data race: {race.text}" for title, race in found.items() if title in new]
    results.check(not wrong, "no complaint", "\n".join(dict.fromkeys(wrong)))
    if others := found.keys() - new:
        ui.note("\n  ".join([f"{name}: races of stock: {len(others)}", *sorted(others)]))


@pytest.mark.parametrize("name", ["sanitize", "kcsan"])
def test_sanitizers(
    name: str, results: Results, origin: source.Source, programs: dict[str, Path], disk: Path, cache: Cache
) -> None:
    """Each kernel."""
    prereq.ensure((*prereq.VM, *prereq.XFS))
    kernel = build.build_kernels(origin, (name,), cache)[name]
    folder = programs["luf_torture"].parent
    look(results, name, Bench(kernel.image, folder, disk, cache), origin)
