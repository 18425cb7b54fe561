#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# The system-call fuzzer trinity with memory calls: no reader sees wrong data, and every task can be
# killed. Usage, as root in a guest:
#
#	trinity.sh DATA TRINITY SECONDS SEED READER...
#
# DATA is a folder on ext4 with the file "data", which READER checks all the time. trinity runs as
# nobody in a memory cgroup: it reads that file and writes its own. A failed reader and an
# unkillable task print "not ok: WHY". The last line is "calls: N".

CALLS="mmap munmap mremap mprotect madvise process_madvise mlock mlock2 munlock mlockall munlockall
mincore msync remap_file_pages migrate_pages move_pages mbind set_mempolicy get_mempolicy
set_mempolicy_home_node userfaultfd memfd_create memfd_secret process_vm_readv process_vm_writev
pkey_mprotect pkey_alloc pkey_free vmsplice"
# One seed per round: an OOM kill of trinity ends only its round.
ROUND_S=120
# Seconds for a killed task's end.
DYING_S=120
USER=65534

data=$1 trinity=$2 seconds=$3 seed=$4
shift 4
cd /run/work || exit
rm -f done wrong
# trinity maps more memory than the guest has.
G=/sys/fs/cgroup/fuzz
mkdir $G && echo 96M > $G/memory.max || exit
mkswap /dev/ram0 >/dev/null && swapon /dev/ram0
echo 1 > /proc/sys/vm/unprivileged_userfaultfd
W=$data/fuzz
mkdir -p $W/victims
head -c 2M /dev/urandom > $W/victims/own
chown -R $USER $W
ln $data/data $W/victims/read

# An unknown call would end this trinity. It does not call fork and clone.
"$trinity" -L > known 2>&1
only=
for call in $CALLS; do
	grep -q " $call : .*64-bit" known && only="$only -c $call"
done

wrong() { echo "not ok: $*"; : > wrong; }
now() { read up rest < /proc/uptime; echo ${up%.*}; }
end=$(($(now) + seconds))

read_all() {
	while [ ! -e done ]; do
		sh -c 'echo -1000 > /proc/self/oom_score_adj; exec "$@"' sh "$@" >/dev/null 2>said &
		echo $! > reading
		wait $!
		code=$?
		# The last reader is killed.
		[ -e done ] && [ ! -s said ] && break
		[ $code = 0 ] || { wrong "the reader: exit code $code: $(cat said)"; break; }
	done
}
read_all "$@" & reader=$!

calls=0
while left=$((end - $(now))); [ $left -gt 0 ] && [ ! -e wrong ]; do
	[ $left -lt $ROUND_S ] || left=$ROUND_S
	echo "trinity with seed $seed"
	# Sockets crash this trinity where there is no network.
	(
		cd $W && echo 0 > $G/cgroup.procs && echo 1000 > /proc/self/oom_score_adj &&
		exec setpriv --reuid=$USER --regid=$USER --clear-groups timeout -s INT -k 20 $left \
			"$trinity" -q -l off -a64 -C 4 -s $seed --disable-fds=sockets,perf,drm \
			-V $W/victims $only
	) > out 2>&1
	code=$?
	pkill -KILL -u $USER
	grep -v 'Marking\|futex:' out | cut -c 1-200 | tail -n 40
	echo "trinity ended with $code"
	more=$(sed -En 's/^\[main\] (Ran )?([0-9]+) (iterations|syscalls).*/\2/p' out | tail -n 1)
	calls=$((calls + ${more:-0}))
	seed=$((seed + 1))
	for second in $(seq $DYING_S); do
		pgrep -u $USER -r D,R,S >/dev/null || break
		sleep 1
	done
	if pgrep -u $USER -r D,R,S >/dev/null; then
		wrong "cannot be killed: $(pgrep -a -u $USER -r D,R,S | tr '\n' ' ')"
		echo w > /proc/sysrq-trigger
	fi
done
: > done
kill "$(cat reading)"
wait $reader
echo "calls: $calls"
[ ! -e wrong ]
