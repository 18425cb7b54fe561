// SPDX-License-Identifier: GPL-2.0-only
/*
 * mapped-read: threads read a mapped file that is several times larger than
 * memory, so that reclaim unmaps pages all the time while other CPUs have the
 * same address space loaded. Every unmapped page then owes those CPUs a TLB
 * flush.
 *
 * The threads share one read-only MAP_SHARED mapping. Each reads the whole
 * file in order, but starts at another place, so that they do not merely
 * follow each other through the page cache. The file is opened read-only: it
 * has no writer while it is read.
 *
 * Each word of the file can be computed from its place (see word_at()), and
 * three words of each page are compared as they are read: a stale or wrong
 * page fails the run.
 */
#define WORKLOAD "mapped-read"
#include "../workload.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS_PER_PAGE	(PAGE_BYTES / sizeof(uint64_t))
#define CHUNK_PAGES	256

struct reader {
	pthread_t thread;
	const uint64_t *words;
	uint64_t pages;
	uint64_t first;		/* the page this thread starts with */
	uint64_t passes;
};

/* Spread the page's index over all bits, so that no two pages look alike. */
static uint64_t page_seed(uint64_t page)
{
	uint64_t x = page + 0x9e3779b97f4a7c15ULL;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

/* What word @word of page @page of the file holds. */
static uint64_t word_at(uint64_t page, uint64_t word)
{
	return page_seed(page) + word;
}

static void make_file(const char *path, uint64_t bytes)
{
	static uint64_t chunk[CHUNK_PAGES * WORDS_PER_PAGE];
	uint64_t pages = bytes / PAGE_BYTES;
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0)
		die("Cannot create %s: %s.", path, strerror(errno));
	for (uint64_t page = 0; page < pages; page += CHUNK_PAGES) {
		uint64_t n = pages - page < CHUNK_PAGES ? pages - page :
							  CHUNK_PAGES;
		const char *from = (const char *)chunk;
		size_t left = n * PAGE_BYTES;

		for (uint64_t i = 0; i < n; i++) {
			uint64_t seed = word_at(page + i, 0);

			for (uint64_t w = 0; w < WORDS_PER_PAGE; w++)
				chunk[i * WORDS_PER_PAGE + w] = seed + w;
		}
		while (left) {
			ssize_t done = write(fd, from, left);

			if (done < 0 && errno == EINTR)
				continue;
			if (done < 0)
				die("Cannot write %s: %s.", path,
				    strerror(errno));
			from += done;
			left -= (size_t)done;
		}
	}
	if (close(fd))
		die("Cannot write %s: %s.", path, strerror(errno));
}

static void check_page(const uint64_t *words, uint64_t page)
{
	static const uint64_t checked[] = {
		0, WORDS_PER_PAGE / 2, WORDS_PER_PAGE - 1
	};
	const volatile uint64_t *p = words + page * WORDS_PER_PAGE;

	for (size_t i = 0; i < ARRAY_SIZE(checked); i++) {
		uint64_t word = checked[i];
		uint64_t got = p[word];

		if (got != word_at(page, word))
			die("Page %llu holds %#llx in word %llu, it should hold %#llx.",
			    (unsigned long long)page, (unsigned long long)got,
			    (unsigned long long)word,
			    (unsigned long long)word_at(page, word));
	}
}

static void *read_all(void *arg)
{
	const struct reader *reader = arg;

	for (uint64_t pass = 0; pass < reader->passes; pass++) {
		for (uint64_t i = reader->first; i < reader->pages; i++)
			check_page(reader->words, i);
		for (uint64_t i = 0; i < reader->first; i++)
			check_page(reader->words, i);
	}
	return NULL;
}

static void on_bus_error(int signal)
{
	static const char text[] =
		WORKLOAD ": The file could not be read through its mapping (SIGBUS).\n";

	(void)signal;
	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(2);
	_exit(1);
}

static void read_file(const char *path, uint64_t threads, uint64_t passes)
{
	struct reader *readers = calloc(threads, sizeof(*readers));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	uint64_t pages, start, elapsed;
	double read;
	void *map;

	if (!readers)
		die("No memory for %llu threads.", (unsigned long long)threads);
	if (fd < 0 || fstat(fd, &st))
		die("Cannot open %s: %s.", path, strerror(errno));
	pages = (uint64_t)st.st_size / PAGE_BYTES;
	if (!pages)
		die("%s is smaller than one page.", path);
	map = mmap(NULL, pages * PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		die("Cannot map %s: %s.", path, strerror(errno));
	signal(SIGBUS, on_bus_error);

	start = now_ns();
	for (uint64_t i = 0; i < threads; i++) {
		readers[i].words = map;
		readers[i].pages = pages;
		readers[i].first = pages * i / threads;
		readers[i].passes = passes;
		start_thread(&readers[i].thread, read_all, &readers[i]);
	}
	for (uint64_t i = 0; i < threads; i++)
		pthread_join(readers[i].thread, NULL);
	elapsed = now_ns() - start;

	read = (double)pages * (double)passes * (double)threads;
	figure_more("pages_per_second", read * NSEC_PER_SEC / (double)elapsed,
		    "pages/s");
	figure("ns_per_page", (double)elapsed * (double)threads / read, "ns");
}

int main(int argc, char **argv)
{
	uint64_t threads = 2, passes = 1;
	int i = 1;

	if (argc == 4 && !strcmp(argv[1], "--make")) {
		make_file(argv[2], parse_number("BYTES", argv[3], PAGE_BYTES,
						1ULL << 50));
		return 0;
	}
	for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
		if (!strcmp(argv[i], "--threads"))
			threads = parse_number("--threads", argv[i + 1], 1, 1024);
		else if (!strcmp(argv[i], "--passes"))
			passes = parse_number("--passes", argv[i + 1], 1, 1000000);
		else
			break;
	}
	if (i + 1 != argc || argv[i][0] == '-')
		die("usage: " WORKLOAD " --make FILE BYTES, or " WORKLOAD
		    " [--threads N] [--passes P] FILE");
	read_file(argv[i], threads, passes);
	return 0;
}
