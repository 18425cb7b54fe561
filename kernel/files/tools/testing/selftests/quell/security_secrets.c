// SPDX-License-Identifier: GPL-2.0-only
/* Secrets of one user, and another one's stale TLB entries; zeroing of new memory. */
#include <sys/stat.h>
#include <sys/wait.h>

#include "security.h"

#define SECRET		0x5ec3e75ec3e75ec3UL
#define FILL		(16UL << 20)
#define CGROUP		"/sys/fs/cgroup/quell_security"

/* --- secrets ------------------------------------------------------------------ */

void *read_on(void *arg)
{
	int cpu = (long)arg;

	pin(cpu);
	/* No system call: only interrupts and faults flush. */
	while (!atomic_load(&sh->stop)) {
		for (int i = 0; i < PAGES; i++) {
			for (unsigned long at = 0; at < WORDS; at += 73) {
				uint64_t v = sh->map[i * WORDS + at];

				if (v == SECRET)
					atomic_fetch_add(&sh->secrets, 1);
				else if (v != OLD)
					atomic_fetch_add(&sh->wrong, 1);
			}
		}
		atomic_fetch_add(&sh->reads, PAGES * (WORDS / 73 + 1));
		atomic_fetch_add(&sh->passes[cpu], 1);
	}
	return NULL;
}

static void reader(int unused __always_unused)
{
	pthread_t threads[MAX_CPUS];

	/* Its memory must be charged to its cgroup. */
	while (!atomic_load(&sh->go))
		usleep(1000);
	sh->map = map_file(path, MAP_SHARED);
	for (long cpu = 1; cpu < nr_cpus; cpu++)
		start_thread(&threads[cpu], read_on, (void *)cpu);
	atomic_store(&sh->ready, 1);
	for (int cpu = 1; cpu < nr_cpus; cpu++)
		pthread_join(threads[cpu], NULL);
}

/* Until all CPUs from @first below @end have read all pages since. */
void wait_hot(int first, int end)
{
	unsigned long before[MAX_CPUS];
	long limit = now_us() + 120000000;

	for (int cpu = first; cpu < end; cpu++)
		before[cpu] = atomic_load(&sh->passes[cpu]);
	for (int cpu = first; cpu < end; cpu++)
		while (atomic_load(&sh->passes[cpu]) < before[cpu] + 2) {
			if (now_us() > limit) {
				errno = ETIMEDOUT;
				die("a reader");
			}
			usleep(100);
		}
}

static uint64_t *writer_map;

static void writer(int unused __always_unused)
{
	for (unsigned long i = 0; i < FILL / 8; i++)
		writer_map[i] = SECRET;
	atomic_store(&sh->ready, 2);
	pause();
}

/*
 * Another user writes secrets to the reader's frames. Returns how many of @frames it got.
 */
static int reuse(const uint64_t *frames)
{
	static uint64_t theirs[FILL / PAGE];
	int reused = 0;
	pid_t pid;

	writer_map = map_private(FILL);
	/* Single pages, freed last and used first. */
	madvise(writer_map, FILL, MADV_NOHUGEPAGE);
	pid = start(WRITER, 0, writer, 0);
	wait_ready(2);
	frames_of(pid, writer_map, FILL / PAGE, theirs);
	for (int i = 0; i < PAGES; i++)
		for (unsigned long k = 0; frames[i] && k < FILL / PAGE; k++)
			if (theirs[k] == frames[i]) {
				reused++;
				break;
			}
	usleep(5000);
	kill_and_wait(pid);
	munmap(writer_map, FILL);
	atomic_store(&sh->ready, 1);
	return reused;
}

static void by_page_out(pid_t pid)
{
	page_out_of(pid, sh->map, SIZE);
}

static void by_cgroup(pid_t pid __always_unused)
{
	int fd = must_open(CGROUP "/memory.reclaim", O_WRONLY);

	/* EAGAIN: there was less. */
	if (write(fd, "4M", 2) < 0 && errno != EAGAIN)
		die("memory.reclaim");
	close(fd);
}

/* @least: pages deferred per round. */
static void look_for_secrets(const char *name, void (*take)(pid_t pid), const char *cgroup,
			     int least)
{
	unsigned long seen, wrong, reads;
	long parked, reused = 0;
	uint64_t frames[PAGES];
	char text[32];
	pid_t pid;

	reset();
	fill_file(path, OLD);
	/* The file's pages are charged to the next reader. */
	drain_all_lru();
	pid = start(READER, 1, reader, 0);
	if (cgroup) {
		snprintf(text, sizeof(text), "%d", pid);
		write_text(cgroup, text);
	}
	atomic_store(&sh->go, true);
	wait_ready(1);
	parked = vm_counter("luf_park");
	for (int i = 0; i < rounds; i++) {
		wait_hot(1, nr_cpus);
		drain_all_lru();
		wait_hot(1, nr_cpus);
		frames_of(pid, sh->map, PAGES, frames);
		take(pid);
		/* Root frees the frames for the next user. */
		drain_luf();
		reused += reuse(frames);
	}
	parked = vm_counter("luf_park") - parked;
	atomic_store(&sh->stop, true);
	must_wait(pid);
	seen = atomic_load(&sh->secrets);
	wrong = atomic_load(&sh->wrong);
	reads = atomic_load(&sh->reads);
	test_result(!seen && !wrong && parked >= rounds * least && reused >= rounds,
		    "security secrets %s: %lu words read, %lu of them secrets, %lu wrong, %ld pages deferred, %ld frames written by another user",
		    name, reads, seen, wrong, parked, reused);
}

static bool have_cgroup(void)
{
	if (access("/sys/fs/cgroup/cgroup.controllers", R_OK))
		return false;
	if (mkdir(CGROUP, 0755) && errno != EEXIST)
		return false;
	return !access(CGROUP "/memory.reclaim", W_OK);
}

void test_secrets(void)
{
	fill_file(path, OLD);
	if (chown(path, READER, READER))
		die(path);
	look_for_secrets("page-out", by_page_out, NULL, PAGES / 2);
	if (have_cgroup())
		look_for_secrets("memory.reclaim", by_cgroup, CGROUP "/cgroup.procs", 1);
	else
		test_skip("cgroup v2 with memory", "security secrets memory.reclaim");
	rmdir(CGROUP);
}

/* --- zeroes ----------------------------------------------------------------------- */

/* Memory that is filled in order is populated in large folios. */
static void fill_in_order(int unused __always_unused)
{
	unsigned long words = FILL / 8, found = 0;
	uint64_t *map;

	map = map_private(FILL);
	for (unsigned long i = 0; i < words; i += WORDS)
		map[i] = 1;
	for (unsigned long i = 0; i < words; i++)
		found += i % (WORDS) && map[i];
	atomic_fetch_add(&sh->wrong, found);
	atomic_fetch_add(&sh->reads, words);
}

void test_zeroes(void)
{
	long large;

	if (get_switch("folio_order") < 0 || access(THP "enabled", W_OK))
		return test_skip("CONFIG_QUELL_FOLIO_ORDER", "security zeroes");
	reset();
	save_setting(THP "enabled");
	/* Never is the default of small machines. */
	write_text(THP "enabled", "madvise");
	large = vm_counter("folio_order_alloc");
	for (int i = 0; i < rounds; i++) {
		pid_t pid;

		writer_map = map_private(FILL);
		atomic_store(&sh->ready, 0);
		pid = start(WRITER, 0, writer, 0);
		wait_ready(2);
		kill_and_wait(pid);
		munmap(writer_map, FILL);
		pid = start(READER, 0, fill_in_order, 0);
		must_wait(pid);
	}
	large = vm_counter("folio_order_alloc") - large;
	restore_settings();
	test_result(!atomic_load(&sh->wrong) && large > 0 &&
		    atomic_load(&sh->reads) == rounds * FILL / 8,
		    "security zeroes: %lu words looked at, %lu of them not zero, %ld large folios",
		    atomic_load(&sh->reads), atomic_load(&sh->wrong), large);
}
