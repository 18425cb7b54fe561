# SPDX-License-Identifier: GPL-2.0-only
"""The report in Chromium. Run by ``./quell test --only report``, which installs its needs."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import report_samples as samples
from quell.report import page

LONG = "a-workload-with-" + "a-very-" * 20 + "long-name"
VIEWS = {
    "phone": {"viewport": {"width": 375, "height": 700}, "color_scheme": "light"},
    "phone, dark": {"viewport": {"width": 375, "height": 700}, "color_scheme": "dark"},
    "small phone": {"viewport": {"width": 320, "height": 600}, "color_scheme": "light"},
    "desktop": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "desktop, dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Chromium as root works without its sandbox only; the page is our own file.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=os.environ["QUELL_CHROMIUM"], args=options, timeout=120_000)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything: all verdicts, long names, text that tries to be HTML, ladders."""
    hostile = '<script>document.title="owned"</script><img src=x onerror=alert(1)>&"'
    comparisons = [
        samples.comparison(
            name,
            elapsed_s=([5, 6, 7, 8, 9], [15, 16, 17, 18, 19]),
            flush_requests=([0, 0, 0], [70, 80, 90]),
            **{hostile: ([1.0, 2, 3], [1.5, 2, 2.5]), "ns_round_1p_0_others_of_all": ([-5.0, 3], [-9.0, -7]),
               "requests_of_two_threads_that_give_back_eight_pages_each.by_round": ([1.0, 2], [3.0, 4])},
        )
        for name in ("mapped-read", LONG, hostile)
    ]
    found = [
        samples.result(*comparisons),
        samples.result(samples.comparison("fault", sides=samples.THREE), sides=samples.THREE),
        samples.ladder(workloads=("mapped-read", LONG)),
        samples.ladder((2, 4, 16)),
    ]
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page.render(found))
    return path


@pytest.fixture(params=VIEWS)
def shown(request: pytest.FixtureRequest, browser: Browser, file: Path) -> Iterator[Page]:
    """The page in one of VIEWS; a line on the console or a fetch fails the test."""
    view = browser.new_page(**VIEWS[request.param])
    told: list[str] = []
    fetched: list[str] = []
    view.on("console", lambda message: told.append(message.text))
    view.on("pageerror", lambda error: told.append(str(error)))
    view.on("request", lambda asked: fetched.append(asked.url))
    view.goto(file.as_uri())
    yield view
    view.close()
    assert told == []
    assert [url for url in fetched if not url.startswith("data:")] == [file.as_uri()]


def test_does_not_scroll_sideways(shown: Page) -> None:
    shown.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    width, room = shown.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= room
    # What is wider than the screen scrolls in a box of its own.
    out = shown.evaluate(
        """[...document.querySelectorAll('main *')].filter(e =>
            e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll') && !e.closest('svg')
        ).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert out == []


def test_charts_are_visible_and_named(shown: Page) -> None:
    charts = shown.query_selector_all("svg.chart")
    # One for each workload, of four results.
    assert len(charts) == 3 + 1 + 2 + 3
    for chart in charts:
        box = chart.bounding_box()
        assert box is not None and box["width"] > 200 and box["height"] > 40
    names = [chart.evaluate("e => e.querySelector('title').textContent") for chart in charts]
    words = [chart.evaluate("e => e.querySelector('desc').textContent") for chart in charts]
    assert all(names) and len(set(names)) == len(names) and all(words)
    assert shown.get_by_role("img", name="Comparison, mapped-read: every run").count() == 1
    small = shown.evaluate(
        """[...document.querySelectorAll('svg.chart text')].filter(e =>
            e.getBoundingClientRect().height < 8).length"""
    )
    assert small == 0


_BROKEN_WORDS = """() => {
    document.querySelectorAll('details').forEach(d => d.open = true);
    const texts = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
    const range = document.createRange(), broken = [];
    for (let node; (node = texts.nextNode());) {
        if (node.parentElement.closest('svg')) continue;
        let last = null;
        for (let i = 0; i < node.data.length; i++) {
            range.setStart(node, i);
            range.setEnd(node, i + 1);
            const [box] = range.getClientRects();
            if (!box || !box.width) continue;
            if (last !== null && box.top - last > 4 && /[A-Za-z0-9]/.test(node.data[i - 1]))
                broken.push(node.data.slice(0, i) + '|' + node.data.slice(i));
            last = box.top;
        }
    }
    return broken;
}"""


def test_words_break_between_their_parts(shown: Page) -> None:
    assert shown.evaluate(_BROKEN_WORDS) == []
    shown.emulate_media(media="print")
    shown.set_viewport_size({"width": 688, "height": 1000})
    assert shown.evaluate(_BROKEN_WORDS) == []


def test_text_in_charts_stays_inside_and_apart(shown: Page) -> None:
    """No text of a chart leaves it, and the labels of one column do not overlap."""
    bad = shown.evaluate(
        """[...document.querySelectorAll('svg.chart')].flatMap(svg => {
            const box = svg.getBoundingClientRect();
            const texts = [...svg.querySelectorAll('text')];
            const at = texts.map(t => t.getBoundingClientRect());
            return texts.flatMap((t, i) => {
                const a = at[i], said = [];
                if (a.left < box.left - 2 || a.right > box.right + 2 || a.bottom > box.bottom + 2)
                    said.push(`outside: ${t.textContent}`);
                texts.forEach((u, j) => {
                    const b = at[j];
                    const dx = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                    const dy = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                    if (j > i && dx > 2 && dy > 4) said.push(`${t.textContent} on ${u.textContent}`);
                });
                return said;
            });
        })"""
    )
    assert bad == []


def test_accessible(shown: Page) -> None:
    """axe-core, contrast and all, finds nothing."""
    shown.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    found = importlib.util.find_spec("axe_playwright_python")
    assert found is not None and found.origin is not None
    shown.evaluate(Path(found.origin).with_name("axe.min.js").read_text())
    result: dict[str, Any] = shown.evaluate("axe.run(document, {resultTypes: ['violations']})")
    said = [
        f"{rule['id']}: {node['html'][:120]} {node['failureSummary']}"
        for rule in result["violations"]
        for node in rule["nodes"]
    ]
    assert said == []


def test_text_is_only_text(shown: Page) -> None:
    assert shown.title().startswith("Quell report, Linux 6.12.7")
    assert shown.evaluate("document.querySelectorAll('script, img').length") == 0


def test_dark_is_dark(browser: Browser, file: Path) -> None:
    """The background follows the user's choice; paper stays white."""
    def background(**options: Any) -> str:
        view = browser.new_page()
        view.emulate_media(**options)
        view.goto(file.as_uri())
        found = view.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        view.close()
        return str(found)

    assert background(color_scheme="light") == "rgb(255, 255, 255)"
    assert background(color_scheme="dark") != "rgb(255, 255, 255)"
    assert background(color_scheme="dark", media="print") == "rgb(255, 255, 255)"


def test_print(browser: Browser, file: Path) -> None:
    """Everything is on paper, tables in <details> too, and nothing is cut at the side."""
    view = browser.new_page(viewport={"width": 688, "height": 1000})
    view.emulate_media(media="print")
    view.goto(file.as_uri())
    assert view.evaluate("document.documentElement.scrollWidth") <= 688
    there = view.evaluate("[...document.querySelectorAll('details table')].map(e => e.checkVisibility())")
    assert there and all(there)
    narrow = view.evaluate(
        """[...document.querySelectorAll('tbody th')].filter(e =>
            e.checkVisibility() && e.getBoundingClientRect().width < 60).map(e => e.textContent)"""
    )
    assert narrow == []
    pdf = view.pdf(format="A4", prefer_css_page_size=True)
    view.close()
    assert pdf.startswith(b"%PDF") and 3 <= pdf.count(b"/Type /Page\n") <= 40
