# SPDX-License-Identifier: GPL-2.0-only
"""Build, boot and measure Debian's own configuration, as ``./quell deb`` packages it.

``deb.build_packages()`` makes the packages. Their kernel boots with the package's modules in an
initramfs, with Quell off and on. It runs the selftests, ``mapped-read`` and ``compare --here``.
"""

import lzma
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks import check_deb as deb_check, check_own, benches, scenario
from checks.benches import GUEST, Bench
from checks.cases import Results
from quell import build, counters, deb, debian, machine, prereq, proc, source, workload
from quell.paths import Cache

_PACKAGE = "linux-config-6.12"
_FILE = "usr/src/linux-config-6.12/config.amd64_none_amd64.xz"
# Options that stay modules. Guests need them, except KVM's: these select built-in options of
# memory management (MMU notifiers).
MODULES = (
    "VIRTIO_BLK", "NET_9P", "NET_9P_VIRTIO", "9P_FS", "OVERLAY_FS", "BLK_DEV_LOOP", "BLK_DEV_RAM", "ZRAM",
    "EXT4_FS", "QFMT_V2", "XFS_FS", "BTRFS_FS", "F2FS_FS", "EROFS_FS", "SQUASHFS", "CRYPTO_LZ4", "CRYPTO_CRC32",
    "CRYPTO_CRC32C", "CRYPTO_CRC32C_INTEL", "VIRTIO_BALLOON", "KVM", "KVM_INTEL", "KVM_AMD",
)  # fmt: skip
_NOT_LOADED = "/kvm/"
# Debian's own package took three minutes to boot under emulation, on 2 CPUs with a load of 10.
_BOOT_S = 600
_TIMEOUT_S = 3000
_MEMORY = "256M"
# KiB, as in lab.config; selftests swap to it.
_RAM_DISK = "brd.rd_size=65536"
# The largest share of the count with quell=off that may remain with quell=on.
_SHARE = 0.08


def debian_config(cache: Cache) -> deb.Config:
    """Debian's configuration for amd64, from its package; UsageError without a network."""
    path = debian.fetch([_PACKAGE], cache, [_PACKAGE]) / _FILE
    return deb.Config(lzma.decompress(path.read_bytes()).decode(), f"Debian's {_PACKAGE}")


def trim(config: deb.Config) -> deb.Config:
    """The configuration without most modules and debugging information."""
    have = build.options(config.text)
    kept = {f"CONFIG_{name}" for name in MODULES}
    modules = {name for name, value in have.items() if value == "m" and name not in kept}
    debug = {name for name in have if name.startswith("CONFIG_DEBUG_INFO")}
    lines = [line for line in config.text.splitlines() if not build.options(line).keys() & (modules | debug)]
    lines += [f"# {name} is not set" for name in sorted(modules)]
    return deb.Config("\n".join([*lines, "CONFIG_DEBUG_INFO_NONE=y", ""]), "Debian's trimmed configuration")


# --- the initramfs -----------------------------------------------------------


def load_order(dep: str) -> list[str]:
    """The modules of a modules.dep, each after its dependencies; those requested by name come first."""
    order: dict[str, None] = {}
    # File systems request checksums by name; modules.dep does not list these.
    for line in sorted(dep.splitlines(), key=lambda line: "/crypto/" not in line.partition(":")[0]):
        module, _, needs = line.partition(":")
        order |= dict.fromkeys([*reversed(needs.split()), module])
    return [module for module in order if _NOT_LOADED not in module]


def initramfs(modules: Path, image: Path, cache: Cache) -> None:
    """Make ``image``, an initramfs that loads the modules of ``modules`` (lib/modules/RELEASE of a package)."""
    with tempfile.TemporaryDirectory(dir=image.parent) as temp:
        root = Path(temp)
        (root / "modules").mkdir()
        shutil.copy(machine.guest_program("initramfs", cache, GUEST), root / "init")
        names = []
        for file in load_order((modules / "modules.dep").read_text()):
            data = (modules / file).read_bytes()
            names.append(Path(file).name.removesuffix(".xz"))
            (root / "modules" / names[-1]).write_bytes(lzma.decompress(data) if file.endswith(".xz") else data)
        (root / "modules/order").write_text("".join(f"{name}\n" for name in names))
        proc.run(["sh", "-c", 'find . | cpio --quiet -o -H newc >"$0"', image], cwd=root)


# --- checks ------------------------------------------------------------------

# TLB_REMOTE_SEND_IPI
_REQUESTS = re.compile(r"\{ reason: +4 \} hitcount: +(\d+)")
# Debian's packages, and their kernel with Quell off and on.
Distro = tuple[deb.Packages, dict[str, Bench]]


@pytest.fixture(scope="module")
def distro(cache: Cache) -> Iterator[Distro]:
    """Build the packages, and an initramfs with their modules."""
    prereq.ensure((*prereq.BUILD, *prereq.VM, *prereq.PACKAGES, *prereq.FILE_SYSTEMS))
    config = trim(debian_config(cache))
    with cache.scratch("distro") as folder:
        made = deb.build_packages(source.debian_source(cache), config, folder / "packages", cache=cache)
        proc.run(["dpkg-deb", "-x", made.packages[0].path, folder / "root"], timeout=600)
        initrd = folder / "initramfs"
        initramfs(folder / f"root/lib/modules/{made.release}", initrd, cache)
        how = {"qemu": ("-initrd", str(initrd)), "boot_timeout": _BOOT_S, "timeout": _TIMEOUT_S}
        image = folder / f"root/boot/vmlinuz-{made.release}"
        yield made, {state: Bench(image, cache, (f"quell={state}", _RAM_DISK), how) for state in ("off", "on")}


def test_version(distro: Distro) -> None:
    """The packages' version is Linux's and Quell's."""
    assert deb_check.wrong_versions(distro[0]) == []


@pytest.mark.parametrize("quell", ["off", "on"])
def test_boot(quell: str, distro: Distro, results: Results) -> None:
    """It boots with MGLRU on, and loads all modules."""
    made, bench = distro
    script = "uname -r; cat /sys/kernel/mm/lru_gen/enabled; cat /sys/kernel/mm/quell/luf/enabled"
    guest = bench[quell].guest(results, script)
    found = guest.stdout.split()
    wanted = [made.release, "0x0007", str(int(quell == "on"))]
    results.check(found == wanted, "boots, MGLRU on", f"{found}\n{guest.stderr}")
    said = [line for line in guest.console.splitlines() if "quell-initramfs: " in line]
    results.check(not said, "loads all modules", "\n".join(said))


def test_mapped_read(distro: Distro, results: Results, cache: Cache) -> None:
    """Run the workload with Quell off and on: it reads right data, and Quell sends few requests and IPIs."""
    one = workload.select(["mapped-read"])[0]
    ready = workload.prepare(one, machine.parse_memory(_MEMORY), cache, {})
    counts = {}
    for state, bench in distro[1].items():
        guest = bench.guest(
            results, scenario.shell("distro.sh", WORK=shlex.join(ready.argv)),
            data=ready.data, stage=ready.programs, memory=_MEMORY,
        )  # fmt: skip
        results.check(guest.exit_code == 0, f"mapped-read with quell={state} reads right data", guest.stderr)
        ipis = counters.sample(guest.frames, lenient=True).metrics["shootdown_ipis"] if guest.frames else 0
        requests = _REQUESTS.search(guest.stdout)
        counts[state] = {"flush requests": int(requests[1]) if requests else 0, "shootdown IPIs": int(ipis)}
    for what, off in counts["off"].items():
        on = counts["on"][what]
        name = f"mapped-read: {what} {off} with quell=off, {on} with quell=on"
        results.check(0 < off and on <= off * _SHARE, name, f"more than {_SHARE:.0%} are left")


def test_here(distro: Distro, results: Results, cache: Cache) -> None:
    """``compare --here`` in a guest."""
    on = distro[1]["on"]
    results.add(*check_own.here(cache, on.image, append=on.append, **on.how))


@pytest.mark.parametrize("run", [run for run in benches.runs() if not run.special], ids=lambda run: run.title())
def test_selftest(run: benches.Run, distro: Distro, results: Results, programs: dict[str, Path], disk: Path) -> None:
    """The selftests; they need the mechanisms."""
    distro[1]["on"].selftest(results, run, programs[run.program], disk)
