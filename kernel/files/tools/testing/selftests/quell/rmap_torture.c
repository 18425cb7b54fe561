// SPDX-License-Identifier: GPL-2.0-only
/*
 * Torture of unmapping by reclaim and migration: pages of large folios that are taken away
 * come back unchanged. Attacks mm/rmap_batch.c and mm/writeout_batch.c in random
 * combinations. Usage:
 *
 *	rmap_torture DIR [--seconds N] [--seed N] [--workers N]
 *
 * DIR is on a file system. Two NUMA nodes, a RAM disk of 32 MB for swap (see system.h) and
 * large file folios (xfs) add tests.
 *
 * Each worker is a process with anonymous memory (arenas) in folios of changing sizes. It
 * writes, unmaps, moves, locks, frees and protects pages, clears soft-dirty bits and forks;
 * a child goes on with a copy. Its actions follow from the seed. Meanwhile mappings are
 * taken away: by the worker, by its second thread (MADV_PAGEOUT, move_pages(), compaction),
 * and by memory.reclaim of the common cgroup. A file and shared memory are common to all
 * workers. Each of their pages has one writer, and the readers know the generations that it
 * may hold (struct window).
 *
 * The checker knows each page's content (two are possible after MADV_FREE), address and
 * rights. It reads all the time, tries forbidden accesses, and compares /proc/self/pagemap:
 * a page with content has an entry, a locked page is not in swap, soft-dirty and write
 * protection are exact.
 *
 * A violation prints the worker's last operations. At the end no swap and no memory of the
 * cgroup may be left. The kernel's log must be clean: wrong counters of an mm show there.
 */
#include <sys/wait.h>

#include "rmap_torture.h"

#define MAX_WORKERS	8
#define PATIENCE	60		/* seconds for the workers' end */

struct shared *sh;

char *areas[AREAS];
int nr_workers = 2;
bool nodes, soft_dirty;
bool huge;		/* folios of 2 MB, too, with one soft-dirty bit */
uint64_t seed;

static char path[4096];

static void make_areas(void)
{
	unsigned long bytes = SHARED_PAGES * PAGE;
	int fd;

	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	areas[MEMORY_AREA] = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (fd < 0 || areas[MEMORY_AREA] == MAP_FAILED)
		die(path);
	madvise(areas[MEMORY_AREA], bytes, MADV_HUGEPAGE);
	for (unsigned int i = 0; i < SHARED_PAGES; i++)
		for (int area = 0; area < AREAS; area++) {
			atomic_store(&sh->windows[area][i].lo, 1);
			atomic_store(&sh->windows[area][i].hi, 1);
		}
	for (unsigned int i = 0; i < SHARED_PAGES; i++)
		try_put(areas[MEMORY_AREA] + i * PAGE, ARENAS + FILE_AREA, i, 1);
	/* One write: the file system chooses folios by its size. */
	if (write(fd, areas[MEMORY_AREA], bytes) != (ssize_t)bytes || fsync(fd))
		die(path);
	for (unsigned int i = 0; i < SHARED_PAGES; i++)
		try_put(areas[MEMORY_AREA] + i * PAGE, ARENAS + MEMORY_AREA, i, 1);
	areas[FILE_AREA] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (areas[FILE_AREA] == MAP_FAILED)
		die(path);
	close(fd);
}

/* After fsync(). */
static void check_file(void)
{
	int fd = open(path, O_RDWR | O_CLOEXEC), wrong = 0;
	uint64_t words[WORDS];

	munmap(areas[FILE_AREA], SHARED_PAGES * PAGE);
	if (fd < 0 || fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
		die(path);
	for (unsigned int i = 0; i < SHARED_PAGES; i++) {
		unsigned int gen = atomic_load(&sh->windows[FILE_AREA][i].hi);

		if (pread(fd, words, PAGE, i * PAGE) != (ssize_t)PAGE)
			die(path);
		for (int k = 0; k < LOOKED_AT; k++)
			wrong += words[looked_at[k]] != word_of(ARENAS + FILE_AREA, i, gen);
	}
	close(fd);
	unlink(path);
	test_result(!wrong, "rmap_torture file: %d words are wrong on disk", wrong);
}

static const char * const switches[] = { "rmap_batch", "writeout_batch" };

#define SWITCHES	ARRAY_SIZE(switches)

/* Folio sizes change, memory is reclaimed, and switches move. */
static void control(double seconds)
{
	struct timespec pause = { .tv_nsec = 20000000 };
	uint64_t random = seed * 2 + 1;
	double end = now() + seconds;
	bool off[SWITCHES] = { 0 };

	while (!stopped() && now() < end) {
		unsigned int r = next_random(&random) % 1024;

		if (r < 128)
			choose_thp(((next_random(&random) & 0xff) * 16 | (r & 32 ? 64 : 0)) &
				   (huge ? ~0 : 2047));
		else if (r < 640 && cgroup[0])
			reclaim_cgroup((1 + r % 256) * PAGE, r & 1);
		/* Off for a moment. */
		for (unsigned int i = 0; i < SWITCHES; i++) {
			if (get_switch(switches[i]) < 0 || (!off[i] && next_random(&random) % 64))
				continue;
			off[i] = !off[i];
			set_switch(switches[i], !off[i]);
		}
		nanosleep(&pause, NULL);
	}
	for (unsigned int i = 0; i < SWITCHES; i++)
		if (off[i])
			set_switch(switches[i], true);
}

static void on_patience(int sig __always_unused)
{
	static const char text[] = "# a worker does not end\n";

	if (write(STDOUT_FILENO, text, sizeof(text) - 1) < 0)
		_exit(3);
	alarm(5);
}

static void torture(double seconds)
{
	struct sigaction patience = { .sa_handler = on_patience };
	long batches = vm_counter("rmap_batch_runs"), in_batches = vm_counter("rmap_batch_pages");
	long aside = vm_counter("writeout_batch_folios");
	long out = vm_counter("pswpout"), moved = vm_counter("pgmigrate_success");
	pid_t pids[MAX_WORKERS];
	int status, bad = 0;
	const char *said;

	for (int i = 0; i < nr_workers; i++) {
		pids[i] = must_fork();
		if (!pids[i])
			work(i);
	}
	control(seconds);
	atomic_store(&sh->stop, true);
	sigaction(SIGALRM, &patience, NULL);
	alarm(PATIENCE);
	for (int i = 0; i < nr_workers; i++) {
		if (waitpid(pids[i], &status, 0) != pids[i]) {
			kill(pids[i], SIGKILL);
			waitpid(pids[i], &status, 0);
		}
		if (status)
			ksft_print_msg("worker %d ended with %#x\n", i, status);
		bad += !!status;
	}
	alarm(0);
	batches = vm_counter("rmap_batch_runs") - batches;
	in_batches = vm_counter("rmap_batch_pages") - in_batches;
	aside = vm_counter("writeout_batch_folios") - aside;
	out = vm_counter("pswpout") - out;
	moved = vm_counter("pgmigrate_success") - moved;

	if (atomic_load(&sh->violations)) {
		ksft_print_msg("VIOLATION, with --seed %llu:\n", (unsigned long long)seed);
		for (char *line = strtok(sh->report, "\n"); line; line = strtok(NULL, "\n"))
			ksft_print_msg("%s\n", line);
	}
	ksft_print_msg("%lu steps, %lu forks, %lu times taken away,", atomic_load(&sh->steps),
		       atomic_load(&sh->forks), atomic_load(&sh->takes));
	printf(" %ld pages swapped out, %ld moved, %ld in %ld batches\n", out, moved, in_batches,
	       batches);
	test_result(!bad && !atomic_load(&sh->violations),
		    "rmap_torture pages: %lu checked, %d violations", atomic_load(&sh->checks),
		    atomic_load(&sh->violations));
	if (get_switch("rmap_batch") >= 0)
		test_result(in_batches > batches && batches > 0,
			    "rmap_torture batches: %ld pages in %ld", in_batches, batches);
	if (get_switch("writeout_batch") >= 0 && (swap_is_on(RAM) || swap_is_on(LOOP)))
		test_result(aside > 0, "rmap_torture write-out: %ld folios aside", aside);
	check_file();
	munmap(areas[MEMORY_AREA], SHARED_PAGES * PAGE);
	for (int i = 0; i < SWAPS; i++)
		if (swap_is_on(i))
			test_result(swap_off_in_time(i),
				    "rmap_torture swap (%s): all entries are free at the end",
				    swap_names[i]);
	if (cgroup[0]) {
		const char *rest = cgroup_rest();

		test_result(!rest[0], "rmap_torture memory cgroup: left in it: %s",
			    rest[0] ? rest : "nothing");
	}
	said = kernel_complaint();
	test_result(!said, "rmap_torture kernel log: %s", said ? said : "no complaint");
}

int main(int argc, char **argv)
{
	double seconds = 10;
	pthread_rwlockattr_t shared;

	seed = time(NULL);
	for (int i = 2; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--seconds"))
			seconds = atof(argv[i + 1]);
		else if (!strcmp(argv[i], "--seed"))
			seed = strtoull(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--workers"))
			nr_workers = atoi(argv[i + 1]);
		else
			argc = 0;
	}
	if (argc < 2 || argc % 2 || nr_workers < 1 || nr_workers > MAX_WORKERS) {
		fprintf(stderr,
			"usage: rmap_torture DIR [--seconds N] [--seed N] [--workers N]\n");
		return 2;
	}
	ksft_print_header();
	if (geteuid())
		ksft_exit_skip("root is needed\n");
	if (access(THP "hugepages-64kB/enabled", R_OK))
		ksft_exit_skip("this kernel has no large folios of several sizes\n");
	/* Not charged to the cgroup. */
	sh = must_map(NULL, sizeof(*sh), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1);
	pthread_rwlockattr_init(&shared);
	pthread_rwlockattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_rwlock_init(&sh->moving, &shared);
	save_system();
	watch_kernel_log();
	nodes = two_nodes();
	huge = seed & 1;
	soft_dirty = softdirty_supported();
	snprintf(path, sizeof(path), "%s/rmap_torture", argv[1]);
	choose_thp(64 | 16);
	for (int i = 0; i < SWAPS; i++)
		if (!swap_on(i))
			ksft_print_msg("no swap: %s\n", swap_names[i]);
	make_cgroup("rmap_torture");
	make_areas();
	ksft_print_msg("seed %llu, %d workers, %d nodes%s%s\n", (unsigned long long)seed,
		       nr_workers, nodes + 1, soft_dirty ? ", soft-dirty" : "",
		       cgroup[0] ? ", cgroup" : "");
	torture(seconds);
	test_end();
}
