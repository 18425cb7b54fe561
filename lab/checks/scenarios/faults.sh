# SPDX-License-Identifier: GPL-2.0-only
# Readers that check each page, and an event around them (faults.toml).
end=SECONDS; read up rest < /proc/uptime; end=$((${up%.*} + end))
running() { read up rest < /proc/uptime; [ ${up%.*} -lt $end ]; }
wrong() { echo "not ok: $*"; : > /run/work/wrong; }
BLOCKS

# inject KIND PROBABILITY SETTING=VALUE...: fault injection for tasks and disks that opted in, without
# kernel messages. The kernel counts "times" down, which shows the number of failures.
inject() {
	F=/sys/kernel/debug/$1 probability=$2
	shift 2
	for pair in verbose=0 interval=1 times=1000000000 space=0 "$@" probability=$probability; do
		echo ${pair#*=} > $F/${pair%=*} || wrong "cannot set $pair"
	done
}
fail() { for task in "$@"; do echo $on > $task/make-it-fail; done 2>/dev/null; }
kswapd() { for pid in $(pgrep kswapd); do fail /proc/$pid; done; }
# Allocations fail only in running readers and in kswapd (reclaim fails too). A failure in the 9p client
# would break the guest's root, one in exec kills the program.
fail_allocations() {
	on=1; kswapd; last=
	while running; do
		pid=$(cat /run/work/reading)
		read comm < /proc/$pid/comm && [ "$comm" = mapped-read ] && [ $pid = "$last" ] && fail /proc/$pid/task/*
		last=$pid
		echo 2 > /proc/sys/vm/drop_caches; sleep 0.3
	done
}
end_failing() {
	echo 0 > $F/probability; on=0; kswapd
	count=$((1000000000 - $(cat $F/times)))
}
# After read errors all data must be there.
all_there() {
	[ -s /run/work/deaths ] || wrong 'no read failed'
	echo 3 > /proc/sys/vm/drop_caches
	WORK >/dev/null 2>/run/work/said || wrong "after the errors: $(cat /run/work/said)"
}
oom_kills() { while read name value; do [ $name = oom_kill ] && echo $value; done < $1; }

count=0
# The readers' cgroup.
G=/sys/fs/cgroup
rm -f /run/work/wrong /run/work/passes /run/work/deaths /run/work/done
PREPARE
reader() {
	while running; do
		sh -c 'echo -1000 > /proc/self/oom_score_adj; echo 0 > $0/cgroup.procs; exec "$@"' $G WORK >/dev/null 2>/run/work/reader &
		echo $! > /run/work/reading
		wait $!
		code=$?
		[ $code = 0 ] && { echo pass >> /run/work/passes; continue; }
		# The last pass need not be complete.
		[ -e /run/work/done ] && [ ! -s /run/work/reader ] && break
		[ $code -gt 128 ] && echo "signal $((code - 128))" >> /run/work/reader
		echo x >> /run/work/deaths
		# Wrong content is never tolerated.
		if [ -z 'TOLERATE' ] || grep -qE 'holds|generation' /run/work/reader || ! grep -qE 'TOLERATE' /run/work/reader; then
			wrong "reader: exit code $code: $(cat /run/work/reader)"
		fi
	done
}
reader & reader=$!
torture=
if [ TORTURE = 1 ]; then
	STAGED/luf_torture DATA --seconds SECONDS >/run/work/torture 2>&1 & torture=$!
fi
EVENT
while running; do sleep 0.5; done
# On a slow host the first pass may still run.
for more in $(seq 90); do
	[ -s /run/work/passes ] || [ -s /run/work/deaths ] && break
	sleep 1
done
: > /run/work/done
kill $(cat /run/work/reading)
wait $reader
if [ -n "$torture" ]; then
	wait $torture || wrong "luf_torture: $(cat /run/work/torture)"
fi
AFTER
touch /run/work/passes /run/work/deaths
echo "events: $count, passes: $(wc -l < /run/work/passes), deaths: $(wc -l < /run/work/deaths)"
[ ! -e /run/work/wrong ]
