# SPDX-License-Identifier: GPL-2.0-only
"""The client of the workloads redis and memcached: its figures, and detection of wrong data."""

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import fails, write_files
from guests import Done, Patch, compiled, execute
from quell import debian, counters, prereq, workload
from quell.errors import QuellError, UsageError
from quell.paths import Cache, repo_root

FAKE = Path(__file__).parent / "data" / "fake_store.py"
SERVERS = {"redis": "bin/redis-server", "memcached": "bin/memcached"}
WORKLOADS = repo_root() / "workloads"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client, compiled without warnings."""
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", f"-I{WORKLOADS}")
    return compiled(WORKLOADS / "redis/store.c", tmp_path_factory.mktemp("store"), *flags)


def run(program: Path, protocol: str, folder: Path, fault: str = "", keys: int = 100) -> Done:
    argv = (program, "--protocol", protocol, "--keys", str(keys), "--max", "300", folder)
    return execute(*argv, env={"FAULT": fault}, timeout=120)


def run_fake(program: Path, protocol: str, folder: Path, fault: str = "") -> Done:
    """Run with the fake server in the data directory."""
    server = write_files(folder, {SERVERS[protocol]: f"#!{sys.executable}\n" + FAKE.read_text()})
    (server / SERVERS[protocol]).chmod(0o755)
    return run(program, protocol, folder, fault)


@pytest.mark.parametrize("protocol", SERVERS)
def test_everything_is_read_back(program: Path, protocol: str, tmp_path: Path) -> None:
    done = run_fake(program, protocol, tmp_path)
    assert done.stderr == "" and done.returncode == 0
    figures = counters.parse_figures(done.stdout)
    cgroup = {f"{when}_in_use_kb" for when in ("loaded", "churned", "saved")} | {"server_peak_kb"}
    assert set(figures) == set(workload.load(WORKLOADS / protocol).figures) - cgroup
    assert figures["requests_per_s"].higher_is_better and figures["requests_per_s"].value > 0
    assert figures["loaded_resident_kb"].value >= figures["loaded_anonymous_kb"].value > 0
    assert figures["server_faults"].value >= figures["load_faults"].value > 0


@pytest.mark.parametrize("protocol", SERVERS)
@pytest.mark.parametrize(("fault", "says"), [
    ("byte", "The value of key 49 is not what was stored."),
    ("lost", "to a read of key 49."),
    ("undead", "to a delete of key 27."),
    ("refuses", "to a store of key 49."),
])  # fmt: skip
def test_wrong_data_fails_the_run(program: Path, protocol: str, fault: str, says: str, tmp_path: Path) -> None:
    done = run_fake(program, protocol, tmp_path, fault)
    assert done.returncode == 1 and says in done.stderr


def test_a_save_that_fails(program: Path, tmp_path: Path) -> None:
    done = run_fake(program, "redis", tmp_path, "unsaved")
    assert (done.returncode, done.stderr) == (1, "store: The server could not save.\n")


def test_no_server(program: Path, tmp_path: Path) -> None:
    done = run(program, "redis", tmp_path)
    assert done.returncode == 1 and "Cannot run bin/redis-server: No such file" in done.stderr
    assert done.stderr.splitlines()[-1] == "store: bin/redis-server did not start."


@pytest.mark.skipif(not prereq.which("redis-check-rdb"), reason="needs Redis")
def test_the_real_redis(program: Path, tmp_path: Path) -> None:
    subprocess.run(["sh", WORKLOADS / "redis/collect.sh", "redis-server", "/", tmp_path], check=True)
    assert (tmp_path / "lib/libc.so.6").exists()
    done = run(program, "redis", tmp_path, keys=2000)
    assert done.returncode == 0, done.stderr


def test_collecting_what_is_not_there(tmp_path: Path) -> None:
    done = execute("sh", WORKLOADS / "redis/collect.sh", "nosuch", "/", tmp_path)
    assert done.returncode == 1 and done.stderr == "collect.sh: There is no nosuch.\n"


class Apt:
    """apt-get and dpkg-deb as far as debian.py uses them; fails the first ``failures`` times."""

    def __init__(self, monkeypatch: Patch, failures: int = 0) -> None:
        self.log: list[str] = []
        self.failures = failures
        monkeypatch.setattr("quell.proc.run", self.run)
        monkeypatch.setattr(prereq, "apt_get", lambda: "/usr/bin/apt-get")
        monkeypatch.setattr(prereq, "which", lambda program: None)

    def run(self, argv: list[str | Path], **_: object) -> None:
        self.log.append(str(argv[0]) + (" update" if "update" in argv else ""))
        if argv[0] == "dpkg-deb":
            write_files(Path(argv[-1]), {"usr/bin/served": ""})
        elif "update" not in argv:
            assert "--download-only" in argv and argv[-1] == "serverd"
            if self.failures:
                self.failures -= 1
                raise QuellError("apt-get failed", detail="E: Failed to fetch")
            where = next(str(w) for w in argv if str(w).startswith("Dir::Cache::archives="))
            Path(where.partition("=")[2], "serverd.deb").write_text("")


def test_packages_are_unpacked_once(cache: Cache, monkeypatch: Patch) -> None:
    apt = Apt(monkeypatch, failures=1)
    root = debian.root({"served": "serverd"}, cache)
    assert (root / "usr/bin/served").exists() and not (root / "archives").exists()
    assert apt.log == ["apt-get", "apt-get update", "apt-get", "dpkg-deb"]
    assert debian.root({"served": "serverd"}, cache) == root and len(apt.log) == 4
    fails(QuellError, "package serverd has no other", debian.root, {"other": "serverd"}, cache)


def test_packages_that_cannot_be_had(cache: Cache, monkeypatch: Patch) -> None:
    Apt(monkeypatch, failures=2)
    with pytest.raises(UsageError, match="serverd could not be fetched .is there a network"):
        debian.root({"served": "serverd"}, cache)
    assert list(cache.data.iterdir()) == []
    monkeypatch.setattr(prereq, "apt_get", lambda: None)
    fails(UsageError, "missing here: served; install them with", debian.root, {"served": "serverd"}, cache)
    monkeypatch.setattr(prereq, "which", lambda program: f"/usr/bin/{program}")
    assert debian.root({"served": "serverd"}, cache) == Path("/")
