# SPDX-License-Identifier: GPL-2.0-only
"""Every hook has a test or a counter that shows that it is reached, and none is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quell import hooks, placement, tree
from quell.errors import QuellError
from quell.paths import repo_root

from conftest import FIRST, RMAP

LAB = repo_root() / "lab/quell"
WORKLOADS = repo_root() / "workloads"


def test_every_hook_of_this_repository() -> None:
    assert hooks.wrong(tree.kernel_dir(), LAB, WORKLOADS) == []


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A copy of the kernel part, to be spoilt."""
    shutil.copytree(tree.kernel_dir(), tmp_path / "own")
    return tmp_path / "own"


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        # A hook more, one less, one that moved to another function.
        ("patches/zap_batch.patch", "@@ -1565,7 +1566,8 @@", "@@ -1,1 +1,2 @@ int f(void)\n x\n+new();\n@@ -1565,7 +1566,8 @@",
         "does not say what shows that this is reached: zap_batch: mm/memory.c: new(); @ f"),
        ("patches/concurrent.patch", "+\tif (!quell_concurrent())\n", "+\tif (other())\n",
         "if (!quell_concurrent()): no hunk of that patch has it"),
        ("patches/luf.patch", "static vm_fault_t do_wp_page(", "static vm_fault_t elsewhere(",
         "luf_write_fault(vma->vm_mm); @ do_wp_page: no hunk"),
        # What shows them is gone.
        ("files/tools/testing/selftests/quell/luf_stale.c", '"remap"', '"x"',
         "there is no selftest luf_stale remap"),
        ("files/include/linux/quell_mutants.h", "M(LUF_NO_PENDING)", "M(LUF_PENDING)",
         "there is no mutant LUF_NO_PENDING"),
        ("files/mm/tests/rmap_batch-kunit.h", "KUNIT_CASE(rmap_record_test)", "",
         "there is no kunit rmap_record_test"),
        ("patches/luf.patch", '"luf_write",', '"luf_fault",', "there is no counter luf_write"),
        # The table itself.
        ("hooks.toml", '["vm btrfs"]', '["vm jfs"]', "there is no vm jfs"),
        ("hooks.toml", '["vm btrfs"]', '["export btrfs"]', "there is no export btrfs"),
        ("hooks.toml", '["vm btrfs"]', '["magic btrfs"]', "is of no known kind"),
        ("hooks.toml", '"calls files xfs_fs_map_blocks', '"calls file xfs_fs_map_blocks', "there is no calls file"),
        ("hooks.toml", 'xfs_fs_map_blocks luf_exclude', 'xfs_fs_map_blocks luf_drain', "there is no calls files"),
        ("hooks.toml", '["vm btrfs"]', '["vm"]', "names nothing"),
        ("hooks.toml", '["build parked_folios"]', '["build shrink_folio_list"]', "there is no build"),
        ("hooks.toml", '["workload reclaim-large"]', '["workload x"]', "there is no workload x"),
    ],
)  # fmt: skip
def test_what_is_lost_is_found(own: Path, file: str, old: str, new: str, message: str) -> None:
    path = own / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    said = hooks.wrong(own, LAB, WORKLOADS)
    assert any(message in line for line in said), said


@pytest.mark.parametrize("text", ["[x", "x = 1\n", '[p."f"]\n"a" = "counter x"\n', '[p."f"]\n"a" = []\n'])
def test_bad_table(text: str) -> None:
    with pytest.raises(QuellError, match="hooks.toml cannot be used"):
        hooks.entries(text)


# --- Where hunks land ---------------------------------------------------------


def survey(kernel: Path, rmap: str | None) -> list[placement.Placed]:
    def pristine(path: str) -> tree.FileData | None:
        text = rmap if path == "mm/rmap.c" else "menu mm\nendmenu\n"
        return None if text is None else tree.FileData(text.encode())

    return tree.survey(tree.read_kernel_part(kernel), pristine)


def test_as_expected(kernel: Path) -> None:
    placed = survey(kernel, RMAP)
    assert [(entry.path, entry.at, entry.moved, entry.strayed) for entry in placed] == [
        ("mm/Kconfig", 1, 0, False), ("mm/rmap.c", 1, 0, False), ("mm/rmap.c", 50, 0, False),
    ]  # fmt: skip
    assert placement.report(placed) == [
        "first.patch: 2 hunks: 2 where expected, 0 moved, 0 failed",
        "second.patch: 1 hunk: 1 where expected, 0 moved, 0 failed",
    ]


def test_moved(kernel: Path) -> None:
    lines = placement.report(survey(kernel, RMAP.replace("int rmap_5", "/* a */\n/* b */\nint rmap_5")))
    assert lines[1:] == [
        "second.patch: 1 hunk: 0 where expected, 1 moved, 0 failed",
        "  mm/rmap.c:52: moved by +2, rmap_9",
    ]


def test_strayed(kernel: Path) -> None:
    # The same lines, but now another function comes before.
    text = RMAP.replace("int rmap_7(void)", "/* more */\nint rmap_7(void)")
    text = text.replace("int rmap_9(void)", "int other(int x)")
    placed = survey(kernel, text)
    assert placed[-1].strayed and placed[-1].moved == 1
    report = "\n".join(placement.report(placed))
    assert "into another place: near other, not rmap_9" in report
    assert "    +\tlazy();" in report and "        52 int rmap_10(void)" in report


def test_failed(kernel: Path) -> None:
    text = RMAP.replace("\treturn 10;", "\treturn 10 + 0;").replace("int rmap_0(void)\n{", "int rmap_0(int x)\n{")
    placed = survey(kernel, text)
    assert [entry.at for entry in placed] == [1, None, None]
    report = "\n".join(placement.report(placed))
    assert "return 10 + 0;" in report and "2 hunks: 1 where expected, 0 moved, 1 failed" in report


def test_fuzz_is_a_hint(kernel: Path) -> None:
    placed = survey(kernel, RMAP.replace("\n\nint rmap_10(void)", "\n/* x */\nint rmap_10(void)"))
    assert placed[-1].at is None
    assert placed[-1].hint == "without 1 line of context at either end it fits at line 51"
    assert any("/* x */" in line for line in placed[-1].around)


def test_file_that_is_gone(kernel: Path) -> None:
    placed = survey(kernel, None)
    assert [entry.at for entry in placed] == [1, None, None]
    assert "mm/rmap.c: there is no such file" in "\n".join(placement.report(placed))


def test_hunks_and_functions() -> None:
    section = tree.parse_hook("first.patch", FIRST).sections["mm/rmap.c"]
    (hunk,) = placement.hunks(section)
    assert (hunk.line, hunk.function, hunk.added) == (1, "", ["return 100;"])
    assert placement.function_name("static __latent_entropy int dup_mmap(struct mm_struct *mm,") == "dup_mmap"
    assert placement.function_name("enum node_stat_item {") == "enum node_stat_item {"
    lines = ["int f(void)", "{", "out:", "\tx();", "}"]
    assert placement.enclosing(lines, 5, "a.c") == "f"
    assert placement.enclosing(["config A", "\tbool", "\thelp"], 3, "mm/Kconfig") == "config A"
