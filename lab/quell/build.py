# SPDX-License-Identifier: GPL-2.0-only
"""Incremental builds of the kernels: stock and Quell, from the same source.

Each kernel has a folder in the cache's work folder. Its ``src`` has hard links to the
pristine source, with Quell's files written over; ``src/obj``, the O= directory, is
kept between builds. With the objects inside the source all paths of the compiler are
relative. So both kernels share the compiler cache, and images are reproducible.
"""

import functools
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quell import prereq, proc, toolchain, ui
from quell import tree as quell_tree
from quell.errors import QuellError, UsageError
from quell.paths import Cache, atomic_dir, require_space, write_atomic
from quell.sides import KERNELS as KERNELS_OF_SIDES, Side
from quell.source import DEFAULT, Source, get_source, linux_of, user_tree

# Raised when finished kernels of an older lab become unusable.
_FORMAT = 1
_BUILD_SPACE = 2_500_000_000
# Compiler and linker steps of the lab's configuration.
_STEPS = 1860
# A fixed time: images are reproducible, and the compiler cache is independent of the clock.
BUILT_AT = datetime(2024, 11, 17, 22, 15, tzinfo=UTC)
REPRODUCIBLE = (
    f"KBUILD_BUILD_TIMESTAMP={BUILT_AT:%a %b %d %H:%M:%S} UTC {BUILT_AT:%Y}",
    "KBUILD_BUILD_USER=quell",
    "KBUILD_BUILD_HOST=quell",
)
_STEP = re.compile(r"^  (?:HOST)?(?:CC|AS|LD|AR)(?: |$)")
# Variables of the user's environment that must not reach make.
_UNSET = (
    "ARCH", "CROSS_COMPILE", "LLVM", "MAKEFLAGS", "MFLAGS", "KCFLAGS", "KAFLAGS", "KCPPFLAGS",
    "KBUILD_OUTPUT", "KBUILD_CFLAGS", "KCONFIG_CONFIG", "KBUILD_EXTMOD", "CFLAGS", "CPPFLAGS",
    "LDFLAGS", "LOCALVERSION", "CONFIG_", "O", "W", "V", "C",
)  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """The parts of a kernel: config fragments in order, and whether Quell is applied."""

    fragments: tuple[str, ...]
    quell: bool


_FILE_SYSTEMS = "filesystems.config"
_STOCK = ("lab.config", _FILE_SYSTEMS)
_QUELL = (*_STOCK, "quell.config")
KERNELS = {
    "stock": Spec(_STOCK, False),
    "quell": Spec(_QUELL, True),
    "debug": Spec(("lab.config", "quell.config", "debug.config"), True),
    "sanitize": Spec(("lab.config", "quell.config", "sanitize.config"), True),
    "kcsan": Spec(("lab.config", "quell.config", "kcsan.config"), True),
    "kcsan-stock": Spec(("lab.config", "kcsan.config"), False),
    "stock-kvm": Spec((*_STOCK, "kvm.config"), False),
    "quell-kvm": Spec((*_QUELL, "kvm.config"), True),
    "stock-kunit": Spec((*_STOCK, "kunit.config"), False),
    "quell-kunit": Spec((*_QUELL, "kunit.config"), True),
}
# The kernels of trees that a side of this process names.
_TREES: dict[str, Spec] = {}
# NAME-ext4 is the kernel NAME with ext4 as its only file system on disks. Both share a work
# folder: adding the file systems compiles little else.
EXT4 = "-ext4"


def folder_of(name: str, linux: str) -> str:
    """The work folder of the kernel ``name``."""
    return name if linux == DEFAULT else f"{name}-{linux}"


def _spec(name: str) -> Spec:
    """The specification of a kernel; UsageError for an unknown name."""
    base = name.removesuffix(EXT4)
    spec = _TREES.get(base) or KERNELS.get(base)
    if spec is None:
        raise UsageError(f"there is no kernel {name!r}; there are {', '.join(KERNELS)}")
    return spec if base == name else Spec(tuple(one for one in spec.fragments if one != _FILE_SYSTEMS), spec.quell)


@dataclass(frozen=True)
class Kernel:
    """A finished kernel in the cache.

    ``release`` is its ``uname -r``, ``config_hash`` the SHA-256 of its ``.config``, ``key`` a hash of
    all its inputs, ``build_dir`` its O= directory (which later builds may have changed).
    """

    name: str
    release: str
    config_hash: str
    source_version: str
    key: str
    folder: Path
    build_dir: Path

    @property
    def image(self) -> Path:
        """The image that QEMU boots; ``folder`` also has ``config`` and ``System.map``."""
        return self.folder / "bzImage"


@dataclass(frozen=True)
class Work:
    """The work folder of a kernel."""

    root: Path

    @property
    def src(self) -> Path:
        return self.root / "src"

    @property
    def obj(self) -> Path:
        return self.src / "obj"

    @property
    def marker(self) -> Path:
        """A file in ``obj`` while make runs. If it exists at the start, the last run was killed."""
        return self.obj / "building"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    def read_state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self.state.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return state

    def write_state(self, **values: object) -> None:
        write_atomic(self.state, json.dumps({**self.read_state(), **values}, indent=1) + "\n")


def build_kernels(
    source: Source,
    names: Sequence[str] = ("stock", "quell"),
    cache: Cache | None = None,
    kernel_part: Path | None = None,
) -> dict[str, Kernel]:
    """Build the kernels ``names`` unless finished ones are in the cache.

    QuellError when a build fails (with the compiler's lines), a hook does not apply
    (with hook and file), or the configuration does not take an option (with its
    name). UsageError when a prerequisite is missing.
    """
    cache = cache or Cache()
    return {name: _build(name, source, cache, kernel_part or quell_tree.kernel_dir()) for name in names}


def build_kernel(which: str, kernel: str, cache: Cache, *, ext4: bool = False) -> Kernel:
    """The kernel of a side: one of sides.KERNELS, or that of an unchanged tree's folder.

    ``kernel`` is ``--kernel``'s Linux, for a side without a version. ``ext4``: see ``EXT4``.
    """
    end = EXT4 if ext4 else ""
    if which in KERNELS_OF_SIDES:
        name, _, linux = which.partition("-")
        return build_kernels(get_source(cache, linux or kernel), (name + end,), cache)[name + end]
    own = user_tree(Path(which), cache, quell=True)
    base = "quell" if (own.tree / "mm/Kconfig.quell").exists() else "stock"
    name = f"tree-{hashlib.sha256(which.encode()).hexdigest()[:8]}"
    _TREES[name] = Spec(_spec(base).fragments, False)
    return build_kernels(own, (name + end,), cache)[name + end]


def for_sides(
    kernel: str, cache: Cache, sides: Sequence[Side], *, ext4: bool = True
) -> tuple[Source, dict[str, Kernel]]:
    """The source of ``--kernel``, and the kernel of each side by name.

    ``ext4``: no other file system on disks is needed.
    """
    prereq.ensure()
    origin = get_source(cache, kernel)
    kernels = {one: build_kernel(one, kernel, cache, ext4=ext4) for one in dict.fromkeys(s.kernel for s in sides)}
    return origin, {side.name: kernels[side.kernel] for side in sides}


def finished_kernel(
    name: str, source: Source, cache: Cache | None = None, kernel_part: Path | None = None
) -> Kernel | None:
    """The kernel ``name`` if the cache has it, built from the present inputs; builds nothing."""
    if prereq.which("gcc") is None:
        return None
    return _load(cache or Cache(), name, _key(name, source, kernel_part or quell_tree.kernel_dir()))


def _load(cache: Cache, name: str, key: str) -> Kernel | None:
    folder = cache.kernels / f"{name}-{key}"
    try:
        record = json.loads((folder / "build.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    kept = {field: record[field] for field in ("release", "config_hash", "source_version")}
    work = Work(cache.work / folder_of(name.removesuffix(EXT4), linux_of(kept["source_version"])))
    return Kernel(name=name, key=key, folder=folder, build_dir=work.obj, **kept)


def fragments(name: str, kernel_part: Path, linux: str = DEFAULT) -> str:
    """The configuration fragments of the kernel ``name`` of a version of Linux."""
    files = [*_spec(name).fragments, *([f"{linux}.config"] if linux != DEFAULT else [])]
    return "\n".join(fragment(one, kernel_part) for one in files)


def fragment(file: str, kernel_part: Path) -> str:
    """The text of a configuration fragment of Quell's."""
    return (kernel_part / "configs" / file).read_text()


def compiler_version() -> str:
    """The first lines of ``gcc --version`` and ``ld --version``."""
    return f"{toolchain.version('gcc')}; {toolchain.version('ld')}"


def _key(name: str, source: Source, kernel_part: Path) -> str:
    parts = [str(_FORMAT), name, source.key, fragments(name, kernel_part, source.linux), compiler_version()]
    if _spec(name).quell:
        parts.append(quell_tree.read_kernel_part(kernel_part, source.linux).digest())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _build(name: str, source: Source, cache: Cache, kernel_part: Path) -> Kernel:
    spec, base = _spec(name), name.removesuffix(EXT4)
    folder = folder_of(base, source.linux)
    check_host(cache)
    prereq.ensure(prereq.BUILD)
    key = _key(name, source, kernel_part)
    if kernel := _load(cache, name, key):
        return kernel
    with cache.lock(f"build-{folder}"):
        if kernel := _load(cache, name, key):  # another quell may have built it meanwhile
            return kernel
        work = prepare(base, source, cache, kernel_part, quell=spec.quell)
        log = cache.logs / f"build-{folder}.log"
        log.unlink(missing_ok=True)
        config = configure(work.src, work.obj, fragments(name, kernel_part, source.linux), base, cache, log)
        make = make_argv(work.src, work.obj, base, cache, "bzImage")
        make_with_progress(f"building the {base} kernel", source, make, work, _STEPS, log)
        _keep(name, key, source, work, cache, config)
    kernel = _load(cache, name, key)
    assert kernel is not None
    return kernel


def check_host(cache: Cache) -> None:
    """UsageError where kernels cannot be built: another architecture, a path that make does not take."""
    if platform.machine() != "x86_64":
        raise UsageError(f"the lab builds for x86-64 on x86-64; this is {platform.machine()}")
    if re.search(r"[\s:]", str(cache.root)):
        raise UsageError(
            f"kernels cannot be built below {cache.root}: set QUELL_CACHE to a path "
            "without spaces and colons"
        )


def prepare(name: str, source: Source, cache: Cache, kernel_part: Path, *, quell: bool) -> Work:
    """Bring the work folder's source up to date and its objects into a known state.

    ``quell``: whether Quell is applied.
    """
    part = quell_tree.read_kernel_part(kernel_part, source.linux) if quell else None
    work = work_folder(name, source, cache, part)
    if work.marker.exists():
        ui.note(f"the last build of the {name} kernel was interrupted: building from scratch")
        shutil.rmtree(work.obj)
    work.obj.mkdir(exist_ok=True)
    return work


def work_folder(name: str, source: Source, cache: Cache, part: quell_tree.KernelPart | None) -> Work:
    """The work folder ``name`` with its source: pristine, or with Quell's ``part``.

    Only changed files are written. The caller holds a lock on the folder.
    """
    work = Work(cache.work / folder_of(name, source.linux))
    state = work.read_state()
    if state.get("source") != source.key or not work.src.is_dir():
        require_space(cache.root, _BUILD_SPACE, f"building the {name} kernel")
        work.state.unlink(missing_ok=True)
        if work.root.exists():
            shutil.rmtree(work.root)
        with atomic_dir(work.src) as temp:
            _link_tree(source.tree, temp)
        work.write_state(source=source.key, overlay=[])
    if part is not None:
        _sync(work, source, part)
    return work


def _link_tree(tree: Path, target: Path) -> None:
    # Hard links are safe: _sync replaces whole files.
    linked = proc.run(["cp", "-al", f"{tree}/.", target], check=False)
    if linked.returncode != 0:
        shutil.rmtree(target)
        target.mkdir()
        proc.run(["cp", "-a", "--reflink=auto", f"{tree}/.", target])


def _sync(work: Work, source: Source, part: quell_tree.KernelPart) -> None:
    """Write the changed files of Quell, and no others: make compares their times."""
    pristine = functools.partial(quell_tree.read_file, source.tree)
    wanted = quell_tree.overlay(part, pristine)
    old = work.read_state().get("overlay", [])
    # The record comes first: it has to list every file that is written before a kill.
    work.write_state(overlay=sorted({*old, *wanted}))
    quell_tree.write_files(work.src, {**{path: pristine(path) for path in old}, **wanted})


def clean_env() -> list[str]:
    """The beginning of a command line: env(1) without the variables of ``_UNSET``."""
    return ["env", *(word for variable in _UNSET for word in ("-u", variable))]


def ccache_env(src: Path, cache: Cache) -> list[str]:
    """Settings for env(1): the compiler cache for compilations below ``src``."""
    return [f"{name}={value}" for name, value in toolchain.ccache(src, cache).items()]


def make_argv(src: Path, obj: Path, name: str, cache: Cache, *args: str) -> list[str]:
    """A make of the tree ``src`` into ``obj``, reproducible and through the compiler cache.

    Settings in ``args`` come last and override: another compiler, for instance.
    """
    return [
        *clean_env(), *ccache_env(src, cache), "make", "-C", str(src), f"O={obj}", f"-j{os.cpu_count() or 1}",
        "CC=ccache gcc", "HOSTCC=ccache gcc", f"LOCALVERSION=-{name}",
        *REPRODUCIBLE, "KBUILD_BUILD_VERSION=1",
        *args,
    ]  # fmt: skip


def configure(
    src: Path, obj: Path, fragment: str, name: str, cache: Cache, log: Path, *, all_taken: bool = True
) -> Path:
    """Make ``obj``/.config: allnoconfig with the fragment's options; its path.

    QuellError with every option that Linux did not take, unless not ``all_taken``.
    """
    asked = obj / "quell.fragment"
    write_atomic(asked, fragment)
    make = make_argv(src, obj, name, cache, f"KCONFIG_ALLCONFIG={asked}", "allnoconfig")
    result = proc.run(make, log=log, check=False)
    if result.returncode != 0:
        raise build_error(f"configuring the {name} kernel failed", result.stdout, log)
    config = obj / ".config"
    refused = refused_options(fragment, config.read_text())
    if refused and all_taken:
        raise QuellError(
            f"the {name} kernel's configuration does not take {', '.join(refused)} as asked "
            "(a dependency is missing, or the option is gone)",
            log=config,
        )
    return config


_OPTION = re.compile(r"^(?:(CONFIG_\w+)=(.*)|# (CONFIG_\w+) is not set)$", re.M)


def options(text: str) -> dict[str, str]:
    """The options of a ``.config`` or fragment with their values, ``n`` for those not set."""
    return {match[1] or match[3]: (match[2] or "").strip() or "n" for match in _OPTION.finditer(text)}


def refused_options(fragment: str, config: str) -> list[str]:
    """The options of a fragment that differ in a ``.config``; the last mention counts.

    ``=n`` is not required: another option may select it.
    """
    have = options(config)
    return [
        name
        for name, value in options(fragment).items()
        if value != "n" and have.get(name, "n") != value
    ]


def make_with_progress(what: str, source: Source, argv: Sequence[str], work: Work, total: int, log: Path) -> None:
    """Run make in a work folder, with a bar that is full at ``total`` compiler and linker steps.

    QuellError with ``what`` and the compiler's lines. After a kill of make the marker stays.
    """
    count = 0
    work.marker.touch()
    with ui.progress(f"{what}, Linux {source.version}", total) as bar:

        def on_line(line: str) -> None:
            nonlocal count
            if _STEP.match(line):
                count += 1
                bar.update(completed=min(count, total))

        result = proc.run(argv, log=log, check=False, on_line=on_line)
        if result.returncode >= 0:
            # make was not killed: there is no half-written object.
            work.marker.unlink()
        if result.returncode != 0:
            raise build_error(f"{what} failed", result.stdout, log)
        bar.update(completed=total)


def _keep(name: str, key: str, source: Source, work: Work, cache: Cache, config: Path) -> None:
    record = {
        "release": (work.obj / "include/config/kernel.release").read_text().strip(),
        "config_hash": hashlib.sha256(config.read_bytes()).hexdigest(),
        "source_version": source.version,
        "source_key": source.key,
        "compiler": compiler_version(),
    }
    with atomic_dir(cache.kernels / f"{name}-{key}") as temp:
        shutil.copy(work.obj / "arch/x86/boot/bzImage", temp / "bzImage")
        shutil.copy(config, temp / "config")
        shutil.copy(work.obj / "System.map", temp / "System.map")
        (temp / "build.json").write_text(json.dumps(record, indent=1) + "\n")


# With gcc's source lines.
_ERROR = re.compile(
    r"^.*(: (fatal )?error: |: undefined reference to |^ld: .*error|\*\*\* [^\[]|: multiple definition of"
    r"|^ERROR: |: No such file or directory$|No rule to make target).*(\n\s+\d* \|.*){0,2}",
    re.M,
)
_SHOWN_ERRORS = 12


def error_lines(output: str) -> list[str]:
    """The error lines of make's output, with gcc's source lines."""
    # Paths relative to the source tree, not to the objects.
    found = [re.sub(r"^(\.\./)+", "", match[0]) for match in _ERROR.finditer(output)]
    return "\n".join([*found[:_SHOWN_ERRORS], *(["..."] if len(found) > _SHOWN_ERRORS else [])]).splitlines()


def build_error(message: str, output: str, log: Path) -> QuellError:
    """The error for make's output: the message, the compiler's lines, and a likely cause."""
    if "No space left on device" in output:
        return UsageError(f"{message}: no disk space left; ./quell clean frees the cache", log=log)
    if re.search(r"Killed signal terminated program|\bKilled$", output, re.M):
        message += " (the compiler was killed: too little memory?)"
    lines = error_lines(output)
    return QuellError(message, detail="\n".join(lines) or proc.tail(output), log=log)
