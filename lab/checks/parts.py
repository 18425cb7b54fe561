# SPDX-License-Identifier: GPL-2.0-only
"""The report of ``quell test``: a line for each part, and its failures; and its record for ``--resume``."""

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path, PurePath

import pytest

from checks.cases import Case
from quell import build, prereq, qemu, source, ui, version
from quell.errors import UsageError
from quell.paths import Cache, repo_root, write_atomic

# The result of a part depends on the kernel source, the system, and these files.
_INPUTS = (
    "docs", "kernel", "lab", "models", "workloads", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "quell",
)
# Not an input, although it is in docs/.
_RECORD = "docs/full-test.md"
# All other parts only compile and boot. They do not depend on docs, the lab's own tests and claims, nor
# on checks and scenarios that none of their modules mentions.
_DEPEND_ON_ALL = ("lab", "report", "export", "models", "own", "deb")
_GUESTS = (
    "kernel", "workloads", "lab/quell", "lab/checks", "lab/pyproject.toml", "lab/requirements.txt",
    "lab/requirements-test.txt", "quell",
)  # fmt: skip
_CLAIMS = ("lab/quell/figures.toml", "lab/quell/published.toml")
# Only these parts run the lab's commands in guests (scenarios with "-m quell").
_RUN_COMMANDS = ("vm", "distro")
_COMMANDS = ("lab/quell/cli.py", "lab/quell/generated.py", "lab/quell/commands", "lab/quell/report", "lab/quell/top")


def _not_for(part: str) -> set[Path]:
    """Files that are no inputs of ``part``, if it only compiles and boots: claims, commands, what other parts use."""
    folder = repo_root() / "lab/checks"
    others = {*folder.glob("check_*.py"), *folder.glob("scenarios/*")}
    used = set(folder.glob("*.py")) - others | {folder / f"check_{part}.py"} & others
    while used:
        others -= used
        text = "".join(path.read_text() for path in used if path.suffix == ".py")
        used = {path for path in others if (f"{path.name}/" if path.is_dir() else path.name.removesuffix(".py")) in text}
    return others.union(repo_root() / name for name in (*_CLAIMS, *(() if part in _RUN_COMMANDS else _COMMANDS)))


def inputs(part: str) -> str:
    """A digest of all files in the repository that ``part`` depends on."""
    digest, root = hashlib.sha256(), repo_root()
    names, others = (_INPUTS, {root / _RECORD}) if part in _DEPEND_ON_ALL else (_GUESTS, _not_for(part))
    for name in names:
        for path in sorted((root / name).rglob("*")) if (root / name).is_dir() else [root / name]:
            parts = path.relative_to(root).parts
            hidden = any(word.startswith(".") or word == "__pycache__" for word in parts)
            if path.is_file() and not hidden and others.isdisjoint({path, *path.parents}):
                digest.update(f"{'/'.join(parts)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    return digest.hexdigest()


_HEAD = """<!-- SPDX-License-Identifier: GPL-2.0-only -->
# The last `./quell test{}`, part by part

Written by `./quell test --record FILE`. *Inputs* is a digest of the part's inputs: files of the repository, kernel source,
compiler and QEMU. Parts without a row have no recorded run. `--resume` runs a part again when its digest
is another one, or when it did not pass.

| part | passed | failed | skipped | took | when (UTC) | commit | inputs | why skipped |
|---|---:|---:|---:|---:|---|---|---|---|
"""


class Record:
    """The last result of each part: a file with a table, for readers and for ``--resume``.

    Without ``file`` it is in the cache, ignored if damaged; ``full``: for the long forms. UsageError for another file.
    """

    def __init__(self, cache: Cache, file: Path | None, full: bool) -> None:
        self._form = "-full" if full else ""
        self.file = file or cache.folder("checks") / f"record{self._form}.md"
        self._cache, self._commit = cache, version.quell(besides=_RECORD)
        self._head = _HEAD.format(" --full" if full else "")
        text = self.file.read_text(errors="replace") if self.file.exists() else ""
        if file and text and not text.startswith(_HEAD.partition("{")[0]):
            raise UsageError(f"--record should name a record or a new file, not {file}")
        lines = text.removeprefix(self._head).splitlines() if text.startswith(self._head) else []
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        self._rows = {row[0]: row for row in rows if len(row) == 9}

    def _digest(self, key: str) -> str:
        return hashlib.sha256(f"{key}; {self._head}; {_system(self._cache)}".encode()).hexdigest()[:12]

    def passed_on(self, name: str, key: str) -> str:
        """Date on which the part passed, if its last run had the inputs ``key`` and passed; else ""."""
        row = self._rows.get(name)
        return row[5] if row and row[1] != "0" and row[2] == "0" and row[7] == self._digest(key) else ""

    def _tests(self, name: str) -> Path:
        return self._cache.folder("checks") / f"{name}{self._form}.json"

    def tests(self, name: str, key: str) -> dict[str, tuple[float, list[Case]]]:
        """Seconds and results of the tests that did not fail before a run with the inputs ``key`` was interrupted."""
        try:
            said = json.loads(self._tests(name).read_text())
            known = said["tests"] if said["inputs"] == self._digest(key) else {}
            return {test: (seconds, [Case(*case) for case in cases]) for test, (seconds, cases) in known.items()}
        except (OSError, ValueError, LookupError, TypeError):
            return {}

    def keep_tests(self, name: str, key: str, tests: dict[str, tuple[float, list[Case]]]) -> None:
        """Record these tests, until their part ends."""
        rows = {one: (took, [(case.name, case.status, case.why) for case in had]) for one, (took, had) in tests.items()}
        write_atomic(self._tests(name), json.dumps({"inputs": self._digest(key), "tests": rows}))

    def forget_tests(self, name: str) -> None:
        """The part starts anew, or has ended."""
        self._tests(name).unlink(missing_ok=True)

    def write(self, name: str, cases: Sequence[Case], seconds: float, key: str) -> None:
        """Record the results of a part that just ran, with the inputs ``key``."""
        self.forget_tests(name)
        count = Counter(case.status for case in cases)
        why = Counter(" ".join(case.why.split()).replace("|", "/") for case in cases if case.status == "skipped")
        self._rows[name] = [
            name, *(str(count[word]) for word in ("passed", "failed", "skipped")), ui.duration(seconds),
            time.strftime("%Y-%m-%d %H:%M", time.gmtime()), self._commit, self._digest(key),
            "; ".join(f"{text} ({n})" for text, n in why.items()),
        ]  # fmt: skip
        write_atomic(self.file, self._head + "".join(f"| {' | '.join(row)} |\n" for row in self._rows.values()))


def _system(cache: Cache) -> str:
    """Further inputs of a result: the kernel source, compiler, linker and QEMU."""
    origins = [source.present_source(cache, linux) for linux in source.VERSIONS]
    parts = [origin.key if origin else "no source" for origin in origins]
    if prereq.which("gcc") and prereq.which("ld"):
        parts.append(build.compiler_version())
    if prereq.which(qemu.NAME):
        parts.append(qemu.find(cache).version)
    return "; ".join(parts)


# --- the report ----------------------------------------------------------------


def part_of(nodeid: str) -> str:
    """The part that a test belongs to."""
    return PurePath(nodeid.partition("::")[0]).stem.removeprefix("check_")


class Parts:
    """A plugin for pytest, instead of its own report; ``cases`` has the results of parts that have not ended.

    ``resume``: parts that passed with the same inputs are left out, and so are tests of a part that was
    interrupted. Without ``kept`` nothing is recorded.
    """

    def __init__(self, wanted: Sequence[str], kept: Record | None, resume: bool) -> None:
        # Before any part runs: a file that changes meanwhile has not been tested.
        self.keys = {part: inputs(part) for part in wanted}
        self.kept = kept
        self.count = Counter[str]()
        self.cases: dict[str, list[Case]] = {}
        self.earlier = dict.fromkeys(wanted, 0.0)
        self.known: dict[str, dict[str, tuple[float, list[Case]]]] = {}
        self.started = time.monotonic()
        for part, key in self.keys.items():
            if date := resume and kept and kept.passed_on(part, key):
                print(f"{part}: passed on {date} with the same inputs", flush=True)
            else:
                self.cases[part] = []
            if kept and not resume:
                kept.forget_tests(part)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.unregister(name="terminalreporter")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what passed before an interruption."""
        self.known = {part: self.kept.tests(part, self.keys[part]) if self.kept else {} for part in self.cases}
        gone = [item for item in items if item.nodeid in self.known[part_of(item.nodeid)]]
        for item in gone:
            seconds, cases = self.known[part_of(item.nodeid)][item.nodeid]
            self.cases[part_of(item.nodeid)] += cases
            self.earlier[part_of(item.nodeid)] += seconds
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=gone)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.cases[part_of(report.nodeid)].append(Case("its file", "failed", report.longreprtext))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            name = report.nodeid.partition("::")[2]
            self.cases[part_of(report.nodeid)].append(Case(name, report.outcome, why))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        part = part_of(item.nodeid)
        ui.note(f"--- {part}: {item.name}")
        before, start = len(self.cases[part]), time.monotonic()
        result = yield
        cases = self.cases[part][before:]
        # Not what was only skipped, as after another test's failure.
        if self.kept and {"passed"} <= {case.status for case in cases} <= {"passed", "skipped"}:
            self.known[part][item.nodeid] = time.monotonic() - start, cases
            self.kept.keep_tests(part, self.keys[part], self.known[part])
        if nextitem is None or part_of(nextitem.nodeid) != part:
            self._end(part)
        return result

    def _end(self, part: str) -> None:
        cases = self.cases.pop(part) or [Case(part, "failed", "nothing was tested")]
        for case in cases:
            if case.status == "failed":
                print(f"not ok: {case.name}\n{case.why}".rstrip("\n"))
        count = Counter(case.status for case in cases)
        took = time.monotonic() - self.started
        self.started += took
        took += self.earlier[part]
        print(f"{part}: {_sum(count)} in {ui.duration(took)}", flush=True)
        self.count += count
        if self.kept:
            self.kept.write(part, cases, took, self.keys[part])

    def finish(self) -> bool:
        """Print the sum; True if nothing failed. A part without any test has failed."""
        for part in list(self.cases):
            self._end(part)
        print(_sum(self.count))
        return not self.count["failed"]


def _sum(count: Counter[str]) -> str:
    return ", ".join(f"{count[word]} {word}" for word in ("passed", "failed", "skipped"))
