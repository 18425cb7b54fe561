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

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quell import prereq, proc, ui
from quell.errors import QuellError, UsageError, failing
from quell.paths import Cache, require_space, tree_size

MIB = 1 << 20
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
    """``PATH[:FS]`` of ``--data``; UsageError when there is no such file, folder or file system.

    A path that itself ends in the name of a file system is written as PATH:ext4.
    """
    name, colon, filesystem = text.rpartition(":")
    if colon and filesystem in MAKERS and (os.path.lexists(name) or not os.path.lexists(text)):
        pass
    elif colon and os.path.lexists(name) and not os.path.lexists(text):
        raise UsageError(f"--data knows no file system '{filesystem}', only {', '.join(MAKERS)}")
    else:
        name, filesystem = text, "ext4"
    path = Path(os.path.abspath(name))
    if not name or not os.path.exists(path):
        raise UsageError(f"there is no file or folder '{name}' for --data")
    for one in (path, path.resolve()):
        if one in _TOP_NOT_DATA or any(one.is_relative_to(root) for root in _NOT_DATA):
            raise UsageError(f"--data cannot take {path}; name the files that the command reads")
    if not (os.path.isfile(path) or os.path.isdir(path)):
        raise UsageError(f"--data takes a file or a folder, and {path} is neither")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path} cannot be read")
    return Data(path, filesystem)


def check_data(every: Sequence[Data]) -> None:
    """UsageError when one of them is inside another, or is named twice."""
    names = [{one.path, one.path.resolve()} for one in every]
    for number, one in enumerate(every):
        for other in range(number):
            pairs = [(a, b) for a in names[number] for b in names[other]]
            if any(a.is_relative_to(b) or b.is_relative_to(a) for a, b in pairs):
                raise UsageError(f"--data {every[other].path} and --data {one.path} overlap; leave one out")


def parse_disk(text: str, root: Path = Path("/")) -> Disk:
    """``IMAGE-OR-DEVICE`` of ``--disk``; UsageError for anything else and for a device in use.

    ``root`` is the folder of /proc and /sys.
    """
    path = Path(os.path.abspath(text))
    try:
        status = path.stat()
        if stat.S_ISBLK(status.st_mode):
            if used := in_use(status.st_rdev, root):
                raise UsageError(f"the disk {path} is {used}; a guest would read it half-written")
            path.open("rb").close()
            return Disk(path)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"--disk takes an image or a block device, and {path} is neither")
        if not status.st_size:
            raise UsageError(f"the image {path} is empty")
        with path.open("rb") as file:
            return Disk(path, "qcow2" if file.read(4) == _QCOW2 else "raw")
    except OSError as error:
        raise UsageError(f"the disk {path} cannot be used: {error.strerror}") from error


def in_use(device: int, root: Path = Path("/")) -> str:
    """The use of a block device, "mounted on /x" or "used for swap", or ""; ``device`` is its number.

    Its partitions count, too, and the volumes on any of them.
    """
    numbers = set(_with_holders(f"{os.major(device)}:{os.minor(device)}", root))
    for line in (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields, _, source = line.partition(" - ")
        number, where = fields.split(" ")[2], fields.split(" ")[4]
        # Btrfs uses device numbers of its own: compare the source, too.
        if number in numbers or _number(source.split(" ")[1]) in numbers:
            return f"mounted on {_unescape(where)}"
    for line in (root / "proc/swaps").read_text(errors="surrogateescape").splitlines()[1:]:
        if _number(line.split()[0]) in numbers:
            return "used for swap"
    return ""


def _with_holders(number: str, root: Path) -> Iterator[str]:
    yield number
    folder = root / "sys/dev/block" / number
    for below in (*(file.parent for file in folder.glob("*/partition")), *folder.glob("holders/*")):
        yield from _with_holders((below / "dev").read_text().strip(), root)


def _number(escaped: str) -> str:
    """The number of a block device with a name from /proc; "" for other names."""
    try:
        status = os.stat(_unescape(escaped))
    except OSError:
        return ""
    if not stat.S_ISBLK(status.st_mode):
        return ""
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


# --- images -----------------------------------------------------------------


@dataclass(frozen=True)
class _Content:
    """The content of a path: its digest, its bytes on a disk, and the number of host file systems."""

    digest: str
    size: int
    devices: int


def image_of(data: Data, cache: Cache) -> Disk:
    """The disk of the user's data; its image is made once for this content and kept in the cache.

    UsageError without disk space, or where the file system cannot hold the data. QuellError when
    the data change during the copy. Errors leave no files.
    """
    real = data.path.resolve()
    if cache.root.resolve().is_relative_to(real):
        raise UsageError(f"--data {data.path} contains Quell's cache {cache.root}; name folders without it")
    content = _content(data)
    name = f"image.{data.filesystem}"

    def make(temp: Path) -> None:
        # mkfs.btrfs tells files apart by inode number alone.
        bind = _can_bind() and not (data.filesystem == "btrfs" and content.devices > 1)
        needed = content.size * 105 // 100 + 128 * MIB + (0 if bind else content.size)
        require_space(cache.data, needed, f"a disk of {data.path}")
        prereq.ensure(_tools(data.filesystem))
        made = temp / name
        what = f"making a disk ({data.filesystem}) of {data.path}"
        with (
            ui.watched(what, content.size, lambda: min(content.size, tree_size(made))),
            failing(f"the disk of {data.path} cannot be made"),
        ):
            _make(made, data.filesystem, real, temp / "stage", bind)
        if _content(data).digest != content.digest:
            raise QuellError(f"{data.path} changed while it was copied; run it again")

    folder = cache.made(cache.data / f"own-{content.digest}", make)
    return Disk(folder / name, target=str(data.path), filesystem=data.filesystem)


def _content(data: Data) -> _Content:
    digest = hashlib.sha256(os.fsencode(f"{data.filesystem}\0{data.path}"))
    size, devices = 0, set()
    for name, status in _walk(data.path.resolve()):
        facts = (name, status.st_size, status.st_ctime_ns, status.st_mode)
        digest.update(json.dumps(facts).encode())
        size += _space(status)
        devices.add(status.st_dev)
    return _Content(digest.hexdigest()[:16], size, len(devices))


def _walk(top: Path) -> Iterator[tuple[str, os.stat_result]]:
    """(name below ``top``, status) of ``top`` and its content, sorted, a folder before its content."""
    names = [""]
    while names:
        name = names.pop()
        path = os.path.join(top, name) if name else str(top)
        try:
            status = os.lstat(path)
            inner = os.listdir(path) if stat.S_ISDIR(status.st_mode) else []
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        yield name, status
        names += [os.path.join(name, one) for one in sorted(inner, reverse=True)]


def _space(status: os.stat_result) -> int:
    """An entry's bytes on a disk, with its inode."""
    least = 4096 if stat.S_ISDIR(status.st_mode) else 0
    return max(status.st_size, least) + 4096


def _can_bind() -> bool:
    """Whether a mount namespace is available: root in a container may have none."""
    if os.geteuid() != 0:
        return False
    return proc.run([*_NAMESPACE, "true"], timeout=30, check=False).returncode == 0


def _make(image: Path, filesystem: str, real: Path, stage: Path, bind: bool) -> None:
    """The image of the content of ``real``; ``stage`` is a temporary folder."""
    stage.mkdir()
    place = stage / ENTRY
    try:
        if not bind:
            proc.run(["cp", "-a", "--reflink=auto", "--", real, place], timeout=_TIMEOUT_S)
        elif real.is_dir():
            place.mkdir()
        else:
            place.touch()
        MAKERS[filesystem](image, stage, real if bind else None, ROOM)
    finally:
        # A copied folder may forbid its own removal.
        if not bind:
            proc.run(["chmod", "-R", "u+rwX", "--", stage], timeout=_TIMEOUT_S, check=False)
        proc.run(["rm", "-rf", "--one-file-system", "--", stage], timeout=_TIMEOUT_S, check=False)


# --- file systems -----------------------------------------------------------

_NAMESPACE = ("unshare", "-m", "--propagation", "private")
_BOUND = 'mount --rbind "$1" "$2" && shift 2 && exec "$@"'


# Makes an image whose root is the content of the folder ``root``. With ``bound``, that file or folder
# is bound to ``root``'s ENTRY while mkfs runs. ``room`` are bytes that a guest can still write.
# Owners, modes and symbolic links are kept. The parameters: image, root, bound, room.
Maker = Callable[..., None]


def _tools(filesystem: str) -> list[prereq.Prerequisite]:
    program = "mksquashfs" if filesystem == "squashfs" else f"mkfs.{filesystem}"
    return [item for item in (*prereq.VM, *prereq.FILE_SYSTEMS) if item.need == program]


def _run(
    program: str, *args: str | Path, root: Path, bound: Path | None = None, good: Sequence[int] = (0,)
) -> None:
    """Run a program in the folder ``root``, with ``bound`` in its place."""
    argv: list[str | Path] = [prereq.which(program) or program, *args]
    if bound is not None:
        argv = [*_NAMESPACE, "sh", "-c", _BOUND, "sh", bound, root / ENTRY, *argv]
    done = proc.run(argv, cwd=root, timeout=_TIMEOUT_S, check=False)
    if done.returncode not in good:
        detail = proc.tail(done.stderr or done.stdout)
        raise QuellError(f"{program} {proc.how_ended(done.returncode)}", detail=detail)


def _entries(root: Path, bound: Path | None) -> Iterator[tuple[str, Path, os.stat_result]]:
    """(name below ``root``, real path, status) of ``root`` and all entries that mkfs will find."""
    for name, status in _walk(root):
        if bound is None or name != ENTRY:
            yield name, root / name, status
            continue
        for inner, below in _walk(bound):
            yield os.path.join(ENTRY, inner) if inner else ENTRY, bound / inner, below


def _measure(root: Path, bound: Path | None) -> tuple[int, int]:
    """(bytes, entries) of an image's content."""
    used = count = 0
    for _, _, status in _entries(root, bound):
        used += _space(status)
        count += 1
    return used, count


def _empty(image: Path, size: int) -> None:
    with image.open("wb") as file:
        file.truncate(-(-size // MIB) * MIB)


def make_ext4(image: Path, root: Path, bound: Path | None = None, room: int = 32 * MIB) -> None:
    """An ext4 image, its tables initialized."""
    prereq.ensure(_tools("ext4"))
    used, count = _measure(root, bound)
    blocks = (used * 105 // 100 + room) // MIB + 1
    more: list[str | Path] = []
    # mkfs makes one inode per 16 KiB, and 4 KiB on a small disk (mke2fs.conf).
    if count > blocks * MIB // (4096 if blocks < 512 else 16384) * 9 // 10:
        count += count // 4
        blocks += count * 256 // MIB
        more = ["-N", str(count)]
    options = "lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0"
    more += ["-E", options, "-d", root, image, f"{blocks}M"]
    _run("mkfs.ext4", "-q", "-m", "0", *more, root=root, bound=bound)


def make_xfs(image: Path, root: Path, bound: Path | None = None, room: int = 0) -> None:
    """An xfs image, by a prototype file; UsageError for content that such a file cannot name."""
    prereq.ensure(_tools("xfs"))
    lines = ["/", "0 0", "d--755 0 0"]
    used = depth = 0
    for name, path, status in _entries(root, bound):
        used += _space(status)
        if not name:
            continue
        level = name.count("/")
        lines += ["$"] * (depth - level)
        lines.append(_proto_line(name, path, status))
        depth = level + stat.S_ISDIR(status.st_mode)
    lines += ["$"] * (depth + 1)
    proto = image.with_suffix(".proto")
    proto.write_bytes(os.fsencode("\n".join(lines) + "\n"))
    # mkfs writes a file in one piece, which has to fit into one allocation group. Two groups are
    # the minimum. The image is sparse.
    group = (used * 105 // 100 + 320 * MIB) // MIB
    shape = f"file,size={2 * group + room // MIB}m,agcount=2"
    _run("mkfs.xfs", "-q", "-d", shape, "-p", proto, image, root=root, bound=bound)
    proto.unlink()


def _proto_line(name: str, path: Path, status: os.stat_result) -> str:
    """The line of xfs' prototype file for an entry; its data are at ``name`` while mkfs runs."""
    mode, last, words = status.st_mode, os.path.basename(name), [os.path.basename(name), name]
    if stat.S_ISLNK(mode):
        words = [last, os.readlink(path)]
    if any(re.search(r"[ \t\n]|^:|^\$$", word) for word in words):
        raise UsageError(f"mkfs.xfs takes no name or link such as {path} (blanks, a colon first, $); use ext4")
    if mode & stat.S_ISVTX or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        raise UsageError(f"mkfs.xfs takes no special files and no sticky bits, such as {path}; use ext4")
    if stat.S_ISREG(mode) and status.st_size > _XFS_FILE_MAX:
        raise UsageError(f"mkfs.xfs takes no files of 2 GiB or more, such as {path}; use ext4")
    kind = "d" if stat.S_ISDIR(mode) else "l" if stat.S_ISLNK(mode) else "-"
    set_ids = ("u" if mode & stat.S_ISUID else "-") + ("g" if mode & stat.S_ISGID else "-")
    head = f"{last} {kind}{set_ids}{mode & 0o777:03o} {status.st_uid} {status.st_gid}"
    return head if kind == "d" else f"{head} {words[1]}"


def make_btrfs(image: Path, root: Path, bound: Path | None = None, room: int = 0) -> None:
    """A btrfs image."""
    prereq.ensure(_tools("btrfs"))
    _empty(image, _measure(root, bound)[0] * 110 // 100 + 256 * MIB + room)
    _run("mkfs.btrfs", "-q", "--rootdir", root, image, root=root, bound=bound)


def make_f2fs(image: Path, root: Path, bound: Path | None = None, room: int = 0) -> None:
    """An f2fs image."""
    prereq.ensure(_tools("f2fs"))
    _empty(image, _measure(root, bound)[0] * 115 // 100 + 256 * MIB + room)
    _run("mkfs.f2fs", "-q", image, root=root)
    # sload.f2fs ends with a check; its exit code 1 means that it corrected something.
    _run("sload.f2fs", "-P", "-f", root, image, root=root, bound=bound, good=(0, 1))


def make_erofs(image: Path, root: Path, bound: Path | None = None, room: int = 0) -> None:
    """An erofs image, not compressed."""
    prereq.ensure(_tools("erofs"))
    _run("mkfs.erofs", "--quiet", image, root, root=root, bound=bound)


def make_squashfs(image: Path, root: Path, bound: Path | None = None, room: int = 0) -> None:
    """A squashfs image, compressed with gzip as by default."""
    prereq.ensure(_tools("squashfs"))
    options = ["-comp", "gzip", "-noappend", "-no-progress", "-quiet"]
    _run("mksquashfs", root, image, *options, root=root, bound=bound)


MAKERS: dict[str, Maker] = {
    "ext4": make_ext4,
    "xfs": make_xfs,
    "btrfs": make_btrfs,
    "f2fs": make_f2fs,
    "erofs": make_erofs,
    "squashfs": make_squashfs,
}
