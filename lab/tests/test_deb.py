# SPDX-License-Identifier: GPL-2.0-only
"""Debian packages with a fake make: the configuration, the packages, and clean-up."""

import gzip
import hashlib
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from guests import Patch
from checks import check_deb as check
from quell import build, cli, deb, machine, prereq, source as quell_source, tree, version
from quell.errors import QuellError, UsageError
from quell.paths import Cache
from quell.source import Source

from conftest import Capture, Fake, fails, gone, write_files

Packages = Callable[..., deb.Packages]
Make = Callable[..., None]
USER = 'CONFIG_SMP=y\nCONFIG_LOCALVERSION="-mine"\nCONFIG_MODULES=y\n# CONFIG_QUELL is not set\n'

MAKE = r"""
for word; do case $word in
O=*) obj=${word#O=} ;;
LOCALVERSION=*) suffix=${word#*=} ;;
KDEB_PKGVERSION=*) version=${word#*=} ;;
esac; done
[ -z "$LEAK" ] || exit 1
echo "$@" >>"$HOME/calls"
case "$*" in *olddefconfig) CONFIGURE; exit 0 ;; esac
printf '  CC      a.o\n  LD [M]  b.ko\n  INSTALL debian/linux-image/x\n'
release=6.12.7-mine$suffix
mkdir -p "$obj/include/config" "$obj/debian/linux-image"
echo $release >"$obj/include/config/kernel.release"
cd "$obj/.."
"""
GOOD = """
for kind in image headers; do cp mm/rmap.c linux-$kind-${release}_${version}_amd64.deb; done
echo libc >linux-libc-dev_${version}_amd64.deb
echo dbg >linux-image-${release}-dbg_${version}_amd64.deb
echo changes >linux-quell_${version}_amd64.changes
"""


@pytest.fixture(autouse=True)
def make(fake_program: Fake, monkeypatch: Patch) -> Make:
    """A make that succeeds; a call replaces parts of it."""
    monkeypatch.setattr(prereq, "missing", lambda wanted=(): [])
    monkeypatch.setenv("LEAK", "yes")

    def install(rest: str = GOOD, configure: str = ":") -> None:
        fake_program("make", MAKE.replace("CONFIGURE", configure) + rest)

    install()
    return install


@pytest.fixture
def packages(source: Source, kernel: Path, cache: Cache, tmp_path: Path) -> Packages:
    """Builds the packages of a configuration into ``out``."""
    def build(text: str = USER) -> deb.Packages:
        config, dest = deb.Config(text, "mine"), tmp_path / "new/out"
        return deb.build_packages(source, config, dest, cache=cache, kernel_part=kernel, jobs=3)

    return build


def test_packages(packages: Packages, cache: Cache, make: Make, tmp_path: Path) -> None:
    made = packages()
    assert made.release == "6.12.7-mine-quell"
    names = [package.path.name for package in made.packages]
    kinds = [name.split("_")[0] for name in names]
    assert kinds == ["linux-image-6.12.7-mine-quell", "linux-headers-6.12.7-mine-quell"]
    assert sorted(path.name for path in (tmp_path / "new/out").iterdir()) == sorted(names)
    for package in made.packages:
        data = package.path.read_bytes()
        assert b"lazy" in data  # Quell was applied
        assert (package.size, package.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert package.path.stat().st_mode & 0o777 == 0o644
    work = cache.work / "deb"
    assert not list(work.glob("src/linux-*")) and not (work / "src/obj/debian").exists()
    assert not (work / "src/obj/building").exists()
    calls = (work / "calls").read_text().splitlines()
    assert "olddefconfig" in calls[0] and calls[1].endswith(" bindeb-pkg")
    assert " -j3 " in calls[1] and f"KDEB_PKGVERSION=6.12.7-quell{version.RELEASE}" in calls[1]
    says = 'CONFIG_LOCALVERSION="_A" of mine cannot be in the name'
    fails(UsageError, says, packages, 'CONFIG_LOCALVERSION="_A"\n')
    # There are no headers without modules.
    make("echo x >linux-image-${release}_${version}_amd64.deb")
    assert len(packages(USER.replace("MODULES=y", "MODULES=n")).packages) == 1


def test_version_of_packages(monkeypatch: Patch) -> None:
    monkeypatch.setattr("quell.export.date", lambda: "2026-11-26T23:30:00-05:00")
    release = f"v{version.RELEASE}"
    for state, own in (
        (release, ""), (version.UNKNOWN, ""), (f"{release}-dirty", "+20261127"), ("602af08", "+20261127"),
    ):  # fmt: skip
        monkeypatch.setattr(version, "quell", lambda state=state: state)
        assert deb.package_version("6.12.7") == f"6.12.7-quell{version.RELEASE}{own}"
    # For dpkg each version is newer than the one before.
    order = ("7-20261126", "7-quell0.9.0", "7-quell0.9.0+20261126", "7-quell0.10.0", "8-quell0.9.0")
    for old, new in zip(order, order[1:], strict=False):
        subprocess.run(["dpkg", "--compare-versions", f"6.12.{old}", "lt", f"6.12.{new}"], check=True)


@pytest.mark.parametrize(("rest", "configure", "says", "detail"), [
    ("echo x >linux-image-${release}_${version}_amd64.deb", ":", "made no linux-headers package", ""),
    ("touch linux-image-x_1_amd64.deb; echo '../mm/luf.c:1:2: error: bad' >&2; exit 2", ":",
     "building the packages failed", "mm/luf.c:1:2: error: bad"),
    (GOOD, 'echo CONFIG_SMP=y >"$obj/.config"', "with mine the kernel does not get CONFIG_QUELL$",
     "  CONFIG_QUELL depends on MMU && SMP && SYSFS\n"),
])  # fmt: skip
def test_no_packages(
    rest: str, configure: str, says: str, detail: str,
    packages: Packages, kernel: Path, make: Make, tmp_path: Path,
) -> None:  # fmt: skip
    kconfig = kernel / "files/mm/Kconfig.quell"
    kconfig.write_text("config QUELL\n\tbool\n\tdepends on MMU && SMP\n\tdepends on SYSFS\n\nconfig X\n")
    make(rest, configure)
    assert fails(QuellError, says, packages).detail == detail
    assert not list((tmp_path / "new/out").iterdir())


def test_interrupted_and_next_builds(packages: Packages, cache: Cache, make: Make, tmp_path: Path) -> None:
    # Ctrl-C comes from within make: make surely runs then.
    make(f"sleep 60 & echo $! >{tmp_path}/pid; kill -INT {os.getpid()}; wait")
    fails(KeyboardInterrupt, None, packages)
    assert gone(tmp_path / "pid")
    half = cache.work / "deb/src/obj/half.o"
    half.touch()
    assert (half.parent / "building").exists() and not list((tmp_path / "new/out").iterdir())
    make()
    packages()
    assert not half.exists()
    # A complete build is kept, except for another configuration.
    half.touch()
    packages()
    assert half.exists()
    packages(USER + "CONFIG_KSM=y\n")
    assert not half.exists()


def test_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "a.deb").touch()
    (tmp_path / "out").mkdir()
    both = [tmp_path / "a.deb", tmp_path / "missing.deb"]
    fails(FileNotFoundError, None, deb._deliver, both, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def adapt(text: str, root: Path) -> deb.Adapted:
    options = ("", "_LUF", "_ZAP_BATCH", "_KUNIT_TEST")
    quell = "".join(f"CONFIG_QUELL{name}=y\n" for name in options)
    return deb.adapt(deb.Config(USER + text, "mine"), quell, root, ["CONFIG_QUELL_ZAP_BATCH"])


SIGNED = 'CONFIG_MODULE_SIG=y\nCONFIG_MODULE_SIG_ALL=y\nCONFIG_MODULE_SIG_KEY="certs/none.pem"\n'
UNSIGNED = 'modules are not signed (CONFIG_MODULE_SIG_KEY="", CONFIG_MODULE_SIG_ALL=n): a new key in each build'
SECURE_BOOT = "CONFIG_LOCK_DOWN_IN_EFI_SECURE_BOOT=y\n"


@pytest.mark.parametrize(("text", "values", "said"), [
    # QUELL itself is on, though USER has it off.
    ("", {"QUELL": "y", "QUELL_LUF": "y", "QUELL_KUNIT_TEST": "", "LOCALVERSION": '"-mine"'}, []),
    ("CONFIG_KUNIT=y\n", {"QUELL_KUNIT_TEST": "y"}, []),
    # So it is in the configuration of a package that was built before.
    ("CONFIG_KUNIT=y\n# CONFIG_QUELL_KUNIT_TEST is not set\n", {"QUELL_KUNIT_TEST": "n"}, []),
    ("CONFIG_KUNIT=y\n# CONFIG_QUELL_LUF is not set\n", {"QUELL": "y", "QUELL_LUF": "n", "QUELL_KUNIT_TEST": "y"},
     ["left out, as mine has them off: CONFIG_QUELL_LUF"]),
    # Lab-only ones have to be asked for.
    ("", {"QUELL_ZAP_BATCH": "n"}, []), ("# CONFIG_QUELL_ZAP_BATCH is not set\n", {"QUELL_ZAP_BATCH": "n"}, []),
    ("CONFIG_QUELL_ZAP_BATCH=y\n", {"QUELL_ZAP_BATCH": "y"}, []),
    ("CONFIG_RANDSTRUCT_FULL=y\n", {}, ["CONFIG_RANDSTRUCT_FULL takes a random seed"]),
    (SIGNED, {"MODULE_SIG_KEY": '""', "MODULE_SIG_ALL": "n"}, [UNSIGNED]),
    (SIGNED.replace("none", "own") + "CONFIG_MODULE_SIG_FORCE=y\n" + SECURE_BOOT, {"MODULE_SIG_ALL": "y"}, []),
    (SIGNED + SECURE_BOOT, {}, [UNSIGNED, "with Secure Boot on, this kernel loads signed modules only"]),
    (SIGNED.replace("none", "own").replace("ALL=y", "ALL=n") + SECURE_BOOT, {}, ["with Secure Boot on"]),
    (SECURE_BOOT + "CONFIG_MODULES=n\n", {}, []),
    ('CONFIG_SYSTEM_TRUSTED_KEYS="x/y.pem"\nCONFIG_SYSTEM_REVOCATION_KEYS="certs/own.pem"\n'
     'CONFIG_SYSTEM_BLACKLIST_HASH_LIST=""\n',
     {"SYSTEM_TRUSTED_KEYS": '""', "SYSTEM_REVOCATION_KEYS": '"certs/own.pem"'},
     ["left out, since the kernel source lacks them: x/y.pem (CONFIG_SYSTEM_TRUSTED_KEYS)"]),
])  # fmt: skip
def test_adapted(text: str, values: dict[str, str], said: list[str], tmp_path: Path) -> None:
    write_files(tmp_path, {"certs/own.pem": ""})
    adapted = adapt(text, tmp_path)
    have = build.options(adapted.text)
    assert {name: have.get(f"CONFIG_{name}", "") for name in values} == values
    for line, part in zip([*adapted.notes, *adapted.warnings], said, strict=True):
        assert line.startswith(part)
    # Kconfig has to keep Quell's.
    assert all(f"{name}={have[name]}\n" in adapted.asked for name in have if name.startswith("CONFIG_QUELL"))
    assert all(adapted.text.count(f"{name}{end}") < 2 for name in adapted.changed for end in ("=", " "))


@pytest.mark.parametrize("insists", ["MODULE_SIG_FORCE", "LOCK_DOWN_KERNEL_FORCE_INTEGRITY"])
def test_only_signed_modules_without_a_key(insists: str, tmp_path: Path) -> None:
    says = f"only signed modules load .CONFIG_{insists}"
    fails(UsageError, says, adapt, f"{SIGNED}CONFIG_{insists}=y\n", tmp_path)


def test_what_came_out_otherwise(tmp_path: Path) -> None:
    user = deb.Config(USER + "CONFIG_A=m\nCONFIG_GONE=y\nCONFIG_GCC_VERSION=1\nCONFIG_B=n\n", "mine")
    adapted = adapt(user.text.removeprefix(USER), tmp_path)
    result = adapted.text.replace("CONFIG_A=m", "CONFIG_A=y").replace("CONFIG_GONE=y\n", "") + "CONFIG_B=y\n"
    assert deb.otherwise(user, adapted, result) == ["CONFIG_A: m -> y", "CONFIG_GONE: y -> gone"]


def test_read_config(tmp_path: Path) -> None:
    path = tmp_path / "config.gz"
    path.write_bytes(gzip.compress(USER.encode()))
    assert deb.read_config(str(path)) == deb.Config(USER, str(path))
    boot = tmp_path / "boot"
    assert deb.read_config("running", boot, path).origin == str(path)
    own = boot / f"config-{platform.release()}"
    write_files(boot, {own.name: USER})
    assert deb.read_config("running", boot, path).origin == str(own)
    own.unlink()
    fails(UsageError, "neither .* nor .*--config FILE", deb.read_config, "running", boot, tmp_path / "none")


@pytest.mark.parametrize(("text", "message"), [
    (b"hello\n", "is not a kernel configuration"), (None, "cannot be read: No such file"),
    (b"# Linux/arm64 6.1.0 Kernel Configuration\nCONFIG_SMP=y\n", "is a configuration for arm64"),
    (gzip.compress(USER.encode())[:20], "cannot be read"),
    (gzip.compress(USER.encode())[:10] + b"damaged", "cannot be read"),
    (b"CONFIG_X86_32=y\n", "is a configuration for 32-bit x86"),
])  # fmt: skip
def test_wrong_config(text: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_bytes(text)
    fails(UsageError, message, deb.read_config, str(path))


def test_command(source: Source, kernel: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(quell_source, "get_source", lambda cache, tree: source)
    monkeypatch.setattr(tree, "kernel_dir", lambda: kernel)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").write_text(USER)
    assert cli.main(["deb", "--config", "config"]) == 0
    out, err = capsys.readouterr()
    image, headers = (line.split("\t") for line in out.splitlines())
    assert (tmp_path / image[0]).is_file() and len(image[2]) == len(headers[2]) == 64
    assert f"apt install ./{image[0]} ./{headers[0]}" in err and "quell=off" in err
    assert cli.main(["deb"]) == 2


def small_package(root: Path, folder: str, text: str = "same\n", mode: int = 0o644) -> Path:
    control = "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: q <q@localhost>\nDescription: d\n"
    tree_, deb_file = root / folder / "tree", root / folder / "p.deb"
    write_files(tree_, {"DEBIAN/control": control, "boot/vmlinuz": text})
    (tree_ / "boot/vmlinuz").chmod(mode)
    argv = ["dpkg-deb", "-b", "--root-owner-group", str(tree_), str(deb_file)]
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1"}
    subprocess.run(argv, check=True, capture_output=True, env=env)
    return deb_file


def test_differences_and_wrong_versions(tmp_path: Path) -> None:
    one, same = small_package(tmp_path, "1"), small_package(tmp_path, "2")
    assert check.differences(one, same, tmp_path) == []
    other, mode = small_package(tmp_path, "3", "othr\n"), small_package(tmp_path, "4", mode=0o600)
    assert check.differences(one, other, tmp_path)[1:] == ["Files first/boot/vmlinuz and second/boot/vmlinuz differ"]
    assert check.differences(one, mode, tmp_path)[1:] == ["in the order or attributes of their files"]
    made = deb.Packages("6.12.7-check-quell", (deb.Package(one, 1, ""),))
    assert check.wrong_versions(made) == [f"p.deb has the version 1, not 6.12.7-quell{version.RELEASE}"]


def test_scratch_root(tmp_path: Path) -> None:
    root = check.scratch_root(tmp_path / "root")
    assert (root / "bin/sh").exists() and (root / "bin/run-parts").exists()
    assert os.access(root / "etc/kernel/postinst.d/zz-check", os.X_OK)
    (root / "hooks").write_text("postinst 6.12 /boot/vmlinuz-6.12 INITRD=Yes configure\n")
    assert check._hooks_called(root, deb.Packages("6.12", ()), postinst="configure") == []
    assert len(check._hooks_called(root, deb.Packages("6.13", ()), postinst="configure")) == 1


@pytest.mark.parametrize(("missing", "more", "wrong"), [
    ("", "", []), ("luf", "", ["does not print ['switch luf'], and should not print []"]),
    ("", "switch zap_batch\n", ["does not print [], and should not print ['switch zap_batch']"]),
])  # fmt: skip
def test_switches_of_the_booted_package(
    missing: str, more: str, wrong: list[str], cache: Cache, tmp_path: Path, monkeypatch: Patch
) -> None:
    switches = ("luf", "rmap_batch", "early_ack", "folio_order", "writeout_batch", "gather_range")
    printed = "".join(f"switch {name}\n" for name in switches if name != missing)
    result = machine.GuestResult(0, f"release r\nloaded loop\nbtf\n{printed}{more}", "", "")
    monkeypatch.setattr(machine, "run_script", lambda *_, **__: result)
    found = check.boot(tmp_path, "r", None, cache)
    assert len(found) == len(wrong) and all(part in line for part, line in zip(wrong, found, strict=True))
