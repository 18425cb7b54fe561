# SPDX-License-Identifier: GPL-2.0-only
"""Disks of a guest: the user's ``--data``, and images by the real tools."""

import errno
import os
import re
import shutil
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from conftest import Fake, fails, write_files
from guests import Patch
from quell import disks, prereq
from quell.errors import QuellError, UsageError
from quell.paths import Cache

MAGIC = {
    "ext4": (0x438, b"\x53\xef"), "xfs": (0, b"XFSB"), "btrfs": (0x10040, b"_BHRfS_M"),
    "f2fs": (1024, b"\x10\x20\xf5\xf2"), "erofs": (1024, b"\xe2\xe1\xf5\xe0"), "squashfs": (0, b"hsqs"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a blank in its name, a link, and odd modes; all of it fits xfs."""
    path = tmp_path / "my data"
    write_files(path, {"file": "hello\n", "in/deep/last": "last\n"})
    (path / "file").chmod(0o4640)
    (path / "in").chmod(0o2711)
    (path / "link").symlink_to("in/deep/last")
    return path


def debugfs(image: Path, command: str) -> str:
    argv = [str(prereq.which("debugfs")), "-R", command, str(image)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_data_paths(folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(folder)
    assert disks.parse_data(f"{folder}/") == disks.Data(folder)
    assert disks.parse_data("in/../file:f2fs") == disks.Data(folder / "file", "f2fs")
    assert disks.parse_data("link").path == folder / "link"
    for name in ("12:30", "file:xfs"):
        (folder / name).touch()
    assert disks.parse_data("12:30") == disks.Data(folder / "12:30")
    assert disks.parse_data("12:30:xfs") == disks.Data(folder / "12:30", "xfs")
    assert disks.parse_data("file:xfs:ext4") == disks.Data(folder / "file:xfs")


@pytest.mark.parametrize(("text", "says"), [
    ("file:ext5", "no file or folder 'file:ext5' .* one of ext4, xfs, btrfs, f2fs, erofs, squashfs"),
    ("gone:xfs", "there is no file or folder 'gone'"),
    (":xfs", "there is no file or folder ''"),
    ("/", "cannot take /;"),
    ("/run", "cannot take /run;"),
    ("/proc/self/status", "cannot take /proc/self/status"),
    ("/dev/null:ext4", "cannot take /dev/null"),
    ("to-proc", "cannot take .*/to-proc"),
])  # fmt: skip
def test_wrong_data(folder: Path, monkeypatch: Patch, text: str, says: str) -> None:
    monkeypatch.chdir(folder)
    Path("to-proc").symlink_to("/proc")
    fails(UsageError, says, disks.parse_data, text)


def test_images(folder: Path, monkeypatch: Patch) -> None:
    raw, qcow2 = folder / "raw img", folder / "x.qcow2"
    for file, data, form in (raw, b"QF", "raw"), (qcow2, b"QFI\xfb\0\0\0\2", "qcow2"):
        file.write_bytes(data)
        assert disks.parse_disk(str(file)) == disks.Disk(file, form)
    os.mkfifo(folder / "fifo")
    for name, says in ("fifo", "is neither"), ("in", "is neither"), ("gone", "No such file"):
        fails(UsageError, says, disks.parse_disk, str(folder / name))
    opened = Mock(side_effect=OSError(errno.EBUSY, "busy"))
    monkeypatch.setattr(os, "open", opened)
    fails(UsageError, "raw img cannot be used: busy", disks.parse_disk, str(raw))
    assert opened.call_args.args[1] & os.O_EXCL


@pytest.mark.parametrize("copied", [False, True])
def test_ext4_of_a_folder(folder: Path, cache: Cache, monkeypatch: Patch, copied: bool) -> None:
    if copied:
        monkeypatch.setattr(disks, "_can_bind", lambda: False)
    (folder / "a b").write_text("blank\n")
    (folder / "in").chmod(0o555)
    data = disks.parse_data(str(folder))
    disk = disks.image_of(data, cache)
    assert (disk.target, disk.filesystem, disk.format) == (str(folder), "ext4", "raw")
    assert debugfs(disk.image, 'cat "/data/a b"') == "blank\n"
    file = debugfs(disk.image, "stat /data/file")
    assert "Mode:  04640" in file and f"User: {os.geteuid():5}" in file
    assert "in/deep/last" in debugfs(disk.image, "stat /data/link")
    assert sorted(path.name for path in folder.iterdir()) == ["a b", "file", "in", "link"]
    made = disk.image.stat().st_ino
    assert disks.image_of(data, cache).image.stat().st_ino == made
    (folder / "in/deep/last").write_text("more\n")
    assert disks.image_of(data, cache).image != disk.image


def test_ext4_of_a_file_and_of_many(folder: Path, cache: Cache) -> None:
    disk = disks.image_of(disks.parse_data(str(folder / "link")), cache)
    assert disk.target == str(folder / "link")
    assert debugfs(disk.image, "cat /data") == "last\n"
    for number in range(4000):
        (folder / f"in/deep/{number}").touch()
    image = folder.parent / "image"
    disks.make_ext4(image, folder, room=0)
    assert "Type: regular" in debugfs(image, "stat /in/deep/3999")


@pytest.mark.parametrize("name", disks.FILE_SYSTEMS)
def test_every_file_system(folder: Path, cache: Cache, name: str) -> None:
    prereq.ensure(disks._tools(name))
    disk = disks.image_of(disks.parse_data(f"{folder}:{name}"), cache)
    offset, magic = MAGIC[name]
    with disk.image.open("rb") as file:
        file.seek(offset)
        assert file.read(len(magic)) == magic
    assert list(disk.image.parent.iterdir()) == [disk.image]


@pytest.mark.parametrize(("odd", "mode", "size"), [
    ("a b", 0, 0), (":", 0, 0), ("$", 0, 0), ("t", 0o1000, 0), ("2G", 0, 2**31),
])  # fmt: skip
def test_xfs_says_what_it_cannot_take(folder: Path, cache: Cache, odd: str, mode: int, size: int) -> None:
    prereq.ensure(disks._tools("xfs"))
    (folder / odd).touch()
    (folder / odd).chmod(0o644 | mode)
    os.truncate(folder / odd, size)
    with pytest.raises(UsageError, match=f"mkfs.xfs does not take {re.escape(str(folder / odd))}: .*; use ext4"):
        disks.image_of(disks.parse_data(f"{folder}:xfs"), cache)
    assert not list(cache.data.iterdir())


def test_no_room_and_nothing_written(folder: Path, cache: Cache, monkeypatch: Patch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 1000))
    fails(UsageError, "the disk of .*my data needs 134 MB", disks.image_of, disks.parse_data(str(folder)), cache)
    assert not list(cache.data.iterdir())
    fails(UsageError, "contains Quell's cache", disks.image_of, disks.Data(folder.parent), cache)


def test_failures_leave_nothing(folder: Path, cache: Cache, fake_program: Fake) -> None:
    real = prereq.which("mkfs.ext4")
    data = disks.parse_data(str(folder))
    fake_program("mkfs.ext4", f'echo new > "{folder}/file"; exec {real} "$@"')
    fails(QuellError, "my data changed while it was copied; run it again", disks.image_of, data, cache)
    fake_program("mkfs.ext4", "echo disk on fire >&2; exit 4")
    caught = fails(QuellError, "cannot be made: mkfs.ext4 failed with exit code 4", disks.image_of, data, cache)
    assert caught.detail == "disk on fire"
    fake_program("mkfs.ext4", f"kill -s INT {os.getpid()}; sleep 20")
    fails(KeyboardInterrupt, None, disks.image_of, data, cache)
    assert not list(cache.data.iterdir())
