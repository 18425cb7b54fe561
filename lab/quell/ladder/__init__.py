# SPDX-License-Identifier: GPL-2.0-only
"""``./quell ladder``: the literature's table, made on this machine (docs/ladder.md)."""
