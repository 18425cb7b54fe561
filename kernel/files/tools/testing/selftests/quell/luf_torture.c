// SPDX-License-Identifier: GPL-2.0-only
/*
 * Torture of lazy unmap flush, the user-space half: no read, write or execution goes
 * through a stale TLB entry. Attacks R1 to R5 of mm/luf.c in random combinations. Usage:
 *
 *	luf_torture DIR [--seconds N] [--reads N] [--seed N] [--only ACTION,...]
 *
 * DIR is on a file system that lazy unmap flush supports (ext4). Every 64-bit word names
 * its file or memory, its generation and its place. The states that an address may show are
 * in its struct window. A writer adds the new state before a change (may_change()) and
 * removes the old ones after it (has_changed()). A reader notes the window before and after
 * a read. The word must be one of these states, or a mix of their bytes, as a copy need not
 * be atomic.
 *
 * Most work is done in short rounds, as much flushes a TLB. Readers on other CPUs spin over
 * a small mapping. Its pages are taken away, mostly by another process: a madvise() or
 * munmap() in the same mm would flush. An action of actions[] makes old states illegal, and
 * the readers look.
 *
 * Background processes read a larger file under memory pressure while it is written and
 * paged out. They move the tunables. mm/luf_torture.c, the kernel half, poisons freed
 * frames and hotplugs CPUs. The ledger (mm/luf_debug.c) is read. Both are optional.
 *
 * A violation prints the round, the word and the legal states. The exit code is 1.
 */
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "luf_torture.h"

#define KERNEL_HALF	"/sys/module/luf_torture/parameters/"
#define LEDGER		"/sys/module/luf_debug/parameters/violations"

#define STUCK		60.0
/* Extra seconds on a busy host. */
#define GRACE		60.0

struct shared *sh;
static const char *dir;
int nr_cpus, nr_nodes;
unsigned int big_chunks;
double started;
__thread uint64_t random_state;
char doing[128];		/* the round, for reports */

unsigned int pick(unsigned int n)
{
	return next_random(&random_state) % n;
}

bool stopped(void)
{
	return atomic_load(&sh->stop);
}

static struct process {
	const char *name;
	pid_t pid;
} processes[8];

static unsigned int nr_processes;

/* True in the new process. */
static bool spawn(const char *name)
{
	pid_t pid = must_fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* The torturer is first and finds the most. */
		if (nr_processes && nice(10) < 0)
			die("nice");
		random_state += nr_processes * 0x9e3779b97f4a7c15UL;
		return true;
	}
	processes[nr_processes].name = name;
	processes[nr_processes++].pid = pid;
	return false;
}

static unsigned long reads_so_far(void)
{
	unsigned long sum = 0;

	for (unsigned int i = 0; i < MAX_CPUS + 2; i++)
		sum += atomic_load(&sh->reads[i]);
	return sum;
}

/* Returns the name of a process that ended. */
static const char *ended(int *status)
{
	for (unsigned int i = 0; i < nr_processes; i++) {
		if (processes[i].pid && waitpid(processes[i].pid, status, WNOHANG) > 0) {
			processes[i].pid = 0;
			return processes[i].name;
		}
	}
	return NULL;
}

static bool stop_all(void)
{
	double limit = now() + STUCK;
	bool all, clean = true;
	int status;

	atomic_store(&sh->stop, true);
	do {
		usleep(5000);
		while (ended(&status))
			clean &= WIFEXITED(status) && !WEXITSTATUS(status);
		all = true;
		for (unsigned int i = 0; i < nr_processes; i++)
			all &= !processes[i].pid;
	} while (!all && now() < limit);
	for (unsigned int i = 0; i < nr_processes; i++) {
		if (!processes[i].pid)
			continue;
		ksft_print_msg("the process '%s' did not stop\n", processes[i].name);
		kill(processes[i].pid, SIGKILL);
	}
	return all && clean;
}

static void count_nodes(void)
{
	FILE *f = fopen("/sys/devices/system/node/has_memory", "r");
	int first, last;

	nr_nodes = 1;
	if (!f)
		return;
	/* Nodes 0 to N only. */
	if (fscanf(f, "%d-%d", &first, &last) == 2 && first == 0 && last > 0 && last < 64)
		nr_nodes = last + 1;
	fclose(f);
}

static void find_cgroup(void)
{
	FILE *f = fopen("/proc/self/cgroup", "r");
	char line[2048];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "0::%2047[^\n]", line) == 1)
			snprintf(reclaim_path, sizeof(reclaim_path),
				 "/sys/fs/cgroup%s/memory.reclaim", line);
	if (f)
		fclose(f);
}

static void make_files(void)
{
	struct statvfs fs;

	if (statvfs(dir, &fs))
		die(dir);
	big_chunks = fs.f_bavail * fs.f_frsize / 2 / SIZE;
	if (big_chunks < 4)
		ksft_exit_skip("the file system is too small\n");
	if (big_chunks > MAX_CHUNKS)
		big_chunks = MAX_CHUNKS;

	for (unsigned int i = 0; i < NR_FILES; i++) {
		snprintf(files[i].path, sizeof(files[i].path), "%s/luf_torture.%u", dir, i);
		close(must_open(files[i].path, O_RDWR | O_CREAT | O_TRUNC));
		files[i].state.content = ZERO;
	}
	snprintf(big_path, sizeof(big_path), "%s/luf_torture.big", dir);
	close(must_open(big_path, O_RDWR | O_CREAT | O_TRUNC));
	for (unsigned int i = 0; i < big_chunks; i++) {
		window_init(&sh->chunks[i], content(BIG_FILE, 0));
		write_chunk(i, false);
	}
}

static void remove_files(void)
{
	for (unsigned int i = 0; i < NR_FILES; i++)
		unlink(files[i].path);
	unlink(big_path);
}

static unsigned long to_number(const char *option, const char *text)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || end == text || *end || *text == '-') {
		fprintf(stderr, "luf_torture: %s takes a number, not '%s'\n", option, text);
		exit(2);
	}
	return value;
}

static void wrong_usage(void)
{
	fprintf(stderr,
		"usage: luf_torture DIR [--seconds N] [--reads N] [--seed N] [--only ACTION,...]\n");
	exit(2);
}

/* @parked: luf_park, or -1. */
static bool nothing_done(long parked)
{
	return atomic_load(&sh->skipped) >= atomic_load(&sh->rounds) ||
	       vm_counter("luf_park") == parked;
}

static const char *watch(double seconds, unsigned long reads, long parked)
{
	long ledger = number_in(LEDGER, ""), kernel = number_in(KERNEL_HALF "violations", "");
	unsigned long rounds = 0, round_now;
	double moved = now(), phase = now() + 0.5;
	static char found[160];
	const char *name;
	int status;

	while (!stopped() &&
	       (!seconds || now() < started + seconds ||
		(now() < started + seconds + GRACE && nothing_done(parked))) &&
	       (!reads || reads_so_far() < reads)) {
		usleep(10000);
		if (background_on && now() > phase) {
			bool on = !atomic_load(&sh->background);

			atomic_store(&sh->background, on);
			phase = now() + (on ? 0.25 : 2.5);
		}
		if (number_in(LEDGER, "") > ledger)
			return "ledger";
		if (number_in(KERNEL_HALF "violations", "") > kernel)
			return "kernel half";
		name = stopped() ? NULL : ended(&status);
		if (name) {
			snprintf(found, sizeof(found),
				 "user half (the process '%s' ended with %s %d)", name,
				 WIFSIGNALED(status) ? "signal" : "exit code",
				 WIFSIGNALED(status) ? WTERMSIG(status) :
				 WEXITSTATUS(status));
			return found;
		}
		round_now = atomic_load(&sh->rounds) + atomic_load(&sh->skipped);
		if (round_now != rounds) {
			rounds = round_now;
			moved = now();
		} else if (now() > moved + STUCK) {
			return "user half (no round ended for a long time)";
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct sigaction fault = {
		.sa_sigaction = on_fault,
		.sa_flags = SA_SIGINFO | SA_NODEFER,
	};
	unsigned long seconds = 0, reads = 0, seed = 0, sum;
	bool kernel_half = false, clean;
	long parked, kernel, ledger;
	char *only = NULL;
	const char *found;
	double elapsed;

	for (int i = 1; i < argc; i++) {
		const char *option = argv[i];

		if (option[0] != '-' && !dir)
			dir = option;
		else if (++i == argc)
			wrong_usage();
		else if (!strcmp(option, "--seconds"))
			seconds = to_number(option, argv[i]);
		else if (!strcmp(option, "--reads"))
			reads = to_number(option, argv[i]);
		else if (!strcmp(option, "--seed"))
			seed = to_number(option, argv[i]);
		else if (!strcmp(option, "--only"))
			only = argv[i];
		else
			wrong_usage();
	}
	if (!dir)
		wrong_usage();
	if (!seconds && !reads)
		seconds = 15;
	select_actions(only);
	ksft_print_header();
	need_luf();
	nr_cpus = sysconf(_SC_NPROCESSORS_ONLN);
	if (nr_cpus < 2)
		ksft_exit_skip("two CPUs are needed\n");
	if (nr_cpus > MAX_CPUS)
		nr_cpus = MAX_CPUS;

	sh = map_shared(sizeof(*sh));
	buffer = map_private(SIZE);
	sigaction(SIGBUS, &fault, NULL);
	sigaction(SIGSEGV, &fault, NULL);
	sigaction(SIGILL, &fault, NULL);
	sigaction(SIGTRAP, &fault, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (!seed)
		seed = (uint64_t)(now() * 1e9) | 1;
	random_state = seed * 0x9e3779b97f4a7c15UL | 1;
	count_nodes();
	find_cgroup();
	set_nodes(true);
	make_files();
	ksft_print_msg("%d CPUs, %d nodes, seed %lu\n", nr_cpus, nr_nodes, seed);
	if (!access(KERNEL_HALF "run", W_OK)) {
		kernel_half = try_write(KERNEL_HALF "run", "1");
		if (!kernel_half)
			ksft_print_msg("the kernel half did not start: %s\n", strerror(errno));
	}

	/* A process may be killed before it has restored them. */
	save_setting(LUF "enabled");
	save_setting(STALE_MS);
	save_setting(LOT_PAGES);
	parked = vm_counter("luf_park");
	ledger = number_in(LEDGER, "");
	kernel = number_in(KERNEL_HALF "violations", "");
	started = now();
	if (spawn("torturer"))
		torturer(random_state | 1);
	if (background_on) {
		if (spawn("big readers"))
			big_readers();
		if (spawn("big writer"))
			big_writer();
		if (spawn("pressure"))
			pressure();
		if (spawn("knobs"))
			knobs();
	}
	found = watch(seconds, reads, only ? -1 : parked);
	elapsed = now() - started;
	if (found)
		ksft_print_msg("VIOLATION: by %s after %.3f s\n", found, elapsed);
	clean = stop_all();
	if (kernel_half)
		try_write(KERNEL_HALF "run", "0");
	if (atomic_load(&sh->violation.complete))
		print_violation(&sh->violation);
	remove_files();

	sum = reads_so_far();
	print_rounds();
	ksft_print_msg("in the background: %lu writes, %lu fills, %lu tunables\n",
		       atomic_load(&sh->big_writes), atomic_load(&sh->fills),
		       atomic_load(&sh->knobs));
	ksft_print_msg("%lu reads checked in %.1f s, %.0f per second\n", sum, elapsed,
		       sum / elapsed);
	test_result(!atomic_load(&sh->violation.claimed) && clean && !found && sum &&
		    atomic_load(&sh->skipped) < atomic_load(&sh->rounds),
		    "luf_torture reads: %lu checked in %lu rounds, %lu more could not be done",
		    sum, atomic_load(&sh->rounds), atomic_load(&sh->skipped));
	if (!only) {
		parked = vm_counter("luf_park") - parked;
		test_result(parked > 0, "luf_torture deferred: %ld pages deferred", parked);
	}
	if (kernel_half) {
		kernel = number_in(KERNEL_HALF "violations", "");
		test_result(!kernel, "luf_torture kernel half: %ld violations", kernel);
	}
	if (ledger >= 0) {
		ledger = number_in(LEDGER, "") - ledger;
		test_result(!ledger, "luf_torture ledger: %ld violations", ledger);
	}
	test_end();
}
