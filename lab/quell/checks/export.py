# SPDX-License-Identifier: GPL-2.0-only
"""``./quell export``: git am takes the series; the whole one (``--all``) makes what ``./quell tree`` makes.

The long form compiles the tree after each commit of that one and of the default series, with the options
that it has by then, and each mechanism's series (``--only``).
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from quell import build, export, prereq, proc, series, source, tree, ui
from quell.checks import CheckResult
from quell.errors import QuellError
from quell.paths import Cache
from quell.source import git

# The series to apply, by the words of ./quell export, and as export.patches() takes them. The whole
# one comes first, as the tree has it then.
_SERIES: dict[str, dict[str, Any]] = {"--all": {"lab": True}, "default": {}, "--only luf": {"only": ["luf"]}}


def run(cache: Cache) -> CheckResult:
    """For each version of Linux: three series and their roll-ups, applied to the whole source in git, the whole
    one against ``./quell tree``; commits of tests; each mechanism applied alone, and each left out; and Linux's
    lists of what Quell adds.
    """
    return _run(cache, compile_all=False)


def run_full(cache: Cache) -> CheckResult:
    """The same, and compile every prefix of the series."""
    return _run(cache, compile_all=True)


def _run(cache: Cache, compile_all: bool) -> CheckResult:
    prereq.ensure(prereq.BUILD if compile_all else [i for i in prereq.BUILD if i.need == "git"])
    wrong: list[str] = []
    done = 0
    for version in source.VERSIONS:
        said, count = _of_version(cache, source.debian_source(cache, version), compile_all)
        wrong += [f"{version}: {text}" for text in said]
        done += count
    failed = min(len(wrong), done)
    return CheckResult(done - failed, failed, 0, "\n".join(wrong))


def _of_version(cache: Cache, origin: source.Source, compile_all: bool) -> tuple[list[str], int]:
    """Errors for one version of Linux, and the number of checks."""
    with tempfile.TemporaryDirectory(prefix="export-", dir=cache.folder("run")) as temp:
        work = Path(temp)
        kernel = tree.kernel_dir()
        linux = work / "linux"
        tree.make_git_tree(linux, origin, kernel=kernel)
        one = series.read(kernel, origin.linux)
        entangled, count = independent(one.part, lambda path: tree.read_file(origin.tree, path))
        wrong = listed(linux) + entangled
        done = 2 + count

        def apply(label: str, how: dict[str, Any]) -> None:
            files = export.patches(
                kernel, lambda path: tree.read_file(origin.tree, path), origin.version, export.date(), **how
            )
            folder = work / label
            export.write(folder, files)
            said = applied(linux, folder, files, as_it_is=label == "--all") + tests_elsewhere(files)
            wrong.extend(f"{label}: {text}" for text in said)

        for label, how in _SERIES.items():
            apply(label, how)
            done += 4
            if compile_all and not wrong and label != "--only luf":
                broken, count = _compile(linux, series.select(one, **how), cache)
                wrong += broken
                done += count
        for name in tree.mechanism_patches(one.part) if compile_all and not wrong else []:
            how = {"only": [name.removesuffix(".patch")]}
            apply(f"--only {how['only'][0]}", how)
            broken, count = _compile(linux, series.select(one, **how), cache, last_only=True)
            wrong += broken
            done += 4 + count
    return wrong, done


def tests_elsewhere(files: dict[str, str]) -> list[str]:
    """The commits of tests that touch files outside of tools/."""
    wrong = []
    for name in export.numbered(files):
        paths = re.findall(r"^diff --git a/(\S+)", files[name], re.M)
        outside = [path for path in paths if not path.startswith("tools/")]
        if re.search(r"^Subject: \[PATCH[^]]*\] selftests/", files[name], re.M) and outside:
            wrong.append(f"{name} is a commit of tests, and touches {' '.join(outside)}")
    return wrong


def independent(part: tree.KernelPart, pristine: tree.Reader) -> tuple[list[str], int]:
    """Apply each mechanism's hooks alone, then all others without them; errors, and the number of tries."""
    wrong = []
    mechanisms = tree.mechanism_patches(part)
    for name in mechanisms:
        for what in ("alone", "without it"):
            try:
                tree.states(tree.subset(part, name, alone=what == "alone"), pristine)
            except QuellError as error:
                wrong.append(f"{name}, {what}: {error.message}")
    return wrong, 2 * len(mechanisms)


_TARGETS = "quell-targets:;@echo $(TARGETS)"
_SELFTESTS = "tools/testing/selftests"
_PAGES = "Documentation/admin-guide/mm"


def listed(linux: Path) -> list[str]:
    """Errors in the lists of selftests and of pages, in a tree with Quell applied."""
    wrong = []
    asked = proc.run(
        [*build.clean_env(), "make", "-s", "-C", linux / _SELFTESTS, f"--eval={_TARGETS}", "quell-targets"],
        check=False,
    )
    if "quell" not in asked.stdout.split() or not (linux / _SELFTESTS / "quell/Makefile").is_file():
        wrong.append("make kselftest does not know Quell's selftests")
    index = (linux / _PAGES / "index.rst").read_text()
    named = sorted(line.strip() for line in index.splitlines() if line.strip().startswith("quell_"))
    pages = sorted(path.stem for path in (linux / _PAGES).glob("quell_*.rst"))
    if named != pages or not pages:
        what = "the table of contents and Quell's pages differ"
        wrong.append(f"{what}: {_PAGES} has {' '.join(pages)}, index.rst {' '.join(named)}")
    return wrong


def applied(linux: Path, folder: Path, files: dict[str, str], *, as_it_is: bool = True) -> list[str]:
    """What is wrong with the patches, in a tree that ``./quell tree`` made.

    They have to make the tree ``as_it_is``, or the series and the roll-up the same. Left checked out is
    the series, applied to the tree's first commit.
    """
    first = git("rev-list", "--max-parents=0", "HEAD", cwd=linux).strip()

    def now() -> str:
        git("add", "-A", "-f", ".", ":(exclude)obj", cwd=linux)
        return git("write-tree", cwd=linux).strip()

    wrong = []
    wanted = now() if as_it_is else ""
    what = "the tree that ./quell tree makes" if as_it_is else "the same tree as the roll-up"
    git("reset", "-q", "--hard", first, cwd=linux)
    mails = [folder / name for name in sorted(files) if name.startswith("0")]
    (whole,) = [folder / name for name in files if folder / name not in mails]
    try:
        git("apply", "--whitespace=nowarn", str(whole), cwd=linux)
        made = now()
        wanted = wanted or made
        if made != wanted:
            wrong.append(f"{whole.name} does not make the tree that ./quell tree makes")
    except QuellError as error:
        wrong.append(f"git apply does not take {whole.name}: {error.detail}")
    git("reset", "-q", "--hard", first, cwd=linux)
    try:
        export.am(linux, mails)
        if git("rev-parse", "HEAD^{tree}", cwd=linux).strip() != wanted:
            wrong.append(f"the series does not make {what}")
        count = len(export.numbered(files))
        if git("rev-list", "--count", f"{first}..HEAD", cwd=linux).strip() != str(count):
            wrong.append("git am made another number of commits than there are patches")
    except QuellError as error:
        wrong.append(f"{error.message}: {error.detail}")
    return wrong


def _compile(
    linux: Path, one: series.Series, cache: Cache, *, last_only: bool = False
) -> tuple[list[str], int]:
    """Compile every prefix of the series, which is checked out in ``linux``, or the whole; how many those were."""
    wrong = []
    last = git("rev-parse", "HEAD", cwd=linux).strip()
    lab = build.fragments("stock", tree.kernel_dir(), one.part.linux)
    options: list[str] = []
    for number, commit in enumerate(one.commits, 1):
        options += [name for name in commit.options if not name.startswith("ARCH_")]
        if last_only and number < len(one.commits):
            continue
        fragment = lab + "".join(f"CONFIG_{name}=y\n" for name in options)
        ui.note(f"compiling {number} of {len(one.commits)}: {commit.subject}")
        git("checkout", "-q", f"{last}~{len(one.commits) - number}", cwd=linux)
        log = cache.logs / f"export-{number}.log"
        log.unlink(missing_ok=True)
        try:
            # Some options depend on those of later commits.
            build.compile_tree(
                linux, fragment, "export", cache, log,
                all_taken=number == len(one.commits) and "QUELL_LUF" in options,
            )
        except QuellError as error:
            wrong.append(f"after {commit.name}: {error.message}\n{error.detail}\nlog: {log}")
    return wrong, 1 if last_only else len(one.commits)
