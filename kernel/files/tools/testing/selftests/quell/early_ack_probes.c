// SPDX-License-Identifier: GPL-2.0-only
/* Probes before an acknowledged flush: they read no user memory. */
#include <sys/mount.h>

#include "early_ack.h"

#define TRACING		"/sys/kernel/tracing/"
#define PROBES		TRACING "kprobe_events"
#define PROBES_ON	TRACING "events/quell_test/enable"

static char probed[16];

/* O_APPEND: O_TRUNC removes all probes. fopen() seeks. */
static void change_probes(const char *line)
{
	int fd = open(PROBES, O_WRONLY | O_APPEND);

	if (fd < 0 || write(fd, line, strlen(line)) < 0)
		die(line);
	close(fd);
}

static void remove_probes(void)
{
	write_text(PROBES_ON, "0");
	change_probes("-:quell_test/take");
	change_probes("-:quell_test/owe");
}

static long traced(const char *one, const char *other)
{
	FILE *trace = fopen(TRACING "trace", "r");
	char line[512];
	long lines = 0;

	if (!trace)
		die(TRACING "trace");
	while (fgets(line, sizeof(line), trace))
		lines += strstr(line, one) && strstr(line, other);
	fclose(trace);
	return lines;
}

static void add_probe(const char *name, const char *function)
{
	char probe[160];

	/* A string shows "(fault)"; a number does not. */
	snprintf(probe, sizeof(probe), "p:quell_test/%s %s v=+u0(\\0x%lx):string", name,
		 function, (unsigned long)probed);
	change_probes(probe);
}

/*
 * The first probe may read the interrupted program's memory. The second one may not: the
 * flush is owed by then.
 */
void run_probes(struct totals *totals, unsigned long rounds, bool early)
{
	static const char name[] = "early_ack while a flush is owed no probe reads user memory";
	long before, in_window, refused;

	if (access(PROBES, F_OK))
		mount("tracefs", TRACING, "tracefs", 0, NULL);
	if (!early || access(PROBES, W_OK))
		return test_skip("CONFIG_KPROBE_EVENTS, and early_ack", name);
	/* Present once it is written. */
	snprintf(probed, sizeof(probed), "of the program");
	add_probe("take", "early_ack_take");
	add_probe("owe", "early_ack_run");
	atexit(remove_probes);
	write_text(TRACING "trace", "");
	write_text(PROBES_ON, "1");
	memset(totals, 0, sizeof(*totals));
	run_group(totals, DONTNEED, 1, 0, 1, 1, rounds);
	write_text(PROBES_ON, "0");

	before = traced(" take: ", probed);
	in_window = traced(" owe: ", probed);
	refused = traced(" owe: ", "v=(fault)");
	test_result(!found(totals) && before > 0 && refused > 0 && !in_window,
		    "%s: %ld before, %ld in the window, %ld refused", name, before,
		    in_window, refused);
}
