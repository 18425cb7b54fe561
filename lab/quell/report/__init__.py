# SPDX-License-Identifier: GPL-2.0-only
"""The parts of ``quell report``: results, charts as SVG, the page."""
