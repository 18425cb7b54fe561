# SPDX-License-Identifier: GPL-2.0-only
"""TOML files, read into dataclasses. msgspec checks the types; help does without it."""

import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from quell.errors import QuellError

T = TypeVar("T")


def read_toml(file: Path) -> dict[str, Any]:
    """The content of a TOML file; QuellError when it cannot be read or is no TOML."""
    try:
        return tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise QuellError(f"{file} cannot be used: {error}") from error


def convert(value: Any, form: type[T], where: str) -> T:
    """The value as this form, strictly; QuellError with ``where`` and the wrong or unknown field."""
    import msgspec

    if is_dataclass(form) and isinstance(value, dict):
        for unknown in sorted(value.keys() - {field.name for field in fields(form)}):
            raise QuellError(f"{where}: there is no field {unknown}")
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise QuellError(f"{where}: {error}") from error
