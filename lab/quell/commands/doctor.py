# SPDX-License-Identifier: GPL-2.0-only
"""Check the prerequisites, with the commands that install missing ones.

The exit code is 0 if every prerequisite is here, else 2. Other commands fetch or
build the source and the kernels when they need them: these are listed as pending,
and are no error. --json prints one object: schema, ok, and checks, a list of
{name, state, detail, fix}. The state is ok, missing or pending; fix is the command.
"""

import argparse
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from quell import build, machine, packages, prereq, source, ui
from quell.paths import Cache, repo_root

SCHEMA = "quell-doctor/1"
# Bytes: two guests and the compiler.
_MEMORY = 3_000_000_000
_KVM = Path("/dev/kvm")


@dataclass(frozen=True)
class Check:
    """One line: ``state`` is ok, missing (needed, and only the user can fix it) or pending."""

    name: str
    state: str
    detail: str
    fix: str = ""


EXAMPLES = """\
./quell doctor
./quell doctor --kernel 7.3 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--kernel", default=source.DEFAULT, metavar="LINUX", help=source.OPTION_HELP)


def _sudo() -> str:
    return "" if os.geteuid() == 0 else "sudo "


def _programs() -> Iterator[Check]:
    missing = prereq.missing()
    for item in missing:
        yield Check(item.need, "missing", f"{item.why}; in Debian's package {item.package}")
    if missing:
        yield Check("programs", "missing", "all at once:", _sudo() + prereq.install_command(missing))
    else:
        yield Check("programs", "ok", f"all {len(prereq.ALL)} programs and libraries are here")


def _packages() -> Check:
    lacking = prereq.missing((*prereq.PACKAGES, *prereq.BTF))
    if not lacking:
        return Check("packages", "ok", "the tools of ./quell deb are here")
    detail = f"{', '.join(item.package for item in lacking)}: installed when ./quell deb first needs them"
    return Check("packages", "pending", detail, _sudo() + prereq.install_command(lacking))


def _python() -> Check:
    if wrong := packages.missing(repo_root() / "lab/requirements.txt"):
        fix = f"rm -r {Cache().root / 'venv'}, then ./quell doctor"
        return Check("python", "missing", ", ".join(wrong), fix)
    return Check("python", "ok", "the Python packages are here")


def _machine(cache: Cache, linux: str) -> Iterator[Check]:
    probe = cache.root
    while not probe.exists():
        probe = probe.parent
    free = shutil.disk_usage(probe).free
    have_source = source.present_source(cache, linux) is not None
    needed = 3_000_000_000 if have_source else source.NEEDED_SPACE
    memory = machine.host_memory()
    for name, there, least, fix in (
        ("disk", free, needed, "set QUELL_CACHE to a folder on a larger disk"),
        ("memory", memory, _MEMORY, "use a larger machine"),
    ):
        detail = f"{ui.size(there)}, about {ui.size(least)} needed"
        yield Check(name, "ok", detail) if there >= least else Check(name, "missing", detail, fix)
    yield Check("processors", "ok", str(os.cpu_count()))


def _kernels(cache: Cache, linux: str) -> Iterator[Check]:
    command = f"./quell build --kernel {linux}"
    if linux not in source.VERSIONS:
        own = source.plain_tree(Path(linux))
        yield Check("source", "pending", f"Linux {own.version}, {own.tree}: copied and built when first needed", command)
        return
    tree = source.present_source(cache, linux)
    if tree is None:
        yield Check("source", "pending", "fetched when first needed", command)
        return
    made = source.MADE_WITH[tree.linux]
    with_other = f"; the hooks were made with {made}" if tree.version != made else ""
    yield Check("source", "ok", f"Linux {tree.version} ({tree.key}){with_other}")
    for name in build.KERNELS:
        kernel = build.finished_kernel(name, tree, cache) or build.finished_kernel(name + build.EXT4, tree, cache)
        if kernel is None:
            yield Check(f"{name} kernel", "pending", "built when first needed", f"{command} {name}")
        else:
            yield Check(f"{name} kernel", "ok", f"{kernel.release}, {kernel.image}")


def _accelerator(cache: Cache) -> Check:
    probes = sorted(cache.root.glob("accel/*.json"), key=lambda path: path.stat().st_mtime)
    emulated = "emulation (TCG): counts carry over, times do not"
    if not _KVM.exists():
        return Check("accelerator", "ok", f"no {_KVM}; {emulated}")
    if not os.access(_KVM, os.R_OK | os.W_OK):
        fix = "sudo usermod -aG kvm $USER, then log in again"
        return Check("accelerator", "pending", f"you may not open {_KVM}; {emulated}", fix)
    if not probes:
        return Check("accelerator", "ok", f"{_KVM} opens; the first boot tests a guest")
    answer = json.loads(probes[-1].read_text())
    return Check("accelerator", "ok", f"{answer['name']}: {answer['reason']}")


def checks(cache: Cache, linux: str) -> list[Check]:
    """Everything, in the order printed."""
    return [*_programs(), _packages(), _python(), *_machine(cache, linux), _accelerator(cache), *_kernels(cache, linux)]


def main(args: argparse.Namespace) -> int:
    """Print the list."""
    found = checks(Cache(), args.kernel)
    ok = all(check.state != "missing" for check in found)
    if args.json:
        report = {"schema": SCHEMA, "ok": ok, "checks": [asdict(check) for check in found]}
        print(json.dumps(report, indent=1))
        return 0 if ok else 2
    width = max(len(check.name) for check in found)
    for check in found:
        print(f"{check.state:8} {check.name:{width}}  {check.detail}")
        if check.fix:
            print(f"{'':8} {'':{width}}  -> {check.fix}")
    return 0 if ok else 2
