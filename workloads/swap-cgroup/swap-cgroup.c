// SPDX-License-Identifier: GPL-2.0-only
/*
 * swap-cgroup: stress-ng's --vm with --vm-keep and --verify, as published for batched
 * flushes of dirty folios. The cgroup limit is a quarter of its memory. Measures
 * mm/writeout_batch.c.
 * Usage: swap-cgroup [--workers N] [--ops N] [--bytes N] DIRECTORY
 * redis/collect.sh makes DIRECTORY. --ops: of all workers, not a time: a run of stock on zram
 * counted none in 8 s. ops_per_s: bogo operations per second of real time.
 */
#define WORKLOAD "swap-cgroup"
#include "../workload.h"
#include "../tool.h"

int main(int argc, char **argv)
{
	uint64_t workers = 4, ops = 64, bytes = 64 << 20;
	char workers_arg[24], ops_arg[24], bytes_arg[24];
	char *const words[] = {
		"stress-ng", "--vm", workers_arg, "--vm-bytes", bytes_arg, "--vm-keep",
		"--verify", "--vm-ops", ops_arg, "--metrics-brief", "--temp-path", "/tmp", NULL
	};
	int i = 1;

	for (; i + 2 < argc; i += 2) {
		if (!strcmp(argv[i], "--workers"))
			workers = parse_number("--workers", argv[i + 1], 1, 256);
		else if (!strcmp(argv[i], "--ops"))
			ops = parse_number("--ops", argv[i + 1], 1, 1 << 20);
		else if (!strcmp(argv[i], "--bytes"))
			bytes = parse_number("--bytes", argv[i + 1], 1 << 20, 1ULL << 40);
		else
			break;
	}
	if (i + 1 != argc || argv[i][0] == '-')
		die("usage: " WORKLOAD " [--workers N] [--ops N] [--bytes N] DIRECTORY");
	snprintf(workers_arg, sizeof(workers_arg), "%llu", (unsigned long long)workers);
	snprintf(ops_arg, sizeof(ops_arg), "%llu", (unsigned long long)ops);
	snprintf(bytes_arg, sizeof(bytes_arg), "%llu", (unsigned long long)bytes);
	/* vm, bogo ops, real time, user time, system time, bogo ops per s of real time */
	figure_more("ops_per_s", reported(run_tool(argv[i], ".", words), "] vm ", 4), "1/s");
	return 0;
}
