// SPDX-License-Identifier: GPL-2.0-only
/* Swap devices: see system.h. */
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/swap.h>

#include "system.h"

#define SWAP_MAGIC	"SWAPSPACE2"

static void make_swap(int fd, unsigned long bytes)
{
	static char page[PAGE];
	uint32_t head[] = { 1, bytes / PAGE - 1, 0 };

	memset(page, 0, PAGE);
	memcpy(page + 1024, head, sizeof(head));
	memcpy(page + PAGE - 10, SWAP_MAGIC, 10);
	if (pwrite(fd, page, PAGE, 0) != (ssize_t)PAGE)
		die("cannot write a swap header");
}

bool make_ram_swap(unsigned long least)
{
	int fd = open(RAM_DISK, O_RDWR | O_EXCL | O_CLOEXEC);
	bool empty = true;
	char head[PAGE];
	off_t bytes;

	if (fd < 0)
		return false;
	bytes = lseek(fd, 0, SEEK_END);
	if (bytes < (off_t)least || pread(fd, head, PAGE, 0) != (ssize_t)PAGE) {
		close(fd);
		return false;
	}
	if (memcmp(head + PAGE - 10, SWAP_MAGIC, 10))
		for (unsigned long i = 0; i < PAGE; i++)
			empty &= !head[i];
	if (empty) {
		make_swap(fd, bytes);
		fsync(fd);
	}
	/* swapon() fails with EBUSY else. */
	close(fd);
	return empty;
}

const char * const swap_names[] = { "ram", "loop", "file" };
const char *swap_file;

static struct swap_device {
	char path[256];		/* "" if unused */
	int fd;			/* keeps a loop device alive; -1: none */
	void *memory;		/* of a loop device, or NULL */
} swaps[SWAPS] = { { .fd = -1 }, { .fd = -1 }, { .fd = -1 } };

static void forget_swap(struct swap_device *swap)
{
	if (swap->fd >= 0)
		close(swap->fd);
	if (swap->memory)
		munmap(swap->memory, SWAP_MB << 20);
	*swap = (struct swap_device){ .fd = -1 };
}

static bool find_loop(struct swap_device *swap)
{
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), memory, number;
	struct loop_config config = { .info.lo_flags = LO_FLAGS_AUTOCLEAR };

	if (control < 0)
		return false;
	number = ioctl(control, LOOP_CTL_GET_FREE);
	close(control);
	if (number < 0)
		return false;
	snprintf(swap->path, sizeof(swap->path), "/dev/loop%d", number);
	memory = memfd_create("swap", MFD_CLOEXEC);
	if (memory < 0 || ftruncate(memory, SWAP_MB << 20))
		die("memfd_create");
	/*
	 * Populated and locked here, or the cgroup under test is charged for it and swaps
	 * it to itself.
	 */
	swap->memory = mmap(NULL, SWAP_MB << 20, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_POPULATE, memory, 0);
	if (swap->memory == MAP_FAILED || mlock(swap->memory, SWAP_MB << 20))
		die("memory for swap");
	make_swap(memory, SWAP_MB << 20);
	swap->fd = open(swap->path, O_RDWR | O_CLOEXEC);
	config.fd = memory;
	number = swap->fd < 0 ? -1 : ioctl(swap->fd, LOOP_CONFIGURE, &config);
	close(memory);
	return !number;
}

static bool find_ram(struct swap_device *swap)
{
	snprintf(swap->path, sizeof(swap->path), RAM_DISK);
	return make_ram_swap(SWAP_MB << 20);
}

static bool find_file(struct swap_device *swap)
{
	int fd = swap_file ? open(swap_file, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
	int error;

	if (fd < 0)
		return false;
	snprintf(swap->path, sizeof(swap->path), "%s", swap_file);
	error = posix_fallocate(fd, 0, SWAP_MB << 20);
	if (!error) {
		make_swap(fd, SWAP_MB << 20);
		error = fsync(fd);
	}
	close(fd);
	return !error;
}

bool swap_is_on(enum swap which)
{
	return swaps[which].path[0];
}

bool swap_off(enum swap which)
{
	struct swap_device *swap = &swaps[which];
	bool ok;

	if (!swap_is_on(which))
		return true;
	/* swapoff() looks for a leaked entry forever; SIGALRM ends it. */
	ok = !swapoff(swap->path);
	if (ok)
		forget_swap(swap);
	return ok;
}

bool swap_on_with(enum swap which, int flags)
{
	static bool (* const find[])(struct swap_device *swap) = { find_ram, find_loop, find_file };
	struct swap_device *swap = &swaps[which];

	if (find[which](swap) &&
	    !swapon(swap->path, SWAP_FLAG_PREFER | SWAP_FLAG_PRIO_MASK | flags))
		return true;
	forget_swap(swap);
	return false;
}

bool swap_on(enum swap which)
{
	return swap_on_with(which, 0);
}

static void on_alarm(int sig __always_unused)
{
}

bool swap_off_in_time(enum swap which)
{
	struct sigaction end = { .sa_handler = on_alarm }, before;
	bool ok;

	sigaction(SIGALRM, &end, &before);
	alarm(20);
	ok = swap_off(which);
	alarm(0);
	sigaction(SIGALRM, &before, NULL);
	return ok;
}
