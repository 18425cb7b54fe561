# SPDX-License-Identifier: GPL-2.0-only
"""doctor, clean, build, tree and test as commands, and the launcher."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quell import cli, prereq
from quell import source as quell_source
from quell.commands import doctor
from quell.paths import Cache, repo_root
from quell.source import Source

from test_paths import holder

Fake = Callable[[str, str], Path]


def test_doctor_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prereq, "missing", lambda wanted=(): [])
    cli.main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "quell-doctor/1"
    states = {check["name"]: check["state"] for check in report["checks"]}
    assert states["source"] == "pending"
    assert report["ok"] == ("missing" not in states.values())


def test_doctor_missing_program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cache: Cache
) -> None:
    wanted = (
        prereq.Prerequisite("quell-none", "none-package", "does nothing"),
        prereq.Prerequisite("/quell/none", "none-dev", "is not there"),
    )
    monkeypatch.setattr(prereq, "ALL", wanted)
    monkeypatch.setattr(prereq, "missing", lambda: list(wanted))
    assert cli.main(["doctor"]) == 2
    out = capsys.readouterr().out
    assert "apt-get install --no-install-recommends none-package\n" in out
    assert "apt-get install --no-install-recommends none-package none-dev\n" in out
    assert not cache.root.exists()  # looking makes nothing


def test_doctor_lists_what_workloads_want(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prereq, "ALL", ())
    monkeypatch.setattr(prereq.Prerequisite, "present", lambda self: False)
    cli.main(["doctor", "--json"])
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    # It is unpacked at first use: no error.
    assert checks["sysbench"]["state"] == "pending"
    assert "package sysbench" in checks["sysbench"]["detail"]


def test_doctor_names_what_packages_with_btf_need(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prereq.Prerequisite, "present", lambda self: self not in prereq.BTF)
    cli.main(["doctor", "--json"])
    [found] = [check for check in json.loads(capsys.readouterr().out)["checks"] if check["name"] == "packages"]
    assert found["state"] == "pending" and "pahole and zlib1g-dev for a configuration with BTF" in found["detail"]
    assert found["mend"].endswith("apt-get install --no-install-recommends pahole zlib1g-dev")


@pytest.mark.parametrize(
    ("mode", "members", "detail", "mend"),
    [
        (0o20660, [], "USER is not in the group kvm; emulation", "sudo usermod -aG kvm USER, then log in again"),
        (0o20660, ["USER"], "this session began before USER joined the group kvm", "log in again"),
        (0o20600, [], "its group kvm may not open it", "sudo chmod g+rw "),
    ],
)
def test_doctor_names_the_group_of_kvm(
    mode: int, members: list[str], detail: str, mend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Cache
) -> None:
    user = pwd.getpwuid(os.geteuid()).pw_name
    kvm = tmp_path / "kvm"
    monkeypatch.setattr(doctor, "_KVM", kvm)
    monkeypatch.setattr("os.access", lambda *_: False)
    [found] = doctor._accelerator(cache)
    assert (found.state, found.mend) == ("ok", "") and f"no {kvm}; emulation" in found.detail
    kvm.touch()
    kvm.chmod(mode & 0o777)
    group = grp.struct_group(("kvm", "x", 104, [name.replace("USER", user) for name in members]))
    monkeypatch.setattr("grp.getgrgid", lambda _: group)
    [found] = doctor._accelerator(cache)
    assert found.state == "pending" and detail.replace("USER", user) in found.detail
    assert found.mend.startswith(mend.replace("USER", user))


def test_clean(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["clean"]) == 0
    assert "nothing to clean" in capsys.readouterr().out
    (cache.source / "big").write_bytes(b"x" * 2_000_000)
    (cache.results / "mine").write_text("kept")
    assert cli.main(["clean"]) == 0
    out = capsys.readouterr().out
    assert "freed 2 MB" in out and "kept the results" in out
    assert not (cache.root / "source").exists() and (cache.results / "mine").exists()
    assert cli.main(["clean", "--all"]) == 0
    assert not cache.root.exists()


def test_clean_while_in_use(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    (cache.source / "big").write_text("x")
    other = holder()
    assert cli.main(["clean"]) == 2
    assert "another quell is using the cache" in capsys.readouterr().err
    assert (cache.source / "big").exists()
    other.communicate("\n", timeout=10)
    assert cli.main(["clean"]) == 0


def test_tree_command(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch, kernel: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(quell_source, "get_source", lambda cache, tree: source)
    monkeypatch.setattr("quell.tree.kernel_dir", lambda: kernel)
    dest = tmp_path / "linux"
    assert cli.main(["tree", str(dest)]) == 0
    assert cli.main(["tree", "--refresh", str(dest)]) == 0
    assert capsys.readouterr().out == "kernel/ is up to date\n"
    assert cli.main(["tree", "--patch", "x", str(dest)]) == 2
    assert cli.main(["tree", "--refresh", str(dest), "--kernel", str(tmp_path)]) == 2


def launch(cache: Path, path: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [repo_root() / "quell", *args],
        env={"PATH": path, "QUELL_CACHE": str(cache), "HOME": "/nonexistent"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A PATH with the basic programs, and a python3 that cannot make a venv."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("sh", "dirname", "readlink", "id", "sha256sum", "cut", "mkdir", "rm", "flock",
                 "tail", "grep", "apt-get"):  # fmt: skip
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return folder


def write_program(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


FAKE_PYTHON = """
case "$*" in
*ensurepip*) exit 0 ;;
*"-m venv "*) for dir; do :; done; /bin/mkdir -p "$dir/bin"; /bin/cp "$0" "$dir/bin/python" ;;
*pip*) {pip} ;;
*) echo "started $*" ;;
esac"""


def test_launcher(tmp_path: Path, bare: Path) -> None:
    write_program(bare / "python3", FAKE_PYTHON.format(pip="exit 0"))
    done = launch(tmp_path / "c", str(bare), "compare", "--", "a b")
    assert (done.returncode, done.stdout) == (0, "started -P -m quell compare -- a b\n")
    assert "preparing" in done.stderr
    assert launch(tmp_path / "c", str(bare), "doctor").stderr == ""


def test_launcher_on_a_machine_that_is_no_lab(tmp_path: Path, bare: Path) -> None:
    write_program(bare / "python3", FAKE_PYTHON.format(pip="exit 1"))
    for words in (
        ["status", "--json"], ["-q", "explain", "luf"], ["top", "--", "a b"], ["--version"], ["help"],
        ["compare", "--help"], ["-h"],
    ):
        done = launch(tmp_path / "c", str(bare), *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("started -I -B -c ")
        assert done.stdout.endswith(f" {repo_root()}/lab {' '.join(words)}\n")
    assert launch(tmp_path / "c", str(bare)).stdout.endswith(f" {repo_root()}/lab\n")
    assert not (tmp_path / "c").exists()
    # An option behind -- is not Quell's.
    assert "could not be installed" in launch(tmp_path / "c", str(bare), "compare", "--", "ls", "--help").stderr
    # A real one, without packages and without a writable folder.
    (bare / "python3").unlink()
    (bare / "python3").symlink_to("/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable)
    done = launch(Path("/proc/none"), str(bare), "explain", "luf")
    assert (done.returncode, done.stderr) == (0, "") and "More: docs/luf.md" in done.stdout


def test_launcher_without_network(tmp_path: Path, bare: Path) -> None:
    pip = "echo 'NewConnectionError: Network is unreachable' >&2; exit 1"
    write_program(bare / "python3", FAKE_PYTHON.format(pip=pip))
    done = launch(tmp_path / "c", str(bare), "doctor")
    assert done.returncode == 2 and "there is no network" in done.stderr
    # An incomplete environment is made again.
    write_program(bare / "python3", FAKE_PYTHON.format(pip="exit 0"))
    assert launch(tmp_path / "c", str(bare), "doctor").returncode == 0


def test_launcher_without_python(tmp_path: Path, bare: Path) -> None:
    # /usr/bin/python3 may be usable: make its test for venv fail too.
    text = (repo_root() / "quell").read_text()
    changed = text.replace("for python in python3 /usr/bin/python3", "for python in python3")
    assert changed != text
    root = tmp_path / "repo"
    (root / "lab").mkdir(parents=True)
    (root / "lab/requirements.txt").write_text("")
    (root / "quell").write_text(changed)
    (root / "quell").chmod(0o755)

    def start(command: str = "doctor") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [root / "quell", command],
            env={"PATH": str(bare), "QUELL_CACHE": str(tmp_path / "c")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    write_program(bare / "id", "echo 1000")
    done = start()
    assert done.returncode == 2 and "sudo apt-get install" in done.stderr
    assert len(done.stderr.splitlines()) == 1

    write_program(bare / "id", "echo 0")
    write_program(bare / "apt-get", "echo 'E: Could not resolve'; exit 100")
    done = start()
    assert done.returncode == 2 and "could not be installed" in done.stderr

    write_program(bare / "python3", "exit 1")  # too old
    for command, version in (("top", "3.9"), ("status", "3.11")):
        done = start(command)
        assert done.returncode == 2 and done.stderr.startswith(f"quell: Python {version} or later is missing; ")
        assert len(done.stderr.splitlines()) == 1

    good = tmp_path / "good"
    write_program(good, FAKE_PYTHON.format(pip="exit 0"))
    write_program(bare / "apt-get", f"/bin/cp {good} {bare}/python3")
    done = start()
    assert (done.returncode, done.stdout) == (0, "started -P -m quell doctor\n")
    assert os.access(bare / "python3", os.X_OK)
