# SPDX-License-Identifier: GPL-2.0-only
"""Apply Quell's kernel part to a source tree, and write a tree's changes back.

``kernel/files`` holds new files at their paths, for all versions of Linux;
``kernel/hooks/VERSION`` a quilt series of hooks into Linux's own files. A *hook* is
one patch: a header of prose, then one *section* per Linux file. Several hooks may
touch a file; a new edit goes to the last of them.

git applies the hooks in a scratch repository of the files that they touch. The result
(an *overlay*: contents of files) is complete before any write elsewhere.
"""

import functools
import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quell import proc, ui
from quell.errors import QuellError, UsageError
from quell.paths import atomic_dir, repo_root, require_space, write_atomic
from quell.source import DEFAULT, GIT_ENV, VERSIONS, Source, check_version, git, linux_of

# This file in .git marks a tree of the lab. It has the source's key, and hashes of the
# kernel part and of the overlay as last written.
_RECORD = "quell.json"
_TREE_SPACE = 3_000_000_000
# The patches that all mechanisms need, and those that need a mechanism's.
COMMON = ("uaccess", "quell")
NEEDS = {"luf_fs": "luf", "luf_debug": "luf"}

Overlay = dict[str, bytes | None]  # None: the file is removed
Reader = Callable[[str], bytes | None]


@dataclass(frozen=True)
class Hook:
    """A patch of the series: its name (without .patch), header text, and sections by path."""

    name: str
    header: str
    sections: Mapping[str, str]

    def text(self) -> str:
        """The patch file: sections sorted by path."""
        return self.header + "".join(self.sections[path] for path in sorted(self.sections))


@dataclass(frozen=True)
class KernelPart:
    """``kernel/`` for the version ``linux``: new files by path, and hooks in order."""

    files: Mapping[str, bytes]
    hooks: Sequence[Hook]
    linux: str = DEFAULT

    def digest(self) -> str:
        """A hash of all files and hooks."""
        hooks = {f"\0{number}:{hook.name}.patch": hook.text().encode() for number, hook in enumerate(self.hooks)}
        return _digest({**self.files, **hooks})


@dataclass(frozen=True)
class Step:
    """A hook as it applies to a tree: its ``files`` after it, and its ``sections`` for that tree."""

    hook: Hook
    files: Overlay
    sections: Mapping[str, str]


def kernel_dir() -> Path:
    """The ``kernel`` folder of this repository."""
    return repo_root() / "kernel"


def _digest(overlay: Overlay) -> str:
    digest = hashlib.sha256()
    for path in sorted(overlay):
        data = overlay[path]
        if data is None:
            digest.update(f"-{path}\0".encode())
        else:
            # False as in the names of kernels in caches: no file is executable.
            digest.update(f"+{path}\0{False}{len(data)}\0".encode())
            digest.update(data)
    return digest.hexdigest()


def read_file(root: Path, path: str) -> bytes | None:
    """The content of a file below ``root``, None when it is not there."""
    full = root / path
    return full.read_bytes() if full.is_file() and not full.is_symlink() else None


def write_files(root: Path, files: Overlay) -> list[str]:
    """Write those files below ``root`` that differ, and no others; their paths."""
    changed = [path for path, data in files.items() if read_file(root, path) != data]
    for path in changed:
        data = files[path]
        if data is None:
            (root / path).unlink()
        else:
            write_atomic(root / path, data)
    return changed


def read_kernel_part(kernel: Path, linux: str = DEFAULT) -> KernelPart:
    """Read ``kernel/`` for a version of Linux. QuellError without patches, or for one that is missing or malformed."""
    folder = kernel / "hooks" / linux
    series = (folder / "series").read_text() if (folder / "series").exists() else ""
    hooks = []
    for name in re.findall(r"^([^\s#]+)", series, re.M):
        if not (folder / name).is_file():
            raise QuellError(f"kernel/hooks/{linux}/series names {name}, which is missing")
        hooks.append(parse_hook(name.removesuffix(".patch"), (folder / name).read_text()))
    if not hooks:
        raise QuellError(f"no hooks found: {folder / 'series'} is missing or empty")
    root = kernel / "files"
    files = {str(full.relative_to(root)): full.read_bytes() for full in sorted(root.rglob("*")) if full.is_file()}
    return KernelPart(files, hooks, linux)


# The @@ tells the name of a file from prose, and from a removed line "-- x".
_SECTION = re.compile(r"^(?=--- \S+\n\+\+\+ \S+\n@@ -)", re.M)
_PATHS = re.compile(r"--- (?:a/(\S+)|/dev/null)\n\+\+\+ (?:b/(\S+)|/dev/null)\n")


def parse_hook(name: str, text: str) -> Hook:
    """Split a patch into its header and one section per file. QuellError when malformed."""
    header, *parts = _SECTION.split(text)
    sections: dict[str, str] = {}
    for part in parts:
        match = _PATHS.match(part)
        paths = {path for path in match.groups() if path} if match else set()
        if len(paths) != 1 or paths & sections.keys():
            raise QuellError(f"hook {name} does not name one file in {part.splitlines()[:2]}, or names it twice")
        sections[paths.pop()] = part
    if not sections:
        raise QuellError(f"hook {name} changes no file")
    return Hook(name, header, sections)


# --- Applying hooks ----------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """The name and address of an author, or of the user who signs."""

    name: str
    email: str

    def env(self, role: str) -> dict[str, str]:
        """Variables that make git take it for the AUTHOR or COMMITTER."""
        return {f"GIT_{role}_NAME": self.name, f"GIT_{role}_EMAIL": self.email}


# The author where git has none.
NOBODY = Identity("Quell", "quell@localhost")
DATE = "2024-11-17T22:15:00Z"
GIT_OPTIONS = (
    "-c", "core.compression=1", "-c", "gc.auto=0", "-c", "core.autocrlf=false", "-c", "core.quotePath=false",
    "-c", "diff.renames=false",
)  # fmt: skip


class Scratch:
    """A git repository in the folder ``root`` for a few of Linux's files."""

    def __init__(self, root: Path, date: str = DATE, committer: Identity = NOBODY) -> None:
        self.root = root
        self.env = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date, **committer.env("COMMITTER")}
        root.mkdir(exist_ok=True)
        self.git("init", "-q", "--template=", "-b", "quell")
        # The same names of functions after @@ as in Linux's own .gitattributes.
        write_atomic(root / ".git/info/attributes", "*.[chS] diff=cpp\n")

    def git(self, *args: str) -> str:
        """Run git there, reproducibly."""
        return git(*GIT_OPTIONS, *args, cwd=self.root, env=self.env)

    def commit(self, files: Overlay, message: str, author: Identity = NOBODY) -> None:
        """Commit these files; others stay as they are."""
        write_files(self.root, files)
        self.git("add", "-A", "-f", ".")
        write_atomic(self.root / ".git/message", message)
        self.env |= author.env("AUTHOR")
        self.git("commit", "-q", "--no-verify", "--allow-empty", "--cleanup=verbatim", "-F", ".git/message")


def apply(
    part: KernelPart, pristine: Reader, edits: Mapping[str, Overlay] | None = None, *, report: bool = False
) -> list[Step]:
    """Apply the hooks in order, without fuzz; after each, write the ``edits`` under its name.

    A warning for a hunk that applies in another function; with ``report``, a note for each that has moved.
    QuellError with each hook that does not apply and git's words about it, or for a new file that Linux has.
    """
    for path in part.files:
        if pristine(path) is not None:
            raise QuellError(f"kernel/files/{path} is a file of Linux's own: make it a hook")
    edits = edits or {}
    paths = {path for hook in part.hooks for path in (*hook.sections, *edits.get(hook.name, ()))}
    steps: list[Step] = []
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="quell-tree-") as name:
        scratch = Scratch(Path(name))
        scratch.commit({path: pristine(path) for path in paths}, "pristine")
        for hook in part.hooks:
            # git apply needs every context line, and allows offsets.
            argv = ["git", "apply", "--whitespace=nowarn", "--reject", "--allow-empty", "-"]
            done = proc.run(argv, cwd=scratch.root, env=GIT_ENV, stdin=hook.text(), check=False)
            if done.returncode != 0:
                failed[hook.name] = done.stderr
            scratch.commit(edits.get(hook.name, {}), hook.name)
            text = scratch.git("diff", "--text", "HEAD~1", "HEAD")
            # The normal form has no times and no index lines.
            text = re.sub(r"^(diff --git|index|(new|deleted) file mode) .*\n", "", text, flags=re.M)
            sections = parse_hook(hook.name, text).sections if text else {}
            files = {path: read_file(scratch.root, path) for path in {*hook.sections, *sections}}
            steps.append(Step(hook, files, sections))
    if failed:
        raise QuellError(f"hooks that do not apply: {', '.join(failed)}", detail="".join(failed.values()))
    if not edits:
        _tell_moves(steps, report)
    return steps


def _tell_moves(steps: Iterable[Step], report: bool) -> None:
    hunk = re.compile(r"^@@ \S+ \+(\d+)\S* @@ ?(.*)", re.M)
    count = elsewhere = 0
    for step in steps:
        for path, section in step.hook.sections.items():
            pairs = zip(hunk.findall(section), hunk.findall(step.sections.get(path, "")), strict=False)
            for (line, function), (now, there) in pairs:
                count += 1
                elsewhere += (line, function) != (now, there)
                where = f"{step.hook.name}: {path}:{now}: moved by {int(now) - int(line):+d}"
                if function != there:
                    ui.warn(f"{where}, to '{there}', not '{function}': check whether it belongs there")
                elif line != now and report:
                    ui.note(f"{where}, {there}")
    if report:
        ui.note(f"{count} hunks apply, {elsewhere} of them at another place")


def overlay(part: KernelPart, pristine: Reader, *, report: bool = False) -> Overlay:
    """All files that Quell adds to or changes in a pristine tree; ``report`` as for ``apply()``."""
    result: Overlay = dict(part.files)
    for step in apply(part, pristine, report=report):
        result |= step.files
    return result


# --- A git tree to work in ---------------------------------------------------


class _GitTree:
    """A working tree of the lab: its pristine files, and its differences from them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.first = git("rev-list", "--max-parents=0", "HEAD", cwd=root).split()[-1]
        self.pristine = functools.cache(self._pristine)

    def _pristine(self, path: str) -> bytes | None:
        # proc returns text, and files are bytes.
        argv = ["git", "-c", "safe.directory=*", "cat-file", "blob", f"{self.first}:{path}"]
        done = subprocess.run(argv, cwd=self.root, env={**os.environ, **GIT_ENV}, capture_output=True)
        return done.stdout if done.returncode == 0 else None

    def record(self) -> dict[str, str]:
        result: dict[str, str] = json.loads((self.root / ".git" / _RECORD).read_text())
        return result

    def write_record(self, source_key: str, part: KernelPart, state: Overlay) -> None:
        record = {"source": source_key, "kernel": part.digest(), "overlay": _digest(state)}
        write_atomic(self.root / ".git" / _RECORD, json.dumps(record, indent=1) + "\n")

    def state(self, extra: Iterable[str]) -> Overlay:
        """The tree's differences from pristine; ``extra`` are paths that git may ignore."""
        names = git("diff", "--name-only", "-z", "--no-renames", self.first, cwd=self.root)
        # Debian's linux-source ignores all of the top level.
        listing = ["ls-files", "-z", "--others", "--exclude-standard", "-x", "!/*/", "-x", "/.*", "-x", "/debian/"]
        names += git(*listing, cwd=self.root)
        result: Overlay = {}
        for path in {*names.split("\0"), *extra} - {""}:
            data = read_file(self.root, path)
            if data is None and (self.root / path).exists():
                raise UsageError(f"{self.root / path} is not a plain file; Quell cannot keep it")
            if data != self.pristine(path):
                result[path] = data
        return result

    def write(self, now: Overlay, wanted: Overlay) -> None:
        """Make ``wanted`` of the differences ``now``."""
        write_files(self.root, {**{path: self.pristine(path) for path in now}, **wanted})
        # Intent to add: `git diff` then shows new files too.
        if new := [path for path in sorted(wanted) if self.pristine(path) is None]:
            git("add", "-N", "-f", "--", *new, cwd=self.root)


def tree_at(dest: Path) -> _GitTree | None:
    """The git tree at ``dest``; None where one can be made. UsageError for anything else that is there."""
    if not dest.exists() or (dest.is_dir() and not any(dest.iterdir())):
        return None
    if not (dest / ".git" / _RECORD).exists():
        raise UsageError(f"{dest} is not a tree made by ./quell tree")
    return _GitTree(dest)


def _unlike(left: Overlay, right: Overlay) -> list[str]:
    return sorted({path for path, _ in left.items() ^ right.items()})


def make_git_tree(dest: Path, source: Source, *, force: bool = False, kernel: Path | None = None) -> str:
    """Make or bring up to date a git tree: pristine source as first commit, Quell on top, uncommitted.

    Returns a sentence for the user. UsageError for a tree with changes that
    ``kernel/`` does not have, unless ``force``, and for any other folder.
    """
    part = read_kernel_part(kernel or kernel_dir(), source.linux)
    if tree := tree_at(dest):
        if tree.record()["source"] == source.key:
            return _update(tree, source, part, force)
        if not force:
            raise UsageError(
                f"{dest} is made from another kernel source than Linux {source.version} in "
                "the cache; --force replaces the tree and drops its changes"
            )
    require_space(dest, _TREE_SPACE, f"the tree {dest}")
    wanted = overlay(part, lambda path: read_file(source.tree, path), report=True)
    with atomic_dir(dest.resolve()) as temp:
        _fill(temp, source)
        tree = _GitTree(temp)
        tree.write({}, wanted)
        tree.write_record(source.key, part, wanted)
    return f"{dest} is Linux {source.version} with Quell applied; `git diff` there shows Quell"


def _fill(temp: Path, source: Source) -> None:
    ui.note("copying the source ...")
    proc.run(["cp", "-a", "--reflink=auto", f"{source.tree}/.", temp])
    with ui.progress("committing the pristine source"):
        git("init", "-q", "--template=", "-b", "quell", cwd=temp)
        # With a threshold of one byte git streams all files into one pack: minutes faster.
        fast = ("-c", "core.bigFileThreshold=1", "-c", "core.compression=1", "-c", "gc.auto=0")
        git(*fast, "add", "-A", "-f", ".", cwd=temp)
        env = {**NOBODY.env("AUTHOR"), **NOBODY.env("COMMITTER"), "GIT_AUTHOR_DATE": DATE, "GIT_COMMITTER_DATE": DATE}
        message = f"Linux {source.version}, pristine ({source.key})"
        git(*fast, "commit", "-q", "--no-verify", "-m", message, cwd=temp, env=env)


def _update(tree: _GitTree, source: Source, part: KernelPart, force: bool) -> str:
    wanted = overlay(part, tree.pristine)
    now = tree.state(part.files)
    unlike = _unlike(now, wanted)
    if unlike and _digest(now) != tree.record()["overlay"] and not force:
        raise UsageError(
            f"{tree.root} has changes that kernel/ does not; save them with "
            f"./quell tree --refresh {tree.root}, or drop them with --force",
            detail="\n".join(f"  {path}" for path in unlike),
        )
    tree.write(now, wanted)
    tree.write_record(source.key, part, wanted)
    return f"{tree.root} is up to date" + (f": {len(unlike)} files were written" if unlike else "")


# --- Changes back to kernel/ -------------------------------------------------


def refresh(
    dest: Path,
    *,
    patch: str | None = None,
    take: Sequence[str] = (),
    force: bool = False,
    kernel: Path | None = None,
) -> list[str]:
    """Write a git tree's changes back to ``kernel/``; one sentence for each file written.

    A new file goes to ``files``. An edit of a Linux file goes to the last hook that
    touches it. Without such a hook, or if the file is in ``take``, it goes to the hook
    ``patch`` (created if new). UsageError lists files without a hook; another one
    reports changes of ``kernel/`` since the tree was made, unless ``force``.
    """
    kernel = kernel or kernel_dir()
    if (tree := tree_at(dest)) is None:
        raise UsageError(f"there is no tree at {dest}; ./quell tree makes one")
    part = read_kernel_part(kernel, linux_of(check_version(dest)))
    record = tree.record()
    if record["kernel"] != part.digest() and not force:
        raise UsageError(
            f"kernel/ has changed since {dest} was made from it: bring the tree up to date with "
            f"./quell tree {dest}, or overwrite kernel/ with --force"
        )
    now = tree.state(part.files)
    new = _refreshed(tree, part, now, patch.removesuffix(".patch") if patch else None, set(take))
    # Check before the first write that no change is lost.
    unlike = _unlike(overlay(new, tree.pristine), now)
    if unlike:
        raise UsageError(f"a patch cannot hold the change of {', '.join(unlike)} (a binary or an empty file?)")
    done = _save(kernel, part, new)
    tree.write_record(record["source"], new, now)
    return done


def _refreshed(
    tree: _GitTree, part: KernelPart, now: Overlay, patch: str | None, take: set[str]
) -> KernelPart:
    files = {path: data for path, data in now.items() if data is not None and tree.pristine(path) is None}
    edited = now.keys() - files.keys()
    last = {path: hook.name for hook in part.hooks for path in hook.sections}
    names = [hook.name for hook in part.hooks]
    hooks = list(part.hooks)
    if take - edited:
        raise UsageError(f"not changed in the tree: {', '.join(sorted(take - edited))}")
    homeless = sorted(edited - last.keys() | take)
    if patch is None and homeless:
        raise UsageError(
            "no patch touches these Linux files yet; name a patch for them: --patch NAME",
            detail="\n".join(f"  {path}" for path in homeless),
        )
    if patch is not None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", patch):
            raise UsageError(f"{patch!r} cannot be the name of a patch")
        for path in sorted(take & last.keys()):
            if patch in names and names.index(patch) < names.index(last[path]):
                raise UsageError(f"{patch} comes before {last[path]}, which touches {path} last")
        if patch not in names:
            hooks.append(Hook(patch, f"{patch}: one line about these hooks into Linux\n\nThe reason for them.\n\n", {}))
        last |= dict.fromkeys(homeless, patch)
    edits: dict[str, Overlay] = {hook.name: {} for hook in hooks}
    for path, name in last.items():
        edits[name][path] = now.get(path, tree.pristine(path))
    steps = apply(replace(part, files=files, hooks=hooks), tree.pristine, edits)
    return KernelPart(files, [replace(one.hook, sections=one.sections) for one in steps if one.sections], part.linux)


def _save(kernel: Path, old: KernelPart, new: KernelPart) -> list[str]:
    """Write the kernel part's changes; a sentence for each file."""
    folder = f"hooks/{new.linux}"
    before: Overlay = {f"files/{path}": None for path in old.files}
    before |= {f"{folder}/{hook.name}.patch": None for hook in old.hooks}
    after: Overlay = {f"files/{path}": data for path, data in new.files.items()}
    after |= {f"{folder}/{hook.name}.patch": hook.text().encode() for hook in new.hooks}
    names = [f"{hook.name}.patch" for hook in new.hooks]
    lines = (read_file(kernel, f"{folder}/series") or b"").decode().splitlines()
    lines = [line for line in lines if line.partition("#")[0].strip() in ("", *names)]
    lines += [name for name in names if name not in lines]
    after[f"{folder}/series"] = "".join(f"{line}\n" for line in lines).encode()
    changed = write_files(kernel, {**before, **after})
    return [f"{'removed' if not (kernel / path).exists() else 'wrote'} kernel/{path}" for path in sorted(changed)]


def default_tree(kernel: str = DEFAULT) -> Path:
    """The default folder of ``./quell tree`` for ``--kernel``."""
    return repo_root() / (f"linux-{kernel}" if kernel in VERSIONS and kernel != DEFAULT else "linux")
