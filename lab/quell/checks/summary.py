# SPDX-License-Identifier: GPL-2.0-only
"""What ``quell test`` ran, for other programs: KTAP, JUnit's XML; and what need not run again."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quell import build, prereq, qemu, source
from quell.checks import Case, CheckResult, lab
from quell.errors import UsageError
from quell.paths import Cache, repo_root, write_atomic

# What the result of a part depends on, besides the kernel source and the system: all of this,
_INPUTS = ("docs", "kernel", "lab", "models", "workloads", "README.md", "quell")
# but for parts that only compile, boot and look: texts and the lab's own tests are nothing to them.
_LAB = ("lab/quell", "lab/requirements.txt", "quell")
_GUESTS = ("kernel", "workloads", *_LAB)
_INPUTS_OF = {
    "models": ("models", *_LAB),
    **dict.fromkeys(("checkpatch", "w1", "builds", "coccinelle"), ("kernel", *_LAB)),
    **dict.fromkeys(
        ("kunit", "vm", "torture", "mutants", "selftests", "stress", "faults", "programs", "fuzz", "sanitizers",
         "distro"),
        _GUESTS,
    ),
}
# XML cannot have these, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Part:
    """A part that ran: its result, and how long it took in seconds.

    ``earlier`` is when it passed, if it was not run again.
    """

    name: str
    result: CheckResult
    seconds: float
    earlier: str = ""

    def cases(self) -> tuple[Case, ...]:
        """Its single checks; one for all where it only knows how many there are."""
        result = self.result
        if self.earlier:
            why = f"passed on {self.earlier} with the same inputs"
            return (Case(self.name, "skipped", why),)
        if result.cases:
            return result.cases
        counts = f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped"
        if result.failed:
            return (Case(self.name, "failed", f"{counts}\n{result.details}".strip(), self.seconds),)
        status = "passed" if result.passed or not result.skipped else "skipped"
        return (Case(self.name, status, counts, self.seconds),)


def ktap(parts: Sequence[Part]) -> str:
    """All parts as KTAP, the checks of each as its subtests."""
    from quell.checks import ktap as one

    lines = ["KTAP version 1", f"1..{len(parts)}"]
    for number, part in enumerate(parts, 1):
        cases = part.cases()
        lines += [f"    # Subtest: {part.name}", textwrap.indent(one(cases), "    ").rstrip("\n")]
        bad = "not " if any(case.status == "failed" for case in cases) else ""
        skip = " # SKIP" if all(case.status == "skipped" for case in cases) else ""
        lines.append(f"{bad}ok {number} {part.name}{skip}")
    return "\n".join(lines) + "\n"


def write_junit(parts: Sequence[Part], file: Path) -> None:
    """All parts as JUnit's XML, a test suite each. Needs the packages of ``lab.install()``."""
    import junitparser

    xml = junitparser.JUnitXml("quell")
    for part in parts:
        suite = junitparser.TestSuite(part.name)
        for case in part.cases():
            item = junitparser.TestCase(_NOT_XML.sub("?", case.name), part.name, case.seconds)
            why = _NOT_XML.sub("?", case.why)
            first = why.partition("\n")[0]
            if case.status == "failed":
                failure = junitparser.Failure(first)
                failure.text = why
                item.result = [failure]
            elif case.status == "skipped":
                item.result = [junitparser.Skipped(first)]
            elif why:
                item.system_out = why
            suite.add_testcase(item)
        suite.time = part.seconds
        xml.add_testsuite(suite)
    xml.update_statistics()  # type: ignore[no-untyped-call]
    xml.write(str(file), pretty=True)


def prepare(files: Sequence[Path | None], junit: bool, cache: Cache) -> None:
    """Find out before anything runs that a summary cannot be written: UsageError."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise UsageError(f"{file} cannot be written: {file.absolute().parent} is no folder")
    if junit:
        lab.install(cache)


def inputs(part: str) -> str:
    """A digest of the kernel part, the lab, and all else here that ``part`` depends on."""
    digest = hashlib.sha256()
    root = repo_root()
    for name in _INPUTS_OF.get(part, _INPUTS):
        top = root / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            parts = path.relative_to(root).parts
            if path.is_file() and not any(p.startswith(".") or p == "__pycache__" for p in parts):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{'/'.join(parts)}\0{content}\0".encode())
    return digest.hexdigest()


def _record(cache: Cache, name: str, full: bool) -> Path:
    return cache.folder("checks") / f"passed-{name}{'-full' if full else ''}.json"


def _system(cache: Cache) -> str:
    """What a result depends on besides ``inputs``: the kernel source, compiler, linker and QEMU."""
    origin = source.present_source(cache)
    parts = [origin.key if origin else "no source"]
    if prereq.which("gcc") and prereq.which("ld"):
        parts.append(build.compiler_version())
    if prereq.which(qemu.NAME):
        parts.append(qemu.find(cache).version)
    return "; ".join(parts)


def remember(cache: Cache, name: str, full: bool, key: str) -> None:
    """Note that a part passed with the inputs ``key`` on this system, now."""
    record = {"inputs": key, "system": _system(cache), "when": time.strftime("%Y-%m-%d %H:%M")}
    write_atomic(_record(cache, name, full), json.dumps(record))


def passed_on(cache: Cache, name: str, full: bool, key: str) -> str:
    """When the part passed with the inputs ``key`` on this system; "" if it did not, or last with others."""
    try:
        record = json.loads(_record(cache, name, full).read_text())
        same = record["inputs"] == key and record["system"] == _system(cache)
        return str(record["when"]) if same else ""
    except (OSError, ValueError, KeyError):
        return ""
