# SPDX-License-Identifier: GPL-2.0-only
"""Quell in many configurations, with a fake make: commands, comparison with stock, clean ones."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from guests import Patch
from checks import check_builds as builds, configurations, own_code
from checks.configurations import CONFIGURATIONS, MECHANISMS, Configuration
from quell import prereq, source as source_module, tree
from quell.errors import QuellError, UsageError
from quell.paths import Cache, repo_root
from quell.source import Source

from conftest import Fake, fails, write_files

Run = Callable[[Configuration], list[str]]
QUELL = Configuration("quell", sparse=True, name="quell")
OFF = Configuration("stock", "QUELL=n", link=True, name="off")

# A C file has its own warnings and errors: lines `warn TEXT`, `sparse TEXT`, `bad TEXT`.
MAKE = r"""
for word; do case $word in
O=*) obj=${word#O=} ;;
KCONFIG_ALLCONFIG=*) all=${word#*=} ;;
dir=*) dir=${word#*=} ;;
esac; done
echo "$@" >>"$CALLS"
say() { grep -n "^$1 " "$obj/../$2" | sed "s,^\([0-9]*\):$1 ,../$2:\1:5: $3: ,"; }
case "$*" in
*quell-list*) cat "../$dir/LIST"; exit 0 ;;
*allnoconfig*) grep -v '=n$' "$all" | sort -u >"$obj/.config"; exit 0 ;;
*olddefconfig* | *prepare*) exit 0 ;;
*defconfig*) echo CONFIG_DEF=y >"$obj/.config"; exit 0 ;;
*vmlinux*) [ -e "$UNDEFINED" ] || exit 0
	echo "ld: mm/luf.o: undefined reference to \`gone'"; exit 2 ;;
esac
code=0
for word; do case $word in *.o)
	mkdir -p "$(dirname "$obj/$word")"
	say warn "${word%.o}.c" warning
	case "$*" in *C=1*) say sparse "${word%.o}.c" warning ;; esac
	if say bad "${word%.o}.c" error | grep .; then code=2; else touch "$obj/$word"; fi ;;
esac; done
exit $code
"""


@pytest.fixture
def run(
    source: Source, kernel: Path, cache: Cache, fake_program: Fake,
    monkeypatch: Patch, tmp_path: Path,
) -> Run:  # fmt: skip
    """The new warnings of a configuration, with the fake kernel."""
    fake_program("make", MAKE)
    fake_program("sparse", "echo 0.6.4")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("UNDEFINED", str(tmp_path / "undefined"))
    monkeypatch.setattr(source_module, "debian_source", lambda cache, linux: source)
    monkeypatch.setattr(tree, "kernel_dir", lambda: kernel)
    write_files(source.tree, {"mm/Makefile": "", "mm/LIST": "rmap.o\nluf.o\nvmscan.o\n"})
    return lambda one: builds.new_warnings(one, "6.12", cache)


def calls(tmp_path: Path) -> list[str]:
    """The command lines of make since the last look."""
    path = tmp_path / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    path.write_text("")
    return lines


def test_clean_and_kept(run: Run, kernel: Path, tmp_path: Path) -> None:
    assert run(QUELL) == run(OFF) == []
    first = calls(tmp_path)
    # Quell's file and the one with hooks; a file without hooks is not compiled.
    compiled = [line.partition(" W=1 ")[2] for line in first if " W=1 " in line]
    assert compiled == ["C=1 -k mm/luf.o mm/rmap.o", "C=0 -k mm/luf.o mm/rmap.o"]
    assert sum(line.endswith(" vmlinux") for line in first) == 1
    assert "builds-stock" not in "".join(first)
    assert run(QUELL) == run(OFF) == calls(tmp_path) == []
    (kernel / "files/mm/luf.c").write_text("/* newer */\n")
    assert run(OFF) == [] and sum(" W=1 " in line for line in calls(tmp_path)) == 1
    # Not compiled into a kernel.
    write_files(kernel, {"files/tools/x.c": "int main;\n"})
    assert run(OFF) == calls(tmp_path) == []


def test_what_stock_says_too_does_not_count(run: Run, source: Source, kernel: Path, tmp_path: Path) -> None:
    rmap = source.tree / "mm/rmap.c"
    rmap.write_text(rmap.read_text() + "warn old\nsparse context\n")
    assert run(QUELL) == []
    assert any("builds-stock" in line for line in calls(tmp_path))
    (kernel / "files/mm/luf.c").write_text("\nwarn unused\nsparse lock\n")
    for _ in range(2):
        assert run(QUELL) == ["mm/luf.c:2:5: warning: unused", "mm/luf.c:3:5: warning: lock"]
        assert calls(tmp_path) != []


def test_errors_leave_no_mark_of_success(run: Run, kernel: Path, tmp_path: Path) -> None:
    (kernel / "files/mm/luf.c").write_text("bad implicit declaration\n")
    for _ in range(2):
        error = fails(QuellError, "does not compile", run, QUELL)
        assert "mm/luf.c:1:5: error: implicit declaration" in error.detail
    (kernel / "files/mm/luf.c").write_text("/* luf */\n")
    assert run(QUELL) == []
    # A missing symbol shows at link.
    (tmp_path / "undefined").touch()
    assert "undefined reference" in fails(QuellError, "does not link", run, OFF).detail


def test_cut_off(run: Run, kernel: Path, cache: Cache) -> None:
    assert run(QUELL) == []
    obj = cache.work / "builds-quell/src/obj-x86_64"
    assert not (obj / "building").exists()
    write_files(obj, {"building": "", "half.o": ""})
    (kernel / "files/mm/luf.c").write_text("/* newer */\n")
    assert run(QUELL) == []
    assert not (obj / "half.o").exists()


def test_configurations_that_are_not_built(run: Run, cache: Cache, monkeypatch: Patch) -> None:
    # The fake make drops =n but not the =y of lab.config before it.
    fails(QuellError, "Linux does not take SMP=n", run, Configuration("quell", "SMP=n GONE=m", name="x"))

    def refuse(wanted: object) -> None:
        if wanted != prereq.BUILD:
            raise UsageError("Debian packages are missing: sparse")

    monkeypatch.setattr(prereq, "ensure", refuse)
    with pytest.raises(pytest.skip.Exception, match="missing: sparse"):
        builds.test_build(QUELL, "6.12", cache)


def test_warnings_go_by_file_and_text() -> None:
    x, objtool = "5: warning: x [-Wx]", "vmlinux.o: warning: objtool: f"
    stock = [f"mm/a.c:3:{x}", f"{objtool}+0x12: y"]
    ours = [f"mm/a.c:9:{x}", f"mm/a.c:12:{x}", f"mm/b.c:3:{x}", f"{objtool}+0x20: y"]
    assert builds.without_known(ours, stock) == ours[1:3]
    # They are found in the output of make.
    output = (
        "  CC      mm/a.o\n../mm/a.c: In function 'f':\n"
        "../mm/a.c:3:5: warning: x [-Wx]\n    3 |  f();\n../mm/a.c:3:5: warning: x [-Wx]\n"
        "../mm/a.c:4: warning: Function parameter 'y' not described\nWarning: ../mm/a.c:5 No description of 'z'\n"
        "../../arch/x86/b.h:1:1: error: bad\nld: warning: c has a LOAD segment\n"
        "./include/linux/d.h:2:2: note: here\n"
    )
    assert own_code.warnings(output) == [
        "mm/a.c:3:5: warning: x [-Wx]",
        "mm/a.c:4: warning: Function parameter 'y' not described", "mm/a.c:5: warning: No description of 'z'",
        "arch/x86/b.h:1:1: error: bad",
        "ld: warning: c has a LOAD segment",
    ]


def test_what_sparse_does_not_see_is_named_by_function() -> None:
    for path in ("mm/folio_order.c", "include/linux/rcupdate.h"):
        text = f"{path}:9:2: warning: context imbalance in 'folio_order_%s' - unexpected unlock"
        assert builds._NOT_SEEN_BY_SPARSE.match(text % "run_before")
        assert not builds._NOT_SEEN_BY_SPARSE.match(text % "other")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_what_is_configured(tmp_path: Path) -> None:
    src = tmp_path / "src"
    write_files(src, {
        "scripts/Kbuild.include": "",
        "fs/Makefile": "obj-y := open.o\nobj-$(CONFIG_XFS) += xfs/\nobj-$(CONFIG_EXT4) += ext4/\n",
        "fs/xfs/Makefile": "obj-$(CONFIG_XFS) += xfs.o\nxfs-y += a.o $(addprefix scrub/, bmap.o)\n"
        "xfs-$(CONFIG_PNFS) += pnfs.o\n",
        "fs/ext4/Makefile": "obj-y += super.o\n",
        "arch/x86/Kbuild": "obj-y += mm/\n",
        "arch/x86/Makefile": "$(error not this one)\n",
        "arch/x86/mm/Makefile": "obj-y := tlb.o\nobj-$(CONFIG_EARLY) += early.o\n",
        "obj-x86_64/include/config/auto.conf": "CONFIG_XFS=m\nCONFIG_EARLY=y\n",
        "obj-x86_64/.config": "\nCONFIG_64BIT=y\n",
    })  # fmt: skip
    built = ["arch/x86/mm/early.o", "arch/x86/mm/tlb.o", "fs/open.o", "fs/xfs/a.o", "fs/xfs/scrub/bmap.o"]
    wanted = sorted([*built, "fs/ext4/super.o", "fs/xfs/pnfs.o", "nowhere/x.o"])
    assert builds.configured(CONFIGURATIONS[0], src, src / "obj-x86_64", wanted) == built


def test_objects_of_the_kernel_part() -> None:
    compiled = builds._compiled(tree.read_kernel_part(repo_root() / "kernel"))
    x86, arm = builds.objects(compiled, "x86"), builds.objects(compiled, "arm64")
    assert {"mm/luf.o", "mm/rmap.o", "arch/x86/mm/tlb.o", "arch/x86/mm/early_ack.o"} <= set(x86)
    assert [name for name in x86 if name not in arm] == [n for n in x86 if n.startswith("arch/x86/")]
    assert not any(name.startswith("tools/") for name in x86)


def test_the_table_of_configurations() -> None:
    assert len({one.name for one in CONFIGURATIONS}) == len(CONFIGURATIONS)
    kconfig = (repo_root() / "kernel/files/mm/Kconfig.quell").read_text()
    assert all(f"config QUELL_{name}\n" in kconfig for name in MECHANISMS)
    alone = {one.name: one for one in CONFIGURATIONS}["luf"]
    text = alone.fragment("6.12")
    assert "CONFIG_QUELL=y\n" in text and "CONFIG_QUELL_LUF=y\n" in text
    assert text.count("CONFIG_QUELL_") == len(MECHANISMS) == text.count("=n\n") + 1
    assert "QUELL" not in alone.fragment("6.12", quell=False)
    assert alone.refused(text) == []
    assert alone.refused("CONFIG_QUELL=y\n") == ["64BIT=y", "QUELL_LUF=y"]


def test_build_names() -> None:
    assert [one.name for one in configurations.choose(["off"])] == ["off"]
    fails(UsageError, "no configuration 'x'", configurations.choose, ["x"])
    # Configurations are skipped without their tools.
    needs = {one.name: [item.package for item in one.tools()] for one in CONFIGURATIONS}
    assert needs["arm64"] == ["sparse", "gcc-aarch64-linux-gnu"] and needs["i386"] == []
