# SPDX-License-Identifier: GPL-2.0-only
"""The report of a guest: sections by name, framed by the runner (``guest/runner.c``).

``machine.py`` receives it, and ``here.py`` makes the same of this machine's files.
"""

import re
from dataclasses import dataclass

from quell.errors import QuellError

# The first line: the protocol of the runner.
_HEAD = b"quell-runner 1"
# The guest's mount point of a workload's data image.
DATA_DIR = "/run/quell/data"
# The guest's folder of the workload's programs: in its memory, not on the host.
STAGE_DIR = "/run/quell/bin"


class FramesError(QuellError):
    """The guest's report is truncated, or lacks something."""


@dataclass(frozen=True)
class Frames:
    """The sections that a guest sent, by name."""

    sections: dict[str, bytes]

    def text(self, name: str) -> str:
        """A section as text; FramesError if the guest did not send it."""
        if name not in self.sections:
            raise FramesError(f"the guest sent no section '{name}'")
        return self.sections[name].decode(errors="replace")

    def values(self, name: str) -> dict[str, str]:
        """A section of lines "KEY REST" as a dictionary."""
        pairs = (line.partition(" ") for line in self.text(name).splitlines() if line)
        return {key: rest for key, _, rest in pairs}

    @property
    def status(self) -> tuple[str, int, str]:
        """The command's end: (how, number, text).

        "exited" with a code, "signalled" by a signal, or not started because of
        an errno: "noexec", "nodir", "notty".
        """
        values = self.values("result")
        match = re.fullmatch(r"(\w+) (\d+)", values.get("status", ""))
        if not match:
            raise FramesError("the guest did not say how the command ended")
        return match[1], int(match[2]), values.get("message", "")


def parse_frames(data: bytes) -> Frames:
    """The sections in a guest's stream.

    FramesError unless it is whole: a stream has to have its last line.
    """
    head, _, rest = data.partition(b"\n")
    sections: dict[str, bytes] = {}
    while match := re.match(rb"@(\S+) (\d+)\n", rest):
        name, size, rest = match[1].decode(errors="replace"), int(match[2]), rest[match.end() :]
        if name == "end" and head == _HEAD and size == len(sections) and not rest:
            return Frames(sections)
        if rest[size : size + 1] != b"\n":
            break
        sections[name], rest = rest[:size], rest[size + 1 :]
    raise FramesError("the guest ended without a whole report")
