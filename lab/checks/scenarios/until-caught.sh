# SPDX-License-Identifier: GPL-2.0-only
# Run PROGRAMS until one fails or the ledger complains.
seconds() { read up idle < /proc/uptime; echo $((${up%.*} - start)).${up#*.}; }
start=0; start=$(seconds); start=${start%.*}
! dmesg | grep -q ' not ok [0-9]' || { echo "# VIOLATION: by KUnit after $(seconds) s"; exit 1; }
PREPARE
export TAP_STOP=1
look() {
	echo "@quell test $1"
	FOLDER/$*
	failed=$?
	read violations < /sys/module/luf_debug/parameters/violations
	[ $violations = 0 ] || { echo "# VIOLATION: by ledger after $(seconds) s"; exit 1; }
	[ $failed = 1 ] && { echo "# VIOLATION: by $1 after $(seconds) s"; exit 1; }
}
LOOKS
exit 0
