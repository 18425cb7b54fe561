#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# collect.sh PROGRAM PACKAGES OUT - a program and its libraries, for a disk image
#
# PACKAGES is where Debian's packages lie unpacked, or / if they are installed. In the
# guest nothing is read over 9p then, and the libraries are those that it was
# packaged with.
set -eu

fail()
{
	echo "collect.sh: $*" >&2
	exit 1
}

[ $# -eq 3 ] || fail "usage: collect.sh PROGRAM PACKAGES OUT"
root=${2%/}
libraries=$(find "$root/lib" "$root/usr/lib" -maxdepth 1 -type d -name '*-linux-gnu' \
	2>/dev/null | tr '\n' ':')

# The server may be there under another name: Redis goes by the one it is called by.
case $1 in
redis-server) binary=redis-check-rdb ;;
*) binary=$1 ;;
esac
program=$root/usr/bin/$binary
[ -x "$program" ] || program=$(command -v "$binary") || fail "There is no $binary."

mkdir -p "$3/bin" "$3/lib"
cp -L "$program" "$3/bin/$1"
LD_LIBRARY_PATH=$libraries ldd "$program" > "$3/libraries"
! grep 'not found' "$3/libraries" >&2 || fail "$1 lacks a library."
sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' "$3/libraries" |
	while read -r library; do
		cp -L "$library" "$3/lib/"
	done
rm "$3/libraries"
