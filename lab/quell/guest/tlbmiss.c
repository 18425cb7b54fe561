// SPDX-License-Identifier: GPL-2.0-only
/*
 * tlbmiss COMMAND ARG...: runs a command and prints its TLB misses and those of its
 * children as figures, by the processor's counters. Exits as the command does. Without
 * counters it reports that on stderr and just runs the command.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CACHE_MISS(cache, op)	((cache) | (op) << 8 | PERF_COUNT_HW_CACHE_RESULT_MISS << 16)
#define COUNTERS		3

static const struct {
	const char *name;
	uint64_t config;
} counters[COUNTERS] = {
	{ "dtlb_load_misses",
	  CACHE_MISS(PERF_COUNT_HW_CACHE_DTLB, PERF_COUNT_HW_CACHE_OP_READ) },
	{ "dtlb_store_misses",
	  CACHE_MISS(PERF_COUNT_HW_CACHE_DTLB, PERF_COUNT_HW_CACHE_OP_WRITE) },
	{ "itlb_misses",
	  CACHE_MISS(PERF_COUNT_HW_CACHE_ITLB, PERF_COUNT_HW_CACHE_OP_READ) },
};

/* Counts from exec on, in children. */
static int open_counter(uint64_t config)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_HW_CACHE,
		.size = sizeof(attr),
		.config = config,
		.disabled = 1,
		.inherit = 1,
		.enable_on_exec = 1,
		.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED |
			       PERF_FORMAT_TOTAL_TIME_RUNNING,
	};

	return syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

int main(int argc, char **argv)
{
	int fd[COUNTERS], status;
	pid_t child;

	if (argc < 2) {
		fprintf(stderr, "usage: tlbmiss COMMAND ARG...\n");
		return 2;
	}
	/*
	 * Opened before the fork, to be inherited. They start at an exec, and only the
	 * child has one.
	 */
	for (int i = 0; i < COUNTERS; i++) {
		fd[i] = open_counter(counters[i].config);
		if (fd[i] < 0) {
			fprintf(stderr, "tlbmiss: no counter for %s: %s\n",
				counters[i].name, strerror(errno));
			execvp(argv[1], argv + 1);
			return 127;
		}
	}
	child = fork();
	if (child < 0) {
		perror("tlbmiss: fork");
		return 127;
	}
	if (!child) {
		execvp(argv[1], argv + 1);
		perror("tlbmiss: exec");
		_exit(127);
	}
	if (waitpid(child, &status, 0) != child)
		return 127;
	for (int i = 0; i < COUNTERS; i++) {
		uint64_t got[3];	/* count, time enabled, time running */

		if (read(fd[i], got, sizeof(got)) != sizeof(got) || !got[2]) {
			fprintf(stderr, "tlbmiss: %s was not counted\n",
				counters[i].name);
			continue;
		}
		/* Scaled: counters may take turns. */
		printf("figure %s %.0f misses\n", counters[i].name,
		       (double)got[0] * (double)got[1] / (double)got[2]);
	}
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		raise(WTERMSIG(status));
	}
	return WEXITSTATUS(status);
}
