# SPDX-License-Identifier: GPL-2.0-only
from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guests import KERNELS, FakeGuests, plan, sample
from quell import build, compare, machine, measure, prereq, session, source, stats, table, workload
from quell.commands import compare as command
from quell.errors import QuellError, UsageError
from quell.paths import Cache


def test_runs_alternate_and_are_compared(tmp_path: Path) -> None:
    guests = FakeGuests(
        lambda side, name, n: sample(shootdown_ipis=n if side == "quell" else 100 + n, luf_x=n)
    )
    done = compare.measure_all(KERNELS, [plan("a"), plan("b")], 2, guests, tmp_path)
    assert guests.log == [(p, s) for p in "ab" for _ in range(2) for s in ("stock", "quell")]
    entry = done[0].to_json()
    assert entry["workload"] == "a"
    assert set(entry["metrics"]) == {m.name for m in measure.METRICS}
    assert entry["metrics"]["shootdown_ipis"] == {
        "stock": {"median": 101.5, "min": 101, "max": 102, "runs": [101, 102]},
        "quell": {"median": 1.5, "min": 1, "max": 2, "runs": [1, 2]},
        "ratio": 0.0148,
        "verdict": "better",
    }
    assert entry["metrics"]["elapsed_s"]["verdict"] == stats.SAME
    assert entry["extras"]["luf_x"]["ratio"] == 1
    assert (tmp_path / "runs" / "b" / "quell-2" / "sample.json").exists()


def test_figures_of_programs_and_counters_of_one_kernel(tmp_path: Path) -> None:
    def answer(side: str, name: str, n: int) -> measure.Sample:
        rate = measure.Figure(10.0 if side == "stock" else 20.0, "pages/s", True)
        extras: dict[str, measure.Number] = {"luf_drains": 3} if side == "quell" else {}
        return measure.Sample(dict(sample().metrics), extras, {"rate": rate})

    entry = compare.measure_all(KERNELS, [plan()], 1, FakeGuests(answer), tmp_path)[0].to_json()
    rate = entry["figures"]["rate"]
    assert (rate["verdict"], rate["better"], rate["unit"]) == (stats.BETTER, "higher", "pages/s")
    assert entry["extras"]["luf_drains"]["stock"] is None


def test_what_should_be_the_same(tmp_path: Path) -> None:
    def answer(side: str, name: str, n: int) -> measure.Sample:
        wrong = name == "b" and side == "quell" and n == 2
        return replace(sample(), same={"output": "7:beef" if wrong else "7:f00d", "x": "1"})

    folder = tmp_path / "good"
    assert compare.measure_all(KERNELS, [plan("a")], 2, FakeGuests(answer), folder)
    with pytest.raises(QuellError) as caught:
        compare.measure_all(KERNELS, [plan("a"), plan("b")], 2, FakeGuests(answer), tmp_path)
    assert caught.value.message == (
        "workload b, quell kernel: output should be the same in every run, but run 1 under the "
        "stock kernel and run 2 under the quell kernel differ"
    )
    assert caught.value.detail == "stock 1: 7:f00d\nquell 2: 7:beef"
    # The user's own command may print what it likes.
    own = [plan("b", own=True)]
    assert compare.measure_all(KERNELS, own, 2, FakeGuests(answer), tmp_path / "own")


def test_what_only_one_run_says(tmp_path: Path) -> None:
    def answer(side: str, name: str, n: int) -> measure.Sample:
        return replace(sample(), same={"output": "7:f00d"} if side == "stock" else {})

    with pytest.raises(QuellError, match="output should be the same") as caught:
        compare.measure_all(KERNELS, [plan()], 1, FakeGuests(answer), tmp_path)
    assert caught.value.detail == "stock 1: 7:f00d\nquell 1: nothing"


def test_a_run_that_fails_ends_it_all(tmp_path: Path) -> None:
    def answer(side: str, name: str, n: int) -> measure.Sample:
        if side == "quell":
            raise machine.GuestPanic("the guest's kernel crashed: BUG: x", detail="Call Trace:")
        return sample()

    guests = FakeGuests(answer)
    with pytest.raises(machine.GuestPanic) as caught:
        compare.measure_all(KERNELS, [plan("a"), plan("b")], 3, guests, tmp_path)
    assert caught.value.message == "workload a, quell kernel: the guest's kernel crashed: BUG: x"
    assert len(guests.log) == 2


def boot_says(monkeypatch: pytest.MonkeyPatch, exit_code: int) -> None:
    recorded = Path(__file__).parent / "data" / "mapped-read.frames"
    data = recorded.read_bytes().replace(b"exited 0", b"exited %d" % exit_code)
    result = machine.GuestResult(
        exit_code, "", "wrong data at byte 7\n", "", 1.0, frames=measure.parse_frames(data)
    )
    monkeypatch.setattr(machine, "boot", lambda *a, **k: result)


def test_workloads_must_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot_says(monkeypatch, 1)
    guests = compare.VirtualMachines(Cache(tmp_path), "tcg")
    says = "workload tiny failed under the quell kernel with exit code 1: wrong data at byte 7"
    with pytest.raises(QuellError, match=says):
        guests.run("quell", KERNELS["quell"], plan(), tmp_path)


def test_the_users_command_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot_says(monkeypatch, 7)
    guests = compare.VirtualMachines(Cache(tmp_path), "tcg")
    assert guests.run("stock", KERNELS["stock"], plan(own=True), tmp_path).exit_code == 7


@pytest.mark.parametrize(
    ("stock", "quell", "code", "told"),
    [([0], [0], 0, False), ([3, 3], [3, 3], 3, False), ([0], [5], 5, True), ([4], [0], 4, True)],
)
def test_exit_code_of_the_users_command(
    stock: list[int], quell: list[int], code: int, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.own_exit_code({"stock": stock, "quell": quell}) == code
    assert ("differ" in capsys.readouterr().err) == told


def test_bad_options_are_said_before_anything_is_built() -> None:
    bad: list[dict[str, Any]] = [
        {"runs": 0},
        {"cpus": 0},
        {"memory": 1},
        {"memory": 0},
        {"deterministic": True, "accel": "kvm"},
        {"workloads": ["mapped-read"], "command": ["true"]},
    ]
    for options in bad:
        with pytest.raises(UsageError):
            session.Options(**options)


def test_unknown_workload_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "build", lambda *a: pytest.fail("built"))
    with pytest.raises(UsageError, match="no workload 'nosuch'; the workloads are: "):
        session.measure(session.Options(workloads=["nosuch"]), Cache(tmp_path))


def test_counting_instructions_has_kernels_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {f"{name}{suffix}": f"{name}{suffix}" for name in KERNELS for suffix in ("", "-keys")}
    monkeypatch.setattr(prereq, "ensure", lambda: None)
    monkeypatch.setattr(source, "debian_source", lambda _cache: None)
    monkeypatch.setattr(build, "build_kernels", lambda _s, names, _c: {n: made[n] for n in names})
    cache = Cache(tmp_path)
    for deterministic, suffix in ((False, ""), (True, "-keys")):
        _, kernels = session.build(None, cache, compare.SIDES, deterministic=deterministic)
        assert kernels == {name: f"{name}{suffix}" for name in compare.SIDES}
    assert {f"{name}-keys" for name in compare.SIDES} <= set(build.KERNELS)


def fake_session(monkeypatch: pytest.MonkeyPatch, guests: Any) -> None:
    monkeypatch.setattr(session, "build", lambda *a, **k: (None, KERNELS))
    monkeypatch.setattr(compare, "VirtualMachines", lambda *a: guests)
    monkeypatch.setattr(machine, "qemu_version", lambda: "7.2.22")
    monkeypatch.setattr(workload, "compiler_version", lambda: "gcc 12")


def test_whole_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_session(monkeypatch, FakeGuests(lambda side, name, n: sample()))
    options = session.Options(command=["make", "all"], runs=2, accel="tcg")
    outcome = session.measure(options, Cache(tmp_path))
    assert list(outcome.result) == ["schema", "environment", "comparisons"]
    kept = json.loads((outcome.folder / "result.json").read_text())
    assert kept == json.loads(json.dumps(outcome.result))
    facts = kept["environment"]["workloads"]["command"]
    assert facts == {
        "version": None,
        "cpus": 2,
        "memory_kb": 1 << 20,
        "command": ["make", "all"],
    }
    text = io.StringIO()
    table.print_accelerator(kept, table.console(text))
    table.print_result(kept, {}, table.console(text))
    shown = text.getvalue()
    assert "emulated" in shown and "command: make all" in shown
    assert shown.index("shootdown IPIs  ") < shown.index("elapsed, s")


def test_interrupt_leaves_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(side: str, name: str, n: int) -> measure.Sample:
        raise KeyboardInterrupt

    fake_session(monkeypatch, FakeGuests(interrupted))
    cache = Cache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        session.measure(session.Options(command=["x"], accel="tcg"), cache)
    assert list(cache.results.iterdir()) == []


def test_rows_lead_with_what_carries_over() -> None:
    comparison = {
        "metrics": {m.name: {} for m in measure.METRICS},
        "extras": {"kswapd_s": {}},
        "figures": {"rate": {"unit": "pages/s"}, "wait": {"unit": "ns"}},
        "matters": ["elapsed_s", "pages_scanned"],
    }
    emulated = table.order(comparison, emulated=True)
    assert emulated[0] == "pages_scanned"
    assert emulated.index("elapsed_s") > emulated.index("peak_memory_kb")
    assert table.order(comparison, emulated=False)[:2] == ["elapsed_s", "pages_scanned"]
    assert {"rate", "wait"} < set(emulated) and "kswapd_s" not in emulated


def test_numbers_for_people() -> None:
    shown = [table.number(v) for v in (0, 7, 12345, 957456, 1.23456, 47.9196, 0.0123, 4.3e9, None)]
    assert shown == ["0", "7", "12,345", "957.5k", "1.235", "47.92", "0.012", "4.300G", "-"]


def test_environment_of_the_users_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setenv("PYTHONPATH", "lab")
    monkeypatch.setenv("DISPLAY", ":0")
    env = session.guest_environment()
    assert env["MINE"] == "1" and env["PATH"]
    assert "PYTHONPATH" not in env and "DISPLAY" not in env
