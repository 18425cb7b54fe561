# SPDX-License-Identifier: GPL-2.0-only
# The same objects as on the host, and a program that works.
export TMPDIR=$PWD
xargs -P 2 -I @ sh -c 'gcc -B ./bin/ FLAGS -c -o @.o @ || echo "not ok compiling @"' < sources
while read name; do echo "result $name $(sha256sum < $name.o | cut -d' ' -f1)"; done < sources
gcc -B ./bin/ -static -pthread -o read workloads/mapped-read/mapped-read.c.o || echo 'not ok linking'
./read --make data 33554432 && ./read --threads 2 data >/dev/null || echo 'not ok running'
