#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# collect.sh KERNEL_SOURCE KERNEL_BUILD OUT
#
# Put all inputs for compiling a fixed part of the kernel into OUT, so that the
# guest need not read them over 9p:
#
#	src/	the C files and the headers they include from KERNEL_SOURCE
#	build/	the generated headers from KERNEL_BUILD
#	bin/	the host's gcc, cc1 and as; lib/ their shared libraries
#	flags	the flags of the kernel's makefiles, as a gcc @file
#	files	the C files, in the order they are compiled
#
# KERNEL_BUILD is a directory that `make O=` has prepared; the compiler's flags
# are those `make prepare` compiled kernel/bounds.c with.
set -eu

fail()
{
	echo "kernel-build: $*" >&2
	exit 1
}

[ $# -eq 3 ] || fail "usage: collect.sh KERNEL_SOURCE KERNEL_BUILD OUT"

# Small files that every configuration compiles, the longest first. A change of
# this list is a new version of the workload.
files="
	lib/hexdump.c
	kernel/range.c
	lib/list_sort.c
	lib/sort.c
	lib/llist.c
	lib/plist.c
"

source=$(cd "$1" && pwd -P) || fail "There is no kernel source in $1."
build=$(cd "$2" && pwd -P) || fail "There is no kernel build in $2."
mkdir -p "$3"
out=$(cd "$3" && pwd -P)

# The lab's ccache must not be taken for the compiler.
gcc=$(PATH=/usr/bin:/bin command -v gcc) || fail "There is no gcc in /usr/bin."

cmd=$build/kernel/.bounds.s.cmd
[ -r "$cmd" ] || fail "$build is not prepared: it has no kernel/.bounds.s.cmd."

# The tree as the makefiles named it. It may have moved since.
tree=$(sed -n 's|^source_kernel/bounds.s := \(.*\)/kernel/bounds.c$|\1|p' "$cmd")
[ -n "$tree" ] || fail "$cmd does not name the kernel tree: build with O=."
# It may be "..": for sed a pattern that means just this.
tree=$(printf '%s\n' "$tree" | sed 's/[].[*^$\]/\\&/g')

# Without the compiler's name (and ccache), the flags that name the file, and
# the dependency file.
flags=$(sed -n -e 's/ -DKBUILD_MODFILE=.*//' \
	-e 's/^savedcmd_[^ ]* := .*-Wp,-MMD,[^ ]*//p' "$cmd")
case $flags in
*-nostdinc*) ;;
*) fail "$cmd does not hold a compiler command of the known form." ;;
esac

mkdir -p "$out/src" "$out/build" "$out/bin" "$out/lib" "$out/tmp" "$out/objects"
printf '%s\n' "$flags" | sed "s|$tree/|../src/|g" > "$out/flags"

# The headers each file needs, found by the compiler itself.
printf '%s\n' "$flags" | sed "s|$tree/|$source/|g" > "$out/tmp/host-flags"
for file in $files; do
	echo "$file" >> "$out/files"
	(cd "$build" && "$gcc" "@$out/tmp/host-flags" '-DKBUILD_MODNAME="x"' \
		-M "$source/$file") || fail "$file cannot be preprocessed."
done | tr -s ' \\' '\n\n' | grep -v -e ':$' -e '^$' | sort -u > "$out/tmp/needed"

sed -n "s|^$source/||p" "$out/tmp/needed" |
	tar -C "$source" -cf - -T - | tar -C "$out/src" -xf -
grep -v '^/' "$out/tmp/needed" |
	tar -C "$build" -cf - -T - | tar -C "$out/build" -xf -
for file in $files; do
	[ -s "$out/src/$file" ] || fail "$file could not be copied."
done

# The compiler, and the libraries of all three programs.
cp -L "$gcc" "$out/bin/gcc"
for program in cc1 as; do
	path=$("$gcc" -print-prog-name=$program)
	path=$(PATH=/usr/bin:/bin command -v "$path") ||
		fail "gcc has no $program."
	cp -L "$path" "$out/bin/$program"
done
ldd "$out/bin/gcc" "$out/bin/cc1" "$out/bin/as" |
	sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
	while read -r library; do
		cp -L "$library" "$out/lib/"
	done
rm -f "$out/tmp/host-flags" "$out/tmp/needed"
