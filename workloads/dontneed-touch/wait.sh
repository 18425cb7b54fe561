#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# How long who flushes the TLBs of other CPUs waits, from the tracepoint
# early_ack:early_ack_wait, with early acknowledgment off and on in turn. On a
# Quell kernel, as root, with gcc:  ./quell run -- sh workloads/dontneed-touch/wait.sh
# Leaves the switch and tracefs as they were.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
switch=/sys/kernel/mm/quell/early_ack/enabled
[ -w $switch ] || { echo "$0: needs root, and a kernel with early acknowledgment" >&2; exit 1; }
temp=$(mktemp -d /dev/shm/wait.XXXXXX)
was=$(cat $switch)
finish() {
	echo "$was" > $switch
	rmdir "$temp/tracing/instances/wait" || :
	umount "$temp/tracing" && rm -r "$temp"
}
trap finish EXIT
trap 'exit 1' INT TERM HUP
mkdir "$temp/tracing"
mount -t tracefs tracefs "$temp/tracing"
trace=$temp/tracing/instances/wait
mkdir "$trace"
echo 8192 > "$trace/buffer_size_kb"
gcc -O2 -static -pthread -o "$temp/touch" "$here/dontneed-touch.c"

echo "wait in ns, the sender's own flush included"
echo "pages early_ack  flushes      10%   median      90%"
for round in 1 2 3; do
	for pages in 1 8 33; do
		for on in 0 1; do
			echo $on > $switch
			echo > "$trace/trace"
			echo 1 > "$trace/events/early_ack/early_ack_wait/enable"
			"$temp/touch" --pages $pages --iterations 3000 > /dev/null
			echo 0 > "$trace/events/early_ack/early_ack_wait/enable"
			sed -n "s/.*early_ack_wait: pages=$pages duration=\([0-9]*\).*/\1/p" "$trace/trace" |
				sort -n | awk -v pages=$pages -v on=$on '{ v[NR] = $1 } END {
					printf "%5d %9d %8d %8d %8d %8d\n", pages, on, NR,
						v[int(NR / 10) + 1], v[int(NR / 2) + 1], v[int(NR * 9 / 10) + 1] }'
		done
	done
done
