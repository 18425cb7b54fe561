# SPDX-License-Identifier: GPL-2.0-only
"""Torture test of lazy unmap flush, and attacks of all mechanisms, on the intact debug kernel (torture.py)."""

import pytest

from checks import steps
from checks.cases import settle
from checks.torture import INTACT, VARIANTS, Attack, Bench

_INTACT_S = 60
_VARIANT_S = 15
_FULL_READS = 10**8
# Seconds that a guest may take beyond the torture itself, to boot, prepare files and stop.
_MARGIN_S = 150


@pytest.mark.parametrize(
    "attack",
    [pytest.param(one, marks=pytest.mark.full if one.append else (), id=one.title()) for one in INTACT],
)
def test_selftest_finds_nothing(debug_bench: Bench, attack: Attack) -> None:
    """A test that fails on the intact kernel cannot catch a mutation."""
    settle(debug_bench.intact(attack.title(), attack))


def test_torture(debug_bench: Bench, full: bool) -> None:
    """A minute, or until _FULL_READS reads are checked."""
    args = f"--reads {_FULL_READS}" if full else f"--seconds {_INTACT_S}"
    settle(debug_bench.torture("intact", args, 4 * 3600 if full else _INTACT_S + _MARGIN_S))


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant(debug_bench: Bench, variant: str) -> None:
    """A shorter time with other boot parameters."""
    # A busy host does less work in a second.
    seconds = _VARIANT_S * steps.patience()
    settle(debug_bench.torture(variant, f"--seconds {seconds}", seconds + _MARGIN_S, VARIANTS[variant]))
