# SPDX-License-Identifier: GPL-2.0-only
# Print the files that luf_exclude() sees.
mkdir /dev/shm/trace; mount -t tracefs tracefs /dev/shm/trace
echo 1 > /dev/shm/trace/events/luf/luf_exclude/enable
{
MAKE
} >&2
sed -n 's/.* luf_exclude: //p' /dev/shm/trace/trace | sort -u
