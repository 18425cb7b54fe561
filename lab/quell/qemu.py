# SPDX-License-Identifier: GPL-2.0-only
"""The QEMU that boots guests: this machine's, or a later one from Debian's backports.

QEMU before 8.1 emulates patched code wrongly when each CPU has a thread of its own. If one
CPU patches an instruction while another translates it, the old translation stays. Linux
patches static keys and tracepoints through a breakpoint, and dies of a removed one ("Oops:
int3"). The later QEMU is unpacked into the cache, not installed. One guest of it died so in about
200 boots. The likely cause, not confirmed: a store to code first discards the translations, then
writes, and a CPU that translates in between keeps the old byte. Such a guest is booted again
(machine.py).
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from quell import debian, prereq, proc, toolchain
from quell.errors import QuellError, UsageError
from quell.paths import Cache

NAME = "qemu-system-x86_64"
_PACKAGE = "qemu-system-x86"
LEAST = (8, 1)


@dataclass(frozen=True)
class Qemu:
    """A QEMU: its path, its version such as "10.0.2", and additions to its environment."""

    program: str
    version: str
    env: Mapping[str, str] = field(default_factory=dict)


def parse_version(text: str) -> str:
    """The version in the first line of ``--version``, or all of the text."""
    match = re.search(r"version (\S+)", text)
    return match[1] if match else text


def is_recent(version: str) -> bool:
    """Whether a QEMU of this version may run a kernel with static keys."""
    return tuple(map(int, re.findall(r"\d+", version)[:2])) >= LEAST


@functools.cache
def find(cache: Cache) -> Qemu:
    """This machine's QEMU if it is recent, else that of Debian's backports.

    UsageError, in one sentence, when neither is available.
    """
    here = prereq.which(NAME)
    version = parse_version(toolchain.version(here)) if here else "none"
    if here and is_recent(version):
        return Qemu(here, version)
    try:
        folder = debian.fetch([_PACKAGE], cache, [NAME], backports=True)
    except QuellError as error:
        raise UsageError(
            f"QEMU {LEAST[0]}.{LEAST[1]} or later is needed (here: {version}), and Debian's backports "
            f"could not be reached for it: {error.message}; install a later QEMU",
            detail=error.detail,
        ) from error
    program = folder / "usr/bin" / NAME
    libraries = [folder / "usr/lib/x86_64-linux-gnu", folder / "lib/x86_64-linux-gnu"]
    env = {"LD_LIBRARY_PATH": ":".join(str(path) for path in libraries if path.is_dir())}
    said = proc.run([program, "--version"], env=env, timeout=30).stdout
    return Qemu(str(program), parse_version(said.partition("\n")[0]), env)
