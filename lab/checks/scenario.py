# SPDX-License-Identifier: GPL-2.0-only
"""The files in ``scenarios``: shell for guests, and tables."""

import re
from pathlib import Path
from typing import TypeVar

import msgspec

from quell.errors import QuellError

FOLDER = Path(__file__).parent / "scenarios"
_Table = TypeVar("_Table")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of a table's rows."""


def shell(name: str, /, **words: object) -> str:
    """A script; each of ``words`` is replaced by its value, in this order, except in lines that are comments."""
    text = (FOLDER / name).read_text()
    for word, value in words.items():
        # Lines after the first of a value would not be part of the comment.
        parts = re.split(rf"(^[ \t]*#.*$|\b{word}\b)", text, flags=re.M)
        text = "".join(str(value) if part == word else part for part in parts)
    return text


def table(name: str | Path, kind: type[_Table]) -> _Table:
    """A TOML file, here or with its whole path, as ``kind``; QuellError if it does not fit."""
    try:
        return msgspec.toml.decode((FOLDER / name).read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise QuellError(f"{name} cannot be used: {error}") from error
