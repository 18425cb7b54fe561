# SPDX-License-Identifier: GPL-2.0-only
"""What ``quell report`` is made of: reading results, charts as SVG, the page."""
