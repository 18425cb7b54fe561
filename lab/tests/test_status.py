# SPDX-License-Identifier: GPL-2.0-only
"""./quell status on kernels that are made of files."""

import json
import sys
from pathlib import Path

import pytest

from conftest import Capture, write_files
from guests import execute
from quell import cli, status
from quell.paths import Cache, repo_root

VMSTAT = """nr_free_pages 1000
nr_luf_parked 256
luf_park 100000
luf_migrate 7000
luf_release_aged 79795
luf_flush 120
luf_kept 2
luf_write 11
rmap_batch_runs 10
rmap_batch_pages 155
early_ack_acked 1234
luffy 1
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The files of a machine with a Quell kernel."""
    sysfs = status.SYSFS
    return write_files(tmp_path / "root", {
        **{f"{sysfs}/{name}/enabled": "1\n" for name in ("luf", "rmap_batch", "early_ack")},
        f"{sysfs}/zap_batch/enabled": "0\n",
        f"{sysfs}/luf/max_stale_ms": "100\n",
        "proc/sys/kernel/osrelease": "6.12.117-quell\n",
        "proc/uptime": "7385.20 14000.00\n",
        "proc/vmstat": VMSTAT,
        "proc/interrupts": "      CPU0  CPU1\n TLB:   10   32   TLB shootdowns\n",
    })  # fmt: skip


def test_words(machine: Path, capsys: Capture, cache: Cache) -> None:
    assert cli.main(["status", "--root", str(machine)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Linux 6.12.117-quell, up 2 h 03 min: a Quell kernel\n")
    for text in (
        "luf         on   max_stale_ms 100\n",
        "zap_batch   OFF\n",
        "luf, since boot: park 100,000, migrate 7,000, release_aged 79,795, ",
        "Of 99,744 pages that luf released, 80 % were released without an IPI.",
        "Deferred now: 1 MB",
        "early_ack, since boot: acked 1,234\n",
        "received 42 shootdown interrupts",
    ):
        assert text in out
    assert max(map(len, out.splitlines())) <= 110
    assert not cache.root.exists()


def test_json(machine: Path, capsys: Capture) -> None:
    assert cli.main(["status", "--json", "--root", str(machine)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["quell"] is True and report["schema"] == "quell.status/1"
    assert report["switches"] == {"early_ack": True, "luf": True, "rmap_batch": True, "zap_batch": False}
    assert report["tunables"]["luf"] == {"max_stale_ms": "100"}
    counters = report["counters"]
    assert (counters["luf_park"], counters["nr_luf_parked"], report["parked_kb"]) == (100000, 256, 1024)
    assert not {"luffy", "nr_free_pages"} & counters.keys()
    assert report["shootdown_ipis"] == 42


def test_refused_and_without_counters(machine: Path) -> None:
    (machine / status.SYSFS / "luf/enabled").write_text("0 (no reason)\n")
    for name in ("vmstat", "interrupts", "uptime", "sys/kernel/osrelease"):
        (machine / "proc" / name).unlink()
    now = status.read(machine)
    assert not now["switches"]["luf"] and now["parked_kb"] is now["shootdown_ipis"] is now["uptime_s"] is None
    said = status.describe(now)
    assert said[0] == "Linux of unknown version: a Quell kernel"
    assert any("OFF  max_stale_ms 100, refused (no reason)" in line for line in said)


def test_another_kernel(tmp_path: Path, capsys: Capture, cache: Cache) -> None:
    write_files(tmp_path, {"proc/sys/kernel/osrelease": "6.1.0-18-amd64\n"})
    says = (
        "quell: the running kernel, 6.1.0-18-amd64, is not Quell's: it has no /sys/kernel/mm/quell; "
        "./quell deb makes packages, ./quell top works on any kernel\n"
    )
    assert cli.main(["status", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr() == ("", says)
    assert cli.main(["status", "--root", str(tmp_path), "--json"]) == 1
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert (report["schema"], report["quell"], report["release"]) == (status.SCHEMA, False, "6.1.0-18-amd64")
    assert captured.err == says and report["reason"] in says
    assert not cache.root.exists()


def test_needs_only_python(machine: Path) -> None:
    env = {"PYTHONPATH": str(repo_root() / "lab"), "PATH": "/usr/bin:/bin"}
    done = execute(sys.executable, "-S", "-P", "-m", "quell", "status", "--root", machine, env=env)
    assert done.returncode == 0 and "a Quell kernel" in done.stdout, done.stderr
