# SPDX-License-Identifier: GPL-2.0-only
"""./quell ladder: its rungs, what others published, its document, its tables."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guests import KERNELS, sample
from quell import cli, compare, machine, measure, mechanisms, results, session, table, workload
from quell.errors import QuellError, UsageError
from quell.ladder import counters, document, published, rungs, run, view
from quell.paths import Cache

TCG = {"accelerator": {"name": "tcg"}, "deterministic": False}


# --- rungs --------------------------------------------------------------------


def switched_on(args: str) -> set[str]:
    """The mechanisms that quell= leaves on, read as the kernel reads it."""
    on: set[str] = set()
    for number, word in enumerate(args.removeprefix("quell=").split(",")):
        if word == "on" or (number == 0 and word.startswith("-")):
            on = set(mechanisms.names())
        on.discard(word[1:])
    return on


def test_each_rung_adds_to_the_one_before() -> None:
    assert sorted(rungs.mechanisms()) == sorted(mechanisms.names())
    *ladder, stock = rungs.RUNGS
    states = [switched_on(rung.args) for rung in ladder]
    assert states[0] == set() and states[-1] == set(mechanisms.names())
    for lower, upper in zip(states, states[1:], strict=False):
        assert lower < upper
    assert states[3] == {"unmap_batch", "concurrent", "early_ack"}
    assert states[4] - states[3] == {"zap_batch", "rmap_batch"}
    assert all(rung.kernel == "quell" for rung in ladder)
    assert (stock.name, stock.kernel, stock.args) == ("stock", "stock", "")


# --- what others published ----------------------------------------------------

GOOD = """
[[work]]
title = "a thing"
source = "somebody, 1999"
from = "nothing"
to = "unmap_batch"
workload = "zap"
[[work.why]]
text = "whatever the reason"
[[work.figure]]
id = "one"
conditions = "a large machine"
figure = "munmap_small_ns_per_page"
before = 200
after = 100
[[work.figure.why]]
accelerator = "tcg"
outcome = ["smaller"]
text = "emulated"
"""


def read(tmp_path: Path, text: str) -> list[published.Published]:
    (tmp_path / "p.toml").write_text(text)
    return published.load(tmp_path / "p.toml")


def test_a_figure_inherits_from_its_work(tmp_path: Path) -> None:
    [row] = read(tmp_path, GOOD)
    assert (row.work, row.start, row.end, row.ratio) == ("a thing", "nothing", "unmap_batch", 0.5)
    assert [why.text for why in row.why] == ["emulated", "whatever the reason"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("after = 100\n", "", "one needs a ratio, or before and after"),
        ('to = "unmap_batch"', 'to = "luf"', "unknown rung luf"),
        ("munmap_small_ns_per_page", "speed", "one names the unknown figure speed"),
        ('"zap"', '"zip"', "no workload 'zip'"),
        ('id = "one"\n', 'id = "one"\ncolour = 1\n', "cannot be used"),
        ('accelerator = "tcg"', "weather = 1", "cannot be used"),
        ("before = 200\n", "before = 0\n", "cannot be used"),
        ("[[work]]", "[[work]", "cannot be used"),
        ('title = "a thing"\n', "", "cannot be used"),
    ],
)
def test_bad_publications(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(QuellError, match=says):
        read(tmp_path, GOOD.replace(old, new))


def test_no_id_is_there_twice(tmp_path: Path) -> None:
    with pytest.raises(QuellError, match="one is there twice"):
        read(tmp_path, GOOD + GOOD)


def test_the_publications_here() -> None:
    rows = published.load()
    assert {row.workload for row in rows} == set(run.DEFAULT)
    # Every mechanism of the ladder but nothing has been published by somebody.
    assert {row.end for row in rows} == set(rungs.NAMES) - {"nothing", "stock"}
    for row in rows:
        assert row.source and row.conditions and row.ratio > 0, row.id
        assert row.why, f"{row.id} has no explanation for the case that it disagrees"
        assert all("\n" not in why.text for why in row.why), row.id
    numbers = {row.id: (row.before, row.after) for row in rows if row.before is not None}
    assert numbers["luf-flushes"] == (1357543886, 69175002)
    assert numbers["async-4-threads"] == (1571, 1070)


def figure(*values: float, better: str = "less") -> dict[str, Any]:
    ordered = sorted(values)
    return {
        "unit": "ns", "better": better, "values": list(values), "median": ordered[len(values) // 2],
        "min": ordered[0], "max": ordered[-1],
    }  # fmt: skip


def row(theirs: float, name: str = "elapsed_s", **more: Any) -> published.Published:
    return published.Published(
        "x", "w", "s", "c", "zap", name, "nothing", "unmap_batch", theirs, **more
    )


@pytest.mark.parametrize(
    ("theirs", "before", "after", "expected"),
    [
        (0.80, (100, 101), (80, 81), ("agrees", "agrees")),
        (0.80, (100, 101), (90, 91), ("agrees", "smaller")),  # less than half of it
        (0.80, (100, 101), (50, 51), ("agrees", "larger")),  # more than twice
        (0.80, (100, 101), (120, 121), ("opposite", "-")),
        (0.80, (100, 110), (80, 105), ("none", "-")),  # the runs overlap
        (1.002, (100, 110), (80, 105), ("agrees", "agrees")),  # no difference either way
        (1.002, (100, 101), (80, 81), ("none", "-")),  # they saw none, we do
        (1.05, (100, 101), (105, 106), ("agrees", "agrees")),
        (0.05, (1000, 1000), (30, 30), ("agrees", "agrees")),
        (0.05, (1000, 1000), (500, 500), ("agrees", "smaller")),
        (0.05, (1000, 1000), (0, 0), ("agrees", "larger")),
        (0.50, (0, 0), (90, 90), ("opposite", "-")),  # from nothing to something
        (0.50, (0, 0), (0, 0), ("none", "-")),
    ],
)
def test_direction_and_size(
    theirs: float, before: tuple[float, ...], after: tuple[float, ...], expected: tuple[str, str]
) -> None:
    assert published.judge(row(theirs), figure(*before), figure(*after)) == expected


def test_few_events_are_no_direction() -> None:
    assert published.judge(row(0.5, "shootdown_ipis"), figure(12), figure(3)) == ("none", "-")


def test_the_first_explanation_that_applies() -> None:
    whys = (
        published.Why("counted", deterministic=True),
        published.Why("small", cpus_below=4, outcome=("smaller", "none")),
        published.Why("emulated", accelerator="tcg"),
    )
    it = row(0.5, why=whys)
    assert published.explain(it, TCG, 2, "agrees", "smaller") == "small"
    assert published.explain(it, TCG, 8, "agrees", "smaller") == "emulated"
    assert published.explain(it, TCG, 2, "opposite", "-") == "emulated"
    assert published.explain(it, {**TCG, "deterministic": True}, 2, "none", "-") == "counted"
    assert published.explain(it, TCG, 2, "agrees", "agrees") == ""
    kvm = {"accelerator": {"name": "kvm"}, "deterministic": False}
    assert published.explain(it, kvm, 8, "opposite", "-") == published.UNEXPLAINED


# --- the document -------------------------------------------------------------


def test_figures_of_a_cell() -> None:
    rate = measure.Figure(10.0, "events/s", True)
    runs = [
        measure.Sample(
            {**sample().metrics, "shootdown_ipis": n, "elapsed_s": 2}, {"kswapd_s": 1, "luf_x": 3},
            {"rate": rate} if n else {},
        )
        for n in (40, 10, 20)
    ]  # fmt: skip
    made = document.figures(runs)
    assert made["shootdown_ipis"] == {
        "unit": "count", "better": "less", "values": [40, 10, 20], "median": 20, "min": 10, "max": 40,
    }  # fmt: skip
    assert made[document.PER_SECOND]["median"] == 10
    assert (made["rate"]["better"], made["rate"]["unit"]) == ("more", "events/s")
    assert made["elapsed_s"]["unit"] == "s" and "kswapd_s" in made and "luf_x" not in made
    # A figure that one run lacks is no figure of the cell.
    assert "rate" not in document.figures([*runs, sample()])


def small() -> dict[str, Any]:
    cells = [
        {
            "workload": "zap",
            "cpus": 2,
            "rung": rung,
            "figures": {"elapsed_s": figure(2.0), "munmap_small_ns_per_page": figure(100.0)},
        }
        for rung in rungs.NAMES
    ]
    cells[-2]["figures"]["munmap_small_ns_per_page"] = figure(50.0)  # type: ignore[index]
    return {
        "schema": document.SCHEMA,
        "quell": "v1",
        "started": "2026-11-22T00:00:00Z",
        "environment": {
            **TCG,
            "accelerator": {"name": "tcg", "reason": "no KVM", "times": "emulated"},
            "kernel_source": "6.12.117",
            "workloads": {"zap": {"version": 2, "cpus": 2, "memory_kb": 786432, "command": ["x"]}},
        },
        "deterministic": False,
        "runs": 1,
        "rungs": [rung.to_json() for rung in rungs.RUNGS],
        "cells": cells,
        "published": [],
        "absent": ["TLB misses: not here"],
    }


def test_round_trip(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert document.latest(cache) is None
    folder = results.new_folder(cache)
    assert document.latest(cache) is None  # nothing is finished
    results.save(folder, small(), document.FILE)
    assert document.latest(cache) == folder
    assert document.load(folder) == document.load(folder / "ladder.json") == small()
    # It is no comparison.
    assert results.latest(cache) is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "no JSON"),
        ("[]", "no result of quell ladder"),
        ('{"schema": "quell.results/1"}', "no result of quell ladder"),
        ('{"schema": "quell.ladder/9"}', "has version 9 .* reads version 1 only"),
        ('{"schema": "quell.ladder/1", "environment": {}, "rungs": []}', "it has no cells"),
    ],
)
def test_what_is_rejected(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "ladder.json").write_text(content)
    with pytest.raises(results.ResultError, match=says):
        document.load(tmp_path)
    with pytest.raises(results.ResultError, match="cannot be read"):
        document.load(tmp_path / "none")


def test_published_beside_ours() -> None:
    it = row(0.25, "munmap_small_ns_per_page")
    lazy = published.Published(
        "y", "w", "s", "c", "zap", "munmap_small_ns_per_page", "folio_order", "quell", 0.25,
        why=(published.Why("a small machine"),),
    )  # fmt: skip
    other = published.Published("z", "w", "s", "c", "tiering", "elapsed_s", "nothing", "quell", 0.5)
    missing = row(0.5, "itlb_misses")
    made = published.compare([it, lazy, other, missing], small())
    assert [r["id"] for r in made] == ["x", "y"]
    assert made[0]["direction"] == "none" and made[0]["why"] == published.UNEXPLAINED
    assert made[1] == {
        "id": "y", "work": "w", "source": "s", "conditions": "c", "workload": "zap", "cpus": 2,
        "figure": "munmap_small_ns_per_page", "from": "folio_order", "to": "quell",
        "theirs": {"from": None, "to": None, "ratio": 0.25},
        "ours": {"from": 100.0, "to": 50.0, "ratio": 0.5},
        "direction": "agrees", "size": "agrees", "why": "",
    }  # fmt: skip


# --- tables -------------------------------------------------------------------


def shown(result: Mapping[str, Any]) -> str:
    text = io.StringIO()
    view.show(result, table.console(text))
    return text.getvalue()


def test_tables() -> None:
    result = small()
    result["published"] = published.compare([row(0.25, "munmap_small_ns_per_page")], result)
    text = shown(result)
    for rung in rungs.RUNGS[1:]:
        assert rung.title in text
    assert text.index("+ batched unmap flush") < text.index("+ lazy unmap flush = Quell")
    assert "emulated" in text and "768M memory, 2 CPUs" in text
    assert "munmap_small_ns_per_page" in text and "[1] c" in text
    assert "Not measured: TLB misses: not here." in text
    assert "none" in text and "s; here: nothing -> unmap_batch" in text


def test_a_table_of_growth() -> None:
    result = small()
    more = json.loads(json.dumps(result["cells"]))
    for cell in more:
        cell["cpus"] = 8
        cell["figures"]["munmap_small_ns_per_page"] = figure(7.0)
    result["cells"] += more
    text = shown(result)
    assert "2 CPUs" in text and "8 CPUs" in text
    [line] = [part for part in text.splitlines() if "stock Linux" in part]
    assert line.split()[-2:] == ["100", "7"]


# --- measuring ----------------------------------------------------------------


@dataclass
class Guests:
    """Guests on rungs, whose runs are what ``answer(rung)`` says."""

    answer: Callable[[str], measure.Sample]
    log: list[tuple[str, str]] = field(default_factory=list)

    def run(self, side: str, kernel: Any, plan: compare.Plan, rundir: Path) -> measure.Sample:
        """One run."""
        wanted = next(rung.kernel for rung in rungs.RUNGS if rung.name == side)
        assert rundir.is_dir() and kernel is KERNELS[wanted]
        self.log.append((plan.name, side))
        return self.answer(side)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[Guests], list[Any]]:
    """Everything but the guests is faked; what VirtualMachines was made with."""

    def install(guests: Guests) -> list[Any]:
        made: list[Any] = []

        def machines(*args: Any) -> Guests:
            made.append(args)
            return guests

        origin = SimpleNamespace(tree=Path("/source"))
        monkeypatch.setattr(session, "build", lambda *a, **k: (origin, KERNELS))
        monkeypatch.setattr(compare, "VirtualMachines", machines)
        monkeypatch.setattr(machine, "qemu_version", lambda: "7.2.22")
        monkeypatch.setattr(workload, "compiler_version", lambda: "gcc 12")
        monkeypatch.setattr(
            workload, "prepare", lambda item, *a: workload.Prepared(item, ("x",), None, None)
        )
        return made

    return install


def test_runs_go_round_the_rungs(
    tmp_path: Path, fake: Callable[[Guests], list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    guests = Guests(lambda rung: sample(shootdown_ipis=1000 if rung == "nothing" else 100))
    made = fake(guests)
    options = run.Options(workloads=["mapped-read,tiering"], runs=2, accel="tcg")
    result, folder = run.climb(options, Cache(tmp_path))
    assert guests.log == [
        (name, rung)
        for name in ("mapped-read", "tiering")
        for _ in range(2)
        for rung in rungs.NAMES
    ]
    assert list(result) == [
        "schema", "quell", "started", "environment", "deterministic", "runs", "rungs", "cells",
        "published", "absent",
    ]  # fmt: skip
    assert document.load(folder) == json.loads(json.dumps(result))
    assert len(result["cells"]) == 2 * len(rungs.RUNGS)
    cell = document.cell(result, "mapped-read", 2, "nothing")
    assert cell is not None and cell["figures"]["shootdown_ipis"]["values"] == [1000, 1000]
    [append] = [args[3] for args in made]
    assert append["nothing"][0].startswith("quell=-") and append["stock"] == ()
    rows = {r["id"]: r for r in result["published"]}
    assert rows["unmap-interrupts-48"]["ours"]["ratio"] == 0.1
    assert rows["unmap-interrupts-48"]["size"] == "agrees"
    assert "TLB misses" in result["absent"][0] and "TCG" in result["absent"][0]
    assert "32 runs on 8 rungs: about " in capsys.readouterr().err
    assert result["environment"]["workloads"]["tiering"]["memory_kb"] == 640 << 10


def test_scale(tmp_path: Path, fake: Callable[[Guests], list[Any]]) -> None:
    guests = Guests(lambda rung: sample(guest_instructions=5))
    made = fake(guests)
    result, folder = run.climb(run.Options(scale=True, cpus=(2, 8)), Cache(tmp_path))
    assert result["deterministic"] and result["runs"] == 1 and made[0][2] is True
    assert document.measured(result) == {name: [2, 8] for name in run.SCALE}
    assert (folder / "runs" / "mapped-read-8cpus" / "quell-1").is_dir()
    small_memory = result["environment"]["workloads"]["mapped-read"]["memory_kb"]
    assert small_memory == run.SCALE_MEMORY["mapped-read"] // 1024
    assert "8 CPUs" in shown(result)


def test_many_cpus_may_take_longer_to_boot() -> None:
    usual = machine.Machine(cpus=16).boot_timeout
    assert usual == machine.BOOT_TIMEOUT_S["tcg"]
    assert machine.Machine(cpus=16, deterministic=True).boot_timeout > 3 * usual


def test_under_kvm_tlb_misses_are_counted(
    tmp_path: Path, fake: Callable[[Guests], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    miss = measure.Figure(9.0, "misses", False)

    def answer(rung: str) -> measure.Sample:
        return measure.Sample(dict(sample().metrics), {}, dict.fromkeys(counters.FIGURES, miss))

    class Watching(Guests):
        def run(self, side: str, kernel: Any, plan: compare.Plan, rundir: Path) -> measure.Sample:
            seen.append(plan.job.argv[0])
            return super().run(side, kernel, plan, rundir)

    fake(Watching(answer))
    monkeypatch.setattr(counters, "program", lambda cache: Path("/cache/tlbmiss"))
    monkeypatch.setattr(
        machine, "choose_accelerator", lambda *a: machine.Accelerator("kvm", "it runs")
    )
    result, _ = run.climb(run.Options(workloads=["tiering"], runs=1), Cache(tmp_path))
    assert set(seen) == {"/cache/tlbmiss"} and result["absent"] == []
    assert {"luf-itlb", "luf-dtlb-load"} <= {r["id"] for r in result["published"]}


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_counting_program_ends_as_its_command_does(cache: Cache) -> None:
    program = counters.program(cache)
    done = subprocess.run([program, "sh", "-c", "exit 3"], capture_output=True, check=False)
    assert done.returncode == 3
    figures = measure.parse_figures(done.stdout.decode())
    # Here there may be counters or not; it is one or the other.
    assert set(figures) == set(counters.FIGURES) or b"no counter" in done.stderr


def test_an_interrupt_leaves_nothing(tmp_path: Path, fake: Callable[[Guests], list[Any]]) -> None:
    def interrupted(rung: str) -> measure.Sample:
        raise KeyboardInterrupt

    fake(Guests(interrupted))
    cache = Cache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run.climb(run.Options(workloads=["zap"], accel="tcg"), cache)
    assert list(cache.results.iterdir()) == []


def test_a_failure_names_the_rung(tmp_path: Path, fake: Callable[[Guests], list[Any]]) -> None:
    def crashed(rung: str) -> measure.Sample:
        if rung == "early_ack":
            raise machine.GuestPanic("the guest's kernel crashed: BUG: x")
        return sample()

    fake(Guests(crashed))
    cache = Cache(tmp_path)
    with pytest.raises(machine.GuestPanic, match="workload zap, rung early_ack: the guest's"):
        run.climb(run.Options(workloads=["zap"], accel="tcg"), cache)
    assert document.latest(cache) is None


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--runs", "0"], "--runs should be 1 or more"),
        (["--cpus", "2,x"], "--cpus should be numbers such as 2,4,8, not '2,x'"),
        (["--cpus", "2,2"], "--cpus names a number twice"),
        (["--cpus", "0"], "a guest has 1 to 64 CPUs"),
        (["--memory", "1M"], "at least 64M"),
        (["--scale", "--accel", "kvm"], "--deterministic needs emulation"),
        (["--workload", "nosuch"], "there is no workload 'nosuch'"),
        (["--deterministic", "-w", "tiering"], "tiering cannot be measured with the instruction"),
    ],
)
def test_bad_usage_is_said_before_anything_is_built(
    argv: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "build", lambda *a: pytest.fail("built"))
    assert cli.main(["ladder", *argv]) == 2
    assert says in capsys.readouterr().err


def test_the_command(
    fake: Callable[[Guests], list[Any]], capsys: pytest.CaptureFixture[str], cache: Cache
) -> None:
    fake(Guests(lambda rung: sample()))
    argv = ["ladder", "-w", "zap", "--runs", "1", "--accel", "tcg", "--cpus", "2"]
    assert cli.main([*argv, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    latest = document.latest(cache)
    assert latest is not None and printed == document.load(latest)
    assert cli.main(argv) == 0
    assert "+ lazy unmap flush = Quell" in capsys.readouterr().out


def test_what_is_measured_by_default() -> None:
    names = [item.name for item in run.Options().select()]
    assert names == list(run.DEFAULT)
    assert "tiering" not in [item.name for item in run.Options(deterministic=True).select()]
    assert run.estimate(run.Options().select(), run.Options()) < 30 * 60
    result: dict[str, Any] = {**small(), "deterministic": True}
    [tiering, tlb] = [
        why for why in run.absent(run.Options(deterministic=True), result)
        if why.startswith(("tiering", "TLB"))
    ]  # fmt: skip
    assert "RAM disk" in tiering and "KVM" in tlb
