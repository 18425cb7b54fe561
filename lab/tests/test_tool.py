# SPDX-License-Identifier: GPL-2.0-only
"""Programs from a source package, with fake pip, cmake and compilers; and the user's own programs."""

import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from conftest import Capture, Fake, fails, write_files
from guests import Patch
from quell import build, engine, packages, prereq, presets, tool, workload
from quell.errors import QuellError, UsageError
from quell.paths import Cache, repo_root

# Stands in for cmake: it writes a makefile with the targets of the tool's own.
CMAKE = r"""
while [ $# -gt 0 ]; do
	case $1 in
	-B) out=$2 ;;
	-DSOURCE=*) source=${1#-DSOURCE=} ;;
	esac
	shift
done
mkdir -p "$out"
{
	printf 'hello:\n\t@echo "[ 50%%] Building C object"\n'
	printf '\tcp %s/main.c hello\n' "$source"
} > "$out/Makefile"
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    write_files(tmp_path, {"some_thing-1.5/main.c": "int main(void) { return 0; }\n"})
    path = tmp_path / "some_thing-1.5.tar.gz"
    subprocess.run(["tar", "-czf", path, "-C", tmp_path, "some_thing-1.5"], check=True)
    return path


@pytest.fixture
def wanted(tmp_path: Path, archive: Path, monkeypatch: Patch) -> tool.Tool:
    monkeypatch.setattr(prereq, "ensure", lambda items: None)
    monkeypatch.delenv("SOME_THING", raising=False)
    folder = write_files(tmp_path / "workload", {"CMakeLists.txt": "project(hello)\n"})
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    return tool.Tool("hello", "some-thing", "1.5", digest, "SOME_THING", folder)


def test_fetched_and_built_once(
    wanted: tool.Tool, archive: Path, cache: Cache, fake_program: Fake, monkeypatch: Patch, capsys: Capture
) -> None:  # fmt: skip
    asked: list[str] = []

    def pip(args: Sequence[str | Path], what: str, *, cwd: Path | None = None) -> None:
        asked.append(Path(args[args.index("-r") + 1]).read_text())
        archive.rename(Path(args[-1]) / archive.name)

    monkeypatch.setattr(packages, "pip", pip)
    fake_program("cmake", CMAKE)
    program = tool.build(wanted, cache)
    assert program.name == "hello" and "int main" in program.read_text()
    assert asked == [f"some-thing==1.5 --hash=sha256:{wanted.sha256}\n"]
    # Source and objects are deleted, the package is kept.
    assert [path.name for path in program.parent.iterdir()] == ["hello"]
    assert [path.name for path in cache.downloads.iterdir()] == [archive.name]
    assert "building some-thing 1.5: done" in capsys.readouterr().err
    fake_program("cmake", "echo 'x.cpp:1: error: no such thing'; exit 3")
    assert tool.build(wanted, cache) == program
    (wanted.folder / "main.cpp").write_text("// new\n")
    error = fails(QuellError, "some-thing 1.5 does not build", tool.build, wanted, cache)
    assert "no such thing" in error.detail and error.log is not None and error.log.exists()
    assert list(cache.data.iterdir()) == [program.parent]


def test_no_network(wanted: tool.Tool, cache: Cache, monkeypatch: Patch) -> None:
    failed = QuellError("pip failed", detail="NewConnectionError")
    monkeypatch.setattr("quell.proc.run", Mock(side_effect=failed))
    e = fails(UsageError, "could not be fetched from PyPI .is there a network", tool.fetch, wanted, cache)
    assert e.detail == "NewConnectionError" and e.exit_code == 2
    assert not list(cache.downloads.glob("some*"))


def test_own_program(wanted: tool.Tool, tmp_path: Path, monkeypatch: Patch) -> None:
    assert wanted.own_program() is None
    own, text = tmp_path / "llama-completion", tmp_path / "text"
    text.touch(0o644)
    for path in (own, text, tmp_path):
        monkeypatch.setenv("SOME_THING", str(path))
        fails(UsageError, f"SOME_THING names {path}, which is no program that can be run", wanted.own_program)
    own.touch(0o755)
    monkeypatch.setenv("SOME_THING", str(own))
    assert wanted.own_program() == own.absolute()


def test_own_program_is_looked_at_before_anything_is_built(cache: Cache, monkeypatch: Patch) -> None:
    monkeypatch.setattr(build, "for_sides", lambda *a: pytest.fail("built"))
    monkeypatch.setenv("QUELL_LLAMA", "/nonexistent/llama-completion")
    with pytest.raises(UsageError, match="QUELL_LLAMA names /nonexistent/llama-completion"):
        engine.compare(engine.Request(sides=presets.load("compare").sides, workloads=("llm",)), cache)


def test_the_tool_in_a_workload(tmp_path: Path, cache: Cache, monkeypatch: Patch) -> None:
    llm = workload.load(repo_root() / "workloads" / "llm")
    assert llm.tool is not None and (llm.folder / "CMakeLists.txt").exists()
    llm = replace(llm, sources=(), data=None, argv=("{tool}", "-n", "1"))
    built = tmp_path / "generate"
    monkeypatch.setattr(tool, "build", lambda wanted, cache: built)
    monkeypatch.delenv("QUELL_LLAMA", raising=False)
    ready = workload.prepare(llm, llm.memory, cache, {})
    assert ready.argv[0] == "/run/quell/bin/generate" and ready.programs == (built,)
    own = tmp_path / "own"
    own.touch(0o755)
    monkeypatch.setenv("QUELL_LLAMA", str(own))
    monkeypatch.setattr(tool, "build", lambda wanted, cache: pytest.fail("built"))
    ready = workload.prepare(llm, llm.memory, cache, {})
    assert ready.argv[0] == str(own.absolute()) and ready.programs == ()


def test_missing_packages(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("# why==not\npytest==0.0.1\nquell-none==1\n")
    assert packages.missing(file) == ["pytest==0.0.1", "quell-none==1"]
