# SPDX-License-Identifier: GPL-2.0-only
import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import report_samples
from conftest import Capture, fails
from guests import SIDES, Patch, plan, sample
from quell import cli, counters, engine, judge, mechanisms, presets, published, results, sides, source, stats, workload
from quell.commands import compare as command
from quell.commands import figures
from quell.errors import QuellError, UsageError
from quell.paths import Cache


def test_sides() -> None:
    side = sides.parse("a=quell,nosmt,quell=-luf,-early_ack,thp_anon=16K,32K:always")
    assert side == sides.Side("a", "quell", ("nosmt", "quell=-luf,-early_ack", "thp_anon=16K,32K:always"))
    assert sides.parse(side.option()) == side
    on = sides.switches(side)
    assert not on["luf"] and not on["early_ack"] and on["folio_order"] and on["zap_batch"]
    on = sides.switches(sides.parse("a=quell,quell=luf"))
    assert [name for name in on if on[name]] == ["luf", "unmap_batch", "concurrent", "zap_batch"]
    assert sides.switches(sides.parse("a=stock,quell=off,-unmap_batch"))["unmap_batch"] is False
    assert sides.names(["a, b", "b,,c"]) == ["a", "b", "c"]
    classic = sides.parse("a=quell,quell=-luf,/sys/kernel/mm/lru_gen/enabled=0")
    assert (classic.boot, classic.settings) == (("quell=-luf",), {"/sys/kernel/mm/lru_gen/enabled": "0"})


@pytest.mark.parametrize(("texts", "says"), [
    (["a=stock", "a=quell"], "side a is named twice"),
    (["a=stock"], "give --side again"),
    (["stock", "b=quell"], "--side should be NAME=KERNEL"),
    (["a=", "b=quell"], "--side should be NAME=KERNEL"),
    (["a=nosuch", "b=quell"], "there is no kernel 'nosuch': write stock, quell, stock-6.12, quell-6.12, stock-7.3, quell-7.3 or a Linux tree"),
    (["a=quell,quell=-lfu", "b=quell"], "quell= knows no '-lfu'"),
    (["a=quell,x y=1", "b=quell"], "'x y=1' is neither a kernel parameter nor"),
])  # fmt: skip
def test_bad_sides(texts: list[str], says: str) -> None:
    fails(UsageError, says, sides.parse_all, texts)


def test_presets_are_data() -> None:
    assert presets.load("compare").sides == SIDES
    assert [side.name for side in presets.load("sizes").sides] == ["stock", "16K", "32K", "64K", "128K", "256K", "quell"]
    ladder, scale = presets.load("ladder"), presets.load("scale")
    assert scale.sides == ladder.sides and scale.deterministic and scale.cpus == (2, 4, 8, 16)
    # Each rung switches on more than the one before, and all mechanisms come in.
    on = [{n for n, is_on in sides.switches(side).items() if is_on} for side in ladder.sides[:-1]
          if side.name != "big-batch"]
    assert on[0] == set() and on[-1] == set(mechanisms.names())
    assert all(before < after for before, after in zip(on, on[1:], strict=False))
    assert set(ladder.titles) == {side.name for side in ladder.sides}
    for name, figures in ladder.shown.items():
        assert set(figures) <= {*counters.KNOWN, *workload.select([name])[0].figures}, name


def test_options_change_a_preset() -> None:
    parser = argparse.ArgumentParser()
    parser.set_defaults(command=None)
    command.add_arguments(parser)
    request = command.request_for(parser.parse_args(["-wzap,fault", "--runs=7", "--cpus=2,4", "--memory=512M"]))
    assert (request.runs, request.cpus, request.memory) == (7, (2, 4), 512 << 20)
    assert (list(request.workloads), request.sides, request.swap) == (["zap,fault"], SIDES, "")
    assert command.request_for(parser.parse_args(["-wswap-write", "--swap=zram"])).swap == "zram"
    with pytest.raises(UsageError, match="--deterministic needs emulation"):
        command.request_for(parser.parse_args(["--deterministic", "--accel", "kvm"]))


def test_the_data_files_are_right() -> None:
    """Every claim and every published figure names a figure that is there, and can be told in its runs."""
    def figures(workloads: Sequence[str]) -> set[str]:
        return {*counters.KNOWN, *(figure for item in workload.select(workloads) for figure in item.figures)}

    for group in presets.groups():
        assert bool(group.claims) != bool(group.shown) and {*group.chart} <= {name for name, *_ in group.claims}, group.name
        assert {*group.shown} <= {*group.workloads} and set().union(*group.shown.values()) <= figures(group.workloads), group.name
        for figure, kind, _, linux in group.claims:
            assert figure in figures(group.workloads), (group.name, figure)
            assert kind != "not worse" or group.runs >= stats.runs_needed(1), group.name
            assert linux in ("", *source.VERSIONS), group.name
    rungs = {side.name for side in presets.load("ladder").sides}
    rows = published.load()
    assert len({row.id for row in rows}) == len(rows) > 20
    for row in rows:
        assert row.source and row.conditions and {*row.rungs} <= rungs and row.figure in figures([row.workload]), row.id
    fails(QuellError, "is no claim", presets.parse_claims, "elapsed_s < 3")


def result(**runs: tuple[list[float], list[float]]) -> dict[str, Any]:
    """A result with these runs of stock and of Quell."""
    samples = {
        side.name: [sample(0, **{name: pair[n][run] for name, pair in runs.items()}) for run in range(5)]
        for n, side in enumerate(SIDES)
    }
    one = judge.comparison(plan("zap"), samples, SIDES, emulated=True)
    named = [{"name": side.name} for side in SIDES]
    return {"sides": named, "comparisons": [one], "environment": {"accelerator": {"name": "tcg"}, "kernel_source": "6.12.7"}}


LOW, HIGH = [10.0, 11, 12, 13, 14], [20.0, 21, 22, 23, 24]


@pytest.mark.parametrize(("claim", "stock", "quell", "holds"), [
    ("elapsed_s <= 0.6", HIGH, LOW, True),
    ("elapsed_s <= 0.5", HIGH, LOW, False),
    ("elapsed_s >= 1.5", LOW, HIGH, True),
    ("elapsed_s +- 0.02", LOW, [v * 1.01 for v in LOW], True),
    ("elapsed_s +- 0.02", LOW, [v * 0.97 for v in LOW], False),
    ("elapsed_s not worse", LOW, LOW, True),
    ("elapsed_s not worse", LOW, HIGH, False),
    ("elapsed_s same", LOW, LOW, True),
    ("elapsed_s same", LOW, HIGH, False),
    ("elapsed_s same", [100.0] * 5, [102.5] * 5, True),  # within the tolerance
    ("flush_requests same", [4.0] * 5, [28.0] * 5, True),  # within the slack
    ("elapsed_s >= 1.5", [0.0] * 5, HIGH, False),  # no ratio
    ("elapsed_s <= 0.6 on 6.12", HIGH, LOW, True),
])  # fmt: skip
def test_claims(claim: str, stock: list[float], quell: list[float], holds: bool) -> None:
    [made] = presets.parse_claims(claim)
    group = presets.Preset("g", sides=SIDES, claims=(made,), tolerance=0.03, slack=25)
    [row] = presets.check(group, result(**{made[0]: (stock, quell)}))
    assert row["holds"] is holds, row


def test_too_few_runs_prove_nothing() -> None:
    found = result(elapsed_s=(LOW, LOW))
    other = presets.Preset("g", sides=SIDES, claims=(("elapsed_s", "<=", 0.1, "7.3"),))
    assert presets.check(other, found) == []
    for side in SIDES:
        found["comparisons"][0]["figures"]["elapsed_s"]["sides"][side.name]["runs"] = LOW[:3]
    group = presets.Preset("g", sides=SIDES, claims=(("elapsed_s", "not worse", 0.0, ""),))
    [row] = presets.check(group, found)
    assert not row["holds"] and row["verdict"] == stats.too_few(1)


def test_the_projects_figures(monkeypatch: Patch, capsys: Capture) -> None:
    """The engine gets a group's request; a claim that does not hold gives exit code 1."""
    found = result(flush_requests=(HIGH, LOW), shootdown_ipis=(HIGH, LOW))
    compare = Mock(return_value=(found, Path("/kept")))
    monkeypatch.setattr(engine, "compare", compare)
    assert cli.main(["figures", "luf-cpus-256M", "--json"]) == 1
    asked = compare.call_args.args[0]
    assert (asked.cpus, asked.memory, asked.runs) == ((4,), 256 << 20, 4)
    rows = json.loads(capsys.readouterr().out)
    assert rows["schema"] == figures.SCHEMA and not any(row["holds"] for row in rows["figures"])
    assert cli.main(["figures", "luf-cpus-256M"]) == 1
    assert "0 of 2 figures hold" in capsys.readouterr().out
    assert cli.main(["figures", "classic-luf-256M"]) == 1
    asked = compare.call_args.args[0]
    assert [side.settings for side in asked.sides] == [{"/sys/kernel/mm/lru_gen/enabled": "0"}] * 2
    [zswap] = presets.groups(["swap-zswap"])
    assert (zswap.swap, zswap.claims) == ("zswap", presets.load("swap").claims)
    assert cli.main(["figures", "nosuch"]) == 2
    assert "they are: luf-1G" in capsys.readouterr().err


def test_published_figures_beside_ours() -> None:
    [row] = [row for row in published.load() if row.id == "unmap-elapsed-48"]
    assert row.ratio == 0.76
    pairs = ((HIGH, [v * 0.97 for v in HIGH]), (HIGH, LOW), (LOW, HIGH))
    assert [published.direction(row, *pair) for pair in pairs] == ["none", "agrees", "opposite"]
    ends = {"nothing": {"runs": LOW, "median": 12}, "unmap_batch": {"runs": HIGH, "median": 22}}
    one = {"workload": "mapped-read", "cpus": 2, "figures": {"elapsed_s": {"sides": ends}}}
    [found] = published.compare([row], {"comparisons": [one]})
    assert (found["direction"], found["why"], found["ours"]["ratio"]) == ("opposite", row.why, 1.8333)


def test_the_page_of_kept_results(tmp_path: Path, cache: Cache, capsys: Capture) -> None:
    """Sections of kept results are rewritten from the newest of each version of Linux; the rest stays."""
    page = tmp_path / "results.md"
    assert cli.main(["figures", "luf-256M", "--page", str(page)]) == 2
    assert "no result of these groups is kept" in capsys.readouterr().err and not page.exists()
    page.write_text("# Mine\n\nwords\n\n## zz\n\n## luf-1G, Linux 6.12\n\nearlier\n\n## luf-256M, Linux 6.12\n\nold\n")
    both: Any = {name: [[100.0, 110, 120, 130, 140], [5.0, 6, 7, 8, 9]] for name in ("flush_requests", "shootdown_ipis")}
    same: Any = {name: [[10.0, 11, 12, 13, 14]] * 2 for name in ("pages_scanned", "pages_reclaimed", "elapsed_s")}
    for at, version in enumerate(("6.12.1", "6.12.117", "7.3.4")):
        kept = report_samples.result(report_samples.comparison(**both, **same), preset="luf-256M")
        kept["environment"]["kernel_source"] = version
        folder = cache.results / f"2026010{at}T000000.0Z"
        folder.mkdir()
        results.save(folder, kept)
    assert cli.main(["figures", "--page", str(page)]) == 0
    assert "2 of 4 sections updated" in capsys.readouterr().out
    text = page.read_text()
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert heads == ["# Mine", "## luf-1G, Linux 6.12", "## luf-256M, Linux 6.12", "## luf-256M, Linux 7.3", "## zz"]
    assert "words" in text and "earlier" in text and "old" not in text and "6.12.1;" not in text
    assert "| shootdown IPIs | at most 0.08 | 120 | 7 | 0.058 |  |" in text
    assert "elapsed, s (emulated)" in text and "does not hold" not in text
    assert "0.058" in page.with_suffix(".svg").read_text()
    many = report_samples.result(preset="versions", sides=presets.load("versions").sides)
    for folder, one in zip(cache.results.iterdir(), (many, kept, kept), strict=True):
        kept["preset"], kept["environment"]["kernel_source"] = "luf-1G", "6.12.117"
        results.save(folder, one)
    assert cli.main(["figures", "--page", str(page)]) == 0
    drawn = re.findall(r">([^<>]*), Linux (6.12|7.3)</", page.with_suffix(".svg").read_text())
    assert [version for _, version in drawn] == ["6.12", "6.12", "7.3"], "bars without a result stay, in the groups' order"
    assert "|  |  | flush requests | 110 | 110 1.000 | 110 1.000 | 110 1.000 |" in page.read_text()
    assert cli.main(["figures", "--page", str(tmp_path)]) == 2
