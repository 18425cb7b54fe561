# SPDX-License-Identifier: GPL-2.0-only
"""Part sanitizers: reading a kernel's log, without a guest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quell import build, disks, machine, prereq, source, tree, workload
from quell.checks import CheckResult, kunit, sanitizers
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
    assert {"luf_owe", "luf_ledger_flush", "early_ack_receive", "__folio_order_alloc", "__luf_park"} <= own
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
    assert said.results() == (1, ["luf_stale: b"], 1)
    assert said.problems() == ["UBSAN: shift-out-of-bounds in mm/luf.c:12:3", LEAK.splitlines()[0]]
    stuck = sanitizers.Said.of(_guest(f"{TAP}@quell log\n{CSD}"))
    assert stuck.problems() == [CSD.split("] ")[1].rstrip()]
    died = sanitizers.Said.of(_guest("@quell test switches\nok 1 a\n", "BUG: unable to handle page fault\n"))
    assert died.problems() == ["BUG: unable to handle page fault", "the guest did not finish"]
    assert died.results()[1] == ["switches: the test ended early, after 1 results"]


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
    built: list[str] = []

    class _Kernel:
        def __init__(self, name: str) -> None:
            self.image = tmp_path / name

    def build_kernels(_source: Any, names: Sequence[str], _cache: Any) -> dict[str, _Kernel]:
        built.extend(names)
        return {name: _Kernel(name) for name in names}

    class _Prepared:
        argv = ("work",)
        data = None
        programs = ()

    def make(said: dict[str, str]) -> tuple[CheckResult, list[str]]:
        monkeypatch.setattr(machine, "run_script", _Guests(said))
        monkeypatch.setattr(build, "build_kernels", build_kernels)
        monkeypatch.setattr(source, "debian_source", lambda _cache: None)
        monkeypatch.setattr(prereq, "ensure", lambda _items: None)
        monkeypatch.setattr(sanitizers, "selftests", lambda _folder: {})
        monkeypatch.setattr(disks, "make_ext4", lambda *_: None)
        monkeypatch.setattr(workload, "prepare", lambda *_: _Prepared())
        monkeypatch.setattr(kunit, "read_log", lambda *_: CheckResult(5, 0, 0))
        return sanitizers.run(Cache(tmp_path)), built

    return make


def test_silence_passes(boots: Any) -> None:
    result, built = boots({"sanitize": "", "kcsan": STOCK})
    assert result.failed == 0
    assert result.passed == 2 * (2 + 5 + 1)
    assert "races of stock: 1" in result.details
    assert built == ["sanitize", "kcsan"]


def test_complaint_fails(boots: Any) -> None:
    result, _ = boots({"sanitize": UBSAN, "kcsan": RACE})
    assert result.failed == 2
    assert "not ok: sanitize: UBSAN" in result.details
    assert "not ok: kcsan: data race: data-race in luf_owe / luf_owe" in result.details


def test_race_where_a_hook_is_is_looked_up_in_stock(boots: Any) -> None:
    result, built = boots({"sanitize": "", "kcsan": HOOKED, "kcsan-stock": HOOKED})
    assert result.failed == 0
    assert built[-1] == "kcsan-stock"
    assert "races that stock has, too" in result.details
    assert boots({"sanitize": "", "kcsan": HOOKED, "kcsan-stock": STOCK})[0].failed == 1
