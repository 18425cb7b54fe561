# SPDX-License-Identifier: GPL-2.0-only
"""Large anonymous folios: each fixed size on stock Linux, against Quell's own choice.

A fixed size is what an administrator can set on stock Linux, in
/sys/kernel/mm/transparent_hugepage/hugepages-SIZEkB/enabled. Ratios are to stock
with single pages, as it is by default. Of Quell only large folios are on. Other
sides, with --side of compare: ./quell compare -w fault --side ...
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
