# SPDX-License-Identifier: GPL-2.0-only
# Take each movable memory block offline and online once; count in $gone.
blocks() {
	for block in /sys/devices/system/memory/memory*; do
		case $(cat $block/valid_zones) in *Movable*) ;; *) continue;; esac
		timeout 10 sh -c "echo offline > $block/state" && gone=$((gone + 1))
		sleep 0.2
		echo online_movable > $block/state || :
	done
}
