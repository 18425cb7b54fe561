/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Common parts of the standard workloads. WORKLOAD, the program's name, is defined before.
 */
#ifndef QUELL_WORKLOAD_H
#define QUELL_WORKLOAD_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES	4096UL
#define NSEC_PER_SEC	1000000000ULL

#define ARRAY_SIZE(array)	(sizeof(array) / sizeof((array)[0]))

static void __attribute__((noreturn, format(printf, 1, 2)))
die(const char *format, ...)
{
	va_list args;

	/* One write: threads and children do not mix. */
	char text[512];

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, WORKLOAD ": %s\n", text);
	_Exit(1);
}

static inline uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static inline uint64_t parse_number(const char *what, const char *text,
				    uint64_t min, uint64_t max)
{
	char *end;
	uint64_t value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || text[0] == '-' ||
	    value < min || value > max)
		die("%s must be a number from %llu to %llu, not '%s'.", what,
		    (unsigned long long)min, (unsigned long long)max, text);
	return value;
}

#define RANDOM_START	88172645463325252ULL	/* any but 0 */

/* Marsaglia's xorshift. */
static inline uint64_t next_random(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

/* Less is better. */
static inline void figure(const char *name, double value, const char *unit)
{
	printf("figure %s %.6g %s\n", name, value, unit);
}

/* More is better. */
static inline void figure_more(const char *name, double value, const char *unit)
{
	printf("figure+ %s %.6g %s\n", name, value, unit);
}

static inline uint64_t minor_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (uint64_t)usage.ru_minflt;
}

static inline void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		die("Cannot write '%s' to %s: %s.", text, path, strerror(errno));
	close(fd);
}

#define CGROUPS		"/sys/fs/cgroup/"
#define OWN_CGROUP	CGROUPS WORKLOAD "/"

/* A memory cgroup, still empty. */
static inline void make_cgroup(void)
{
	write_file(CGROUPS "cgroup.subtree_control", "+memory");
	if (mkdir(OWN_CGROUP, 0755))
		die("Cannot make the cgroup %s: %s.", OWN_CGROUP, strerror(errno));
}

/* Its last memory is freed later. */
static inline void remove_cgroup(void)
{
	for (int tries = 0; rmdir(OWN_CGROUP) && tries < 100; tries++)
		usleep(50000);
}

/*
 * Makes a process with a memory cgroup of its own. Returns true in it, and false in the caller once
 * it has ended.
 */
static inline bool alone(void)
{
	int status;
	pid_t pid;

	make_cgroup();
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		die("Cannot fork: %s.", strerror(errno));
	if (!pid) {
		write_file(OWN_CGROUP "cgroup.procs", "0");
		return true;
	}
	if (waitpid(pid, &status, 0) != pid || status)
		die("A part of the workload ended with %#x.", status);
	remove_cgroup();
	return false;
}

/* memory.current or memory.peak of that cgroup. */
static inline double cgroup_kb(const char *name)
{
	char path[128];
	double bytes;
	FILE *f;

	snprintf(path, sizeof(path), OWN_CGROUP "%s", name);
	f = fopen(path, "re");
	if (!f || fscanf(f, "%lf", &bytes) != 1)
		die("Cannot read %s: %s.", path, strerror(errno));
	fclose(f);
	return bytes / 1024;
}

/* RssAnon of a process. */
static inline uint64_t anonymous_kb(pid_t pid)
{
	static char text[16384];
	const char *line;
	char path[64];
	size_t got;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	if (!f)
		die("Cannot open %s: %s.", path, strerror(errno));
	got = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[got] = 0;
	line = strstr(text, "\nRssAnon:");
	if (!line)
		die("%s has no RssAnon.", path);
	return strtoull(line + strlen("\nRssAnon:"), NULL, 10);
}

/* 0 if there is no such counter. */
static inline uint64_t vm_counter(const char *name)
{
	FILE *f = fopen("/proc/vmstat", "r");
	unsigned long long value, found = 0;
	char line[128], word[64];

	if (!f)
		die("Cannot read /proc/vmstat: %s.", strerror(errno));
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%63s %llu", word, &value) == 2 && !strcmp(word, name))
			found = value;
	fclose(f);
	return found;
}

/* Not populated. */
static inline void *map_anonymous(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		die("Cannot map %zu bytes: %s.", bytes, strerror(errno));
	return p;
}

static inline void start_thread(pthread_t *thread, void *(*run)(void *),
				void *arg)
{
	int error = pthread_create(thread, NULL, run, arg);

	if (error)
		die("Cannot start a thread: %s.", strerror(error));
}

#endif /* QUELL_WORKLOAD_H */
