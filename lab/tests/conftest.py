# SPDX-License-Identifier: GPL-2.0-only
"""Fixtures of all tests: a cache of their own, a small fake kernel, fake programs."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from quell import ui
from quell.paths import Cache
from quell.source import Source

# A shell's background job ignores these; all programs that the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

Capture = pytest.CaptureFixture[str]
Fake = Callable[[str, str], Path]
Error = TypeVar("Error", bound=BaseException)

RMAP = "".join(f"int rmap_{n}(void)\n{{\n\treturn {n};\n}}\n\n" for n in range(12))


def fails(kind: type[Error], says: str | None, call: Callable[..., Any], *args: Any, **options: Any) -> Error:
    """The call raises this kind of error, with a message that matches ``says``."""
    with pytest.raises(kind, match=says) as caught:
        call(*args, **options)
    return caught.value


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Write these texts, by path in ``root``; returns ``root``."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until the condition holds; False if it does not within ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def text_of(file: Path) -> str:
    """The text of a file that another process writes; empty if it is not there yet."""
    return file.read_text().strip() if file.exists() else ""


def gone(pid_file: Path) -> bool:
    """True if the process of this number ends soon; a zombie has ended."""
    def ended() -> bool:
        try:
            return Path(f"/proc/{int(pid_file.read_text() or -1)}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    return until(ended, 6)


def git(root: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=root, check=True, capture_output=True, text=True).stdout


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cache]:
    """Every test has its own empty cache."""
    monkeypatch.setenv("QUELL_CACHE", str(tmp_path / "cache"))
    yield Cache()
    ui.set_quiet(False)


@pytest.fixture
def cache(own_cache: Cache) -> Cache:
    return own_cache


@pytest.fixture
def fake_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put a shell script of this name and text first in PATH."""
    folder = tmp_path / "fake-bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return make


def write_tree(root: Path, version: str = "6.12.7") -> Path:
    """A folder that looks like a kernel tree."""
    major, minor, patch = version.split(".")
    files = {
        "Makefile": f"# SPDX\nVERSION = {major}\nPATCHLEVEL = {minor}\nSUBLEVEL = {patch}\nEXTRAVERSION =\n",
        "Kconfig": "mainmenu\n",
        ".gitignore": "*.o\n*.cmd\n",
        "mm/rmap.c": RMAP,
        "mm/Kconfig": "menu mm\nendmenu\n",
        "mm/vmscan.c": "".join(f"/* line {n} */\n" for n in range(40)),
        "scripts/tool.sh": "#!/bin/sh\n",
    }
    write_files(root, files)
    (root / "scripts/tool.sh").chmod(0o755)
    return root


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source("6.12.7", write_tree(tmp_path / "pristine"), "fake-1")


FIRST = """first: hooks rmap and Kconfig

Prose that must stay.
--- not a file

--- a/mm/Kconfig
+++ b/mm/Kconfig
@@ -1,2 +1,3 @@
 menu mm
+config QUELL
 endmenu
--- a/mm/rmap.c
+++ b/mm/rmap.c
@@ -1,6 +1,6 @@
 int rmap_0(void)
 {
-\treturn 0;
+\treturn 100;
 }
 
 int rmap_1(void)
"""

SECOND = """second: hooks rmap further down

--- a/mm/rmap.c
+++ b/mm/rmap.c
@@ -50,6 +50,7 @@ int rmap_9(void)
 
 int rmap_10(void)
 {
+\tlazy();
 \treturn 10;
 }
 
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A small kernel part: one new file, and two hooks that touch one file."""
    root = tmp_path / "kernel"
    write_files(root, {
        "files/mm/luf.c": "/* luf */\n",
        "hooks/6.12/first.patch": FIRST,
        "hooks/6.12/second.patch": SECOND,
        "hooks/6.12/series": "# the order counts\nfirst.patch\nsecond.patch\n",
        "series.toml": '[first]\nfiles = ["mm/luf.c"]\n[second]\n',
        "configs/lab.config": "CONFIG_SMP=y\n",
        "configs/quell.config": "CONFIG_QUELL=y\n",
        "configs/filesystems.config": "",
        "configs/debug.config": "CONFIG_QUELL=y\n",
    })  # fmt: skip
    return root
