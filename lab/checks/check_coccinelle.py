# SPDX-License-Identifier: GPL-2.0-only
"""Run Linux's semantic checks (scripts/coccinelle) on Quell's kernel files; every report is a failure.

They find bugs that a compiler and a reader miss. Examples are locks taken twice, pointers used before
they are tested or after they are freed, and tests that are always true. Rules that need an OCaml compiler
are left out.
"""

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from checks.cases import Case, Results
from quell import prereq, proc, source, tree

_REPORT = re.compile(r"^virtual report\b", re.M)
_OCAML = re.compile(r"^@.*\b(?:script|initialize):ocaml\b", re.M)
# Some rules take minutes on a complex function.
_TIMEOUT_S = 600
# A line about a file, not about the rule.
_FOUND = re.compile(r"^(\S+):(\d+)(?::[\d-]+)?: (.*)$")
_BAD = re.compile(r"nb good = \d+,\s+nb bad = (\d+)")
_MACROS = re.compile(r"--macro-file-builtins\s.*\(default=([^)]+)\)")
# In Coccinelle's own definition of DEFINE_PER_CPU(), which its parser rejects.
_SECTION = '__attribute__((__section__(".data.percpu")))'


def rules(folder: Path) -> list[Path]:
    """The rules below ``folder`` that can report."""
    texts = {path: path.read_text() for path in sorted(folder.rglob("*.cocci"))}
    return [path for path, text in texts.items() if _REPORT.search(text) and not _OCAML.search(text)]


def read(output: str, folder: Path) -> list[str]:
    """A rule's reports about files below ``folder``, with their paths in a kernel tree."""
    lines = (match for text in output.splitlines() if (match := _FOUND.match(text)))
    return [
        f"{Path(match[1]).relative_to(folder)}:{match[2]}: {match[3]}"
        for match in lines if match[1].startswith(f"{folder}/")
    ]  # fmt: skip


def _macros(folder: Path) -> list[str | Path]:
    """Arguments for the kernel's macros: a corrected copy of Coccinelle's definitions in ``folder``."""
    default = _MACROS.search(proc.run(["spatch", "--longhelp"], check=False).stdout)
    if default is None:
        return []
    ours = folder / "macros.h"
    ours.write_text(Path(default[1]).read_text().replace(_SECTION, ""))
    return ["--macro-file-builtins", ours]


def _unread(path: Path, macros: Sequence[str | Path]) -> bool:
    """True if Coccinelle parses only part of a file: it would not check the rest."""
    said = proc.run(["spatch", *macros, "--parse-c", path], timeout=_TIMEOUT_S, check=False)
    counted = _BAD.search(said.stdout + said.stderr)
    return counted is None or counted[1] != "0"


def _check(rule: Path, wanted: Sequence[Path], macros: Sequence[str | Path], folder: Path) -> Case:
    said = proc.run(
        ["spatch", *macros, "-D", "report", "--very-quiet", "--no-show-diff", "--no-includes",
         "--cocci-file", rule, *wanted],
        timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    name = f"{rule.parent.name}/{rule.stem}"
    if said.returncode != 0:
        return Case(name, "failed", f"spatch failed: {proc.tail(said.stderr, 3)}")
    found = read(said.stdout + said.stderr, folder)
    return Case(name, "failed" if found else "passed", "\n".join(found))


def check_all(results: Results, rules_folder: Path, folder: Path, scratch: Path) -> None:
    """One result per rule, and one per C file of ``folder``: Coccinelle must parse all of it."""
    # Files that go into a kernel.
    wanted = sorted(path for path in folder.rglob("*.[ch]") if path.relative_to(folder).parts[0] != "tools")
    sources = [path for path in wanted if path.suffix == ".c"]
    usable, macros = rules(rules_folder), _macros(scratch)
    assert usable, "Linux has no rules"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, bad in zip(sources, pool.map(lambda path: _unread(path, macros), sources), strict=True):
            results.check(not bad, f"{path.relative_to(folder)} is understood", "see spatch --parse-c")
        for case in pool.map(lambda rule: _check(rule, wanted, macros, folder), usable):
            results.add(case)


def test_rules(results: Results, origin: source.Source, folder: Path) -> None:
    """Linux's rules, on Quell's files."""
    prereq.ensure(prereq.COCCINELLE)
    check_all(results, origin.tree / "scripts/coccinelle", tree.kernel_dir() / "files", folder)
