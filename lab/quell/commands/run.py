# SPDX-License-Identifier: GPL-2.0-only
"""Run one command under the Quell kernel, in a VM on the host's root file system.

Reads go through, writes are discarded. The VM is interactive if stdin is a terminal
(Ctrl-A X ends it). Without a command, a shell starts. The exit code is the command's.
"""

import argparse
import os
import shlex
import sys
from dataclasses import replace

from quell import build, engine, machine, sides, source, ui
from quell.commands import compare
from quell.errors import UsageError
from quell.paths import Cache

_WEEK_S = 7 * 86400.0

EXAMPLES = """\
./quell run
./quell run -- uname -a
./quell run --memory 2G --cpus 4 --append quell=-luf -- stress-ng --vm 2 -t 10
./quell run --data /srv/index:xfs -- ./search /srv/index
./quell run --stock -- cat /proc/vmstat
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``run``."""
    parser.add_argument("--stock", action="store_true", help="the stock kernel instead of Quell")
    parser.add_argument("--memory", default="1G", metavar="SIZE", help="guest memory (1G)")
    parser.add_argument("--cpus", type=int, default=2, metavar="N", help="guest CPUs (2)")
    parser.add_argument(
        "--append", action="append", default=[], metavar="PARAMS",
        help='boot parameters, as in "quell=off"; may be repeated',
    )  # fmt: skip
    compare.add_data(parser)
    parser.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto", help=machine.ACCEL_HELP)
    parser.add_argument("--kernel", default=source.DEFAULT, metavar="LINUX", help=source.OPTION_HELP)
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds (3600; no limit on a terminal)")


def main(args: argparse.Namespace) -> int:
    """Run it; the command's exit code."""
    terminal = sys.stdin.isatty()
    if args.command is None and not terminal:
        raise UsageError("run needs a command after -- when stdin is no terminal")
    command = args.command or [os.environ.get("SHELL", "/bin/sh")]
    engine.check_command(command)
    try:
        append = tuple(word for text in args.append for word in shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--append takes boot parameters, not '{' '.join(args.append)}': {error}") from error
    guest = machine.Machine(
        memory=machine.parse_memory(args.memory),
        cpus=args.cpus,
        append=append,
    )
    cache = Cache()
    disks = compare.data_of(args)
    side = sides.parse("stock=stock" if args.stock else "quell=quell")
    _, kernels = build.for_sides(args.kernel, cache, (side,), ext4=False)
    kernel = kernels[side.name]
    accelerator = machine.choose_accelerator(args.accel, kernel.image, cache)
    ui.note(f"booting {kernel.release} under {accelerator.name.upper()} ...")
    result = machine.boot_once(
        replace(guest, accel=accelerator.name),
        kernel.image,
        engine.own_job(command, cache, **disks),
        cache=cache,
        timeout=args.timeout or (_WEEK_S if terminal else 3600),
        live=not terminal,
        terminal=terminal,
    )
    for line in result.warnings:
        ui.warn(line.strip())
    return result.exit_code
