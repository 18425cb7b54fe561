#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# collect.sh PACKAGES BYTES OUT
#
# Put into OUT what the guest needs of sysbench, so that it reads nothing of it
# over 9p: bin/sysbench, its libraries in lib/, and in files/ the files that it
# writes to, BYTES together. PACKAGES is where its package is unpacked, or / if
# that is installed.
set -eu

fail()
{
	echo "sysbench-mmap: $*" >&2
	exit 1
}

[ $# -eq 3 ] || fail "usage: collect.sh PACKAGES BYTES OUT"
root=${1%/}
libraries=$(find "$root/lib" "$root/usr/lib" -maxdepth 1 -type d -name '*-linux-gnu' \
	2>/dev/null | tr '\n' ':')
program=$root/usr/bin/sysbench
[ -x "$program" ] || program=$(command -v sysbench) || fail "There is no sysbench."

mkdir -p "$3/bin" "$3/lib" "$3/files"
cp -L "$program" "$3/bin/sysbench"
LD_LIBRARY_PATH=$libraries ldd "$program" > "$3/libraries"
! grep 'not found' "$3/libraries" >&2 || fail "sysbench lacks a library."
sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' "$3/libraries" |
	while read -r library; do
		cp -L "$library" "$3/lib/"
	done
rm "$3/libraries"
cd "$3/files"
LD_LIBRARY_PATH=$libraries "$program" fileio --file-num=16 --file-total-size="$2" prepare > /dev/null ||
	fail "sysbench cannot make its files."
[ -s test_file.15 ] || fail "sysbench has made no files."
