# SPDX-License-Identifier: GPL-2.0-only
"""The cache folder: where it is, its locks, atomic folders and files, disk space."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import Capture
from guests import Patch, lab_env
from quell import paths
from quell.errors import UsageError
from quell.paths import Cache

HOLD = """
import sys, time
from quell.paths import Cache
with Cache().in_use(), Cache().lock("build-stock"):
    print("held", flush=True)
    sys.stdin.readline()
"""


def holder() -> subprocess.Popen[str]:
    """Another process that holds the lock build-stock until it gets a line."""
    argv, pipe = [sys.executable, "-c", HOLD], subprocess.PIPE
    process = subprocess.Popen(argv, env=lab_env(), stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_where(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUELL_CACHE", str(tmp_path / "own"))
    assert Cache().root == tmp_path / "own"
    monkeypatch.delenv("QUELL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Cache().root == tmp_path / "quell"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert Cache().root == Path("/home/someone/.cache/quell")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="set QUELL_CACHE"):
        _ = Cache(tmp_path / "file").source


def test_lock_waits(cache: Cache, capsys: Capture) -> None:
    other = holder()
    assert other.stdin is not None
    with cache.lock("other-name"):
        pass
    started = time.monotonic()
    # A shell releases it while we wait.
    release = subprocess.Popen(["sh", "-c", "sleep 2; echo"], stdout=other.stdin)
    with cache.lock("build-stock"):
        waited = time.monotonic() - started
    assert waited > 0.3
    assert "another quell that holds build-stock" in capsys.readouterr().err
    for process in (release, other):
        process.wait(10)


def test_exclusive_is_refused_while_used(cache: Cache) -> None:
    other = holder()
    with pytest.raises(UsageError, match="another quell"), cache.exclusive():
        pass
    # The locks of a killed process are free.
    other.kill()
    other.wait()
    with cache.exclusive(), cache.lock("build-stock"):
        pass


def test_atomic_dir(tmp_path: Path) -> None:
    final = tmp_path / "final"
    (tmp_path / ".tmp-final-dead").mkdir()  # left by a kill
    with pytest.raises(KeyboardInterrupt), paths.atomic_dir(final) as temp:
        (temp / "a").write_text("1")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    with paths.atomic_dir(final) as temp:
        (temp / "a").write_text("1")
        assert not final.exists()
    assert (final / "a").read_text() == "1"
    with paths.atomic_dir(final) as temp:
        (temp / "b").write_text("2")
    assert [path.name for path in final.iterdir()] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_write_atomic(tmp_path: Path) -> None:
    paths.write_atomic(tmp_path / "sub/file", "text", mode=0o755)
    assert (tmp_path / "sub/file").read_text() == "text"
    assert (tmp_path / "sub/file").stat().st_mode & 0o777 == 0o755
    assert len(list((tmp_path / "sub").iterdir())) == 1


def test_disk_full(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 3_100_000_000))
    with pytest.raises(UsageError, match=r"needs 12\.0 GB .* has 3\.1 GB free"):
        paths.require_space(tmp_path / "not/there", 12_000_000_000, "building")
    paths.require_space(tmp_path, 3_000_000_000, "building")


def test_tree_size(tmp_path: Path) -> None:
    assert paths.tree_size(tmp_path / "none") == 0
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    once = paths.tree_size(tmp_path)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert paths.tree_size(tmp_path) == once >= 100_000
