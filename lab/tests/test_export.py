# SPDX-License-Identifier: GPL-2.0-only
"""The exported series: git am makes the tree that ./quell tree makes, commit by commit."""

import re
import subprocess
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from guests import Patch
from checks import check_checkpatch as checkpatch, check_export as export_check
from checks.cases import Case, Results
from quell import cli, export, series, source as quell_source, tree
from quell.errors import QuellError, UsageError
from quell.source import Source

from conftest import Capture, fails, git, write_files

WHO = tree.Identity("A. Hacker", "a@example.org")
WHEN = "2025-01-02T03:04:05Z"

KCONFIG = """config ARCH_HAS_IT
	bool

menuconfig QUELL
	bool "q"

if QUELL
config QUELL_ONE
	bool "one"
	help
	  This is not
	  config QUELL_TWO

config QUELL_TWO
	bool "two"
endif # QUELL
"""
HEADER = """#ifdef CONFIG_QUELL_ONE
one
#else
#if CONFIG_OTHER
no one
#endif
#endif

#if defined(CONFIG_QUELL_TWO) && X
two
#endif

tail
"""


def _plain_message(kernel: Path) -> None:
    for name, old, new in (("first", "--- not a file\n", ""), ("second", "\n\n", "\n\nBecause.\n\n")):
        file = kernel / f"hooks/6.12/{name}.patch"
        file.write_text(file.read_text().replace(old, new, 1))


@pytest.fixture
def shared(kernel: Path) -> Path:
    """The small kernel part with a Kconfig and a header; both patches have parts of these."""
    _plain_message(kernel)
    write_files(kernel, {"files/mm/Kconfig.quell": KCONFIG, "files/mm/quell.h": HEADER, "series.toml": """
shared = ["mm/Kconfig.quell", "mm/quell.h"]
[first]
options = ["ARCH_HAS_IT", "QUELL", "QUELL_ONE"]
files = ["mm/luf.c", "mm/Kconfig.quell", "mm/quell.h"]
[second]
options = ["QUELL_TWO"]
"""})  # fmt: skip
    return kernel


@pytest.fixture
def linux(source: Source, shared: Path, tmp_path: Path) -> Path:
    """The tree that ./quell tree makes of it."""
    tree.make_git_tree(tmp_path / "linux", source, kernel=shared)
    return tmp_path / "linux"


def make(source: Source, kernel: Path, who: tree.Identity | None = WHO, **how: Any) -> dict[str, str]:
    read = partial(tree.read_file, source.tree)
    return export.patches(kernel, read, source.version, WHEN, signer=who, **how)


def wrong(linux: Path, files: dict[str, str], wanted: str = "") -> list[str]:
    """The complaints of the check about a series."""
    out = Path(tempfile.mkdtemp(dir=linux.parent))
    export.write(out, files)
    return [case.why for case in export_check.applied(linux, out, files, wanted) if case.status == "failed"]


def test_git_am_makes_the_tree(source: Source, shared: Path, linux: Path) -> None:
    files = make(source, shared)
    assert list(files) == [
        "0001-first-hooks-rmap-and-Kconfig.patch", "0002-second-hooks-rmap-further-down.patch",
        "quell-6.12.7.patch",
    ]  # fmt: skip
    assert wrong(linux, files, export_check.state(linux)) == []
    # Each commit has its own options, files and hooks.
    assert git(linux, "show", "HEAD~1:mm/luf.c") == "/* luf */\n"
    early = git(linux, "show", "HEAD~1:mm/quell.h")
    assert "one" in early and "no one" in early and "two" not in early
    assert early.endswith("#endif\n\ntail\n")
    assert git(linux, "show", "HEAD:mm/quell.h") == HEADER
    kconfig = git(linux, "show", "HEAD~1:mm/Kconfig.quell")
    assert 'bool "two"' not in kconfig and "\t  config QUELL_TWO\n" in kconfig
    assert kconfig.endswith("endif # QUELL\n")
    assert "lazy" not in git(linux, "show", "HEAD~1:mm/rmap.c")
    message = git(linux, "log", "-1", "--format=%an <%ae>%n%B")
    assert message.startswith("Quell <quell@localhost>\nsecond: hooks rmap further down\n")


def test_a_difference_is_seen(source: Source, shared: Path, linux: Path) -> None:
    wanted = export_check.state(linux)
    (shared / "files/mm/luf.c").write_text("/* other */\n")
    found = wrong(linux, make(source, shared), wanted)
    assert len(found) == 2 and "the series does not make the tree" in found[1]
    spoiled = {name: text.replace("lazy();", "lazy();\nx") for name, text in make(source, shared).items()}
    assert all("patch" in text for text in wrong(linux, spoiled)) and len(wrong(linux, spoiled)) == 2


@pytest.mark.parametrize(("targets", "named", "pages", "bad"), [
    ("quell", "   quell_one\n", ["quell_one"], []),
    ("mm", "   quell_one\n", ["quell_one"], ["make kselftest"]),
    ("quells", "   quell_one\n", ["quell_one", "quell_two"],
     ["make kselftest", "has quell_one quell_two, index"]),
    ("quell", "   quell_one\n   quell_two\n", ["quell_one"], ["index.rst quell_one quell_two"]),
    ("quell", "", [], ["the table of contents"]),
])  # fmt: skip
def test_lists(targets: str, named: str, pages: list[str], bad: list[str], tmp_path: Path) -> None:
    docs = "Documentation/admin-guide/mm"
    write_files(tmp_path, {
        "tools/testing/selftests/quell/Makefile": "",
        "tools/testing/selftests/Makefile": f"TARGETS := x\nTARGETS += {targets}\n",
        f"{docs}/index.rst": f".. toctree::\n\n   ksm\n{named}   zswap\n",
        **{f"{docs}/{page}.rst": "" for page in pages},
    })  # fmt: skip
    said = [f"{case.name}: {case.why}" for case in export_check.listed(tmp_path) if case.status == "failed"]
    assert len(said) == len(bad)
    assert all(part in text for part, text in zip(bad, said, strict=True))


def test_same_bytes_twice_and_signed(source: Source, shared: Path) -> None:
    files = make(source, shared)
    assert files == make(source, shared)
    for name in export.numbered(files):
        assert files[name].count("\nSigned-off-by: A. Hacker <a@example.org>\n---\n") == 1
        assert "\nFrom: Quell <quell@localhost>\n" in files[name]
    assert "Signed-off-by" not in "".join(make(source, shared, None).values())


def test_authors_are_those_of_the_history(source: Source, shared: Path) -> None:
    (shared / "hooks/6.12/cover").write_text("subject\n\ntext\n")
    git(shared, "init", "-q")
    for name, who in (("first.patch", "Ann"), ("cover", "Zoë")):
        git(shared, "add", f"hooks/6.12/{name}")
        author = f"--author={who} <{who}@example.org>"
        git(shared, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-m", name, author)
    files = make(source, shared)
    first, second = export.numbered(files)
    assert "\nFrom: Ann <Ann@example.org>\n" in files[first]
    assert "\nFrom: Quell <quell@localhost>\n" in files[second]
    assert files[export.COVER].startswith("From: =?utf-8?q?Zo=C3=AB?= <Zoë@example.org>\n")


def test_checkpatch(source: Source, shared: Path, tmp_path: Path) -> None:
    """Complaints that do not apply to their path are left out."""
    said = "".join(f"tools/testing/x.c:1: WARNING:{kind}: odd\\n" for kind in ("VOLATILE", "X"))
    script = f'if ($ARGV[-1] =~ /first/) {{ print "{said}"; exit 1 }} exit 0;\n'
    (source.tree / "scripts/checkpatch.pl").write_text(script)
    results = Results()
    checkpatch.check_all(results, source, shared, tmp_path)
    assert {case.name[:10]: case.why for case in results.cases} == {
        "0001-first": "tools/testing/x.c:1: WARNING:X: odd", "0002-secon": "",
    }  # fmt: skip


def test_who_signs(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.chdir(tmp_path)
    fails(UsageError, "user.name and user.email, and these are not set", export.identity)
    (tmp_path / "config").write_text("[user]\nname = A. Hacker\nemail = a@example.org\n")
    assert export.identity() == WHO


@pytest.mark.parametrize(("table", "message"), [
    ("[first\n", "cannot be used"), ("[first]\n[second]\n", "the same files: mm/luf.c"),
    ('[first]\nfiles = ["mm/luf.c"]\n[third]\n', "the same patches: second, third"),
    ('[first]\nlab = 1\nfiles = ["mm/luf.c"]\n[second]\n', "first: Expected `bool`, got `int` - at `$.lab`"),
    ('[first]\nfiles = ["mm/luf.c"]\n[second]\noptions = ["X"]\n', "the same options: X"),
    ('[first]\nfile = []\nfiles = ["mm/luf.c"]\n[second]\n', "first: there is no field file"),
    ('shared = ["mm/y.h"]\n[first]\nfiles = ["mm/luf.c"]\n[second]\n', "the same files: mm/y.h"),
])  # fmt: skip
def test_bad_series_table(table: str, message: str, kernel: Path) -> None:
    (kernel / "series.toml").write_text(table)
    error = fails(QuellError, "series.toml", series.read, kernel)
    assert message in error.message


@pytest.mark.parametrize("header", ["only a subject\n\n", "[PATCH] x\n\nbody\n\n", "x\n\ndiff -u a b\n\n"])
def test_bad_message(header: str, kernel: Path) -> None:
    _plain_message(kernel)
    file = kernel / "hooks/6.12/second.patch"
    file.write_text(header + file.read_text()[file.read_text().index("--- a/") :])
    fails(QuellError, "second.patch: its header should be", series.read, kernel)


@pytest.fixture
def command(source: Source, shared: Path, monkeypatch: Patch) -> Source:
    """./quell export with the small kernel part and source."""
    monkeypatch.setattr(quell_source, "debian_source", lambda cache, linux="6.12": source)
    monkeypatch.setattr("quell.tree.kernel_dir", lambda: shared)
    monkeypatch.setattr(export, "identity", lambda: WHO)
    return source


@pytest.mark.usefixtures("command")
def test_command(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "a/series"
    assert cli.main(["export", str(out)]) == 0
    said, err = capsys.readouterr()
    assert said.splitlines()[-1] == str(out / "quell-6.12.7.patch") and "git am --empty=drop" in err
    assert len(list(out.iterdir())) == 3 and "Signed-off-by" not in next(out.glob("0001*")).read_text()
    assert cli.main(["export", "--only", "first", "--signoff", str(tmp_path / "b")]) == 0
    assert len(list((tmp_path / "b").iterdir())) == 2
    assert f"Signed-off-by: {WHO.name} <{WHO.email}>" in next((tmp_path / "b").glob("0001*")).read_text()
    assert cli.main(["export", "--only", "first,third", str(tmp_path / "c")]) == 2
    assert "there is no patch 'third'; the names are first, second" in capsys.readouterr().err
    assert cli.main(["export", "--only", ",", str(tmp_path / "c")]) == 2
    assert not (tmp_path / "c").exists()


def test_command_with_a_tree_of_ones_own(command: Source, tmp_path: Path, capsys: Capture) -> None:
    mine = tmp_path / "mine"
    subprocess.run(["cp", "-a", command.tree, mine], check=True)
    text = (mine / "mm/rmap.c").read_text().replace("int rmap_5", "/* newer */\nint rmap_5")
    (mine / "mm/rmap.c").write_text(text)
    assert cli.main(["export", "--kernel", str(mine), str(tmp_path / "out")]) == 0
    (second,) = (tmp_path / "out").glob("0002*")
    assert "@@ -51,6 +51,7 @@ int rmap_9(void)" in second.read_text()
    assert (mine / "mm/rmap.c").read_text() == text and not (mine / "mm/luf.c").exists()
    assert "quell-6.12.7.patch" in capsys.readouterr().out


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize(("files", "more", "message"), [
    (["out/x"], [], "is not empty"), ([], ["--kernel", "nowhere"], "--kernel should be 6.12, 7.3 or the folder"),
    (["out"], [], "cannot be made: "), ([], ["--kernel", "."], "is not a Linux source tree"),
])  # fmt: skip
def test_bad_folders(
    files: list[str], more: list[str], message: str,
    tmp_path: Path, monkeypatch: Patch, capsys: Capture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, dict.fromkeys(files, ""))
    assert cli.main(["export", str(tmp_path / "out"), *more]) == 2
    err = capsys.readouterr().err
    assert message in err and len(err.splitlines()) == 1
    assert files or not (tmp_path / "out").exists()


def test_cover_letter_and_tests_of_their_own(source: Source, kernel: Path) -> None:
    program = "tools/testing/selftests/quell/one.c"
    comment = "/*\n * No page is\n * lost. Usage:\n *\n *\tone DIR\n */\n"
    table = (kernel / "series.toml").read_text()
    _plain_message(kernel)
    write_files(kernel, {
        f"files/{program}": f"// SPDX-License-Identifier: GPL-2.0-only\n{comment}int main(void)\n{{\n}}\n",
        "series.toml": table.replace('"mm/luf.c"', f'"mm/luf.c", "{program}"'),
        "hooks/6.12/cover": "fewer shootdowns\n\nWhat was measured.\n\n{contact}\n",
    })  # fmt: skip
    files = make(source, kernel)
    cover = files.pop(export.COVER)
    assert "\nSubject: [PATCH 00/3] fewer shootdowns\n\nWhat was measured.\n" in cover
    for part in ("against Linux 6.12.7", "   2. quell: tests of first\n", "4 files changed"):
        assert part in cover
    rows = [line.split() for line in cover.splitlines() if line.startswith(("  first", "  second", "  all"))]
    assert rows == ["first 2 2 2 1".split(), "second 1 1 1 0".split(), "all 2 3 3 1".split()]
    first, tests, second = (files[name] for name in export.numbered(files))
    assert "one.c" not in first + second and "mm/luf.c" in first
    assert f"+++ b/{program}" in tests and "  one.c\n    No page is lost.\n\nThe programs need root" in tests


def test_hooks_that_need_each_other_are_named(source: Source, kernel: Path) -> None:
    def found() -> list[Case]:
        part = tree.read_kernel_part(kernel)
        return export_check.independent(part, partial(tree.read_file, source.tree))

    assert [case.status for case in found()] == ["passed"] * 4
    hunk = "@@ -1,4 +1,4 @@\n int rmap_0(void)\n {\n-\treturn 100;\n+\treturn 101;\n }\n"
    (kernel / "hooks/6.12/second.patch").write_text(f"second: x\n\n--- a/mm/rmap.c\n+++ b/mm/rmap.c\n{hunk}")
    failed = [case.name for case in found() if case.status == "failed"]
    assert failed == ["first, without it", "second, alone"]


def test_lab_only_patches_and_parts(source: Source, shared: Path, linux: Path) -> None:
    with (shared / "series.toml").open("a") as table:  # its last part is [second]
        table.write('lab = true\nfiles = ["mm/luf.c"]\n')
    for_lab = "#ifdef CONFIG_QUELL_TWO\nsecond is not for merging\n#endif\n"
    (shared / "hooks/6.12/cover").write_text(f"subject\n\nfirst\n{for_lab}the end\n")
    files = make(source, shared)
    assert [name[:4] for name in files] == ["0000", "0001", "quel"]
    assert "\n+config QUELL_TWO" not in "".join(files.values()) and "lazy" not in files["quell-6.12.7.patch"]
    assert "\n\nfirst\nthe end\n" in files[export.COVER] and "PATCH 00/1" in files[export.COVER]
    whole = make(source, shared, lab=True)
    assert "\nfirst\nsecond is not for merging\nthe end\n" in whole[export.COVER]
    assert "\n+config QUELL_TWO" in whole["quell-6.12.7.patch"] and len(export.numbered(whole)) == 2
    only = make(source, shared, only=["second"])
    # What two patches list comes with the first that is there.
    assert "mm/luf.c" in only[export.numbered(only)[0]] and len(export.numbered(only)) == 1
    wanted = export_check.state(linux)
    assert wrong(linux, whole, wanted) == wrong(linux, files) == wrong(linux, only) == []
    assert series.lab_options(shared) == {"CONFIG_QUELL_TWO"}


@pytest.mark.parametrize(("only", "patches"), [
    (["luf"], ["luf"]), (["luf_fs"], ["luf", "luf_fs"]), (["luf_debug"], ["luf", "luf_debug"]),
    (["gather_range", "zap_batch"], ["zap_batch", "gather_range"]),
])  # fmt: skip
def test_what_a_patch_needs(only: list[str], patches: list[str]) -> None:
    whole = series.read(tree.kernel_dir())
    one = series.select(whole, only)
    assert list(dict.fromkeys(commit.patch for commit in one.commits)) == ["uaccess", "quell", *patches]
    assert {hook.name for hook in one.part.hooks} == {"uaccess", "quell", *patches}
    # Base patches are no mechanisms.
    says = "there is no patch 'quell'; the names are unmap_batch, "
    fails(UsageError, says, series.select, whole, ["quell"])


def test_default_series_has_nothing_of_the_lab() -> None:
    kernel = tree.kernel_dir()
    one = series.select(series.read(kernel))
    left_out = {"unmap_batch", "concurrent", "zap_batch", "luf_debug"}
    assert {commit.patch for commit in one.left_out} == left_out
    last = _without_hooks(one)[-1]
    text = "".join(data.decode() for data in last.values() if data)
    for option in series.lab_options(kernel) - {"CONFIG_QUELL_LUF_DEBUG"}:
        assert not re.search(rf"\b(CONFIG_)?{option.removeprefix('CONFIG_')}\b", text)
    assert "mm/quell_stock.c" not in last and "mm/luf_torture.c" not in last


def _without_hooks(one: series.Series) -> list[tree.Overlay]:
    """The new files after each commit."""
    commits = [replace(commit, hook=replace(commit.hook, sections={})) for commit in one.commits]
    return series.states(replace(one, part=replace(one.part, hooks=[]), commits=commits), lambda path: None)


@pytest.mark.parametrize("how", [{}, {"lab": True}, {"only": ["rmap_batch"]}, {"only": ["luf_debug"]}])
@pytest.mark.parametrize("linux", quell_source.VERSIONS)
def test_files_of_each_commit(linux: str, how: dict[str, Any]) -> None:
    """No file includes one of Quell's that is not there yet."""
    kernel = tree.kernel_dir()
    one = series.select(series.read(kernel, linux), **how)
    own = set(tree.read_kernel_part(kernel, linux).files)
    for commit, now in zip(one.commits, _without_hooks(one), strict=True):
        assert len(commit.subject) <= 75, f"{commit.hook.name}: the subject is too long"
        assert len(commit.message.splitlines()) > 4, f"{commit.hook.name} does not say why"
        for path, data in now.items():
            assert data
            for line in data.decode().splitlines():
                missing = own.intersection(series._included(path, line)) - now.keys()
                assert not missing, f"{commit.hook.name}: {path} has {line}"


def test_commit_of_tests_that_changes_the_kernel() -> None:
    subject = "Subject: [PATCH 2/3] quell: tests of one\n"
    for path, line in (("mm/x-kunit.h", "x"), ("mm/y.h", '#include "tests/y-kunit.h"'), ("mm/z.h", "x")):
        subject += f"\ndiff --git a/{path} b/{path}\n+++ b/{path}\n+{line}\n"
    files = {"0001-a.patch": subject.replace("quell", "mm"), "0002-b.patch": subject}
    said = export_check.commits_of_tests(files)
    assert said.why == "0002-b.patch is a commit of tests, and changes mm/z.h"
