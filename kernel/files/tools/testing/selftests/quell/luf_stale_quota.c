// SPDX-License-Identifier: GPL-2.0-only
/* R3: a file becomes a quota file in its window. */
#include <sys/quota.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "luf_stale.h"

#define QFMT_VFS_V1	4

/* The device of @file. */
static bool find_device(const char *file, char *device, int size)
{
	char link[64], target[256];
	struct stat st;
	ssize_t len;

	if (stat(file, &st))
		return false;
	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(st.st_dev),
		 minor(st.st_dev));
	len = readlink(link, target, sizeof(target) - 1);
	if (len < 0)
		return false;
	target[len] = '\0';
	snprintf(device, size, "/dev/%s", strrchr(target, '/') + 1);
	return true;
}

/* R3: the kernel writes to it without write access. */
void switch_quota_on(void)
{
	/* struct v2_disk_dqheader, v2_disk_dqinfo of version 1: two blocks, no users. */
	static const uint32_t head[] = { 0xd9c01f11, 1, 604800, 604800, 0, 2, 0, 0 };
	char device[64];
	long parked, flushes;
	struct companion c;
	void *map;
	int fd, err;

	if (!find_device(path, device, sizeof(device))) {
		test_skip("a disk", "luf_stale quota");
		return;
	}
	fill_file(path, 0);
	fd = must_open(path, O_RDWR);
	if (pwrite(fd, head, sizeof(head), 0) != sizeof(head) || fsync(fd))
		die(path);
	close(fd);
	hold_windows();
	map = map_file(path, MAP_SHARED);
	companion_start(&c, map);
	for (int i = 0; i < 10; i++) {
		flushes = vm_counter("luf_flush");
		parked = park_again(map);
		if (vm_counter("luf_flush") == flushes)
			break;
	}
	flushes = vm_counter("luf_write");
	err = quotactl(QCMD(Q_QUOTAON, USRQUOTA), device, QFMT_VFS_V1, path);
	flushes = vm_counter("luf_write") - flushes;
	companion_stop(&c);
	if (!err)
		quotactl(QCMD(Q_QUOTAOFF, USRQUOTA), device, 0, NULL);
	test_result(!err && parked >= PAGES / 2 && flushes == 1,
		    "luf_stale quota: %ld pages deferred, %ld flushes, error %d",
		    parked, flushes, err);
	release_windows();
	munmap(map, SIZE);
	unlink(path);
	fill_file(path, OLD);
}
