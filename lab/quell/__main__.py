# SPDX-License-Identifier: GPL-2.0-only
"""``python -m quell``."""

import sys

from quell import cli

if sys.stdout is not None:
    cli.name_output()
sys.exit(cli.main(sys.argv[1:]))
