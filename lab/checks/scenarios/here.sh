# SPDX-License-Identifier: GPL-2.0-only
# compare --here: after a crash, signals, a command without mm work, and WORK. The lab comes from the
# host's root, its cache is in memory. One switch is not at its default.
export QUELL_CACHE=/dev/shm/quell PYTHONPATH=LAB PYTHONDONTWRITEBYTECODE=1
S=/sys/kernel/mm/quell
here='PYTHON -P -m quell compare --here --quiet'
state() { cat $S/*/enabled | tr -d '\n'; }
back() { [ $(state) = $before ] && echo back; }
echo 0 > $S/early_ack/enabled; before=$(state)
$here --runs 1 -- sh -c 'kill -SEGV $$' >/dev/null; echo crash $? $(back)
for signal in TERM INT; do
	# End the comparison once the switches have moved; a shell's background job ignores SIGINT.
	env --default-signal=INT $here -- sleep 99 & pid=$!
	while kill -0 $pid && [ $(state) = $before ]; do sleep 0.2; done
	kill -s $signal $pid; wait $pid; echo $signal $? $(back) $(pgrep -c sleep)
done
echo '#'
$here --json -- sh -c 'n=0; while [ $n -lt 1000 ]; do n=$((n+1)); done'
echo; echo '#'
$here --json -- WORK
