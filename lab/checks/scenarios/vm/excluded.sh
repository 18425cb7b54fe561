# SPDX-License-Identifier: GPL-2.0-only
# After mount.sh: make the kernel write files by itself.
case NAME in
space-cache)
	make_btrfs space_cache=v1
	head -c 64M /dev/zero > $M/file
	sync
	;;
relocation)
	make_btrfs nospace_cache
	head -c 1M /dev/zero > $M/file
	btrfs balance start --full-balance $M >/dev/null
	;;
atomic-write)
	make f2fs
	$T $M 1 'after an atomic'
	;;
swapon)
	make ext4
	head -c 4M /dev/zero > $M/swap
	chmod 600 $M/swap
	mkswap $M/swap
	sync
	swapon $M/swap
	swapoff $M/swap
	;;
esac
