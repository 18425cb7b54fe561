#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# How long who flushes the TLBs of other CPUs waits, from the tracepoint
# early_ack:early_ack_wait: percentiles and a histogram, with early acknowledgment
# off, on but without polls, and on, in turn. On a Quell kernel, as root, with gcc:
#	./quell run -- sh workloads/dontneed-touch/wait.sh
# Leaves the switch, polls and tracefs as they were.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
switch=/sys/kernel/mm/quell/early_ack/enabled
polls=/sys/kernel/mm/quell/early_ack/polls
[ -w $switch ] || { echo "$0: needs root, and a kernel with early acknowledgment" >&2; exit 1; }
temp=$(mktemp -d /dev/shm/wait.XXXXXX)
was=$(cat $switch)
polled=$(cat $polls)
finish() {
	echo "$was" > $switch
	echo "$polled" > $polls
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

states="0:0 1:0 1:$polled"

# In turn, so that a busy host slows down all of them.
for round in 1 2 3; do
	for pages in 1 8 33; do
		for state in $states; do
			echo "${state%:*}" > $switch
			echo "${state#*:}" > $polls
			echo > "$trace/trace"
			echo 1 > "$trace/events/early_ack/early_ack_wait/enable"
			"$temp/touch" --pages $pages --iterations 1200 > /dev/null
			echo 0 > "$trace/events/early_ack/early_ack_wait/enable"
			sed -n "s/.*early_ack_wait: pages=$pages duration=\([0-9]*\).*/\1/p" "$trace/trace" \
				>> "$temp/$pages.$state"
		done
	done
done

echo "The wait, the sender's own flush included, in ns:"
echo "pages early_ack polls  flushes      10%   median      90%"
for pages in 1 8 33; do
	for state in $states; do
		sort -n "$temp/$pages.$state" |
			awk -v what="$(printf "%5d %9s %5s" $pages "${state%:*}" "${state#*:}")" '
				{ v[NR] = $1 }
				END { printf "%s %8d %8d %8d %8d\n", what, NR, v[int(NR / 10) + 1],
					v[int(NR / 2) + 1], v[int(NR * 9 / 10) + 1] }'
	done
done

echo
echo "How many of 1000 waited so long, by early_ack:polls"
for pages in 1 8 33; do
	for state in $states; do
		sed "s/^/$pages $state /" "$temp/$pages.$state"
	done
done | awk -v states="$states" '
	function bin(ns) { return ns < 16000 ? int(ns / 1000) : ns < 32000 ? 16 : 17 }
	{ n[$1, $2]++; seen[$1, $2, bin($3)]++ }
	function row(p, i, b) {
		return n[p, i] ? 1000 * seen[p, i, b] / n[p, i] : 0
	}
	END {
		columns = split(states, state, " ")
		split("1 8 33", pages, " ")
		printf "%8s", "us"
		for (p = 1; p <= 3; p++)
			for (i = 1; i <= columns; i++)
				printf " %10s", pages[p] "p " state[i]
		for (b = 0; b <= 17; b++) {
			printf "\n%8s", b < 16 ? b "-" b + 1 : b == 16 ? "16-32" : "above"
			for (p = 1; p <= 3; p++)
				for (i = 1; i <= columns; i++)
					printf " %10.0f", row(pages[p], state[i], b)
		}
		printf "\n"
	}'
