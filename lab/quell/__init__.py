# SPDX-License-Identifier: GPL-2.0-only
"""Quell's lab: builds stock and Quell kernels, boots both, and compares them."""
