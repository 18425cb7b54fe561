# SPDX-License-Identifier: GPL-2.0-only
"""The series as patches that ``git am`` takes, and one roll-up patch.

A scratch repository gets the pristine files that Quell touches, then one commit after
the other, and ``git format-patch`` writes the patches. The same Quell and the same
source give the same bytes.
"""

import re
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime, formataddr
from pathlib import Path

from quell import proc, series, tree
from quell.errors import QuellError, UsageError
from quell.paths import make_folder, repo_root, write_atomic
from quell.source import git, linux_of
from quell.tree import Overlay, Reader

COVER = "0000-cover-letter.patch"
_DATE = "2024-11-17T22:15:00Z"
GIT_OPTIONS = ("-c", "core.compression=1", "-c", "gc.auto=0", "-c", "core.autocrlf=false")


@dataclass(frozen=True)
class Identity:
    """The name and address of an author, or of the user who signs."""

    name: str
    email: str

    @property
    def trailer(self) -> str:
        """The line Signed-off-by."""
        return f"Signed-off-by: {self.name} <{self.email}>\n"

    def env(self, role: str) -> dict[str, str]:
        """What makes git take it for the AUTHOR or COMMITTER."""
        return {f"GIT_{role}_NAME": self.name, f"GIT_{role}_EMAIL": self.email}


# The author where git has none.
NOBODY = Identity("Quell", "quell@localhost")


def identity() -> Identity:
    """The user: ``user.name`` and ``user.email`` of git. UsageError if these are not set."""

    def value(key: str) -> str:
        # The lab's other calls of git ignore the user's configuration.
        result = proc.run(["git", "config", "--get", key], check=False)
        return result.stdout.strip()

    name, email = value("user.name"), value("user.email")
    if not name or not email:
        raise UsageError("--signoff takes git's user.name and user.email, and these are not set: git config --global")
    return Identity(name, email)


def author(path: Path) -> Identity:
    """The author of the last commit that changed a file of this repository; NOBODY without git or history."""
    try:
        said = git("log", "-1", "--format=%an%n%ae", "--", path.name, cwd=path.parent).splitlines()
    except (OSError, QuellError):
        return NOBODY
    return Identity(*said) if len(said) == 2 and all(said) else NOBODY


def date() -> str:
    """The date of the last commit in Quell's repository, as ISO 8601; a fixed date without one."""
    try:
        return git("log", "-1", "--format=%cI", cwd=repo_root()).strip() or _DATE
    except QuellError:
        return _DATE


def make_target(dest: Path) -> None:
    """Make ``dest``; UsageError unless it is new or an empty folder, and writable."""
    try:
        if dest.is_dir():
            if any(dest.iterdir()):
                raise UsageError(f"{dest} is not empty; give a new folder or an empty one")
        elif dest.exists() or dest.is_symlink():
            raise UsageError(f"{dest} is not a folder")
    except OSError as error:
        raise UsageError(f"{dest} cannot be made: {error.strerror}") from error
    make_folder(dest)


def patches(
    kernel: Path, pristine: Reader, version: str, when: str, *,
    signer: Identity | None = None, only: Collection[str] = (), lab: bool = False,
) -> dict[str, str]:  # fmt: skip
    """The files to write, by name: ``0001-....patch`` and so on, and ``quell-VERSION.patch``.

    ``only`` and ``lab`` select as ``series.select()`` does. A cover letter comes first if ``hooks/VERSION/cover``
    has its text; its line ``{contact}`` becomes the table of contact(). ``version`` is Linux's. QuellError when a
    hook does not apply, or series.toml does not fit.
    """
    linux = linux_of(version)
    one = series.read(kernel, linux)
    if not one.commits:
        raise QuellError(f"there is nothing to export: kernel/hooks/{linux}/series is missing or empty")
    one = series.select(one, only, lab=lab)
    hooks = tree.hooks_dir(kernel, linux)
    overlays = series.states(one, pristine)
    with tempfile.TemporaryDirectory(prefix="quell-export-") as name:
        repo, out = Path(name) / "repo", Path(name) / "out"
        repo.mkdir()
        (Path(name) / "attributes").write_text(tree.ATTRIBUTES)
        scratch = _Scratch(repo, Path(name) / "attributes", when)
        scratch.commit({path: pristine(path) for path in overlays[-1]}, "pristine\n", NOBODY)
        first = scratch.head()
        for commit, overlay in zip(one.commits, overlays, strict=True):
            message = commit.message + (f"\n{signer.trailer}" if signer else "")
            scratch.commit(overlay, message, author(hooks / f"{commit.patch}.patch"))
        scratch.git(
            "format-patch", "-q", "--zero-commit", "--no-signature", "--no-renames", "--full-index",
            "--diff-algorithm=myers", "-U3", "--no-base", "-o", str(out), first,
        )  # fmt: skip
        written = {path.name: _text(path) for path in sorted(out.iterdir())}
        text = hooks / "cover"
        if text.exists():
            stat = scratch.git("diff", "--no-renames", "--stat=78", first, "HEAD")
            written = {COVER: _cover(_text(text), one, version, stat, author(text), when), **written}
        whole = Path(name) / "whole"
        scratch.git("diff", "--no-renames", "--full-index", "--diff-algorithm=myers", "-U3",
                    f"--output={whole}", first, "HEAD")  # fmt: skip
        written[f"quell-{version}.patch"] = _roll_up(one, version) + _text(whole)
    return written


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise QuellError(f"a hook touches a file that is not UTF-8: {error}") from error


def contact(hooks: Sequence[tree.Hook]) -> list[str]:
    """How much of Linux's own files each patch changes: a table as lines, without context lines."""
    rows: list[tuple[str, int, int, int, int]] = []
    paths: set[str] = set()
    for hook in hooks:
        lines = [line for section in hook.sections.values() for line in section.splitlines()]
        added = sum(line.startswith("+") and not line.startswith("+++ ") for line in lines)
        gone = sum(line.startswith("-") and not line.startswith("--- ") for line in lines)
        hunks = sum(line.startswith("@@ ") for line in lines)
        paths |= hook.sections.keys()
        rows.append((hook.name.removesuffix(".patch"), len(hook.sections), hunks, added, gone))
    hunks, added, gone = (sum(column) for column in zip(*[row[2:] for row in rows], strict=True))
    table = [("patch", "files", "hunks", "added", "removed"), *rows, ("all", len(paths), hunks, added, gone)]
    return ["  {:18}{:>7}{:>7}{:>7}{:>9}".format(*row) for row in table]


def _cover(text: str, one: series.Series, version: str, stat: str, who: Identity, when: str) -> str:
    """The mail before the series: its subject is the first line of ``text``.

    As in a shared file, blocks under an ``#if`` need its options.
    """
    text = series.without_blocks(text, {name for commit in one.left_out for name in commit.options})
    text = re.sub(r"^#(if|endif).*\n", "", text, flags=re.M)
    subject, _, body = text.partition("\n")
    body = body.replace("{contact}", "\n".join(contact(one.part.hooks)))
    date = format_datetime(datetime.fromisoformat(when))
    lines = [f"{number:4}. {commit.subject}" for number, commit in enumerate(one.commits, 1)]
    return "\n".join([
        f"From: {formataddr((who.name, ''))[:-1]}{who.email}>", f"Date: {date}", f"Subject: [PATCH 00/{len(one.commits)}] {subject}", "",
        body.strip(), "", f"The series is against Linux {version}:", "", *lines, "", stat.rstrip(), "",
    ])  # fmt: skip


def _roll_up(one: series.Series, version: str) -> str:
    lines = "".join(f"  {number}. {commit.subject}\n" for number, commit in enumerate(one.commits, 1))
    return f"Quell for Linux {version}, as one patch: the sum of\n{lines}\n"


class _Scratch:
    """A repository of the files that Quell touches."""

    def __init__(self, root: Path, attributes: Path, when: str) -> None:
        self.root = root
        self.env = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when, **NOBODY.env("COMMITTER")}
        self.options = (*GIT_OPTIONS, "-c", f"core.attributesFile={attributes}")
        self.now: Overlay = {}
        self.git("init", "-q", "--template=", "-b", "quell")

    def git(self, *args: str) -> str:
        return git(*self.options, *args, cwd=self.root, env=self.env)

    def head(self) -> str:
        return self.git("rev-parse", "HEAD").strip()

    def commit(self, overlay: Overlay, message: str, who: Identity) -> None:
        """Commit these files; those of the commits before stay as they are."""
        for path, data in overlay.items():
            full = self.root / path
            if data is None:
                full.unlink(missing_ok=True)
            else:
                write_atomic(full, data.content, mode=data.mode)
        self.git("add", "-A", "-f", ".")
        file = self.root / ".git/message"
        file.write_text(message)
        self.env |= who.env("AUTHOR")
        self.git("commit", "-q", "--no-verify", "--allow-empty", "--cleanup=verbatim", "-F", str(file))


def write(dest: Path, files: dict[str, str]) -> None:
    """Write the patches into the folder ``dest``."""
    for name, text in files.items():
        write_atomic(dest / name, text)


def numbered(files: dict[str, str]) -> list[str]:
    """The patches of the series in order, without the cover letter and the roll-up."""
    return sorted(name for name in files if re.match(r"\d{4}-", name) and name != COVER)
