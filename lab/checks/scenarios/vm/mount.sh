# SPDX-License-Identifier: GPL-2.0-only
# A file system on /mnt, from an image in memory.
set -e
PATH=$PATH:/usr/sbin:/sbin
I=/dev/shm/image M=/mnt T=PROGRAM

# make TYPE [OPTIONS]
make() {
	truncate -s 400M $I
	mkfs.$1 $I >/dev/null 2>&1
	mount -o loop $2 $I $M
}

# read_only COMMAND: it makes the image of the selftest's files in /dev/shm/src.
read_only() {
	mkdir /dev/shm/src
	"$T" --make /dev/shm/src
	"$@" >/dev/null
	mount -o loop,ro $I $M
}

# on_file TYPE: mount the image itself, not a loop device. tmpfs cannot be below it.
on_file() {
	umount $M
	mkdir /dev/shm/ram
	mount -t ramfs ram /dev/shm/ram
	mv $I /dev/shm/ram
	# mount(8) would set up a loop device.
	perl -e 'my ($i, $m, $t) = @ARGV; syscall(165, $i, $m, $t, 1, 0) and die $!' /dev/shm/ram/image $M $1
}

# A block group smaller than 100M has no free space cache. mkfs.btrfs has -O instead of -R after
# version 6.2.
make_btrfs() {
	truncate -s 4G $I
	for o in R O; do
		mkfs.btrfs -f -$o ^free-space-tree $I >/dev/null 2>&1 && break
	done
	mount -o loop,$1 $I $M
}
