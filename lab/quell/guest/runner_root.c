// SPDX-License-Identifier: GPL-2.0-only
/* The runner's file systems: root, staged programs, data, disks, swap; and its network. */
#define _GNU_SOURCE
#include "runner_root.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <unistd.h>

#define DATA_DIR	"/run/quell/data"
#define STAGE_DIR	"/run/quell/bin"
#define DISK_DIR	"/run/quell/disk"

int may_mount(const char *source, const char *target, const char *type,
		     unsigned long flags, const char *data)
{
	mkdir(target, 0755);
	return mount(source, target, type, flags, data);
}

static void must_mount(const char *source, const char *target, const char *type,
		       unsigned long flags, const char *data)
{
	if (may_mount(source, target, type, flags, data))
		fail("cannot mount %s on %s in the guest: %s", type, target,
		     errno == ENODEV ? "its kernel has no such file system" : strerror(errno));
}

static void may_link(const char *target, const char *path)
{
	if (symlink(target, path) && errno != EEXIST)
		fprintf(stderr, "quell-runner: no %s: %s\n", path, strerror(errno));
}

/* The 9p root has no /dev/console: 0 to 2 must not be reused. */
static void open_console(void)
{
	int fd;

	do {
		fd = open("/dev/console", O_RDWR);
	} while (fd >= 0 && fd < 2);
	if (fd > 2)
		close(fd);
}

void make_root(void)
{
	must_mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	must_mount("sys", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	may_mount("dev", "/dev", "devtmpfs", MS_NOSUID, "mode=0755");
	open_console();
	open_frames();
	must_mount("quell", "/run", "tmpfs", 0, "mode=0755,size=90%");
	mkdir("/run/upper", 0755);
	mkdir("/run/work", 0755);
	must_mount("root", "/run/root", "overlay", 0,
		   "lowerdir=/,upperdir=/run/upper,workdir=/run/work,xino=off");
	must_mount("/proc", "/run/root/proc", "none", MS_MOVE, NULL);
	must_mount("/sys", "/run/root/sys", "none", MS_MOVE, NULL);
	must_mount("/dev", "/run/root/dev", "none", MS_MOVE, NULL);
	if (chdir("/run/root") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
		fail("cannot change to the guest's overlay root: %s", strerror(errno));

	must_mount("run", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755");
	may_mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666");
	may_mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
	may_mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
	may_mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);
	may_link("/proc/self/fd", "/dev/fd");
	may_link("/proc/self/fd/0", "/dev/stdin");
	may_link("/proc/self/fd/1", "/dev/stdout");
	may_link("/proc/self/fd/2", "/dev/stderr");
}

void network_up(void)
{
	struct ifreq ifr = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd >= 0) {
		ioctl(fd, SIOCSIFFLAGS, &ifr);
		close(fd);
	}
	put("/proc/sys/kernel/hostname", "quell");
}

/* O_DIRECT keeps the guest's page cache empty. */
static void copy_disk(const char *from, const char *to)
{
	const size_t chunk = 1 << 20;
	int in = open(from, O_RDONLY | O_DIRECT | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_DIRECT | O_CLOEXEC);
	char *p = aligned_alloc(4096, chunk);
	ssize_t n;

	if (in < 0 || out < 0 || !p)
		fail("cannot open %s to copy %s to it: %s", to, from, strerror(errno));
	while ((n = read(in, p, chunk)) > 0)
		if (write(out, p, n) != n)
			fail("the data image does not fit into %s: %s", to, strerror(errno));
	if (n < 0)
		fail("cannot read %s: %s", from, strerror(errno));
	free(p);
	close(in);
	close(out);
}

void stage_program(const char *file)
{
	struct buf b = {};
	char path[300];
	const char *name = strrchr(file, '/');
	int fd;

	if (buf_file(&b, file))
		fail("cannot read %s in the guest: %s", file, strerror(errno));
	snprintf(path, sizeof(path), STAGE_DIR "/%s", name ? name + 1 : file);
	mkdir(STAGE_DIR, 0755);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	if (fd < 0)
		fail("cannot create %s in the guest: %s", path, strerror(errno));
	write_all(fd, b.p, b.len);
	close(fd);
	free(b.p);
}

static int mount_as(const char *dev, const char *at, const char *fs)
{
	unsigned long flags = MS_NOATIME | MS_SILENT;

	if (!strcmp(fs, "erofs") || !strcmp(fs, "squashfs"))
		flags |= MS_RDONLY;
	return may_mount(dev, at, fs, flags, strcmp(fs, "ext4") ? NULL : "noinit_itable");
}

void mount_data(void)
{
	static const char * const known[] = { "ext4", "xfs", "btrfs", "f2fs", "erofs", "squashfs" };
	char dev[300];

	if (!job.data)
		return;
	snprintf(dev, sizeof(dev), "/dev/%s", job.data);
	if (job.ram) {
		copy_disk(dev, "/dev/ram0");
		snprintf(dev, sizeof(dev), "/dev/ram0");
	}
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!mount_as(dev, DATA_DIR, known[i]))
			return;
	fail("no file system of the guest's kernel mounts %s", dev);
}

static void make_entry(const char *path, int is_folder)
{
	int fd;

	if (!access(path, F_OK))
		return;
	/* A link may point to a place that the guest lacks, as below /run. */
	unlink(path);
	if (is_folder) {
		if (mkdir(path, 0755))
			fail("cannot make the folder %s in the guest: %s", path, strerror(errno));
		return;
	}
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0)
		fail("cannot make the file %s in the guest: %s", path, strerror(errno));
	close(fd);
}

/* @path is a folder or an empty file. Makes its parents, too. */
static void make_path(char *path, int is_folder)
{
	for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = 0;
		make_entry(path, 1);
		*p = '/';
	}
	make_entry(path, is_folder);
}

void mount_disks(void)
{
	mkdir(DISK_DIR, 0755);
	for (int i = 0; i < job.diskc; i++) {
		char *fs = strchr(job.disk[i], ':'), *path = fs ? strchr(fs + 1, ':') : NULL;
		char dev[300], at[64], from[80];
		struct stat st;

		if (!path || path[1] != '/')
			fail("'%s' is not DEV:FS:PATH", job.disk[i]);
		*fs++ = 0;
		*path++ = 0;
		snprintf(dev, sizeof(dev), "/dev/%s", job.disk[i]);
		snprintf(at, sizeof(at), DISK_DIR "/%d", i);
		snprintf(from, sizeof(from), "%s/data", at);
		if (mount_as(dev, at, fs))
			fail("cannot mount %s on %s in the guest: %s", fs, at,
			     errno == ENODEV ? "its kernel has no such file system" : strerror(errno));
		if (stat(from, &st))
			fail("the disk for %s has no entry data: %s", path, strerror(errno));
		make_path(path, S_ISDIR(st.st_mode));
		if (mount(from, path, NULL, MS_BIND, NULL))
			fail("cannot bind the data to %s in the guest: %s", path, strerror(errno));
	}
}

/* O_DIRECT: past the page cache. */
static int fill(const char *dev, off_t bytes)
{
	static char zeros[1 << 20] __attribute__((aligned(4096)));
	int fd = open(dev, O_WRONLY | O_DIRECT | O_CLOEXEC);

	for (off_t at = 0; fd >= 0 && at < bytes; at += sizeof(zeros)) {
		size_t size = bytes - at < (off_t)sizeof(zeros) ? (size_t)(bytes - at) : sizeof(zeros);

		if (pwrite(fd, zeros, size, at) != (ssize_t)size)
			return -1;
	}
	return fd < 0 ? -1 : close(fd);
}

void swap_on(void)
{
	int is_zram = job.swap && !strcmp(job.swap, "zram");
	const char *dev = is_zram ? "/dev/zram0" : "/dev/ram1";
	uint32_t head[] = { 1, 0, 0 };
	char page[4096] = "", size[32];
	struct stat st;
	off_t bytes;
	int fd;

	if (!job.swap)
		return;
	/* The size is a boot parameter. */
	fd = open("/dev/ram1", O_RDONLY | O_CLOEXEC);
	bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
	close(fd);
	if (bytes <= 0 || (is_zram && stat(dev, &st)))
		fail("cannot swap to %s in the guest: its kernel does not have it", job.swap);
	snprintf(size, sizeof(size), "%lld", (long long)bytes);
	if ((is_zram && put("/sys/block/zram0/disksize", size)) ||
	    (!strcmp(job.swap, "zswap") && put("/sys/module/zswap/parameters/enabled", "1")))
		fail("cannot prepare %s in the guest: %s", job.swap, strerror(errno));

	/* A RAM disk never frees written blocks: take all memory now. */
	if (!is_zram && fill(dev, bytes))
		fail("cannot fill %s in the guest: %s", dev, strerror(errno));
	head[1] = bytes / sizeof(page) - 1;
	memcpy(page + 1024, head, sizeof(head));
	memcpy(page + sizeof(page) - 10, "SWAPSPACE2", 10);
	fd = open(dev, O_RDWR | O_CLOEXEC);
	if (fd < 0 || pwrite(fd, page, sizeof(page), 0) != sizeof(page) || fsync(fd) ||
	    close(fd) || swapon(dev, 0))
		fail("cannot swap to %s in the guest: %s", dev, strerror(errno));
}
