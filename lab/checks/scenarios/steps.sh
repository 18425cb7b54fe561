# SPDX-License-Identifier: GPL-2.0-only
# Run steps, one after the other (steps.py).
PATH=$PATH:/usr/sbin:/sbin
# For the steps' files: the guest's /tmp is the host's.
mkdir -m 1777 /run/work
SETUP
echo -1000 > /proc/self/oom_score_adj
# The kernel's clock, and its counts of pages: in $up, $parked and $stolen.
look() {
	parked=0 stolen=0
	read up rest < /proc/uptime
	while read name value; do
		case $name in
		luf_park) parked=$value;;
		pgsteal_kswapd|pgsteal_direct) stolen=$((stolen + value));;
		esac
	done < /proc/vmstat
}
run() {
	eval "$3" >/dev/null 2>&1
	look; from="$up $parked $stolen"
	echo "<4>quell step $1" > /dev/kmsg
	printf '\n@quell begin %s\n' $1
	setsid timeout -k 5 $2 sh -c "echo 0 > /proc/self/oom_score_adj; $4" </dev/null 2>&1 &
	step=$!
	# If even SIGKILL does not end it, the kernel shows where it hangs (w) and panics (c).
	setsid sh -c "sleep $(($2 + OVERDUE)); echo w > /proc/sysrq-trigger; echo c > /proc/sysrq-trigger" &
	guard=$!
	wait $step
	code=$?
	kill -s KILL -- -$guard -$step 2>/dev/null
	look
	printf '\n@quell end %s %s %s\n' $1 $code "$from $up $parked $stolen"
}
STEPS
true
