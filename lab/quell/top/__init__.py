# SPDX-License-Identifier: GPL-2.0-only
"""The live view of TLB shootdowns: who sends them, why, to whom, and what they cost."""
