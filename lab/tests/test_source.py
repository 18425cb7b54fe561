# SPDX-License-Identifier: GPL-2.0-only
"""Getting the source: fetching with a fake apt-get, and the user's own trees."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from quell import debian, prereq, source
from quell.errors import QuellError, UsageError
from quell.paths import Cache

from conftest import write_tree

Fake = Callable[[str, str], Path]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A small linux-source-6.12 package."""
    root = tmp_path / "deb"
    write_tree(tmp_path / "stage/linux-source-6.12")
    archive = root / "usr/src/linux-source-6.12.tar.xz"
    archive.parent.mkdir(parents=True)
    subprocess.run(
        ["tar", "-cJf", archive, "-C", tmp_path / "stage", "linux-source-6.12"], check=True
    )
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text(
        "Package: linux-source-6.12\nVersion: 6.12.7-1~deb12u1\nArchitecture: all\n"
        "Maintainer: x <x@localhost>\nDescription: x\n"
    )
    deb = tmp_path / "linux-source-6.12_6.12.7-1~deb12u1_all.deb"
    subprocess.run(["dpkg-deb", "-b", root, deb], check=True, capture_output=True)
    return deb


def test_fetch_and_reuse(cache: Cache, package: Path, fake_program: Fake, tmp_path: Path) -> None:
    fake_program(
        "apt-get",
        f"""echo "$*" >>{tmp_path}/calls
case "$*" in
*--print-uris*) echo "'http://x/y' x.deb 123 SHA256:0" ;;
*download*) cp {package} . ;;
esac""",
    )
    found = source.debian_source(cache)
    assert found.version == "6.12.7"
    assert found.key.startswith("debian-6.12.7-1-deb12u1-")
    assert (found.tree / "mm/rmap.c").exists()
    calls = (tmp_path / "calls").read_text()
    assert "update" not in calls
    assert source.debian_source(cache) == found == source.present_source(cache)
    assert (tmp_path / "calls").read_text() == calls
    assert not list(cache.source.glob(".tmp-*")) and len(list(cache.downloads.iterdir())) == 1


def test_package_put_there_by_hand(cache: Cache, package: Path, fake_program: Fake) -> None:
    fake_program("apt-get", "exit 100")
    shutil.copy(package, cache.downloads)
    assert source.debian_source(cache).version == "6.12.7"


def test_old_lists_are_updated(
    cache: Cache, package: Path, fake_program: Fake, tmp_path: Path
) -> None:
    fake_program(
        "apt-get",
        f"""case "$*" in
*update*) touch {tmp_path}/updated ;;
*) [ -e {tmp_path}/updated ] || {{ echo "E: Unable to locate package linux-source-6.12" >&2; exit 100; }} ;;
esac
case "$*" in *print-uris*) ;; *download*) cp {package} . ;; esac""",
    )
    assert source.debian_source(cache).version == "6.12.7"


def test_no_network(cache: Cache, fake_program: Fake) -> None:
    fake_program(
        "apt-get",
        'echo "E: Failed to fetch http://x  Temporary failure resolving \'x\'" >&2; exit 100',
    )
    with pytest.raises(UsageError, match="there is no network") as caught:
        source.debian_source(cache)
    assert "Temporary failure" in caught.value.detail
    assert source.present_source(cache) is None and not list(cache.source.iterdir())


def test_unknown_package(cache: Cache, fake_program: Fake) -> None:
    fake_program(
        "apt-get",
        """case "$*" in *update*) ;; *) echo "E: Unable to locate package x" >&2; exit 100 ;; esac""",
    )
    with pytest.raises(UsageError, match="have no linux-source-6.12.*--kernel"):
        source.debian_source(cache)


def test_another_version_comes_from_lists_of_its_own(
    cache: Cache, fake_program: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keyring = tmp_path / "keyring.gpg"
    keyring.write_text("")
    monkeypatch.setattr(debian, "_KEYRING", str(keyring))
    monkeypatch.setattr(debian, "_codename", lambda: "bookworm")
    fake_program(
        "apt-get",
        f"""echo "$*" >>{tmp_path}/calls
case "$*" in
*indextargets*) echo "bookworm main file:///mirror/debian/" ;;
*update*) cat "$(echo "$*" | sed 's/.*sourcelist=//;s/ .*//')" >{tmp_path}/sources ;;
*) echo "E: Unable to locate package linux-source-7.3" >&2; exit 100 ;;
esac""",
    )
    with pytest.raises(UsageError, match=r"trixie-backports has no linux-source-7\.3 any more; give a 7\.3 tree"):
        source.debian_source(cache, "7.3")
    assert "Suites: trixie-backports\n" in (tmp_path / "sources").read_text()
    updates = [line for line in (tmp_path / "calls").read_text().splitlines() if " update" in line]
    assert len(updates) == 1 and "Dir::State::lists=" in updates[0] and "sourceparts=-" in updates[0]


def test_no_apt(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prereq, "apt_get", lambda: None)
    with pytest.raises(UsageError, match="--kernel"):
        source.debian_source(cache)


def test_no_disk_space(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 5_000_000_000))
    with pytest.raises(UsageError, match=r"needs 12\.0 GB of disk space.* has 5\.0 GB free"):
        source.debian_source(cache)


def test_broken_package(cache: Cache, fake_program: Fake) -> None:
    (cache.downloads / "linux-source-6.12_1_all.deb").write_text("not a package")
    with pytest.raises(QuellError):
        source.debian_source(cache)
    assert not list(cache.source.iterdir())


def snapshot(tree: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in tree.rglob("*")
    }


@pytest.mark.parametrize(
    ("version", "also", "says"),
    [
        ("6.1.120", "", r"is Linux 6\.1\.120, but Quell is for Linux 6\.12"),
        ("6.120.3", "", r"Linux 6\.120\.3"),
        ("6.12.7", "mm/Kconfig.quell", "has Quell applied already"),
        ("", "file", "not a Linux source tree"),
        ("", "", "no folder"),
    ],
)
def test_user_trees_that_are_refused(version: str, also: str, says: str, cache: Cache, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", version) if version else tmp_path / "tree"
    if also:
        tree.mkdir(exist_ok=True)
        (tree / also).write_text("")
    with pytest.raises(UsageError, match=says):
        source.user_tree(tree, cache)


@pytest.mark.parametrize("also", ["", "/*\n!/debian/\n"], ids=["Linux's", "Debian's"])
def test_user_folder(also: str, cache: Cache, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree")
    with (tree / ".gitignore").open("a") as file:
        file.write(also)
    if also:
        (tree / ".config").write_text("of a build in the folder")
    (tree / "mm/rmap.o").write_text("a build product")
    before = snapshot(tree)
    found = source.user_tree(tree, cache)
    assert found.version == "6.12.7" and found.tree != tree
    assert not (found.tree / "mm/rmap.o").exists() and not (found.tree / ".config").exists()
    assert (found.tree / "scripts/tool.sh").stat().st_mode & 0o100
    assert snapshot(tree) == before
    assert source.user_tree(tree, cache) == found
    (tree / "mm/rmap.o").write_text("another build product")
    assert source.user_tree(tree, cache) == found
    time.sleep(0.01)
    (tree / "mm/rmap.c").write_text("changed")
    assert source.user_tree(tree, cache).key != found.key


def test_user_checkout(cache: Cache, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree")
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=tree, check=True)
    (tree / "mm/rmap.o").write_text("a build product")
    (tree / "mm/new.c").write_text("new")
    (tree / "mm/vmscan.c").unlink()
    index = (tree / ".git/index").stat().st_mtime_ns
    found = source.user_tree(tree, cache)
    names = {path.name for path in (found.tree / "mm").iterdir()}
    assert names == {"rmap.c", "Kconfig", "new.c"}
    assert not (found.tree / ".git").exists()
    assert (tree / ".git/index").stat().st_mtime_ns == index
    assert source.user_tree(tree, cache) == found
    (tree / "mm/new.c").write_text("newer")
    assert source.user_tree(tree, cache).key != found.key


def test_prerequisites(monkeypatch: pytest.MonkeyPatch, fake_program: Fake, tmp_path: Path) -> None:
    wanted = [prereq.Prerequisite("quell-no-such-program", "some-package", "x")]
    assert prereq.missing(wanted) == wanted
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="run: sudo apt-get install .* some-package"):
        prereq.ensure(wanted)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("quell.ui.can_ask", lambda: False)
    fake_program("apt-get", 'echo "E: Could not resolve x" >&2; exit 100')
    with pytest.raises(UsageError, match="there is no network"):
        prereq.ensure(wanted)
    program = tmp_path / "fake-bin/quell-no-such-program"
    fake_program("apt-get", f"echo '#!/bin/sh' >{program}; chmod +x {program}")
    prereq.ensure(wanted)
    assert prereq.missing(wanted) == []
