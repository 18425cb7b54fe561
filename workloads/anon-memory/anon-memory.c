// SPDX-License-Identifier: GPL-2.0-only
/*
 * anon-memory: faults and memory in use of mm/folio_order.c: beside a full page cache,
 * after most of the memory was given back, after fork, and with several threads. Usage:
 *
 *	anon-memory --megabytes N FILE
 *
 * FILE is larger than memory and read first. Then, each in a process and a memory cgroup of
 * its own (memory.current is the memory in use):
 *
 *   warm		N MB are filled from one end: faults, and the time per page
 *   given_back	15 of 16 pages are given back: kB in use a second later
 *   rewritten	N MB are filled, a child is forked and ends, 15 of 16 pages are rewritten:
 *		kB in use a second later, and faults
 *
 * Then 2 and 4 threads fill and unmap 16 MB each for a second: pages per second.
 */
#define WORKLOAD "anon-memory"
#include "../workload.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK		16			/* pages */
#define THREAD_BYTES	(16UL << 20)
#define CGROUP		"/sys/fs/cgroup/"
#define OURS		CGROUP "anon-memory/"

static void read_all(const char *path)
{
	static char buffer[1 << 20];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got;

	if (fd < 0)
		die("Cannot open %s: %s.", path, strerror(errno));
	while ((got = read(fd, buffer, sizeof(buffer))) > 0)
		;
	if (got < 0)
		die("Cannot read %s: %s.", path, strerror(errno));
	close(fd);
}

static char *map(size_t bytes)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		die("Cannot map %zu MB: %s.", bytes >> 20, strerror(errno));
	return at;
}

static void fill(char *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += PAGE_BYTES)
		*(volatile uint64_t *)(at + i) = i + 1;
}

/* A second from now. */
static double in_use_kb(void)
{
	FILE *f;
	double bytes;

	sleep(1);
	f = fopen(OURS "memory.current", "re");
	if (!f || fscanf(f, "%lf", &bytes) != 1)
		die("Cannot read memory.current: %s.", strerror(errno));
	fclose(f);
	return bytes / 1024;
}

/* In a process and a cgroup of its own. */
static void alone(void (*what)(size_t bytes), size_t bytes)
{
	int status;
	pid_t pid;

	if (mkdir(OURS, 0755))
		die("Cannot make the cgroup %s: %s.", OURS, strerror(errno));
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		die("Cannot fork: %s.", strerror(errno));
	if (!pid) {
		write_file(OURS "cgroup.procs", "0");
		what(bytes);
		exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		die("A part of the workload ended with %#x.", status);
	/* Its last memory is freed later. */
	for (int tries = 0; rmdir(OURS) && tries < 100; tries++)
		usleep(50000);
}

static void give_back(size_t bytes)
{
	char *at = map(bytes);
	uint64_t before = minor_faults(), start = now_ns();

	fill(at, bytes);
	figure("warm_ns_per_page", (double)(now_ns() - start) / (double)(bytes / PAGE_BYTES), "ns");
	figure("warm_faults", (double)(minor_faults() - before), "faults");
	for (size_t i = 0; i < bytes; i += BLOCK * PAGE_BYTES)
		if (madvise(at + i + PAGE_BYTES, (BLOCK - 1) * PAGE_BYTES, MADV_DONTNEED))
			die("MADV_DONTNEED failed: %s.", strerror(errno));
	figure("given_back_kb", in_use_kb(), "kB");
}

static void rewrite(size_t bytes)
{
	char *at = map(bytes);
	uint64_t before;
	int status;
	pid_t pid;

	fill(at, bytes);
	pid = fork();
	if (pid < 0)
		die("Cannot fork: %s.", strerror(errno));
	if (!pid)
		_exit(0);
	if (waitpid(pid, &status, 0) != pid || status)
		die("The child ended with %#x.", status);
	before = minor_faults();
	for (size_t i = 0; i < bytes; i += PAGE_BYTES)
		if (i / PAGE_BYTES % BLOCK)
			*(volatile uint64_t *)(at + i) = i;
	figure("rewrite_faults", (double)(minor_faults() - before), "faults");
	figure("rewritten_kb", in_use_kb(), "kB");
}

static atomic_bool stop;
static atomic_ullong pages_done;

static void *fill_again(void *arg)
{
	(void)arg;
	while (!atomic_load(&stop)) {
		char *at = map(THREAD_BYTES);

		fill(at, THREAD_BYTES);
		munmap(at, THREAD_BYTES);
		atomic_fetch_add(&pages_done, THREAD_BYTES / PAGE_BYTES);
	}
	return NULL;
}

static void run_threads(unsigned int nr)
{
	uint64_t start = now_ns();
	pthread_t thread[4];
	char name[32];

	atomic_store(&stop, false);
	atomic_store(&pages_done, 0);
	for (unsigned int i = 0; i < nr; i++)
		if (pthread_create(&thread[i], NULL, fill_again, NULL))
			die("Cannot start a thread.");
	sleep(1);
	atomic_store(&stop, true);
	for (unsigned int i = 0; i < nr; i++)
		pthread_join(thread[i], NULL);
	snprintf(name, sizeof(name), "threads%u_pages_per_s", nr);
	figure_more(name, (double)atomic_load(&pages_done) /
		    ((double)(now_ns() - start) / (double)NSEC_PER_SEC), "pages/s");
}

int main(int argc, char **argv)
{
	size_t bytes;

	if (argc != 4 || strcmp(argv[1], "--megabytes"))
		die("usage: anon-memory --megabytes N FILE");
	bytes = parse_number("--megabytes", argv[2], 1, 4096) << 20;
	write_file(CGROUP "cgroup.subtree_control", "+memory");
	read_all(argv[3]);
	alone(give_back, bytes);
	alone(rewrite, bytes);
	run_threads(2);
	run_threads(4);
	return 0;
}
