// SPDX-License-Identifier: GPL-2.0-only
/*
 * mapped-read: threads read a mapped file that is several times larger than
 * memory, so that reclaim unmaps pages all the time while other CPUs have the
 * same address space loaded. Every unmapped page then owes those CPUs a TLB
 * flush.
 *
 * The threads share one read-only MAP_SHARED mapping. Each reads the whole
 * file in order, but starts at another place, so that they do not merely
 * follow each other through the page cache. The files are opened read-only:
 * without --open-write they have no writer while they are read.
 *
 * What may be added:
 *
 *   --leave MB		anonymous memory is taken first, until so much is available
 *   --spin N		N threads that compute and never sleep or call the
 *			kernel, so that their CPUs keep the address space
 *   --private-write N	the mapping is MAP_PRIVATE and writable, and each thread
 *			writes to one page in N before it reads it
 *   --open-write US	a thread opens one file after another for writing and
 *			closes it, with US microseconds between; every 32nd time
 *			it writes to a page of it
 *
 * Both kinds of writes count up GENERATION_WORD of a page. Once a write is
 * done, no thread may read an older generation: that is checked with each page.
 */
#define WORKLOAD "mapped-read"
#include "../mapped-file.h"
#include <stdatomic.h>

#define GENERATION_WORD	1
#define WRITE_EVERY	32

struct options {
	uint64_t threads, passes, files, leave_mb, spin, private_write, open_write_us;
	int open_write;
};

struct generation {
	_Atomic uint32_t started, done;
};

static struct options options = { .threads = 2, .passes = 1, .files = 1 };
static struct file_set set;
static struct generation *generations;	/* of each page, if any are written */
static atomic_int stop;

struct reader {
	pthread_t thread;
	uint64_t number;
};

static uint64_t generation_at(uint64_t page)
{
	const volatile uint64_t *words = set.words + page * WORDS_PER_PAGE;

	return words[GENERATION_WORD] - word_at(page, GENERATION_WORD);
}

static void check_generation(uint64_t page)
{
	struct generation *g = &generations[page];
	uint32_t least = atomic_load(&g->done);
	uint64_t got = generation_at(page);
	uint32_t most = atomic_load(&g->started);

	if (got < least || got > most)
		die("Page %llu has generation %lld, it should have one from %u to %u.",
		    (unsigned long long)page, (long long)got, least, most);
}

/* Only ever one thread writes to a page. */
static void write_private(uint64_t page)
{
	struct generation *g = &generations[page];
	uint32_t next = atomic_load(&g->done) + 1;

	atomic_store(&g->started, next);
	*(volatile uint64_t *)(set.words + page * WORDS_PER_PAGE +
			       GENERATION_WORD) =
		word_at(page, GENERATION_WORD) + next;
	atomic_store(&g->done, next);
}

static void read_page(const struct reader *reader, uint64_t page)
{
	if (options.private_write &&
	    page % options.private_write == reader->number)
		write_private(page);
	check_page(&set, page);
	if (generations)
		check_generation(page);
}

static void *read_all(void *arg)
{
	const struct reader *reader = arg;
	uint64_t first = set.pages * reader->number / options.threads;

	for (uint64_t pass = 0; pass < options.passes; pass++) {
		for (uint64_t i = first; i < set.pages; i++)
			read_page(reader, i);
		for (uint64_t i = 0; i < first; i++)
			read_page(reader, i);
	}
	return NULL;
}

static void *spin(void *arg)
{
	volatile uint64_t x = 0;

	(void)arg;
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		x = page_seed(x);
	return NULL;
}

static void *open_and_write(void *arg)
{
	struct timespec pause = {
		.tv_sec = (time_t)(options.open_write_us / 1000000),
		.tv_nsec = (long)(options.open_write_us % 1000000) * 1000,
	};
	uint64_t per_file = set.pages / set.files, opens = 0, writes = 0;
	uint64_t start = now_ns();

	(void)arg;
	while (!atomic_load(&stop)) {
		uint64_t i = opens++ % set.files;
		const char *path = file_path(&set, i);
		int fd = open(path, O_RDWR | O_CLOEXEC);

		if (fd < 0)
			die("Cannot open %s for writing: %s.", path,
			    strerror(errno));
		if (opens % WRITE_EVERY == 0) {
			uint64_t in_file = page_seed(writes++) % per_file;
			uint64_t page = i * per_file + in_file;
			struct generation *g = &generations[page];
			uint32_t next = atomic_load(&g->done) + 1;
			uint64_t word = word_at(page, GENERATION_WORD) + next;
			off_t at = (off_t)(in_file * PAGE_BYTES +
					   GENERATION_WORD * sizeof(word));

			atomic_store(&g->started, next);
			if (pwrite(fd, &word, sizeof(word), at) !=
			    (ssize_t)sizeof(word))
				die("Cannot write %s: %s.", path,
				    strerror(errno));
			atomic_store(&g->done, next);
		}
		close(fd);
		nanosleep(&pause, NULL);
	}
	figure_more("opens_per_second",
		    (double)opens * NSEC_PER_SEC / (double)(now_ns() - start),
		    "opens/s");
	return NULL;
}

/* Take memory that cannot be reclaimed (without swap) until @mb MB are available. */
static void leave(uint64_t mb)
{
	unsigned long long kb = 0;
	char line[128];
	size_t bytes;
	FILE *f = fopen("/proc/meminfo", "re");
	void *map;

	if (!f)
		die("Cannot read /proc/meminfo: %s.", strerror(errno));
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu", &kb) == 1)
			break;
	fclose(f);
	if (kb / 1024 <= mb)
		die("Only %llu MB are available.", kb / 1024);
	bytes = (kb / 1024 - mb) << 20;
	map = map_anonymous(bytes);
	/* As quickly as can be. */
	madvise(map, bytes, MADV_HUGEPAGE);
	if (madvise(map, bytes, MADV_POPULATE_WRITE))
		die("Cannot take %zu bytes: %s.", bytes, strerror(errno));
}

static void read_set(void)
{
	struct reader *readers = calloc(options.threads, sizeof(*readers));
	pthread_t *spinners = calloc(options.spin, sizeof(*spinners));
	pthread_t writer;
	uint64_t start, elapsed;
	double read;

	if (!readers || (options.spin && !spinners))
		die("No memory for the threads.");
	if (options.private_write)
		map_set(&set, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
	else
		map_set(&set, PROT_READ, MAP_SHARED);
	if (options.private_write || options.open_write)
		generations = map_anonymous(set.pages * sizeof(*generations));

	start = now_ns();
	for (uint64_t i = 0; i < options.spin; i++)
		start_thread(&spinners[i], spin, NULL);
	if (options.open_write)
		start_thread(&writer, open_and_write, NULL);
	for (uint64_t i = 0; i < options.threads; i++) {
		readers[i].number = i;
		start_thread(&readers[i].thread, read_all, &readers[i]);
	}
	for (uint64_t i = 0; i < options.threads; i++)
		pthread_join(readers[i].thread, NULL);
	elapsed = now_ns() - start;
	atomic_store(&stop, 1);
	for (uint64_t i = 0; i < options.spin; i++)
		pthread_join(spinners[i], NULL);
	if (options.open_write)
		pthread_join(writer, NULL);

	read = (double)set.pages * (double)options.passes * (double)options.threads;
	figure_more("pages_per_second", read * NSEC_PER_SEC / (double)elapsed,
		    "pages/s");
	figure("ns_per_page", (double)elapsed * (double)options.threads / read,
	       "ns");
}

int main(int argc, char **argv)
{
	int i = 1;

	make_if_asked(argc, argv);
	for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
		const char *name = argv[i], *value = argv[i + 1];

		if (!strcmp(name, "--threads")) {
			options.threads = parse_number(name, value, 1, 1024);
		} else if (!strcmp(name, "--passes")) {
			options.passes = parse_number(name, value, 1, 1000000);
		} else if (!strcmp(name, "--files")) {
			options.files = parse_number(name, value, 1, MAX_FILES);
		} else if (!strcmp(name, "--leave")) {
			options.leave_mb = parse_number(name, value, 1, 1 << 20);
		} else if (!strcmp(name, "--spin")) {
			options.spin = parse_number(name, value, 0, 1024);
		} else if (!strcmp(name, "--private-write")) {
			options.private_write = parse_number(name, value, 1, 1 << 20);
		} else if (!strcmp(name, "--open-write")) {
			options.open_write = 1;
			options.open_write_us = parse_number(name, value, 0, 60000000);
		} else {
			break;
		}
	}
	if (i + 1 != argc || argv[i][0] == '-')
		die("usage: " WORKLOAD " --make PATH BYTES [FILES], or " WORKLOAD
		    " [--threads N] [--passes P] [--files F] [--leave MB] [--spin N]"
		    " [--private-write N | --open-write US] PATH");
	if (options.private_write && options.open_write)
		die("Give --private-write or --open-write, not both.");
	if (options.private_write && options.private_write < options.threads)
		die("--private-write should be at least the number of threads.");
	set.path = argv[i];
	set.files = options.files;
	if (options.leave_mb)
		leave(options.leave_mb);
	read_set();
	return 0;
}
