# SPDX-License-Identifier: GPL-2.0-only
"""Part sanitizers: reading a kernel's log, without a guest."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from checks import check_kunit as kunit, check_sanitizers as sanitizers
from checks.cases import Case, Results
from quell import build, machine, tree, workload
from quell.paths import Cache

RACE = """[    9.1] ==================================================================
[    9.1] BUG: KCSAN: data-race in luf_owe / luf_owe
[    9.1]
[    9.1] write to 0xffffffff82 of 8 bytes by task 40 on cpu 1:
[    9.1]  luf_owe+0x10/0x20
[    9.1]  try_to_unmap_one+0x1/0x2
[    9.1]
[    9.1] read to 0xffffffff82 of 8 bytes by task 41 on cpu 0:
[    9.1]  luf_owe+0x18/0x20
[    9.1]  shrink_folio_list+0x1/0x2
[    9.1]
[    9.1] Reported by Kernel Concurrency Sanitizer on:
[    9.1] CPU: 0 PID: 41 Comm: kswapd0 Not tainted
[    9.1] ==================================================================
"""
STOCK = RACE.replace("luf_owe", "wakeup_source_add.constprop.0").replace(
    "in wakeup_source_add.constprop.0 / wakeup_source_add.constprop.0", "in wakeup_source_add / wakeup_source_add"
)
HOOKED = RACE.replace("luf_owe", "shrink_folio_list")
UNKNOWN = """==================================================================
BUG: KCSAN: data-race in folio_lock+0x1/0x2

race at unknown origin, with read to 0xffff88 of 8 bytes by interrupt on cpu 2:
 folio_lock+0x1/0x2
 luf_release+0x1/0x2

value changed: 0x0 -> 0x1
==================================================================
"""
TAP = "@quell test switches\nok 1 a\n1..1\n@quell test luf_stale\nnot ok 1 b\nok 2 c # SKIP needs d\n1..2\n"
LEAK = "unreferenced object 0xffff888004a1b2c0 (size 64):\n  comm \"sh\", pid 1\n"
CSD = "[    8.0] smp: csd: Detected non-responsive CSD lock (#1) on CPU#0, waiting 5000000003 ns for CPU#01\n"
UBSAN = "[    3.0] UBSAN: shift-out-of-bounds in mm/luf.c:12:3\n[    3.0] shift exponent 64\n"


def test_races_are_read_with_both_accesses() -> None:
    found = sanitizers.races(RACE + STOCK + UNKNOWN + RACE)
    assert [race.where for race in found] == [
        ("luf_owe", "luf_owe"),
        ("wakeup_source_add", "wakeup_source_add"),
        ("folio_lock",),
    ]
    assert "by task 41 on cpu 0" in found[0].text
    # A truncated report is ignored.
    assert not sanitizers.races(RACE.rpartition("=====")[0].rpartition("[")[0])


def test_whose_a_race_is() -> None:
    judged = sanitizers.judge(
        sanitizers.races(RACE + HOOKED + STOCK + UNKNOWN), {"luf_owe", "luf_release"}, {"shrink_folio_list"}
    )
    assert [race.where[0] for race in judged.ours] == ["luf_owe"]
    assert [race.where[0] for race in judged.hooked] == ["shrink_folio_list"]
    # A caller in Quell does not make it Quell's.
    assert [race.where[0] for race in judged.others] == ["wakeup_source_add", "folio_lock"]


def test_functions_of_the_kernel_part() -> None:
    part = tree.read_kernel_part(tree.kernel_dir())
    own = sanitizers.own_functions(part)
    assert {"luf_owe", "luf_flush", "early_ack_receive", "__folio_order_alloc", "__luf_free_folios"} <= own
    assert not {"main", "if", "try_to_unmap", "schedule"} & own
    hooked = sanitizers.hooked_functions(part)
    assert {"shrink_folio_list", "switch_mm_irqs_off", "get_write_access"} & hooked
    assert not {"try_to_unmap_flush_dirty_not_there"} & hooked


def test_complaints() -> None:
    assert sanitizers.complaints(UBSAN + UBSAN + "[ 1.0] all is well\n" + RACE) == [
        "UBSAN: shift-out-of-bounds in mm/luf.c:12:3"
    ]
    assert sanitizers.complaints("[   1.0][   T12] WARNING: CPU: 1 PID: 2 at mm/luf.c:1\n")


def _guest(stdout: str, console: str = "", code: int = 0) -> machine.GuestResult:
    return machine.GuestResult(code, stdout, "", console, 1.0)


def test_what_a_guest_said() -> None:
    said = sanitizers.Said.of(_guest(f"{TAP}@quell log leaks\n{LEAK}@quell log\n{UBSAN}"))
    assert [(case.name, case.status) for case in said.results()] == [
        ("switches: a", "passed"), ("luf_stale: b", "failed"), ("luf_stale: c", "skipped"),
    ]  # fmt: skip
    assert said.problems() == ["UBSAN: shift-out-of-bounds in mm/luf.c:12:3", LEAK.splitlines()[0]]
    stuck = sanitizers.Said.of(_guest(f"{TAP}@quell log\n{CSD}"))
    assert stuck.problems() == [CSD.split("] ")[1].rstrip()]
    died = sanitizers.Said.of(_guest("@quell test switches\nok 1 a\n", "BUG: unable to handle page fault\n"))
    assert died.problems() == ["BUG: unable to handle page fault", "the guest did not finish"]
    assert died.results()[1].name == "switches: the test ended early, after 1 results"


def test_script_runs_each_program_once(tmp_path: Path) -> None:
    text = sanitizers._Bench(tmp_path, tmp_path, tmp_path, Cache(tmp_path))._script(sanitizers.PROGRAMS)
    done = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert text.count("@quell test ") == len(sanitizers.PROGRAMS) and text.index("failed=0") < text.index("failed=1")


class _Guests:
    """Answers boots with each kernel's output, by the name of its image."""

    def __init__(self, said: dict[str, str]) -> None:
        self.said = said
        self.scripts: list[str] = []

    def __call__(self, image: Path, script: str, *, append: Sequence[str] = (), **_: Any) -> machine.GuestResult:
        self.scripts.append(script)
        assert "loglevel=3" in append  # a complaint on the console would end the guest
        return _guest(f"{TAP.replace('not ok', 'ok')}@quell log leaks\n@quell log\n{self.said[image.name]}")


@pytest.fixture
def boots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Looks at a kernel whose guests have a log, beside that of stock; the cases."""

    class _Kernel:
        image = tmp_path / "stock"

    class _Prepared:
        argv = ("work",)
        data = None
        programs = ()

    def make(said: str, stock: str | None = None) -> list[Case]:
        monkeypatch.setattr(machine, "run_script", _Guests({"ours": said, "stock": stock or ""}))
        monkeypatch.setattr(build, "build_kernels", lambda _s, names, _c: {name: _Kernel for name in names} if stock else {})
        monkeypatch.setattr(workload, "prepare", lambda *_: _Prepared())
        monkeypatch.setattr(kunit, "read_log", lambda *_: [Case("kunit")])
        results = Results()
        bench = sanitizers._Bench(tmp_path / "ours", tmp_path, tmp_path / "disk", Cache(tmp_path))
        sanitizers.look(results, "kcsan", bench, None)  # type: ignore[arg-type]
        return results.cases

    return make


@pytest.mark.parametrize(
    ("log", "stock", "why"),
    [
        ("", None, ""),
        (STOCK, None, ""),
        (UBSAN, None, "UBSAN: shift-out-of-bounds in mm/luf.c:12:3"),
        (RACE, None, "data race: data-race in luf_owe / luf_owe"),
        # A race where a hook is is looked up in stock.
        (HOOKED, HOOKED, ""),
        (HOOKED, STOCK, "data race: data-race in shrink_folio_list"),
    ],
)
def test_complaint_fails(log: str, stock: str | None, why: str, boots: Any, capsys: pytest.CaptureFixture[str]) -> None:
    *cases, last = boots(log, stock)
    assert [case.status for case in cases] == ["passed", "passed", "skipped", "passed"]
    assert last.status == ("failed" if why else "passed") and last.why.startswith(why)
    said = capsys.readouterr().err
    assert ("races of stock: 1" in said) == (log == STOCK)
    assert ("races that stock has, too" in said) == (stock == HOOKED)
