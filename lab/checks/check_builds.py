# SPDX-License-Identifier: GPL-2.0-only
"""Compile Quell in many configurations: no error, and no warning that stock lacks.

Quell's own files and the hooked files of Linux are compiled at W=1, as far as a configuration has
them. Some configurations compile and link the whole kernel: a missing symbol shows only there.
Files with warnings are compiled from the stock source too, in the same configuration. A clean
result is kept until one of its inputs changes.
"""

import hashlib
import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from checks import own_code, scenario
from checks.configurations import ARCHES, Configuration, choose
from checks.cases import Case, settle, text_of
from quell import build, prereq, proc, source, toolchain, tree, ui
from quell.errors import QuellError, UsageError
from quell.paths import Cache, write_atomic

_LIST = "list.mk"
# A kept result depends on these.
_CODE = (__file__, build.__file__, own_code.__file__, scenario.FOLDER / _LIST)
# False positives in Quell's code: sparse misses the lock of pte_offset_map() and
# pte_offset_map_lock(), and the lock that the result of lock_cluster_or_swap_info() stands for. It
# warns about Linux's own users too. The unlock may be in a header. Listed by function, so that
# sparse still covers all others.
_NOT_SEEN_BY_SPARSE = re.compile(
    r"((mm/folio_order\.c|include/linux/rcupdate\.h):.* context imbalance in"
    r" '(__)?folio_order_(run_before|alloc)' - unexpected unlock"
    r"|mm/swapfile\.c:.* context imbalance in"
    r" 'swap_duplicate_nr' - different lock contexts for basic block)"
)


@dataclass(frozen=True)
class Outcome:
    """Result of one configuration.

    ``warnings`` and ``sparse`` leave out those of stock; ``sparse`` is None if it did not run.
    ``error`` and ``skipped`` are the reasons of a failure and of a skip. ``kept``: the result is from
    an earlier run, which took ``seconds``.
    """

    name: str
    objects: int = 0
    warnings: tuple[str, ...] = ()
    sparse: tuple[str, ...] | None = None
    linked: bool = False
    seconds: float = 0
    error: str = ""
    skipped: str = ""
    kept: bool = False

    @property
    def clean(self) -> bool:
        """True without an error, a warning or a reason to skip."""
        return not (self.error or self.warnings or self.sparse or self.skipped)


def optional(wanted: Sequence[Configuration]) -> list[prereq.Prerequisite]:
    """Tools without which some of the configurations are skipped."""
    crossed = dict.fromkeys(ARCHES[one.arch] for one in wanted if ARCHES[one.arch].prefix)
    items = [
        prereq.Prerequisite(f"{arch.prefix}gcc", arch.package, "compiles for another architecture")
        for arch in crossed
    ]
    return [*prereq.SPARSE, *items] if any(one.sparse for one in wanted) else items


def install(wanted: Sequence[Configuration]) -> None:
    """Install the tools, as far as possible."""
    prereq.ensure(prereq.BUILD)
    try:
        prereq.ensure(optional(wanted))
    except UsageError as error:
        ui.note(error.message)


@pytest.fixture(scope="module")
def tools(request: pytest.FixtureRequest, cache: Cache) -> Iterator[None]:
    """The compilers; nobody else uses the trees."""
    install(choose(request.config.getoption("build")))
    with cache.lock("builds"):
        yield


class Trees:
    """The sources of one version of Linux; those with Quell change with the patches that are applied."""

    def __init__(self, linux: str, cache: Cache) -> None:
        self.origin = source.debian_source(cache, linux)
        self.whole = _compiled(tree.read_kernel_part(tree.kernel_dir(), linux))
        self.stock = build.work_folder("builds-stock", self.origin, cache, None).src
        self.cache = cache

    def outcome(self, one: Configuration) -> Outcome:
        """Compile one configuration, unless a clean result is kept."""
        part = one.part(self.whole)
        trees = {"quell": build.work_folder("builds-quell", self.origin, self.cache, part).src, "stock": self.stock}
        return _outcome(one, trees, self.origin, part, self.cache)


@pytest.fixture(scope="module")
def trees(request: pytest.FixtureRequest, cache: Cache, tools: None) -> Trees:
    """Those of the version in the parameter."""
    return Trees(request.param, cache)


def case(one: Outcome) -> Case:
    """The result of a configuration."""
    if one.skipped:
        return Case(one.name, "skipped", one.skipped)
    sparse = "-" if one.sparse is None else len(one.sparse)
    said = (
        f"{one.name}: {one.objects} objects, {len(one.warnings)} new warnings, {sparse} of sparse"
        f"{', linked' if one.linked else ''}, {one.seconds:.0f} s{' (kept)' if one.kept else ''}"
    )
    why = "\n".join(filter(None, (one.error, *one.warnings, *(one.sparse or ()))))
    return Case(one.name, "passed" if one.clean else "failed", why, one.seconds, said)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    wanted = choose(metafunc.config.getoption("build"))
    metafunc.parametrize("one", wanted, ids=lambda one: one.name)
    metafunc.parametrize("trees", source.VERSIONS, indirect=True, scope="module")


def test_build(one: Configuration, trees: Trees) -> None:
    """It compiles without a warning that stock lacks."""
    settle(case(trees.outcome(one)))


def _compiled(part: tree.KernelPart) -> tree.KernelPart:
    """The part of Quell that goes into a kernel."""

    def inside(path: str) -> bool:
        return not path.startswith(own_code.OUTSIDE)

    hooks = [replace(hook, sections={p: text for p, text in hook.sections.items() if inside(p)}) for hook in part.hooks]
    files = {path: data for path, data in part.files.items() if inside(path)}
    return tree.KernelPart(files, [hook for hook in hooks if hook.sections], part.linux)


def objects(part: tree.KernelPart, folder: str) -> list[str]:
    """The objects of Quell's C files and of those that hooks are in, for the architecture ``folder``.

    These include the headers; other users of a header are compiled where the whole kernel is.
    """
    objects = own_code.own_objects({*part.files, *(path for hook in part.hooks for path in hook.sections)})
    return [name for name in objects if not name.startswith("arch/") or name.startswith(f"arch/{folder}/")]


def new_warnings(ours: Sequence[str], stock: Iterable[str]) -> list[str]:
    """Warnings in ``ours`` that stock lacks. File and text are compared, not the line number."""
    known = Counter(_kind(text) for text in stock)
    new = []
    for text in ours:
        if known[_kind(text)] > 0:
            known[_kind(text)] -= 1
        else:
            new.append(text)
    return new


def _kind(text: str) -> tuple[str, str]:
    match = own_code.WARNING.match(text)
    assert match is not None
    return match[1], re.sub(r"\+0x[0-9a-f]+", "", match[2])


class _Build:
    """One configuration in one of the trees."""

    def __init__(self, one: Configuration, src: Path, cache: Cache, *, quell: bool, linux: str = source.DEFAULT) -> None:
        self.one = one
        self.linux = linux
        self.src = src
        self.cache = cache
        self.quell = quell
        self.arch = ARCHES[one.arch]
        self.obj = src / f"obj-{one.arch}"
        self.log = cache.logs / f"builds-{linux}-{one.name}{'' if quell else '-stock'}.log"
        # In obj while make runs: found at the start, the last run was killed.
        self.marker = self.obj / "building"

    def make(self, *args: str, check: str | None = None) -> proc.Result:
        """Run make; if it fails and ``check`` is given, raise QuellError(``check`` and the errors)."""
        argv = build.make_argv(
            self.src, self.obj, "builds", self.cache, f"ARCH={self.one.arch}",
            f"CROSS_COMPILE={self.arch.prefix}", f"CC=ccache {self.arch.prefix}gcc", *args,
        )  # fmt: skip
        result = proc.run(argv, log=self.log, check=False)
        if "No space left on device" in result.stdout:
            raise QuellError("no disk space left; ./quell clean frees the cache", log=self.log)
        if result.returncode != 0 and check is not None:
            lines = build.error_lines(result.stdout) or [proc.tail(result.stdout)]
            raise QuellError(f"{check}:\n" + "\n".join(lines), log=self.log)
        return result

    def configure(self, kernel_part: Path) -> None:
        """Write the configuration, and run ``make prepare``."""
        self.log.unlink(missing_ok=True)
        if self.marker.exists():
            shutil.rmtree(self.obj)
        self.obj.mkdir(exist_ok=True)
        asked = self.obj / "quell.fragment"
        write_atomic(asked, self.one.fragment(kernel_part, quell=self.quell, linux=self.linux))
        if self.one.is_def:
            self.make("defconfig", check="no configuration")
            config = self.obj / ".config"
            write_atomic(config, config.read_text() + asked.read_text())
            self.make("olddefconfig", check="no configuration")
        else:
            self.make(f"KCONFIG_ALLCONFIG={asked}", "allnoconfig", check="no configuration")
        config = self.obj / ".config"
        refused = self.one.refused(config.read_text())
        if self.quell and refused:
            raise QuellError(f"Linux does not take {', '.join(refused)}", log=config)
        self.marker.touch()
        self.make("prepare", check="make prepare failed")

    def configured(self, wanted: Sequence[str]) -> list[str]:
        """Select the objects that are part of the configuration."""
        write_atomic(self.obj / "quell-list.mk", scenario.shell(_LIST))
        listings: dict[str, set[str]] = {}

        def has(path: str) -> bool:
            """Whether an object or a folder is listed by the Makefile above it, and so on up."""
            for above in PurePosixPath(path.rstrip("/")).parents:
                folder = str(above)
                if not any((self.src / folder / name).exists() for name in ("Kbuild", "Makefile")):
                    continue
                if folder not in listings:
                    listings[folder] = self._listing(folder)
                if path.removeprefix(f"{folder}/") not in listings[folder]:
                    return False
                top = "/" not in folder or folder == f"arch/{self.arch.folder}"
                return top or has(f"{folder}/")
            return False

        return [path for path in wanted if has(path)]

    def _listing(self, folder: str) -> set[str]:
        bits = 64 if "\nCONFIG_64BIT=y\n" in (self.obj / ".config").read_text() else 32
        compiler = f"{self.arch.prefix}gcc"
        argv = [
            *build.clean_env(), "make", "-s", "-f", "quell-list.mk", f"dir={folder}",
            "srctree=..", "srcroot=..", "objtree=.", f"SRCARCH={self.arch.folder}",
            f"ARCH={self.one.arch}", f"BITS={bits}", f"CC={compiler}", f"LD={self.arch.prefix}ld",
            "quell-list",
        ]  # fmt: skip
        result = proc.run(argv, cwd=self.obj)
        return {text.removeprefix("./") for text in result.stdout.split()}

    def compile(self, wanted: Sequence[str]) -> list[str]:
        """Compile these objects again at W=1; return the warnings."""
        for name in wanted:
            (self.obj / name).unlink(missing_ok=True)
        result = self.make("W=1", "-k", *wanted, check="does not compile")
        missing = [name for name in wanted if not (self.obj / name).exists()]
        if missing:
            raise QuellError(f"make made no {', '.join(missing)}", log=self.log)
        return own_code.warnings(result.stdout)

    def sparse(self, wanted: Sequence[str]) -> list[str]:
        """Run sparse on objects that are compiled; return its warnings."""
        result = self.make("W=1", "C=2", "-k", *wanted, check="sparse failed")
        return [text for text in own_code.warnings(result.stdout) if not _NOT_SEEN_BY_SPARSE.match(text)]

    def link(self) -> list[str]:
        """Compile and link the whole kernel; return the warnings."""
        modules = "CONFIG_MODULES=y\n" in (self.obj / ".config").read_text()
        targets = ["vmlinux", *(["modules"] if modules else [])]
        return own_code.warnings(self.make(*targets, check="does not link").stdout)

    def done(self) -> None:
        """Note that no make was interrupted."""
        self.marker.unlink(missing_ok=True)


def _outcome(
    one: Configuration, trees: Mapping[str, Path], origin: source.Source, part: tree.KernelPart, cache: Cache
) -> Outcome:
    """Compile one configuration, unless a clean result is kept."""
    arch = ARCHES[one.arch]
    name = one.name if origin.linux == source.DEFAULT else f"{one.name}, {origin.linux}"
    if arch.prefix and prereq.which(f"{arch.prefix}gcc") is None:
        return Outcome(name, skipped=f"install {arch.package} (optional)")
    with_sparse = one.sparse and prereq.which("sparse") is not None
    kernel_part = tree.kernel_dir()
    common = [
        _hash(*(Path(file).read_text() for file in _CODE)), origin.key,
        one.arch, str(with_sparse), str(one.is_def), _versions(one.arch),
    ]
    key = _hash(*common, one.fragment(kernel_part, linux=origin.linux), repr(sorted(one.options.items())),
                str(one.link), part.digest())  # fmt: skip
    record = cache.folder("checks") / "builds" / f"{name.replace(', ', '-')}.json"
    known = _load(record, key)
    if known is not None:
        none = () if with_sparse else None
        outcome = Outcome(name, known["objects"], (), none, known["linked"], known["seconds"], kept=True)
        return _without_sparse(one, outcome)

    def stock(names: list[str]) -> tuple[list[str], list[str]]:
        fragment = one.fragment(kernel_part, quell=False, linux=origin.linux)
        return _stock(one, trees["stock"], names, with_sparse, _hash(*common, fragment, *names), cache, origin.linux)

    started = time.monotonic()
    try:
        outcome = replace(_compile(one, trees["quell"], part, with_sparse, stock, cache), name=name)
    except QuellError as error:
        outcome = Outcome(name, error=text_of(error))
    outcome = replace(outcome, seconds=round(time.monotonic() - started, 1))
    if outcome.clean:
        value = {name: getattr(outcome, name) for name in ("objects", "linked", "seconds")}
        write_atomic(record, json.dumps({"key": key, "value": value}, indent=1) + "\n")
    return _without_sparse(one, outcome)


def _without_sparse(one: Configuration, outcome: Outcome) -> Outcome:
    """``outcome``, as skipped if it is clean but its configuration wants sparse, which is not installed."""
    if one.sparse and outcome.sparse is None and outcome.clean:
        return replace(outcome, skipped="compiled, but not read by sparse: install sparse (optional)")
    return outcome


def _compile(
    one: Configuration,
    src: Path,
    part: tree.KernelPart,
    with_sparse: bool,
    stock: Callable[[list[str]], tuple[list[str], list[str]]],
    cache: Cache,
) -> Outcome:
    ours = _Build(one, src, cache, quell=True, linux=part.linux)
    ours.configure(tree.kernel_dir())
    wanted = ours.configured(objects(part, ours.arch.folder))
    if not wanted:
        raise QuellError("none of the objects is listed in a Makefile", log=ours.log)
    found = ours.compile(wanted)
    seen = ours.sparse(wanted) if with_sparse else []
    if one.link:
        found = list(dict.fromkeys([*found, *ours.link()]))
    ours.done()
    if found or seen:
        warned = {_kind(text)[0] for text in (*found, *seen)}
        names = {re.sub(r"\.c$", ".o", path) for path in warned if path.endswith(".c")}
        # A warning about a header may come with any of them.
        if any(not path.endswith(".c") for path in warned):
            names.update(wanted)
        at_stock, seen_at_stock = stock(sorted(names - set(own_code.own_objects(part.files))))
        found = new_warnings(found, at_stock)
        seen = new_warnings(seen, seen_at_stock)
    return Outcome(one.name, len(wanted), tuple(found), tuple(seen) if with_sparse else None, one.link)


def _stock(
    one: Configuration, src: Path, names: Sequence[str], with_sparse: bool, key: str, cache: Cache, linux: str
) -> tuple[list[str], list[str]]:
    """Warnings of the compiler and of sparse for the same objects of the stock source."""
    record = cache.folder("checks") / "builds" / f"{one.name}-{linux}-stock.json"
    known = _load(record, key)
    if known is None:
        stock = _Build(one, src, cache, quell=False, linux=linux)
        stock.configure(tree.kernel_dir())
        has = stock.configured(names)
        found = stock.compile(has) if has else []
        seen = stock.sparse(has) if has and with_sparse else []
        stock.done()
        known = {"warnings": found, "sparse": seen}
        write_atomic(record, json.dumps({"key": key, "value": known}, indent=1) + "\n")
    return known["warnings"], known["sparse"]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _load(record: Path, key: str) -> dict[str, Any] | None:
    try:
        kept = json.loads(record.read_text())
    except (FileNotFoundError, ValueError):
        return None
    value: dict[str, Any] = kept["value"]
    return value if kept["key"] == key else None


def _versions(arch: str) -> str:
    """Versions of the compiler, the linker and sparse."""
    prefix = ARCHES[arch].prefix
    tools = [f"{prefix}gcc", f"{prefix}ld", *(["sparse"] if prereq.which("sparse") else [])]
    return "; ".join(map(toolchain.version, tools))
