// SPDX-License-Identifier: GPL-2.0-only
/*
 * NMIs in ack-to-flush windows of early acknowledgment (arch/x86/mm/early_ack.c, A1). Debug kernels
 * only: the kernel's half, arch/x86/mm/tests/early_ack_nmi.h, keeps each window open for 20 ms and
 * sends the NMIs.
 *
 * A thread on CPU 1 reads a page. CPU 0 gives the page back, which returns once CPU 1 has
 * acknowledged. It fills new pages, of which one most likely has the same frame, and sends an NMI
 * to CPU 1. Its handler must not read the frame's new content through the stale entry.
 *
 * The NMI is an IPI. QEMU's `nmi` would enter the same handler, but on CPU 0 only, as Linux masks
 * LINT1 of the others. And it comes at a time of the host's, rarely in a window.
 */
#include <sys/syscall.h>

#include "system.h"

#define PARAMETERS	"/sys/module/early_ack/parameters/"
#define WINDOW_US	"20000"
#define ROUNDS		100
#define NEW_PAGES	64
#define OLD		0x1111111111111111UL
#define NEW		0x2222222222222222UL

static atomic_ulong passes;
static atomic_bool stop;
static atomic_ulong *page;

static void *read_page(void *unused __always_unused)
{
	pin(1);
	while (!atomic_load(&stop)) {
		(void)atomic_load(page);
		/* The kernel reads the page, too: QEMU caches its entries separately. */
		syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, page, NULL, sizeof(*page));
		atomic_fetch_add(&passes, 1);
	}
	return NULL;
}

static void let_pass(void)
{
	unsigned long until = atomic_load(&passes) + 2;

	while (atomic_load(&passes) < until)
		;
}

/* Returns whether the handler could read, what, and whether the CPU owed a flush. */
static bool read_by_nmi(uint64_t *word, int *owed)
{
	char text[64];
	int read;

	snprintf(text, sizeof(text), "1 %lx", (unsigned long)page);
	write_text(PARAMETERS "nmi", text);
	read_text(PARAMETERS "nmi", text, sizeof(text));
	if (sscanf(text, "%d %d %lx", &read, owed, word) != 3)
		die(PARAMETERS "nmi");
	return read;
}

/* Another task may run on CPU 1 for a moment. */
static bool reads_old(void)
{
	bool right = false;
	uint64_t word;
	int owed;

	for (int i = 0; i < 10 && !right; i++) {
		let_pass();
		right = read_by_nmi(&word, &owed) && word == OLD;
	}
	return right;
}

static void fill(uint64_t *pages)
{
	for (int i = 0; i < NEW_PAGES; i++)
		pages[i * WORDS] = NEW;
}

int main(void)
{
	int found = 0, in_window = 0, owed;
	pthread_t thread;
	uint64_t word = 0;
	uint64_t *new;

	ksft_print_header();
	if (access(PARAMETERS "nmi", W_OK) || sysconf(_SC_NPROCESSORS_ONLN) < 2) {
		test_skip("CONFIG_QUELL_MUTANTS, root and two CPUs", "NMIs in windows");
		test_end();
	}
	pin(0);
	page = map_private(PAGE);
	madvise((void *)page, PAGE, MADV_NOHUGEPAGE);
	atomic_store(page, OLD);
	start_thread(&thread, read_page, NULL);
	test_result(reads_old(), "an NMI outside of windows reads memory");

	save_setting(PARAMETERS "window_us");
	write_text(PARAMETERS "window_us", WINDOW_US);
	for (int round = 0; round < ROUNDS; round++) {
		new = map_private(NEW_PAGES * PAGE);
		madvise(new, NEW_PAGES * PAGE, MADV_NOHUGEPAGE);
		atomic_store(page, OLD);
		let_pass();
		must_advise((void *)page, PAGE, MADV_DONTNEED);
		fill(new);
		found += read_by_nmi(&word, &owed) && word == NEW;
		in_window += owed;
		munmap(new, NEW_PAGES * PAGE);
	}
	restore_settings();
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	test_result(!found, "no NMI in a window reads a freed frame");
	if (found)
		ksft_print_msg("%d of %d NMIs did\n", found, ROUNDS);
	test_result(in_window || found, "NMIs come in windows");
	test_end();
}
