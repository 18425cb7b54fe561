# SPDX-License-Identifier: GPL-2.0-only
"""The Debian packages that the lab needs, and their installation."""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quell import proc, ui
from quell.errors import QuellError, UsageError

# apt-get gives up after about two minutes, and waits for another apt-get.
APT_OPTIONS = (
    "-o", "Acquire::Retries=4",
    "-o", "Acquire::http::Timeout=20",
    "-o", "Acquire::https::Timeout=20",
    "-o", "DPkg::Lock::Timeout=300",
)  # fmt: skip
APT_ENV = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True)
class Prerequisite:
    """A program (``need`` has no slash) or a file, and the Debian package that has it."""

    need: str
    package: str
    why: str

    def present(self) -> bool:
        """Whether it is installed."""
        if self.need.startswith("/"):
            return Path(self.need).exists()
        return which(self.need) is not None


BUILD = (
    Prerequisite("gcc", "gcc", "compiles the kernels and workloads"),
    Prerequisite("/usr/include/stdio.h", "libc6-dev", "compiles the workloads"),
    Prerequisite("make", "make", "builds the kernels"),
    Prerequisite("flex", "flex", "builds the kernels' configuration tool"),
    Prerequisite("bison", "bison", "builds the kernels' configuration tool"),
    Prerequisite("bc", "bc", "builds the kernels"),
    Prerequisite("perl", "perl", "builds the kernels, checkpatch"),
    Prerequisite("/usr/include/libelf.h", "libelf-dev", "builds the kernels' objtool"),
    Prerequisite("/usr/include/openssl/ssl.h", "libssl-dev", "builds the kernels"),
    Prerequisite("ccache", "ccache", "speeds up the second kernel and rebuilds"),
    Prerequisite("xz", "xz-utils", "unpacks the kernel source"),
    Prerequisite("cpio", "cpio", "builds the kernels"),
    Prerequisite("git", "git", "applies the hooks"),
)
VM = (
    Prerequisite("qemu-system-x86_64", "qemu-system-x86", "runs the VMs"),
    Prerequisite("depmod", "kmod", "starts the VMs"),
    Prerequisite("mkfs.ext4", "e2fsprogs", "makes the workloads' disks"),
)
XFS = (Prerequisite("mkfs.xfs", "xfsprogs", "makes disks of XFS"),)
FILE_SYSTEMS = (
    *XFS,
    Prerequisite("mkfs.btrfs", "btrfs-progs", "makes disks of Btrfs"),
    Prerequisite("mkfs.f2fs", "f2fs-tools", "makes disks of F2FS"),
    Prerequisite("mkfs.erofs", "erofs-utils", "makes disks of EROFS"),
    Prerequisite("mksquashfs", "squashfs-tools", "makes disks of SquashFS"),
)
SELFTESTS = (
    Prerequisite("/usr/include/sys/capability.h", "libcap-dev", "compiles the kernel's selftests"),
    Prerequisite("/usr/include/numa.h", "libnuma-dev", "compiles the kernel's selftests"),
    Prerequisite("/usr/include/liburing.h", "liburing-dev", "compiles the kernel's selftests"),
    Prerequisite("/usr/include/popt.h", "libpopt-dev", "compiles the kernel's selftests"),
    Prerequisite("/usr/include/uuid/uuid.h", "uuid-dev", "compiles the kernel's selftests"),
    Prerequisite("setpriv", "util-linux", "runs the kernel's selftests"),
    Prerequisite("losetup", "mount", "runs the kernel's selftests"),
)
TOOLS = (Prerequisite("cmake", "cmake", "builds llama.cpp"), Prerequisite("g++", "g++", "builds llama.cpp"))
COCCINELLE = (Prerequisite("spatch", "coccinelle", "checks the kernel files"),)
SPARSE = (Prerequisite("sparse", "sparse", "checks the kernel files"),)
FAULTS = (
    Prerequisite("dmsetup", "dmsetup", "makes disks fail"),
    Prerequisite("blockdev", "util-linux", "makes disks fail"),
)
STRESS = (Prerequisite("stress-ng", "stress-ng", "stresses memory management"),)
PACKAGES = (
    Prerequisite("dpkg-buildpackage", "dpkg-dev", "makes the Debian packages"),
    Prerequisite("dh_builddeb", "debhelper", "makes the Debian packages"),
    Prerequisite("rsync", "rsync", "makes the Debian packages"),
    Prerequisite("depmod", "kmod", "makes the Debian packages"),
    Prerequisite("/usr/include/elfutils/libdw.h", "libdw-dev", "makes the Debian packages of 7.3"),
)
# Needed by some options of the kernel.
BTF = (
    Prerequisite("pahole", "pahole", "makes the kernel's type information (BTF)"),
    Prerequisite("/usr/include/zlib.h", "zlib1g-dev", "builds the kernels' resolve_btfids"),
)
_ZSTD = Prerequisite("zstd", "zstd", "compresses the kernel or its modules")
OPTIONS = {
    "CONFIG_DEBUG_INFO_BTF": BTF,
    "CONFIG_KERNEL_ZSTD": (_ZSTD,),
    "CONFIG_MODULE_COMPRESS_ZSTD": (_ZSTD,),
    "CONFIG_KERNEL_LZ4": (Prerequisite("lz4", "lz4", "compresses the kernel"),),
    "CONFIG_KERNEL_LZO": (Prerequisite("lzop", "lzop", "compresses the kernel"),),
    "CONFIG_KERNEL_BZIP2": (Prerequisite("bzip2", "bzip2", "compresses the kernel"),),
}
MODELS = (
    Prerequisite("spin", "spin", "checks the models"),
    Prerequisite("gcc", "gcc", "compiles spin's verifiers"),
)
# For the tests of the report only. Without fonts a browser draws no text.
BROWSER = (
    Prerequisite("chromium", "chromium", "tests the report in a browser"),
    Prerequisite("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf", "fonts-dejavu-core", "tests the report"),
)
ALL = BUILD + VM


def which(program: str) -> str | None:
    """The path of a program, also from root's system folders."""
    path = os.environ.get("PATH", os.defpath)
    return shutil.which(program, path=f"{path}:/usr/local/sbin:/usr/sbin:/sbin")


def packages_need(options: Mapping[str, str]) -> list[Prerequisite]:
    """The prerequisites, beyond ``BUILD``, of Debian packages of a kernel with these options."""
    more = [item for name, items in OPTIONS.items() if options.get(name) == "y" for item in items]
    return [*PACKAGES, *dict.fromkeys(more)]


def missing(wanted: Sequence[Prerequisite] = ALL) -> list[Prerequisite]:
    """Those of ``wanted`` that are not here."""
    return [item for item in wanted if not item.present()]


def install_command(items: Iterable[Prerequisite]) -> str:
    """The command line that installs ``items``, as root."""
    packages = " ".join(dict.fromkeys(item.package for item in items))
    return f"apt-get install --no-install-recommends {packages}"


def ensure(wanted: Sequence[Prerequisite] = ALL) -> None:
    """Install the Debian packages of those of ``wanted`` that are missing.

    On a terminal the user is asked first; else a note is printed. UsageError with
    the command to type without root or after a refusal.
    """
    items = missing(wanted)
    if not items:
        return
    needs = ", ".join(dict.fromkeys(item.package for item in items))
    command = install_command(items)
    if apt_get() is None:
        raise UsageError(f"missing here: {needs}; install them with your system's package tool")
    if os.geteuid() != 0:
        raise UsageError(f"Debian packages are missing: {needs}; run: sudo {command}")
    if not ui.can_ask():
        ui.note(f"installing Debian packages: {needs}")
    elif not ui.ask(f"Debian packages are missing: {needs}. Install them now?"):
        raise UsageError(f"Debian packages are missing: {needs}; run: {command}")
    argv = [*command.split(), "-y", "-qq", *APT_OPTIONS]
    with_fresh_lists(
        lambda: proc.run(argv, env=APT_ENV, timeout=1800), f"the Debian packages {needs} could not be installed"
    )
    if still := missing(items):
        raise UsageError(f"still missing after installing: {', '.join(item.need for item in still)}")


def with_fresh_lists(action: Callable[[], object], failed: str) -> None:
    """Do ``action``, which runs apt-get; after a failure, refresh the package lists and retry.

    UsageError with ``failed``, and apt-get's words as its detail.
    """
    try:
        action()
    except QuellError:
        ui.note("refreshing the package lists (apt-get update)")
        try:
            # A broken list may be irrelevant.
            proc.run(["apt-get", *APT_OPTIONS, "update", "-qq"], env=APT_ENV, timeout=300, check=False)
            action()
        except QuellError as error:
            raise UsageError(f"{failed} (is there a network?)", detail=error.detail or error.message) from error


def apt_get() -> str | None:
    """The path of apt-get; None on other systems."""
    return which("apt-get")
