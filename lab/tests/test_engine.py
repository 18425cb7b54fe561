# SPDX-License-Identifier: GPL-2.0-only
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from conftest import Capture, fails
from guests import KERNELS, SIDES, FakePlace, Patch, plan, sample, terminal
from quell import build, cli, counters, disks, engine, machine, prereq, results, sides, source, ui, watch
from quell.commands import compare as command
from quell.errors import QuellError, UsageError
from quell.frames import parse_frames
from quell.paths import Cache

RECORDED = Path(__file__).parent / "data/mapped-read.frames"


def test_runs_alternate_and_none_always_comes_first(tmp_path: Path) -> None:
    place = FakePlace(lambda side, name, n: sample())
    done = engine.measure([plan("a"), plan("b")], SIDES, 2, place, tmp_path)
    order = ["stock", "quell", "quell", "stock"]
    assert place.log == [(p, s) for p in "ab" for s in order]
    assert [len(runs) for runs in done[0].values()] == [2, 2]
    assert (tmp_path / "runs" / "b" / "quell-2" / "sample.json").exists()


def test_what_should_be_the_same(tmp_path: Path) -> None:
    def answer(side: str, name: str, n: int) -> counters.Sample:
        wrong = name == "b" and side == "quell" and n == 2
        return replace(sample(), same={"output": "7:beef" if wrong else "7:f00d", "x": "1"})

    assert engine.measure([plan("a")], SIDES, 2, FakePlace(answer), tmp_path / "good")
    with pytest.raises(QuellError) as caught:
        engine.measure([plan("a"), plan("b")], SIDES, 2, FakePlace(answer), tmp_path)
    assert caught.value.message == (
        "workload b, side quell: output should be the same in every run, but differs from run 1 on side stock"
    )
    assert caught.value.detail == "stock: 7:f00d\nquell: 7:beef"
    # The user's own command may print anything.
    assert engine.measure([plan("b", own=True)], SIDES, 2, FakePlace(answer), tmp_path / "own")


def test_a_run_that_fails_ends_it_all(tmp_path: Path) -> None:
    panic = watch.GuestPanic("the guest's kernel crashed: BUG: x", detail="Call Trace:")
    place = FakePlace(Mock(side_effect=[sample(), panic]))
    with pytest.raises(QuellError, match="workload a, side quell: the guest's kernel crashed"):
        engine.measure([plan("a"), plan("b")], SIDES, 3, place, tmp_path)
    assert place.log == [("a", "stock"), ("a", "quell")]


def boot_says(monkeypatch: Patch, code: int, unknown: bytes = b"") -> engine.Guests:
    frames = parse_frames(RECORDED.read_bytes())
    frames.sections["result"] = frames.sections["result"].replace(b"exited 0", b"exited %d" % code)
    frames.sections["unknown"] = unknown
    result = machine.GuestResult(code, "", "wrong data at byte 7\n", "", frames=frames)
    monkeypatch.setattr(machine, "boot", lambda *a, **k: result)
    return engine.Guests(Cache(), KERNELS, machine.Accelerator("tcg", "made up"))


def test_workloads_must_succeed_and_own_commands_may_fail(tmp_path: Path, monkeypatch: Patch) -> None:
    guests = boot_says(monkeypatch, 7)
    error = fails(QuellError, "it failed with exit code 7", guests.run, SIDES[1], plan(), tmp_path)
    assert error.detail == "wrong data at byte 7"
    assert guests.run(SIDES[0], plan(own=True), tmp_path).exit_code == 7


def test_a_parameter_that_the_kernel_does_not_know(tmp_path: Path, monkeypatch: Patch) -> None:
    guests = boot_says(monkeypatch, 0, b"TERM=linux\0nosuch=1\0")
    assert guests.run(sides.parse("stock=stock,mitigations=off"), plan(), tmp_path)
    with pytest.raises(UsageError, match="side stock: its kernel does not know the parameter nosuch=1"):
        guests.run(sides.parse("stock=stock,nosuch=1"), plan(), tmp_path)


def test_bad_options_are_said_before_anything_is_built(monkeypatch: Patch) -> None:
    own = {"command": ["true"]}
    bad: list[dict[str, Any]] = [
        {"runs": 0}, {"cpus": (0,)}, {"memory": 1}, {"memory": 0}, {"timeout": 0},
        {"deterministic": True, "accel": "kvm"}, {"workloads": ["mapped-read"], **own},
        {"here": True}, {"here": True, "memory": 1 << 30, **own}, {"data": [disks.parse_data("/etc")]},
        {"here": True, "swap": "zram", **own},
    ]  # fmt: skip
    for options in bad:
        fails(UsageError, None, engine.Request, sides=SIDES, **options)
    monkeypatch.setattr(build, "for_sides", lambda *a: pytest.fail("built"))
    with pytest.raises(UsageError, match="no workload 'nosuch'; the workloads are: "):
        engine.compare(engine.Request(sides=SIDES, workloads=("nosuch",)), Cache())
    with pytest.raises(UsageError, match="the command nosuch does not exist"):
        engine.compare(engine.Request(sides=SIDES, command=["nosuch"]), Cache())
    with pytest.raises(UsageError, match="tiering cannot be measured with the instruction counter"):
        engine.compare(engine.Request(sides=SIDES, workloads=("tiering",), deterministic=True), Cache())
    with pytest.raises(UsageError, match="reclaim-large brings its own swap: leave out --swap"):
        engine.compare(engine.Request(sides=SIDES, workloads=("reclaim-large",), swap="zram"), Cache())


def test_each_kernel_is_built_once(tmp_path: Path, source: source.Source, monkeypatch: Patch) -> None:
    made: list[str] = []

    def built(_source: object, names: tuple[str, ...], _cache: object) -> dict[str, str]:
        made.extend(names)
        return {name: name for name in names}

    monkeypatch.setattr(prereq, "ensure", lambda *a: None)
    asked: Any = []
    monkeypatch.setattr("quell.source.debian_source", lambda _cache, linux: asked.append(linux) or source)
    monkeypatch.setattr(build, "build_kernels", built)
    three = sides.parse_all(["a=quell", "b=quell,quell=off", f"c={source.tree}"])
    _, kernels = build.for_sides("6.12", Cache(tmp_path), three)
    assert set(asked) == {"6.12"}
    assert made[0] == "quell-ext4" and made[1].startswith("tree-") and len(made) == 2
    assert [*map(str, kernels.values())] == ["quell-ext4", "quell-ext4", made[1]]
    assert build._spec(made[1]) == build.Spec(("lab.config",), False)
    both = sides.parse_all(["old=stock", "new=quell-7.3"])
    for tree, wanted, linux in ("7.3", SIDES, ["7.3"] * 3), ("6.12", both, ["6.12", "6.12", "7.3"]):
        asked.clear()
        _, kernels = build.for_sides(tree, Cache(tmp_path), wanted, ext4=False)
        assert [*map(str, kernels.values())] == ["stock", "quell"] and asked == linux
    assert build._spec("stock") == build.Spec(("lab.config", "filesystems.config"), False)


def fake_place(monkeypatch: Patch, place: FakePlace) -> None:
    def built(tree: object, cache: object, wanted: Any, **_: Any) -> tuple[source.Source, dict[str, Any]]:
        return source.Source("6.12.117", Path("/linux"), "k"), {one.name: KERNELS[one.kernel] for one in wanted}

    monkeypatch.setattr(build, "for_sides", built)
    monkeypatch.setattr(engine, "Guests", lambda *a: place)


def test_whole_comparison(tmp_path: Path, monkeypatch: Patch) -> None:
    def answer(side: str, name: str, n: int) -> counters.Sample:
        return sample(elapsed_s=10 + n, shootdown_ipis=20 + n if side == "quell" else 1000 + n)

    fake_place(monkeypatch, FakePlace(answer))
    request = engine.Request(sides=SIDES, command=["make", "all"], accel="tcg", titles={"quell": "Quell"})
    result, folder = engine.compare(request, Cache(tmp_path))
    assert results.load(folder) == json.loads(json.dumps(result))
    [one] = result["comparisons"]
    assert (one["workload"], one["command"], one["cpus"]) == ("command", ["make", "all"], 2)
    ipis = one["figures"]["shootdown_ipis"]
    runs = [1001, 1002, 1003, 1004, 1005]
    assert ipis["sides"]["stock"] == {"median": 1003, "min": 1001, "max": 1005, "runs": runs}
    assert ipis["against"]["quell"] == {"ratio": 0.0229, "p": 0.031746, "verdict": "better"}
    assert one["figures"]["minor_faults"]["against"]["quell"]["verdict"] is None  # does not matter here
    shown = terminal(result)
    assert "emulated" in shown and "command: Sums" not in shown and "make all" in shown
    assert shown.index("shootdown IPIs ") < shown.index("elapsed, s")
    # With many sides each one has a row.
    many = sides.parse_all([f"s{n}=quell" for n in range(5)])
    request = replace(request, sides=many, command=None, workloads=("mapped-read",), cpus=(1, 2))
    monkeypatch.setattr(engine, "_plans", lambda *a: [plan("mapped-read-1cpus"), plan("mapped-read-2cpus")])
    result, _ = engine.compare(request, Cache(tmp_path))
    assert terminal(result).count("s4 ") == 2


def test_interrupt_leaves_no_result(tmp_path: Path, monkeypatch: Patch) -> None:
    fake_place(monkeypatch, FakePlace(Mock(side_effect=KeyboardInterrupt)))
    cache = Cache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        engine.compare(engine.Request(sides=SIDES, command=["true"], accel="tcg"), cache)
    assert list(cache.results.iterdir()) == []


@pytest.mark.parametrize(
    ("stock", "quell", "code"), [([0], [0], 0), ([3, 3], [3, 3], 3), ([0], [5], 5), ([4], [0], 4)]
)
def test_exit_code_of_the_users_command(stock: list[int], quell: list[int], code: int) -> None:
    assert command.own_exit_code({"stock": stock, "quell": quell}) == code
    shown = [ui.number(v) for v in (0, 7, 12345, 957456, 1.23456, 47.9196, 0.0123, 4.3e9, None)]
    assert shown == ["0", "7", "12,345", "957.5k", "1.235", "47.92", "0.012", "4.300G", "-"]


def test_environment_of_the_users_command(monkeypatch: Patch) -> None:
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setenv("PYTHONPATH", "lab")
    monkeypatch.setenv("DISPLAY", ":0")
    env = engine.own_job(["x"], Cache()).env
    assert env["MINE"] == "1" and env["PATH"]
    assert "PYTHONPATH" not in env and "DISPLAY" not in env


def test_a_command_that_is_not_there(tmp_path: Path, monkeypatch: Patch, capsys: Capture, cache: Cache) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build, "for_sides", lambda *a, **k: pytest.fail("built"))
    (tmp_path / "text").write_text("")
    (tmp_path / "mine").write_text("#!/bin/sh\n")
    (tmp_path / "mine").chmod(0o755)
    for command in ("compare", "run"):
        for name in ("nosuch", "./nosuch", "./text", str(tmp_path)):
            assert cli.main([command, "--", name]) == 2
            assert capsys.readouterr().err == f"quell: the command {name} does not exist or cannot be run\n"
    engine.check_command(["./mine"])
    engine.check_command(["sh"])
