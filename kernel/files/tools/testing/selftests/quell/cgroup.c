// SPDX-License-Identifier: GPL-2.0-only
/* A memory cgroup: see system.h. */
#include <sys/stat.h>

#include "pages.h"
#include "system.h"

#define CGROUP_ROOT	"/sys/fs/cgroup/"

char cgroup[128];

void cgroup_path(char *path, size_t size, const char *file)
{
	snprintf(path, size, "%s/%s", cgroup, file);
}

bool make_cgroup(const char *name)
{
	char path[256];

	try_write(CGROUP_ROOT "cgroup.subtree_control", "+memory");
	snprintf(cgroup, sizeof(cgroup), CGROUP_ROOT "%s.%d", name, getpid());
	cgroup_path(path, sizeof(path), "memory.reclaim");
	if (mkdir(cgroup, 0755) || access(path, W_OK)) {
		rmdir(cgroup);
		cgroup[0] = 0;
		return false;
	}
	return true;
}

void remove_cgroup(void)
{
	if (cgroup[0])
		rmdir(cgroup);
	cgroup[0] = 0;
}

bool enter_cgroup(void)
{
	char path[256];

	cgroup_path(path, sizeof(path), "cgroup.procs");
	return cgroup[0] && try_write(path, "0");
}

void leave_cgroup(void)
{
	try_write(CGROUP_ROOT "cgroup.procs", "0");
	remove_cgroup();
}

/* Reclaim scans by statistics. Small deltas are not flushed without this. */
static void flush_cgroup(void)
{
	char path[256], text[1024];

	cgroup_path(path, sizeof(path), "cpu.stat");
	try_read(path, text, sizeof(text));
}

static long cgroup_number(const char *file, const char *name)
{
	char path[256];

	cgroup_path(path, sizeof(path), file);
	return number_in(path, name);
}

const char *cgroup_rest(void)
{
	static const char * const names[] = {
		"anon ", "anon_thp ", "file_mapped ", "shmem ", "swapcached ", "unevictable ",
	};
	static char left[256];
	cpu_set_t cpus;
	long swap;

	sched_getaffinity(0, sizeof(cpus), &cpus);
	for (int tries = 0; tries < 150; tries++) {
		/* The flush of every 2 s has a timer that does not wake its CPU. */
		try_pin(tries % CPU_COUNT(&cpus));
		flush_cgroup();
		left[0] = 0;
		for (unsigned long i = 0; i < ARRAY_SIZE(names); i++) {
			long value = cgroup_number("memory.stat", names[i]);

			if (value > 0)
				snprintf(left + strlen(left), sizeof(left) - strlen(left),
					 "%s%ld ", names[i], value);
		}
		swap = cgroup_number("memory.swap.current", "");
		if (swap > 0)
			snprintf(left + strlen(left), sizeof(left) - strlen(left),
				 "swap %ld ", swap);
		if (!left[0])
			break;
		drain_lru();
		usleep(100000);
	}
	sched_setaffinity(0, sizeof(cpus), &cpus);
	return left;
}

void reclaim_cgroup(unsigned long bytes, bool anonymous)
{
	char path[256], text[64];

	flush_cgroup();
	cgroup_path(path, sizeof(path), "memory.reclaim");
	snprintf(text, sizeof(text), "%lu swappiness=%d", bytes, anonymous ? 200 : 0);
	try_write(path, text);
}
