// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faults on anonymous memory get large folios beside used memory only, and unused memory
 * comes back. Attacks the policy, the splits and the reuse of mm/folio_order.c. Usage:
 *
 *	folio_order [DIR [TEST]]
 *
 * DIR is ignored. Needs root; some tests need swap or a memory cgroup. Settings are
 * restored, but mTHP sizes that were set by hand are left to folio_order again.
 */
#include <sys/resource.h>
#include <sys/wait.h>

#include "folio_order.h"

struct outcome *said;

void expect(bool ok, const char *fmt, ...)
{
	va_list args;

	if (ok)
		return;
	said->bad++;
	if (said->lines == LINES)
		return;
	va_start(args, fmt);
	vsnprintf(said->line[said->lines++], sizeof(said->line[0]), fmt, args);
	va_end(args);
}

void skip(const char *why)
{
	said->skipped = true;
	snprintf(said->why, sizeof(said->why), "%s", why);
}

/* --- Regions ------------------------------------------------------------- */

/* Private anonymous memory, aligned to 2 MB, without neighbors. */
char *map_region(unsigned long bytes)
{
	char *at = reserve(bytes + 2 * HUGE, HUGE) + HUGE;

	return must_map(at, bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1);
}

uint64_t mark(unsigned long i)
{
	return i * 0x9e3779b97f4a7c15ULL | 1;
}

void put(char *map, unsigned long i)
{
	*(volatile uint64_t *)(map + i * PAGE) = mark(i);
}

uint64_t get(char *map, unsigned long i)
{
	return *(volatile uint64_t *)(map + i * PAGE);
}

void fill(char *map, unsigned long from, unsigned long to)
{
	for (; from < to; from++)
		put(map, from);
}

/* Pages hold mark(), or 0 if not @written. */
void verify(char *map, unsigned long from, unsigned long to, bool written,
	    const char *when)
{
	for (unsigned long i = from; i < to; i++) {
		uint64_t is = get(map, i), right = written ? mark(i) : 0;

		expect(is == right && *(uint64_t *)(map + i * PAGE + PAGE - 8) == 0,
		       "%s: page %lu is %#lx, not %#lx", when, i, (unsigned long)is,
		       (unsigned long)right);
	}
}

unsigned long there(const char *map, unsigned long pages)
{
	uint64_t entries[512];
	unsigned long found = 0;

	for (unsigned long i = 0; i < pages; i += 512) {
		unsigned long n = pages - i < 512 ? pages - i : 512;

		pagemap_read(map + i * PAGE, n, entries);
		for (unsigned long k = 0; k < n; k++)
			found += !!(entries[k] & PM_PRESENT);
	}
	return found;
}

unsigned long largest(const char *map, unsigned long pages)
{
	unsigned long most = 0;

	for (unsigned long i = 0; i < pages;) {
		unsigned long n = folio_pages_at(map + i * PAGE);

		most = n > most ? n : most;
		i += n > 1 ? n - i % n : 1;
	}
	return most;
}

unsigned long faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

void expect_folio(const char *map, unsigned long i, unsigned int right)
{
	unsigned int pages = folio_pages_at(map + i * PAGE);

	expect(pages == right, "page %lu is in a folio of %u pages, not %u", i, pages, right);
}

void expect_largest(const char *map, unsigned long pages, unsigned long right)
{
	unsigned long most = largest(map, pages);

	expect(most == right, "the largest folio has %lu pages, not %lu", most, right);
}

void expect_new(unsigned long pages, unsigned long right, const char *when)
{
	char *map = map_region(BIG);
	unsigned long most;

	fill(map, 0, pages);
	most = largest(map, pages);
	expect(most == right, "%s: the largest folio has %lu pages, not %lu", when, most, right);
	munmap(map, BIG);
}

/* --- The tests ----------------------------------------------------------- */

static void run_test(const struct test *test)
{
	const char *complaint;
	int status;
	pid_t pid;

	memset(said, 0, sizeof(*said));
	restore_settings();
	write_text(THP "enabled", "madvise");
	write_text(SYSFS "enabled", "1");
	write_text(SYSFS "max_kb", "64");
	pid = must_fork();
	if (!pid) {
		alarm(240);
		test->run();
		_exit(0);
	}
	status = must_wait(pid);
	expect(!status, "it ended with %#x", status);
	complaint = kernel_complaint();
	expect(!complaint, "the kernel said: %s", complaint);
	if (said->skipped && !said->bad) {
		test_skip(said->why, "folio_order %s", test->name);
		return;
	}
	test_result(!said->bad, "folio_order %s: %d complaints", test->name, said->bad);
	for (int i = 0; i < said->lines; i++)
		ksft_print_msg("  %s\n", said->line[i]);
}

static const struct test * const tests[] = { size_tests, waste_tests, after_fault_tests };

int main(int argc, char **argv)
{
	const char *only = argc > 2 ? argv[2] : NULL;

	ksft_print_header();
	if (access(SYSFS, R_OK))
		ksft_exit_skip("this kernel has no folio_order\n");
	if (geteuid())
		ksft_exit_skip("root is needed\n");
	said = map_shared(sizeof(*said));
	save_setting(THP "enabled");
	save_setting(SYSFS "enabled");
	save_system();
	watch_kernel_log();
	for (unsigned int i = 0; i < ARRAY_SIZE(tests); i++)
		for (const struct test *test = tests[i]; test->name; test++)
			if (!only || !strcmp(only, test->name))
				run_test(test);
	test_end();
}
