# SPDX-License-Identifier: GPL-2.0-only
"""Linux's semantic checks, with a fake spatch: selection of rules and files, and reports."""

from collections.abc import Callable
from pathlib import Path

import pytest

from guests import Patch
from checks import check_coccinelle as coccinelle
from checks.cases import Case, Results
from conftest import Fake, write_files
from quell.source import Source

SPATCH = r"""
case "$*" in
*--longhelp*) echo "  --macro-file-builtins   <file> (default=$MACROS)"; exit 0 ;;
*--parse-c*) echo "nb good = 10,  nb bad = ${BAD:-0} =========> x"; exit 0 ;;
*stuck*) echo "no rule" >&2; exit 1 ;;
*lock*) for word; do case $word in *luf.c)
	echo "warning: line 3: should x be a metavariable?"
	echo "$word:7:1-2: ERROR: preceding lock on line 5" ;;
esac; done ;;
esac
"""


@pytest.fixture
def run(
    source: Source, kernel: Path, fake_program: Fake, monkeypatch: Patch, tmp_path: Path
) -> Callable[[], list[Case]]:
    """The results of the part, on the fake kernel, with three rules."""
    fake_program("spatch", SPATCH)
    macros = tmp_path / "standard.h"
    macros.write_text(f"#define DEFINE_PER_CPU(t, n) {coccinelle._SECTION} t n\n")
    monkeypatch.setenv("MACROS", str(macros))
    folder = write_files(source.tree / "scripts/coccinelle", {
        "locks/lock.cocci": "virtual report\n",
        "null/fine.cocci": "virtual org\nvirtual report\n",
        "null/ocaml.cocci": "virtual report\n@script:ocaml depends on report@\n",
        "misc/patches.cocci": "virtual patch\n",
    })  # fmt: skip
    write_files(kernel / "files/tools", {"luf.c": "not in a kernel\n"})

    def call() -> list[Case]:
        results = Results()
        coccinelle.check_all(results, folder, kernel / "files", tmp_path)
        return results.cases

    return call


def _failed(cases: list[Case]) -> list[tuple[str, str]]:
    return [(case.name, case.why) for case in cases if case.status == "failed"]


def test_what_a_rule_says_of_a_file_is_a_failure(run: Callable[[], list[Case]]) -> None:
    cases = run()
    assert [case.status for case in cases] == ["passed", "failed", "passed"]
    assert _failed(cases) == [("locks/lock", "mm/luf.c:7: ERROR: preceding lock on line 5")]


def test_a_file_that_is_not_understood_is_a_failure(run: Callable[[], list[Case]], monkeypatch: Patch) -> None:
    monkeypatch.setenv("BAD", "3")
    assert _failed(run())[0][0] == "mm/luf.c is understood"


def test_a_rule_that_does_not_run_is_a_failure(run: Callable[[], list[Case]], source: Source) -> None:
    (source.tree / "scripts/coccinelle/null/stuck.cocci").write_text("virtual report\n")
    assert ("null/stuck", "spatch failed: no rule") in _failed(run())


def test_macros_without_what_is_not_understood(run: Callable[[], list[Case]], tmp_path: Path) -> None:
    words = coccinelle._macros(tmp_path)
    assert Path(words[1]).read_text() == "#define DEFINE_PER_CPU(t, n)  t n\n"
