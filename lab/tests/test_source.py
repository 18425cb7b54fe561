# SPDX-License-Identifier: GPL-2.0-only
"""Getting the source: fetching with a fake apt-get, and the user's own trees."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from guests import Patch
from quell import debian, prereq, source
from quell.errors import QuellError, UsageError
from quell.paths import Cache

from conftest import Fake, fails, write_files, write_tree


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A small linux-source-6.12 package."""
    root, name = tmp_path / "deb", "linux-source-6.12"
    write_files(root, {
        f"usr/src/{name}.tar.xz": "",
        "DEBIAN/control": f"Package: {name}\nVersion: 6.12.7-1~deb12u1\nArchitecture: all\n"
        "Maintainer: x <x@localhost>\nDescription: x\n",
    })  # fmt: skip
    write_tree(tmp_path / "stage" / name)
    archive, deb = root / f"usr/src/{name}.tar.xz", tmp_path / f"{name}_6.12.7-1~deb12u1_all.deb"
    subprocess.run(["tar", "-cJf", archive, "-C", tmp_path / "stage", name], check=True)
    subprocess.run(["dpkg-deb", "-b", root, deb], check=True, capture_output=True)
    return deb


def test_fetch_and_reuse(cache: Cache, package: Path, fake_program: Fake, tmp_path: Path) -> None:
    fake_program("apt-get", f"""echo "$*" >>{tmp_path}/calls
case "$*" in
*--print-uris*) echo "'http://x/y' x.deb 123 SHA256:0" ;;
*download*) cp {package} . ;;
esac""")  # fmt: skip
    found = source.debian_source(cache)
    assert found.version == "6.12.7" and found.key.startswith("debian-6.12.7-1-deb12u1-")
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


def test_old_lists_are_updated(cache: Cache, package: Path, fake_program: Fake, tmp_path: Path) -> None:
    fake_program("apt-get", f"""case "$*" in
*update*) touch {tmp_path}/updated ;;
*) [ -e {tmp_path}/updated ] || {{ echo "E: Unable to locate package x" >&2; exit 100; }} ;;
esac
case "$*" in *print-uris*) ;; *download*) cp {package} . ;; esac""")  # fmt: skip
    assert source.debian_source(cache).version == "6.12.7"


def test_fetches_that_fail(cache: Cache, fake_program: Fake, monkeypatch: Patch) -> None:
    error = "E: Failed to fetch http://x  Temporary failure resolving 'x'"
    fake_program("apt-get", f'echo "{error}" >&2; exit 100')
    assert error in fails(UsageError, "there is no network", source.debian_source, cache).detail
    assert source.present_source(cache) is None and not list(cache.source.iterdir())
    missing = 'echo "E: Unable to locate package x" >&2; exit 100'
    fake_program("apt-get", f'case "$*" in *update*) ;; *) {missing} ;; esac')
    fails(UsageError, "have no linux-source-6.12.*--kernel", source.debian_source, cache)
    monkeypatch.setattr(prereq, "apt_get", lambda: None)
    fails(UsageError, "--kernel", source.debian_source, cache)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 5_000_000_000))
    says = r"needs 12\.0 GB of disk space.* has 5\.0 GB free"
    fails(UsageError, says, source.debian_source, cache)


def test_another_version_comes_from_lists_of_its_own(
    cache: Cache, fake_program: Fake, monkeypatch: Patch, tmp_path: Path
) -> None:
    keyring = tmp_path / "keyring.gpg"
    keyring.write_text("")
    monkeypatch.setattr(debian, "_KEYRING", str(keyring))
    monkeypatch.setattr(debian, "_codename", lambda: "bookworm")
    fake_program("apt-get", f"""echo "$*" >>{tmp_path}/calls
case "$*" in
*indextargets*) echo "bookworm main file:///mirror/debian/" ;;
*update*) cat "$(echo "$*" | sed 's/.*sourcelist=//;s/ .*//')" >{tmp_path}/sources ;;
*) echo "E: Unable to locate package linux-source-7.3" >&2; exit 100 ;;
esac""")  # fmt: skip
    says = r"trixie-backports has no linux-source-7\.3 any more; give a 7\.3 tree"
    fails(UsageError, says, source.debian_source, cache, "7.3")
    assert "Suites: trixie-backports\n" in (tmp_path / "sources").read_text()
    updates = [line for line in (tmp_path / "calls").read_text().splitlines() if " update" in line]
    assert len(updates) == 1 and "Dir::State::lists=" in updates[0] and "sourceparts=-" in updates[0]


def test_broken_package(cache: Cache, fake_program: Fake) -> None:
    (cache.downloads / "linux-source-6.12_1_all.deb").write_text("not a package")
    fails(QuellError, None, source.debian_source, cache)
    assert not list(cache.source.iterdir())


def snapshot(tree: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in tree.rglob("*")}


@pytest.mark.parametrize(("version", "also", "says"), [
    ("6.1.120", "", r"is Linux 6\.1\.120, but Quell is for Linux 6\.12"),
    ("6.120.3", "", r"Linux 6\.120\.3"),
    ("6.12.7", "mm/Kconfig.quell", "has Quell applied already"),
    ("", "file", "not a Linux source tree"), ("", "", "no folder"),
])  # fmt: skip
def test_refused_trees(version: str, also: str, says: str, cache: Cache, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", version) if version else tmp_path / "tree"
    if also:
        write_files(tree, {also: ""})
    fails(UsageError, says, source.user_tree, tree, cache)


@pytest.mark.parametrize("also", ["", "/*\n!/debian/\n"], ids=["Linux's", "Debian's"])
def test_user_folder(also: str, cache: Cache, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree")
    (tree / "mm/rmap.o").write_text("a build product")
    if also:
        (tree / ".gitignore").write_text(f"*.o\n{also}")
        (tree / ".config").write_text("of a build in the folder")
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
    user = ["-c", "user.name=x", "-c", "user.email=x@x"]
    for command in (["init", "-q"], ["add", "-A"], [*user, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=tree, check=True)
    write_files(tree, {"mm/rmap.o": "a build product", "mm/new.c": "new"})
    (tree / "mm/vmscan.c").unlink()
    index = (tree / ".git/index").stat().st_mtime_ns
    found = source.user_tree(tree, cache)
    assert {path.name for path in (found.tree / "mm").iterdir()} == {"rmap.c", "Kconfig", "new.c"}
    assert not (found.tree / ".git").exists()
    assert (tree / ".git/index").stat().st_mtime_ns == index
    assert source.user_tree(tree, cache) == found
    (tree / "mm/new.c").write_text("newer")
    assert source.user_tree(tree, cache).key != found.key


def test_prerequisites(monkeypatch: Patch, fake_program: Fake, tmp_path: Path) -> None:
    wanted = [prereq.Prerequisite("quell-no-such-program", "some-package", "x")]
    assert prereq.missing(wanted) == wanted
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    fails(UsageError, "run: sudo apt-get install .* some-package", prereq.ensure, wanted)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("quell.ui.can_ask", lambda: False)
    fake_program("apt-get", 'echo "E: Could not resolve x" >&2; exit 100')
    fails(UsageError, "there is no network", prereq.ensure, wanted)
    program = tmp_path / "fake-bin/quell-no-such-program"
    fake_program("apt-get", f"echo '#!/bin/sh' >{program}; chmod +x {program}")
    prereq.ensure(wanted)
    assert prereq.missing(wanted) == []
