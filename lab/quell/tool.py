# SPDX-License-Identifier: GPL-2.0-only
"""Third-party programs of workloads, built once from a source package on PyPI.

The package is pinned by version and SHA-256. The CMakeLists.txt in its folder under
workloads/ builds it (SOURCE is the unpacked package). An environment variable may
name the user's own program instead.
"""

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from quell import packages, prereq, proc, toolchain, ui
from quell.build import build_error
from quell.errors import UsageError
from quell.paths import Cache, require_space

# Bytes: package and source 0.3, objects 0.2, and the same in the compiler cache.
_SPACE = 1_000_000_000
_TIMEOUT_S = 7200
# cmake's makefiles begin each step with its progress.
_STEP = re.compile(r"^\[ *(\d+)%\] ")


@dataclass(frozen=True)
class Tool:
    """The program ``name``: cmake's target of ``folder``, from ``package`` at ``version``.

    ``sha256`` is the source package's, ``own`` the environment variable that names the
    user's own program.
    """

    name: str
    package: str
    version: str
    sha256: str
    own: str
    folder: Path

    def own_program(self) -> Path | None:
        """The user's own program, None without one. UsageError if it cannot be run."""
        named = os.environ.get(self.own, "")
        if not named:
            return None
        path = Path(named)
        if not path.is_file() or not os.access(path, os.X_OK):
            raise UsageError(f"{self.own} names {named}, which is no program that can be run")
        return path.absolute()


def build(tool: Tool, cache: Cache) -> Path:
    """The program, built when its sources, its package or the compiler changed.

    An interrupted build leaves only the compiler cache. QuellError with the compiler's
    errors, UsageError without network, disk space or compiler.
    """
    prereq.ensure((*prereq.BUILD, *prereq.TOOLS))

    def make(temp: Path) -> None:
        require_space(cache.root, _SPACE, f"building {tool.package}")
        _build(tool, fetch(tool, cache), temp, cache)

    return cache.made(cache.data / _key(tool), make) / tool.name


def _key(tool: Tool) -> str:
    digest = hashlib.sha256(f"{tool.sha256}{toolchain.version('g++')}".encode())
    for path in sorted([tool.folder / "CMakeLists.txt", *tool.folder.glob("*.cpp")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{tool.name}-{tool.version}-{digest.hexdigest()[:16]}"


def fetch(tool: Tool, cache: Cache) -> Path:
    """The source package, from the cache's downloads folder or from PyPI, where pip checks its SHA-256.

    UsageError without a network.
    """
    name = f"{tool.package.replace('-', '_')}-{tool.version}.tar.gz"
    archive = cache.downloads / name
    if not archive.exists():
        with cache.scratch("pypi") as temp, ui.progress(f"fetching {tool.package} {tool.version}"):
            pinned = temp / "requirements.txt"
            pinned.write_text(f"{tool.package}=={tool.version} --hash=sha256:{tool.sha256}\n")
            packages.pip(
                ["download", "--no-deps", "--no-binary", tool.package, "--require-hashes",
                 "-r", pinned, "-d", temp],
                f"{tool.package} {tool.version} could not be fetched from PyPI",
            )  # fmt: skip
            (temp / name).rename(archive)
    return archive


def _build(tool: Tool, archive: Path, temp: Path, cache: Cache) -> None:
    """Build into ``temp``, and leave only the program there."""
    source, objects = temp / "source", temp / "objects"
    source.mkdir()
    log = cache.logs / f"build-{tool.name}.log"
    log.unlink(missing_ok=True)
    env = {
        **toolchain.ccache(temp, cache),
        # The package asks git for its version, but is no checkout.
        "GIT_CEILING_DIRECTORIES": str(temp),
        "MAKEFLAGS": "",
        # cmake would take the compiler and flags of the user's environment.
        "CC": "gcc", "CXX": "g++", "CFLAGS": "", "CXXFLAGS": "", "LDFLAGS": "",
    }  # fmt: skip
    steps: list[list[str | Path]] = [
        ["tar", "-xzf", archive, "-C", source, "--strip-components=1", "--no-same-owner"],
        ["cmake", "-G", "Unix Makefiles", "-S", tool.folder, "-B", objects,
         f"-DSOURCE={source}", "-DCMAKE_BUILD_TYPE=Release"],
        ["make", "-C", objects, f"-j{os.cpu_count() or 1}", tool.name],
    ]  # fmt: skip
    with ui.progress(f"building {tool.package} {tool.version}", 100) as bar:

        def on_line(line: str) -> None:
            if match := _STEP.match(line):
                bar.update(completed=int(match[1]))

        for argv in steps:
            result = proc.run(argv, log=log, env=env, check=False, on_line=on_line, timeout=_TIMEOUT_S)
            if result.returncode != 0:
                raise build_error(f"{tool.package} {tool.version} does not build", result.stdout, log)
        bar.update(completed=100)
    (objects / tool.name).rename(temp / tool.name)
    proc.run(["strip", temp / tool.name], check=False)
    shutil.rmtree(source)
    shutil.rmtree(objects)
