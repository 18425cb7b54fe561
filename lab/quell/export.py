# SPDX-License-Identifier: GPL-2.0-only
"""The series as patches that ``git am`` takes, and one roll-up patch.

A scratch repository gets the pristine files that Quell touches, then one commit after
the other, and ``git format-patch`` writes the patches. The same Quell and the same
source give the same bytes.
"""

import re
import tempfile
from collections.abc import Collection, Sequence
from datetime import datetime
from email.utils import format_datetime, formataddr
from pathlib import Path

from quell import proc, series
from quell.errors import QuellError, UsageError
from quell.paths import make_folder, repo_root, write_atomic
from quell.source import git, linux_of
from quell.tree import DATE, NOBODY, Hook, Identity, Reader, Scratch

COVER = "0000-cover-letter.patch"


def identity() -> Identity:
    """The user: ``user.name`` and ``user.email`` of git. UsageError if these are not set."""
    # The lab's other calls of git ignore the user's configuration.
    said = proc.run(["git", "-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT"], check=False).stdout
    match = re.match(r"(.+) <(.+)>", said)
    if not match:
        raise UsageError("--signoff takes git's user.name and user.email, and these are not set: git config --global")
    return Identity(match[1], match[2])


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
        return git("log", "-1", "--format=%cI", cwd=repo_root()).strip() or DATE
    except QuellError:
        return DATE


def make_target(dest: Path) -> None:
    """Make ``dest``; UsageError unless it is new or an empty folder, and writable."""
    make_folder(dest)
    if any(dest.iterdir()):
        raise UsageError(f"{dest} is not empty; give a new folder or an empty one")


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
    one = series.select(series.read(kernel, linux), only, lab=lab)
    hooks = kernel / "hooks" / linux
    overlays = series.states(one, pristine)
    with tempfile.TemporaryDirectory(prefix="quell-export-") as name:
        out = Path(name) / "out"
        scratch = Scratch(Path(name) / "repo", when, signer or NOBODY)
        scratch.commit({path: pristine(path) for path in overlays[-1]}, "pristine\n")
        for commit, overlay in zip(one.commits, overlays, strict=True):
            scratch.commit(overlay, commit.message, author(hooks / f"{commit.patch}.patch"))
        options = ("--no-signature", "--full-index", "--zero-commit", *(["--signoff"] if signer else []))
        first = f"HEAD~{len(one.commits)}"
        scratch.git("format-patch", "-q", *options, "-o", str(out), first)
        written = {path.name: path.read_text() for path in sorted(out.iterdir())}
        text = hooks / "cover"
        if text.exists():
            stat = scratch.git("diff", "--stat=78", first, "HEAD")
            written = {COVER: _cover(text.read_text(), one, version, stat, author(text), when), **written}
        written[f"quell-{version}.patch"] = _roll_up(one, version) + scratch.git("diff", "--full-index", first, "HEAD")
    return written


def contact(hooks: Sequence[Hook]) -> list[str]:
    """How much of Linux's own files each patch changes: a table as lines, without context lines."""
    rows: list[tuple[str, int, int, int, int]] = []
    paths: set[str] = set()
    for hook in hooks:
        lines = [line for section in hook.sections.values() for line in section.splitlines()]
        added = sum(line.startswith("+") and not line.startswith("+++ ") for line in lines)
        gone = sum(line.startswith("-") and not line.startswith("--- ") for line in lines)
        hunks = sum(line.startswith("@@ ") for line in lines)
        paths |= hook.sections.keys()
        rows.append((hook.name, len(hook.sections), hunks, added, gone))
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


def write(dest: Path, files: dict[str, str]) -> None:
    """Write the patches into the folder ``dest``."""
    for name, text in files.items():
        write_atomic(dest / name, text)


def numbered(files: dict[str, str]) -> list[str]:
    """The patches of the series in order, without the cover letter and the roll-up."""
    return sorted(name for name in files if re.match(r"\d{4}-", name) and name != COVER)
