# SPDX-License-Identifier: GPL-2.0-only
"""Quell's mechanisms, and the short sections of their documentation.

The table in ``docs/switches.md`` lists them. Each has a section of five items
(``KEYS``): "In short" on its own page ``docs/NAME.md``, or one under its name in
``docs/switches.md``.
"""

import functools
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quell.errors import QuellError, UsageError
from quell.paths import repo_root

KEYS = ("Does", "Costs", "Helps", "Switches", "Counters")
_PAGE = "switches.md"
_ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \|", re.M)
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


def docs_dir() -> Path:
    """The ``docs`` folder of this repository."""
    return repo_root() / "docs"


def names(docs: Path | None = None) -> list[str]:
    """The names of all mechanisms, in the order of the table."""
    return [name for name, _ in _rows(docs or docs_dir())]


def _rows(docs: Path) -> list[tuple[str, str]]:
    try:
        rows = _ROW.findall((docs / _PAGE).read_text())
    except OSError as error:
        raise QuellError(f"the documentation is not here: {docs / _PAGE}") from error
    return [(name, whose.strip()) for name, whose in rows]


def load(docs: Path | None = None) -> list[Mechanism]:
    """All mechanisms. QuellError with the name of an incomplete page."""
    docs = docs or docs_dir()
    found = []
    for name, whose in _rows(docs):
        own = docs / f"{name}.md"
        page, title = (own.name, "In short") if own.is_file() else (_PAGE, f"`{name}`")
        section = _section((docs / page).read_text(), title)
        if section is None:
            raise QuellError(f"docs/{page} has no section '## {title}'")
        items = _items(section)
        if list(items) != list(KEYS):
            raise QuellError(f"docs/{page}: the section '## {title}' should have the items {', '.join(KEYS)}")
        found.append(Mechanism(name, whose, f"docs/{page}", items))
    return found


@functools.cache
def _stock() -> dict[str, bool]:
    """The mechanisms, and whether stock Linux has them."""
    return {one.name: not one.whose.startswith("Quell") for one in load()}


def switched(value: str) -> dict[str, bool]:
    """The mechanisms that ``quell=VALUE`` switches on, as parsed by the kernel (mm/quell.c).

    UsageError for a word that names no mechanism.
    """
    stock = _stock()
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


def _section(text: str, title: str) -> str | None:
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return match[1] if match else None


def _items(section: str) -> dict[str, str]:
    found = re.findall(r"^- (\w+): (.*(?:\n  .*)*)", section, re.M)
    return {key: _plain(" ".join(text.split())) for key, text in found}


def _plain(text: str) -> str:
    """Markdown as plain text: links by their text, no backticks, nothing bold."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`|\*\*", "", text)


def screen(one: Mechanism) -> list[str]:
    """The lines of ``./quell explain NAME``."""
    lines = [f"{one.name} ({one.whose})", ""]
    for key in KEYS:
        start = f"{key:10}"
        lines += textwrap.wrap(
            one.items[key], WIDTH, initial_indent=start, subsequent_indent=" " * len(start),
            break_on_hyphens=False, break_long_words=False,
        )  # fmt: skip
    return [*lines, "", f"More: {one.page}"]


def overview(all_: Sequence[Mechanism]) -> list[str]:
    """Each with the first sentence of its ``Does`` item, for ``./quell explain``."""
    width = max(len(one.name) for one in all_) + 2
    lines = []
    for one in all_:
        first = re.split(r"(?<=\.)\s", one.items["Does"], maxsplit=1)[0]
        lines += textwrap.wrap(
            first, WIDTH, initial_indent=f"{one.name:{width}}", subsequent_indent=" " * width,
            break_on_hyphens=False,
        )  # fmt: skip
    return lines
