# SPDX-License-Identifier: GPL-2.0-only
"""Choosing QEMU, and fetching a later one. Shell scripts stand in for QEMU and apt."""

from pathlib import Path

import pytest

from guests import Patch
from conftest import Fake, fails
from quell import debian, qemu, toolchain
from quell.errors import UsageError
from quell.paths import Cache

DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
# Names sources of packages, and "downloads" one that has a QEMU.
APT = """\
echo "$@" >> {log}
case "$*" in
*indextargets*) echo 'bookworm main http://mirror/debian/'; echo 'bookworm main http://second/' ;;
*update*) for w; do case $w in Dir::Etc::sourcelist=*) cat "${{w#*=}}" >> {log} ;; esac; done; {fail} ;;
*install*) for w; do case $w in Dir::Cache::archives=*) : > "${{w#*=}}/qemu.deb" ;; esac; done ;;
esac"""
DPKG = """\
mkdir -p "$3/usr/bin"; printf '#!/bin/sh\\necho QEMU emulator version 10.0.2 "(Debian 1:10)"\\n' > "$3/usr/bin/qemu-system-x86_64"
chmod +x "$3/usr/bin/qemu-system-x86_64" """


@pytest.fixture(autouse=True)
def forget(monkeypatch: Patch) -> None:
    toolchain.version.cache_clear()
    qemu.find.cache_clear()
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: DEBIAN)
    monkeypatch.setattr(debian, "_KEYRING", "/etc/passwd")


def test_versions() -> None:
    assert qemu.parse_version("QEMU emulator version 7.2.22 (Debian 1:7.2)") == "7.2.22"
    assert [qemu.is_recent(text) for text in ("7.2.22", "8.0.4", "8.1.0", "10.0.2", "none")] == [
        False, False, True, True, False,
    ]  # fmt: skip


def test_a_recent_qemu_of_this_machine(cache: Cache, fake_program: Fake) -> None:
    program = fake_program("qemu-system-x86_64", "echo QEMU emulator version 9.2.0")
    assert qemu.find(cache) == qemu.Qemu(str(program), "9.2.0")


def test_an_old_one_is_replaced_from_backports(cache: Cache, fake_program: Fake, tmp_path: Path) -> None:
    log = tmp_path / "log"
    fake_program("qemu-system-x86_64", "echo QEMU emulator version 7.2.22")
    fake_program("apt-get", APT.format(log=log, fail=":"))
    fake_program("dpkg-deb", DPKG)
    found = qemu.find(cache)
    assert (found.version, Path(found.program).is_relative_to(cache.root)) == ("10.0.2", True)
    said = log.read_text()
    assert "URIs: http://mirror/debian/\nSuites: bookworm-backports bookworm bookworm-updates\n" in said
    assert "APT::Default-Release=bookworm-backports" in said and "--download-only" in said
    # The package lists are deleted, and nothing is fetched twice.
    assert not (Path(found.program).parents[2] / "apt").exists()
    qemu.find.cache_clear()
    assert qemu.find(cache) == found and log.read_text() == said


def test_no_later_one_to_be_had(cache: Cache, fake_program: Fake, tmp_path: Path, monkeypatch: Patch) -> None:
    fake_program("qemu-system-x86_64", "echo QEMU emulator version 7.2.22")
    fake_program("apt-get", APT.format(log=tmp_path / "log", fail="echo Could not resolve >&2; exit 100"))
    fails(UsageError, r"QEMU 8.1 or later is needed \(here: 7.2.22\).*apt-get failed", qemu.find, cache)
    assert not list(cache.data.glob("packages-*"))
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "arch"})
    fails(UsageError, "not those of a Debian release", qemu.find, cache)
