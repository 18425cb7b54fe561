# SPDX-License-Identifier: GPL-2.0-only
"""Debian packages of the Quell kernel, from a configuration of the user's.

Linux's own ``make bindeb-pkg`` makes them. This module adds Quell's options to the
configuration, makes builds reproducible, and moves the packages to the user's folder.
"""

import gzip
import hashlib
import os
import platform
import re
import shutil
import tempfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from quell import build, export, prereq, proc, series, ui
from quell import tree as quell_tree
from quell import version as quell_version
from quell.build import Work
from quell.errors import QuellError, UsageError
from quell.paths import Cache, make_folder, require_space, write_atomic
from quell.source import Source

# A value of --config beside files.
RUNNING = "running"
SUFFIX = "-quell"
_NAME = "deb"
_SOURCE_NAME = "linux-quell"
# KUnit tests need KUnit in the kernel; a distribution's has none.
_TESTS = {"CONFIG_QUELL_KUNIT_TEST": "CONFIG_KUNIT"}
_QUELL = "CONFIG_QUELL"
# Certificates and hashes that go into the kernel: files of whoever made the configuration.
_FILES = ("CONFIG_SYSTEM_TRUSTED_KEYS", "CONFIG_SYSTEM_REVOCATION_KEYS", "CONFIG_SYSTEM_BLACKLIST_HASH_LIST")
_SIGNED_ONLY = (
    "CONFIG_MODULE_SIG_FORCE",
    "CONFIG_LOCK_DOWN_KERNEL_FORCE_INTEGRITY",
    "CONFIG_LOCK_DOWN_KERNEL_FORCE_CONFIDENTIALITY",
)
# Likewise on a machine with Secure Boot on; Debian has it.
_SECURE_BOOT = "CONFIG_LOCK_DOWN_IN_EFI_SECURE_BOOT"
# A seed at random in each build is their purpose.
_RANDOM = ("CONFIG_RANDSTRUCT_FULL", "CONFIG_RANDSTRUCT_PERFORMANCE", "CONFIG_GCC_PLUGIN_LATENT_ENTROPY")
# Kconfig derives these from the compiler and the architecture; they are no choices.
_FOUND_OUT = re.compile(
    r"CONFIG_(CC|GCC|CLANG|AS|LD|LLD|RUSTC|BINDGEN|PAHOLE|TOOLS|HAVE|ARCH|GENERIC|USE)_|\w+_VERSION(_TEXT)?$"
)
# Per option that is y or m: compiler and linker steps, from the lab's kernel (2093 for 703);
# bytes on disk, a safe guess with debugging information (the lab's kernel: 0.5 MB without).
_STEPS_PER_OPTION = 3
_BYTES_PER_OPTION = 3_000_000


@dataclass(frozen=True)
class Config:
    """A configuration: its text, and the user's name for it."""

    text: str
    origin: str


@dataclass(frozen=True)
class Adapted:
    """A configuration with Quell's options, before Kconfig completes it.

    ``asked``: the options that Kconfig has to keep, as a fragment. ``changed``: all options that were set.
    ``notes`` and ``warnings``: sentences for the user.
    """

    text: str
    asked: str
    changed: frozenset[str]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Package:
    """A finished package: ``size`` in bytes, ``sha256`` in hex."""

    path: Path
    size: int
    sha256: str


@dataclass(frozen=True)
class Packages:
    """The result: ``release`` is the kernel's ``uname -r``; the image comes first."""

    release: str
    packages: tuple[Package, ...]


# --- the configuration -------------------------------------------------------


def read_config(what: str, boot: Path = Path("/boot"), proc_config: Path = Path("/proc/config.gz")) -> Config:
    """The configuration ``what``: a file, gzipped or not, or that of the running kernel.

    UsageError when there is none, or when it is not a kernel configuration for x86-64.
    """
    if what == RUNNING:
        candidates = [boot / f"config-{platform.release()}", proc_config]
        path = next((path for path in candidates if path.is_file()), None)
        if path is None:
            raise UsageError(
                "the running kernel's configuration is neither "
                f"{candidates[0]} nor {candidates[1]}; give it as a file: --config FILE"
            )
    else:
        path = Path(what)
    try:
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    text = data.decode(errors="replace")
    have = build.options(text)
    if not have:
        raise UsageError(f"{path} is not a kernel configuration: it has no CONFIG_ line")
    made_for = re.search(r"^# Linux/(\S+) \S+ Kernel Configuration$", text, re.M)
    if (made_for and made_for[1] not in ("x86", "x86_64")) or have.get("CONFIG_X86_32") == "y":
        arch = made_for[1] if made_for else "32-bit x86"
        raise UsageError(f"{path} is a configuration for {arch}, but packages are built for x86-64")
    return Config(text, str(path))


def _text_of(value: str) -> str:
    return value.strip('"')


def adapt(config: Config, quell: str, tree: Path, lab_only: Collection[str] = ()) -> Adapted:
    """The configuration with Quell's options (the fragment ``quell``) and what packages need.

    Options that are ``lab_only`` need a y in the configuration. An n there stays, but for QUELL itself.
    ``tree`` is the kernel source, where files that it names may be. UsageError when it lets
    only signed modules load and brings no key of its own.
    """
    have = build.options(config.text)
    refused = [name for name in build.options(quell) if have.get(name) == "n" and name != _QUELL]
    asked = {
        name: "n" if name in refused or (name in lab_only and have.get(name) != "y") else value
        for name, value in build.options(quell).items()
        if name not in _TESTS or have.get(_TESTS[name]) == "y"
    }
    changed = dict(asked)
    notes: list[str] = []
    warnings: list[str] = []
    chosen = [name for name in refused if name not in lab_only and name not in _TESTS]
    if chosen:
        notes.append(f"left out, as {config.origin} has them off: {', '.join(chosen)}")

    def there(name: str) -> bool:
        path = _text_of(have.get(name, ""))
        return path.startswith("pkcs11:") or bool(path) and (tree / path).is_file()

    absent = [name for name in _FILES if _text_of(have.get(name, "n")) not in ("", "n") and not there(name)]
    for name in absent:
        changed[name] = '""'
    if absent:
        files = ", ".join(f"{_text_of(have[name])} ({name})" for name in absent)
        notes.append(f"left out, since the kernel source lacks them: {files}")

    if have.get("CONFIG_MODULES") == "y" and not there("CONFIG_MODULE_SIG_KEY"):
        insists = [name for name in _SIGNED_ONLY if have.get(name) == "y"]
        if insists:
            raise UsageError(
                f"{config.origin} lets only signed modules load ({', '.join(insists)}), and a new key in each "
                "build would make the packages differ: name a key of your own, with its whole path, in "
                "CONFIG_MODULE_SIG_KEY"
            )
        changed |= {"CONFIG_MODULE_SIG_KEY": '""', "CONFIG_MODULE_SIG_ALL": "n"}
        if have.get("CONFIG_MODULE_SIG") == "y":
            notes.append(
                'modules are not signed (CONFIG_MODULE_SIG_KEY="", CONFIG_MODULE_SIG_ALL=n): a new key in '
                "each build would make the packages differ"
            )
    signs = there("CONFIG_MODULE_SIG_KEY") and have.get("CONFIG_MODULE_SIG_ALL") == "y"
    if have.get(_SECURE_BOOT) == "y" and have.get("CONFIG_MODULES") == "y" and not signs:
        warnings.append(
            f"with Secure Boot on, this kernel loads signed modules only ({_SECURE_BOOT}), and these are not signed: "
            "sign them as well as the kernel, or set CONFIG_MODULE_SIG_ALL=y and CONFIG_MODULE_SIG_KEY to your key"
        )
    kept = [line for line in config.text.splitlines() if not (build.options(line).keys() & changed.keys())]
    lines = [f"# {name} is not set" if value == "n" else f"{name}={value}" for name, value in changed.items()]
    warnings += [
        f"{name} takes a random seed in each build: two builds give different packages"
        for name in _RANDOM
        if have.get(name) == "y"
    ]
    fragment = "".join(f"{name}={value}\n" for name, value in asked.items())
    return Adapted(
        "\n".join([*kept, *lines, ""]), fragment, frozenset(changed), tuple(notes), tuple(warnings)
    )


def otherwise(config: Config, adapted: Adapted, result: str) -> list[str]:
    """The user's options that Kconfig changed, each with both values; not those set here."""
    now = build.options(result)
    return [
        f"{name}: {value} -> {now.get(name, 'gone')}"
        for name, value in build.options(config.text).items()
        if value != "n"
        and now.get(name, "n") != value
        and name not in adapted.changed
        and not _FOUND_OUT.match(name)
    ]


def _depends(kernel_part: Path, name: str) -> str:
    """A line with the dependencies of a Quell option according to Kconfig; empty without any."""
    text = (kernel_part / "files/mm/Kconfig.quell").read_text()
    block = re.search(rf"^(?:menu)?config {name.removeprefix('CONFIG_')}\n(.*?)(?=^\S)", text, re.M | re.S)
    found = re.findall(r"^\tdepends on (.*)$", block[1], re.M) if block else []
    return f"  {name} depends on {' && '.join(found)}\n" if found else ""


def _configure(
    config: Config, adapted: Adapted, work: Work, cache: Cache, log: Path, kernel_part: Path, jobs: int
) -> str:
    """Let Kconfig complete the configuration in the work folder; its text."""
    write_atomic(work.obj / ".config", adapted.text)
    made = proc.run(_make_argv(work, cache, jobs, "olddefconfig"), log=log, check=False)
    if made.returncode != 0:
        raise build.build_error("configuring the kernel failed", made.stdout, log)
    result = (work.obj / ".config").read_text()
    refused = build.refused_options(adapted.asked, result)
    if refused:
        raise QuellError(
            f"with {config.origin} the kernel does not get {', '.join(refused)}",
            detail="".join(_depends(kernel_part, name) for name in refused),
        )
    other = otherwise(config, adapted, result)
    if other:
        listing = cache.logs / "deb-options.txt"
        write_atomic(listing, "\n".join(other) + "\n")
        ui.note(f"{len(other)} options of {config.origin} differ in this Linux: {listing}")
    return result


def _chosen(config: str) -> int:
    return sum(value in ("y", "m") for value in build.options(config).values())


# --- the build ---------------------------------------------------------------


def package_version(linux: str) -> str:
    """The packages' version: Linux's, Quell's, and between releases the date of Quell's last commit (UTC)."""
    own = f"{linux}-quell{quell_version.RELEASE}"
    if not quell_version.between_releases():
        return own
    day = datetime.fromisoformat(export.date()).astimezone(UTC)
    return f"{own}+{day:%Y%m%d}"


# Linux's mkdebian puts the build time into the changelog, without an option. The Makefile
# merges blanks, hence no two in a row.
_CHANGELOG = (
    f'sed -i "s/^\\( -- .*> *\\).*/\\1{build.BUILT_AT:%a, %d %b %Y %H:%M:%S} +0000/" debian/changelog'
)


def _make_argv(work: Work, cache: Cache, jobs: int, target: str, version: str = "") -> list[str]:
    """The command line of make, in an environment with nothing of the user's but the path."""
    # The prefix map replaces the folder's name, also in the tools of the headers package.
    compiler = f"ccache gcc -ffile-prefix-map={work.src}=."
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return [
        "env", "-i", f"PATH={path}", f"HOME={work.root}", f"TMPDIR={tempfile.gettempdir()}",
        *build.ccache_env(work.src, cache),
        f"SOURCE_DATE_EPOCH={int(build.BUILT_AT.timestamp())}", "TZ=UTC",
        "DEB_BUILD_OPTIONS=terse", f"DEB_BUILD_PROFILES=pkg.{_SOURCE_NAME}.nokerneldbg",
        "DEBFULLNAME=Quell", "DEBEMAIL=quell@localhost",
        # Packages take the permissions of the files.
        "sh", "-c", 'umask 022; exec "$@"', "sh",
        "make", "-C", str(work.src), f"O={work.obj}", f"-j{jobs}",
        f"CC={compiler}", f"HOSTCC={compiler}", f"LOCALVERSION={SUFFIX}", *build.REPRODUCIBLE,
        f"KDEB_SOURCENAME={_SOURCE_NAME}", f"KDEB_PKGVERSION={version}", "KDEB_CHANGELOG_DIST=unstable",
        "KDEB_COMPRESS=xz", f"DPKG_FLAGS=--hook-init='{_CHANGELOG}'",
        target,
    ]  # fmt: skip


def build_packages(
    source: Source,
    config: Config,
    dest: Path,
    *,
    cache: Cache | None = None,
    kernel_part: Path | None = None,
    jobs: int | None = None,
) -> Packages:
    """Build linux-image and, if there are modules, linux-headers, and put them into ``dest``.

    ``jobs`` compilers run at once, by default one for each CPU. QuellError when Kconfig drops an
    option of Quell's (named), or the build fails; UsageError when a prerequisite is missing.
    ``dest`` gets all packages or none.
    """
    cache = cache or Cache()
    kernel_part = kernel_part or quell_tree.kernel_dir()
    jobs = jobs or os.cpu_count() or 1
    build.check_host(cache)
    make_folder(dest)
    adapted = adapt(
        config, build.fragment("quell.config", kernel_part), source.tree, series.lab_options(kernel_part)
    )
    _check_name(build.options(config.text).get("CONFIG_LOCALVERSION", ""), config)
    prereq.ensure([*prereq.BUILD, *prereq.packages_need(build.options(config.text))])
    for note in adapted.notes:
        ui.note(note)
    for warning in adapted.warnings:
        ui.warn(warning)
    with cache.lock(f"build-{_NAME}"):
        work = build.prepare(_NAME, source, cache, kernel_part, quell=True)
        _start_clean(work, adapted)
        log = cache.logs / f"build-{_NAME}.log"
        log.unlink(missing_ok=True)
        result = _configure(config, adapted, work, cache, log, kernel_part, jobs)
        built, release = _build(source, result, work, cache, log, jobs)
        packages = _deliver(built, dest)
        _remove_outcome(work)
    return Packages(release, packages)


def _check_name(local_version: str, config: Config) -> None:
    if not re.fullmatch(r"[a-z0-9.+-]*", _text_of(local_version)):
        raise UsageError(
            f"CONFIG_LOCALVERSION={local_version} of {config.origin} cannot be in the name of a package: "
            "use small letters, digits and .+-"
        )


def _start_clean(work: Work, adapted: Adapted) -> None:
    """Remove objects and generated files of another configuration or compiler: packages would contain them."""
    key = hashlib.sha256(f"{adapted.text}\0{build.compiler_version()}".encode()).hexdigest()
    if work.read_state().get("config") != key:
        shutil.rmtree(work.obj)
        require_space(work.root, _chosen(adapted.text) * _BYTES_PER_OPTION, "building the packages")
        work.obj.mkdir()
        work.write_state(config=key)
    _remove_outcome(work)


def _outcome(work: Work) -> list[Path]:
    """The files that dpkg-buildpackage puts beside the objects."""
    return sorted(path for path in work.src.glob("linux-*_*") if path.is_file())


def _remove_outcome(work: Work) -> None:
    for path in _outcome(work):
        path.unlink()
    shutil.rmtree(work.obj / "debian", ignore_errors=True)


def _build(
    source: Source, config: str, work: Work, cache: Cache, log: Path, jobs: int
) -> tuple[list[Path], str]:
    """Run make; its packages, the image first, and the kernel's release."""
    argv = _make_argv(work, cache, jobs, "bindeb-pkg", package_version(source.version))
    total = _chosen(config) * _STEPS_PER_OPTION
    build.make_with_progress("building the packages", source, argv, work, total, log)
    release = (work.obj / "include/config/kernel.release").read_text().strip()
    kinds = ["image", "headers"] if build.options(config).get("CONFIG_MODULES") == "y" else ["image"]
    built = []
    for kind in kinds:
        found = [path for path in _outcome(work) if path.match(f"linux-{kind}-{release}_*.deb")]
        if len(found) != 1:
            raise QuellError(f"make bindeb-pkg made no linux-{kind} package", log=log)
        built += found
    return built, release


# --- to the user's folder ----------------------------------------------------


def _deliver(built: list[Path], dest: Path) -> tuple[Package, ...]:
    """Copy the packages into ``dest``, then give all of them their names."""
    packages = []
    with tempfile.TemporaryDirectory(prefix=".tmp-quell-", dir=dest) as temp:
        for path in built:
            copy = Path(shutil.copyfile(path, Path(temp) / path.name))
            copy.chmod(0o644)
            with copy.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            packages.append(Package(dest / path.name, copy.stat().st_size, digest))
        for package in packages:
            (Path(temp) / package.path.name).rename(package.path)
    return tuple(packages)
