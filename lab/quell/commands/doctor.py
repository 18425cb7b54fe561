# SPDX-License-Identifier: GPL-2.0-only
"""Check the prerequisites; each missing one comes with the command that fixes it.

The exit code is 0 if every prerequisite is here, else 2. Other commands fetch or
build the source and the kernels when they need them: these are listed as pending,
and are no error. --json prints one object: schema, ok, and checks, a list of
{name, state, detail, fix}. The state is ok, missing or pending; fix is the command.
"""

import argparse
import grp
import json
import os
import pwd
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from quell import build, machine, packages, prereq, source, ui, workload
from quell.errors import QuellError
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
    parser.add_argument("--kernel", default=source.DEFAULT, choices=source.VERSIONS, help="the version of Linux")


def _programs() -> Iterator[Check]:
    sudo = "" if os.geteuid() == 0 else "sudo "
    for item in prereq.ALL:
        if item.present():
            continue
        yield Check(
            item.need,
            "missing",
            f"{item.why}; in Debian's package {item.package}",
            sudo + prereq.install_command([item]),
        )
    missing = prereq.missing()
    if not missing:
        yield Check("programs", "ok", f"all {len(prereq.ALL)} programs and libraries are here")
    elif len(missing) > 1:
        yield Check("programs", "missing", "all at once:", sudo + prereq.install_command(missing))


def _workloads() -> Iterator[Check]:
    for item in workload.select(workload.known()):
        for needed in item.prerequisites():
            if not needed.present():
                detail = f"{needed.why}; Debian's package {needed.package} is unpacked in the cache when first needed"
                yield Check(needed.need, "pending", detail)


def _packages() -> Iterator[Check]:
    """Prerequisites of ./quell deb alone: no error."""
    lacking = [item for item in (*prereq.PACKAGES, *prereq.BTF) if not item.present()]
    if lacking:
        detail = "installed when ./quell deb first needs them"
        if btf := [item.package for item in lacking if item in prereq.BTF]:
            detail += f"; {' and '.join(btf)} for a configuration with BTF (DEBUG_INFO_BTF), as distributions have it"
        command = prereq.install_command(lacking)
        yield Check("packages", "pending", detail, command if os.geteuid() == 0 else f"sudo {command}")
    else:
        yield Check("packages", "ok", "the tools for Debian packages are here")


def _python() -> Iterator[Check]:
    wrong = packages.missing(repo_root() / "lab/requirements.txt")
    if wrong:
        fix = f"rm -r {Cache().root / 'venv'}, then ./quell doctor"
        yield Check("python", "missing", ", ".join(wrong), fix)
    else:
        yield Check("python", "ok", "the Python packages are here")


def _machine(cache: Cache, linux: str) -> Iterator[Check]:
    probe = cache.root
    while not probe.exists():
        probe = probe.parent
    free = shutil.disk_usage(probe).free
    have_source = source.present_source(cache, linux) is not None
    needed = 3_000_000_000 if have_source else source.NEEDED_SPACE
    detail = f"{ui.size(free)} free for {cache.root}, about {ui.size(needed)} needed"
    if free >= needed:
        yield Check("disk", "ok", detail)
    else:
        yield Check("disk", "missing", detail, "set QUELL_CACHE to a folder on a larger disk")
    memory = machine.host_memory()
    detail = f"{ui.size(memory)}, about {ui.size(_MEMORY)} needed"
    state = "ok" if memory >= _MEMORY else "missing"
    yield Check("memory", state, detail, "" if state == "ok" else "use a larger machine")
    yield Check("processors", "ok", str(os.cpu_count()))


def _kernels(cache: Cache, linux: str) -> Iterator[Check]:
    tree, command = source.present_source(cache, linux), f"./quell build --kernel {linux}"
    if tree is None:
        yield Check("source", "pending", "fetched when first needed", command)
        return
    made = source.MADE_WITH[tree.linux]
    with_other = f"; the hooks were made with {made}" if tree.version != made else ""
    yield Check("source", "ok", f"Linux {tree.version} ({tree.key}){with_other}")
    for name in build.KERNELS:
        try:
            kernel = build.finished_kernel(name, tree, cache) or build.finished_kernel(name + build.EXT4, tree, cache)
        except QuellError as error:
            yield Check(f"{name} kernel", "missing", error.message, f"{command} {name}")
            continue
        if kernel is None:
            yield Check(f"{name} kernel", "pending", "built when first needed", f"{command} {name}")
        else:
            yield Check(f"{name} kernel", "ok", f"{kernel.release}, {kernel.image}")


def _accelerator(cache: Cache) -> Iterator[Check]:
    probes = sorted(cache.root.glob("accel/*.json"), key=lambda path: path.stat().st_mtime)
    emulated = "emulation (TCG): counts carry over, times do not"
    if not _KVM.exists():
        detail = f"no {_KVM}; {emulated}"
    elif not os.access(_KVM, os.R_OK | os.W_OK):
        yield Check("accelerator", "pending", *_no_access(_KVM.stat(), emulated))
        return
    elif probes:
        answer = json.loads(probes[-1].read_text())
        detail = f"{answer['name']}: {answer['reason']}"
    else:
        detail = "/dev/kvm opens; the first boot tests a guest"
    yield Check("accelerator", "ok", detail)


def _no_access(status: os.stat_result, emulated: str) -> tuple[str, str]:
    """Why this user may not open /dev/kvm, and the command that changes it."""
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(status.st_gid)
    except KeyError:  # in a container
        return f"{_KVM} is here, without access; {emulated}", f"sudo chmod a+rw {_KVM}"
    name = group.gr_name
    if status.st_mode & 0o060 != 0o060:
        return f"{_KVM} is here, but its group {name} may not open it; {emulated}", f"sudo chmod g+rw {_KVM}"
    if user in group.gr_mem:
        return f"{_KVM} is here, but this session began before {user} joined the group {name}", "log in again"
    detail = f"{_KVM} is here, but {user} is not in the group {name}; {emulated}"
    return detail, f"sudo usermod -aG {name} {user}, then log in again"


def checks(cache: Cache, linux: str) -> list[Check]:
    """Everything, in the order printed."""
    return [
        *_programs(),
        *_workloads(),
        *_packages(),
        *_python(),
        *_machine(cache, linux),
        *_accelerator(cache),
        *_kernels(cache, linux),
    ]


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
