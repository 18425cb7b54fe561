# SPDX-License-Identifier: GPL-2.0-only
"""The report: its results and text; it is written as a whole or not at all."""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import report_samples as samples
from conftest import Capture, fails, write_files
from guests import Patch, execute, lab_env, terminal
from quell import cli, results, stats
from quell.errors import QuellError
from quell.paths import Cache
from quell.report import page

VOID = {"meta", "link", "br", "img", "hr", "input", "wbr"}


class Page(HTMLParser):
    """A page, parsed: elements are closed in order and identifiers unique. Keeps text and tags."""

    def __init__(self, *found: dict[str, Any]) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.source = page.render(found)
        self.feed(self.source)
        self.close()
        assert self.open == [] and len(set(self.ids)) == len(self.ids)
        assert "nan" not in re.sub(r"[a-z]nan|nan[a-z]", "", self.source)
        self.text = re.sub(r" +([,.:;])", r"\1", " ".join("".join(self.words).split()))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)
        # Elements inside an identifier do not split it; all others separate words.
        self.words.append("" if tag in ("span", "wbr") else " ")

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag
        self.words.append("" if tag == "span" else " ")

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


def test_says_what_came_out() -> None:
    found = Page(samples.result(samples.comparison(elapsed_s=([5, 6, 7, 8, 9], [15, 16, 17, 18, 19]))))
    for words in (
        "1 ● better 1 ▲ worse 1 ■ no difference",
        "TCG: times are emulated",
        "an exact rank test at 5 %",
        "elapsed, s (emulated) 7 (5-9)",
        "Side quell quell: 6.12.7-quell, configuration c0ffeec0ffee",
        "256M memory, 2 CPUs, 5 runs on each side",
    ):
        assert words in found.text
    text = Page(samples.result(deterministic=True)).text
    assert "elapsed, s (guest instructions)" in text and "emulated" not in text


def test_too_few_runs_and_no_verdict() -> None:
    found = Page(samples.result(samples.comparison(elapsed_s=([5, 6], [7, 8])), runs=2))
    assert "1 × too few runs to tell" in found.text
    assert "too few runs to tell (5 would do)" in found.text and 'class="verdict few"' in found.source


def test_has_the_numbers_of_the_terminal() -> None:
    """The page has all cells of ``compare``'s table, word for word."""
    document = samples.result(samples.comparison(own_ns=([1234.5, 1300, 1400], [99, 100, 101])))
    text = Page(document).text
    lines = [line for line in terminal(document).splitlines() if re.search(r"\d\.\d{3} ", line)]
    assert len(lines) == 11
    assert all(cell in text for line in lines for cell in re.split(r" {2,}", line.strip()))


def test_sides_and_notes() -> None:
    document = samples.result(samples.comparison(sides=samples.THREE, codes=(0, 3, 0)), sides=samples.THREE)
    text = Page(document).text
    assert "ratio stock quell no-luf" in text and "6.12.7-quell, configuration c0ffeec0ffee, with quell=-luf" in text
    assert "exit codes: stock 0 0 0 0 0, quell 3 3 3 3 3, no-luf 0 0 0 0 0. TLB misses were not counted." in text


def test_missing_sides_and_extreme_numbers() -> None:
    document = samples.result(samples.comparison(
        major_faults=([0, 0], [50, 60]), other=([], [1.0, 2]), a=([1e99, -1e99], [1e-99, 5e-324]),
        b=([1e-50], [1e50]), c=([-2, -1], [-9, -8]), d=([0], [0]), matters=("major_faults", "other", "a", "b", "c", "d"),
    ))  # fmt: skip
    text = Page(document).text
    assert "major faults 0 55 (50-60) - × too few runs" in text
    assert "other, ns: stock none, quell 1, 2" in text and "not counted" in text


def test_ladder_and_published() -> None:
    text = Page(samples.result(), samples.ladder(), samples.ladder((2, 16))).text
    assert "same direction" in text and "only one of the two differs one line of why" in text
    assert "mapped-read: every run shootdown IPIs: nothing 72,000, 80,000, 96,000" in text
    assert all(words in text for words in ("The ladder: one", "+ batched write-out = Quell", "Somebody, somewhere, 2015"))
    assert "The ladder with more CPUs, mapped-read-16cpus: every run" in text and "256M memory, 16 CPUs" in text


@pytest.mark.parametrize("hostile", [
    "</style><b>", "\"'><img src=x>", "{{ 7 * 7 }}", "</svg></title><script>1</script>", "\x00\x1b[31m\ud800",
])  # fmt: skip
def test_text_of_results_is_only_text(hostile: str) -> None:
    """No text of a result is interpreted as HTML."""
    fixed = ("schema", "better", "source", "direction")
    named = ("figures", "sides", "against", "exit_codes")

    def spoil(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k + hostile * (key in named): spoil(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [spoil(v) for v in value]
        return value + hostile if isinstance(value, str) and key not in fixed else value

    first = samples.result(samples.comparison(own=([1, 2], [3, 4])), accelerator="kvm")
    documents = [first, samples.ladder(), samples.ladder((1, 2))]
    bad = [spoil(document) for document in documents]
    found, plain = Page(*bad), Page(*documents)
    assert all(found.tags.count(tag) == plain.tags.count(tag) for tag in ("script", "img", "b", "tr"))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\ud800]", found.source)
    assert hostile not in found.source or hostile.startswith("{{")


def test_words_break_between_their_parts() -> None:
    broken = "a ns_1p_<wbr>x, 6.12.117 &lt;b&gt;/<wbr>sys/<wbr>x 1,234"
    assert page.breakable("a ns_1p_x, 6.12.117 <b>/sys/x 1,234") == broken
    assert page.breakable("quell=-luf,-x") == "quell=<wbr>-luf,<wbr>-x"


def test_charts_have_names_and_words_and_nothing_is_fetched() -> None:
    source = Page(samples.result(), samples.ladder(), samples.ladder((1, 2))).source
    drawn = re.findall(r'<svg [^>]*class="chart"[^>]*>(.*?)</svg>', source, re.S)
    assert len(drawn) == 1 + 1 + 2
    assert all(re.match(r"\s*<title id=[^>]*>[^<]+</title>\s*<desc id=[^>]*>[^<]+</desc>", chart) for chart in drawn)
    assert not re.search(r"https?:|src=|@import|url\(|<script", source) and "default-src 'none'" in source


def test_verdicts_differ_in_shape() -> None:
    assert len(set(page.MARKS.values())) == len(page.MARKS) == 4
    texts = (stats.BETTER, stats.WORSE, stats.SAME, stats.too_few(3), None)
    assert [page.kind(text) for text in texts] == [*page.MARKS, ""]


def keep(cache: Cache, name: str, document: dict[str, Any]) -> Path:
    return write_files(cache.results / name, {results.FILE: json.dumps(document)})


def test_the_newest_of_each_and_named_ones(cache: Cache) -> None:
    keep(cache, "20260101T000000Z", samples.result(samples.comparison("old")))
    keep(cache, "20260102T000000Z", samples.result(samples.comparison("new")))
    keep(cache, "20260103T000000Z", samples.ladder((2, 4)))
    keep(cache, "20260104T000000Z", samples.ladder())
    keep(cache, "20260105T000000Z", samples.result(preset="figures"))
    found = results.find([], cache)
    assert [result["preset"] for result in found] == ["compare", "ladder", "scale"]
    assert found[0]["comparisons"][0]["workload"] == "new"
    folder = keep(cache, "one", samples.result())
    assert len(results.find(["one", str(folder), str(folder / results.FILE)], cache)) == 3
    fails(QuellError, "nosuch cannot be read", results.find, ["nosuch"], cache)


def test_an_error_leaves_no_page(cache: Cache, tmp_path: Path, capsys: Capture) -> None:
    file, out = tmp_path / "result.json", tmp_path / "report.html"
    file.write_text("{")
    assert cli.main(["report", str(file), "-o", str(out)]) == 1
    captured = capsys.readouterr()
    assert "is no result of this version" in captured.err and len(captured.err.splitlines()) == 1
    assert captured.out == "" and not out.exists()
    keep(cache, "old", {**samples.result(), "schema": "quell.results/1"})
    assert cli.main(["report"]) == 2
    assert capsys.readouterr().err == "quell: there are no results of compare or ladder yet; ./quell compare makes them\n"


def test_command(cache: Cache, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    keep(cache, "one", samples.result())
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", "-q"]) == 0
    assert capsys.readouterr().out == "quell-report.html\n"
    text = (tmp_path / "quell-report.html").read_text()
    assert text.startswith("<!DOCTYPE html>") and text.rstrip().endswith("</html>")
    assert cli.main(["report", "-o", "-"]) == 0
    assert capsys.readouterr().out == text
    full = execute("sh", "-c", f"exec {sys.executable} -m quell report -o - >/dev/full", env=lab_env())
    assert full.stderr == "quell: standard output cannot be written: No space left on device\n"
    for target in (tmp_path, tmp_path / "no/report.html", Path("/dev/null")):
        assert cli.main(["report", "-o", str(target)]) == 2
        assert "cannot be written: -o takes a file in a folder that exists" in capsys.readouterr().err
