#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# How long who flushes the TLBs of other CPUs waits, from the tracepoint
# early_ack:early_ack_wait: percentiles and a histogram, with early acknowledgment
# off, on but without polls, and on, in turn. Then what becomes of single requests.
# On a Quell kernel, as root, with gcc:
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

echo mono > "$trace/trace_clock"
states="0:0 1:0 1:$polled"

# record PAGES EVENT...: the events while 1200 flushes are sent.
record() {
	pages=$1
	shift
	echo > "$trace/trace"
	for event; do
		echo 1 > "$trace/events/$event/enable"
	done
	"$temp/touch" --pages $pages --iterations 1200 > /dev/null
	for event; do
		echo 0 > "$trace/events/$event/enable"
	done
}

# In turn, so that a busy host slows down all of them.
for round in 1 2 3; do
	for pages in 1 8 33; do
		for state in $states; do
			echo "${state%:*}" > $switch
			echo "${state#*:}" > $polls
			record $pages early_ack/early_ack_wait
			sed -n "s/.*early_ack_wait: pages=$pages duration=\([0-9]*\).*/\1/p" "$trace/trace" \
				>> "$temp/$pages.$state"
		done
	done
done

# The state is that of the last round: on. A request is known by its csd until it is
# received, what is owed by the CPU. The trace has microseconds.
for pages in 1 8 33; do
	record $pages csd/csd_queue_cpu csd/csd_function_entry \
		early_ack/early_ack_ack early_ack/early_ack_flush
	awk -v pages=$pages -v acks="$temp/$pages.ack" -v flushes="$temp/$pages.flush" '
		function field(name) {
			if (!match($0, name "=[^ ]*"))
				return ""
			return substr($0, RSTART + length(name) + 1, RLENGTH - length(name) - 1)
		}
		!match($0, /\[[0-9]+\] [^ ]+ +[0-9]+\.[0-9]+:/) { next }
		{
			split(substr($0, RSTART, RLENGTH), head)
			cpu = head[1]
			now = head[3] * 1000000
		}
		/ csd_queue_cpu: / { queued[field("csd")] = now }
		/ csd_function_entry: / {
			sent[cpu] = queued[field("csd")]
			delete queued[field("csd")]
		}
		/ early_ack_ack: / {
			if (sent[cpu] && field("pages") == pages)
				print now - sent[cpu] > acks
			acked[cpu] = now
		}
		/ early_ack_flush: / {
			if (cpu in acked)
				print now - acked[cpu] > flushes
		}' "$trace/trace"
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

echo
echo "Single requests, with early acknowledgment, in us:"
echo "pages                               requests     10%   median      90%"
for pages in 1 8 33; do
	for part in "ack:request to acknowledgment" "flush:from there to the flush"; do
		sort -n "$temp/$pages.${part%%:*}" |
			awk -v what="$(printf "%5d %-29s" $pages "${part#*:}")" '
				{ v[NR] = $1 }
				END { printf "%s %9d %8.0f %8.0f %8.0f\n", what, NR, v[int(NR / 10) + 1],
					v[int(NR / 2) + 1], v[int(NR * 9 / 10) + 1] }'
	done
done
