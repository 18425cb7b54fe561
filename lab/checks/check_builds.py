# SPDX-License-Identifier: GPL-2.0-only
"""Compile Quell in many configurations: no error, and no warning that stock lacks.

Quell's own files and the hooked files of Linux are compiled at W=1, as far as a configuration has
them. Some configurations compile and link the whole kernel: a missing symbol shows only there.
Files with warnings are compiled from the stock source too, in the same configuration. A clean
configuration is not compiled again until one of its inputs changes.
"""

import functools
import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from checks import own_code, scenario
from checks.configurations import Configuration, choose
from quell import build, prereq, proc, source, toolchain, tree, ui
from quell.errors import QuellError, UsageError
from quell.paths import Cache, write_atomic

_LIST = scenario.FOLDER / "list.mk"
# A kept result depends on these.
_CODE = (__file__, build.__file__, own_code.__file__, _LIST)
# False positives in Quell's code: sparse misses the lock of pte_offset_map() and
# pte_offset_map_lock(), the lock that the result of lock_cluster_or_swap_info() stands for, and the
# unlock of guard(). It warns about Linux's own users too. The unlock may be in a header. Listed by
# function, so that sparse still covers all others.
_NOT_SEEN_BY_SPARSE = re.compile(
    r"((mm/folio_order\.c|include/linux/rcupdate\.h):.* context imbalance in"
    r" '(__)?folio_order_(run_before|look)' - unexpected unlock"
    r"|mm/luf_lot\.c:.* context imbalance in 'luf_lot_(add|take)' - wrong count at exit"
    r"|mm/swapfile\.c:.* context imbalance in"
    r" 'swap_duplicate_nr' - different lock contexts for basic block)"
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("one", choose(metafunc.config.getoption("build")), ids=lambda one: one.name)


@pytest.mark.parametrize("linux", source.VERSIONS)
def test_build(one: Configuration, linux: str, cache: Cache) -> None:
    """It compiles without a warning that stock lacks."""
    prereq.ensure(prereq.BUILD)
    try:
        prereq.ensure(one.tools())
    except UsageError as error:
        pytest.skip(error.message)
    if found := new_warnings(one, linux, cache):
        pytest.fail("\n".join(found), pytrace=False)


def new_warnings(one: Configuration, linux: str, cache: Cache) -> list[str]:
    """The warnings of a configuration that stock lacks; QuellError if it does not compile."""
    origin = source.debian_source(cache, linux)
    part = one.part(_compiled(tree.read_kernel_part(tree.kernel_dir(), linux)))
    tools = [f"{one.prefix}gcc", f"{one.prefix}ld", *(["sparse"] if one.sparse else [])]
    facts = (
        one, one.fragment(linux), origin.key, part.digest(), [toolchain.version(tool) for tool in tools],
        [Path(file).read_text() for file in _CODE],
    )  # fmt: skip
    key = hashlib.sha256(repr(facts).encode()).hexdigest()
    record = cache.folder("checks") / "builds" / f"{one.name}-{linux}"
    if record.exists() and record.read_text() == key:
        ui.note(f"{one.name}: clean in an earlier run with the same inputs")
        return []
    with cache.lock("builds"):
        wanted = objects(part, one.folder)
        found = _warnings(one, build.work_folder("builds-quell", origin, cache, part).src, wanted, linux, cache)
        warned = {_kind(text)[0] for text in found}
        names = {f"{path[:-2]}.o" for path in warned if path.endswith(".c")}
        # A warning about a header may come with any of them.
        if any(not path.endswith(".c") for path in warned):
            names.update(wanted)
        names -= set(own_code.own_objects(part.files))
        if names:
            stock = build.work_folder("builds-stock", origin, cache, None).src
            found = without_known(found, _warnings(one, stock, sorted(names), linux, cache, quell=False))
    if not found:
        write_atomic(record, key)
    return found


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


def without_known(ours: Sequence[str], stock: Sequence[str]) -> list[str]:
    """Warnings in ``ours`` that stock lacks. File and text are compared, not the line number."""
    known = Counter(map(_kind, stock))
    new = []
    for text in ours:
        known[_kind(text)] -= 1
        if known[_kind(text)] < 0:
            new.append(text)
    return new


def _kind(text: str) -> tuple[str, str]:
    match = own_code.WARNING.match(text)
    assert match is not None
    return match[1], re.sub(r"\+0x[0-9a-f]+", "", match[2])


def _warnings(
    one: Configuration, src: Path, wanted: Sequence[str], linux: str, cache: Cache, *, quell: bool = True
) -> list[str]:
    """Compile the objects of ``wanted`` that a configuration has; with Quell also link. Return the warnings."""
    obj = src / f"obj-{one.arch}"
    log = cache.logs / f"builds-{linux}-{one.name}{'' if quell else '-stock'}.log"
    log.unlink(missing_ok=True)

    def make(*args: str, failed: str = "no configuration") -> str:
        argv = build.make_argv(
            src, obj, "builds", cache, f"ARCH={one.arch}", f"CROSS_COMPILE={one.prefix}",
            f"CC=ccache {one.prefix}gcc", *args,
        )  # fmt: skip
        result = proc.run(argv, log=log, check=False)
        if result.returncode != 0:
            raise build.build_error(failed, result.stdout, log)
        return result.stdout

    # In obj while make runs: found at the start, the last run was killed.
    marker = obj / "building"
    if marker.exists():
        shutil.rmtree(obj)
    obj.mkdir(exist_ok=True)
    config, asked = obj / ".config", obj / "quell.fragment"
    write_atomic(asked, one.fragment(linux, quell=quell))
    if one.base == "def":
        make("defconfig")
        write_atomic(config, config.read_text() + asked.read_text())
        make("olddefconfig")
    else:
        make(f"KCONFIG_ALLCONFIG={asked}", "allnoconfig")
    if quell and (refused := one.refused(config.read_text())):
        raise QuellError(f"Linux does not take {', '.join(refused)}", log=config)
    marker.touch()
    make("prepare", failed="make prepare failed")
    has = configured(one, src, obj, wanted)
    if quell and not has:
        raise QuellError("none of the objects is listed in a Makefile", log=log)
    for name in has:
        (obj / name).unlink(missing_ok=True)
    said = make("W=1", f"C={int(one.sparse and linux == source.DEFAULT)}", "-k", *has, failed="does not compile") if has else ""
    if missing := [name for name in has if not (obj / name).exists()]:
        raise QuellError(f"make made no {', '.join(missing)}", log=log)
    if quell and one.link:
        modules = ["modules"] if "CONFIG_MODULES=y\n" in config.read_text() else []
        said += make("vmlinux", *modules, failed="does not link")
    marker.unlink()
    return [text for text in own_code.warnings(said) if not _NOT_SEEN_BY_SPARSE.match(text)]


def configured(one: Configuration, src: Path, obj: Path, wanted: Sequence[str]) -> list[str]:
    """Select the objects that are part of the configuration in ``obj``."""
    bits = 64 if "\nCONFIG_64BIT=y\n" in (obj / ".config").read_text() else 32

    @functools.cache
    def listing(folder: str) -> list[str]:
        argv = [
            *build.clean_env(), "make", "-s", f"--file={_LIST}", f"dir={folder}", "srctree=..", "srcroot=..",
            "objtree=.", f"SRCARCH={one.folder}", f"ARCH={one.arch}", f"BITS={bits}", f"CC={one.prefix}gcc",
            f"LD={one.prefix}ld", "quell-list",
        ]  # fmt: skip
        return [text.removeprefix("./") for text in proc.run(argv, cwd=obj).stdout.split()]

    def has(path: str) -> bool:
        """Whether an object or a folder is listed by the Makefile above it, and so on up."""
        for folder in map(str, PurePosixPath(path).parents):
            if (src / folder / "Kbuild").exists() or (src / folder / "Makefile").exists():
                top = "/" not in folder or folder == f"arch/{one.folder}"
                return path.removeprefix(f"{folder}/") in listing(folder) and (top or has(f"{folder}/"))
        return False

    return [path for path in wanted if has(path)]
