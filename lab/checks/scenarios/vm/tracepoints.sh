# SPDX-License-Identifier: GPL-2.0-only
# Print how often each of EVENTS fires while the mechanisms are at work.
D=/dev/shm/trace; mkdir $D && mount -t tracefs tracefs $D && echo 8192 > $D/buffer_size_kb || exit
for event in EVENTS; do echo 1 > $(echo $D/events/*/$event/enable) || exit; done
# EARLY clears the buffer before its probe. Tests of their own, with more rounds, judge their results.
{ EARLY 100; LUF DATA 2 release; WRITEOUT 0.1; } > /dev/null
(
EXCLUDE
) > /dev/null || exit
for event in EVENTS; do
	# Only some of each: the buffer holds the last ones.
	echo $event $(grep -c " $event: " $D/trace)
done
