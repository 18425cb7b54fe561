# SPDX-License-Identifier: GPL-2.0-only
"""``./quell explain``; the docs and the kernel part agree about the mechanisms."""

import re

import pytest

from conftest import Capture
from quell import cli, mechanisms, tree
from quell.paths import Cache, repo_root


def test_the_kernel_has_the_same() -> None:
    files = tree.kernel_dir() / "files"
    found: set[str] = set()
    for path in files.rglob("*.c"):
        text = path.read_text()
        if "struct quell_mechanism" in text and "tools/" not in str(path) and path.name != "quell.c":
            found |= set(re.findall(r"\.name\s*=\s*\"(\w+)\"", text))
    assert found == set(mechanisms.names())


def counters() -> set[str]:
    """Quell's counters in /proc/vmstat, as the hooks and their header add them."""
    part = tree.read_kernel_part(tree.kernel_dir())
    added = "".join(hook.sections.get("mm/vmstat.c", "") for hook in part.hooks)
    events = part.files["include/linux/quell_events.h"].decode()
    return {*re.findall(r'^\+\t"(\w+)",', added, re.M), *re.findall(r'^QUELL_EVENT\(\w+, "(\w+)"\)', events, re.M)}


@pytest.mark.parametrize("one", mechanisms.load(), ids=lambda one: one.name)
def test_one_screen(one: mechanisms.Mechanism) -> None:
    assert list(one.items) == list(mechanisms.KEYS)
    lines = mechanisms.screen(one)
    assert len(lines) <= mechanisms.LINES
    assert max(map(len, lines)) <= mechanisms.WIDTH
    text = " ".join(lines)
    assert f"/sys/kernel/mm/quell/{one.name}/enabled" in text and f"quell=-{one.name}" in text
    page = (repo_root() / one.page).read_text()
    for name in counters():
        if re.match(rf"(nr_)?{one.name}_", name):
            # The table may say `a`, `_b`, `_c`.
            short = re.sub(r"^(nr_)?[a-z]+_[a-z]+(?=_)", "", name)
            assert f"`{name}`" in page or f"`{short}`" in page, f"{one.page} does not tell of {name}"


def test_every_counter_has_a_mechanism() -> None:
    own = "|".join(mechanisms.names())
    assert counters()
    for name in counters():
        assert re.match(rf"(nr_)?({own})_", name), f"./quell status would not show {name}"


def test_explain(capsys: Capture, cache: Cache) -> None:
    assert cli.main(["explain"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^{name} ", out, re.M) for name in mechanisms.names())
    assert len(out.splitlines()) <= mechanisms.LINES
    assert cli.main(["explain", "luf"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("luf (Quell's, after Byungchul Park, 2024)\n") and "More: docs/luf.md" in out
    assert "luf_release_aged" in out and "`" not in out
    assert not cache.root.exists()


def test_unknown(capsys: Capture) -> None:
    assert cli.main(["explain", "rmap-batch"]) == 2
    err = capsys.readouterr().err
    assert "no mechanism is called 'rmap-batch'; they are luf, " in err and len(err.splitlines()) == 1
