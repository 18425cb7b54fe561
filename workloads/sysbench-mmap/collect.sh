#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# collect.sh PACKAGES BYTES OUT
#
# Put sysbench into OUT, so that the guest reads nothing of it over 9p:
# bin/sysbench, its libraries in lib/, and in files/ the files that it writes to,
# BYTES together. PACKAGES is where its package is unpacked, or / if that is
# installed. After a change of redis/collect.sh the workload's version has to
# change, as only this file is looked at.
set -eu

fail()
{
	echo "sysbench-mmap: $*" >&2
	exit 1
}

[ $# -eq 3 ] || fail "usage: collect.sh PACKAGES BYTES OUT"
sh "${0%/*}/../redis/collect.sh" sysbench "$1" "$3"
mkdir "$3/files"
cd "$3/files"
LD_LIBRARY_PATH=$3/lib "$3/bin/sysbench" fileio --file-num=16 --file-total-size="$2" prepare > /dev/null ||
	fail "sysbench cannot make its files."
[ -s test_file.15 ] || fail "sysbench has made no files."
