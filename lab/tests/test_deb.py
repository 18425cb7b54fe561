# SPDX-License-Identifier: GPL-2.0-only
"""Debian packages with a fake make: the configuration, the packages, and clean-up."""

from __future__ import annotations

import gzip
import hashlib
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quell import build, cli, deb, machine, prereq, tree, version
from quell import source as quell_source
from checks import check_deb as check
from quell.errors import QuellError, UsageError
from quell.paths import Cache
from quell.source import Source

from test_proc import wait_until_gone

Fake = Callable[[str, str], Path]
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


@pytest.fixture
def make(fake_program: Fake, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setattr(prereq, "missing", lambda wanted=(): [])
    monkeypatch.setenv("LEAK", "yes")

    def install(rest: str = GOOD, configure: str = ":") -> None:
        fake_program("make", MAKE.replace("CONFIGURE", configure) + rest)

    return install


@pytest.fixture
def packages(source: Source, kernel: Path, cache: Cache) -> Callable[..., deb.Packages]:
    """Builds the packages of a configuration into a folder."""
    def build(dest: Path, text: str = USER) -> deb.Packages:
        return deb.build_packages(source, deb.Config(text, "mine"), dest, cache=cache, kernel_part=kernel, jobs=3)

    return build


Packages, Make = Callable[..., deb.Packages], Callable[..., None]


def test_packages(packages: Packages, cache: Cache, make: Make, tmp_path: Path) -> None:
    make()
    dest = tmp_path / "new/out"
    made = packages(dest)
    assert made.release == "6.12.7-mine-quell"
    names = [package.path.name for package in made.packages]
    assert [name.split("_")[0] for name in names] == [
        "linux-image-6.12.7-mine-quell", "linux-headers-6.12.7-mine-quell",
    ]  # fmt: skip
    assert sorted(path.name for path in dest.iterdir()) == sorted(names)
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


def test_version_of_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deb.export, "date", lambda: "2026-11-26T23:30:00-05:00")
    for state, own in (
        (f"v{version.RELEASE}", ""), (version.UNKNOWN, ""), (f"v{version.RELEASE}-dirty", "+20261127"), ("602af08", "+20261127"),
    ):  # fmt: skip
        monkeypatch.setattr(version, "quell", lambda state=state: state)
        assert deb.package_version("6.12.7") == f"6.12.7-quell{version.RELEASE}{own}"
    # For dpkg each version is newer than the one before.
    order = ("6.12.7-20261126", "6.12.7-quell0.9.0", "6.12.7-quell0.9.0+20261126", "6.12.7-quell0.10.0", "6.12.8-quell0.9.0")
    for old, new in zip(order, order[1:], strict=False):
        subprocess.run(["dpkg", "--compare-versions", old, "lt", new], check=True)


def test_no_headers_without_modules(packages: Packages, make: Make, tmp_path: Path) -> None:
    make("echo x >linux-image-${release}_${version}_amd64.deb")
    made = packages(tmp_path, USER.replace("MODULES=y", "MODULES=n"))
    assert len(made.packages) == 1
    with pytest.raises(QuellError, match="made no linux-headers package"):
        packages(tmp_path / "none")
    assert not list((tmp_path / "none").iterdir())


def test_another_configuration_starts_afresh(packages: Packages, cache: Cache, make: Make, tmp_path: Path) -> None:
    make()
    packages(tmp_path)
    old = cache.work / "deb/src/obj/old.h"
    old.touch()
    packages(tmp_path)
    assert old.exists()
    packages(tmp_path, USER + "CONFIG_KSM=y\n")
    assert not old.exists()


def test_options_that_do_not_come_out(packages: Packages, kernel: Path, make: Make, tmp_path: Path) -> None:
    kconfig = kernel / "files/mm/Kconfig.quell"
    kconfig.write_text("config QUELL\n\tbool\n\tdepends on MMU && SMP\n\tdepends on SYSFS\n\nconfig X\n")
    make(configure='echo CONFIG_SMP=y >"$obj/.config"')
    with pytest.raises(QuellError, match="with mine the kernel does not get CONFIG_QUELL$") as caught:
        packages(tmp_path / "out")
    assert caught.value.detail == "  CONFIG_QUELL depends on MMU && SMP && SYSFS"
    assert not list((tmp_path / "out").iterdir())


def test_build_error(packages: Packages, make: Make, tmp_path: Path) -> None:
    make("touch linux-image-x_1_amd64.deb; echo '../mm/luf.c:1:2: error: bad' >&2; exit 2")
    with pytest.raises(QuellError, match="building the packages failed") as caught:
        packages(tmp_path / "out")
    assert caught.value.detail == "mm/luf.c:1:2: error: bad"
    assert not list((tmp_path / "out").iterdir())


def test_interrupted(packages: Packages, cache: Cache, make: Make, tmp_path: Path) -> None:
    # Ctrl-C comes from within make: make surely runs then.
    make(f"sleep 60 & echo $! >{tmp_path}/pid; kill -INT {os.getpid()}; wait")
    with pytest.raises(KeyboardInterrupt):
        packages(tmp_path / "out")
    assert wait_until_gone(int((tmp_path / "pid").read_text()))
    half = cache.work / "deb/src/obj/half.o"
    half.touch()
    assert (half.parent / "building").exists() and not list((tmp_path / "out").iterdir())
    make()
    packages(tmp_path / "out")
    assert not half.exists()


def test_all_or_none(tmp_path: Path) -> None:
    one, missing = tmp_path / "a.deb", tmp_path / "b.deb"
    one.write_text("a")
    dest = tmp_path / "out"
    dest.mkdir()
    with pytest.raises(FileNotFoundError):
        deb._deliver([one, missing], dest)
    assert not list(dest.iterdir())


# --- the configuration -------------------------------------------------------


def adapt(text: str, root: Path, quell: str = "CONFIG_QUELL=y\n", lab_only: tuple[str, ...] = ()) -> deb.Adapted:
    return deb.adapt(deb.Config(text, "mine"), quell, root, lab_only)


def test_quell_on_top(tmp_path: Path) -> None:
    adapted = adapt(USER, tmp_path, "CONFIG_QUELL=y\nCONFIG_QUELL_KUNIT_TEST=y\n")
    have = build.options(adapted.text)
    assert have["CONFIG_QUELL"] == "y" and have["CONFIG_LOCALVERSION"] == '"-mine"'
    assert "QUELL_KUNIT" not in adapted.text and "CONFIG_QUELL is not set" not in adapted.text
    assert adapted.asked == "CONFIG_QUELL=y\n"
    assert not adapted.notes  # nothing was signed
    with_kunit = adapt(USER + "CONFIG_KUNIT=y\n", tmp_path, "CONFIG_QUELL_KUNIT_TEST=y\n")
    assert with_kunit.asked == "CONFIG_QUELL_KUNIT_TEST=y\n"


def test_lab_only_options(tmp_path: Path) -> None:
    quell = "CONFIG_QUELL=y\nCONFIG_QUELL_LUF=y\nCONFIG_QUELL_ZAP_BATCH=y\n"
    for given, value in (("", "n"), ("# CONFIG_QUELL_ZAP_BATCH is not set\n", "n"), ("CONFIG_QUELL_ZAP_BATCH=y\n", "y")):
        adapted = adapt(USER + given, tmp_path, quell, ("CONFIG_QUELL_ZAP_BATCH",))
        have = build.options(adapted.text)
        assert (have["CONFIG_QUELL_ZAP_BATCH"], have["CONFIG_QUELL_LUF"]) == (value, "y")
        assert adapted.text.count("QUELL_ZAP_BATCH") == 1 and not adapted.notes
        assert f"CONFIG_QUELL_ZAP_BATCH={value}\n" in adapted.asked


def test_options_that_the_user_has_off(tmp_path: Path) -> None:
    quell = "CONFIG_QUELL=y\nCONFIG_QUELL_LUF=y\nCONFIG_QUELL_EARLY_ACK=y\nCONFIG_QUELL_KUNIT_TEST=y\n"
    adapted = adapt(USER + "CONFIG_KUNIT=y\n# CONFIG_QUELL_LUF is not set\n", tmp_path, quell)
    have = build.options(adapted.text)
    assert (have["CONFIG_QUELL"], have["CONFIG_QUELL_LUF"], have["CONFIG_QUELL_EARLY_ACK"]) == ("y", "n", "y")
    assert "KUNIT_TEST" not in adapted.text
    assert adapted.notes == ("left out, as mine has them off: CONFIG_QUELL_LUF",)
    # The tests are off in the configuration of a package that was built before.
    again = adapt(USER + "CONFIG_KUNIT=y\n# CONFIG_QUELL_KUNIT_TEST is not set\n", tmp_path, quell)
    assert build.options(again.text)["CONFIG_QUELL_KUNIT_TEST"] == "n" and not again.notes


def test_secure_boot_takes_signed_modules(tmp_path: Path) -> None:
    text = USER + 'CONFIG_MODULE_SIG=y\nCONFIG_LOCK_DOWN_IN_EFI_SECURE_BOOT=y\nCONFIG_MODULE_SIG_KEY=""\n'
    (warning,) = adapt(text, tmp_path).warnings
    assert warning.startswith("with Secure Boot on, this kernel loads signed modules only")
    key = tmp_path / "key.pem"
    key.touch()
    own = text.replace('""', f'"{key}"')
    assert len(adapt(own, tmp_path).warnings) == 1
    assert not adapt(own + "CONFIG_MODULE_SIG_ALL=y\n", tmp_path).warnings
    assert not adapt(text.replace("MODULES=y", "MODULES=n"), tmp_path).warnings


def test_keys_of_each_build(tmp_path: Path) -> None:
    signed = USER + 'CONFIG_MODULE_SIG=y\nCONFIG_MODULE_SIG_ALL=y\nCONFIG_MODULE_SIG_KEY="certs/signing_key.pem"\n'
    adapted = adapt(signed, tmp_path)
    have = build.options(adapted.text)
    assert (have["CONFIG_MODULE_SIG_KEY"], have["CONFIG_MODULE_SIG_ALL"]) == ('""', "n")
    assert len(adapted.notes) == 1 and adapted.notes[0].startswith("modules are not signed")
    for insists in ("MODULE_SIG_FORCE", "LOCK_DOWN_KERNEL_FORCE_INTEGRITY"):
        with pytest.raises(UsageError, match=f"only signed modules load .CONFIG_{insists}"):
            adapt(f"{signed}CONFIG_{insists}=y\n", tmp_path)
    key = tmp_path / "key.pem"
    key.touch()
    own = signed.replace("certs/signing_key.pem", str(key)) + "CONFIG_MODULE_SIG_FORCE=y\n"
    adapted = adapt(own, tmp_path / "linux")
    assert str(key) in adapted.text and not adapted.notes


def test_certificates_that_are_not_here(tmp_path: Path) -> None:
    text = (
        'CONFIG_SYSTEM_TRUSTED_KEYS="debian/certs/x.pem"\nCONFIG_SYSTEM_REVOCATION_KEYS="certs/y.pem"\n'
        'CONFIG_SYSTEM_BLACKLIST_HASH_LIST=""\n'
    )
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs/y.pem").touch()
    adapted = adapt(text, tmp_path)
    have = build.options(adapted.text)
    assert have["CONFIG_SYSTEM_TRUSTED_KEYS"] == '""'
    assert have["CONFIG_SYSTEM_REVOCATION_KEYS"] == '"certs/y.pem"'
    assert adapted.notes == (
        "left out, since the kernel source lacks them: debian/certs/x.pem (CONFIG_SYSTEM_TRUSTED_KEYS)",
    )


def test_random_seeds_are_named(tmp_path: Path) -> None:
    (warning,) = adapt("CONFIG_RANDSTRUCT_FULL=y\n", tmp_path).warnings
    assert "CONFIG_RANDSTRUCT_FULL takes a random seed" in warning


def test_what_came_out_otherwise(tmp_path: Path) -> None:
    user = deb.Config(USER + "CONFIG_A=m\nCONFIG_GONE=y\nCONFIG_GCC_VERSION=1\nCONFIG_B=n\n", "mine")
    adapted = deb.adapt(user, "CONFIG_QUELL=y\n", tmp_path)
    result = adapted.text.replace("CONFIG_A=m", "CONFIG_A=y").replace("CONFIG_GONE=y\n", "") + "CONFIG_B=y\n"
    assert deb.otherwise(user, adapted, result) == ["CONFIG_A: m -> y", "CONFIG_GONE: y -> gone"]


def test_read_config(tmp_path: Path) -> None:
    path = tmp_path / "config.gz"
    path.write_bytes(gzip.compress(USER.encode()))
    assert deb.read_config(str(path)) == deb.Config(USER, str(path))
    boot = tmp_path / "boot"
    boot.mkdir()
    assert deb.read_config("running", boot, path).origin == str(path)
    own = boot / f"config-{platform.release()}"
    own.write_text(USER)
    assert deb.read_config("running", boot, path).origin == str(own)
    own.unlink()
    with pytest.raises(UsageError, match="neither .* nor .*--config FILE"):
        deb.read_config("running", boot, tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"hello\n", "is not a kernel configuration"),
        (b"# Linux/arm64 6.1.0 Kernel Configuration\nCONFIG_SMP=y\n", "is a configuration for arm64"),
        (b"CONFIG_X86_32=y\n", "is a configuration for 32-bit x86"),
        (gzip.compress(USER.encode())[:20], "cannot be read"),
        (None, "cannot be read: No such file"),
    ],
)
def test_wrong_config(text: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(UsageError, match=message):
        deb.read_config(str(path))


def test_name_that_no_package_can_have(packages: Packages, make: Make, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='CONFIG_LOCALVERSION="_A" of mine cannot be in the name'):
        packages(tmp_path, 'CONFIG_LOCALVERSION="_A"\n')


def test_needs_by_option() -> None:
    names = {item.package for item in prereq.packages_need({"CONFIG_DEBUG_INFO_BTF": "y"})}
    assert {"debhelper", "dpkg-dev", "rsync", "kmod", "pahole"} <= names
    assert "pahole" not in {item.package for item in prereq.packages_need({"CONFIG_DEBUG_INFO_BTF": "n"})}


def test_command(
    source: Source, kernel: Path, make: Callable[..., None], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    make()
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


# --- the check ---------------------------------------------------------------


def package(root: Path, folder: str, text: str = "same\n", mode: int = 0o644) -> Path:
    tree_ = root / folder / "tree"
    (tree_ / "DEBIAN").mkdir(parents=True)
    (tree_ / "DEBIAN/control").write_text(
        "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: q <q@localhost>\nDescription: d\n"
    )
    (tree_ / "boot").mkdir()
    (tree_ / "boot/vmlinuz").write_text(text)
    (tree_ / "boot/vmlinuz").chmod(mode)
    subprocess.run(
        ["dpkg-deb", "-b", "--root-owner-group", tree_, root / folder / "p.deb"],
        check=True, stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": "1"},
    )  # fmt: skip
    return root / folder / "p.deb"


def test_differences_name_the_member(tmp_path: Path) -> None:
    one, same = package(tmp_path, "1"), package(tmp_path, "2")
    assert check.differences(one, same, tmp_path) == []
    other, mode = package(tmp_path, "3", "othr\n"), package(tmp_path, "4", mode=0o600)
    assert check.differences(one, other, tmp_path) == ["p.deb: ./boot/vmlinuz differs in digest"]
    assert check.differences(one, mode, tmp_path) == ["p.deb: ./boot/vmlinuz differs in mode"]


def test_versions_that_are_wrong(tmp_path: Path) -> None:
    made = deb.Packages("6.12.7-check-quell", (deb.Package(package(tmp_path, "1"), 1, ""),))
    assert check.wrong_versions(made) == [f"p.deb has the version 1, not 6.12.7-quell{version.RELEASE}"]


def test_scratch_root(tmp_path: Path) -> None:
    root = check.scratch_root(tmp_path / "root")
    assert (root / "bin/sh").exists() and (root / "bin/run-parts").exists()
    assert os.access(root / "etc/kernel/postinst.d/zz-check", os.X_OK)
    (root / "hooks").write_text("postinst 6.12 /boot/vmlinuz-6.12 INITRD=Yes configure\n")
    assert check._hooks_called(root, ["postinst 6.12 "]) == []
    assert len(check._hooks_called(root, ["postinst 6.13 "])) == 1


def test_guest_script_tries_everything(tmp_path: Path) -> None:
    script = check.guest_script(tmp_path, tmp_path / "outside.ko")
    assert "cd /sys/kernel/mm/quell " in script and f"modprobe -d {tmp_path} loop" in script
    assert f"insmod {tmp_path}/outside.ko" in script
    assert "outside" not in check.guest_script(Path("/x"), None)
    assert set(check.switches()) == {
        "luf", "rmap_batch", "early_ack", "folio_order", "writeout_batch", "gather_range",
    }  # fmt: skip


@pytest.mark.parametrize(("said", "wrong"), [("", []), ("switch zap_batch\n", ["has more than it should: switch zap_batch"]),
                                             (None, ["does not print 'switch luf'"])])  # fmt: skip
def test_switches_of_the_booted_package(
    said: str | None, wrong: list[str], cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name in check.switches() if said is not None or name != "luf"]
    text = "release r\nloaded loop\nbtf\n" + "".join(f"switch {name}\n" for name in names) + (said or "")
    monkeypatch.setattr(machine, "run_script", lambda *_, **__: machine.GuestResult(0, text, "", "", 1.0))
    found = check.boot(tmp_path, "r", None, cache)
    assert len(found) == len(wrong) and all(part in line for part, line in zip(wrong, found, strict=True))
