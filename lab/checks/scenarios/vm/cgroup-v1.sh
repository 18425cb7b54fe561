# SPDX-License-Identifier: GPL-2.0-only
# A program that checks its data reaches the limit of a version 1 cgroup.
mount -t cgroup -o memory none /mnt && mkdir /mnt/it &&
echo 64M > /mnt/it/memory.limit_in_bytes && echo $$ > /mnt/it/cgroup.procs || exit
WORK || exit
[ $(cat /mnt/it/memory.failcnt) -gt 0 ] || { echo 'the limit was never hit' >&2; exit 1; }
