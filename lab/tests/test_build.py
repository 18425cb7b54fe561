# SPDX-License-Identifier: GPL-2.0-only
"""Building with a fake make: reuse, increments, errors, interruption."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from guests import Patch
from checks import check_w1, own_code
from quell import build, prereq
from quell.errors import QuellError, UsageError
from quell.paths import Cache
from quell.source import Source

from conftest import Fake, fails, gone, write_files

Make = Callable[[str], Path]

# Takes the O= directory from its arguments, as make does. Nothing may leak in from the environment.
MAKE = r"""
[ -z "${KCFLAGS+x}${ARCH+x}" ] || exit 1
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
BAD = r"""cat >&2 <<END
In file included from ../mm/rmap.c:1:
../mm/rmap.c:12:7: error: implicit declaration of function 'lazy'
   12 |       lazy();
      |       ^~~~
make[3]: *** [../scripts/Makefile.build:229: mm/rmap.o] Error 1
END
exit 2
"""


@pytest.fixture(autouse=True)
def make(fake_program: Fake, monkeypatch: Patch, tmp_path: Path) -> Make:
    """A make that succeeds; a call replaces its last part, and returns the file with its command lines."""
    calls = tmp_path / "calls"
    for name, value in (("CALLS", str(calls)), ("KCFLAGS", "-O0"), ("ARCH", "arm64")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(prereq, "missing", lambda wanted=(): [])

    def install(rest: str) -> Path:
        fake_program("make", MAKE + rest)
        calls.write_text("")
        return calls

    install(GOOD)
    return install


def test_both_kernels(source: Source, kernel: Path, cache: Cache, make: Make) -> None:
    kernels = build.build_kernels(source, cache=cache, kernel_part=kernel)
    assert {name for name, one in kernels.items() if "lazy" in one.image.read_text()} == {"quell"}
    assert kernels["quell"].release == "6.12.7-x"
    assert (kernels["quell"].folder / "config").read_text().split() == ["CONFIG_SMP=y", "CONFIG_QUELL=y"]
    assert "lazy" not in (source.tree / "mm/rmap.c").read_text()
    assert not (cache.work / "quell/src/obj/building").exists()
    calls = make(GOOD)
    again = build.build_kernels(source, cache=cache, kernel_part=kernel)
    assert again == kernels and calls.read_text() == ""
    assert build.finished_kernel("quell", source, cache, kernel) == kernels["quell"]


def test_only_changed_files_are_rewritten(source: Source, kernel: Path, cache: Cache) -> None:
    first = build.build_kernels(source, ["quell"], cache, kernel)["quell"]
    src = cache.work / "quell/src"
    old = {name: (src / name).stat().st_mtime_ns for name in ("mm/rmap.c", "mm/luf.c", "mm/vmscan.c")}
    time.sleep(0.01)
    write_files(kernel, {"files/mm/luf.c": "/* newer */\n", "hooks/6.12/series": "second.patch\n"})
    second = build.build_kernels(source, ["quell"], cache, kernel)["quell"]
    assert second.key != first.key and first.image.exists()
    assert (src / "mm/luf.c").read_text() == "/* newer */\n"
    # Without the first hook its files are Linux's again, with a new time for make.
    assert (src / "mm/Kconfig").read_text() == (source.tree / "mm/Kconfig").read_text()
    assert "return 100" not in (src / "mm/rmap.c").read_text()
    newer = {name for name, time_ns in old.items() if (src / name).stat().st_mtime_ns > time_ns}
    assert newer == {"mm/rmap.c", "mm/luf.c"}
    assert (src / "mm/vmscan.c").stat().st_mtime_ns == old["mm/vmscan.c"]
    (kernel / "files/mm/luf.c").unlink()
    build.build_kernels(source, ["quell"], cache, kernel)
    assert not (src / "mm/luf.c").exists()


def test_build_error(source: Source, kernel: Path, cache: Cache, make: Make) -> None:
    make(BAD)
    says = "building the stock kernel failed"
    error = fails(QuellError, says, build.build_kernels, source, ["stock"], cache, kernel)
    assert error.detail.splitlines() == [
        "mm/rmap.c:12:7: error: implicit declaration of function 'lazy'",
        "   12 |       lazy();",
        "      |       ^~~~",
    ]
    assert error.log is not None and "Error 1" in error.log.read_text()
    assert error.exit_code == 1 and not list(cache.kernels.iterdir())
    # make was not killed: the next build continues with its objects.
    kept = cache.work / "stock/src/obj/kept.o"
    kept.touch()
    make(GOOD)
    build.build_kernels(source, ["stock"], cache, kernel)
    assert kept.exists()
    # Another source starts afresh.
    build.build_kernels(Source("6.12.8", source.tree, "fake-2"), ["stock"], cache, kernel)
    assert not kept.exists()


def test_interrupted_build(source: Source, kernel: Path, cache: Cache, make: Make, tmp_path: Path) -> None:
    # Ctrl-C comes from within make: make surely runs then.
    make(f"sleep 60 & echo $! >{tmp_path}/pid; kill -INT {os.getpid()}; wait")
    fails(KeyboardInterrupt, None, build.build_kernels, source, ["stock"], cache, kernel)
    assert gone(tmp_path / "pid")
    obj = cache.work / "stock/src/obj"
    assert (obj / "building").exists() and not list(cache.kernels.iterdir())
    (obj / "half.o").touch()
    make(GOOD)
    assert build.build_kernels(source, ["stock"], cache, kernel)["stock"].image.exists()
    assert not (obj / "half.o").exists() and not (obj / "building").exists()


def test_option_not_taken(source: Source, kernel: Path, cache: Cache) -> None:
    (kernel / "configs/lab.config").write_text("CONFIG_SMP=y\nCONFIG_VT=n\nCONFIG_NR_CPUS=64\n")
    build.build_kernels(source, ["stock"], cache, kernel)
    config = "CONFIG_SMP=y\n# CONFIG_LUF is not set\nCONFIG_NR_CPUS=8\nCONFIG_VT=y\n"
    fragment = "CONFIG_SMP=y\nCONFIG_LUF=y\nCONFIG_NR_CPUS=64\nCONFIG_VT=n\nCONFIG_GONE=y\n"
    assert build.refused_options(fragment, config) == ["CONFIG_LUF", "CONFIG_NR_CPUS", "CONFIG_GONE"]
    assert build.refused_options("CONFIG_LUF=y\nCONFIG_LUF=n\n", config) == []


def test_builds_that_fail(
    source: Source, kernel: Path, cache: Cache, tmp_path: Path, fake_program: Fake, make: Make
) -> None:
    def build_fails(kind: type[QuellError], says: str, name: str, cache: Cache = cache) -> None:
        fails(kind, says, build.build_kernels, source, [name], cache, kernel)

    build_fails(UsageError, "without spaces and colons", "stock", Cache(tmp_path / "a b"))
    build_fails(UsageError, "no kernel 'vax'", "vax")
    make("echo 'cc1: fatal error: x.o: No space left on device' >&2; exit 2")
    build_fails(UsageError, "no disk space left", "stock")
    fake_program("make", 'for w; do case $w in O=*) : >"${w#O=}/.config" ;; esac; done')
    build_fails(QuellError, "CONFIG_SMP, CONFIG_QUELL", "quell")
    make(GOOD)
    (source.tree / "mm/rmap.c").write_text("int other;\n")
    build_fails(QuellError, "hooks that do not apply: first, second", "quell")
    (kernel / "hooks/6.12/series").write_text("# none yet\n")
    build.build_kernels(source, ["stock"], cache, kernel)
    build_fails(QuellError, "no hooks found", "quell")


def test_w1(source: Source, kernel: Path, cache: Cache, monkeypatch: Patch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(prereq, "ensure", asked.extend)
    warning = "mm/luf.c:3:5: warning: no previous prototype for 'x' [-Wmissing-prototypes]"
    assert check_w1.warnings(source, cache, kernel) == {"mm/luf.c": [warning]}
    assert own_code.own_objects(["mm/luf.c", "mm/a.h", "tools/testing/x.c"]) == ["mm/luf.o"]
    # On a new machine this is the first compilation.
    assert set(prereq.BUILD) <= set(asked)


def test_another_version_has_its_own_hooks_and_options(source: Source, kernel: Path, cache: Cache) -> None:
    newer = Source("7.3.4", source.tree, "fake-7.3")
    (kernel / "configs/7.3.config").write_text("CONFIG_SMP=n\nCONFIG_NEW=y\n")
    says = r"no hooks found: .*hooks/7\.3/series"
    fails(QuellError, says, build.build_kernels, newer, ("quell",), cache, kernel)
    assert build.fragments("quell", kernel, "7.3").endswith("CONFIG_SMP=n\nCONFIG_NEW=y\n")
    assert "CONFIG_NEW" not in build.fragments("quell", kernel)
    assert [build.folder_of("quell", one.linux) for one in (newer, source)] == ["quell-7.3", "quell"]
