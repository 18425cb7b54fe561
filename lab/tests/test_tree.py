# SPDX-License-Identifier: GPL-2.0-only
"""Applying Quell, and the round trip: tree, edit, refresh, tree from scratch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from quell import tree
from quell.errors import QuellError, UsageError
from quell.source import Source

from conftest import FIRST, SECOND


def contents(root: Path) -> dict[str, tuple[bytes, bool]]:
    """Every file of a tree, except git's."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git/" not in f"{path.relative_to(root)}/"
    }


def git(root: Path, *args: str) -> str:
    return subprocess.run(
        ["git", *args], cwd=root, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def dest(source: Source, kernel: Path, tmp_path: Path) -> Path:
    """A git tree of the small kernel part."""
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
    return {path: data.content.decode() for path, data in overlay.items() if data is not None}


def test_apply(source: Source, kernel: Path) -> None:
    # git apply silently skips files if it takes the outer repository for its own.
    git(source.tree.parent, "init", "-q")
    wrote = apply(source, kernel)
    assert sorted(wrote) == ["mm/Kconfig", "mm/luf.c", "mm/rmap.c"]
    assert "return 100;" in wrote["mm/rmap.c"] and "lazy();" in wrote["mm/rmap.c"]


def test_hook_that_moves_says_nothing(source: Source, kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(source.tree / "mm/rmap.c", "int rmap_5(void)", "/* new */\n\nint rmap_5(void)")
    assert "lazy();" in apply(source, kernel)["mm/rmap.c"]
    assert capsys.readouterr().err == ""


def test_hook_that_strays(
    source: Source, kernel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(source.tree / "mm/rmap.c", "int rmap_5(void)", "/* new */\nint rmap_5(void)")
    edit(source.tree / "mm/rmap.c", "int rmap_9(void)", "int other(void)")
    apply(source, kernel)
    err = capsys.readouterr().err
    assert "warning: hook second.patch applied to mm/rmap.c, line 51, near other and not rmap_9" in err


def test_hook_that_does_not_apply(source: Source, kernel: Path) -> None:
    edit(source.tree / "mm/rmap.c", "\treturn 10;", "\treturn 10 + 0;")
    with pytest.raises(QuellError) as caught:
        apply(source, kernel)
    assert "second.patch" in caught.value.message and "mm/rmap.c" in caught.value.message
    assert "+\tlazy();" in caught.value.detail  # the hook's text
    assert "return 10 + 0;" in caught.value.detail  # the tree's text


def test_fuzz_is_not_allowed(source: Source, kernel: Path) -> None:
    # One line of context, three away from the change: patch(1) would apply it.
    edit(source.tree / "mm/rmap.c", "int rmap_11(void)", "long rmap_11(void)")
    edit(kernel / "hooks/6.12/second.patch", "@@ -50,6 +50,7", "@@ -50,7 +50,8")
    with (kernel / "hooks/6.12/second.patch").open("a") as patch:
        patch.write(" int rmap_11(void)\n")
    with pytest.raises(QuellError, match="second.patch does not apply to mm/rmap.c"):
        apply(source, kernel)


def test_hook_into_a_missing_file(source: Source, kernel: Path) -> None:
    (source.tree / "mm/Kconfig").unlink()
    with pytest.raises(QuellError, match="first.patch does not apply to mm/Kconfig"):
        apply(source, kernel)


def test_new_file_over_linux_own(source: Source, kernel: Path) -> None:
    (kernel / "files/mm/vmscan.c").write_text("mine\n")
    with pytest.raises(QuellError, match="kernel/files/mm/vmscan.c"):
        apply(source, kernel)


def test_series_names_a_missing_patch(source: Source, kernel: Path) -> None:
    (kernel / "hooks/6.12/second.patch").unlink()
    with pytest.raises(QuellError, match="names second.patch"):
        apply(source, kernel)


def test_parse_hook() -> None:
    hook = tree.parse_hook("first.patch", FIRST)
    assert hook.header.endswith("--- not a file\n\n")
    assert list(hook.sections) == ["mm/Kconfig", "mm/rmap.c"]
    assert hook.text() == FIRST


def test_parse_removed_line_that_looks_like_a_file() -> None:
    text = "x\n\n--- a/f\n+++ b/f\n@@ -1,2 +1,1 @@\n--- a/g\n-++ b/g\n+z\n--- a/h\n+++ b/h\n@@ -1 +1 @@\n-a\n+b\n"
    hook = tree.parse_hook("p", text)
    assert list(hook.sections) == ["f", "h"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("only prose\n", "changes no file"),
        ("--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n", "cut short"),
        ("--- a/f\n+++ b/f\n", "no hunk"),
        ("--- a/f\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n", "two different"),
    ],
)
def test_malformed_hooks(text: str, message: str) -> None:
    with pytest.raises(QuellError, match=message):
        tree.parse_hook("bad.patch", text)


def test_git_tree(source: Source, kernel: Path, dest: Path) -> None:
    assert git(dest, "rev-list", "--count", "HEAD") == "1\n"
    assert set(git(dest, "diff", "--name-only").split()) == {"mm/Kconfig", "mm/luf.c", "mm/rmap.c"}
    assert "lazy" not in git(dest, "show", "HEAD:mm/rmap.c")
    assert "up to date" in tree.make_git_tree(dest, source, kernel=kernel)


def test_newer_tree_of_the_users(
    source: Source, kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(source.tree / "mm/rmap.c", "int rmap_5(void)", "/* new */\nint rmap_5(void)")
    tree.make_git_tree(tmp_path / "a", Source("6.12.9", source.tree, "user-1"), kernel=kernel)
    err = capsys.readouterr().err
    assert "first.patch: 2 hunks: 2 where expected, 0 moved, 0 failed\n" in err
    assert "second.patch: 1 hunk: 0 where expected, 1 moved, 0 failed\n" in err
    assert "  mm/rmap.c:51: moved by +1, rmap_9\n" in err
    # The error names every hook that fails, not just the first.
    (source.tree / "mm/Kconfig").unlink()
    edit(source.tree / "mm/rmap.c", "\treturn 10;", "\treturn 10 + 0;")
    with pytest.raises(QuellError, match="hooks first.patch, second.patch do not apply") as caught:
        tree.make_git_tree(tmp_path / "b", Source("6.12.9", source.tree, "user-2"), kernel=kernel)
    assert "mm/Kconfig: there is no such file" in caught.value.detail
    assert "return 10 + 0;" in caught.value.detail
    assert not (tmp_path / "b").exists() and not list(tmp_path.glob(".tmp-*"))


def test_round_trip(source: Source, kernel: Path, dest: Path) -> None:
    assert tree.refresh(dest, kernel=kernel) == []
    first, second = (kernel / "hooks/6.12/first.patch"), (kernel / "hooks/6.12/second.patch")
    assert (first.read_text(), second.read_text()) == (FIRST, SECOND)

    edit(dest / "mm/rmap.c", "\treturn 5;", "\tmore();\n\treturn 5;")
    edit(dest / "mm/luf.c", "luf", "lazy unmap flush")
    (dest / "include").mkdir()
    (dest / "include/luf.h").write_text("#define LUF\n")
    (dest / "mm/junk.o").write_text("a build product")
    done = tree.refresh(dest, kernel=kernel)
    assert done == [
        "added kernel/files/include/luf.h",
        "wrote kernel/files/mm/luf.c",
        "wrote kernel/hooks/6.12/second.patch",
    ]
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
    done = tree.refresh(dest, kernel=kernel)
    assert "removed kernel/files/mm/luf.c" in done
    assert not (kernel / "hooks/6.12/second.patch").exists()
    assert (kernel / "hooks/6.12/series").read_text() == "# the order counts\nfirst.patch\n"
    assert not (kernel / "files/mm").exists()
    same_from_scratch(dest, source, kernel)


def test_linux_file_without_a_patch(source: Source, kernel: Path, dest: Path) -> None:
    edit(dest / "mm/vmscan.c", "/* line 20 */", "/* hooked */")
    edit(dest / "mm/rmap.c", "\treturn 5;", "\treturn 55;")
    before = contents(kernel)
    with pytest.raises(UsageError, match="--patch NAME") as caught:
        tree.refresh(dest, kernel=kernel)
    assert "mm/vmscan.c" in caught.value.detail and "rmap" not in caught.value.detail
    assert contents(kernel) == before

    tree.refresh(dest, patch="third", kernel=kernel)
    text = (kernel / "hooks/6.12/third.patch").read_text()
    assert "+/* hooked */" in text and "rmap" not in text
    assert text.startswith("third: ")
    assert (kernel / "hooks/6.12/series").read_text().endswith("second.patch\nthird.patch\n")
    same_from_scratch(dest, source, kernel)


def test_take_moves_new_edits_only(source: Source, kernel: Path, dest: Path) -> None:
    edit(dest / "mm/rmap.c", "\treturn 5;", "\treturn 55;")
    tree.refresh(dest, patch="third", take=["mm/rmap.c"], kernel=kernel)
    assert (kernel / "hooks/6.12/second.patch").read_text() == SECOND
    assert "return 55" in (kernel / "hooks/6.12/third.patch").read_text()
    same_from_scratch(dest, source, kernel)
    with pytest.raises(UsageError, match="not changed"):
        tree.refresh(dest, patch="third", take=["mm/vmscan.c"], kernel=kernel)
    with pytest.raises(UsageError, match="comes before"):
        tree.refresh(dest, patch="first", take=["mm/rmap.c"], kernel=kernel)
    with pytest.raises(UsageError, match="name of a patch"):
        tree.refresh(dest, patch="../x", kernel=kernel)


def test_committed_work_is_refreshed_too(kernel: Path, dest: Path) -> None:
    edit(dest / "mm/rmap.c", "\treturn 5;", "\treturn 55;")
    git(dest, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qam", "work")
    assert tree.refresh(dest, kernel=kernel) == ["wrote kernel/hooks/6.12/second.patch"]


def test_unsaved_changes_are_kept(source: Source, kernel: Path, dest: Path) -> None:
    edit(dest / "mm/rmap.c", "\treturn 5;", "\treturn 55;")
    with pytest.raises(UsageError, match="--refresh") as caught:
        tree.make_git_tree(dest, source, kernel=kernel)
    assert "mm/rmap.c" in caught.value.detail
    assert "return 55;" in (dest / "mm/rmap.c").read_text()
    tree.make_git_tree(dest, source, kernel=kernel, force=True)
    assert "return 55;" not in (dest / "mm/rmap.c").read_text()


def test_unedited_tree_follows_kernel(source: Source, kernel: Path, dest: Path) -> None:
    (kernel / "files/mm/luf.c").write_text("/* newer */\n")
    (kernel / "hooks/6.12/series").write_text("second.patch\n")
    # Refreshing now would undo later changes of kernel/.
    with pytest.raises(UsageError, match="kernel/ has changed"):
        tree.refresh(dest, kernel=kernel)
    tree.make_git_tree(dest, source, kernel=kernel)
    same_from_scratch(dest, source, kernel)


def test_other_folders_are_refused(source: Source, kernel: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("mine")
    with pytest.raises(UsageError, match="not a tree made by"):
        tree.make_git_tree(tmp_path / "mine", source, kernel=kernel, force=True)
    with pytest.raises(UsageError, match="not a tree made by"):
        tree.refresh(tmp_path / "nowhere", kernel=kernel)


def test_another_source_needs_force(source: Source, kernel: Path, dest: Path) -> None:
    other = Source("6.12.8", source.tree, "fake-2")
    with pytest.raises(UsageError, match="another kernel source"):
        tree.make_git_tree(dest, other, kernel=kernel)
    tree.make_git_tree(dest, other, kernel=kernel, force=True)
    assert "up to date" in tree.make_git_tree(dest, other, kernel=kernel)


def test_changed_permissions_are_refused(kernel: Path, dest: Path) -> None:
    (dest / "mm/rmap.c").chmod(0o755)
    with pytest.raises(UsageError, match="permissions"):
        tree.refresh(dest, kernel=kernel)


def test_kernel_part_of_this_repository_is_well_formed() -> None:
    part = tree.read_kernel_part(tree.kernel_dir())
    for hook in part.hooks:
        assert hook.header.strip(), f"{hook.name} says nothing about itself"
        assert sorted(hook.sections) == list(hook.sections)
