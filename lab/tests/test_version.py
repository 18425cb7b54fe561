# SPDX-License-Identifier: GPL-2.0-only
from __future__ import annotations

from pathlib import Path

from quell import version


def test_series_hash(tmp_path: Path) -> None:
    (tmp_path / "series").write_text("a.patch\n")
    before = version.series_hash(tmp_path)
    assert before == version.series_hash(tmp_path)
    (tmp_path / "series").write_text("b.patch\n")
    assert before != version.series_hash(tmp_path)
