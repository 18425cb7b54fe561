# SPDX-License-Identifier: GPL-2.0-only
"""Building with a fake make: reuse, increments, errors, interruption."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from checks import check_checkpatch as checkpatch, own_code
from checks.cases import Results
from quell import build, prereq
from quell.errors import QuellError, UsageError
from quell.paths import Cache
from quell.source import Source

from test_proc import wait_until_gone

Fake = Callable[[str, str], Path]

# Takes the O= directory from its arguments, as make does.
MAKE = r"""
for word; do case $word in O=*) obj=${word#O=} ;; KCONFIG_ALLCONFIG=*) all=${word#*=} ;; esac; done
mkdir -p "$obj"
echo "$@" >>"$CALLS"
case "$*" in
*allnoconfig*) grep -v '=n$' "$all" >"$obj/.config"; exit 0 ;;
*W=1*) echo "../mm/luf.c:3:5: warning: no previous prototype for 'x' [-Wmissing-prototypes]"
	echo "../include/linux/mm.h:9:1: warning: not ours [-Wfoo]"; exit 0 ;;
esac
printf '  HOSTCC  a\n  CC      b.o\n  LD      vmlinux\n'
"""
GOOD = """
mkdir -p "$obj/arch/x86/boot" "$obj/include/config"
cat "$obj/../mm/rmap.c" >"$obj/arch/x86/boot/bzImage"
echo map >"$obj/System.map"; echo 6.12.7-x >"$obj/include/config/kernel.release"
"""
BAD = r"""
echo "In file included from ../mm/rmap.c:1:" >&2
echo "../mm/rmap.c:12:7: error: implicit declaration of function 'lazy'" >&2
echo "   12 |       lazy();" >&2
echo "      |       ^~~~" >&2
echo "make[3]: *** [../scripts/Makefile.build:229: mm/rmap.o] Error 1" >&2
exit 2
"""


@pytest.fixture
def make(
    fake_program: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], Path]:
    calls = tmp_path / "calls"
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setattr(prereq, "missing", lambda wanted=(): [])

    def install(rest: str) -> Path:
        fake_program("make", MAKE + rest)
        calls.write_text("")
        return calls

    return install


Make = Callable[[str], Path]


def test_both_kernels(source: Source, kernel: Path, cache: Cache, make: Make) -> None:
    calls = make(GOOD)
    kernels = build.build_kernels(source, cache=cache, kernel_part=kernel)
    assert "lazy" not in kernels["stock"].image.read_text()
    assert "lazy" in kernels["quell"].image.read_text()
    assert kernels["quell"].release == "6.12.7-x"
    assert (kernels["quell"].folder / "config").read_text().split() == ["CONFIG_SMP=y", "CONFIG_QUELL=y"]
    assert "lazy" not in (source.tree / "mm/rmap.c").read_text()
    assert not (cache.work / "quell/src/obj/building").exists()

    calls.write_text("")
    again = build.build_kernels(source, cache=cache, kernel_part=kernel)
    assert again == kernels and calls.read_text() == ""
    assert build.finished_kernel("quell", source, cache, kernel) == kernels["quell"]


def test_environment_does_not_leak_in(
    source: Source, kernel: Path, cache: Cache, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCFLAGS", "-O0")
    monkeypatch.setenv("ARCH", "arm64")
    make('[ -z "${KCFLAGS+x}${ARCH+x}" ] || exit 1' + GOOD)
    build.build_kernels(source, ["stock"], cache, kernel)


def test_only_changed_files_are_rewritten(
    source: Source, kernel: Path, cache: Cache, make: Make
) -> None:
    make(GOOD)
    first = build.build_kernels(source, ["quell"], cache, kernel)["quell"]
    src = cache.work / "quell/src"
    old = {name: (src / name).stat().st_mtime_ns for name in ("mm/rmap.c", "mm/luf.c", "mm/vmscan.c")}
    time.sleep(0.01)
    (kernel / "files/mm/luf.c").write_text("/* newer */\n")
    (kernel / "hooks/6.12/series").write_text("second.patch\n")
    second = build.build_kernels(source, ["quell"], cache, kernel)["quell"]
    assert second.key != first.key and first.image.exists()
    assert (src / "mm/luf.c").read_text() == "/* newer */\n"
    # Without the first hook its files are Linux's again, with a new time for make.
    assert (src / "mm/Kconfig").read_text() == (source.tree / "mm/Kconfig").read_text()
    assert "return 100" not in (src / "mm/rmap.c").read_text()
    for name in ("mm/rmap.c", "mm/luf.c"):
        assert (src / name).stat().st_mtime_ns > old[name]
    assert (src / "mm/vmscan.c").stat().st_mtime_ns == old["mm/vmscan.c"]


def test_new_file_disappears_again(source: Source, kernel: Path, cache: Cache, make: Make) -> None:
    make(GOOD)
    build.build_kernels(source, ["quell"], cache, kernel)
    (kernel / "files/mm/luf.c").unlink()
    build.build_kernels(source, ["quell"], cache, kernel)
    assert not (cache.work / "quell/src/mm/luf.c").exists()


def test_another_source_starts_afresh(
    source: Source, kernel: Path, cache: Cache, make: Make
) -> None:
    make(GOOD)
    build.build_kernels(source, ["stock"], cache, kernel)
    (cache.work / "stock/src/obj/old.o").touch()
    other = Source("6.12.8", source.tree, "fake-2")
    build.build_kernels(other, ["stock"], cache, kernel)
    assert not (cache.work / "stock/src/obj/old.o").exists()


def test_build_error(source: Source, kernel: Path, cache: Cache, make: Make) -> None:
    make(BAD)
    with pytest.raises(QuellError, match="building the stock kernel failed") as caught:
        build.build_kernels(source, ["stock"], cache, kernel)
    assert caught.value.exit_code == 1
    assert caught.value.detail.splitlines() == [
        "mm/rmap.c:12:7: error: implicit declaration of function 'lazy'",
        "   12 |       lazy();",
        "      |       ^~~~",
    ]
    assert caught.value.log is not None and "Error 1" in caught.value.log.read_text()
    assert not list(cache.kernels.iterdir())
    # make was not killed: the next build continues with its objects.
    (cache.work / "stock/src/obj/kept.o").touch()
    make(GOOD)
    build.build_kernels(source, ["stock"], cache, kernel)
    assert (cache.work / "stock/src/obj/kept.o").exists()


def test_disk_full_while_building(source: Source, kernel: Path, cache: Cache, make: Make) -> None:
    make("echo 'cc1: fatal error: x.o: No space left on device' >&2; exit 2")
    with pytest.raises(UsageError, match="no disk space left"):
        build.build_kernels(source, ["stock"], cache, kernel)


def test_interrupted_build(
    source: Source, kernel: Path, cache: Cache, make: Make, tmp_path: Path
) -> None:
    make(f"sleep 60 & echo $! >{tmp_path}/pid; wait")

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            build.build_kernels(source, ["stock"], cache, kernel)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert wait_until_gone(int((tmp_path / "pid").read_text()))
    obj = cache.work / "stock/src/obj"
    assert (obj / "building").exists() and not list(cache.kernels.iterdir())
    (obj / "half.o").touch()
    make(GOOD)
    assert build.build_kernels(source, ["stock"], cache, kernel)["stock"].image.exists()
    assert not (obj / "half.o").exists() and not (obj / "building").exists()


def test_option_not_taken(source: Source, kernel: Path, cache: Cache, make: Make) -> None:
    (kernel / "configs/lab.config").write_text("CONFIG_SMP=y\nCONFIG_VT=n\nCONFIG_NR_CPUS=64\n")
    make(GOOD)
    build.build_kernels(source, ["stock"], cache, kernel)
    config = "CONFIG_SMP=y\n# CONFIG_LUF is not set\nCONFIG_NR_CPUS=8\nCONFIG_VT=y\n"
    fragment = "CONFIG_SMP=y\nCONFIG_LUF=y\nCONFIG_NR_CPUS=64\nCONFIG_VT=n\nCONFIG_GONE=y\n"
    assert build.refused_options(fragment, config) == ["CONFIG_LUF", "CONFIG_NR_CPUS", "CONFIG_GONE"]
    assert build.refused_options("CONFIG_LUF=y\nCONFIG_LUF=n\n", config) == []


def test_configuration_error_names_the_options(
    source: Source, kernel: Path, cache: Cache, fake_program: Fake, make: Make
) -> None:
    make("")
    fake_program("make", 'for w; do case $w in O=*) : >"${w#O=}/.config" ;; esac; done')
    with pytest.raises(QuellError, match="CONFIG_SMP, CONFIG_QUELL"):
        build.build_kernels(source, ["quell"], cache, kernel)


def test_no_hooks(source: Source, kernel: Path, cache: Cache, make: Make) -> None:
    make(GOOD)
    (kernel / "hooks/6.12/series").write_text("# none yet\n")
    build.build_kernels(source, ["stock"], cache, kernel)
    with pytest.raises(QuellError, match="no hooks found"):
        build.build_kernels(source, ["quell"], cache, kernel)


def test_hook_that_does_not_apply(source: Source, kernel: Path, cache: Cache, make: Make) -> None:
    make(GOOD)
    (source.tree / "mm/rmap.c").write_text("int other;\n")
    with pytest.raises(QuellError, match="hooks first.patch, second.patch do not apply to mm/rmap.c"):
        build.build_kernels(source, ["quell"], cache, kernel)


def test_awkward_places(source: Source, kernel: Path, tmp_path: Path, make: Make) -> None:
    make(GOOD)
    with pytest.raises(UsageError, match="without spaces and colons"):
        build.build_kernels(source, ["stock"], Cache(tmp_path / "a b"), kernel)
    with pytest.raises(UsageError, match="no kernel 'vax'"):
        build.build_kernels(source, ["vax"], Cache(tmp_path / "c"), kernel)


def test_w1(source: Source, kernel: Path, cache: Cache, make: Make) -> None:
    make(GOOD)
    count, warnings = own_code.w1_warnings(source, cache, kernel)
    assert count == 1
    assert warnings == [
        "mm/luf.c:3:5: warning: no previous prototype for 'x' [-Wmissing-prototypes]"
    ]
    assert own_code.own_objects(["mm/luf.c", "mm/a.h", "tools/testing/x.c"]) == ["mm/luf.o"]


def test_w1_installs_what_it_needs(
    source: Source, kernel: Path, cache: Cache, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a new machine this is the first compilation."""
    asked: list[object] = []
    make(GOOD)
    monkeypatch.setattr(prereq, "ensure", asked.extend)
    own_code.w1_warnings(source, cache, kernel)
    assert set(prereq.BUILD) <= set(asked)


def test_checkpatch(source: Source, kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = source.tree / "scripts/checkpatch.pl"
    script.write_text(
        'my $f = $ARGV[-1]; if ($f =~ /luf/) { print "$f:1: WARNING:X: odd\\n"; exit 1 } exit 0;\n'
    )
    monkeypatch.setattr(checkpatch.source, "VERSIONS", ("6.12",))
    results = Results()
    checkpatch.check_all(results, source, kernel, tmp_path)
    assert {case.name: case.why for case in results.cases} == {
        "files/mm/luf.c": "kernel/files/mm/luf.c:1: WARNING:X: odd",
        "hooks/6.12/first.patch": "", "hooks/6.12/second.patch": "",
    }  # fmt: skip


def test_progress_counts_steps() -> None:
    lines = ["  CC      mm/x.o", "  HOSTCC  a", "  LD      v", "  AR      b", "  GEN     c", "CC x"]
    assert [bool(build._STEP.match(line)) for line in lines] == [True] * 4 + [False] * 2


def test_another_version_has_its_own_hooks_options_and_folder(
    source: Source, kernel: Path, cache: Cache, make: Make
) -> None:
    newer = Source("7.3.4", source.tree, "fake-7.3")
    (kernel / "configs/7.3.config").write_text("CONFIG_SMP=n\nCONFIG_NEW=y\n")
    with pytest.raises(QuellError, match=r"no hooks found: .*hooks/7\.3/series"):
        build.build_kernels(newer, ("quell",), cache, kernel)
    assert build.fragments("quell", kernel, "7.3").endswith("CONFIG_SMP=n\nCONFIG_NEW=y\n")
    assert "CONFIG_NEW" not in build.fragments("quell", kernel)
    assert build.folder_of("quell", newer.linux) == "quell-7.3" and build.folder_of("quell", source.linux) == "quell"
