/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Running a packaged program that collect.sh put onto the data disk, and reading its
 * report. Include after workload.h.
 */
#ifndef QUELL_TOOL_H
#define QUELL_TOOL_H

#include <sys/wait.h>
#include <unistd.h>

/* A longer report is cut. */
#define REPORT_BYTES	65536

/*
 * @argv[0] is a program in @directory/bin; its folder is @directory/@in. Returns stdout and
 * stderr, valid until the next call.
 */
static inline const char *run_tool(const char *directory, const char *in, char *const *argv)
{
	static char report[REPORT_BYTES];
	char program[4096], library[4096], folder[4096];
	size_t length = 0;
	int status, tell[2];
	ssize_t got;
	pid_t child;

	snprintf(program, sizeof(program), "%s/bin/%s", directory, argv[0]);
	snprintf(library, sizeof(library), "%s/lib", directory);
	snprintf(folder, sizeof(folder), "%s/%s", directory, in);
	if (pipe(tell))
		die("Cannot make a pipe: %s.", strerror(errno));
	child = fork();
	if (child < 0)
		die("Cannot start a process: %s.", strerror(errno));
	if (!child) {
		setenv("LD_LIBRARY_PATH", library, 1);
		if (chdir(folder))
			die("There is no %s: %s.", folder, strerror(errno));
		if (dup2(tell[1], STDOUT_FILENO) < 0 || dup2(tell[1], STDERR_FILENO) < 0)
			die("Cannot redirect %s: %s.", argv[0], strerror(errno));
		execv(program, argv);
		die("Cannot run %s: %s.", argv[0], strerror(errno));
	}
	close(tell[1]);
	while ((got = read(tell[0], report + length, sizeof(report) - 1 - length)) > 0)
		length += (size_t)got;
	report[length] = 0;
	close(tell[0]);
	if (waitpid(child, &status, 0) != child)
		die("Cannot wait for %s: %s.", argv[0], strerror(errno));
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		die("%s failed: %s", argv[0], report);
	return report;
}

/* The @nth number, from 0, after @label. */
static inline double reported(const char *report, const char *label, int nth)
{
	const char *at = strstr(report, label);
	double value = 0;
	char *end;

	if (!at)
		die("The report does not have '%s'.", label);
	for (at += strlen(label); nth-- >= 0; at = end) {
		value = strtod(at, &end);
		if (end == at)
			die("The report has no number for '%s'.", label);
	}
	return value;
}

#endif /* QUELL_TOOL_H */
