// SPDX-License-Identifier: GPL-2.0-only
/*
 * age: page faults before and after use that fragments memory. Measures the sizes that
 * mm/folio_order.c gets. Usage:
 *
 *	age [--turnover N] [--fill PERCENT] [--megabytes N] DIRECTORY
 *
 * A process, the ager, holds --fill percent of available memory in mappings of 4 KB to 4
 * MB. It replaces them at random, touches the new ones wholly, at random or one page in
 * three, and gives single pages back (MADV_DONTNEED). It also reads a file that does not
 * fit, and makes and removes files. It ends after --turnover times the available memory,
 * and does the same in each run. A process of its own fills memory page by page three
 * times:
 *
 *   fresh	before that
 *   full	after that, beside the ager: reclaim must find the memory
 *   freed	after the ager's end
 *
 * Figures: time per touched page; number, median and 99th percentile of faults; pages in
 * large folios; success of each size (mTHP's statistics); free memory in blocks of 64 KB
 * and more. All times include the clock's.
 */
#define WORKLOAD "age"
#include "../workload.h"
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS		8192
#define MAX_ORDER	10		/* mappings of up to 4 MB */
#define READ_BYTES	(256UL << 10)
#define FILES		16384		/* at a time */
#define FILES_DIR	"/run/quell/age"
#define THP_DIR		"/sys/kernel/mm/transparent_hugepage"
#define FIRST_KB	16
#define SIZES		5		/* 16 KB to 256 KB */

static uint64_t state = RANDOM_START;

static uint64_t draw(uint64_t below)
{
	return (next_random(&state) >> 11) % below;
}

/* --- Kernel statistics --------------------------------------------------------- */

/* -1 if no line of @file begins with @key. */
static int64_t number_in(const char *file, const char *key)
{
	char line[512];
	FILE *f = fopen(file, "re");
	int64_t value = -1;

	if (!f)
		return -1;
	while (value < 0 && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			value = (int64_t)strtoull(line + strlen(key), NULL, 10);
	fclose(f);
	return value;
}

struct folios {
	int64_t alloc[SIZES], fallback[SIZES], pressure;
};

static struct folios folios_now(void)
{
	struct folios now;

	for (unsigned int i = 0; i < SIZES; i++) {
		char path[160];

		snprintf(path, sizeof(path), THP_DIR "/hugepages-%ukB/stats/anon_fault_alloc",
			 FIRST_KB << i);
		now.alloc[i] = number_in(path, "");
		snprintf(path, sizeof(path), THP_DIR "/hugepages-%ukB/stats/anon_fault_fallback",
			 FIRST_KB << i);
		now.fallback[i] = number_in(path, "");
		if (now.alloc[i] < 0 || now.fallback[i] < 0)
			die("This kernel has no statistics of large folios.");
	}
	now.pressure = number_in("/proc/vmstat", "folio_order_pressure ");
	return now;
}

/* Since @before; @pages were touched. */
static void report_folios(const char *when, const struct folios *before, uint64_t pages)
{
	struct folios now = folios_now();
	uint64_t large = 0;
	char name[64];

	for (unsigned int i = 0; i < SIZES; i++) {
		int64_t alloc = now.alloc[i] - before->alloc[i];
		int64_t tried = alloc + now.fallback[i] - before->fallback[i];

		large += (uint64_t)alloc * (FIRST_KB << i) * 1024 / PAGE_BYTES;
		if (!tried)
			continue;
		snprintf(name, sizeof(name), "%s_%uk_success", when, FIRST_KB << i);
		figure_more(name, 100.0 * (double)alloc / (double)tried, "%");
	}
	snprintf(name, sizeof(name), "%s_large", when);
	figure_more(name, 100.0 * (double)large / (double)pages, "%");
	if (now.pressure >= 0) {
		snprintf(name, sizeof(name), "%s_pressure", when);
		figure(name, (double)(now.pressure - before->pressure), "faults");
	}
}

static void report_free(const char *when)
{
	FILE *f = fopen("/proc/buddyinfo", "re");
	uint64_t all = 0, large = 0;
	char line[512], name[64];

	if (!f)
		die("Cannot open /proc/buddyinfo: %s.", strerror(errno));
	while (fgets(line, sizeof(line), f)) {
		char *at = strstr(line, "zone"), *end;

		if (!at)
			continue;
		at += strlen("zone");
		at += strspn(at, " ");
		at += strcspn(at, " ");		/* the zone's name */
		for (unsigned int order = 0; ; order++, at = end) {
			uint64_t blocks = strtoull(at, &end, 10);

			if (end == at)
				break;
			all += blocks << order;
			if (order >= 4)
				large += blocks << order;
		}
	}
	fclose(f);
	if (!all)
		die("/proc/buddyinfo tells nothing.");
	snprintf(name, sizeof(name), "%s_free", when);
	figure_more(name, (double)(all * PAGE_BYTES / 1024), "kB");
	snprintf(name, sizeof(name), "%s_free_64k", when);
	figure_more(name, 100.0 * (double)large / (double)all, "%");
}

/* --- Measuring --------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void fill(const char *when, uint64_t pages)
{
	uint32_t *times = calloc(pages, sizeof(*times));
	uint64_t all = 0, faults = 0, seen;
	struct folios before;
	char name[64];
	char *region;

	if (!times)
		die("No memory for %llu times.", (unsigned long long)pages);
	memset(times, 1, pages * sizeof(*times));	/* their own faults */
	region = map_anonymous(pages * PAGE_BYTES);
	before = folios_now();
	seen = minor_faults();
	for (uint64_t i = 0; i < pages; i++) {
		volatile uint64_t *page = (uint64_t *)(region + i * PAGE_BYTES);
		uint64_t start = now_ns(), elapsed, now;

		*page = i + 1;
		elapsed = now_ns() - start;
		all += elapsed;
		now = minor_faults();
		if (now != seen)
			times[faults++] = elapsed < UINT32_MAX ? (uint32_t)elapsed : UINT32_MAX;
		seen = now;
	}
	if (!faults)
		die("Touching new pages took no fault.");
	report_folios(when, &before, pages);
	for (uint64_t i = 0; i < pages; i++) {
		uint64_t *page = (uint64_t *)(region + i * PAGE_BYTES);

		if (page[0] != i + 1 || page[1])
			die("Page %llu is not as it was written.", (unsigned long long)i);
	}
	qsort(times, faults, sizeof(*times), by_size);
	snprintf(name, sizeof(name), "%s_ns_per_page", when);
	figure(name, (double)all / (double)pages, "ns");
	snprintf(name, sizeof(name), "%s_fault_median_ns", when);
	figure(name, times[faults / 2], "ns");
	snprintf(name, sizeof(name), "%s_fault_p99_ns", when);
	figure(name, times[faults * 99 / 100], "ns");
	snprintf(name, sizeof(name), "%s_faults", when);
	figure(name, (double)faults, "faults");
}

static void measure(const char *when, uint64_t pages)
{
	int status;
	pid_t pid;

	report_free(when);
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		die("Cannot fork: %s.", strerror(errno));
	if (!pid) {
		fill(when, pages);
		fflush(stdout);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		die("The process that measures failed.");
}

/* --- Ageing ------------------------------------------------------------------ */

static struct slot {
	char *start;
	uint64_t pages, touched;	/* touched: an upper bound */
} slots[SLOTS];

static uint64_t held, touched;		/* pages */

/* A read first would map the zero page and cost a second fault. */
static void write_page(struct slot *slot, uint64_t page)
{
	*(volatile uint64_t *)(slot->start + page * PAGE_BYTES) = page + 1;
}

static void drop(struct slot *slot)
{
	if (!slot->start)
		return;
	for (uint64_t page = 0; page < slot->pages; page += slot->pages / 4 + 1) {
		uint64_t word = *(uint64_t *)(slot->start + page * PAGE_BYTES);

		if (word && word != page + 1)
			die("A page of the ager is not as it was written.");
	}
	munmap(slot->start, slot->pages * PAGE_BYTES);
	held -= slot->touched;
	memset(slot, 0, sizeof(*slot));
}

static void replace(struct slot *slot, uint64_t target)
{
	uint64_t order = draw(MAX_ORDER + 1), how = draw(4);

	drop(slot);
	slot->pages = (1UL << order) - draw((1UL << order) / 2 + 1);
	while (held + slot->pages > target)
		drop(&slots[draw(SLOTS)]);
	slot->start = map_anonymous(slot->pages * PAGE_BYTES);
	if (how < 2)
		for (uint64_t page = 0; page < slot->pages; page++, slot->touched++)
			write_page(slot, page);
	else if (how == 2)
		for (; slot->touched < slot->pages / 2 + 1; slot->touched++)
			write_page(slot, draw(slot->pages));
	else
		for (uint64_t page = 0; page < slot->pages; page += 3, slot->touched++)
			write_page(slot, page);
	held += slot->touched;
	touched += slot->touched;
}

static void make_holes(const struct slot *slot)
{
	if (!slot->start)
		return;
	for (int i = 0; i < 4; i++)
		madvise(slot->start + draw(slot->pages) * PAGE_BYTES, PAGE_BYTES,
			MADV_DONTNEED);
}

static void churn_cache(int fd, uint64_t bytes)
{
	static char buffer[READ_BYTES];
	uint64_t place = draw(bytes / READ_BYTES) * READ_BYTES;

	if (pread(fd, buffer, READ_BYTES, (off_t)place) != (ssize_t)READ_BYTES)
		die("Cannot read the file: %s.", strerror(errno));
}

/* Files come and go; missing names leave dentries, too. */
static void churn_slabs(const char *directory)
{
	static bool there[FILES];
	struct stat st;
	char path[160];

	for (int i = 0; i < 16; i++) {
		uint64_t number = draw(FILES);
		int fd;

		snprintf(path, sizeof(path), FILES_DIR "/%llu", (unsigned long long)number);
		if (there[number]) {
			unlink(path);
		} else {
			fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
			if (fd < 0)
				die("Cannot make %s: %s.", path, strerror(errno));
			close(fd);
		}
		there[number] = !there[number];
		snprintf(path, sizeof(path), "%s/none-%llu", directory,
			 (unsigned long long)draw(1 << 20));
		stat(path, &st);
	}
}

static void age(const char *directory, uint64_t target, uint64_t turnover)
{
	struct stat st;
	char path[160];
	int fd;

	snprintf(path, sizeof(path), "%s/file", directory);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) || st.st_size < (off_t)READ_BYTES)
		die("Cannot use %s: %s.", path, strerror(errno));
	while (touched < turnover) {
		struct slot *slot = &slots[draw(SLOTS)];

		switch (draw(8)) {
		case 0:
			make_holes(slot);
			break;
		case 1:
			churn_cache(fd, (uint64_t)st.st_size);
			break;
		case 2:
			churn_slabs(directory);
			break;
		default:
			replace(slot, target);
		}
	}
	close(fd);
}

/* The process holds its memory until it is killed. */
static pid_t start_ager(const char *directory, uint64_t target, uint64_t turnover)
{
	int done[2];
	pid_t pid;
	char byte;

	if (pipe(done))
		die("Cannot make a pipe: %s.", strerror(errno));
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		die("Cannot fork: %s.", strerror(errno));
	if (!pid) {
		struct folios before = folios_now();

		close(done[0]);
		age(directory, target, turnover);
		report_folios("ageing", &before, touched);
		fflush(stdout);
		if (write(done[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(done[1]);
	if (read(done[0], &byte, 1) != 1)
		die("The process that ages memory failed.");
	close(done[0]);
	return pid;
}

int main(int argc, char **argv)
{
	uint64_t turnover = 20, percent = 80, mb = 48, pages, target, available;
	uint64_t start;
	pid_t ager;
	int i = 1;

	for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
		if (!strcmp(argv[i], "--turnover"))
			turnover = parse_number("--turnover", argv[i + 1], 1, 100000);
		else if (!strcmp(argv[i], "--fill"))
			percent = parse_number("--fill", argv[i + 1], 1, 90);
		else if (!strcmp(argv[i], "--megabytes"))
			mb = parse_number("--megabytes", argv[i + 1], 1, 1 << 20);
		else
			break;
	}
	if (i + 1 != argc)
		die("usage: " WORKLOAD " [--turnover N] [--fill PERCENT] [--megabytes N] DIRECTORY");
	if (mkdir(FILES_DIR, 0700) && errno != EEXIST)
		die("Cannot make " FILES_DIR ": %s.", strerror(errno));
	pages = (mb << 20) / PAGE_BYTES;
	/* Rounded: kernels that differ by a few pages do the same work. */
	available = (uint64_t)number_in("/proc/meminfo", "MemAvailable:") >> 14;
	available = (available << 24) / PAGE_BYTES;
	target = available * percent / 100;

	measure("fresh", pages);
	start = now_ns();
	ager = start_ager(argv[i], target, turnover * available);
	figure("ageing_s", (double)(now_ns() - start) / NSEC_PER_SEC, "s");
	measure("full", pages);
	kill(ager, SIGKILL);
	waitpid(ager, NULL, 0);
	measure("freed", pages);
	return 0;
}
