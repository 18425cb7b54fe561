# SPDX-License-Identifier: GPL-2.0-only
"""The report: what it is made of, what it says, and that it is whole or not there."""

from __future__ import annotations

import copy
import io
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import report_samples as samples
from quell import cli, results, stats, table
from quell.errors import UsageError
from quell.paths import Cache
from quell.report import charts, page, reproduce, sources, svg

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Checks that elements are closed in order; keeps text, tags and identifiers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(set(self.ids)) == len(self.ids)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


def shown(*comparisons: dict[str, Any], ladders: list[dict[str, Any]] | None = None, **changed: Any) -> Page:
    return Page(page.render(sources.Sources([samples.result(*comparisons, **changed)], ladders or [])))


def test_says_what_came_out() -> None:
    text = shown(samples.comparison(elapsed_s=([5, 6, 7], [8, 9, 10]))).text
    assert (
        "Of 10 figures on 1 workload, 1 is better on Quell than on stock Linux, 1 is worse, and "
        "8 show no difference within the spread." in text
    )
    assert "Furthest better: shootdown IPIs in mapped-read, 1,000 on stock and 10 on Quell (ratio 0.010)." in text
    assert "Furthest worse (emulated): elapsed, s in mapped-read, 6 on stock and 9 on Quell" in text
    assert "told apart by this rule in 1 of 10 figures" in text
    assert "TCG: times are emulated" in text
    assert "Of these, 3 figures are emulated times: 0 better, 1 worse, 2 without a difference." in text


def test_has_the_numbers_of_the_terminal() -> None:
    """Whatever compare prints in its table stands on the page, word for word."""
    document = samples.result(samples.comparison(own_ns=([1234.5, 1300, 1400], [99, 100, 101])))
    out = io.StringIO()
    table.print_result(document, {}, table.console(out))
    text = Page(page.render(sources.Sources([document]))).text
    lines = [line for line in out.getvalue().splitlines() if re.search(r"\d\.\d{3} ", line)]
    assert len(lines) == 11
    for line in lines:
        for cell in re.split(r" {2,}", line.strip()):
            assert cell in text


def test_every_run_is_in_the_chart() -> None:
    text = shown(samples.comparison(own=([11, 12, 13.5], [21, 22, 23]))).text
    assert "own, ns: stock 11, 12, 13.50, Quell 21, 22, 23" in text


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "</style><b>",
        "\"'><img src=x onerror=alert(1)>",
        "&lt;ok",
        "{{ 7 * 7 }}",
        "</svg></title><script>1</script>",
        "\x00\x1b[31m\ud800",
    ],
)
def test_text_of_results_is_only_text(hostile: str) -> None:
    """Every text that may stand in a result, one after another."""
    def spoil(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            keep = key in ("metrics", "kernels")
            return {k if keep or len(k) < 2 or k in KEYS else k + hostile: spoil(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [spoil(v, key) for v in value]
        fixed = ("schema", "better", "direction", "size", "verdict", "kernel", "rung", "from", "to")
        return value + hostile if isinstance(value, str) and key not in fixed else value

    document = samples.result(samples.comparison(own=([1, 2], [3, 4])))
    KEYS = set(re.findall(r'"([^"]+)":', json.dumps([document, samples.ladder()]))) - {"own", "mapped-read"}
    bad = spoil(document)
    rungs = spoil(samples.ladder())
    for rung in rungs["rungs"]:
        rung["name"] = rung["name"].removesuffix(hostile)
    text = page.render(sources.Sources([bad], [rungs]))
    plain = page.render(sources.Sources([document], [samples.ladder()]))
    text.encode()
    assert Page(text).tags.count("script") == Page(text).tags.count("img") == 0
    assert len(Page(text).tags) >= len(Page(plain).tags)
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", text)
    assert hostile not in text or hostile.startswith("{{")


def test_nothing_is_fetched() -> None:
    text = page.render(sources.Sources([samples.result()], [samples.ladder(), samples.ladder((1, 2))]))
    assert not re.search(r"https?:|src=|@import|url\(|<script", text)
    assert "default-src 'none'" in text


def test_missing_sides_and_no_ratio() -> None:
    comparison = samples.comparison(major_faults=([0, 0], [50, 60]), other=([], [1.0, 2]))
    text = shown(comparison).text
    assert "major faults 0 55 (50-60) - worse" in text.replace(" .", "")
    assert "not counted by this kernel" in text


def test_zeros_and_single_runs() -> None:
    comparison = samples.comparison(
        **{m: ([0], [0]) for m in samples.comparison()["metrics"]}
    )
    text = shown(comparison, runs=1).text
    assert "10 show no difference" in text
    assert "With one run a side there is no spread" in text
    assert "1 run each" in text


def test_extreme_numbers() -> None:
    comparison = samples.comparison(
        a=([1e300, -1e300], [1e-300, 5e-324]), b=([1e-300], [1e300]), c=([-2, -1], [-9, -8])
    )
    comparison["matters"] = ["a", "b", "c"]
    assert "nan" not in shown(comparison).text


def test_twenty_workloads_with_long_names() -> None:
    names = [f"workload-{n}-" + "x" * 100 for n in range(20)]
    found = shown(*(samples.comparison(name) for name in names))
    assert "on 20 workloads" in found.text
    assert found.tags.count("svg") > 40
    assert all(name in found.text for name in names)


def test_failed_commands_are_told() -> None:
    comparison = samples.comparison()
    comparison["exit_codes"] = {"stock": [0, 3], "quell": [0, 0]}
    assert "did not exit with 0: stock 0, 3; quell 0, 0" in shown(comparison).text


def test_deterministic_times_are_named() -> None:
    text = shown(deterministic=True).text
    assert "times are guest instructions" in text and "emulated" not in text


def test_ladder_and_published() -> None:
    text = shown(ladders=[samples.ladder()]).text
    assert "Of 3 published results, 1 went the same way here and 1 the opposite way" in text
    assert "mapped-read: shootdown IPIs on each rung of the ladder" in text
    assert "+ lazy unmap flush = Quell" in text
    assert "TLB misses: emulation has no counters" in text
    assert "more than published" in text and "Somebody, somewhere, 2015" in text


def test_ladder_alone() -> None:
    assert "1 went the same way" in Page(page.render(sources.Sources([], [samples.ladder()]))).text
    assert "More CPUs" in Page(page.render(sources.Sources([], [samples.ladder((1, 2))]))).text


def test_scale_curves() -> None:
    found = shown(ladders=[samples.ladder((2, 4, 8, 16))])
    assert "mapped-read: elapsed, s against the number of vCPUs" in found.text
    assert "80,000 with 2 vCPUs" in found.text


@pytest.mark.parametrize("only", ["nothing", "quell", "stock"])
def test_ladder_with_one_rung_measured(only: str) -> None:
    document = samples.ladder()
    document["cells"] = [c for c in document["cells"] if c["rung"] == only]
    assert f"{only}: " in shown(ladders=[document]).text


def test_ladder_of_zeros() -> None:
    document = samples.ladder((1, 2))
    for cell in document["cells"]:
        for figure in cell["figures"].values():
            figure.update(values=[0, 0], median=0, min=0, max=0)
    assert "nan" not in shown(ladders=[document]).text


def test_facts_in_common_are_said_once() -> None:
    other = samples.result(samples.comparison("zap"))
    other["environment"]["host"]["cpu"] = "Another CPU"
    text = Page(page.render(sources.Sources([samples.result(), other]))).text
    assert text.count("gcc 12") == 1
    assert "A CPU, 2 CPUs" in text and "Another CPU, 2 CPUs" in text


def test_commands_parse() -> None:
    """What is said to reproduce a result is accepted by the commands themselves."""
    document = samples.result(
        samples.comparison(), samples.comparison("gone"), samples.comparison("command")
    )
    facts = document["environment"]["workloads"]
    facts["mapped-read"].update(memory_kb=1 << 20, cpus=4)
    facts["command"].update(version=None, command=["sh", "-c", "a b"])
    document["environment"]["kernels"]["quell"]["boot_parameters"] = ["quell=-luf"]
    lines = reproduce.commands([document, samples.ladder(), samples.ladder((2, 4))])
    assert lines[0] == "git checkout 0123abc"
    assert "./quell compare --workload mapped-read --runs 3 --accel tcg --quell-args=quell=-luf --memory 1G --cpus 4" in lines
    assert "./quell compare --runs 3 --accel tcg --quell-args=quell=-luf --memory 256M --cpus 2 -- sh -c 'a b'" in lines
    whole = cli.whole_parser()
    for line in lines[1:]:
        words = shlex.split(line.partition(" -- ")[0])
        if words[1] in cli.COMMANDS:
            whole.parse_args(words[1:])


def test_edited_files_are_told() -> None:
    document = samples.result()
    document["environment"]["quell"] = "0123abc-dirty"
    assert reproduce.commands([document])[0].startswith("git checkout 0123abc  # the files had")


# --- which results ----------------------------------------------------------


def keep(cache: Cache, name: str, document: dict[str, Any]) -> Path:
    folder = cache.results / name
    folder.mkdir(parents=True)
    file = folder / ("ladder.json" if "cells" in document else "result.json")
    file.write_text(json.dumps(document))
    return folder


def test_the_latest_of_each(cache: Cache) -> None:
    keep(cache, "20260101T000000Z", samples.result(samples.comparison("old")))
    keep(cache, "20260102T000000Z", samples.result(samples.comparison("new")))
    keep(cache, "20260103T000000Z", samples.ladder((2, 4)))
    keep(cache, "20260104T000000Z", samples.ladder())
    keep(cache, "20260105T000000Z", samples.ladder(workloads=("zap",)))
    (cache.results / "20260106T000000Z").mkdir()
    found = sources.latest(cache)
    assert [c["comparisons"][0]["workload"] for c in found.comparisons] == ["new"]
    assert [ladder["cells"][0]["workload"] for ladder in found.ladders] == ["zap", "mapped-read"]
    assert [sources.is_scale(ladder) for ladder in found.ladders] == [False, True]


def test_named_results(cache: Cache, tmp_path: Path) -> None:
    folder = keep(cache, "one", samples.result())
    file = tmp_path / "two.json"
    file.write_text(json.dumps(samples.ladder()))
    found = sources.named(["one", str(folder), str(folder / "result.json"), str(file)], cache)
    assert (len(found.comparisons), len(found.ladders)) == (3, 1)
    with pytest.raises(UsageError, match="there is no result nosuch"):
        sources.named(["nosuch"], cache)
    with pytest.raises(results.ResultError, match="it is no complete result"):
        sources.named([str(tmp_path)], cache)


def broken(path: str, value: Any, document: dict[str, Any]) -> dict[str, Any]:
    """A copy of a document with something else (None: nothing) at a place."""
    document = copy.deepcopy(document)
    *way, last = path.split(".")
    at: Any = document
    for key in way:
        at = at[int(key) if key.isdigit() else key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("schema", "quell.results/2", "has version 2 of the result format"),
        ("schema", "quell.figures/1", "is no result of quell compare or quell ladder"),
        ("environment", None, "it has no environment"),
        ("environment.host", [], "is damaged: environment.host must be object"),
        ("environment.runs", 0, "environment.runs must be"),
        ("environment.workloads", {}, "does not tell of 'mapped-read'"),
        ("environment.kernels", {}, "does not tell of 'quell'"),
        ("comparisons", [], "comparisons must contain at least 1"),
        ("comparisons.0.metrics", None, "must contain .*metrics"),
        ("comparisons.0.metrics.user_s.stock", "x", "user_s"),
        ("comparisons.0.metrics.user_s.ratio", 10**400, "user_s.ratio"),
        ("comparisons.0.metrics.user_s.ratio", float("nan"), "is no JSON"),
    ],
)
def test_damaged_comparisons(path: str, value: Any, says: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(broken(path, value, samples.result())))
    refused(file, says, tmp_path, capsys)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("schema", "quell.ladder/7", "has version 7"),
        ("absent", None, "it has no absent"),
        ("rungs.0.name", "other", "it has no rung 'nothing'"),
        ("rungs.0.name", "quell", "it has no rung 'nothing'"),
        ("cells.0.rung", "quell", "something is in it twice"),
        ("cells.0.figures.elapsed_s.values", [], "values must contain at least 1"),
        ("published.0.direction", "sideways", "direction must be one of"),
    ],
)
def test_damaged_ladders(path: str, value: Any, says: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "ladder.json"
    file.write_text(json.dumps(broken(path, value, samples.ladder())))
    refused(file, says, tmp_path, capsys)


@pytest.mark.parametrize("text", ["", "{", "\xff", "[" * 100_000])
def test_what_is_no_json(text: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(text.encode("latin-1"))
    refused(file, "is no JSON", tmp_path, capsys)


def refused(file: Path, says: str, tmp_path: Path, capsys: Any) -> None:
    """One sentence, an exit code, and no page."""
    out = tmp_path / "report.html"
    assert cli.main(["report", str(file), "-o", str(out)]) == 1
    captured = capsys.readouterr()
    assert re.search(says, captured.err) and len(captured.err.splitlines()) == 1
    assert captured.out == "" and not out.exists()


# --- the command ------------------------------------------------------------


def test_no_results_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report"]) == 2
    assert capsys.readouterr().err == "quell: there are no results yet; ./quell compare makes them\n"


def test_command(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(cache, "one", samples.result())
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", "-q"]) == 0
    assert capsys.readouterr().out == "quell-report.html\n"
    text = (tmp_path / "quell-report.html").read_text()
    assert text.startswith("<!DOCTYPE html>") and text.rstrip().endswith("</html>")
    assert cli.main(["report", "-o", "-"]) == 0
    assert capsys.readouterr().out == text
    link = tmp_path / "link.html"
    link.symlink_to("real.html")
    assert cli.main(["report", "-o", str(link)]) == 0
    assert link.is_symlink() and (tmp_path / "real.html").read_text() == text


def test_where_the_page_cannot_go(cache: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(cache, "one", samples.result())
    for target, says in (
        (tmp_path, "is a folder; -o takes a file"),
        (tmp_path / "no/report.html", "there is no folder"),
        (Path("/dev/null"), "is no regular file; -o - writes to standard output"),
    ):
        assert cli.main(["report", "-o", str(target)]) == 2
        assert says in capsys.readouterr().err
    assert Path("/dev/null").is_char_device()


# --- charts -----------------------------------------------------------------


def test_ticks() -> None:
    assert svg.ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert svg.ticks(0, 22160) == [0, 5000, 10000, 15000, 20000]
    assert svg.ticks(-3, 7) == [-2, 0, 2, 4, 6]
    assert svg.ticks(5, 5) == [5]
    assert svg.log_ticks(0.02, 30) == [0.1, 1, 10]
    assert svg.log_ticks(0.45, 2.2) == [0.5, 1, 2]


def test_scales() -> None:
    assert svg.Linear(0, 10, 100, 200)(5) == 150
    assert svg.zero_based([0, 0], 10, 20)(0) == 10
    assert svg.zero_based([-1e308, 1e308], 0, 1)(0) == 0.5
    log = svg.Log(0.01, 100, 0, 4)
    assert [log(v) for v in (0, 0.001, 0.01, 1, 1e9)] == pytest.approx([0, 0, 0, 2, 4])


def test_labels_are_spread_out() -> None:
    places = svg.spread_out([50, 50, 51, 10], 12, 0, 60)
    assert sorted(places) == pytest.approx(sorted(places))
    ordered = sorted(places)
    assert all(b - a >= 12 for a, b in zip(ordered, ordered[1:], strict=False))
    assert min(places) >= 0 and max(places) <= 60


def test_long_labels_are_cut_and_kept_as_tips() -> None:
    assert svg.fit("short", 100) == "short"
    assert svg.fit("x" * 50, 60).endswith("…") and len(svg.fit("x" * 50, 60)) < 12
    assert len(svg.fit("\N{CJK UNIFIED IDEOGRAPH-4E00}" * 50, 60)) < 8
    rows = [charts.Ratio("y" * 80, 0.5, 0.4, 0.6, "better", "circle", "tip")]
    assert "<title>" + "y" * 80 in charts.ratios("i", "n", rows, (0.1, 2))


@pytest.mark.parametrize("value", [0.0, 1e-9, 1e9, None])
def test_ratios_beyond_the_axis(value: float | None) -> None:
    rows = [charts.Ratio("r", value, None, None, "better", "circle", "t")]
    drawn = charts.ratios("i", "n", rows, charts.ratio_domain(rows))
    assert ("arrow" in drawn) == (value is not None)


def test_verdicts_differ_in_shape() -> None:
    assert len({shape for _, shape in charts.VERDICTS.values()}) == 3
    assert set(charts.VERDICTS) == {stats.BETTER, stats.WORSE, stats.SAME}
