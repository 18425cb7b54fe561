# SPDX-License-Identifier: GPL-2.0-only
"""Applying Quell, and the round trip: tree, edit, refresh, tree from scratch."""

from pathlib import Path

import pytest

from quell import tree
from quell.errors import QuellError, UsageError
from quell.source import Source

from conftest import FIRST, SECOND, Capture, fails, git, write_files


def contents(root: Path) -> dict[str, bytes]:
    """Every file of a tree, except git's."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git/" not in f"{path.relative_to(root)}/"
    }


@pytest.fixture
def dest(source: Source, kernel: Path, tmp_path: Path) -> Path:
    """A git tree of the small kernel part; Debian's .gitignore hides all of the top level."""
    (source.tree / ".gitignore").write_text("*.o\n/*\n!/debian/\n")
    tree.make_git_tree(tmp_path / "linux", source, kernel=kernel)
    return tmp_path / "linux"


def same_from_scratch(dest: Path, source: Source, kernel: Path) -> None:
    """kernel/ makes the same tree again."""
    again = dest.with_name("again")
    tree.make_git_tree(again, source, kernel=kernel)
    assert contents(again) == contents(dest)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def apply(source: Source, kernel: Path) -> dict[str, str]:
    """The files that Quell adds or changes."""
    overlay = tree.overlay(tree.read_kernel_part(kernel), lambda path: tree.read_file(source.tree, path))
    return {path: data.decode() for path, data in overlay.items() if data is not None}


def test_apply(source: Source, kernel: Path, capsys: Capture) -> None:
    # git apply silently skips files if it takes the outer repository for its own.
    git(source.tree.parent, "init", "-q")
    wrote = apply(source, kernel)
    assert sorted(wrote) == ["mm/Kconfig", "mm/luf.c", "mm/rmap.c"]
    assert "return 100;" in wrote["mm/rmap.c"] and "lazy();" in wrote["mm/rmap.c"]
    # A hook may move, but not into another function.
    edit(source.tree / "mm/rmap.c", "int rmap_5(void)", "/* new */\n\nint rmap_5(void)")
    assert "lazy();" in apply(source, kernel)["mm/rmap.c"]
    assert capsys.readouterr().err == ""
    edit(source.tree / "mm/rmap.c", "int rmap_9(void)", "int other(void)")
    apply(source, kernel)
    says = "warning: second: mm/rmap.c:52: moved by +2, to 'int other(void)', not 'int rmap_9(void)'"
    assert says in capsys.readouterr().err


def test_fuzz_is_not_allowed(source: Source, kernel: Path) -> None:
    # One line of context, three away from the change: patch(1) would apply it.
    edit(source.tree / "mm/rmap.c", "int rmap_11(void)", "long rmap_11(void)")
    edit(kernel / "hooks/6.12/second.patch", "@@ -50,6 +50,7", "@@ -50,7 +50,8")
    edit(kernel / "hooks/6.12/second.patch", " }\n \n", " }\n \n int rmap_11(void)\n")
    error = fails(QuellError, "hooks that do not apply: second$", apply, source, kernel)
    assert "patch failed: mm/rmap.c:50" in error.detail and "\treturn 10;" in error.detail


def test_kernel_part_that_does_not_fit(source: Source, kernel: Path) -> None:
    (kernel / "files/mm/vmscan.c").write_text("mine\n")
    fails(QuellError, "kernel/files/mm/vmscan.c", apply, source, kernel)
    (kernel / "hooks/6.12/second.patch").unlink()
    fails(QuellError, "names second.patch", apply, source, kernel)


def test_parse_hook() -> None:
    hook = tree.parse_hook("first", FIRST)
    assert hook.header.endswith("--- not a file\n\n")
    assert list(hook.sections) == ["mm/Kconfig", "mm/rmap.c"]
    assert hook.text() == FIRST
    # A removed line may look like the name of a file.
    text = "--- a/f\n+++ b/f\n@@ -1,2 +1,1 @@\n--- a/g\n-++ b/g\n+z\n--- a/h\n+++ b/h\n@@ -1 +1 @@\n-a\n+b\n"
    assert list(tree.parse_hook("p", text).sections) == ["f", "h"]
    for text, says in (("prose\n", "changes no file"), ("--- a/f\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n", "not name one file")):
        fails(QuellError, says, tree.parse_hook, "bad", text)


def test_git_tree(source: Source, kernel: Path, dest: Path) -> None:
    assert git(dest, "rev-list", "--count", "HEAD") == "1\n"
    assert set(git(dest, "diff", "--name-only").split()) == {"mm/Kconfig", "mm/luf.c", "mm/rmap.c"}
    assert "lazy" not in git(dest, "show", "HEAD:mm/rmap.c")
    assert "up to date" in tree.make_git_tree(dest, source, kernel=kernel)
    # Another source needs force.
    other = Source("6.12.8", source.tree, "fake-2")
    fails(UsageError, "another kernel source", tree.make_git_tree, dest, other, kernel=kernel)
    tree.make_git_tree(dest, other, kernel=kernel, force=True)
    assert "up to date" in tree.make_git_tree(dest, other, kernel=kernel)


def test_newer_tree_of_the_users(source: Source, kernel: Path, tmp_path: Path, capsys: Capture) -> None:
    edit(source.tree / "mm/rmap.c", "int rmap_5(void)", "/* new */\nint rmap_5(void)")
    tree.make_git_tree(tmp_path / "a", source, kernel=kernel)
    err = capsys.readouterr().err
    assert "second: mm/rmap.c:51: moved by +1, int rmap_9(void)\n" in err
    assert "\n3 hunks apply, 1 of them at another place\n" in err
    # The error names every hook that fails, not just the first.
    (source.tree / "mm/Kconfig").unlink()
    edit(source.tree / "mm/rmap.c", "\treturn 10;", "\treturn 10 + 0;")
    newer, says = Source("6.12.9", source.tree, "user-2"), "do not apply: first, second"
    error = fails(QuellError, says, tree.make_git_tree, tmp_path / "b", newer, kernel=kernel)
    assert "mm/Kconfig: No such file" in error.detail and "+\tlazy();" not in error.detail
    assert not (tmp_path / "b").exists() and not list(tmp_path.glob(".tmp-*"))


def test_round_trip(source: Source, kernel: Path, dest: Path) -> None:
    assert tree.refresh(dest, kernel=kernel) == []
    first, second = (kernel / "hooks/6.12/first.patch"), (kernel / "hooks/6.12/second.patch")
    assert (first.read_text(), second.read_text()) == (FIRST, SECOND)
    edit(dest / "mm/rmap.c", "\treturn 5;", "\tmore();\n\treturn 5;")
    edit(dest / "mm/luf.c", "luf", "lazy unmap flush")
    write_files(dest, {"include/luf.h": "#define LUF\n", "mm/junk.o": "a build product"})
    assert tree.refresh(dest, kernel=kernel) == [
        "wrote kernel/files/include/luf.h", "wrote kernel/files/mm/luf.c",
        "wrote kernel/hooks/6.12/second.patch",
    ]  # fmt: skip
    # Two patches touch rmap.c: the last one gets the edit, the other does not change.
    assert first.read_text() == FIRST
    text = second.read_text()
    assert text.startswith("second: hooks rmap further down\n\n--- a/mm/rmap.c\n+++ b/mm/rmap.c\n@@")
    assert "+\tmore();" in text and "+\tlazy();" in text
    assert "diff --git" not in text and "\nindex " not in text
    (dest / "mm/junk.o").unlink()
    same_from_scratch(dest, source, kernel)
    assert tree.refresh(dest.with_name("again"), kernel=kernel) == []
    assert second.read_text() == text


def test_round_trip_removals(source: Source, kernel: Path, dest: Path) -> None:
    (dest / "mm/luf.c").unlink()
    edit(dest / "mm/rmap.c", "\tlazy();\n", "")
    assert "removed kernel/files/mm/luf.c" in tree.refresh(dest, kernel=kernel)
    assert not (kernel / "hooks/6.12/second.patch").exists()
    assert (kernel / "hooks/6.12/series").read_text() == "# the order counts\nfirst.patch\n"
    same_from_scratch(dest, source, kernel)


def test_linux_file_without_a_patch(source: Source, kernel: Path, dest: Path) -> None:
    edit(dest / "mm/vmscan.c", "/* line 20 */", "/* hooked */")
    edit(dest / "mm/rmap.c", "\treturn 5;", "\treturn 55;")
    before = contents(kernel)
    error = fails(UsageError, "--patch NAME", tree.refresh, dest, kernel=kernel)
    assert "mm/vmscan.c" in error.detail and "rmap" not in error.detail
    assert contents(kernel) == before
    tree.refresh(dest, patch="third", kernel=kernel)
    text = (kernel / "hooks/6.12/third.patch").read_text()
    assert text.startswith("third: ") and "+/* hooked */" in text and "rmap" not in text
    assert (kernel / "hooks/6.12/series").read_text().endswith("second.patch\nthird.patch\n")
    same_from_scratch(dest, source, kernel)


def test_take_moves_new_edits_only(source: Source, kernel: Path, dest: Path) -> None:
    edit(dest / "mm/rmap.c", "\treturn 5;", "\treturn 55;")
    tree.refresh(dest, patch="third", take=["mm/rmap.c"], kernel=kernel)
    assert (kernel / "hooks/6.12/second.patch").read_text() == SECOND
    assert "return 55" in (kernel / "hooks/6.12/third.patch").read_text()
    same_from_scratch(dest, source, kernel)
    fails(UsageError, "not changed", tree.refresh, dest, patch="third", take=["mm/vmscan.c"], kernel=kernel)
    fails(UsageError, "comes before", tree.refresh, dest, patch="first", take=["mm/rmap.c"], kernel=kernel)
    fails(UsageError, "name of a patch", tree.refresh, dest, patch="../x", kernel=kernel)


def test_unsaved_changes_are_kept(source: Source, kernel: Path, dest: Path) -> None:
    edit(dest / "mm/rmap.c", "\treturn 5;", "\treturn 55;")
    error = fails(UsageError, "--refresh", tree.make_git_tree, dest, source, kernel=kernel)
    assert "mm/rmap.c" in error.detail
    assert "return 55;" in (dest / "mm/rmap.c").read_text()
    tree.make_git_tree(dest, source, kernel=kernel, force=True)
    assert "return 55;" not in (dest / "mm/rmap.c").read_text()
    # Committed work is refreshed too.
    edit(dest / "mm/rmap.c", "\treturn 5;", "\treturn 55;")
    git(dest, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qam", "work")
    assert tree.refresh(dest, kernel=kernel) == ["wrote kernel/hooks/6.12/second.patch"]


def test_unedited_tree_follows_kernel(source: Source, kernel: Path, dest: Path) -> None:
    write_files(kernel, {"files/mm/luf.c": "/* newer */\n", "hooks/6.12/series": "second.patch\n"})
    # Refreshing now would undo later changes of kernel/.
    fails(UsageError, "kernel/ has changed", tree.refresh, dest, kernel=kernel)
    tree.make_git_tree(dest, source, kernel=kernel)
    same_from_scratch(dest, source, kernel)


def test_what_is_refused(source: Source, kernel: Path, dest: Path, tmp_path: Path) -> None:
    write_files(tmp_path, {"mine/file": "mine"})
    says = "not a tree made by"
    fails(UsageError, says, tree.make_git_tree, tmp_path / "mine", source, kernel=kernel, force=True)
    fails(UsageError, "there is no tree at", tree.refresh, tmp_path / "nowhere", kernel=kernel)
    before = contents(kernel)
    (dest / "mm/rmap.c").write_bytes(b"\xff\0")
    fails(UsageError, "cannot hold the change of mm/rmap.c", tree.refresh, dest, kernel=kernel)
    assert contents(kernel) == before
