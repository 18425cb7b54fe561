# SPDX-License-Identifier: GPL-2.0-only
"""The report of a guest: sections by name, framed by the runner (``guest/runner.c``).

``machine.py`` receives it, and ``here.py`` makes the same of this machine's files.
"""

import re
from dataclasses import dataclass

from quell.errors import QuellError

# The supported protocol of the runner.
PROTOCOL = 1
# The guest's mount point of a workload's data image.
DATA_DIR = "/run/quell/data"
# The guest's folder of the workload's programs: in its memory, not on the host.
STAGE_DIR = "/run/quell/bin"


class FramesError(QuellError):
    """The guest's report is truncated or damaged, or lacks something."""


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
    def failure(self) -> str | None:
        """The reason if the guest could not be prepared, or None."""
        return self.text("failure") if "failure" in self.sections else None

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

    FramesError when it is empty, of another protocol, or truncated: a stream has
    to have its last line.
    """
    if not data:
        raise FramesError("the guest ended without a report")
    head, _, rest = data.partition(b"\n")
    match = re.fullmatch(rb"quell-runner (\d+)", head)
    if not match:
        raise FramesError("the guest's report does not come from Quell's runner")
    if int(match[1]) != PROTOCOL:
        raise FramesError(f"the guest speaks protocol {int(match[1])} of Quell's runner, not {PROTOCOL}")
    sections: dict[str, bytes] = {}
    while match := re.match(rb"@(\S+) (\d+)\n", rest):
        name, size, rest = match[1].decode(errors="replace"), int(match[2]), rest[match.end() :]
        if name == "end":
            if size != len(sections) or rest:
                raise FramesError("the guest's report does not add up: it is damaged")
            return Frames(sections)
        if rest[size : size + 1] != b"\n":
            break
        sections[name], rest = rest[:size], rest[size + 1 :]
    raise FramesError("the guest ended in the middle of its report: it is truncated")
