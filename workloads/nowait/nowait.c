// SPDX-License-Identifier: GPL-2.0-only
/*
 * nowait: GFP_NOWAIT allocations at a steady rate while two threads read a mapped file
 * larger than memory. R4 of mm/luf.c: deferred-free memory must not fail them. Usage:
 *
 *	nowait --make PATH BYTES | PATH
 *
 * Idle-priority threads of the readers' mm spin on all CPUs: no CPU leaves the mm or is
 * idle. A direct write with RWF_NOWAIT to an empty block of a RAM disk allocates a page
 * with GFP_NOWAIT (brd_insert_page()), and fails with EAGAIN. After LAP_PAGES all are given
 * back.
 *
 * Figures: failed allocations of PAGES, the least free memory, and the pages read.
 */
#define WORKLOAD "nowait"
#include "../mapped-file.h"
#include <linux/fs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>

#define READERS		2
#define MAX_CPUS	64
#define RAM_DISK	"/dev/ram0"
#define PAGES		49152
#define LAP_PAGES	4096
/* About 16,000 pages a second in bursts, like a network card. */
#define BURST		32
#define PAUSE_NS	2000000

static struct file_set set = { .files = 1 };
static atomic_int stop;
static _Atomic uint64_t pages_read;
static char block[PAGE_BYTES] __attribute__((aligned(PAGE_BYTES)));

static void *read_file(void *arg)
{
	uint64_t from = set.pages * (uintptr_t)arg / READERS;

	atomic_fetch_add(&pages_read, read_until(&set, from, &stop));
	return NULL;
}

static void *spin(void *arg)
{
	struct sched_param none = { 0 };
	cpu_set_t cpu;

	CPU_ZERO(&cpu);
	CPU_SET((uintptr_t)arg, &cpu);
	if (sched_setaffinity(0, sizeof(cpu), &cpu) ||
	    sched_setscheduler(0, SCHED_IDLE, &none))
		die("Cannot stay on a CPU: %s.", strerror(errno));
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		;
	return NULL;
}

/* In kB. */
static uint64_t free_kb(void)
{
	struct sysinfo info;

	if (sysinfo(&info))
		die("Cannot ask for free memory: %s.", strerror(errno));
	return info.freeram * info.mem_unit / 1024;
}

/* False: no page for block @i. */
static int take(int fd, uint64_t i)
{
	struct iovec io = { block, sizeof(block) };

	if (pwritev2(fd, &io, 1, (off_t)(i * PAGE_BYTES), RWF_NOWAIT) ==
	    (ssize_t)sizeof(block))
		return 1;
	if (errno != EAGAIN)
		die("Cannot write to " RAM_DISK ": %s.", strerror(errno));
	return 0;
}

static void give_back(int fd)
{
	uint64_t all[] = { 0, LAP_PAGES * PAGE_BYTES };

	if (ioctl(fd, BLKDISCARD, all))
		die("Cannot discard on " RAM_DISK ": %s.", strerror(errno));
}

/* Stops @threads at the end. */
static void measure(pthread_t *threads, uintptr_t nr)
{
	uint64_t failed = 0, least = UINT64_MAX, now;
	struct sched_param priority = { .sched_priority = 1 };
	struct timespec pause = { .tv_nsec = PAUSE_NS };
	int fd = open(RAM_DISK, O_RDWR | O_DIRECT | O_CLOEXEC);

	if (fd < 0)
		die("Cannot open " RAM_DISK ": %s.", strerror(errno));
	if (sched_setscheduler(0, SCHED_FIFO, &priority))
		die("Cannot take real-time priority: %s.", strerror(errno));
	for (uint64_t i = 0; i < PAGES; i++) {
		if (i % LAP_PAGES == 0)
			give_back(fd);
		failed += !take(fd, i % LAP_PAGES);
		if (i % BURST == BURST - 1) {
			now = free_kb();
			least = now < least ? now : least;
			nanosleep(&pause, NULL);
		}
	}
	give_back(fd);
	close(fd);
	atomic_store(&stop, 1);
	while (nr)
		pthread_join(threads[--nr], NULL);
	figure_more("pages_read", (double)pages_read, "pages");
	figure("nowait_failures", (double)failed, "count");
	figure_more("least_free_kb", (double)least, "kB");
}

int main(int argc, char **argv)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	pthread_t threads[READERS + MAX_CPUS];
	uintptr_t n = 0;

	make_if_asked(argc, argv);
	if (argc != 2 || argv[1][0] == '-')
		die("usage: " WORKLOAD " --make PATH BYTES, or " WORKLOAD " PATH");
	set.path = argv[1];
	map_set(&set, PROT_READ, MAP_SHARED);
	for (; n < READERS; n++)
		start_thread(&threads[n], read_file, (void *)n);
	for (uintptr_t cpu = 0; cpu < MAX_CPUS && cpu < (uintptr_t)cpus; cpu++)
		start_thread(&threads[n++], spin, (void *)cpu);
	wait_for_reclaim();
	measure(threads, n);
	return 0;
}
