# SPDX-License-Identifier: GPL-2.0-only
"""Causes of shootdowns from kernel stacks."""

from pathlib import Path

import pytest

from quell.top.causes import CAUSES, RULES, classify, clean

_LINES = (Path(__file__).parent / "data/top-stacks.txt").read_text().splitlines()
STACKS = [line.split() for line in _LINES if line and not line.startswith("#")]


@pytest.mark.parametrize("words", STACKS, ids=[f"{n}-{w[0]}" for n, w in enumerate(STACKS)])
def test_stack(words: list[str]) -> None:
    cause, *stack = words
    for offset in ("", "+0x1f/0x230", "+306"):
        assert classify(tuple(one + offset for one in stack)) == cause


def test_every_cause_that_has_a_rule_has_a_stack() -> None:
    causes = {rule[0] for rule in RULES}
    assert causes == {words[0] for words in STACKS} - {"other"}
    assert causes | {"other", "unknown"} == set(CAUSES) and classify(()) == "unknown"


@pytest.mark.parametrize(("symbol", "name"), [
    ("zap_pte_range", "zap_pte_range"),
    ("move_ptes.isra.0+0x12/0x340", "move_ptes"),
    ("vms_clear_ptes.part.0", "vms_clear_ptes"),
    ("x.constprop.0.isra.1+0x4", "x"),
    ("__x64_sys_madvise+18", "sys_madvise"),
    ("__do_sys_brk", "sys_brk"),
    ("__ia32_sys_munmap+0x1/0x2", "sys_munmap"),
    ("xfs_free_eofblocks+0x5/0x90 [xfs]", "xfs_free_eofblocks"),
    ("do_vmi_munmap.cold", "do_vmi_munmap"),
])  # fmt: skip
def test_clean(symbol: str, name: str) -> None:
    assert clean(symbol) == name
