/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Mapped files for workloads that read them. Each word follows from its place in the file,
 * so a stale page or another page's content fails the run (R1 and R3 of mm/luf.c).
 *
 * A set is one file PATH, or files PATH.0, PATH.1, ... of one size, mapped in one piece.
 * Pages are counted through the set.
 */
#ifndef QUELL_MAPPED_FILE_H
#define QUELL_MAPPED_FILE_H

#include "workload.h"
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS_PER_PAGE	(PAGE_BYTES / sizeof(uint64_t))
#define CHUNK_PAGES	256
#define MAX_FILES	1024

struct file_set {
	const char *path;
	uint64_t files;
	uint64_t pages;		/* of all files together */
	uint64_t *words;
};

/* Page numbers spread over all bits: no two pages look alike. */
static inline uint64_t page_seed(uint64_t page)
{
	uint64_t x = page + 0x9e3779b97f4a7c15ULL;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

static inline uint64_t word_at(uint64_t page, uint64_t word)
{
	return page_seed(page) + word;
}

static inline void fill_page(uint64_t *words, uint64_t page)
{
	uint64_t seed = word_at(page, 0);

	for (uint64_t w = 0; w < WORDS_PER_PAGE; w++)
		words[w] = seed + w;
}

static inline void check_words(const volatile uint64_t *words, uint64_t page)
{
	static const uint64_t checked[] = {
		0, WORDS_PER_PAGE / 2, WORDS_PER_PAGE - 1
	};

	for (size_t i = 0; i < ARRAY_SIZE(checked); i++) {
		uint64_t word = checked[i];
		uint64_t got = words[word];

		if (got != word_at(page, word))
			die("Page %llu holds %#llx in word %llu, it should hold %#llx.",
			    (unsigned long long)page, (unsigned long long)got,
			    (unsigned long long)word,
			    (unsigned long long)word_at(page, word));
	}
}

static inline void check_page(const struct file_set *set, uint64_t page)
{
	check_words(set->words + page * WORDS_PER_PAGE, page);
}

/* Valid until the thread's next call. */
static inline const char *file_path(const struct file_set *set, uint64_t i)
{
	static __thread char path[PATH_MAX];

	if (set->files == 1)
		return set->path;
	snprintf(path, sizeof(path), "%s.%llu", set->path,
		 (unsigned long long)i);
	return path;
}

static inline void make_file(const char *path, uint64_t first, uint64_t pages)
{
	static uint64_t chunk[CHUNK_PAGES * WORDS_PER_PAGE];
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0)
		die("Cannot create %s: %s.", path, strerror(errno));
	for (uint64_t page = 0; page < pages; page += CHUNK_PAGES) {
		uint64_t n = pages - page < CHUNK_PAGES ? pages - page :
							  CHUNK_PAGES;
		const char *from = (const char *)chunk;
		size_t left = n * PAGE_BYTES;

		for (uint64_t i = 0; i < n; i++)
			fill_page(chunk + i * WORDS_PER_PAGE, first + page + i);
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

/* "PROGRAM --make PATH BYTES [FILES]" makes the set and exits. Returns otherwise. */
static inline void make_if_asked(int argc, char **argv)
{
	struct file_set set = { .files = 1 };
	uint64_t pages;

	if (argc < 4 || argc > 5 || strcmp(argv[1], "--make"))
		return;
	set.path = argv[2];
	if (argc == 5)
		set.files = parse_number("FILES", argv[4], 1, MAX_FILES);
	pages = parse_number("BYTES", argv[3], PAGE_BYTES * set.files,
			     1ULL << 50) / PAGE_BYTES / set.files;
	for (uint64_t i = 0; i < set.files; i++)
		make_file(file_path(&set, i), i * pages, pages);
	exit(0);
}

static inline void on_bus_error(int signal)
{
	static const char text[] = WORKLOAD
		": The file could not be read through its mapping (SIGBUS).\n";

	(void)signal;
	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(2);
	_exit(1);
}

/* @prot and @flags as for mmap(). */
static inline void map_set(struct file_set *set, int prot, int flags)
{
	uint64_t bytes = 0;
	char *at = NULL;

	for (uint64_t i = 0; i < set->files; i++) {
		const char *path = file_path(set, i);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		struct stat st;

		if (fd < 0 || fstat(fd, &st))
			die("Cannot open %s: %s.", path, strerror(errno));
		if (!i) {
			bytes = (uint64_t)st.st_size & -PAGE_BYTES;
			if (!bytes)
				die("%s is smaller than one page.", path);
			at = mmap(NULL, bytes * set->files, PROT_NONE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
				  -1, 0);
			if (at == MAP_FAILED)
				die("Cannot map %s: %s.", path,
				    strerror(errno));
		} else if (bytes != ((uint64_t)st.st_size & -PAGE_BYTES)) {
			die("%s is not as large as the first file.", path);
		}
		if (mmap(at + i * bytes, bytes, prot, flags | MAP_FIXED, fd, 0) ==
		    MAP_FAILED)
			die("Cannot map %s: %s.", path, strerror(errno));
		close(fd);
	}
	set->words = (uint64_t *)at;
	set->pages = bytes / PAGE_BYTES * set->files;
	signal(SIGBUS, on_bus_error);
}

/* From page @from on, in a circle, until @stop. Returns the pages read. */
static inline uint64_t read_until(const struct file_set *set, uint64_t from,
				  const atomic_int *stop)
{
	uint64_t page = from, read = 0;

	while (!atomic_load_explicit(stop, memory_order_relaxed)) {
		check_page(set, page);
		page = page + 1 < set->pages ? page + 1 : 0;
		read++;
	}
	return read;
}

/* No reclaim before the page cache has filled the memory. */
static inline void wait_for_reclaim(void)
{
	struct timespec pause = { .tv_nsec = 10000000 };
	unsigned long long stolen = 0;
	char line[128];
	FILE *f;

	while (!stolen) {
		nanosleep(&pause, NULL);
		f = fopen("/proc/vmstat", "re");
		if (!f)
			die("Cannot read /proc/vmstat: %s.", strerror(errno));
		while (fgets(line, sizeof(line), f))
			if (sscanf(line, "pgsteal_file %llu", &stolen) == 1)
				break;
		fclose(f);
	}
}

#endif /* QUELL_MAPPED_FILE_H */
