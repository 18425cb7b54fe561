# SPDX-License-Identifier: GPL-2.0-only
import json
from pathlib import Path

import pytest

from conftest import fails
import report_samples
from quell import results
from quell.errors import QuellError, UsageError
from quell.paths import Cache


def test_round_trip(tmp_path: Path) -> None:
    cache, whole = Cache(tmp_path), report_samples.result()
    with results.new_folder(cache) as first, results.new_folder(cache) as second:
        assert first != second
        assert list(results.kept(cache)) == []  # nothing is finished
        results.save(first, whole)
    (second / results.FILE).write_text("{")
    assert list(results.kept(cache)) == [whole]
    assert results.load(first) == results.load(first / results.FILE) == json.loads(json.dumps(whole))


def test_a_folder_goes_when_interrupted_and_stays_when_a_run_fails(tmp_path: Path) -> None:
    for error, left in ((KeyboardInterrupt, 0), (UsageError, 0), (QuellError, 1)):
        cache = Cache(tmp_path / error.__name__)
        with pytest.raises(error), results.new_folder(cache):
            raise error("x")
        assert len(list(cache.results.iterdir())) == left


@pytest.mark.parametrize(("content", "says"), [
    (b"{", "JSON"),
    (b'{"schema": NaN}', "JSON"),
    (b"\xff", "JSON"),
    (b"[]", "Expected `object`"),
    (b'{"schema": "quell.results/1"}', "no result of this version .quell.results/2.: .*quell.results/1"),
    (b'{"schema": "quell.results/2"}', "missing required field"),
    (json.dumps({**report_samples.result(), "environment": None}).encode(), r"\$.environment"),
])  # fmt: skip
def test_rejected(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(content)
    fails(QuellError, says, results.load, tmp_path)
    fails(QuellError, "cannot be read", results.load, tmp_path / "old")
