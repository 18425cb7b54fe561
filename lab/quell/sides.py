# SPDX-License-Identifier: GPL-2.0-only
"""Sides of a comparison: a kernel, its boot parameters and settings, under a name."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quell import mechanisms
from quell.errors import UsageError
from quell.source import VERSIONS

# The lab's own kernels, of --kernel's Linux or of the named one; other values are folders of
# Linux trees.
KERNELS = ("stock", "quell", *(f"{name}-{linux}" for linux in VERSIONS for name in ("stock", "quell")))
FORM = "NAME=KERNEL[,PARAMETER...]"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,39}")
_PARAMETER = re.compile(r"[A-Za-z_][\w.-]*(=\S*)?|/(sys|proc)/[\w./-]+=\S*")


@dataclass(frozen=True)
class Side:
    """The kernel (one of KERNELS or a tree's folder), boot parameters, and settings (/FILE=VALUE)."""

    name: str
    kernel: str
    parameters: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The side as results keep it."""
        return {"name": self.name, "kernel": self.kernel, "parameters": list(self.parameters)}

    @property
    def boot(self) -> tuple[str, ...]:
        """The boot parameters."""
        return tuple(one for one in self.parameters if not one.startswith("/"))

    @property
    def settings(self) -> dict[str, str]:
        """Values by file of /sys or /proc; they are written before the command starts."""
        return dict(one.split("=", 1) for one in self.parameters if one.startswith("/"))

    @property
    def quell(self) -> str | None:
        """The value of the last ``quell=`` among the parameters; None without one."""
        words = [p.removeprefix("quell=") for p in self.parameters if p.startswith("quell=")]
        return words[-1] if words else None

    def option(self) -> str:
        """The side as ``--side`` takes it."""
        return ",".join((f"{self.name}={self.kernel}", *self.parameters))


def names(texts: Iterable[str]) -> list[str]:
    """The entries of options that each may be a comma list, in order, each once."""
    return list(dict.fromkeys(part.strip() for text in texts for part in text.split(",") if part.strip()))


def parse(text: str) -> Side:
    """A side from ``NAME=KERNEL[,PARAMETER...]``; UsageError for another form.

    A word without ``=`` belongs to the parameter before it, as in
    ``quell=-luf,-early_ack``. Parameters without a value come first.
    """
    name, equals, rest = text.partition("=")
    kernel, *words = rest.split(",")
    if not equals or not _NAME.fullmatch(name) or not kernel:
        raise UsageError(f"--side should be {FORM}, not '{text}'")
    parameters: list[str] = []
    for word in filter(None, words):
        if "=" not in word and parameters and "=" in parameters[-1]:
            parameters[-1] += f",{word}"
        else:
            parameters.append(word)
    for parameter in parameters:
        if not _PARAMETER.fullmatch(parameter):
            raise UsageError(f"side {name}: '{parameter}' is neither a kernel parameter nor a setting such as /sys/kernel/mm/lru_gen/enabled=0")
    if kernel not in KERNELS:
        if not Path(kernel).is_dir():
            raise UsageError(f"side {name}: there is no kernel '{kernel}': write {', '.join(KERNELS)} or a Linux tree's folder")
        kernel = str(Path(kernel).absolute())
    side = Side(name, kernel, tuple(parameters))
    switches(side)
    return side


def parse_all(texts: Sequence[str]) -> tuple[Side, ...]:
    """The sides of a comparison; UsageError unless there are two or more, each name once."""
    sides = tuple(map(parse, texts))
    for at, side in enumerate(sides):
        if side.name in (earlier.name for earlier in sides[:at]):
            raise UsageError(f"side {side.name} is named twice")
    if len(sides) < 2:
        raise UsageError("a comparison needs two sides or more: give --side again")
    return sides


def switches(side: Side) -> dict[str, bool]:
    """The mechanisms that a side's ``quell=`` switches on; UsageError for an unknown word."""
    try:
        return mechanisms.switched(side.quell or "on")
    except UsageError as error:
        raise UsageError(f"side {side.name}: {error.message}") from None
