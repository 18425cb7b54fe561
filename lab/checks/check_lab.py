# SPDX-License-Identifier: GPL-2.0-only
"""The lab's own checks: its tests with pytest, its types with mypy."""

import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import pytest

from checks import steps
from checks.cases import Results
from quell import prereq, proc
from quell.paths import Cache, repo_root

_TIMEOUT_S = 900


def _run(argv: list[str | Path], env: Mapping[str, str]) -> proc.Result:
    lab = repo_root() / "lab"
    ours = {"PYTHONPATH": str(lab), "PYTHONDONTWRITEBYTECODE": "1"}
    ours |= {"NO_COLOR": "1", "TTY_COMPATIBLE": "0", "COLUMNS": "80"}
    limit = _TIMEOUT_S * steps.patience()
    return proc.run([sys.executable, "-m", *argv], cwd=lab, env={**ours, **env}, timeout=limit, check=False)


def run_tests(results: Results, name: str, folder: Path, env: Mapping[str, str] | None = None) -> None:
    """Run pytest on a folder or file below ``lab``, with ``env`` besides; report each test."""
    xml = folder / "junit.xml"
    tests = _run(["pytest", "-q", f"--junitxml={xml}", f"--basetemp={folder / 't'}", name], env or {})
    found = list(ET.parse(xml).iter("testcase")) if xml.exists() else []
    for case in found:
        title = f"{case.get('classname')}.{case.get('name')}"
        bad = [one for kind in ("failure", "error") for one in case.iter(kind)]
        if (skipped := case.find("skipped")) is not None:
            results.skip(title, skipped.get("message", ""))
        else:
            results.check(not bad, title, "\n".join(one.text or "" for one in bad))
    # pytest may have stopped before any test.
    if tests.returncode != 0 and not any(case.status == "failed" for case in results.cases):
        results.check(False, f"pytest {name}", tests.stdout + tests.stderr)


def test_tests(results: Results, folder: Path) -> None:
    """The tests of the lab. They compile, and they make repositories and patches."""
    prereq.ensure((*prereq.BUILD, *prereq.TOOLS))
    run_tests(results, "tests", folder)


def test_types(cache: Cache) -> None:
    """No complaint of mypy."""
    types = _run(["mypy", "--cache-dir", cache.folder("checks") / "mypy"], {})
    if types.returncode != 0:
        pytest.fail(types.stdout + types.stderr, pytrace=False)
