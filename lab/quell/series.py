# SPDX-License-Identifier: GPL-2.0-only
"""The kernel part as a series of commits, one per patch, for ``./quell export``.

``kernel/series.toml`` assigns new files and options to patches; its head explains
the fields. Each commit has all that it needs: the tree builds after every patch.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quell import forms, tree
from quell.errors import QuellError, UsageError
from quell.source import DEFAULT
from quell.tree import Hook, KernelPart, Overlay, Reader

TABLE = "series.toml"
# Tests are commits of their own, with the lines that include them.
TESTS = re.compile(r"tools/testing/|.*-kunit\.h$")
_KCONFIG = "mm/Kconfig.quell"
_MESSAGE_WIDTH = 75
_ENTRY = re.compile(r"^(?:menu)?config (\w+)", re.M)


@dataclass(frozen=True)
class Commit:
    """One commit: a hook patch, the new files that come with it, the options it adds.

    ``patch`` is the patch of hooks/VERSION that it belongs to; ``lab``: lab-only.
    """

    hook: Hook
    files: tuple[str, ...]
    options: tuple[str, ...]
    patch: str
    lab: bool

    @property
    def message(self) -> str:
        """Subject, empty line, body; no trailers."""
        return self.hook.header.strip() + "\n"

    @property
    def subject(self) -> str:
        """The first line of the message."""
        return self.message.splitlines()[0]


@dataclass(frozen=True)
class Series:
    """The commits in order, the new files that several of them make up, and the commits left out."""

    part: KernelPart
    commits: Sequence[Commit]
    shared: frozenset[str]
    left_out: Sequence[Commit] = ()


@dataclass(frozen=True)
class _Entry:
    """A patch in series.toml."""

    files: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    lab: bool = False


def _table(kernel: Path) -> tuple[frozenset[str], dict[str, _Entry]]:
    """The shared files, and the entries of the patches."""
    table = forms.read_toml(kernel / TABLE)
    shared = forms.convert(table.pop("shared", ()), frozenset[str], f"kernel/{TABLE}: shared")
    return shared, {name: forms.convert(entry, _Entry, f"kernel/{TABLE}: {name}") for name, entry in table.items()}


def read(kernel: Path, linux: str = DEFAULT) -> Series:
    """Read ``kernel/`` for a version of Linux. QuellError where series.toml does not match it."""
    part = tree.read_kernel_part(kernel, linux)
    shared, table = _table(kernel)
    kconfig = part.files.get(_KCONFIG, b"").decode()
    entries = table.values()
    _same("patches", table, [hook.name for hook in part.hooks], f"kernel/hooks/{linux}/series")
    _same("files", [*(shared - part.files.keys()), *(path for entry in entries for path in entry.files)], part.files, "kernel/files")
    _same("options", [name for entry in entries for name in entry.options], _ENTRY.findall(kconfig), _KCONFIG)
    commits = []
    for hook in part.hooks:
        entry = table[hook.name]
        tests = tuple(path for path in entry.files if TESTS.match(path))
        files = tuple(path for path in entry.files if path not in tests)
        commits.append(Commit(hook, files, entry.options, hook.name, entry.lab))
        if tests:
            header = _tests_header(hook.name, tests, part.files)
            commits.append(Commit(Hook(f"{hook.name}_tests", header, {}), tests, (), hook.name, entry.lab))
    for commit in commits:
        # git am would drop the text in brackets, and end the message before a line like a patch's.
        whole = re.match(r"[^\[\n].*\n\n.", commit.message)
        if not whole or re.search(r"^(---|diff -|Index: )", commit.message, re.M):
            raise QuellError(
                f"{commit.hook.name}.patch: its header should be a subject without brackets, an empty line "
                "and a body without lines that git am takes for a patch"
            )
    return Series(part, commits, shared)


def _same(kind: str, named: Iterable[str], there: Iterable[str], where: str) -> None:
    """QuellError unless these are the same."""
    if odd := sorted({*named} ^ {*there}):
        raise QuellError(f"kernel/{TABLE} and {where} do not have the same {kind}: {', '.join(odd)}")


def _tests_header(what: str, tests: Sequence[str], files: Mapping[str, bytes]) -> str:
    """The message of a commit of tests: each file, with the beginning of its head comment."""
    body = "\n".join(f"  {os.path.basename(path)}\n{_head(files[path].decode())}" for path in tests)
    if any(b"\nint main(" in files[path] for path in tests):
        body += "\nThe programs need root; the head of each says what else.\n"
    return f"quell: tests of {what}\n\nTests of the patch before this one:\n\n{body}"


def _head(text: str) -> str:
    """The first paragraph of a C file's head comment, indented. How to call the program is left out."""
    comments = [one for one in re.findall(r"/\*(.*?)\*/", text, re.S) if "SPDX-License-Identifier" not in one]
    lines = "\n".join(re.sub(r"^\s*\*?\s*", "", line) for line in "".join(comments[:1]).splitlines())
    about = lines.strip().split("\n\n")[0].removesuffix("Usage:")
    wrapper = textwrap.TextWrapper(
        _MESSAGE_WIDTH, initial_indent="    ", subsequent_indent="    ",
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
    return "".join(f"{line}\n" for line in wrapper.wrap(about))


def selectable(series: Series) -> list[str]:
    """The names that ``select()`` takes: the patches without the base ones, which every part has."""
    return [name for name in dict.fromkeys(commit.patch for commit in series.commits) if name not in tree.COMMON]


def select(series: Series, only: Collection[str] = (), *, lab: bool = False) -> Series:
    """The series without its lab-only patches; with them (``lab``); or the patches ``only``, and those that they need.

    UsageError for a name in ``only`` that is no mechanism's patch.
    """
    known = selectable(series)
    for name in only:
        if name not in known:
            raise UsageError(f"--only: there is no patch '{name}'; the names are {', '.join(known)}")
    wanted = {commit.patch for commit in series.commits if lab or not commit.lab}
    if only:
        wanted = {*only, *tree.COMMON, *(tree.NEEDS[name] for name in only if name in tree.NEEDS)}
    commits = [commit for commit in series.commits if commit.patch in wanted]
    files = {path: series.part.files[path] for commit in commits for path in commit.files}
    hooks = [hook for hook in series.part.hooks if hook.name in wanted]
    left_out = [commit for commit in series.commits if commit.patch not in wanted]
    return replace(
        series, part=replace(series.part, files=files, hooks=hooks), commits=commits, left_out=left_out
    )


def lab_options(kernel: Path) -> set[str]:
    """The options of the lab-only patches, with CONFIG_."""
    return {f"CONFIG_{name}" for entry in _table(kernel)[1].values() if entry.lab for name in entry.options}


def states(series: Series, pristine: Reader) -> list[Overlay]:
    """Changes of the tree against pristine after each commit; the last of the whole series is Quell.

    QuellError when a hook does not apply.
    """
    steps = iter(tree.apply(series.part, pristine))
    result: list[Overlay] = []
    now: Overlay = {}
    for number, commit in enumerate(series.commits):
        now = {**now, **{path: series.part.files[path] for path in commit.files}}
        if commit.hook.sections:
            now |= next(steps).files
        missing = [*series.commits[number + 1 :], *series.left_out]
        options = {name for one in missing for name in one.options}
        files = {path for one in missing for path in one.files} - now.keys()
        for path in series.shared & now.keys():
            now[path] = _earlier(path, series.part.files[path].decode(), options, files).encode()
        result.append(now)
    return result


def _earlier(path: str, text: str, options: set[str], files: set[str]) -> str:
    """A shared file without what belongs to these ``options`` and ``files``."""
    if "Kconfig" in path:
        entries = rf"^(menu)?config ({'|'.join(options)})\n((?![a-z]).*\n)*"
        return re.sub(entries, "", text, flags=re.M) if options else text
    text = "".join(
        line for line in without_blocks(text, options).splitlines(keepends=True)
        if not options.intersection(re.findall(r"\$\(CONFIG_(\w+)\)", line))
        and not files.intersection(_included(path, line))
    )  # fmt: skip
    return re.sub(r"^#ifdef \w+\n#endif\n", "", text, flags=re.M).rstrip("\n") + "\n"


def _included(path: str, line: str) -> list[str]:
    """The paths that a line of ``path`` may include: a base name alone may be another folder's, too."""
    match = re.match(r'\s*#\s*include\s+(["<])([^">]+)', line)
    if not match:
        return []
    if match[1] == '"':
        return [os.path.normpath(f"{os.path.dirname(path)}/{match[2]}")]
    return [f"{folder}/{match[2]}" for folder in ("include", "arch/x86/include")]


def without_blocks(text: str, options: set[str]) -> str:
    """A C file without the blocks under an ``#if`` that tests one of these options."""
    kept: list[str] = []
    depth = 0
    for line in text.splitlines(keepends=True):
        directive = re.match(r"\s*#\s*(if|ifdef|ifndef|endif)\b(.*)", line)
        if depth:
            if directive:
                depth += -1 if directive[1] == "endif" else 1
            continue
        asked = re.findall(r"\bCONFIG_(\w+)", directive[2]) if directive else []
        if directive and directive[1] != "endif" and options.intersection(asked):
            depth = 1
            continue
        # One empty line in place of a block.
        if not (line.strip() == "" and kept and kept[-1].strip() == ""):
            kept.append(line)
    return "".join(kept)
