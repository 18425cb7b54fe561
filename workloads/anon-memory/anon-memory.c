// SPDX-License-Identifier: GPL-2.0-only
/*
 * anon-memory: faults and memory in use of mm/folio_order.c: beside a full page cache,
 * after most of the memory was given back, after fork, and with several threads. Usage:
 *
 *	anon-memory --megabytes N FILE
 *	anon-memory --heaps PROGRAM
 *
 * FILE is larger than memory and read first. Then, each in a process and a memory cgroup of
 * its own (kb is memory.current, anonymous_kb RssAnon, both a second later):
 *
 *   warm		N MB are filled from one end: faults, and the time per page
 *   given_back	15 of 16 pages are given back
 *   rewritten	N MB are filled, a child is forked and ends, 15 of 16 pages are rewritten: also
 *		faults
 *
 * Then 2 and 4 threads fill and unmap 16 MB each for a second: pages per second.
 *
 * --heaps: also each in a cgroup:
 *
 *   stack	64 threads have used 4 to 256 KB of their stacks
 *   sparse	32 tables of 2 MB from calloc(), 64 random entries written in each
 *   go		PROGRAM (heap.go), which keeps values of many sizes
 */
#define WORKLOAD "anon-memory"
#include "../workload.h"
#include <stdatomic.h>

#define BLOCK		16			/* pages */
#define THREAD_BYTES	(16UL << 20)

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

/* NAME_kb: memory in use. NAME_anonymous_kb: what @pid has mapped. */
static void report_later(const char *name, pid_t pid)
{
	char figure_name[64];

	sleep(1);
	snprintf(figure_name, sizeof(figure_name), "%s_kb", name);
	figure(figure_name, cgroup_kb("memory.current"), "kB");
	snprintf(figure_name, sizeof(figure_name), "%s_anonymous_kb", name);
	figure(figure_name, (double)anonymous_kb(pid), "kB");
}

static void run_alone(void (*what)(size_t bytes), size_t bytes)
{
	if (alone()) {
		what(bytes);
		exit(0);
	}
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
	report_later("given_back", getpid());
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
	report_later("rewritten", getpid());
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

#define STACKS		64
#define TABLES		32
#define TABLE_BYTES	(2UL << 20)
#define ENTRIES		64

static pthread_barrier_t used;

static void __attribute__((noinline)) use_stack(unsigned long bytes)
{
	volatile char frame[2048];

	frame[0] = (char)bytes;
	if (bytes > sizeof(frame))
		use_stack(bytes - sizeof(frame));
	frame[1] = frame[0];
}

static void *run_stack(void *arg)
{
	use_stack(4096UL << (uintptr_t)arg % 7);
	pthread_barrier_wait(&used);
	pause();
	return NULL;
}

static void stacks(size_t unused)
{
	pthread_t thread;

	(void)unused;
	pthread_barrier_init(&used, NULL, STACKS + 1);
	for (uintptr_t i = 0; i < STACKS; i++)
		start_thread(&thread, run_stack, (void *)i);
	pthread_barrier_wait(&used);
	report_later("stack", getpid());
}

static void sparse(size_t unused)
{
	uint64_t x = 88172645463325252ULL;

	(void)unused;
	for (int i = 0; i < TABLES; i++) {
		char *table = calloc(1, TABLE_BYTES);

		if (!table)
			die("No memory for a table.");
		for (int k = 0; k < ENTRIES; k++) {
			x = x * 6364136223846793005ULL + 1442695040888963407ULL;
			*(volatile uint64_t *)(table + (x >> 33) % TABLE_BYTES / 64 * 64) = x;
		}
	}
	report_later("sparse", getpid());
}

static const char *go_program;

static void run_go(size_t unused)
{
	int to[2], from[2], status;
	char text[8] = "";
	pid_t pid;

	(void)unused;
	if (pipe(to) || pipe(from))
		die("Cannot make a pipe: %s.", strerror(errno));
	pid = fork();
	if (pid < 0)
		die("Cannot fork: %s.", strerror(errno));
	if (!pid) {
		dup2(to[0], STDIN_FILENO);
		dup2(from[1], STDOUT_FILENO);
		close(to[1]);
		execl(go_program, go_program, NULL);
		die("Cannot run %s: %s.", go_program, strerror(errno));
	}
	close(from[1]);
	if (read(from[0], text, sizeof(text) - 1) <= 0 || strcmp(text, "ready\n"))
		die("%s did not say that it is ready.", go_program);
	report_later("go", pid);
	close(to[1]);
	if (waitpid(pid, &status, 0) != pid || status)
		die("%s ended with %#x.", go_program, status);
}

int main(int argc, char **argv)
{
	size_t bytes;

	if (argc == 3 && !strcmp(argv[1], "--heaps")) {
		go_program = argv[2];
		run_alone(stacks, 0);
		run_alone(sparse, 0);
		run_alone(run_go, 0);
		return 0;
	}
	if (argc != 4 || strcmp(argv[1], "--megabytes"))
		die("usage: anon-memory --megabytes N FILE | --heaps PROGRAM");
	bytes = parse_number("--megabytes", argv[2], 1, 4096) << 20;
	read_all(argv[3]);
	run_alone(give_back, bytes);
	run_alone(rewrite, bytes);
	run_threads(2);
	run_threads(4);
	return 0;
}
