// SPDX-License-Identifier: GPL-2.0-only
/*
 * sysbench-mmap: sysbench's fileio on mapped files: random writes by several threads,
 * fdatasync after 100 requests. Writeback write-protects pages of an mm that all threads
 * use (early_ack).
 * Usage: sysbench-mmap [--threads N] [--seconds N] [--bytes N] DIRECTORY
 * collect.sh makes DIRECTORY with files of --bytes together. Figures: sysbench's report.
 */
#define WORKLOAD "sysbench-mmap"
#include "../workload.h"
#include "../tool.h"

int main(int argc, char **argv)
{
	uint64_t threads = 4, seconds = 4, bytes = 64 << 20;
	char threads_arg[48], time_arg[48], size_arg[48];
	char *const words[] = {
		"sysbench", "fileio", "--file-num=16", size_arg, "--file-test-mode=rndwr",
		"--file-io-mode=mmap", "--file-fsync-mode=fdatasync", "--rand-seed=1",
		threads_arg, time_arg, "run", NULL
	};
	const char *report;
	double events;
	int i = 1;

	for (; i + 2 < argc; i += 2) {
		if (!strcmp(argv[i], "--threads"))
			threads = parse_number("--threads", argv[i + 1], 1, 256);
		else if (!strcmp(argv[i], "--seconds"))
			seconds = parse_number("--seconds", argv[i + 1], 1, 3600);
		else if (!strcmp(argv[i], "--bytes"))
			bytes = parse_number("--bytes", argv[i + 1], 1 << 20,
					     1ULL << 40);
		else
			break;
	}
	if (i + 1 != argc || argv[i][0] == '-')
		die("usage: " WORKLOAD " [--threads N] [--seconds N] [--bytes N] DIRECTORY");
	snprintf(threads_arg, sizeof(threads_arg), "--threads=%llu",
		 (unsigned long long)threads);
	snprintf(time_arg, sizeof(time_arg), "--time=%llu",
		 (unsigned long long)seconds);
	snprintf(size_arg, sizeof(size_arg), "--file-total-size=%llu",
		 (unsigned long long)bytes);
	report = run_tool(argv[i], "files", words);
	events = reported(report, "total number of events:", 0);
	if (events <= 0)
		die("sysbench reported no events.");
	figure_more("events", events, "events");
	figure_more("events_per_s", events / reported(report, "total time:", 0),
		    "events/s");
	return 0;
}
