# SPDX-License-Identifier: GPL-2.0-only
"""doctor, clean, build, tree and test as commands, and the launcher."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Capture
from guests import Done, Patch, execute
from quell import cli, prereq, source as quell_source, version
from quell.commands import doctor
from quell.paths import Cache, repo_root
from quell.source import Source

from test_paths import holder

Launch = Callable[..., Done]


def test_doctor_json(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(prereq, "missing", lambda *_: [])
    monkeypatch.setattr(doctor, "_KVM", Path("/quell/none"))
    cli.main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "quell-doctor/1"
    checks = {check["name"]: check for check in report["checks"]}
    assert report["ok"] == all(check["state"] != "missing" for check in checks.values())
    assert checks["source"]["state"] == "pending"
    assert checks["accelerator"]["state"] == "ok" and "no /quell/none; emulation" in checks["accelerator"]["detail"]


def test_doctor_missing_program(capsys: Capture, monkeypatch: Patch, cache: Cache, tmp_path: Path) -> None:
    names = (("quell-none", "none-package"), ("/quell/none", "none-dev"))
    wanted = [prereq.Prerequisite(need, package, "does nothing") for need, package in names]
    monkeypatch.setattr(prereq, "missing", lambda *_: wanted)
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr(doctor, "_KVM", tmp_path)
    assert cli.main(["doctor"]) == 2
    out = capsys.readouterr().out
    assert "apt-get install --no-install-recommends none-package none-dev\n" in out
    assert f"you may not open {tmp_path}" in out and "-> sudo usermod -aG kvm" in out
    assert not cache.root.exists()  # looking makes nothing


def test_clean(cache: Cache, capsys: Capture) -> None:
    assert cli.main(["clean"]) == 0
    assert "nothing to clean" in capsys.readouterr().out
    (cache.source / "big").write_bytes(b"x" * 2_000_000)
    (cache.results / "mine").write_text("kept")
    assert cli.main(["clean"]) == 0
    out = capsys.readouterr().out
    assert "freed 2 MB" in out and "kept the results" in out
    assert not (cache.root / "source").exists() and (cache.results / "mine").exists()
    assert cli.main(["clean", "--all"]) == 0
    assert [path.name for path in cache.root.iterdir()] == ["locks"]


def test_clean_while_in_use(cache: Cache, capsys: Capture) -> None:
    (cache.source / "big").write_text("x")
    other = holder()
    assert cli.main(["clean"]) == 2
    assert "another quell is using the cache" in capsys.readouterr().err
    assert (cache.source / "big").exists()
    other.communicate("\n", timeout=10)
    assert cli.main(["clean"]) == 0


def test_tree_command(tmp_path: Path, source: Source, monkeypatch: Patch, kernel: Path, capsys: Capture) -> None:
    monkeypatch.setattr(quell_source, "get_source", lambda cache, tree: source)
    monkeypatch.setattr("quell.tree.kernel_dir", lambda: kernel)
    dest = tmp_path / "linux"
    assert cli.main(["tree", str(dest)]) == 0
    assert cli.main(["tree", "--refresh", str(dest)]) == 0
    assert capsys.readouterr().out == "kernel/ is up to date\n"
    assert cli.main(["tree", "--patch", "x", str(dest)]) == 2
    assert cli.main(["tree", "--refresh", str(dest), "--kernel", str(tmp_path)]) == 2


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


@pytest.fixture
def launch(tmp_path: Path, bare: Path) -> Launch:
    """Start ./quell with this PATH and an empty cache."""
    def start(*args: str, cache: Path = tmp_path / "c", root: Path = repo_root()) -> Done:
        env = {"PATH": str(bare), "QUELL_CACHE": str(cache), "HOME": "/nonexistent"}
        return execute(root / "quell", *args, env=env, stdin=subprocess.DEVNULL, timeout=60)

    return start


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


def test_launcher(bare: Path, launch: Launch) -> None:
    write_program(bare / "python3", FAKE_PYTHON.format(pip="exit 0"))
    done = launch("compare", "--", "a b")
    assert (done.returncode, done.stdout) == (0, "started -P -m quell compare -- a b\n")
    assert "preparing" in done.stderr
    assert launch("doctor").stderr == ""


def test_launcher_on_a_machine_that_is_no_lab(tmp_path: Path, bare: Path, launch: Launch) -> None:
    write_program(bare / "python3", FAKE_PYTHON.format(pip="exit 1"))
    for words in "status --json", "-q explain luf", "top -- a b", "--version", "help", "compare --help", "-h":
        done = launch(*words.split(" ", 2))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("started -I -B -c ")
        assert done.stdout.endswith(f" {repo_root()}/lab {words}\n")
    assert launch().stdout.endswith(f" {repo_root()}/lab\n")
    assert not (tmp_path / "c").exists()
    # An option behind -- is not Quell's.
    assert "could not be installed" in launch("compare", "--", "ls", "--help").stderr
    # A real one, without packages and without a writable folder.
    (bare / "python3").unlink()
    (bare / "python3").symlink_to("/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable)
    done = launch("explain", "luf", cache=Path("/proc/none"))
    assert (done.returncode, done.stderr) == (0, "") and "More: docs/luf.md" in done.stdout
    done = launch("--version", cache=Path("/proc/none"))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{version.line()}\n", "")


def test_launcher_without_network(bare: Path, launch: Launch) -> None:
    pip = "echo 'NewConnectionError: Network is unreachable' >&2; exit 1"
    write_program(bare / "python3", FAKE_PYTHON.format(pip=pip))
    done = launch("doctor")
    assert done.returncode == 2 and "there is no network" in done.stderr
    # An incomplete environment is made again.
    write_program(bare / "python3", FAKE_PYTHON.format(pip="exit 0"))
    assert launch("doctor").returncode == 0


def test_launcher_without_python(tmp_path: Path, bare: Path, launch: Launch) -> None:
    # /usr/bin/python3 may be usable: make its test for venv fail too.
    text = (repo_root() / "quell").read_text()
    changed = text.replace("for python in python3 /usr/bin/python3", "for python in python3")
    assert changed != text
    root = tmp_path / "repo"
    (root / "lab").mkdir(parents=True)
    (root / "lab/requirements.txt").write_text("")
    (root / "quell").write_text(changed)
    (root / "quell").chmod(0o755)
    write_program(bare / "id", "echo 1000")
    done = launch("doctor", root=root)
    assert done.returncode == 2 and "sudo apt-get install" in done.stderr
    assert len(done.stderr.splitlines()) == 1

    write_program(bare / "id", "echo 0")
    write_program(bare / "apt-get", "echo 'E: Could not resolve'; exit 100")
    done = launch("doctor", root=root)
    assert done.returncode == 2 and "could not be installed" in done.stderr

    write_program(bare / "python3", "exit 1")  # too old
    for command, version in (("top", "3.9"), ("status", "3.11")):
        done = launch(command, root=root)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith(f"quell: Python {version} or later is missing; ")

    good = tmp_path / "good"
    write_program(good, FAKE_PYTHON.format(pip="exit 0"))
    write_program(bare / "apt-get", f"/bin/cp {good} {bare}/python3")
    done = launch("doctor", root=root)
    assert (done.returncode, done.stdout) == (0, "started -P -m quell doctor\n")
    assert os.access(bare / "python3", os.X_OK)
