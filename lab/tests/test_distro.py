# SPDX-License-Identifier: GPL-2.0-only
"""Debian's own configuration: trimming, the initramfs, and the guests' output."""

import lzma
import subprocess
from pathlib import Path
from typing import Any

import pytest

from guests import Patch
from checks import check_distro as distro
from checks.benches import Bench
from checks.cases import Results
from quell import build, counters, deb, debian, machine, workload
from quell.paths import Cache

CONFIG = """CONFIG_SMP=y
CONFIG_EXT4_FS=m
CONFIG_USB=m
CONFIG_USB_STORAGE=m
CONFIG_DEBUG_INFO=y
# CONFIG_DEBUG_INFO_NONE is not set
CONFIG_DEBUG_INFO_BTF=y
"""


def test_configuration_comes_from_debian_and_keeps_what_is_built_in(
    cache: Cache, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(debian, "fetch", lambda names, *_: tmp_path if names == ["linux-config-6.12"] else None)
    path = tmp_path / distro._FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(lzma.compress(CONFIG.encode()))
    assert build.options(distro.trim(distro.debian_config(cache)).text) == {
        "CONFIG_SMP": "y", "CONFIG_EXT4_FS": "m", "CONFIG_USB": "n", "CONFIG_USB_STORAGE": "n",
        "CONFIG_DEBUG_INFO_NONE": "y",
    }  # fmt: skip


DEP = """kernel/fs/ext4/ext4.ko.xz: kernel/fs/jbd2/jbd2.ko.xz kernel/lib/crc16.ko.xz
kernel/fs/jbd2/jbd2.ko.xz:
kernel/arch/x86/kvm/kvm.ko.xz:
kernel/lib/crc16.ko.xz:
kernel/crypto/crc32c_generic.ko.xz:
"""


def test_initramfs_has_modules_in_order(cache: Cache, tmp_path: Path, monkeypatch: Patch) -> None:
    init = tmp_path / "program"
    init.write_text("init")
    monkeypatch.setattr(machine, "guest_program", lambda name, *_: init if name == "initramfs" else None)
    modules = tmp_path / "modules"
    for line in DEP.splitlines():
        file = modules / line.partition(":")[0]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(lzma.compress(file.name.encode()))
    (modules / "modules.dep").write_text(DEP)
    image = tmp_path / "image"
    distro.initramfs(modules, image, cache)
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["sh", "-c", 'cpio --quiet -i <"$0"', image], cwd=root, check=True)
    assert (root / "init").read_text() == "init"
    order = (root / "modules/order").read_text().split()
    assert order == ["crc32c_generic.ko", "crc16.ko", "jbd2.ko", "ext4.ko"]
    assert (root / "modules/ext4.ko").read_bytes() == b"ext4.ko.xz"


@pytest.mark.parametrize(("left", "status"), [(80, "passed"), (81, "failed")])
def test_mapped_read_may_keep_a_twelfth(left: int, status: str, cache: Cache, monkeypatch: Patch) -> None:
    ready = workload.Prepared(workload.select(["mapped-read"])[0], ("reader", "a file"), None)
    monkeypatch.setattr(workload, "prepare", lambda *_: ready)
    monkeypatch.setattr(counters, "sample", lambda frames, lenient: counters.Sample({"shootdown_ipis": frames}))
    scripts: list[str] = []

    def boot(_image: Path, script: str, *, append: list[str], **_: Any) -> machine.GuestResult:
        scripts.append(script)
        count = 1000 if append == ["quell=off"] else left
        said = f"{{ reason:          3 }} hitcount: 7\n{{ reason:          4 }} hitcount:   {count}\n"
        return machine.GuestResult(0, said, "", "", frames=count)  # type: ignore[arg-type]

    monkeypatch.setattr(machine, "run_script", boot)
    results = Results()
    benches = {state: Bench(Path("image"), cache, (f"quell={state}",)) for state in ("off", "on")}
    distro.test_mapped_read((deb.Packages("", ()), benches), results, cache)
    cases = results.cases
    assert [one.status for one in cases] == ["passed", "passed", status, status]
    assert cases[2].name == f"mapped-read: flush requests 1000 with quell=off, {left} with quell=on"
    assert "\nreader 'a file'; code=$?\n" in scripts[0]
