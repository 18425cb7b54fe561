# SPDX-License-Identifier: GPL-2.0-only
"""The user's own command in a guest: its environment, current directory and disks."""

import os
import shutil
from collections.abc import Sequence

from quell import disks, machine, ui, workload
from quell.errors import UsageError
from quell.paths import Cache

# Variables about the host, and those of the launcher.
_NOT_PASSED = {"PYTHONPATH", "VIRTUAL_ENV", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"}
_NOT_PASSED |= {"SSH_AUTH_SOCK", "TMUX", "STY", "DBUS_SESSION_BUS_ADDRESS", "QUELL_CACHE"}


def check(command: Sequence[str]) -> None:
    """UsageError when there is no such command. Guests have this machine's root file system."""
    name = command[0]
    if shutil.which(name, path=os.environ.get("PATH", machine.DEFAULT_PATH)) is None:
        near = f"./{name}" if "/" not in name and os.access(name, os.X_OK) and os.path.isfile(name) else ""
        raise UsageError(f"the command {name} does not exist or cannot be run{f'; did you mean {near}?' * bool(near)}")


def needs_only_ext4(data: Sequence[disks.Data | workload.Data], attached: Sequence[disks.Disk]) -> bool:
    """Whether ext4 is enough for these disks; the file systems of ``attached`` disks are unknown."""
    return not attached and all(one.filesystem == "ext4" for one in data)


def job(
    command: Sequence[str],
    cache: Cache,
    data: Sequence[disks.Data] = (),
    attached: Sequence[disks.Disk] = (),
    swap: str = "",
    *,
    terminal: bool = False,
) -> machine.Job:
    """The user's command as a job: in the current directory, with our environment, the disks and swap."""
    env = {k: v for k, v in os.environ.items() if k not in _NOT_PASSED and "\0" not in v}
    usual = {"PATH": machine.DEFAULT_PATH, "HOME": "/root"} | ({} if terminal else {"TERM": "dumb"})
    for number, disk in enumerate(attached):
        ui.note(f"{disk.image} is /dev/vd{chr(ord('a') + number)} in the guest")
    every = (*attached, *(disks.image_of(one, cache) for one in data))
    return machine.Job(command, env={**usual, **env}, cwd=os.getcwd(), disks=every, swap=swap)
