# SPDX-License-Identifier: GPL-2.0-only
"""Apply Quell's kernel part to a source tree, and write a tree's changes back.

``kernel/files`` holds new files at their paths, for all versions of Linux;
``kernel/hooks/VERSION`` a quilt series of hooks into Linux's own files. A *hook* is
one patch: a header of prose, then one *section* per Linux file. Several hooks may
touch a file; a new edit goes to the last of them.

The result (an *overlay*: contents of files) is computed in memory before any write.
"""

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
from quell.placement import Placed, place, report
from quell.source import DEFAULT, GIT_ENV, VERSIONS, Source, check_version, git, linux_of

# This file in .git marks a tree of the lab. It has the source's key, and hashes of the
# kernel part and of the overlay as last written.
_RECORD = "quell.json"
_TREE_SPACE = 3_000_000_000
# The same names of functions after @@ as in Linux's own .gitattributes.
ATTRIBUTES = "*.[chS] diff=cpp\n"


@dataclass(frozen=True)
class FileData:
    """A file's content, and whether it may be executed."""

    content: bytes
    executable: bool = False

    @property
    def mode(self) -> int:
        """The file's permissions."""
        return 0o755 if self.executable else 0o644


Overlay = dict[str, FileData | None]  # None: the file is removed
Reader = Callable[[str], FileData | None]


@dataclass(frozen=True)
class Hook:
    """A patch of the series: its file name, header text, and sections by path."""

    name: str
    header: str
    sections: Mapping[str, str]

    def text(self) -> str:
        """The patch file: sections sorted by path."""
        return self.header + "".join(self.sections[path] for path in sorted(self.sections))


@dataclass(frozen=True)
class KernelPart:
    """``kernel/`` for the version ``linux``: new files by path, and hooks in order."""

    files: Mapping[str, FileData]
    hooks: Sequence[Hook]
    linux: str = DEFAULT

    def digest(self) -> str:
        """A hash of all files and hooks."""
        state: Overlay = dict(self.files)
        for number, hook in enumerate(self.hooks):
            state[f"\0{number}:{hook.name}"] = FileData(hook.text().encode())
        return _digest(state)

    def owners(self, path: str) -> list[Hook]:
        """The hooks that touch a Linux file, in order."""
        return [hook for hook in self.hooks if path in hook.sections]


# The patches that all mechanisms need, and those that need a mechanism's.
COMMON = ("uaccess.patch", "quell.patch")
NEEDS = {"luf_fs.patch": "luf.patch", "luf_debug.patch": "luf.patch"}


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
            digest.update(f"+{path}\0{data.executable}{len(data.content)}\0".encode())
            digest.update(data.content)
    return digest.hexdigest()


def read_file(root: Path, path: str) -> FileData | None:
    """A file below ``root``, None when it is not there."""
    full = root / path
    if full.is_symlink() or not full.is_file():
        return None
    return FileData(full.read_bytes(), os.access(full, os.X_OK))


def hooks_dir(kernel: Path, linux: str) -> Path:
    """The folder of the hooks for a version of Linux."""
    return kernel / "hooks" / linux


def series(kernel: Path, linux: str = DEFAULT) -> list[str]:
    """The names in ``hooks/VERSION/series``, in order."""
    try:
        lines = (hooks_dir(kernel, linux) / "series").read_text().splitlines()
    except FileNotFoundError:
        return []
    names = [line.split("#")[0].strip() for line in lines]
    return [name for name in names if name]


def read_kernel_part(kernel: Path, linux: str = DEFAULT) -> KernelPart:
    """Read ``kernel/`` for a version of Linux. QuellError for a patch that is missing or malformed."""
    hooks = []
    for name in series(kernel, linux):
        try:
            text = (hooks_dir(kernel, linux) / name).read_text()
        except FileNotFoundError:
            raise QuellError(f"kernel/hooks/{linux}/series names {name}, which is missing") from None
        hooks.append(parse_hook(name, text))
    root = kernel / "files"
    files: dict[str, FileData] = {}
    for full in sorted(root.rglob("*")):
        path = str(full.relative_to(root))
        data = read_file(root, path)
        if data is not None:
            files[path] = data
    return KernelPart(files, hooks, linux)


_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NAME = re.compile(r"(?:---|\+\+\+) ([^\t\n]+)")


def parse_hook(name: str, text: str) -> Hook:
    """Split a patch into its header and one section per file (without git's extra lines).

    Hunks are parsed by their line counts: a removed line ``-- x`` does not start a
    file. QuellError when malformed.
    """
    lines = text.splitlines(keepends=True)
    header: list[str] = []
    sections: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        starts = line.startswith("--- ") and at + 1 < len(lines)
        if not (starts and lines[at + 1].startswith("+++ ")):
            if not sections and not line.startswith(("diff --git ", "index ")):
                header.append(line)
            at += 1
            continue
        names = [_NAME.match(lines[at]), _NAME.match(lines[at + 1])]
        paths = [match.group(1).strip() for match in names if match]
        real = [path.split("/", 1)[-1] for path in paths if path != "/dev/null"]
        if not real or len(set(real)) != 1:
            raise QuellError(f"hook {name}: line {at + 1} names no file, or two different ones")
        path = real[0]
        if path in sections:
            raise QuellError(f"hook {name}: {path} appears twice")
        old = "/dev/null" if paths[0] == "/dev/null" else f"a/{path}"
        new = "/dev/null" if paths[1] == "/dev/null" else f"b/{path}"
        section = [f"--- {old}\n", f"+++ {new}\n"]
        at += 2
        while at < len(lines) and (hunk := _HUNK.match(lines[at])):
            section.append(lines[at])
            at += 1
            left, right = (int(count) if count else 1 for count in hunk.groups())
            while left > 0 or right > 0 or (at < len(lines) and lines[at].startswith("\\")):
                if at >= len(lines) or lines[at][0] not in " +-\\\n":
                    raise QuellError(f"hook {name}: the hunk before line {at + 1} is cut short")
                left -= lines[at][0] in " -\n"
                right -= lines[at][0] in " +\n"
                # An editor may have stripped the blank of an empty context line.
                section.append(" \n" if lines[at] == "\n" else lines[at])
                at += 1
        if len(section) == 2:
            raise QuellError(f"hook {name}: {path} has no hunk")
        sections[path] = "".join(section)
    if not sections:
        raise QuellError(f"hook {name} changes no file")
    return Hook(name, "".join(header), sections)


def _apply_all(part: KernelPart, pristine: Reader) -> tuple[dict[str, list[FileData | None]], list[Placed]]:
    """Apply every hook; the states of ``states()``, and the place of each hunk."""
    states: dict[str, list[FileData | None]] = {}
    placed: list[Placed] = []
    with tempfile.TemporaryDirectory(prefix="quell-tree-") as name:
        temp = Path(name)
        for hook in part.hooks:
            for path in hook.sections:
                if path not in states:
                    states[path] = [pristine(path)]
                    _write(temp, path, states[path][0])
        for hook in part.hooks:
            before = {
                path: data.content.decode(errors="replace")
                for path in hook.sections
                if (data := read_file(temp, path)) is not None
            }
            # git would stop at a missing file.
            there = {
                path: section
                for path, section in hook.sections.items()
                if path in before or section.startswith("--- /dev/null")
            }
            # No fuzz: git apply needs every context line, and allows offsets. The ceiling
            # hides a repository around the folder.
            result = proc.run(
                ["git", "apply", "--whitespace=nowarn", "--verbose", "--reject", "-p1", "-"],
                cwd=temp,
                env={**GIT_ENV, "GIT_CEILING_DIRECTORIES": str(temp.parent)},
                stdin=replace(hook, sections=there).text() if there else "",
                check=False,
            )
            now = place(hook.name, hook.sections, before, result.stdout + result.stderr)
            if there and result.returncode != 0 and all(entry.at is not None for entry in now):
                raise QuellError(f"hook {hook.name} does not apply", detail=result.stderr)
            placed += now
            for path in hook.sections:
                states[path].append(read_file(temp, path))
    return states, placed


def survey(part: KernelPart, pristine: Reader) -> list[Placed]:
    """The place of each hunk in a pristine tree, also of those that do not apply."""
    return _apply_all(part, pristine)[1]


def states(part: KernelPart, pristine: Reader) -> dict[str, list[FileData | None]]:
    """For each Linux file that hooks touch: its content after each owner, pristine first.

    QuellError with every hook and file that does not apply, the expected lines and
    the present ones; a warning for a hunk that applies in another function.
    """
    result, placed = _apply_all(part, pristine)
    failed = [entry for entry in placed if entry.at is None]
    if failed:
        names = list(dict.fromkeys(entry.hook for entry in failed))
        files = ", ".join(dict.fromkeys(entry.path for entry in failed))
        what = f"hook {names[0]} does" if len(names) == 1 else f"hooks {', '.join(names)} do"
        detail = report([entry for entry in placed if entry.hook in names])
        raise QuellError(f"{what} not apply to {files}", detail="\n".join(detail))
    for entry in placed:
        if entry.strayed:
            ui.warn(
                f"hook {entry.hook} applied to {entry.path}, line {entry.at}, near "
                f"{entry.function or 'the head'} and not {entry.hunk.function or 'the head'}: "
                "check whether it belongs there (./quell tree --kernel DIR shows it)"
            )
    return result


def overlay(part: KernelPart, pristine: Reader) -> Overlay:
    """All files that Quell adds to or changes in a pristine tree."""
    result: Overlay = {}
    for path, data in part.files.items():
        if pristine(path) is not None:
            raise QuellError(f"kernel/files/{path} is a file of Linux's own: make it a hook")
        result[path] = data
    for path, contents in states(part, pristine).items():
        result[path] = contents[-1]
    return result


def _write(root: Path, path: str, data: FileData | None) -> None:
    full = root / path
    if data is None:
        full.unlink(missing_ok=True)
    elif read_file(root, path) != data:
        write_atomic(full, data.content, mode=data.mode)


# --- A git tree to work in ---------------------------------------------------


class _GitTree:
    """A working tree of the lab: its pristine files, and its differences from them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.first = git("rev-list", "--max-parents=0", "HEAD", cwd=root).split()[-1]
        listing = git("ls-tree", "-r", "-z", self.first, cwd=root)
        self.pristine_modes: dict[str, str] = {}
        for entry in listing.split("\0"):
            if entry:
                meta, path = entry.split("\t", 1)
                self.pristine_modes[path] = meta.split()[0]
        self._pristine: dict[str, FileData | None] = {}

    def record(self) -> dict[str, str]:
        result: dict[str, str] = json.loads((self.root / ".git" / _RECORD).read_text())
        return result

    def write_record(self, source_key: str, part: KernelPart, state: Overlay) -> None:
        record = {"source": source_key, "kernel": part.digest(), "overlay": _digest(state)}
        write_atomic(self.root / ".git" / _RECORD, json.dumps(record, indent=1) + "\n")

    def pristine(self, path: str) -> FileData | None:
        if path not in self._pristine:
            mode = self.pristine_modes.get(path)
            data = None
            if mode is not None:
                # proc returns text, and files are bytes.
                argv = ["git", "-c", "safe.directory=*", "cat-file", "blob", f"{self.first}:{path}"]
                done = subprocess.run(argv, cwd=self.root, env={**os.environ, **GIT_ENV}, capture_output=True)
                if done.returncode != 0:
                    raise QuellError("git cat-file failed", detail=done.stderr.decode(errors="replace"))
                data = FileData(done.stdout, mode == "100755")
            self._pristine[path] = data
        return self._pristine[path]

    def state(self, extra: Iterable[str] = ()) -> Overlay:
        """The tree's differences from pristine; ``extra`` are paths that git may ignore."""
        names = git("diff", "--name-only", "-z", "--no-renames", self.first, cwd=self.root)
        names += git("ls-files", "-z", "--others", "--exclude-standard", cwd=self.root)
        paths = {path for path in names.split("\0") if path}
        paths |= {path for path in extra if (self.root / path).exists()}
        result: Overlay = {}
        for path in paths:
            data = read_file(self.root, path)
            if data is None and (self.root / path).exists():
                raise QuellError(f"{self.root / path} is not a plain file; Quell cannot keep it")
            if data != self.pristine(path):
                result[path] = data
        return result


def _git_tree(dest: Path) -> _GitTree:
    if not (dest / ".git" / _RECORD).exists():
        raise UsageError(f"{dest} is not a tree made by ./quell tree")
    return _GitTree(dest)


def tree_at(dest: Path) -> _GitTree | None:
    """The git tree at ``dest``; None where one can be made. UsageError for anything else that is there."""
    return None if not dest.exists() or (dest.is_dir() and not any(dest.iterdir())) else _git_tree(dest)


def _unlike(left: Overlay, right: Overlay) -> list[str]:
    missing = object()
    return sorted(path for path in {*left, *right} if left.get(path, missing) != right.get(path, missing))


def make_git_tree(dest: Path, source: Source, *, force: bool = False, kernel: Path | None = None) -> str:
    """Make or bring up to date a git tree: pristine source as first commit, Quell on top, uncommitted.

    Returns a sentence for the user. UsageError for a tree with changes that
    ``kernel/`` does not have, unless ``force``, and for any other folder.
    """
    part = read_kernel_part(kernel or kernel_dir(), source.linux)
    if tree := tree_at(dest):
        record = tree.record()
        if record["source"] == source.key:
            return _update(tree, source, part, force)
        if not force:
            raise UsageError(
                f"{dest} is made from another kernel source than Linux {source.version} in "
                "the cache; --force replaces the tree and drops its changes"
            )
    require_space(dest, _TREE_SPACE, f"the tree {dest}")
    placed = survey(part, lambda path: read_file(source.tree, path))
    if source.key.startswith("user-") or any(entry.moved or entry.at is None for entry in placed):
        ui.note("\n".join(report(placed)))
    with atomic_dir(dest.absolute()) as temp:
        _fill(temp, source)
        tree = _GitTree(temp)
        _set(tree, {}, overlay(part, tree.pristine))
        tree.write_record(source.key, part, tree.state(part.files))
    return f"{dest} is Linux {source.version} with Quell applied; `git diff` there shows Quell"


def _fill(temp: Path, source: Source) -> None:
    ui.note("copying the source ...")
    proc.run(["cp", "-a", "--reflink=auto", f"{source.tree}/.", temp])
    git("init", "-q", "--template=", "-b", "quell", cwd=temp)
    total = sum(len(files) for _, _, files in os.walk(source.tree))
    with ui.progress("committing the pristine source", total) as bar:
        # With a threshold of one byte git streams all files into one pack: minutes faster.
        proc.run(
            ["git", "-c", "safe.directory=*", "-c", "core.bigFileThreshold=1",
             "-c", "core.compression=1", "add", "-A", "-f", "-v", "."],
            cwd=temp,
            env=GIT_ENV,
            on_line=lambda _: bar.advance(),
        )  # fmt: skip
    who = {"NAME": "Quell", "EMAIL": "quell@localhost", "DATE": "2024-11-17T22:15:00Z"}
    env = {f"GIT_{role}_{key}": who[key] for role in ("AUTHOR", "COMMITTER") for key in who}
    message = f"Linux {source.version}, pristine ({source.key})"
    git("-c", "gc.auto=0", "commit", "-q", "--no-verify", "-m", message, cwd=temp, env=env)


def _set(tree: _GitTree, now: Overlay, wanted: Overlay) -> None:
    for path in now:
        if path not in wanted:
            _write(tree.root, path, tree.pristine(path))
    for path, data in wanted.items():
        _write(tree.root, path, data)
    new = [path for path in sorted(wanted) if path not in tree.pristine_modes]
    if new:
        # Intent to add: `git diff` then shows new files too.
        git("add", "-N", "-f", "--", *new, cwd=tree.root)


def _update(tree: _GitTree, source: Source, part: KernelPart, force: bool) -> str:
    wanted = overlay(part, tree.pristine)
    now = tree.state(part.files)
    unlike = _unlike(now, wanted)
    if not unlike:
        tree.write_record(source.key, part, now)
        return f"{tree.root} is up to date"
    if _digest(now) != tree.record()["overlay"] and not force:
        raise UsageError(
            f"{tree.root} has changes that kernel/ does not; save them with "
            f"./quell tree --refresh {tree.root}, or drop them with --force",
            detail="\n".join(f"  {path}" for path in unlike),
        )
    _set(tree, now, wanted)
    tree.write_record(source.key, part, tree.state(part.files))
    return f"{tree.root} brought up to date: {len(unlike)} files"


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
    tree = _git_tree(dest)
    part = read_kernel_part(kernel, linux_of(check_version(dest)))
    record = tree.record()
    if record["kernel"] != part.digest() and not force:
        raise UsageError(
            f"kernel/ has changed since {dest} was made from it: bring the tree up to date with "
            f"./quell tree {dest}, or overwrite kernel/ with --force"
        )
    now = tree.state(part.files)
    new_part = _refreshed(tree, part, now, _hook_name(patch), set(take))
    # Check before the first write that no change is lost.
    unlike = _unlike(overlay(new_part, tree.pristine), now)
    if unlike:
        raise QuellError("internal error: refreshing would lose changes", detail="\n".join(unlike))
    done = _save(kernel, part, new_part)
    tree.write_record(record["source"], new_part, now)
    return done


def _hook_name(patch: str | None) -> str | None:
    if patch is None:
        return None
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", patch):
        raise UsageError(f"{patch!r} cannot be the name of a patch")
    return patch if patch.endswith(".patch") else f"{patch}.patch"


def _refreshed(
    tree: _GitTree, part: KernelPart, now: Overlay, patch: str | None, take: set[str]
) -> KernelPart:
    files = {path: data for path, data in now.items() if path not in tree.pristine_modes and data is not None}
    edited = {path: data for path, data in now.items() if path in tree.pristine_modes}
    hooks = list(part.hooks)
    names = [hook.name for hook in hooks]
    unknown = sorted(path for path in take if path not in edited)
    if unknown or (take and patch is None):
        raise UsageError(
            f"not changed in the tree: {', '.join(unknown)}" if unknown else "--take needs --patch"
        )
    unowned = sorted(path for path in edited if not part.owners(path))
    if unowned and patch is None:
        raise UsageError(
            "no patch touches these Linux files yet; name a patch for them: --patch NAME",
            detail="\n".join(f"  {path}" for path in unowned),
        )
    for path in sorted(take & edited.keys()):
        last = part.owners(path)[-1].name if part.owners(path) else None
        if last and patch in names and names.index(patch) < names.index(last):
            raise UsageError(f"{patch} comes before {last}, which touches {path} last")

    after = states(part, tree.pristine)
    if patch is not None and patch not in names and (unowned or take):
        subject = f"{patch.removesuffix('.patch')}: one line about these hooks into Linux"
        hooks.append(Hook(patch, f"{subject}\n\nThe reason for them.\n\n", {}))
    result: list[Hook] = []
    for hook in hooks:
        sections: list[tuple[str, FileData | None, FileData | None]] = []
        for path in hook.sections:
            owners = part.owners(path)
            at = owners.index(hook)
            before, behind = after[path][at], after[path][at + 1]
            if hook is owners[-1] and (path not in take or hook.name == patch):
                behind = now.get(path, tree.pristine(path))
            sections.append((path, before, behind))
        if hook.name == patch:
            for path in sorted({*unowned, *take} - set(hook.sections)):
                before = after[path][-1] if path in after else tree.pristine(path)
                sections.append((path, before, now[path]))
        result.append(replace(hook, sections=_sections(sections)))
    return KernelPart(files, [hook for hook in result if hook.sections], part.linux)


def _sections(files: Iterable[tuple[str, FileData | None, FileData | None]]) -> dict[str, str]:
    """The normal form of differences: plain unified diff, 3 lines, no times, no index lines."""
    wanted: list[str] = []
    with tempfile.TemporaryDirectory(prefix="quell-diff-") as name:
        temp = Path(name)
        (temp / "a").mkdir()
        (temp / "b").mkdir()
        (temp / "attributes").write_text(ATTRIBUTES)
        for path, before, after in files:
            if before == after:
                continue
            if before and after and before.executable != after.executable:
                raise UsageError(f"{path}: hooks cannot change a file's permissions")
            if after is not None and b"\0" in after.content:
                raise UsageError(f"{path}: hooks cannot hold a binary file")
            wanted.append(path)
            _write(temp, f"a/{path}", before)
            _write(temp, f"b/{path}", after)
        if not wanted:
            return {}
        result = proc.run(
            ["git", "-c", f"core.attributesFile={temp}/attributes", "-c", "core.quotePath=false",
             "diff", "--no-index", "--no-color", "--no-prefix", "--no-renames", "--text", "-U3",
             "--diff-algorithm=myers", "a", "b"],
            cwd=temp,
            env={**GIT_ENV, "GIT_CEILING_DIRECTORIES": str(temp.parent)},
            check=False,
        )  # fmt: skip
        if result.returncode != 1:
            raise QuellError("git diff failed", detail=result.stderr)
    sections = parse_hook("difference", result.stdout).sections
    if sorted(sections) != sorted(wanted):
        lost = ", ".join(sorted(set(wanted) - set(sections)))
        raise UsageError(f"{lost}: hooks cannot make or remove an empty file")
    return dict(sections)


def _save(kernel: Path, old: KernelPart, new: KernelPart) -> list[str]:
    done: list[str] = []
    for path in sorted(new.files):
        if old.files.get(path) != new.files[path]:
            _write(kernel / "files", path, new.files[path])
            done.append(f"{'wrote' if path in old.files else 'added'} kernel/files/{path}")
    for path in sorted(set(old.files) - set(new.files)):
        (kernel / "files" / path).unlink(missing_ok=True)
        _prune((kernel / "files" / path).parent, kernel / "files")
        done.append(f"removed kernel/files/{path}")

    patches, where = hooks_dir(kernel, new.linux), f"kernel/hooks/{new.linux}"
    kept = {hook.name for hook in new.hooks}
    for hook in new.hooks:
        full = patches / hook.name
        if not full.exists() or full.read_text() != hook.text():
            done.append(f"{'wrote' if full.exists() else 'added'} {where}/{hook.name}")
            write_atomic(full, hook.text())
    lines = (patches / "series").read_text().splitlines() if (patches / "series").exists() else []
    lines = [line for line in lines if (name := line.split("#")[0].strip()) in kept or not name]
    known = {line.split("#")[0].strip() for line in lines}
    lines += [hook.name for hook in new.hooks if hook.name not in known]
    if lines or (patches / "series").exists():
        text = "".join(f"{line}\n" for line in lines)
        if not (patches / "series").exists() or (patches / "series").read_text() != text:
            write_atomic(patches / "series", text)
            done.append(f"wrote {where}/series")
    for hook in old.hooks:
        if hook.name not in kept:
            (patches / hook.name).unlink(missing_ok=True)
            done.append(f"removed {where}/{hook.name}, which has no changes left")
    return done


def _prune(folder: Path, root: Path) -> None:
    while folder != root and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def default_tree(kernel: str = DEFAULT) -> Path:
    """The default folder of ``./quell tree`` for ``--kernel``."""
    return repo_root() / (f"linux-{kernel}" if kernel in VERSIONS and kernel != DEFAULT else "linux")

