// SPDX-License-Identifier: GPL-2.0-only
/*
 * tiering: data larger than the fast node, with a moving hot set. Linux promotes hot pages
 * and demotes cold ones while threads on all CPUs read the hot set. Each batch of demoted
 * pages owes these CPUs a flush (lazy unmap flush). Usage:
 *
 *	tiering --make PATH BYTES
 *	tiering [--rounds N] [--places N] [--again N] [--anonymous BYTES] PATH
 *
 * Memory is bound to node 0, the fast one (MPOL_BIND). Node 1 has no CPUs and room for all
 * that is demoted: nothing is reclaimed, and all flushes are those of migration.
 *
 * The data are anonymous memory, read-only once filled, and a file, in one proportion
 * everywhere. The file's mapping is private and writable, and never written: NUMA balancing
 * skips read-only mappings of files. Every read is checked. The hot set moves by its own
 * size once nearly all of it is on node 0. A round moves it over all data: pages come from
 * the disk and push others away. Then it returns to the start, and its pages must be
 * promoted. Memory and page cache are dropped after each round.
 */
#define WORKLOAD "tiering"
#include "../mapped-file.h"
#include <linux/mempolicy.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#define THREADS		2
#define FAST_NODE	0
#define SLOW_NODE	1
#define POLL_NS		50000000
/* One page in so many is looked up. */
#define SAMPLE		16
#define HOT_SHARE	0.9
/* Per move of the hot set. */
#define PATIENCE_NS	(120 * NSEC_PER_SEC)

static struct file_set set = { .files = 1 };
static uint64_t *anonymous;
static uint64_t anonymous_pages;
/* In pages of the file. */
static uint64_t hot_pages;
static _Atomic uint64_t hot_first;
static atomic_int done;

/* Differs from the file's pages. */
static uint64_t anonymous_name(uint64_t page)
{
	return page | 1ULL << 63;
}

/* Of a page of the file. */
static uint64_t anonymous_of(uint64_t page)
{
	return page * anonymous_pages / set.pages;
}

/* All counters with the prefix. */
static unsigned long long vmstat(const char *prefix)
{
	unsigned long long all = 0, one;
	FILE *f = fopen("/proc/vmstat", "re");
	char line[128];

	if (!f)
		die("Cannot read /proc/vmstat: %s.", strerror(errno));
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, prefix, strlen(prefix)) &&
		    sscanf(line, "%*s %llu", &one) == 1)
			all += one;
	fclose(f);
	return all;
}

static void bind_to_fast_node(void)
{
	unsigned long nodes = 1UL << FAST_NODE;

	if (syscall(SYS_set_mempolicy, MPOL_BIND | MPOL_F_NUMA_BALANCING, &nodes,
		    sizeof(nodes) * 8))
		die("Cannot bind memory to node %d: %s.", FAST_NODE,
		    strerror(errno));
}

static void *read_hot(void *arg)
{
	uint64_t start = hot_pages * (uintptr_t)arg / THREADS;

	while (!done) {
		uint64_t first = hot_first, next = -1ULL;

		for (uint64_t i = 0; i < hot_pages; i++) {
			uint64_t page = first + (start + i) % hot_pages;

			check_page(&set, page);
			if (anonymous_of(page) == next)
				continue;
			next = anonymous_of(page);
			check_words(anonymous + next * WORDS_PER_PAGE,
				    anonymous_name(next));
		}
	}
	return NULL;
}

/* From a sample. */
static double hot_share(void)
{
	uint64_t count = 0, found = 0;
	void *at[2];
	int node[2];

	for (uint64_t i = 0; i < hot_pages; i += SAMPLE, count += 2) {
		at[0] = set.words + (hot_first + i) * WORDS_PER_PAGE;
		at[1] = anonymous + anonymous_of(hot_first + i) * WORDS_PER_PAGE;
		if (syscall(SYS_move_pages, 0, 2, at, NULL, node, 0))
			die("Cannot see where pages are: %s.", strerror(errno));
		found += (node[0] == FAST_NODE) + (node[1] == FAST_NODE);
	}
	return (double)found / (double)count;
}

static void move_hot_set(uint64_t first)
{
	const struct timespec poll = { .tv_nsec = POLL_NS };
	uint64_t start = now_ns();

	hot_first = first;
	while (hot_share() < HOT_SHARE) {
		if (now_ns() - start > PATIENCE_NS)
			die("Only %.0f %% of the hot pages are on node %d.",
			    hot_share() * 100, FAST_NODE);
		nanosleep(&poll, NULL);
	}
}

static void drop_page_cache(void)
{
	int fd = open(set.path, O_RDONLY | O_CLOEXEC), error;

	if (fd < 0)
		die("Cannot open %s: %s.", set.path, strerror(errno));
	error = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (error)
		die("Cannot drop %s from the page cache: %s.", set.path,
		    strerror(error));
	close(fd);
}

/* Visits the first @again of @places twice. */
static void run_round(uint64_t places, uint64_t again)
{
	uint64_t anonymous_bytes = anonymous_pages * PAGE_BYTES;
	pthread_t threads[THREADS];

	anonymous = map_anonymous(anonymous_bytes);
	madvise(anonymous, anonymous_bytes, MADV_NOHUGEPAGE);
	for (uint64_t i = 0; i < anonymous_pages; i++)
		fill_page(anonymous + i * WORDS_PER_PAGE, anonymous_name(i));
	if (mprotect(anonymous, anonymous_bytes, PROT_READ))
		die("Cannot make memory read-only: %s.", strerror(errno));
	map_set(&set, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	hot_pages = set.pages / places;
	done = 0;
	for (uintptr_t i = 0; i < THREADS; i++)
		start_thread(&threads[i], read_hot, (void *)i);
	for (uint64_t i = 0; i < places + again; i++)
		move_hot_set(i % places * hot_pages);
	done = 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	munmap(anonymous, anonymous_bytes);
	munmap(set.words, set.pages * PAGE_BYTES);
	drop_page_cache();
}

static void run(uint64_t rounds, uint64_t places, uint64_t again)
{
	unsigned long long demoted = vmstat("pgdemote_"), promoted = vmstat("pgpromote_success");
	uint64_t start = now_ns();

	bind_to_fast_node();
	for (uint64_t round = 0; round < rounds; round++)
		run_round(places, again);
	demoted = vmstat("pgdemote_") - demoted;
	promoted = vmstat("pgpromote_success") - promoted;
	if (!demoted || !promoted)
		die("%llu pages were moved to node %d and %llu back: it must be a lower memory tier (CONFIG_ACPI_HMAT).",
		    demoted, SLOW_NODE, promoted);
	figure("ns_per_page_moved", (double)(now_ns() - start) / (double)(demoted + promoted),
	       "ns");
}

int main(int argc, char **argv)
{
	uint64_t rounds = 3, places = 16, again = 3, anonymous_bytes = 64 << 20;
	int i = 1;

	make_if_asked(argc, argv);
	for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
		if (!strcmp(argv[i], "--rounds"))
			rounds = parse_number("--rounds", argv[i + 1], 1, 1000000);
		else if (!strcmp(argv[i], "--places"))
			places = parse_number("--places", argv[i + 1], 2, 1000);
		else if (!strcmp(argv[i], "--again"))
			again = parse_number("--again", argv[i + 1], 1, 1000000);
		else if (!strcmp(argv[i], "--anonymous"))
			anonymous_bytes = parse_number("--anonymous", argv[i + 1],
						       PAGE_BYTES, 1ULL << 50);
		else
			break;
	}
	if (i + 1 != argc || argv[i][0] == '-')
		die("usage: " WORKLOAD " --make PATH BYTES, or " WORKLOAD
		    " [--rounds N] [--places N] [--again N] [--anonymous BYTES] PATH");
	set.path = argv[i];
	anonymous_pages = anonymous_bytes / PAGE_BYTES;
	run(rounds, places, again);
	return 0;
}
