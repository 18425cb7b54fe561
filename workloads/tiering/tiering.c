// SPDX-License-Identifier: GPL-2.0-only
/*
 * tiering: a working set larger than the fast memory node, whose cold pages the
 * kernel moves to a slow node (demotion) while threads on all CPUs read them.
 * Every batch of pages that is moved owes those CPUs a TLB flush.
 *
 * The program is bound to the fast node, node 0 (MPOL_BIND): every page is
 * allocated there, and there is room only because others are moved away. The
 * slow node, node 1, has no CPUs and holds all that is moved, so that nothing is
 * reclaimed and the flushes are those of migration.
 *
 * A round: fill anonymous memory, then fork. The child's threads read the
 * anonymous memory, which since the fork is mapped read-only, and a mapped
 * file, and check every page. Child, anonymous memory and page cache go before
 * the next round.
 */
#define WORKLOAD "tiering"
#include "../mapped-file.h"
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define THREADS		2
#define FAST_NODE	0
#define SLOW_NODE	1

static struct file_set set = { .files = 1 };
static uint64_t *anonymous;
static uint64_t anonymous_pages;

/* Anonymous pages must not look like the file's. */
static uint64_t anonymous_name(uint64_t page)
{
	return page | 1ULL << 63;
}

static unsigned long long demoted(void)
{
	unsigned long long all = 0, one;
	FILE *f = fopen("/proc/vmstat", "re");
	char line[128];

	if (!f)
		die("Cannot read /proc/vmstat: %s.", strerror(errno));
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "pgdemote_%*s %llu", &one) == 1)
			all += one;
	fclose(f);
	return all;
}

static void bind_to_fast_node(void)
{
	unsigned long nodes = 1UL << FAST_NODE;

	if (syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, sizeof(nodes) * 8))
		die("Cannot bind memory to node %d: %s.", FAST_NODE,
		    strerror(errno));
}

/* In the same proportion of the anonymous pages as of the file's. */
static void read_page(uint64_t page, uint64_t *next)
{
	check_page(&set, page);
	if (page * anonymous_pages / set.pages != *next) {
		*next = page * anonymous_pages / set.pages;
		check_words(anonymous + *next * WORDS_PER_PAGE,
			    anonymous_name(*next));
	}
}

static void *read_all(void *arg)
{
	uint64_t first = set.pages * (uintptr_t)arg / THREADS, next = -1ULL;

	for (uint64_t i = first; i < set.pages; i++)
		read_page(i, &next);
	for (uint64_t i = 0; i < first; i++)
		read_page(i, &next);
	return NULL;
}

static void read_in_child(void)
{
	pthread_t threads[THREADS];
	pid_t pid = fork();
	int status;

	if (pid < 0)
		die("Cannot fork: %s.", strerror(errno));
	if (!pid) {
		map_set(&set, PROT_READ, MAP_SHARED);
		for (uintptr_t i = 0; i < THREADS; i++)
			start_thread(&threads[i], read_all, (void *)i);
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid)
		die("Cannot wait for a child: %s.", strerror(errno));
	if (WIFSIGNALED(status))
		die("A child was ended by signal %d.", WTERMSIG(status));
	if (status)
		exit(1);	/* it has said why */
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

static void run(uint64_t rounds, uint64_t anonymous_bytes)
{
	unsigned long long before = demoted(), moved;
	uint64_t start = now_ns();

	bind_to_fast_node();
	anonymous_pages = anonymous_bytes / PAGE_BYTES;
	for (uint64_t round = 0; round < rounds; round++) {
		anonymous = map_anonymous(anonymous_bytes);
		madvise(anonymous, anonymous_bytes, MADV_NOHUGEPAGE);
		for (uint64_t i = 0; i < anonymous_pages; i++)
			fill_page(anonymous + i * WORDS_PER_PAGE,
				  anonymous_name(i));
		read_in_child();
		munmap(anonymous, anonymous_bytes);
		drop_page_cache();
	}
	moved = demoted() - before;
	if (!moved)
		die("Nothing was moved to node %d: it must be a lower memory tier (CONFIG_ACPI_HMAT).",
		    SLOW_NODE);
	figure("ns_per_page_moved", (double)(now_ns() - start) / (double)moved,
	       "ns");
}

int main(int argc, char **argv)
{
	uint64_t rounds = 1, anonymous_bytes = 64 << 20;
	int i = 1;

	make_if_asked(argc, argv);
	for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
		if (!strcmp(argv[i], "--rounds"))
			rounds = parse_number("--rounds", argv[i + 1], 1, 1000000);
		else if (!strcmp(argv[i], "--anonymous"))
			anonymous_bytes = parse_number("--anonymous", argv[i + 1],
						       PAGE_BYTES, 1ULL << 50);
		else
			break;
	}
	if (i + 1 != argc || argv[i][0] == '-')
		die("usage: " WORKLOAD " --make PATH BYTES, or " WORKLOAD
		    " [--rounds N] [--anonymous BYTES] PATH");
	set.path = argv[i];
	run(rounds, anonymous_bytes);
	return 0;
}
