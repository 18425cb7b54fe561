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
from quell.tree import FileData, Hook, KernelPart, Overlay, Reader

TABLE = "series.toml"
# Tests are commits of their own, with the lines that include them.
TESTS = re.compile(r"tools/testing/|.*-kunit\.h$")
_KCONFIG = "mm/Kconfig.quell"
_MESSAGE_WIDTH = 75
_ENTRY = re.compile(r"^(?:menu)?config (\w+)", re.M)


@dataclass(frozen=True)
class Commit:
    """One commit: a hook patch, the new files that come with it, the options it adds.

    ``patch`` is the patch of hooks/VERSION that it belongs to, without its ending; ``lab``: lab-only.
    """

    hook: Hook
    files: tuple[str, ...]
    options: tuple[str, ...]
    patch: str
    lab: bool

    @property
    def name(self) -> str:
        """The patch's name without its ending."""
        return self.hook.name.removesuffix(".patch")

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


def options_in(kconfig: str) -> list[str]:
    """The options that a Kconfig file defines."""
    return _ENTRY.findall(kconfig)


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
    commits = []
    for hook in part.hooks:
        entry = table.pop(hook.name.removesuffix(".patch"), None)
        if entry is None:
            raise QuellError(f"kernel/{TABLE} has no entry for kernel/hooks/{linux}/{hook.name}")
        tests = tuple(path for path in entry.files if TESTS.match(path))
        what = hook.name.removesuffix(".patch")
        files = tuple(path for path in entry.files if path not in tests)
        commits.append(Commit(hook, files, entry.options, what, entry.lab))
        if tests:
            header = _tests_header(what, tests, part.files)
            commits.append(Commit(Hook(f"{what}_tests.patch", header, {}), tests, (), what, entry.lab))
    if table:
        raise QuellError(f"kernel/{TABLE} names the patch {sorted(table)[0]}, which is not in the series")
    _all("file", [path for commit in commits for path in commit.files], part.files, "kernel/files")
    kconfig = part.files.get(_KCONFIG)
    known = options_in(kconfig.content.decode()) if kconfig else []
    given = [name for commit in commits for name in commit.options]
    for name in given:
        if given.count(name) > 1:
            raise QuellError(f"kernel/{TABLE} gives the option {name} to two patches")
    _all("option", given, known, _KCONFIG)
    for path in sorted(shared - part.files.keys()):
        raise QuellError(f"kernel/{TABLE} lists the shared file {path}, which is not in kernel/files")
    for commit in commits:
        _check_message(commit)
    return Series(part, commits, shared)


def _tests_header(what: str, tests: Sequence[str], files: Mapping[str, FileData]) -> str:
    """The message of a commit of tests: each file, with the beginning of its head comment."""
    items = []
    for path in tests:
        about = _head(files[path].content.decode()) if path in files else ""
        lines = textwrap.wrap(
            about, _MESSAGE_WIDTH, initial_indent="    ", subsequent_indent="    ",
            break_on_hyphens=False, break_long_words=False,
        )  # fmt: skip
        items.append("\n".join([f"  {path.rsplit('/', 1)[-1]}", *lines, ""]))
    needs = "\nThe programs need root; the head of each says what else.\n"
    body = "\n".join(items) + (needs if any(b"\nint main(" in files[path].content for path in tests) else "")
    return f"quell: tests of {what}\n\nTests of the patch before this one:\n\n{body}"


def _head(text: str) -> str:
    """The first paragraph of a C file's head comment, empty without one. How to call the program is left out."""
    for comment in re.findall(r"/\*(.*?)\*/", text, re.S):
        if "SPDX-License-Identifier" not in comment:
            lines = "\n".join(re.sub(r"^\s*\*?\s*", "", line) for line in comment.splitlines())
            return " ".join(lines.strip().split("\n\n")[0].split()).removesuffix("Usage:").strip()
    return ""


def _all(kind: str, named: Iterable[str], there: Iterable[str], where: str) -> None:
    """Every name is there, and all that are there are named."""
    for name in sorted(set(named) - set(there)):
        raise QuellError(f"kernel/{TABLE} names the {kind} {name}, which is not in {where}")
    for name in sorted(set(there) - set(named)):
        raise QuellError(
            f"kernel/{TABLE} assigns the {kind} {name} to no patch; add it there"
        )


def _check_message(commit: Commit) -> None:
    """QuellError for a message that ``git am`` would change."""
    lines = commit.message.splitlines()
    if len(lines) < 3 or lines[1] or not lines[0]:
        raise QuellError(f"{commit.hook.name}: its header should be a subject, an empty line and a body")
    if lines[0].startswith("["):
        raise QuellError(f"{commit.hook.name}: git am would drop the text in brackets from its subject")
    for line in lines:
        if re.match(r"---|diff -|Index: ", line):
            raise QuellError(f"{commit.hook.name}: git am would end the message before {line!r}")


def selectable(series: Series) -> list[str]:
    """The names that ``select()`` takes: the patches without the base ones, which every part has."""
    names = dict.fromkeys(commit.patch for commit in series.commits)
    return [name for name in names if f"{name}.patch" not in tree.COMMON]


def select(series: Series, only: Collection[str] = (), *, lab: bool = False) -> Series:
    """The series without its lab-only patches; with them (``lab``); or the patches ``only``, and those that they need.

    UsageError for a name in ``only`` that is no mechanism's patch.
    """
    patches = {commit.patch: commit for commit in series.commits}
    common, needs = ({name.removesuffix(".patch") for name in names} for names in (tree.COMMON, tree.NEEDS))
    known = selectable(series)
    for name in only:
        if name not in known:
            raise UsageError(f"--only: there is no patch '{name}'; the names are {', '.join(known)}")
    wanted = {name for name in patches if lab or not patches[name].lab}
    if only:
        owner = {name: tree.NEEDS[f"{name}.patch"].removesuffix(".patch") for name in needs}
        chosen = {*only, *(owner[name] for name in only if name in owner)}
        wanted = chosen | common | {name for name in wanted if owner.get(name) in chosen}
    commits = [commit for commit in series.commits if commit.patch in wanted]
    files = {path: series.part.files[path] for commit in commits for path in commit.files}
    hooks = [hook for hook in series.part.hooks if hook.name.removesuffix(".patch") in wanted]
    left_out = [commit for commit in series.commits if commit.patch not in wanted]
    return replace(
        series, part=replace(series.part, files=files, hooks=hooks), commits=commits, left_out=left_out
    )


def lab_options(kernel: Path) -> set[str]:
    """The options of the lab-only patches, with CONFIG_."""
    return {f"CONFIG_{name}" for entry in _table(kernel)[1].values() if entry.lab for name in entry.options}


def states(series: Series, pristine: Reader) -> list[Overlay]:
    """What the tree has beyond pristine after each commit; the last of the whole series is what Quell is.

    QuellError when a hook does not apply.
    """
    final = tree.overlay(series.part, pristine)
    after = tree.states(series.part, pristine)
    seen = dict.fromkeys(after, 0)
    result: list[Overlay] = []
    now: Overlay = {}
    for number, commit in enumerate(series.commits):
        now = dict(now)
        for path in commit.hook.sections:
            seen[path] += 1
            now[path] = after[path][seen[path]]
        for path in commit.files:
            now[path] = series.part.files[path]
        missing = [*series.commits[number + 1 :], *series.left_out]
        options = {name for one in missing for name in one.options}
        files = {path for one in missing for path in one.files} - now.keys()
        for path in series.shared & now.keys():
            now[path] = _earlier(path, series.part.files[path], options, files)
        result.append(now)
    if series.left_out:
        # These are cut by what is left out.
        final |= {path: result[-1].get(path) for path in series.shared & final.keys()}
    if result and result[-1] != final:
        raise QuellError("internal error: the commits do not add up to Quell")
    return result


def _earlier(path: str, data: FileData, options: set[str], files: set[str]) -> FileData:
    """A shared file without what belongs to these ``options`` and ``files``."""
    text = data.content.decode()
    if "Kconfig" in path:
        text = without_entries(text, options)
    else:
        text = without_blocks(text, options)
        text = "".join(
            line for line in text.splitlines(keepends=True)
            if not options.intersection(re.findall(r"\$\(CONFIG_(\w+)\)", line))
            and not files.intersection(_included(path, line))
        )  # fmt: skip
        text = re.sub(r"^#ifdef \w+\n#endif\n", "", text, flags=re.M).rstrip("\n") + "\n"
    return FileData(text.encode(), data.executable)


def _included(path: str, line: str) -> list[str]:
    """The paths that a line of ``path`` may include: a base name alone may be another folder's, too."""
    match = re.match(r'\s*#\s*include\s+(["<])([^">]+)', line)
    if not match:
        return []
    if match[1] == '"':
        return [os.path.normpath(f"{os.path.dirname(path)}/{match[2]}")]
    return [f"{folder}/{match[2]}" for folder in ("include", "arch/x86/include")]


def without_entries(text: str, options: set[str]) -> str:
    """A Kconfig file without the entries of these options."""
    kept: list[str] = []
    drop = False
    for line in text.splitlines(keepends=True):
        if re.match(r"[a-z]", line):
            match = _ENTRY.match(line)
            drop = bool(match and match[1] in options)
        if not drop:
            kept.append(line)
    return "".join(kept)


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
