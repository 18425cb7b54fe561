# SPDX-License-Identifier: GPL-2.0-only
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guests import KERNELS
from quell import machine, results, workload
from quell.paths import Cache

RESULT: dict[str, Any] = {"schema": results.SCHEMA, "environment": {}, "comparisons": []}


def test_round_trip(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert results.latest(cache) is None
    first, second = results.new_folder(cache), results.new_folder(cache)
    assert first != second
    assert results.latest(cache) is None  # nothing is finished
    results.save(first, RESULT)
    assert results.latest(cache) == first
    assert results.load(first) == results.load(first / "result.json") == RESULT


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "no JSON"),
        ("[]", "no result of quell compare"),
        ('{"schema": 1}', "no result of quell compare"),
        ('{"schema": "quell.figures/1"}', "no result of quell compare"),
        ('{"schema": "quell.results/99"}', "has version 99 .* reads version 1 only"),
        ('{"schema": "quell.results/1", "environment": {}}', "it has no comparisons"),
    ],
)
def test_what_is_rejected(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(results.ResultError, match=says):
        results.load(tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(results.ResultError, match="cannot be read"):
        results.load(tmp_path)


def test_series_hash(tmp_path: Path) -> None:
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "series").write_text("a.patch\n")
    before = results.series_hash(tmp_path)
    assert before == results.series_hash(tmp_path)
    (tmp_path / "patches" / "series").write_text("b.patch\n")
    assert before != results.series_hash(tmp_path)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "qemu_version", lambda: "7.2.22")
    monkeypatch.setattr(workload, "compiler_version", lambda: "gcc 12")
    environment = results.environment(
        kernels=KERNELS,
        accelerator=machine.Accelerator("tcg", "no /dev/kvm"),
        deterministic=True,
        runs=3,
        boot_parameters={"stock": [], "quell": ["quell=off"]},
        workloads={"tiny": {"version": 1}},
    )
    assert environment["kernel_source"] == "6.12.117"
    assert environment["kernels"]["quell"]["boot_parameters"] == ["quell=off"]
    assert "instructions" in environment["accelerator"]["times"]
    assert json.loads(json.dumps(environment)) == environment
