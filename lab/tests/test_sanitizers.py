# SPDX-License-Identifier: GPL-2.0-only
"""Part sanitizers: reading a kernel's log, without a guest."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checks import check_kunit as kunit, check_sanitizers as sanitizers
from checks.cases import Case, Results
from conftest import Capture
from guests import Patch, guest_result
from quell import build, machine, tree, workload
from quell.paths import Cache
from quell.source import Source

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
STOCK = RACE.replace("luf_owe+", "wakeup_source_add.constprop.0+").replace("luf_owe", "wakeup_source_add")
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
    found = sanitizers.races(RACE + STOCK + UNKNOWN + RACE).values()
    assert [race.where for race in found] == [{"luf_owe"}, {"wakeup_source_add"}, {"folio_lock"}]
    [mixed] = sanitizers.races(RACE.replace("luf_owe+0x18", "luf_flush.part.0+0x18")).values()
    assert mixed.where == {"luf_owe", "luf_flush"} and "by task 41 on cpu 0" in mixed.text
    # A truncated report is ignored.
    assert not sanitizers.races(RACE.rpartition("=====")[0].rpartition("[")[0])


def test_functions_of_the_kernel_part() -> None:
    part = tree.read_kernel_part(tree.kernel_dir())
    own = sanitizers.own_functions(part)
    assert {"luf_owe", "luf_flush", "early_ack_receive", "folio_order_alloc", "__luf_free_folios"} <= own
    assert not {"main", "try_to_unmap", "schedule", "smp_call_function_many_cond"} & own
    hooked = sanitizers.hooked_functions(part)
    assert {"shrink_folio_list", "switch_mm_irqs_off", "get_write_access"} & hooked
    assert "try_to_unmap_flush_dirty_not_there" not in hooked


def test_complaints() -> None:
    once = ["UBSAN: shift-out-of-bounds in mm/luf.c:12:3"]
    assert sanitizers.complaints(UBSAN + UBSAN + "[ 1.0] ODEBUG: Out of memory. ODEBUG disabled\n" + RACE) == once
    assert sanitizers.complaints("[   1.0][   T12] WARNING: CPU: 1 PID: 2 at mm/luf.c:1\n")
    assert len(sanitizers.complaints("pagealloc: single bit error\nINFO: task a:1 blocked for more than 120 s\n")) == 2


def test_problems_of_a_guest() -> None:
    both = guest_result(f"{TAP}@quell log leaks\n{LEAK}@quell log\n{UBSAN}")
    assert sanitizers.problems(both) == ["UBSAN: shift-out-of-bounds in mm/luf.c:12:3", LEAK.splitlines()[0]]
    assert sanitizers.problems(guest_result(f"{TAP}@quell log\n{CSD}")) == [CSD.split("] ")[1].rstrip()]
    oops = "BUG: unable to handle page fault"
    died = guest_result("@quell test switches\nok 1 a\n", f"{oops}\n")
    assert sanitizers.problems(died) == [oops, "the guest did not finish"]


@pytest.mark.parametrize(("ours", "stock", "why"), [
    ("", "", ""),
    (STOCK, "", ""),
    # A caller in Quell does not make it Quell's.
    (UNKNOWN, "", ""),
    (UBSAN, "", "UBSAN: shift-out-of-bounds in mm/luf.c:12:3"),
    (RACE, "", "data race: data-race in luf_owe / luf_owe"),
    # A race where a hook is is looked up in stock.
    (HOOKED, HOOKED, ""),
    (HOOKED, STOCK, "data race: data-race in shrink_folio_list"),
])  # fmt: skip
def test_complaint_fails(
    ours: str, stock: str, why: str, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    def boot(image: Path, _script: str, *, append: Sequence[str] = (), **_: Any) -> machine.GuestResult:
        assert "loglevel=3" in append  # a complaint on the console would end the guest
        log = {"ours": ours, "stock": stock}[image.name]
        return guest_result(f"{TAP.replace('not ok', 'ok')}@quell log leaks\n@quell log\n{log}")

    kernels = {"kcsan-stock": SimpleNamespace(image=tmp_path / "stock")} if stock else {}
    monkeypatch.setattr(machine, "run_script", boot)
    monkeypatch.setattr(build, "build_kernels", lambda *_: kernels)
    monkeypatch.setattr(workload, "prepare", lambda *_: SimpleNamespace(argv=("work",), data=None, programs=()))
    monkeypatch.setattr(kunit, "read_log", lambda *_: [Case("kunit")])
    results = Results()
    bench = sanitizers.Bench(tmp_path / "ours", tmp_path, tmp_path / "disk", Cache(tmp_path))
    sanitizers.look(results, "kcsan", bench, Source("6.12.7", tmp_path, ""))
    *cases, last = results.cases
    assert [case.status for case in cases] == ["passed", "passed", "skipped", "passed"]
    assert last.status == ("failed" if why else "passed") and last.why.startswith(why)
    assert ("races of stock: 1" in capsys.readouterr().err) == (not why and bool(ours))
