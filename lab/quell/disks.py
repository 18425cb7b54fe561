# SPDX-License-Identifier: GPL-2.0-only
"""Disks of a guest: the user's own data on a real file system, and unchanged images or devices.

A guest reads the host's root over 9p, where no mechanism of the page cache applies. Data that
a command reads should be on a disk: ``image_of`` makes one of a file or folder.

- The image's root has one entry, ENTRY. The guest mounts the image aside and binds ENTRY to the
  data's path on the host (guest/runner.c).
- A disk is attached as a snapshot (``machine.command_line``): a guest cannot change it.
- An image is kept in the cache under a digest of the data's names, sizes, modes and change times.
  The digest is taken again after the copy: no image mixes two states.
- With a mount namespace mkfs reads the data through a bind mount. Otherwise they are copied
  first; without root the copy belongs to the user in the guest.
"""

import functools
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quell import prereq, proc, ui
from quell.errors import QuellError, UsageError, failing
from quell.paths import Cache, require_space

MIB = 1 << 20
FILE_SYSTEMS = ("ext4", "xfs", "btrfs", "f2fs", "erofs", "squashfs")
# The entry of an image's root that holds the user's file or folder.
ENTRY = "data"
# Free space on a disk of the user's data. The image is sparse.
ROOM = 1024 * MIB
_QCOW2 = b"QFI\xfb"
# A guest has its own.
_NOT_DATA = ("/proc", "/sys", "/dev")
_TOP_NOT_DATA = (Path("/"), Path("/run"))
# The limit of one read(): mkfs.xfs reads a file with a single call.
_XFS_FILE_MAX = 0x7FFFF000
_TIMEOUT_S = 6 * 3600
_NAMESPACE = ("unshare", "-m", "--propagation", "private")
_BOUND = 'mount --rbind "$1" "$2" && shift 2 && exec "$@"'


@dataclass(frozen=True)
class Disk:
    """A disk: the ``image`` (or block device) and its ``format`` ("raw", "qcow2").

    With ``target`` the guest mounts the ``filesystem`` and binds its ENTRY there. Otherwise
    the disk is only attached.
    """

    image: Path
    format: str = "raw"
    target: str = ""
    filesystem: str = ""


@dataclass(frozen=True)
class Data:
    """A file or folder of the host, and its file system in the guest."""

    path: Path
    filesystem: str = "ext4"


# --- the options ----------------------------------------------------------


def parse_data(text: str) -> Data:
    """``PATH[:FS]`` of ``--data``; UsageError when there is no such file or folder.

    A path that itself ends in the name of a file system is written as PATH:ext4.
    """
    name, colon, filesystem = text.rpartition(":")
    if not colon or filesystem not in FILE_SYSTEMS:
        name, filesystem = text, "ext4"
    path = Path(os.path.abspath(name))
    if not name or not path.exists():
        known = ", ".join(FILE_SYSTEMS)
        raise UsageError(f"there is no file or folder '{name}' for --data PATH[:FS], FS one of {known}")
    for one in (path, path.resolve()):
        if one in _TOP_NOT_DATA or any(one.is_relative_to(root) for root in _NOT_DATA):
            raise UsageError(f"--data cannot take {path}; name the files that the command reads")
    return Data(path, filesystem)


def parse_disk(text: str) -> Disk:
    """``IMAGE-OR-DEVICE`` of ``--disk``; UsageError for anything else and for a device in use."""
    path = Path(os.path.abspath(text))
    try:
        if stat.S_IFMT(path.stat().st_mode) not in (stat.S_IFREG, stat.S_IFBLK):
            raise UsageError(f"--disk takes an image or a block device, and {path} is neither")
        # With O_EXCL the kernel refuses a device that is mounted, used for swap, or part of such a volume.
        with open(os.open(path, os.O_RDONLY | os.O_EXCL), "rb") as file:
            return Disk(path, "qcow2" if file.read(4) == _QCOW2 else "raw")
    except OSError as error:
        raise UsageError(f"the disk {path} cannot be used: {error.strerror}") from error


# --- images -----------------------------------------------------------------


def image_of(data: Data, cache: Cache) -> Disk:
    """The disk of the user's data; its image is made once for this content and kept in the cache.

    UsageError without disk space, or where the file system cannot hold the data. QuellError when
    the data change during the copy. Errors leave no files.
    """
    real = data.path.resolve()
    if cache.root.resolve().is_relative_to(real):
        raise UsageError(f"--data {data.path} contains Quell's cache {cache.root}; name folders without it")
    digest = _digest(data)
    name, what = f"image.{data.filesystem}", f"the disk of {data.path}"

    def make_image(temp: Path) -> None:
        # mkfs.btrfs tells files apart by inode number alone, also those of two file systems.
        bind = data.filesystem != "btrfs" and _can_bind()
        size, _ = _measure(real)
        require_space(cache.data, size * (1 if bind else 2) * 105 // 100 + 128 * MIB, what)
        # Before the bar: it may ask the user.
        prereq.ensure(_tools(data.filesystem))
        made = temp / name
        with (
            tempfile.TemporaryDirectory(prefix="stage-", dir=temp) as stage,
            ui.watched(f"making {what} ({data.filesystem})", size, lambda: min(size, made.stat().st_blocks * 512)),
            failing(f"{what} cannot be made"),
        ):
            place = Path(stage, ENTRY)
            if not bind:
                proc.run(["cp", "-a", "--reflink=auto", "--", real, place], timeout=_TIMEOUT_S)
            elif real.is_dir():
                place.mkdir()
            else:
                place.touch()
            make(data.filesystem, made, Path(stage), bound=real if bind else None, room=ROOM)
        if _digest(data) != digest:
            raise QuellError(f"{data.path} changed while it was copied; run it again")

    folder = cache.made(cache.data / f"own-{digest}", make_image)
    return Disk(folder / name, target=str(data.path), filesystem=data.filesystem)


def _walk(top: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """``top`` and its content, sorted, a folder before its content."""
    return ((path, path.lstat()) for path in (top, *sorted(top.rglob("*"))))


def _digest(data: Data) -> str:
    digest = hashlib.sha256(os.fsencode(f"{data.filesystem}\0{data.path}"))
    for path, status in _walk(data.path.resolve()):
        facts = (str(path), status.st_size, status.st_ctime_ns, status.st_mode)
        digest.update(json.dumps(facts).encode())
    return digest.hexdigest()[:16]


def _measure(top: Path) -> tuple[int, int]:
    """(bytes on a disk, entries) of ``top`` and its content."""
    sizes = [max(status.st_size, 4096 * stat.S_ISDIR(status.st_mode)) + 4096 for _, status in _walk(top)]
    return sum(sizes), len(sizes)


def _can_bind() -> bool:
    """Whether a mount namespace is available: root in a container may have none."""
    if os.geteuid() != 0:
        return False
    return proc.run([*_NAMESPACE, "true"], timeout=30, check=False).returncode == 0


# --- file systems -----------------------------------------------------------


def make(filesystem: str, image: Path, root: Path, *, bound: Path | None = None, room: int = 32 * MIB) -> None:
    """Make an image whose root is the content of the folder ``root``; owners, modes and links are kept.

    With ``bound``, that file or folder is bound to ``root``'s ENTRY while mkfs runs. ``room`` are bytes
    that a guest can still write. UsageError for content that the file system, or its mkfs, cannot take.
    """
    prereq.ensure(_tools(filesystem))
    used, count = _measure(bound or root)
    if filesystem == "ext4":
        # The default is one inode per 16 KiB, which small files exceed.
        inodes = count * 5 // 4 + room // 16384 + 8192
        blocks = (used * 105 // 100 + inodes * 256 + room) // MIB + 1
        options = "lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0"
        _run(root, bound, "mkfs.ext4", "-q", "-m", "0", "-N", inodes, "-E", options, "-d", root, image, f"{blocks}M")
    elif filesystem == "xfs":
        proto = image.with_suffix(".proto")
        proto.write_bytes(os.fsencode(_prototype(root, bound)))
        # mkfs writes a file in one piece, which has to fit into one allocation group. Two groups are
        # the minimum. The image is sparse.
        group = (used * 105 // 100 + 320 * MIB) // MIB
        shape = f"file,size={2 * group + room // MIB}m,agcount=2"
        _run(root, bound, "mkfs.xfs", "-q", "-d", shape, "-p", proto, image)
        proto.unlink()
    elif filesystem == "btrfs":
        _empty(image, used * 110 // 100 + 256 * MIB + room)
        _run(root, bound, "mkfs.btrfs", "-q", "--rootdir", root, image)
    elif filesystem == "f2fs":
        _empty(image, used * 115 // 100 + 256 * MIB + room)
        _run(root, None, "mkfs.f2fs", "-q", image)
        # sload.f2fs ends with a check; its exit code 1 means that it corrected something.
        _run(root, bound, "sload.f2fs", "-P", "-f", root, image, good=(0, 1))
    elif filesystem == "erofs":
        _run(root, bound, "mkfs.erofs", "--quiet", image, root)
    else:
        options = "-comp gzip -noappend -no-progress -quiet"
        _run(root, bound, "mksquashfs", root, image, *options.split())


make_ext4 = functools.partial(make, "ext4")


def _tools(filesystem: str) -> list[prereq.Prerequisite]:
    program = "mksquashfs" if filesystem == "squashfs" else f"mkfs.{filesystem}"
    return [item for item in (*prereq.VM, *prereq.FILE_SYSTEMS) if item.need == program]


def _run(root: Path, bound: Path | None, program: str, *args: str | int | Path, good: tuple[int, ...] = (0,)) -> None:
    """Run a program in the folder ``root``, with ``bound`` in its place."""
    argv = [prereq.which(program) or program, *map(str, args)]
    if bound is not None:
        argv = [*_NAMESPACE, "sh", "-c", _BOUND, "sh", str(bound), str(root / ENTRY), *argv]
    done = proc.run(argv, cwd=root, timeout=_TIMEOUT_S, check=False)
    if done.returncode not in good:
        detail = proc.tail(done.stderr or done.stdout)
        raise QuellError(f"{program} {proc.how_ended(done.returncode)}", detail=detail)


def _empty(image: Path, size: int) -> None:
    with image.open("wb") as file:
        file.truncate(-(-size // MIB) * MIB)


def _prototype(root: Path, bound: Path | None) -> str:
    """The prototype file of mkfs.xfs; UsageError for content that such a file cannot name."""
    lines, depth = ["/", "0 0", "d--755 0 0"], 0
    top = bound or root
    for path, status in _walk(top):
        name = Path(ENTRY if bound else "", path.relative_to(top))
        if not name.parts:
            continue
        level, mode = len(name.parts) - 1, status.st_mode
        kind = {stat.S_IFREG: "-", stat.S_IFDIR: "d", stat.S_IFLNK: "l"}.get(stat.S_IFMT(mode), "")
        source = os.readlink(path) if kind == "l" else str(name)
        odd = any(re.search(r"[ \t\n]|^:|^\$$", word) for word in (name.name, source))
        if odd or not kind or mode & stat.S_ISVTX or (kind == "-" and status.st_size > _XFS_FILE_MAX):
            raise UsageError(
                f"mkfs.xfs does not take {path}: no blanks, first colons or $ in names and links, no special "
                "files, no sticky bits, no files of 2 GiB; use ext4"
            )
        lines += ["$"] * (depth - level)
        depth = level + (kind == "d")
        set_ids = ("u" if mode & stat.S_ISUID else "-") + ("g" if mode & stat.S_ISGID else "-")
        head = f"{name.name} {kind}{set_ids}{mode & 0o777:03o} {status.st_uid} {status.st_gid}"
        lines.append(head if kind == "d" else f"{head} {source}")
    return "\n".join([*lines, *["$"] * (depth + 1), ""])
