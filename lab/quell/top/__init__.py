# SPDX-License-Identifier: GPL-2.0-only
"""``./quell top``: initiators, causes, targets and cost of TLB shootdowns.

Everything here and in the modules it imports runs on Python 3.9 with its standard library alone.
"""
