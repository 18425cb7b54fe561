# SPDX-License-Identifier: GPL-2.0-only
"""Fixed sizes of anonymous folios against Quell's own: what is set, measured and said."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from guests import KERNELS, FakeGuests, plan, sample
from quell import cli, compare, machine, measure, session, sizes, stats, table, workload
from quell.errors import UsageError
from quell.paths import Cache

def entry(deterministic: bool = False, **elapsed_and_memory: tuple[float, float]) -> dict[str, Any]:
    """A workload of the table; by variant the elapsed time and peak memory (stock's: 100)."""
    samples = {
        name: [sample(elapsed_s=t, peak_memory_kb=m, guest_instructions=t) for _ in range(2)]
        for name, (t, m) in {"stock": (100.0, 100.0), **elapsed_and_memory}.items()
    }
    done = compare.Measured(plan(), samples)
    return sizes.to_json(done, list(samples), deterministic=deterministic)


def test_variants_and_what_they_set() -> None:
    columns = sizes.variants((16, 64))
    assert [(v.name, v.kernel, v.size_kb) for v in columns] == [
        ("stock", "stock", None),
        ("16K", "stock", 16),
        ("64K", "stock", 64),
        ("quell", "quell", None),
    ]
    control = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled"
    assert columns[2].writes == {control: "always"}
    assert columns[0].writes == columns[3].writes == {}
    assert len(sizes.variants()) == 2 + len(sizes.SIZES_KB)


def test_sizes_by_name() -> None:
    assert sizes.parse_sizes([]) == sizes.SIZES_KB
    assert sizes.parse_sizes(["64K,16K", "64K"]) == (16, 64)
    for bad in ("8K", "64", "64k"):
        with pytest.raises(UsageError, match=f"no size '{bad}'; the sizes are: 16K, 32K, "):
            sizes.parse_sizes([f"16K,{bad}"])


def test_a_size_is_set_beside_what_the_workload_sets(tmp_path: Path) -> None:
    seen = []

    class Guests:
        def run(
            self, side: str, kernel: Any, plan: compare.Plan, rundir: Path
        ) -> measure.Sample:
            seen.append((side, kernel.name, dict(plan.job.writes)))
            return sample()

    columns = sizes.variants((16,))
    one = plan()
    one = compare.Plan(one.name, machine.Job(["x"], writes={"/sys/x": "1"}), one.memory, 1, 5)
    kernels = {v.name: KERNELS[v.kernel] for v in columns}
    guests = sizes.Sized(Guests(), {v.name: v for v in columns})
    done = compare.measure_all(kernels, [one], 2, guests, tmp_path, [v.name for v in columns])
    control = "/sys/kernel/mm/transparent_hugepage/hugepages-16kB/enabled"
    assert seen == 2 * [
        ("stock", "stock", {"/sys/x": "1"}),
        ("stock", "stock", {"/sys/x": "1", control: "always"}),
        ("quell", "quell", {"/sys/x": "1"}),
    ]
    assert set(done[0].samples) == {"stock", "16K", "quell"}
    assert (tmp_path / "runs/tiny/16K-2/sample.json").exists()


def test_changes_are_against_stock() -> None:
    figure = entry(**{"16K": (80.0, 100.0), "64K": (70.0, 130.0), "quell": (75.0, 101.0)})
    elapsed = figure["figures"]["elapsed_s"]["variants"]
    assert elapsed["64K"] == {
        "median": 70.0, "min": 70.0, "max": 70.0, "runs": [70.0, 70.0],
        "ratio": 0.7, "verdict": stats.BETTER,
    }  # fmt: skip
    assert elapsed["stock"]["ratio"] == 1 and elapsed["stock"]["verdict"] == stats.SAME
    assert figure["shown"][:4] == ["elapsed_s", "system_s", "minor_faults", "peak_memory_kb"]
    counted = entry(True, **{"64K": (70.0, 130.0), "quell": (75.0, 101.0)})
    assert counted["shown"][0] == "guest_instructions" and "system_s" not in counted["shown"]


@pytest.mark.parametrize(
    ("times", "fastest", "frugal", "verdict"),
    [
        ({"16K": (80, 100), "64K": (70, 130), "quell": (75, 101)}, "64K", "16K", stats.WORSE),
        ({"16K": (80, 100), "64K": (70, 102), "quell": (60, 101)}, "64K", "64K", stats.BETTER),
        ({"16K": (80, 103), "64K": (90, 190), "quell": (80, 101)}, "16K", None, stats.SAME),
        ({"16K": (120, 100), "64K": (110, 100), "quell": (99, 101)}, "64K", "64K", stats.BETTER),
    ],
)
def test_the_best_size(
    times: dict[str, tuple[float, float]], fastest: str, frugal: str | None, verdict: str
) -> None:
    answer = entry(**times)["best"]
    assert answer["time"] == "elapsed_s"
    assert answer["fastest"]["variant"] == fastest
    assert answer["fastest"]["quell"]["verdict"] == verdict
    assert (answer["frugal"] and answer["frugal"]["variant"]) == frugal
    assert answer["quell"]["memory"] == 1.01 and answer["quell"]["variant"] == "quell"


def test_the_memory_that_grew_most_counts() -> None:
    def run(kb: float) -> measure.Sample:
        figures = {
            "loaded_kb": measure.Figure(kb, "kB", False),
            "free_kb": measure.Figure(10 * kb, "kB", True),
            "wait": measure.Figure(99 * kb, "us", False),
        }
        return measure.Sample(dict(sample().metrics), {}, figures)

    done = compare.Measured(plan(), {"stock": [run(10)], "16K": [run(16)], "quell": [run(10)]})
    answer = sizes.to_json(done, ["stock", "16K", "quell"])["best"]
    assert answer["fastest"]["memory_figure"] == "loaded_kb"
    assert answer["fastest"]["memory"] == 1.6 and answer["frugal"] is None
    assert answer["quell"]["memory"] == 1


def test_said_in_words() -> None:
    words = "\n".join(
        sizes.verdict(
            entry(**{"16K": (80, 100), "64K": (70, 1600), "quell": (77, 101)}),
            {"elapsed_s": "elapsed", "peak_memory_kb": "peak memory"},
        )
    )
    assert words.splitlines() == [
        "fastest fixed size: 64K, elapsed -30.0 %, memory at most x 16.0 (peak memory); "
        "Quell slower than that: +10.0 %",
        "fastest of those that need no more memory: 16K, elapsed -20.0 %, "
        "memory at most +0.0 % (peak memory); Quell faster than that: -3.7 %",
        "Quell: elapsed -23.0 %, memory at most +1.0 % (peak memory)",
    ]
    alone = entry(quell=(77.0, 101.0))
    assert alone["best"]["fastest"] is None
    assert sizes.verdict(alone, {})[0] == "fastest fixed size: none"
    assert [sizes.percent(v) for v in (None, 1.0, 0.5, 9.99, 10.0)] == [
        "-", "+0.0 %", "-50.0 %", "+899.0 %", "x 10.0",
    ]  # fmt: skip


def test_a_figure_that_only_some_have() -> None:
    rate = measure.Figure(7.0, "%", True)
    samples = {
        "stock": [sample()],
        "16K": [measure.Sample(dict(sample().metrics), {}, {"success": rate})],
        "quell": [sample()],
    }
    figure = sizes.to_json(compare.Measured(plan(), samples), list(samples))["figures"]["success"]
    assert figure["unit"] == "%" and figure["better"] == "higher"
    assert figure["variants"]["stock"] is None and figure["variants"]["quell"] is None
    assert figure["variants"]["16K"]["median"] == 7 and figure["variants"]["16K"]["ratio"] is None


def fake_session(monkeypatch: pytest.MonkeyPatch, guests: Any, asked: list[Any]) -> None:
    def prepared(options: session.Options, *rest: object) -> list[compare.Plan]:
        asked.append(options)
        return [plan(name) for name in options.workloads]

    monkeypatch.setattr(session, "build", lambda *a, **k: (None, KERNELS))
    monkeypatch.setattr(session, "_plans", prepared)
    monkeypatch.setattr(compare, "VirtualMachines", lambda *a: guests)
    monkeypatch.setattr(machine, "qemu_version", lambda: "7.2.22")
    monkeypatch.setattr(workload, "compiler_version", lambda: "gcc 12")


def answer(side: str, name: str, number: int) -> measure.Sample:
    return sample(elapsed_s=70 if side == "quell" else 100)


def test_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Cache
) -> None:
    asked: list[Any] = []
    guests = FakeGuests(answer)
    fake_session(monkeypatch, guests, asked)
    argv = ["sizes", "--quiet", "--accel", "tcg", "--runs", "2", "--size", "64K"]
    assert cli.main([*argv, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert asked[0].workloads == sizes.WORKLOADS
    assert result["schema"] == "quell.sizes/1"
    assert [v["name"] for v in result["variants"]] == ["stock", "64K", "quell"]
    assert result["environment"]["kernels"]["quell"]["boot_parameters"] == ["quell=folio_order"]
    kept = next(cache.results.glob("*/sizes.json"))
    assert json.loads(kept.read_text()) == result
    assert [name for name, _ in guests.log] == [w for w in sizes.WORKLOADS for _ in range(6)]
    assert cli.main([*argv, "--workload", "fault", "--quell-args", ""]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert asked[1].workloads == ["fault"] and asked[1].append == {"quell": ()}
    assert "elapsed, s" in shown and "-30.0 %" in shown and "same" in shown
    assert "Quell faster than that: -30.0 %" in shown and "booted with" not in shown


def test_a_run_that_fails_leaves_no_table(
    monkeypatch: pytest.MonkeyPatch, cache: Cache, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(side: str, name: str, number: int) -> measure.Sample:
        if side == "quell":
            raise machine.GuestTimeout("the command in the guest did not end")
        return sample()

    fake_session(monkeypatch, FakeGuests(fails), [])
    assert cli.main(["sizes", "-w", "fault", "--accel", "tcg"]) == 1
    assert "workload fault, quell kernel: the command in the guest" in capsys.readouterr().err
    assert not list(cache.results.glob("*/sizes.json"))

    def interrupted(side: str, name: str, number: int) -> measure.Sample:
        raise KeyboardInterrupt

    fake_session(monkeypatch, FakeGuests(interrupted), [])
    before = set(cache.results.iterdir())
    assert cli.main(["sizes", "-w", "fault", "--accel", "tcg"]) == 130
    assert set(cache.results.iterdir()) == before


def test_the_workloads_there_are() -> None:
    assert [w.name for w in workload.select(sizes.WORKLOADS)] == list(sizes.WORKLOADS)


def test_the_table_fits() -> None:
    text = io.StringIO()
    rows = {n: (90.0, 100.0) for n in ("16K", "32K", "64K", "128K", "256K", "quell")}
    environment = {
        "workloads": {"tiny": {"memory_kb": 65536, "cpus": 2, "command": ["tiny"]}},
        "runs": 2,
        "kernels": {"quell": {"boot_parameters": []}},
    }
    result = {
        "environment": environment,
        "variants": [{"name": n} for n in ("stock", *rows)],
        "workloads": [entry(**rows)],
    }
    table.print_sizes(result, {}, table.console(text))
    line = next(line for line in text.getvalue().splitlines() if "elapsed, s " in line)
    assert line.split() == ["elapsed,", "s", "100", *["-10.0", "%"] * 6]
