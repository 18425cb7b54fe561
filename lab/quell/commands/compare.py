# SPDX-License-Identifier: GPL-2.0-only
"""Compare stock Linux with Quell on the standard workloads, or on your own command after --.

The first call installs missing packages and builds both kernels; later calls reuse
them. All runs alternate, each in a fresh VM on the host's root file system: reads
go through, writes are discarded. Give the files that your command reads with
--data: the guest's root is 9p, where lazy unmap flush does not apply.

With --here the command runs on this machine, which has to run a Quell kernel.
Runs alternate between Quell's mechanisms off and on.

A side is NAME=KERNEL[,PARAMETER...]. KERNEL is stock or quell (of --kernel's Linux,
or of another as in stock-7.3) or the folder of a Linux tree. PARAMETER is a boot
parameter, or a setting that is written before the command starts, such as
/sys/kernel/mm/lru_gen/enabled=0. The first side is the base of ratios and verdicts.

Your command may print figures of its own, one a line: "figure NAME VALUE UNIT"
(less is better) or "figure+ NAME VALUE UNIT" (more is better). If all sides take
the same time and the first "figure+" differs, counts are judged per unit of it.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quell import disks, engine, here, machine, presets, sides, source, table, ui, workload
from quell.paths import Cache

EXAMPLES = """\
./quell compare
./quell compare --workload mapped-read --runs 6
./quell compare --data /srv/weights.gguf -- llama-completion -m /srv/weights.gguf -p Hello
./quell compare --data /srv/index:xfs --memory 2G --cpus 4 -- ./search /srv/index
./quell compare --workload swap-write --swap zram
sudo ./quell compare --here -- make -j4
./quell compare --side all=quell --side no-luf=quell,quell=-luf --json > result.json
"""


def add_arguments(parser: argparse.ArgumentParser, name: str = "compare") -> None:
    """The options of the preset ``name``'s command; some are those of ``compare`` alone."""
    preset, add = presets.load(name), parser.add_argument
    many, switch, own = dict[str, Any](action="append"), dict[str, Any](action="store_true"), name == "compare"
    usual = ", ".join(preset.workloads) or "the standard ones"
    parser.set_defaults(preset=name)
    add("--runs", type=int, metavar="N", help=f"runs on each side ({preset.runs})")
    add("--workload", "-w", **many, metavar="NAME[,NAME...]", help=f"only these workloads ({usual})")
    add("--memory", metavar="SIZE", help=f"guest memory, as in 512M (the workload's own{'; 1G for --' * own})")
    cpus = f"guest CPUs, each number measured by itself (the workload's own{'; 2 for --' * own})"
    add("--cpus", **many, metavar="N[,N...]", help=cpus)
    add("--json", **switch, help="print the result object, no table")
    if own:
        side = "a side to compare, two or more; a word without = belongs to the parameter before it"
        add("--side", **many, metavar=sides.FORM, help=side)
        add_data(parser)
        add("--here", **switch, help="run your command on this machine; it has to run a Quell kernel")
        add("--keep-caches", **switch, help="with --here, do not drop the page cache before each run")
        add("--timeout", type=float, default=600, metavar="S", help="seconds for a run of your command (600)")
    add("--accel", choices=("auto", "kvm", "tcg"), default="auto", help=machine.ACCEL_HELP)
    add("--deterministic", **switch, help="clock of guest instructions, data on a RAM disk: slow, repeatable")
    add("--kernel", default=source.DEFAULT, metavar="LINUX", help=source.OPTION_HELP)


def add_data(parser: argparse.ArgumentParser) -> None:
    """The options that give a guest disks and swap."""
    data = "copy a file or folder to a disk of the guest, at the same path; FS is ext4 (the default), "
    data += "xfs, btrfs, f2fs, erofs or squashfs; may be repeated"
    disk = "attach an image or block device: /dev/vda, then /dev/vdb ...; writes are discarded"
    for option, form, text in (("--data", "PATH[:FS]", data), ("--disk", "IMAGE-OR-DEVICE", disk)):
        parser.add_argument(option, action="append", default=[], metavar=form, help=text)
    swap = "swap of half the guest's memory, on a RAM disk, on zram, or on a RAM disk through zswap"
    parser.add_argument("--swap", choices=machine.SWAPS, default="", help=swap)


def data_of(args: argparse.Namespace) -> dict[str, Any]:
    """The request's fields for the options of ``add_data``."""
    data = [disks.parse_data(text) for text in args.data]
    return {"data": data, "attached": [disks.parse_disk(text) for text in args.disk], "swap": args.swap}


def request_for(args: argparse.Namespace) -> engine.Request:
    """The request of ``args.preset``, with the values of the options that are given."""
    preset = presets.load(args.preset)
    given = {
        "runs": args.runs, "workloads": args.workload, "deterministic": args.deterministic or None,
        "memory": machine.parse_memory(args.memory) if args.memory else None,
        "cpus": tuple(map(machine.parse_cpus, sides.names(args.cpus or ()))) or None,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if args.preset == "compare":
        given |= {"timeout": args.timeout, "here": args.here, "keep_caches": args.keep_caches, **data_of(args)}
        usual = here.SIDES if args.here else preset.sides
        preset = replace(preset, sides=sides.parse_all(args.side) if args.side else usual)
    request = engine.request(preset, **given, accel=args.accel, kernel=args.kernel, command=args.command)
    if request.deterministic and args.preset != "compare" and not args.workload:
        for item in (one for one in workload.select(request.workloads) if one.nodes):
            ui.note(f"{item.name} is left out: data on a RAM disk would fill the guest's fast NUMA node")
            request = replace(request, workloads=tuple(name for name in request.workloads if name != item.name))
    return request


def main(args: argparse.Namespace) -> int:
    """Measure ``args.preset`` and print the result; your command's exit code, or 0."""
    result, folder = engine.compare(request_for(args), Cache())
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        table.print_result(result, ui.console())
    ui.note(f"kept in {folder}" if args.command is None else f"the command's output is kept in {folder / 'runs'}")
    return next(filter(None, (own_exit_code(one["exit_codes"]) for one in result["comparisons"])), 0)


def own_exit_code(codes: Mapping[str, list[int]]) -> int:
    """Our exit code after the user's own command: the last side's first failure, or 0."""
    return next((code for side in reversed(list(codes)) for code in codes[side] if code), 0)
