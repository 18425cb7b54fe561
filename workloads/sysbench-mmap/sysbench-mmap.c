// SPDX-License-Identifier: GPL-2.0-only
/*
 * sysbench-mmap: sysbench's fileio with mapped files, written to at random by
 * several threads, with fdatasync after each 100 requests. Each page that is
 * written back is write-protected first, in a mapping that all threads use.
 *
 * The directory it is given is made by collect.sh: sysbench, its libraries, and
 * the files, of --bytes together. What sysbench reports becomes figures.
 */
#define WORKLOAD "sysbench-mmap"
#include "../workload.h"
#include <sys/wait.h>
#include <unistd.h>

#define REPORT_BYTES	65536

/* Replaces this process by sysbench, which writes to @out. */
static void __attribute__((noreturn))
run(const char *directory, uint64_t threads, uint64_t seconds, uint64_t bytes,
    int out)
{
	char program[4096], library[4096], files[4096];
	char threads_arg[48], time_arg[48], size_arg[48];

	snprintf(program, sizeof(program), "%s/bin/sysbench", directory);
	snprintf(library, sizeof(library), "%s/lib", directory);
	snprintf(files, sizeof(files), "%s/files", directory);
	snprintf(threads_arg, sizeof(threads_arg), "--threads=%llu",
		 (unsigned long long)threads);
	snprintf(time_arg, sizeof(time_arg), "--time=%llu",
		 (unsigned long long)seconds);
	snprintf(size_arg, sizeof(size_arg), "--file-total-size=%llu",
		 (unsigned long long)bytes);
	setenv("LD_LIBRARY_PATH", library, 1);
	if (chdir(files))
		die("There is no %s: %s.", files, strerror(errno));
	if (dup2(out, STDOUT_FILENO) < 0)
		die("Cannot redirect sysbench: %s.", strerror(errno));
	execl(program, "sysbench", "fileio", "--file-num=16", size_arg,
	      "--file-test-mode=rndwr", "--file-io-mode=mmap",
	      "--file-fsync-mode=fdatasync", "--rand-seed=1", threads_arg,
	      time_arg, "run", (char *)NULL);
	die("Cannot run sysbench: %s.", strerror(errno));
}

/* The number behind @label in sysbench's report. */
static double reported(const char *report, const char *label)
{
	const char *at = strstr(report, label);
	double value;
	char *end;

	if (!at)
		die("sysbench did not report '%s'.", label);
	at += strlen(label);
	value = strtod(at, &end);
	if (end == at || value <= 0)
		die("sysbench reported no number for '%s'.", label);
	return value;
}

int main(int argc, char **argv)
{
	uint64_t threads = 4, seconds = 4, bytes = 64 << 20;
	static char report[REPORT_BYTES];
	size_t length = 0;
	int status, tell[2], i = 1;
	double events;
	ssize_t got;
	pid_t child;

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
	if (pipe(tell))
		die("Cannot make a pipe: %s.", strerror(errno));
	child = fork();
	if (child < 0)
		die("Cannot start a process: %s.", strerror(errno));
	if (!child)
		run(argv[i], threads, seconds, bytes, tell[1]);
	close(tell[1]);
	while ((got = read(tell[0], report + length,
			   sizeof(report) - 1 - length)) > 0)
		length += (size_t)got;
	if (waitpid(child, &status, 0) != child)
		die("Cannot wait for sysbench: %s.", strerror(errno));
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		die("sysbench failed: %s", report);
	events = reported(report, "total number of events:");
	figure_more("events", events, "events");
	figure_more("events_per_s", events / reported(report, "total time:"),
		    "events/s");
	return 0;
}
