// SPDX-License-Identifier: GPL-2.0-only
/*
 * jemalloc: an allocator that gives freed memory back at once, as in servers. stress-ng's
 * --malloc allocates and frees in threads of one process, with jemalloc's decay times at 0.
 * Measures early_ack and mm/gather_range.c with several initiators.
 * Usage: jemalloc [--threads N] [--ops N] DIRECTORY
 * redis/collect.sh makes DIRECTORY. --ops: of all threads, not a time, so that interrupts are
 * those of the same work. ops_per_s: bogo operations per second of real time.
 */
#define WORKLOAD "jemalloc"
#include "../workload.h"
#include "../tool.h"

int main(int argc, char **argv)
{
	char threads_arg[24], ops_arg[24], preload[4096];
	uint64_t threads = 4, ops = 60000;
	char *const words[] = {
		"stress-ng", "--malloc", "1", "--malloc-pthreads", threads_arg, "--malloc-touch",
		/* Each up to 64 kB. Its default, 65,536, fills 2 GB in each thread. */
		"--malloc-max", "1024",
		"--malloc-ops", ops_arg, "--metrics-brief", "--temp-path", "/tmp", NULL
	};
	int i = 1;

	for (; i + 2 < argc; i += 2) {
		if (!strcmp(argv[i], "--threads"))
			threads = parse_number("--threads", argv[i + 1], 1, 32);
		else if (!strcmp(argv[i], "--ops"))
			ops = parse_number("--ops", argv[i + 1], 1, 1 << 30);
		else
			break;
	}
	if (i + 1 != argc || argv[i][0] == '-')
		die("usage: " WORKLOAD " [--threads N] [--ops N] DIRECTORY");
	/* The process itself is one of them. */
	snprintf(threads_arg, sizeof(threads_arg), "%llu", (unsigned long long)threads - 1);
	snprintf(ops_arg, sizeof(ops_arg), "%llu", (unsigned long long)ops);
	snprintf(preload, sizeof(preload), "%s/lib/libjemalloc.so.2", argv[i]);
	if (access(preload, R_OK))
		die("There is no %s.", preload);
	setenv("LD_PRELOAD", preload, 1);
	setenv("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0", 1);
	figure_more("ops_per_s", reported(run_tool(argv[i], ".", words), "] malloc ", 4), "1/s");
	return 0;
}
