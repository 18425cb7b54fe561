# SPDX-License-Identifier: GPL-2.0-only
# Readers read and records are written until the power is cut.
PATH=$PATH:/usr/sbin:/sbin
mount /dev/vda /mnt || exit 2
(while READ /mnt/data >/dev/null; do :; done; echo 'wrong: a reader ended') &
RECORDS write /mnt FILES
