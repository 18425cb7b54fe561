// SPDX-License-Identifier: GPL-2.0-only
/*
 * reclaim-large: the cost of unmapping folios per page, of small ones and of large ones
 * mapped by PTEs, without I/O. Measures mm/rmap_batch.c. Usage:
 *
 *	reclaim-large [--megabytes N] [--rounds N] [--only FIGURE] [--pressure FILE]
 *	reclaim-large --make FILE BYTES
 *
 *	unmap	MADV_PAGEOUT of clean folios in the swap cache that a pipe holds: unmapped,
 *		isolated and put back, not written or freed. The larger the folio, the
 *		larger the share of the unmap step. Shared memory takes the path of files
 *	out	the same without the pipe: freed
 *	move	move_pages() of fresh memory to another node, with the copying. Fresh, as a
 *		large folio moved by PTEs counts as partly mapped and is split the next time
 *
 * With --pressure, in a cgroup that is reclaimed as by a limit:
 *
 *	looked	cost of looking for references that each further process adds: (5 processes
 *		minus 1) / 4. The kernel looks more often at folios that one process has
 *		referenced, and counts that
 *	mapped	the same of the unmap step, of unreferenced folios. By the clock, not by
 *		instructions, either may be 0. "file" is FILE, on a file system with large
 *		folios, by readahead in order or by MADV_HUGEPAGE
 *
 * A second thread was on another CPU, now idle: flushes are deferred and come together, as
 * in programs with threads. "local" is without it.
 *
 * Each case is a process. sysfs keeps the folio sizes at the end: for guests only.
 */
#define WORKLOAD "reclaim-large"
#include "../workload.h"
#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define THP		"/sys/kernel/mm/transparent_hugepage/"
#define HUGE_BYTES	(2UL << 20)
#define SWAP_BYTES	(96UL << 20)
#define SLOTS		1024UL		/* pages of a pipe */
#define MOVE_ALL	4		/* MPOL_MF_MOVE_ALL */

static uint64_t pages = 4096;
static int swap_fd;

/* MADV_HUGEPAGE gives folios of @kb; 0: none. */
static void choose_folios(unsigned int kb, const char *file)
{
	static const unsigned int sizes[] = { 16, 32, 64, 128, 256, 512, 1024, 2048 };
	char path[128];

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		snprintf(path, sizeof(path), THP "hugepages-%ukB/%s", sizes[i], file);
		write_file(path, sizes[i] != kb ? "never" :
			  strcmp(file, "enabled") ? "advise" : "madvise");
	}
}

/* A block device: large folios do not go to a swap file whole. */
static void swap_on(void)
{
	struct loop_config config = { .info.lo_flags = LO_FLAGS_AUTOCLEAR };
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), number, memory;
	uint32_t head[] = { 1, SWAP_BYTES / PAGE_BYTES - 1, 0 };
	char path[64], page[PAGE_BYTES] = "";

	number = control < 0 ? -1 : ioctl(control, LOOP_CTL_GET_FREE);
	if (number < 0)
		die("There is no loop device: %s.", strerror(errno));
	close(control);
	memory = memfd_create("swap", MFD_CLOEXEC);
	memcpy(page + 1024, head, sizeof(head));
	memcpy(page + PAGE_BYTES - 10, "SWAPSPACE2", 10);
	if (memory < 0 || ftruncate(memory, SWAP_BYTES) ||
	    pwrite(memory, page, PAGE_BYTES, 0) != (ssize_t)PAGE_BYTES)
		die("Cannot make memory for swap: %s.", strerror(errno));
	config.fd = memory;
	snprintf(path, sizeof(path), "/dev/loop%d", number);
	/* The device lives while this is open. */
	swap_fd = open(path, O_RDWR | O_CLOEXEC);
	if (swap_fd < 0 || ioctl(swap_fd, LOOP_CONFIGURE, &config) || swapon(path, 0))
		die("Cannot swap to %s: %s.", path, strerror(errno));
	close(memory);
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("CPU %d is needed: %s.", cpu, strerror(errno));
}

/* --- A region of memory ------------------------------------------------------ */

struct region {
	unsigned int kb;	/* per folio */
	int shared;
	const char *file;	/* instead of anonymous memory */
	uint64_t *words;
	int kick[2], kicked[2];	/* to the other CPU's thread, and back */
	uint64_t looked;	/* run_mapped(): ns of one look at each page */
};

static uint64_t *word_of(const struct region *r, uint64_t page)
{
	return r->words + page * PAGE_BYTES / sizeof(uint64_t);
}

/* Aligned for a huge page, with room behind. */
static void *reserve(void)
{
	char *at = mmap(NULL, pages * PAGE_BYTES + 2 * HUGE_BYTES, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		die("Cannot map memory: %s.", strerror(errno));
	return (char *)(((uintptr_t)at + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1));
}

static void map_region(struct region *r)
{
	r->words = mmap(reserve(), pages * PAGE_BYTES, PROT_READ | PROT_WRITE,
			(r->shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_FIXED,
			-1, 0);
	if (r->words == MAP_FAILED)
		die("Cannot map memory: %s.", strerror(errno));
	madvise(r->words, pages * PAGE_BYTES, MADV_HUGEPAGE);
	for (uint64_t i = 0; i < pages; i++)
		*word_of(r, i) = i + 1;
	/* PTEs replace the huge mapping, as in zap. */
	for (uint64_t i = 0; r->kb == 2048 && i < pages; i += HUGE_BYTES / PAGE_BYTES)
		if (mprotect(word_of(r, i), PAGE_BYTES, PROT_READ) ||
		    mprotect(word_of(r, i), PAGE_BYTES, PROT_READ | PROT_WRITE))
			die("mprotect failed: %s.", strerror(errno));
	/* Keep khugepaged away. */
	madvise(r->words, pages * PAGE_BYTES, MADV_NOHUGEPAGE);
}

static void read_region(const struct region *r)
{
	for (uint64_t i = 0; i < pages; i++)
		if (*(volatile uint64_t *)word_of(r, i) != i + 1)
			die("Page %llu holds %llu.", (unsigned long long)i,
			    (unsigned long long)*word_of(r, i));
}

static void read_entries(const struct region *r, uint64_t *entries)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || pread(fd, entries, pages * 8, (uintptr_t)r->words / PAGE_BYTES * 8) !=
	    (ssize_t)(pages * 8))
		die("Cannot read /proc/self/pagemap: %s.", strerror(errno));
	close(fd);
}

static uint64_t present(const struct region *r)
{
	uint64_t *entries = map_anonymous(pages * 8), n = 0;

	read_entries(r, entries);
	for (uint64_t i = 0; i < pages; i++)
		n += entries[i] >> 63;
	munmap(entries, pages * 8);
	return n;
}

/* Consecutive frames show folios of the requested size. */
static void check_folios(const struct region *r)
{
	uint64_t *entries = map_anonymous(pages * 8), n = r->kb / 4, whole = 0, k;

	read_entries(r, entries);
	for (uint64_t i = 0; n && i < pages; i += n) {
		for (k = 1; k < n && entries[i + k] << 9 == (entries[i] + k) << 9; k++)
			;
		whole += k == n && entries[i] % n == 0;
	}
	munmap(entries, pages * 8);
	if (n && whole * n < pages * 9 / 10)
		die("Only %llu of %llu folios of %u KB could be had.",
		    (unsigned long long)whole, (unsigned long long)(pages / n), r->kb);
}

static void page_out(const struct region *r)
{
	if (madvise(r->words, pages * PAGE_BYTES, MADV_PAGEOUT))
		die("MADV_PAGEOUT failed: %s.", strerror(errno));
}

static void wait_for_writeback(void)
{
	struct timespec pause = { .tv_nsec = 1000000 };
	unsigned long long left = 1;
	char line[128];
	FILE *f;

	while (left) {
		nanosleep(&pause, NULL);
		f = fopen("/proc/vmstat", "re");
		if (!f)
			die("Cannot read /proc/vmstat: %s.", strerror(errno));
		while (fgets(line, sizeof(line), f))
			if (sscanf(line, "nr_writeback %llu", &left) == 1)
				break;
		fclose(f);
	}
}

/* A reference keeps a folio from being freed. */
static void hold(const struct region *r)
{
	uint64_t step = r->kb ? r->kb / 4 : 1, held = 0;
	int pipe_ends[2] = { -1, -1 };

	for (uint64_t i = 0; i < pages; i += step, held++) {
		struct iovec v = { word_of(r, i), 1 };

		if (held % SLOTS == 0 &&
		    (pipe(pipe_ends) ||
		     fcntl(pipe_ends[1], F_SETPIPE_SZ, (int)(SLOTS * PAGE_BYTES)) < 0))
			die("Cannot make a pipe: %s.", strerror(errno));
		if (vmsplice(pipe_ends[1], &v, 1, SPLICE_F_NONBLOCK) != 1)
			die("vmsplice failed: %s.", strerror(errno));
	}
}

/* --- The other CPU ----------------------------------------------------------- */

static void *visit(void *arg)
{
	struct region *r = arg;
	char byte;

	pin(1);
	while (read(r->kick[0], &byte, 1) == 1)
		if (write(r->kicked[1], &byte, 1) != 1)
			break;
	return NULL;
}

/* The mm was on the other CPU, which is idle then. */
static void touch_other_cpu(struct region *r)
{
	struct timespec pause = { .tv_nsec = 200000 };
	char byte = 0;

	if (write(r->kick[1], &byte, 1) != 1 || read(r->kicked[0], &byte, 1) != 1)
		die("The other thread has gone.");
	nanosleep(&pause, NULL);
}

/* --- Measurements ------------------------------------------------------------- */

/* In steps of HUGE_BYTES; returns the sum in ns. */
static uint64_t timed_page_out(struct region *r, int local)
{
	static char *scratch;
	uint64_t start, elapsed = 0, left;

	if (!scratch)
		scratch = map_anonymous(PAGE_BYTES);
	*scratch = 1;
	for (size_t at = 0; at < pages * PAGE_BYTES; at += HUGE_BYTES) {
		char *step = (char *)r->words + at;

		/*
		 * Settles the last step's deferred flush on all CPUs; an idle one leaves
		 * the mm with it. For another page: MADV_COLD of a part would split the
		 * folio.
		 */
		if (madvise(scratch, PAGE_BYTES, MADV_COLD))
			die("MADV_COLD failed: %s.", strerror(errno));
		if (!local)
			touch_other_cpu(r);
		start = now_ns();
		if (madvise(step, HUGE_BYTES, MADV_PAGEOUT))
			die("MADV_PAGEOUT failed: %s.", strerror(errno));
		elapsed += now_ns() - start;
	}
	left = present(r);
	if (left > pages / 20)
		die("%llu of %llu pages are still mapped.", (unsigned long long)left,
		    (unsigned long long)pages);
	return elapsed;
}

static uint64_t run_unmap(struct region *r, int local, uint64_t rounds)
{
	uint64_t elapsed = 0;

	map_region(r);
	check_folios(r);
	if (!r->shared) {
		page_out(r);
		wait_for_writeback();
		read_region(r);
	}
	hold(r);
	for (uint64_t i = 0; i < rounds; i++) {
		elapsed += timed_page_out(r, local);
		read_region(r);
	}
	check_folios(r);
	return elapsed;
}

/* Swap is up to date, and the folios are mapped. */
static void map_clean(struct region *r)
{
	map_region(r);
	check_folios(r);
	page_out(r);
	wait_for_writeback();
	read_region(r);
	check_folios(r);
}

static uint64_t run_out(struct region *r, int local, uint64_t rounds)
{
	uint64_t elapsed = 0;

	for (uint64_t i = 0; i < rounds; i++) {
		map_clean(r);
		elapsed += timed_page_out(r, local);
		munmap(r->words, pages * PAGE_BYTES);
	}
	return elapsed;
}

static uint64_t run_move(struct region *r, int local, uint64_t rounds)
{
	uint64_t step = r->kb ? r->kb / 4 : 1, n = pages / step, elapsed = 0, start;
	void **at = map_anonymous(n * sizeof(*at));
	int *nodes = map_anonymous(n * sizeof(*nodes));
	int *status = map_anonymous(n * sizeof(*status));

	for (uint64_t i = 0; i < rounds; i++) {
		uint64_t moved = 0;

		map_region(r);
		check_folios(r);
		for (uint64_t k = 0; k < n; k++) {
			at[k] = word_of(r, k * step);
			nodes[k] = 1;
			status[k] = -1;
		}
		if (!local)
			touch_other_cpu(r);
		start = now_ns();
		if (syscall(SYS_move_pages, 0, n, at, nodes, status, MOVE_ALL) < 0)
			die("move_pages failed: %s.", strerror(errno));
		elapsed += now_ns() - start;
		for (uint64_t k = 0; k < n; k++)
			moved += status[k] == nodes[k];
		if (moved < n * 9 / 10)
			die("Only %llu of %llu folios moved.", (unsigned long long)moved,
			    (unsigned long long)n);
		read_region(r);
		check_folios(r);
		munmap(r->words, pages * PAGE_BYTES);
	}
	return elapsed;
}

/* --- In several processes, under pressure -------------------------------------- */

#define PROCESSES	5

/* Unaligned: no huge mapping fits. */
static void map_file(struct region *r)
{
	char *at = (char *)reserve() + HUGE_BYTES / 2;
	int fd = open(r->file, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		die("Cannot open %s: %s.", r->file, strerror(errno));
	/* Without shadow entries, which would activate refaults. */
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	r->words = mmap(at, pages * PAGE_BYTES, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
	if (r->words == MAP_FAILED)
		die("Cannot map %s: %s.", r->file, strerror(errno));
	close(fd);
	madvise(r->words, pages * PAGE_BYTES,
		r->kb * 1024 == HUGE_BYTES ? MADV_HUGEPAGE : MADV_SEQUENTIAL);
	read_region(r);
	/* Sequential reads hide references from reclaim. */
	madvise(r->words, pages * PAGE_BYTES, MADV_NORMAL);
	check_folios(r);
}

static void make_file(const char *path, uint64_t bytes)
{
	uint64_t page[PAGE_BYTES / sizeof(uint64_t)] = { 0 };
	FILE *f = fopen(path, "we");

	for (uint64_t i = 0; f && i < bytes / PAGE_BYTES; i++) {
		page[0] = i + 1;
		if (fwrite(page, PAGE_BYTES, 1, f) != 1)
			break;
	}
	if (!f || ferror(f) || fclose(f))
		die("Cannot write %s: %s.", path, strerror(errno));
}

/* Pages look unused to reclaim. */
static void clear_references(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/clear_refs", pid);
	write_file(path, "1");
}

#define CGROUP	"/sys/fs/cgroup/"
#define OURS	CGROUP "reclaim-mapped/"

/* Reclaim takes this memory only. */
static void enter_cgroup(void)
{
	write_file(CGROUP "cgroup.subtree_control", "+memory");
	if (mkdir(OURS, 0755) && errno != EEXIST)
		die("Cannot make the cgroup %s: %s.", OURS, strerror(errno));
	write_file(OURS "cgroup.procs", "0");
}

/*
 * Time of reclaim in ns, and looks for references per page. About 16 pages of the processes
 * are written to swap meanwhile, or read.
 */
struct effort {
	uint64_t ns, looks;
};

static uint64_t count_looks(void)
{
	FILE *f = fopen(OURS "memory.stat", "re");
	unsigned long long value, looks = 0;
	char name[64];

	if (!f)
		die("Cannot read %smemory.stat: %s.", OURS, strerror(errno));
	while (fscanf(f, "%63s %llu", name, &value) == 2)
		if (!strcmp(name, "pgscan") || !strcmp(name, "pgrefill"))
			looks += value;
	fclose(f);
	return looks;
}

static void press(const struct region *r, struct effort *effort)
{
	int fd = open(OURS "memory.reclaim", O_WRONLY | O_CLOEXEC);
	uint64_t start, left = pages;
	char text[64];

	if (fd < 0)
		die("Cannot open %smemory.reclaim: %s.", OURS, strerror(errno));
	effort->looks -= count_looks();
	for (int i = 0; i < 4 && left > pages / 20; i++) {
		int len = snprintf(text, sizeof(text), "%llu swappiness=%d",
				   (unsigned long long)(left * PAGE_BYTES), r->file ? 0 : 200);

		start = now_ns();
		/* EAGAIN: less was found. */
		if (write(fd, text, (size_t)len) < 0 && errno != EAGAIN)
			die("Cannot reclaim: %s.", strerror(errno));
		effort->ns += now_ns() - start;
		left = present(r);
	}
	if (left > pages / 20)
		die("%llu of %llu pages were not reclaimed.", (unsigned long long)left,
		    (unsigned long long)pages);
	effort->looks += count_looks();
	close(fd);
}

/* Maps the memory until its pipe closes. */
static pid_t share(const struct region *r, int ready, int end, int end_here)
{
	pid_t pid = fork();
	char byte = 0;

	if (pid < 0)
		die("Cannot fork: %s.", strerror(errno));
	if (pid)
		return pid;
	close(end_here);
	pin(1);
	read_region(r);
	if (write(ready, &byte, 1) != 1)
		_exit(1);
	close(ready);
	_exit(read(end, &byte, 1) != 0);
}

static void reclaim_from(struct region *r, int processes, int referenced, struct effort *effort)
{
	pid_t others[PROCESSES];
	int ready[2], end[2], status;
	char byte;

	if (r->file)
		map_file(r);
	else
		map_clean(r);
	if (pipe(ready) || pipe(end))
		die("Cannot make a pipe: %s.", strerror(errno));
	for (int i = 1; i < processes; i++)
		others[i] = share(r, ready[1], end[0], end[1]);
	close(ready[1]);
	for (int i = 1; i < processes; i++)
		if (read(ready[0], &byte, 1) != 1)
			die("A process has gone.");
	if (!referenced)
		clear_references(getpid());
	for (int i = 1; i < processes; i++)
		clear_references(others[i]);
	press(r, effort);
	close(end[1]);
	for (int i = 1; i < processes; i++)
		if (waitpid(others[i], &status, 0) != others[i] || status)
			die("A process has failed.");
	close(end[0]);
	close(ready[0]);
	munmap(r->words, pages * PAGE_BYTES);
}

/* Per further process. */
static void add(struct region *r, uint64_t rounds, int referenced, double *ns, double *looks)
{
	struct effort one = { 0 }, several = { 0 };

	for (uint64_t i = 0; i < rounds; i++) {
		reclaim_from(r, 1, referenced, &one);
		reclaim_from(r, PROCESSES, referenced, &several);
	}
	*ns = ((double)several.ns - (double)one.ns) / (PROCESSES - 1);
	*looks = ((double)several.looks * PROCESSES - (double)one.looks) / (PROCESSES - 1);
}

static uint64_t run_mapped(struct region *r, int local, uint64_t rounds)
{
	double plain, plain_looks, seen, seen_looks, look;

	(void)local;
	enter_cgroup();
	add(r, rounds, 0, &plain, &plain_looks);
	add(r, rounds, 1, &seen, &seen_looks);
	if (seen_looks < plain_looks + (double)(rounds * pages / 2))
		die("Referenced folios were not looked at more often than others.");
	/* The clock is less exact than instructions: the result may be negative. */
	look = (seen - plain) / (seen_looks - plain_looks);
	look = look > 0 ? look : 0;
	r->looked = (uint64_t)(look * (double)(rounds * pages));
	return plain > look * plain_looks ? (uint64_t)(plain - look * plain_looks) : 0;
}

static const struct test {
	const char *name;
	uint64_t (*run)(struct region *r, int local, uint64_t rounds);
	uint64_t times;			/* factor of rounds */
	unsigned int kb;
	int shared, local, file;
} tests[] = {
	{ "unmap_small",	run_unmap,	4,	0,	0, 0, 0 },
	{ "unmap_64k",		run_unmap,	4,	64,	0, 0, 0 },
	{ "unmap_2m",		run_unmap,	4,	2048,	0, 0, 0 },
	{ "unmap_shared_small",	run_unmap,	4,	0,	1, 0, 0 },
	{ "unmap_shared_64k",	run_unmap,	4,	64,	1, 0, 0 },
	{ "unmap_small_local",	run_unmap,	4,	0,	0, 1, 0 },
	{ "unmap_64k_local",	run_unmap,	4,	64,	0, 1, 0 },
	{ "out_small",		run_out,	1,	0,	0, 0, 0 },
	{ "out_64k",		run_out,	1,	64,	0, 0, 0 },
	{ "out_2m",		run_out,	1,	2048,	0, 0, 0 },
	{ "move_small",		run_move,	2,	0,	0, 0, 0 },
	{ "move_64k",		run_move,	2,	64,	0, 0, 0 },
	{ "mapped_small",	run_mapped,	1,	0,	0, 1, 0 },
	{ "mapped_64k",		run_mapped,	1,	64,	0, 1, 0 },
	{ "mapped_2m",		run_mapped,	1,	2048,	0, 1, 0 },
	{ "mapped_file_64k",	run_mapped,	1,	64,	0, 1, 1 },
	{ "mapped_file_2m",	run_mapped,	1,	2048,	0, 1, 1 },
};

static void per_page(const char *what, const char *kind, uint64_t ns, uint64_t rounds)
{
	char name[64];

	snprintf(name, sizeof(name), "%s%s_ns_per_page", what, kind);
	figure(name, (double)ns / (double)rounds / (double)pages, "ns");
}

static void measure(const struct test *t, uint64_t rounds, const char *file)
{
	struct region r = { .kb = t->kb, .shared = t->shared, .file = t->file ? file : NULL };
	pthread_t other;

	rounds *= t->times;
	pin(0);
	if (!t->local) {
		if (pipe(r.kick) || pipe(r.kicked))
			die("Cannot make a pipe: %s.", strerror(errno));
		start_thread(&other, visit, &r);
	}
	per_page(t->name, "", t->run(&r, t->local, rounds), rounds);
	if (t->run == run_mapped)
		per_page("looked", strchr(t->name, '_'), r.looked, rounds);
}

int main(int argc, char **argv)
{
	uint64_t rounds = 4, mb = 16;
	const char *only = NULL, *file = NULL;
	int i = 1, status;

	if (argc == 4 && !strcmp(argv[1], "--make")) {
		make_file(argv[2], parse_number("--make", argv[3], PAGE_BYTES, 1UL << 30));
		return 0;
	}
	for (; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--megabytes"))
			mb = parse_number("--megabytes", argv[i + 1], 2, 32);
		else if (!strcmp(argv[i], "--rounds"))
			rounds = parse_number("--rounds", argv[i + 1], 1, 1000000);
		else if (!strcmp(argv[i], "--only"))
			only = argv[i + 1];
		else if (!strcmp(argv[i], "--pressure"))
			file = argv[i + 1];
		else
			break;
	}
	if (i != argc)
		die("usage: " WORKLOAD " [--megabytes N] [--rounds N] [--only FIGURE] "
		    "[--pressure FILE]\n       " WORKLOAD " --make FILE BYTES");
	pages = (mb << 20) / PAGE_BYTES & -(HUGE_BYTES / PAGE_BYTES);
	pin(0);
	swap_on();
	for (size_t k = 0; k < ARRAY_SIZE(tests); k++) {
		pid_t pid;

		if (only && strncmp(only, tests[k].name, strlen(only)))
			continue;
		if (!file != (tests[k].run != run_mapped))
			continue;
		if (tests[k].run == run_move &&
		    access("/sys/devices/system/node/node1", R_OK))
			continue;
		choose_folios(tests[k].kb, tests[k].shared ? "shmem_enabled" : "enabled");
		fflush(stdout);
		pid = fork();
		if (pid < 0)
			die("Cannot fork: %s.", strerror(errno));
		if (!pid) {
			measure(&tests[k], rounds, file);
			fflush(stdout);
			_exit(0);
		}
		if (waitpid(pid, &status, 0) != pid || status)
			exit(1);	/* the child printed the reason */
	}
	return 0;
}
