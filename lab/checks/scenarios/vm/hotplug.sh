# SPDX-License-Identifier: GPL-2.0-only
# Memory goes and comes while a program runs that checks its data.
BLOCKS
WORK & work=$!
gone=0
# On a slow host blocks may stay busy: go on, up to 12 rounds.
for round in $(seq 12); do
	[ $round -gt 4 ] && [ $gone -ge 4 ] || blocks
done
wait $work || exit
echo "$gone blocks went offline" >&2
[ $gone -ge 4 ]
