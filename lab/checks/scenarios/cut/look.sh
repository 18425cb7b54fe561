# SPDX-License-Identifier: GPL-2.0-only
# After the cut: all durable records are there.
PATH=$PATH:/usr/sbin:/sbin
mount /dev/vda /mnt || exit 2
dmesg | grep -q 'vda.*recovery complete' && echo recovered
RECORDS check /mnt SYNCED || exit
READ /mnt/data >/dev/null || exit
umount /mnt && e2fsck -fn /dev/vda
