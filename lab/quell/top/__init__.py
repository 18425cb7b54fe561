# SPDX-License-Identifier: GPL-2.0-only
"""``./quell top``. All of it, imports included, runs on Python 3.9 with its standard library alone."""
