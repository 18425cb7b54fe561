# SPDX-License-Identifier: GPL-2.0-only
"""What shows that each hook is reached: ``kernel/hooks.toml``, whose head explains it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quell import configurations, placement, tree
from quell.errors import QuellError

TABLE = "hooks.toml"
_SELFTESTS = "tools/testing/selftests/quell"
_MUTANTS = "include/linux/quell_mutants.h"


@dataclass(frozen=True)
class Entry:
    """One line of the table: the hunks it means, and what shows them."""

    patch: str
    path: str
    line: str
    function: str
    shown_by: tuple[str, ...]

    @property
    def where(self) -> str:
        """As it is in the table, for messages."""
        return f"{self.patch}: {self.path}: {self.line}" + (f" @ {self.function}" if self.function else "")

    def among(self, hunks: Sequence[tuple[str, str, placement.Hunk]]) -> list[int]:
        """The places of the hunks that it means; it should be one."""
        own = [
            number
            for number, (patch, path, hunk) in enumerate(hunks)
            if (patch, path) == (self.patch, self.path) and self.function in ("", hunk.function)
        ]
        adding = [number for number in own if self.line in hunks[number][2].added]
        having = [n for n in own if self.line in {line.strip() for line in hunks[n][2].old}]
        return adding or having


@dataclass(frozen=True)
class Evidence:
    """What can be named: texts in which a name has to occur, by kind."""

    part: tree.KernelPart
    lab: Path
    workloads: Path
    hunks: Sequence[tuple[str, str, placement.Hunk]] = field(default_factory=list)

    def lacks(self, what: str, hunk: placement.Hunk) -> str:
        """What is wrong with one that is named for a hunk; "" if nothing."""
        kind, _, name = what.partition(" ")
        if not name:
            return f"{what!r} names nothing"
        check = {
            "counter": self._counter, "selftest": self._selftest, "kunit": self._kunit,
            "mutant": self._mutant, "workload": self._workload,
        }.get(kind)  # fmt: skip
        if kind in ("vm", "export"):
            there = f'"{name}"' in (self.lab / f"checks/{kind}.py").read_text()
        elif kind == "build":
            there = self._built(name, hunk)
        elif kind == "calls":
            there = _called(name, hunk)
        elif kind == "open":
            there = True
        elif check is None:
            return f"{what!r} is of no known kind"
        else:
            there = check(name)
        return "" if there else f"there is no {what}"

    def _files(self, start: str) -> Mapping[str, str]:
        return {
            path: data.content.decode()
            for path, data in self.part.files.items()
            if path.startswith(start)
        }

    def _counter(self, name: str) -> bool:
        return any(
            path == "mm/vmstat.c" and f'"{name}",' in hunk.added for _, path, hunk in self.hunks
        )

    def _selftest(self, name: str) -> bool:
        program, _, text = name.partition(" ")
        source = self._files(f"{_SELFTESTS}/{program}.c").get(f"{_SELFTESTS}/{program}.c", "")
        # Tests are named by strings, joined or in tables.
        return bool(text) and re.search(rf'"[^"\n]*(?<!\w){re.escape(text)}(?!\w)', source) is not None

    def _kunit(self, name: str) -> bool:
        return any(f"KUNIT_CASE({name})" in text for text in self._files("").values())

    def _mutant(self, name: str) -> bool:
        text = self._files(_MUTANTS).get(_MUTANTS, "")
        return re.search(rf"\bM\({re.escape(name)}\)", text) is not None

    def _workload(self, name: str) -> bool:
        return (self.workloads / name / "workload.toml").is_file()

    def _built(self, name: str, hunk: placement.Hunk) -> bool:
        """Quell uses it elsewhere; a hunk that is no #include or Makefile line has it itself,

        or continues the line that has it.
        """
        word = re.compile(rf"\b{re.escape(name)}\b")
        own = "\n".join([*hunk.added, *(line for line in hunk.old if line.endswith(","))])
        if not word.search(own) and not re.search(r"#include|^obj-", own, re.M):
            return False
        others = ["\n".join(other.added) for _, _, other in self.hunks if other is not hunk]
        return any(word.search(text) for text in [*others, *self._files("").values()])


def _called(name: str, hunk: placement.Hunk) -> bool:
    """A configuration that there is, any function, and a function that the hunk calls."""
    words = name.split()
    known = {one.name for one in configurations.CONFIGURATIONS}
    return len(words) == 3 and words[0] in known and f"{words[2]}(" in "\n".join(hunk.added)


@dataclass(frozen=True)
class Call:
    """In the object ``path``, the compiled ``function`` has to call ``callee``."""

    path: str
    function: str
    callee: str


def calls(kernel: Path, configuration: str) -> list[Call]:
    """What the table says of calls in this configuration."""
    found = []
    for entry in entries((kernel / TABLE).read_text()):
        for what in entry.shown_by:
            kind, *words = what.split()
            if kind == "calls" and words[:1] == [configuration]:
                found.append(Call(entry.path.removesuffix(".c") + ".o", *words[1:]))
    return found


def entries(text: str) -> list[Entry]:
    """The table's entries. QuellError when it is not as it should be."""
    try:
        table = tomllib.loads(text)
        found = []
        for patch, files in table.items():
            for path, lines in files.items():
                for key, shown in lines.items():
                    line, _, function = key.partition(" @ ")
                    if not isinstance(shown, list) or not shown:
                        raise TypeError(f"{patch}: {path}: {key} should have a list")
                    found.append(Entry(patch, path, line, function, tuple(shown)))
        return found
    except (tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
        raise QuellError(f"kernel/{TABLE} cannot be used: {error}") from error


def wrong(kernel: Path, lab: Path, workloads: Path) -> list[str]:
    """What the table and the hooks do not agree about, a sentence each."""
    part = tree.read_kernel_part(kernel)
    hunks = [
        (hook.name.removesuffix(".patch"), path, hunk)
        for hook in part.hooks
        for path, section in hook.sections.items()
        for hunk in placement.hunks(section)
    ]
    evidence = Evidence(part, lab, workloads, hunks)
    table = entries((kernel / TABLE).read_text())
    said = []
    covered = [0] * len(hunks)
    for entry in table:
        meant = entry.among(hunks)
        if len(meant) != 1:
            count = f"{len(meant)} hunks of that patch have" if meant else "no hunk of that patch has"
            said.append(f"kernel/{TABLE}: {entry.where}: {count} it")
            continue
        covered[meant[0]] += 1
        for what in entry.shown_by:
            if lack := evidence.lacks(what, hunks[meant[0]][2]):
                said.append(f"kernel/{TABLE}: {entry.where}: {lack}")
    for (patch, path, hunk), times in zip(hunks, covered, strict=True):
        if times != 1:
            line = next((line for line in hunk.added if line), "")
            what = "says twice what shows" if times else "does not say what shows"
            where = f"{patch}: {path}: {line} @ {hunk.function}"
            said.append(f"kernel/{TABLE} {what} that this is reached: {where}")
    return said
