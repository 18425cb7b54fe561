# SPDX-License-Identifier: GPL-2.0-only
"""Compare fixed sizes of anonymous folios on stock Linux with Quell's own choice.

An administrator can set a fixed size on stock Linux, in
/sys/kernel/mm/transparent_hugepage/hugepages-SIZEkB/enabled. Ratios are to stock's
default, single pages. On Quell only large folios are switched on. For other sides,
use compare: ./quell compare -w fault --side ...
"""

from functools import partial

from quell.commands import compare

EXAMPLES = """\
./quell sizes
./quell sizes --workload redis --runs 6
./quell sizes --deterministic --workload fault --runs 1
./quell sizes --json > sizes.json
"""

add_arguments, main = partial(compare.add_arguments, name="sizes"), compare.main
