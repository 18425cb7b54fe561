# SPDX-License-Identifier: GPL-2.0-only
"""Check ``./quell deb``: reproducible packages from two folders, which install, boot and build modules.

The configuration (``deb.config``) is small, with a distribution's modules, type information and
signing. dpkg installs the packages into a scratch root, where their scripts have a shell and
run-parts only.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from checks import scenario
from checks.cases import Results
from quell import build, deb, machine, mechanisms, prereq, proc, series, source, tree, ui, version
from quell.paths import Cache

# deb.config builds it as a module.
_MODULE = "loop"


def config(origin: source.Source, cache: Cache, folder: Path) -> deb.Config:
    """The configuration of this check, completed by allnoconfig."""
    kernel = tree.kernel_dir()
    text = scenario.shell("deb.config")
    if origin.linux != source.DEFAULT:
        gone = build.fragment(f"{origin.linux}.config", kernel).splitlines()
        text += "".join(f"{line}\n" for line in gone if line.endswith("=n"))
    with cache.lock("build-deb"):
        src = build.prepare("deb", origin, cache, kernel, quell=True).src
        with tempfile.TemporaryDirectory(dir=src) as obj:
            path = build.configure(src, Path(obj), text, "check", cache, cache.logs / "check-deb.log")
            shutil.copy(path, folder / "config")
    return deb.read_config(str(folder / "config"))


@pytest.mark.parametrize("linux", source.VERSIONS)
def test_deb(linux: str, results: Results, folder: Path, cache: Cache) -> None:
    """Build twice, compare, install, boot, load, build a module, remove."""
    prereq.ensure([*prereq.BUILD, *prereq.VM, *prereq.PACKAGES, *prereq.BTF])
    origin = source.debian_source(cache, linux)
    wanted = config(origin, cache, folder)
    first = deb.build_packages(origin, wanted, folder / "first", cache=cache)
    ui.note("building the packages again, in another folder")
    other = Cache(folder / "another-cache-in-a-longer-path")
    other.root.mkdir()
    (other.root / "ccache").symlink_to(cache.ccache)
    second = deb.build_packages(origin, wanted, folder / "second", cache=other)
    shutil.rmtree(other.root)

    def part(name: str, wrong: list[str]) -> bool:
        results.check(not wrong, name, "\n".join(wrong))
        return not wrong

    same = [
        part(f"{one.path.name} is the same twice", differences(one.path, two.path, folder))
        for one, two in zip(first.packages, second.packages, strict=True)
    ]
    if os.geteuid() != 0:
        results.skip("the packages install, boot, build a module and are removed", "installing needs root")
        return
    root = scratch_root(folder / "root")
    if part("the packages install", install(root, first)) and all(same):
        module = folder / "module/outside.ko"
        built = part("a module is built", build_module(root, first.release, module.parent))
        part("the kernel boots", boot(root, first.release, module if built else None, cache))
        part("the packages are removed", remove(root, first))


def differences(one: Path, other: Path, folder: Path) -> list[str]:
    """The files in which two packages differ; none if their bytes are equal."""
    if one.name == other.name and one.read_bytes() == other.read_bytes():
        return []
    with tempfile.TemporaryDirectory(dir=folder) as temp:
        for name, package in (("first", one), ("second", other)):
            proc.run(["dpkg-deb", "-R", package, Path(temp) / name])
        said = proc.run(["diff", "-rq", "--no-dereference", "first", "second"], cwd=Path(temp), check=False).stdout
    lines = said.splitlines() or ["in the order or attributes of their files"]
    return [f"{one.name} and {other.name} differ", *lines]


# --- installing --------------------------------------------------------------


def scratch_root(root: Path) -> Path:
    """A root in which dpkg can run a package's scripts: a shell, run-parts, their libraries.

    Each of the kernel's hook folders gets a script that records its arguments.
    """
    for name in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "tmp", "dev", "bin"):
        (root / name).mkdir(parents=True)
    for name in ("var/lib/dpkg/status", "var/lib/dpkg/available", "dev/null", "hooks"):
        (root / name).touch()
    for program in ("sh", "run-parts"):
        path = prereq.which(program) or f"/bin/{program}"
        shutil.copy(path, root / "bin" / program)
        libraries = re.findall(r"(/\S+) \(0x", proc.run(["ldd", path], check=False).stdout)
        proc.run(["cp", "-L", "--parents", *libraries, root])
    for hook in ("preinst", "postinst", "prerm", "postrm"):
        script = root / f"etc/kernel/{hook}.d/zz-check"
        script.parent.mkdir(parents=True)
        script.write_text(f'#!/bin/sh\necho "{hook} $1 $2 INITRD=$INITRD $DEB_MAINT_PARAMS" >>/hooks\n')
        script.chmod(0o755)
    return root


def _dpkg(root: Path, *args: str | Path) -> None:
    # Debian 12's dpkg runs the scripts with chroot(2) into the root.
    proc.run(
        ["dpkg", f"--root={root}", "--force-not-root", "--force-depends", *args],
        env={"PATH": machine.DEFAULT_PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
        timeout=600,
    )


def _hooks_called(root: Path, made: deb.Packages, **actions: str) -> list[str]:
    """Errors unless the scripts called each hook for its action."""
    called = (root / "hooks").read_text().splitlines()
    image = f"{made.release} /boot/vmlinuz-{made.release} INITRD=Yes"
    wanted = [f"{hook} {image} {action}" for hook, action in actions.items()]
    return [
        f"the packages' scripts did not call the hooks in /etc/kernel as {want!r}; calls: {called}"
        for want in wanted
        if not any(line.startswith(want) for line in called)
    ]


def install(root: Path, made: deb.Packages) -> list[str]:
    """Install the packages with dpkg; return the errors."""
    _dpkg(root, "-i", *(package.path for package in made.packages))
    wrong = _hooks_called(root, made, preinst="install", postinst="configure")
    names = [f"boot/{name}-{made.release}" for name in ("vmlinuz", "config", "System.map")]
    names.append(f"lib/modules/{made.release}/modules.dep")
    wrong += [f"/{name} was not installed" for name in names if not (root / name).is_file()]
    if not re.fullmatch(r"\d+\.\d+\.\d+-check-quell", made.release):
        wrong.append(f"the release is {made.release}, not that of Linux with -check-quell")
    return [*wrong, *wrong_versions(made)]


def wrong_versions(made: deb.Packages) -> list[str]:
    """Errors for packages if their version does not begin with Linux's and Quell's."""
    wanted = f"{made.release.partition('-')[0]}-quell{version.RELEASE}"
    found = {one.path.name: proc.run(["dpkg-deb", "-f", one.path, "Version"]).stdout.strip() for one in made.packages}
    return [f"{name} has the version {text}, not {wanted}" for name, text in found.items() if not text.startswith(wanted)]


def remove(root: Path, made: deb.Packages) -> list[str]:
    """Remove the packages with dpkg; return the errors."""
    _dpkg(root, "-r", *(package.path.name.split("_")[0] for package in reversed(made.packages)))
    wrong = _hooks_called(root, made, postrm="remove")
    left = [path for path in root.rglob(f"*{made.release}*") if path.is_file() and "dpkg" not in path.parts]
    return wrong + [f"{path} was left behind" for path in left]


# --- using -------------------------------------------------------------------

_OUTSIDE = """\
// SPDX-License-Identifier: GPL-2.0-only
#include <linux/module.h>

static int __init outside_init(void)
{
	pr_alert("outside: loaded\\n");
	return 0;
}

static void __exit outside_exit(void)
{
}

module_init(outside_init);
module_exit(outside_exit);
MODULE_DESCRIPTION("Made with the headers package");
MODULE_LICENSE("GPL");
"""


def build_module(root: Path, release: str, folder: Path) -> list[str]:
    """Build a small module with the headers package; return the errors."""
    folder.mkdir()
    (folder / "outside.c").write_text(_OUTSIDE)
    (folder / "Makefile").write_text("obj-m := outside.o\n")
    headers = root / os.readlink(root / f"lib/modules/{release}/build").lstrip("/")
    argv = [*build.clean_env(), "make", "-C", str(headers), f"M={folder}", "modules"]
    made = proc.run(argv, check=False, timeout=600)
    if made.returncode != 0 or not (folder / "outside.ko").exists():
        return [f"the headers package does not build a module:\n{proc.tail(made.stdout + made.stderr)}"]
    return []


def switches() -> list[str]:
    """The mechanisms that packages have; the lab-only ones are left out."""
    lab_only = series.lab_options(tree.kernel_dir())
    return [name for name in mechanisms.names() if f"CONFIG_QUELL_{name.upper()}" not in lab_only]


def boot(root: Path, release: str, outside: Path | None, cache: Cache) -> list[str]:
    """Boot the installed kernel; return the errors."""
    script = scenario.shell("deb.sh", ROOT=root, MODULE=_MODULE, OUTSIDE=outside or "")
    guest = machine.run_script(root / f"boot/vmlinuz-{release}", script, cache=cache)
    wanted = {f"release {release}", *(f"switch {name}" for name in switches()), f"loaded {_MODULE}", "btf"}
    if outside:
        wanted.add("loaded outside")
    said = set(guest.stdout.splitlines())
    missing = sorted(wanted - said)
    more = sorted(line for line in said - wanted if line.startswith("switch "))
    if not missing and not more:
        return []
    all_said = proc.tail(guest.stdout + guest.stderr + "\n".join(guest.warnings))
    return [f"the booted package does not print {missing}, and should not print {more}; it prints:\n{all_said}"]
