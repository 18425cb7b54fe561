# SPDX-License-Identifier: GPL-2.0-only
"""``./quell export``: git am takes the series; the whole one (``--all``) makes what ``./quell tree`` makes.

The long form compiles the tree after each commit of the default series, with the options that it has by
then. It also compiles each mechanism's series (``--only``). Part ``builds`` compiles the whole one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from checks import own_code
from checks.cases import Case, Results, text_of
from quell import build, export, prereq, proc, series, source, tree, ui
from quell.errors import QuellError
from quell.paths import Cache
from quell.source import git


@dataclass(frozen=True)
class Work:
    """The source of a version of Linux in git; ``whole`` is the tree object with Quell applied."""

    linux: Path
    origin: source.Source
    series: series.Series
    whole: str

    def read(self, path: str) -> bytes | None:
        """A file of Linux."""
        return tree.read_file(self.origin.tree, path)


@pytest.fixture(scope="module", params=source.VERSIONS)
def work(request: pytest.FixtureRequest, cache: Cache) -> Iterator[Work]:
    """For each version of Linux: its whole source in git, with Quell applied."""
    origin = source.debian_source(cache, request.param)
    with cache.scratch("export") as temp:
        linux = temp / "linux"
        tree.make_git_tree(linux, origin, kernel=tree.kernel_dir())
        yield Work(linux, origin, series.read(tree.kernel_dir(), origin.linux), state(linux))


def test_lists(results: Results, work: Work) -> None:
    """Linux's lists of what Quell adds."""
    git("reset", "-q", "--hard", first(work.linux), cwd=work.linux)
    git("read-tree", "-u", "--reset", work.whole, cwd=work.linux)
    results.add(*listed(work.linux))


def test_independent(results: Results, work: Work) -> None:
    """The hooks of each mechanism alone, and of all others without it."""
    results.add(*independent(work.series.part, work.read))


def _all_series() -> list[Any]:
    """The series to apply, by the words of ./quell export."""
    parts = [tree.read_kernel_part(tree.kernel_dir(), linux) for linux in source.VERSIONS]
    names = dict.fromkeys(name for part in parts for name in own_code.mechanism_patches(part))
    only = [pytest.param(f"--only {name}", marks=() if name == "luf" else pytest.mark.full) for name in names]
    return ["--all", "default", *only]


@pytest.mark.parametrize("words", _all_series())
def test_series(words: str, results: Results, work: Work, cache: Cache, full: bool) -> None:
    """A series and its roll-up; in the long form, the tree is compiled after each commit (of --only the last)."""
    full = full and words != "--all"
    prereq.ensure(prereq.BUILD if full else [item for item in prereq.BUILD if item.need == "git"])
    only = words.partition("--only ")[2]
    if only and only not in own_code.mechanism_patches(work.series.part):
        pytest.skip(f"Quell does not have it for Linux {work.origin.linux}")
    how: dict[str, Any] = {"only": [only]} if only else {"lab": words == "--all"}
    files = export.patches(tree.kernel_dir(), work.read, work.origin.version, export.date(), **how)
    folder = work.linux.parent / words
    export.write(folder, files)
    # Only --all has to make what ./quell tree makes.
    wanted = work.whole if words == "--all" else ""
    results.add(*applied(work.linux, folder, files, wanted), commits_of_tests(files))
    if full and all(case.status == "passed" for case in results.cases):
        _compile(results, work.linux, series.select(work.series, **how), cache, last_only=bool(only))


def _case(name: str, wrong: str) -> Case:
    return Case(name, "failed" if wrong else "passed", wrong)


def commits_of_tests(files: dict[str, str]) -> Case:
    """The commits of tests that change more than tests and the lines that include them."""
    wrong = []
    for name in export.numbered(files):
        for part in files[name].split("\ndiff --git a/")[1:] if "] quell: tests of " in files[name] else ():
            changed = re.findall(r"^[+-](?!\+\+ |-- ).*", part, re.M)
            includes = all(re.fullmatch(r'\+(#ifdef \w+|#include "tests/.*|#endif)?', line) for line in changed)
            path = part.split()[0]
            if not includes and not series.TESTS.match(path):
                wrong.append(f"{name} is a commit of tests, and changes {path}")
    return _case("commits of tests change tests only", "\n".join(wrong))


def independent(part: tree.KernelPart, pristine: tree.Reader) -> list[Case]:
    """Apply each mechanism's hooks alone, then all others without them."""
    cases = []
    for name in own_code.mechanism_patches(part):
        for what in ("alone", "without it"):
            wrong = ""
            try:
                tree.apply(own_code.subset(part, name, alone=what == "alone"), pristine)
            except QuellError as error:
                wrong = text_of(error)
            cases.append(_case(f"{name}, {what}", wrong))
    return cases


_SELFTESTS = "tools/testing/selftests"
_PAGES = "Documentation/admin-guide/mm"


def listed(linux: Path) -> list[Case]:
    """Look at the lists of selftests and of pages, in a tree with Quell applied."""
    targets = (linux / _SELFTESTS / "Makefile").read_text()
    known = "TARGETS += quell" in targets.splitlines() and (linux / _SELFTESTS / "quell/Makefile").is_file()
    index = (linux / _PAGES / "index.rst").read_text()
    named = sorted(line.strip() for line in index.splitlines() if line.strip().startswith("quell_"))
    pages = sorted(path.stem for path in (linux / _PAGES).glob("quell_*.rst"))
    differ = f"{_PAGES} has {' '.join(pages)}, index.rst {' '.join(named)}"
    return [
        _case("make kselftest knows Quell's selftests", "" if known else "it does not"),
        _case("the table of contents has Quell's pages", "" if named == pages != [] else differ),
    ]


def first(linux: Path) -> str:
    """The first commit: Linux as it is."""
    return git("rev-list", "--max-parents=0", "HEAD", cwd=linux).strip()


def state(linux: Path) -> str:
    """The tree object of a work tree."""
    git("add", "-A", "-f", ".", ":(exclude)obj", cwd=linux)
    return git("write-tree", cwd=linux).strip()


def applied(linux: Path, folder: Path, files: dict[str, str], wanted: str = "") -> list[Case]:
    """Apply the roll-up, then the series, to the first commit of ``linux``; the series stays checked out.

    Both have to make the tree object ``wanted``, or without one the same.
    """
    start = first(linux)
    what = "the tree that ./quell tree makes" if wanted else "the same tree as the roll-up"
    mails = [folder / name for name in sorted(files) if name.startswith("0")]
    (whole,) = [folder / name for name in files if folder / name not in mails]
    rolled = made = count = ""
    git("reset", "-q", "--hard", start, cwd=linux)
    try:
        git("apply", "--whitespace=nowarn", whole, cwd=linux)
        now = state(linux)
        wanted = wanted or now
        if now != wanted:
            rolled = f"{whole.name} does not make the tree that ./quell tree makes"
    except QuellError as error:
        rolled = text_of(error)
    git("reset", "-q", "--hard", start, cwd=linux)
    try:
        # The cover letter is empty.
        how = (*tree.GIT_OPTIONS, "am", "-q", "--whitespace=nowarn", "--empty=drop")
        git(*how, *mails, cwd=linux, env=tree.NOBODY.env("COMMITTER"))
        if git("rev-parse", "HEAD^{tree}", cwd=linux).strip() != wanted:
            made = f"the series does not make {what}"
        if git("rev-list", "--count", f"{start}..HEAD", cwd=linux).strip() != str(len(export.numbered(files))):
            count = "git am made another number of commits than there are patches"
    except QuellError as error:
        made = text_of(error)
    return [_case("the roll-up", rolled), _case(f"the series makes {what}", made), _case("one commit per patch", count)]


def _compile(results: Results, linux: Path, one: series.Series, cache: Cache, *, last_only: bool) -> None:
    """Compile every prefix of the series, which is checked out in ``linux``, or the whole."""
    last = git("rev-parse", "HEAD", cwd=linux).strip()
    obj = linux / "obj"
    fragment = build.fragments("stock", tree.kernel_dir(), one.part.linux)
    for number, commit in enumerate(one.commits, 1):
        fragment += "".join(f"CONFIG_{name}=y\n" for name in commit.options if not name.startswith("ARCH_"))
        if last_only and number < len(one.commits):
            continue
        ui.note(f"compiling {number} of {len(one.commits)}: {commit.subject}")
        git("checkout", "-q", f"{last}~{len(one.commits) - number}", cwd=linux)
        log = cache.logs / f"export-{number}.log"
        log.unlink(missing_ok=True)
        obj.mkdir(exist_ok=True)
        wrong = ""
        try:
            # Some options depend on those of later commits.
            all_taken = number == len(one.commits) and "CONFIG_QUELL_LUF=y\n" in fragment
            build.configure(linux, obj, fragment, "export", cache, log, all_taken=all_taken)
            made = proc.run(build.make_argv(linux, obj, "export", cache, "vmlinux"), log=log, check=False)
            if made.returncode != 0:
                raise build.build_error("export does not compile", made.stdout, log)
        except QuellError as error:
            wrong = text_of(error)
        results.add(_case(f"compiled after {commit.hook.name}", wrong))
