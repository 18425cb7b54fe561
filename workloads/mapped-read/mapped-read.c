// SPDX-License-Identifier: GPL-2.0-only
/*
 * mapped-read: threads read a mapped file several times larger than memory. Reclaim unmaps
 * pages of an mm that other CPUs have loaded, so each unmap owes them a flush (luf). Usage:
 *
 *	mapped-read --make PATH BYTES [FILES]
 *	mapped-read [--threads N] [--passes P] [--files F] [OPTION...] PATH
 *
 * The threads share a read-only MAP_SHARED mapping. Each reads all of it in order, from its
 * own place, so they do not follow each other through the page cache. Options:
 *
 *   --leave MB		take anonymous memory first until MB are available
 *   --spin N		N threads compute without sleep or system call: their CPUs keep the mm
 *   --private-write N	a private, writable mapping; threads write one page in N before the read
 *   --open-write US	a thread opens the files for writing in turn, US microseconds apart, and
 *			writes a page every 32nd time
 *
 * Writes count up GENERATION_WORD of a page. After a write no thread may read an older
 * generation (R3 of mm/luf.c), which each read checks.
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
static struct generation *generations;	/* of each page, with writes */
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

/* One thread per page. */
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

/* Without swap it cannot be reclaimed. */
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
	/* Faster. */
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
