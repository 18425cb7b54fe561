# SPDX-License-Identifier: GPL-2.0-only
"""Check ``./quell export``: git am takes the series, and the result equals ``./quell tree``'s.

The long form compiles the tree after each commit, with the options added so far.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from quell import build, export, prereq, proc, series, source, tree, ui
from quell.checks import CheckResult
from quell.errors import QuellError
from quell.paths import Cache
from quell.source import git

_WHO = export.Identity("Quell", "quell@localhost")


def run(cache: Cache) -> CheckResult:
    """For each version of Linux: compare the series and the roll-up with ``./quell tree``. Apply each
    mechanism alone, and leave each out. Check Linux's lists of selftests and pages.
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
        files = export.patches(
            kernel, lambda path: tree.read_file(origin.tree, path), origin.version, _WHO, export.date()
        )
        export.write(work / "series", files)
        part = tree.read_kernel_part(kernel, origin.linux)
        entangled, count = independent(part, lambda path: tree.read_file(origin.tree, path))
        wrong = listed(linux) + applied(linux, work / "series", files) + entangled
        done = 4 + count
        if compile_all and not wrong:
            broken, count = _compile(linux, series.read(kernel, origin.linux), cache)
            wrong += broken
            done += count
    return wrong, done


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


def applied(linux: Path, folder: Path, files: dict[str, str]) -> list[str]:
    """Errors in the patches, in a tree that ``./quell tree`` made.

    Leaves the series checked out, applied to the tree's first commit.
    """
    first = git("rev-list", "--max-parents=0", "HEAD", cwd=linux).strip()

    def now() -> str:
        git("add", "-A", "-f", ".", cwd=linux)
        return git("write-tree", cwd=linux).strip()

    wrong = []
    wanted = now()
    git("reset", "-q", "--hard", first, cwd=linux)
    mails = [folder / name for name in export.numbered(files)]
    (whole,) = [folder / name for name in files if folder / name not in mails and name != export.COVER]
    try:
        git("apply", "--whitespace=nowarn", str(whole), cwd=linux)
        if now() != wanted:
            wrong.append(f"{whole.name} does not make the tree that ./quell tree makes")
    except QuellError as error:
        wrong.append(f"git apply does not take {whole.name}: {error.detail}")
    git("reset", "-q", "--hard", first, cwd=linux)
    try:
        export.am(linux, mails)
        if git("rev-parse", "HEAD^{tree}", cwd=linux).strip() != wanted:
            wrong.append("the series does not make the tree that ./quell tree makes")
        if git("rev-list", "--count", f"{first}..HEAD", cwd=linux).strip() != str(len(mails)):
            wrong.append("git am made another number of commits than there are patches")
    except QuellError as error:
        wrong.append(f"{error.message}: {error.detail}")
    return wrong


def _compile(linux: Path, one: series.Series, cache: Cache) -> tuple[list[str], int]:
    """Compile every prefix of the series that is checked out in ``linux``."""
    wrong = []
    last = git("rev-parse", "HEAD", cwd=linux).strip()
    lab = build.fragments("stock", tree.kernel_dir(), one.part.linux)
    options: list[str] = []
    for number, commit in enumerate(one.commits, 1):
        options += [name for name in commit.options if not name.startswith("ARCH_")]
        fragment = lab + "".join(f"CONFIG_{name}=y\n" for name in options)
        ui.note(f"compiling {number} of {len(one.commits)}: {commit.subject}")
        git("checkout", "-q", f"{last}~{len(one.commits) - number}", cwd=linux)
        log = cache.logs / f"export-{number}.log"
        log.unlink(missing_ok=True)
        try:
            # Some options depend on those of later commits.
            build.compile_tree(
                linux, fragment, "export", cache, log, all_taken=number == len(one.commits)
            )
        except QuellError as error:
            wrong.append(f"after {commit.name}: {error.message}\n{error.detail}\nlog: {log}")
    return wrong, len(one.commits)
