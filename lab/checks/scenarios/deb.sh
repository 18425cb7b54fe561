# SPDX-License-Identifier: GPL-2.0-only
# The packages' kernel; each step prints a line if it succeeds. OUTSIDE is a module of its headers, or empty.
echo "release $(uname -r)"
cd /sys/kernel/mm/quell && for name in */; do [ -w $name/enabled ] && echo switch ${name%/}; done
modprobe -d ROOT MODULE && grep -q ^MODULE /proc/modules && echo loaded MODULE
[ -s /sys/kernel/btf/vmlinux ] && echo btf
outside=OUTSIDE
[ "$outside" ] && insmod $outside && rmmod outside && echo loaded outside
true
