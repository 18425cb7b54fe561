# SPDX-License-Identifier: GPL-2.0-only
# Memory goes and comes while a program runs that checks its data.
BLOCKS
WORK & work=$!
gone=0
for round in 1 2 3 4; do
	blocks
done
wait $work || exit
echo "$gone blocks went offline" >&2
[ $gone -ge 4 ]
