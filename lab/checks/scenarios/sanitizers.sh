# SPDX-License-Identifier: GPL-2.0-only
# LOAD, then the leaks and the kernel's log. kmemleak reports objects that are some seconds old; a second
# scan removes false positives.
failed=0
# With swap.
workload() {
	mkswap /dev/ram0 >/dev/null && swapon /dev/ram0
	"$@" || failed=1
}
LOAD
L=/sys/kernel/debug/kmemleak
if [ -w $L ]; then
	off=
	for i in 1 2; do sleep 6; echo scan > $L || off=1; done
	echo '@quell log leaks'; cat $L
	[ -z "$off" ] || echo 'unreferenced object unknown: kmemleak is off'
fi
echo '@quell log'; dmesg
exit $failed
