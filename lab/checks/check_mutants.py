# SPDX-License-Identifier: GPL-2.0-only
"""Mutation testing: a test must catch each mutation of the debug kernel (check_torture.py)."""

import pytest

from checks.cases import settle
from checks.check_torture import ATTACKS, Bench, mutant_names
from quell import source

# In code that newer versions of Linux do not reach: they have it themselves.
_FIRST_ONLY = ("FOLIO_REUSE_SHARED", "RMAP_LOSE_MARKER", "RMAP_DROP_USED")


def test_each_is_listed(debug_bench: Bench) -> None:
    """The kernel has the mutations of its header."""
    assert debug_bench.mutants() == mutant_names() != []


@pytest.mark.parametrize("which", ATTACKS)
def test_nothing_without_a_mutation(debug_bench: Bench, which: str) -> None:
    """A find on the intact kernel would prove nothing."""
    settle(debug_bench.intact(which, ATTACKS[which]))


@pytest.mark.parametrize("name", mutant_names())
def test_mutant(debug_bench: Bench, origin: source.Source, name: str) -> None:
    """A survivor is a failure."""
    if name in _FIRST_ONLY and origin.linux != source.DEFAULT:
        pytest.skip(f"Linux {origin.linux} has that code itself")
    settle(debug_bench.mutant(name))
