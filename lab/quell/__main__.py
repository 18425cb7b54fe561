# SPDX-License-Identifier: GPL-2.0-only
"""``python -m quell``."""

import sys

from quell.cli import main

sys.exit(main(sys.argv[1:]))
