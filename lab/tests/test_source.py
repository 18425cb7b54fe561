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
    # The lists here are old: the first try fails.
    fake_program("apt-get", f"""echo "$*" >>{tmp_path}/calls
case "$*" in
*update*) touch {tmp_path}/updated ;;
*) [ -e {tmp_path}/updated ] || exit 100; cp {package} . ;;
esac""")
    found = source.debian_source(cache)
    assert found.version == "6.12.7" and found.key.startswith("debian-6.12.7-1-deb12u1-")
    assert (found.tree / "mm/rmap.c").exists()
    calls = (tmp_path / "calls").read_text()
    assert source.debian_source(cache) == found == source.present_source(cache)
    assert (tmp_path / "calls").read_text() == calls
    assert not list(cache.source.glob(".tmp-*")) and not list(cache.folder("run").iterdir())


def test_fetches_that_fail(cache: Cache, fake_program: Fake, monkeypatch: Patch, tmp_path: Path) -> None:
    error = "E: Failed to fetch http://x  Temporary failure resolving 'x'"
    fake_program("apt-get", f'echo "{error}" >&2; exit 100')
    says = r"linux-source-6\.12 could not be fetched .*--kernel DIR .is there a network"
    assert error in fails(UsageError, says, source.debian_source, cache).detail
    (tmp_path / "x.deb").write_text("not a package")
    fake_program("apt-get", f"cp {tmp_path}/x.deb .")
    fails(QuellError, "dpkg-deb failed", source.debian_source, cache)
    assert source.present_source(cache) is None and not list(cache.source.iterdir())
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
    says = r"linux-source-7\.3 could not be fetched from trixie-backports; or give a 7\.3 tree"
    fails(UsageError, says, source.debian_source, cache, "7.3")
    assert "Suites: trixie-backports\n" in (tmp_path / "sources").read_text()
    updates = [line for line in (tmp_path / "calls").read_text().splitlines() if " update" in line]
    assert len(updates) == 1 and "Dir::State::lists=" in updates[0] and "sourceparts=-" in updates[0]


def snapshot(tree: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in tree.rglob("*")}


@pytest.mark.parametrize(("version", "also", "says"), [
    ("6.1.120", "", r"is Linux 6\.1\.120, but Quell is for Linux 6\.12"),
    ("6.120.3", "", r"Linux 6\.120\.3"),
    ("6.12.7", "mm/Kconfig.quell", "has Quell applied already"),
    ("", "file", "not a Linux source tree"), ("", "", "or the folder of a Linux tree"),
])  # fmt: skip
def test_refused_trees(version: str, also: str, says: str, cache: Cache, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", version) if version else tmp_path / "tree"
    if also:
        write_files(tree, {also: ""})
    fails(UsageError, says, source.user_tree, tree, cache)


@pytest.mark.parametrize("kind", ["folder", "Debian's", "checkout"])
def test_user_tree(kind: str, cache: Cache, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree")
    if kind == "checkout":
        for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"]):
            subprocess.run(["git", *command], cwd=tree, check=True)
    elif kind == "Debian's":
        write_files(tree, {".gitignore": "*.o\n/*\n!/debian/\n", ".config": "of a build in the folder"})
    write_files(tree, {"mm/rmap.o": "a build product", "mm/new.c": "new"})
    (tree / "mm/vmscan.c").unlink()
    before = snapshot(tree)
    found = source.user_tree(tree, cache)
    assert found.version == "6.12.7" and found.tree != tree
    assert {path.name for path in (found.tree / "mm").iterdir()} == {"rmap.c", "Kconfig", "new.c"}
    assert not (found.tree / ".git").exists() and not (found.tree / ".config").exists()
    assert (found.tree / "scripts/tool.sh").stat().st_mode & 0o100
    assert snapshot(tree) == before
    (tree / "mm/rmap.o").write_text("another build product")
    assert source.user_tree(tree, cache) == found
    time.sleep(0.01)
    (tree / "mm/rmap.c").write_text("changed")
    assert source.user_tree(tree, cache).key != found.key


def test_prerequisites(monkeypatch: Patch, fake_program: Fake, tmp_path: Path) -> None:
    wanted = [prereq.Prerequisite("quell-no-such-program", "some-package", "x")]
    assert prereq.missing(wanted) == wanted
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    fails(UsageError, "run: sudo apt-get install .* some-package", prereq.ensure, wanted)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("quell.ui.can_ask", lambda: False)
    fake_program("apt-get", 'echo "E: Could not resolve x" >&2; exit 100')
    fails(UsageError, "could not be installed .is there a network", prereq.ensure, wanted)
    program = tmp_path / "fake-bin/quell-no-such-program"
    fake_program("apt-get", f"echo '#!/bin/sh' >{program}; chmod +x {program}")
    prereq.ensure(wanted)
    assert prereq.missing(wanted) == []
