# SPDX-License-Identifier: GPL-2.0-only
"""The parts of ``quell test``, as modules for pytest: ``check_NAME.py`` has the marker ``NAME``."""
