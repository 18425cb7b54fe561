# SPDX-License-Identifier: GPL-2.0-only
"""The series as patches that ``git am`` takes, and one roll-up patch.

A scratch repository gets the pristine files that Quell touches, then one commit after
the other, and ``git format-patch`` writes the patches. The same Quell and the same
source give the same bytes.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime
from pathlib import Path

from quell import proc, series, tree
from quell.errors import QuellError, UsageError
from quell.paths import repo_root, write_atomic
from quell.source import GIT_ENV, git, linux_of
from quell.tree import Overlay, Reader

COVER = "cover-letter"
# git needs an identity even if the user has none.
NOBODY = ("Quell", "quell@localhost")
_DATE = "2024-11-17T22:15:00Z"
_GIT = ("-c", "core.compression=1", "-c", "gc.auto=0", "-c", "core.autocrlf=false")


@dataclass(frozen=True)
class Identity:
    """The signer: ``user.name`` and ``user.email`` of the user's git configuration."""

    name: str
    email: str

    @property
    def trailer(self) -> str:
        """The line Signed-off-by."""
        return f"Signed-off-by: {self.name} <{self.email}>\n"


def identity() -> Identity | None:
    """The identity in the user's git configuration; None without a name or an address."""

    def value(key: str) -> str:
        # The lab's other calls of git ignore the user's configuration.
        result = proc.run(["git", "config", "--get", key], check=False)
        return result.stdout.strip()

    name, email = value("user.name"), value("user.email")
    return Identity(name, email) if name and email else None


def date() -> str:
    """The date of the last commit in Quell's repository, as ISO 8601; a fixed date without one."""
    try:
        return git("log", "-1", "--format=%cI", cwd=repo_root()).strip() or _DATE
    except QuellError:
        return _DATE


@contextmanager
def target(dest: Path) -> Iterator[None]:
    """Make ``dest`` before the work; after an error, remove the folders that are still empty.

    UsageError unless it is new or an empty folder, and writable.
    """
    try:
        made = [path for path in (dest, *dest.parents) if not path.exists()]
        if dest.is_dir():
            if any(dest.iterdir()):
                raise UsageError(f"{dest} is not empty; give a new folder or an empty one")
        elif dest.exists() or dest.is_symlink():
            raise UsageError(f"{dest} is not a folder")
        dest.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{dest} cannot be made: {error.strerror}") from error
    if not os.access(dest, os.W_OK | os.X_OK):
        raise UsageError(f"{dest} cannot be written to")
    try:
        yield
    except BaseException:
        for path in made:
            with suppress(OSError):
                path.rmdir()
        raise


def patches(
    kernel: Path, pristine: Reader, version: str, who: Identity | None, when: str
) -> dict[str, str]:
    """The files to write, by name: ``0001-....patch`` and so on, and ``quell-VERSION.patch``.

    A cover letter comes first if ``hooks/VERSION/cover`` has its text; its line ``{contact}`` becomes the table
    of contact(). ``version`` is Linux's. QuellError when a hook does not apply, or series.toml does not fit.
    """
    linux = linux_of(version)
    one = series.read(kernel, linux)
    if not one.commits:
        raise QuellError(f"there is nothing to export: kernel/hooks/{linux}/series is missing or empty")
    overlays = series.states(one, pristine)
    with tempfile.TemporaryDirectory(prefix="quell-export-") as name:
        repo, out = Path(name) / "repo", Path(name) / "out"
        repo.mkdir()
        (Path(name) / "attributes").write_text(tree.ATTRIBUTES)
        scratch = _Scratch(repo, Path(name) / "attributes", who, when)
        scratch.commit({path: pristine(path) for path in overlays[-1]}, "pristine\n")
        first = scratch.head()
        for commit, overlay in zip(one.commits, overlays, strict=True):
            scratch.commit(overlay, commit.message + (f"\n{who.trailer}" if who else ""))
        scratch.git(
            "format-patch", "-q", "--zero-commit", "--no-signature", "--no-renames", "--full-index",
            "--diff-algorithm=myers", "-U3", "--no-base", "-o", str(out), first,
        )  # fmt: skip
        written = {path.name: _text(path) for path in sorted(out.iterdir())}
        text = tree.hooks_dir(kernel, linux) / "cover"
        if text.exists():
            stat = scratch.git("diff", "--no-renames", "--stat=78", first, "HEAD")
            written = {COVER: _cover(_text(text), one, version, stat, who, when), **written}
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


def _cover(text: str, one: series.Series, version: str, stat: str, who: Identity | None, when: str) -> str:
    """The mail before the series: its subject is the first line of ``text``."""
    subject, _, body = text.partition("\n")
    body = body.replace("{contact}", "\n".join(contact(one.part.hooks)))
    name, email = (who.name, who.email) if who else NOBODY
    date = format_datetime(datetime.fromisoformat(when))
    lines = [f"{number:4}. {commit.subject}" for number, commit in enumerate(one.commits, 1)]
    return "\n".join([
        f"From: {name} <{email}>", f"Date: {date}", f"Subject: [PATCH 00/{len(one.commits)}] {subject}", "",
        body.strip(), "", f"The series is against Linux {version}:", "", *lines, "", stat.rstrip(), "",
    ])  # fmt: skip


def _roll_up(one: series.Series, version: str) -> str:
    lines = [
        f"Quell for Linux {version}, as one patch: the sum of",
        *(f"  {number}. {commit.subject}" for number, commit in enumerate(one.commits, 1)),
        "",
        "",
    ]
    return "\n".join(lines)


class _Scratch:
    """A repository of the files that Quell touches."""

    def __init__(self, root: Path, attributes: Path, who: Identity | None, when: str) -> None:
        self.root = root
        name, email = (who.name, who.email) if who else NOBODY
        values = {"NAME": name, "EMAIL": email, "DATE": when}
        self.env = {f"GIT_{role}_{key}": values[key] for role in ("AUTHOR", "COMMITTER") for key in values}
        self.options = (*_GIT, "-c", f"core.attributesFile={attributes}")
        self.now: Overlay = {}
        self.git("init", "-q", "--template=", "-b", "quell")

    def git(self, *args: str) -> str:
        return git(*self.options, *args, cwd=self.root, env=self.env)

    def head(self) -> str:
        return self.git("rev-parse", "HEAD").strip()

    def commit(self, overlay: Overlay, message: str) -> None:
        """Commit these files on top of the earlier ones."""
        for path, data in overlay.items():
            full = self.root / path
            if data is None:
                full.unlink(missing_ok=True)
            else:
                write_atomic(full, data.content, mode=data.mode)
        self.git("add", "-A", "-f", ".")
        file = self.root / ".git/message"
        file.write_text(message)
        self.git("commit", "-q", "--no-verify", "--allow-empty", "--cleanup=verbatim", "-F", str(file))


def write(dest: Path, files: dict[str, str]) -> None:
    """Write the patches into the folder ``dest``."""
    for name, text in files.items():
        write_atomic(dest / name, text)


def numbered(files: dict[str, str]) -> list[str]:
    """The patches of the series in order, without the cover letter and the roll-up."""
    return sorted(name for name in files if re.match(r"\d{4}-", name))


def am(repo: Path, mails: list[Path]) -> None:
    """Apply the patches with ``git am`` in a clean repository. QuellError with git's messages."""
    who = dict(zip(("NAME", "EMAIL"), NOBODY, strict=True))
    env = {**GIT_ENV, **{f"GIT_COMMITTER_{key}": value for key, value in who.items()}}
    result = proc.run(
        ["git", "-c", "safe.directory=*", *_GIT, "am", "-q", "--whitespace=nowarn", *mails],
        cwd=repo,
        env=env,
        check=False,
    )
    if result.returncode != 0:
        raise QuellError("git am does not take the series", detail=proc.tail(result.stdout + result.stderr))
