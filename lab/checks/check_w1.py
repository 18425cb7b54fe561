# SPDX-License-Identifier: GPL-2.0-only
"""Compile Quell's own objects with W=1, for each version of Linux: no warning about Quell's files."""

import pytest

from checks import own_code
from checks.cases import Results
from quell import source, tree
from quell.paths import Cache

pytestmark = pytest.mark.w1


@pytest.mark.parametrize("linux", source.VERSIONS)
def test_warnings(linux: str, results: Results, cache: Cache) -> None:
    """One result per object, and one per other file with a warning."""
    count, warnings = own_code.w1_warnings(source.debian_source(cache, linux), cache)
    found: dict[str, list[str]] = {}
    for text in warnings:
        found.setdefault(text.split(":")[0], []).append(text)
    objects = own_code.own_objects(tree.read_kernel_part(tree.kernel_dir(), linux).files)
    assert len(objects) == count
    for name in dict.fromkeys([*(name.removesuffix(".o") + ".c" for name in objects), *found]):
        results.check(name not in found, name, "\n".join(found.get(name, ())))
