# SPDX-License-Identifier: GPL-2.0-only
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import fails
import report_samples
from quell import results
from quell.errors import UsageError
from quell.paths import Cache


def test_round_trip(tmp_path: Path) -> None:
    cache, whole = Cache(tmp_path), report_samples.result()
    with results.new_folder(cache) as first, results.new_folder(cache) as second:
        assert first != second
        assert list(results.kept(cache)) == []  # nothing is finished
        results.save(first, whole)
    assert [folder for folder, _ in results.kept(cache)] == [first]
    assert results.load(first) == results.load(first / "result.json") == json.loads(json.dumps(whole))


def test_a_folder_goes_when_interrupted_and_stays_when_a_run_fails(tmp_path: Path) -> None:
    for error, left in ((KeyboardInterrupt, 0), (UsageError, 0), (results.ResultError, 1)):
        cache = Cache(tmp_path / error.__name__)
        with pytest.raises(error), results.new_folder(cache):
            raise error("x")
        assert len(list(cache.results.iterdir())) == left


def test_what_is_rejected(tmp_path: Path) -> None:
    for content, says in (
        ("{", "no JSON"),
        ('{"schema": NaN}', "no JSON"),
        ("[]", "no result of quell compare"),
        (b"\xff", "no JSON"),
        ('{"schema": "quell.figures/1"}', "no result of quell compare"),
        ('{"schema": "quell.results/1"}', "form quell.results/1 of another version.*measure again"),
        ('{"schema": "quell.results/2"}', "is damaged"),
    ):
        (tmp_path / "result.json").write_bytes(content if isinstance(content, bytes) else content.encode())
        fails(results.ResultError, says, results.load, tmp_path)
    fails(results.ResultError, "cannot be read", results.load, tmp_path / "old")


def test_damage_is_named(tmp_path: Path) -> None:
    def broken(*path: Any, value: Any) -> str:
        whole = copy.deepcopy(report_samples.result())
        where: Any = whole
        for key in path[:-1]:
            where = where[key]
        where[path[-1]] = value
        file = tmp_path / "result.json"
        file.write_text(json.dumps(whole))
        caught = fails(results.ResultError, None, results.load, file)
        return caught.message

    assert "$.comparisons[0].cpus" in broken("comparisons", 0, "cpus", value="two")
    assert "no figure 'nosuch'" in broken("comparisons", 0, "shown", value=["nosuch"])
    assert "not those of its sides" in broken("sides", 1, "name", value="other")
    assert "environment" in broken("environment", value=None)
    assert "`times`" in broken("environment", "accelerator", value={"name": "tcg", "reason": "x"})
    for where in (("comparisons", 0, "cpus"), ("environment", "host", "memory_kb")):
        for value in (0, 10**309):
            assert "count that is none" in broken(*where, value=value)
