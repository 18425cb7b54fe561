# SPDX-License-Identifier: GPL-2.0-only
"""Quell's mechanisms, and the short sections of their documentation.

The table in ``docs/switches.md`` lists them. Each has a section of five items
(``KEYS``): "In short" on its own page ``docs/NAME.md``, or one under its name in
``docs/switches.md``.
"""

import functools
import re
import textwrap
from dataclasses import dataclass

from quell.errors import UsageError
from quell.paths import repo_root

KEYS = ("Does", "Costs", "Helps", "Switches", "Counters")
_ROW = re.compile(r"^\| `(\w+)` \| ([^|]+?) +\|", re.M)
# A line is short enough for a terminal, all of it for a screen.
WIDTH = 100
LINES = 24


@dataclass(frozen=True)
class Mechanism:
    """A mechanism: name, first publication, page of its documentation, items by ``KEYS``."""

    name: str
    whose: str
    page: str
    items: dict[str, str]


@functools.cache
def load() -> list[Mechanism]:
    """All mechanisms, in the order of the table."""
    docs = repo_root() / "docs"
    switches = docs / "switches.md"
    found = []
    for name, whose in _ROW.findall(switches.read_text()):
        own = docs / f"{name}.md"
        page, title = (own, "In short") if own.exists() else (switches, f"`{name}`")
        section = page.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        items = re.findall(r"^- (\w+): (.*(?:\n  .*)*)", section, re.M)
        found.append(Mechanism(name, whose, f"docs/{page.name}", {key: _plain(text) for key, text in items}))
    return found


def names() -> list[str]:
    """The names of all mechanisms, in the order of the table."""
    return [one.name for one in load()]


def switched(value: str) -> dict[str, bool]:
    """The mechanisms that ``quell=VALUE`` switches on, as parsed by the kernel (mm/quell.c).

    UsageError for a word that names no mechanism.
    """
    stock = {one.name: not one.whose.startswith("Quell") for one in load()}
    words = [word for word in value.split(",") if word]
    # A name as the first word means off,NAME.
    if words and words[0] not in ("on", "off") and not words[0].startswith("-"):
        words.insert(0, "off")
    on = dict.fromkeys(stock, True)
    for word in words:
        name = word.removeprefix("-")
        if word in ("on", "off"):
            on = dict.fromkeys(stock, True) if word == "on" else dict(stock)
        elif name in stock:
            on[name] = not word.startswith("-")
        else:
            raise UsageError(f"quell= knows no '{word}'; its words are on, off, {', '.join(stock)}, and -NAME")
    return on


def _plain(text: str) -> str:
    """Markdown as one line of plain text: links by their text, no backticks, nothing bold."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))
    return re.sub(r"`|\*\*", "", text)


def _column(start: str, text: str) -> list[str]:
    """A text in lines behind ``start``."""
    return textwrap.wrap(start + text, WIDTH, subsequent_indent=" " * len(start), break_on_hyphens=False)


def screen(one: Mechanism) -> list[str]:
    """The lines of ``./quell explain NAME``."""
    lines = [line for key in KEYS for line in _column(f"{key:10}", one.items[key])]
    return [f"{one.name} ({one.whose})", "", *lines, "", f"More: {one.page}"]


def overview() -> list[str]:
    """Each with the first sentence of its ``Does`` item, for ``./quell explain``."""
    width = max(map(len, names())) + 2
    first = {one.name: re.split(r"(?<=\.)\s", one.items["Does"], maxsplit=1)[0] for one in load()}
    return [line for name, text in first.items() for line in _column(f"{name:{width}}", text)]
