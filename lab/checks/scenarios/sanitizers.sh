# SPDX-License-Identifier: GPL-2.0-only
# LOAD, then the leaks and the kernel's log. kmemleak reports objects that are some seconds old; a second
# scan removes false positives.
failed=0
LOAD
L=/sys/kernel/debug/kmemleak
if [ -w $L ]; then
	for i in 1 2; do sleep 6; echo scan > $L; done
	echo '@quell log leaks'; cat $L
fi
echo '@quell log'; dmesg
exit $failed
