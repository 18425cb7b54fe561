// SPDX-License-Identifier: GPL-2.0-only
/*
 * kernel-build: the host's gcc compiles a fixed part of the kernel. Fork, exec, page faults
 * in fresh address spaces, a common page cache: no mechanism may slow it down. Usage:
 *
 *	kernel-build [--jobs N] DIRECTORY
 *
 * collect.sh makes DIRECTORY. The flags are those of the kernel's makefiles. Each object
 * must be a non-empty ELF file.
 */
#define WORKLOAD "kernel-build"
#include "../workload.h"
#include <elf.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_FILES	256
#define NAME_BYTES	256

struct unit {
	char source[NAME_BYTES];	/* such as lib/sort.c */
	char object[NAME_BYTES + 16];	/* such as ../objects/lib_sort.o */
	pid_t compiler;			/* 0 before and after */
};

static struct unit units[MAX_FILES];

static size_t read_units(void)
{
	FILE *f = fopen("../files", "re");
	char line[NAME_BYTES];
	size_t count = 0;

	if (!f)
		die("Cannot read the list of files: %s.", strerror(errno));
	while (fgets(line, sizeof(line), f)) {
		struct unit *unit = &units[count];
		size_t length = strcspn(line, "\n");

		line[length] = '\0';
		if (length < 3 || strcmp(line + length - 2, ".c"))
			die("The list of files holds '%s'.", line);
		if (++count > MAX_FILES)
			die("The list of files is too long.");
		memcpy(unit->source, line, length + 1);
		line[length - 2] = '\0';
		for (char *p = line; *p; p++)
			if (*p == '/')
				*p = '_';
		snprintf(unit->object, sizeof(unit->object), "../objects/%s.o",
			 line);
		if (unlink(unit->object) && errno != ENOENT)
			die("Cannot remove %s: %s.", unit->object,
			    strerror(errno));
	}
	fclose(f);
	if (!count)
		die("The list of files is empty.");
	return count;
}

static void __attribute__((noreturn)) compile(const struct unit *unit)
{
	char path[NAME_BYTES + 16], modfile[NAME_BYTES + 32];
	char basename[NAME_BYTES + 32], modname[NAME_BYTES + 32];
	char symbol[NAME_BYTES + 32];
	const char *slash = strrchr(unit->source, '/');
	const char *base = slash ? slash + 1 : unit->source;
	int stem = (int)strlen(unit->source) - 2;
	int base_stem = (int)strlen(base) - 2;

	/* As scripts/Makefile.lib adds for each file. */
	snprintf(path, sizeof(path), "../src/%.*s.c", stem, unit->source);
	snprintf(modfile, sizeof(modfile), "-DKBUILD_MODFILE=\"%.*s\"", stem,
		 unit->source);
	snprintf(basename, sizeof(basename), "-DKBUILD_BASENAME=\"%.*s\"",
		 base_stem, base);
	snprintf(modname, sizeof(modname), "-DKBUILD_MODNAME=\"%.*s\"",
		 base_stem, base);
	snprintf(symbol, sizeof(symbol), "-D__KBUILD_MODNAME=kmod_%.*s",
		 base_stem, base);
	execl("../bin/gcc", "gcc", "-B../bin/", "@../flags", modfile, basename,
	      modname, symbol, "-c", "-o", unit->object, path, (char *)NULL);
	die("Cannot run the compiler: %s.", strerror(errno));
}

static void start(struct unit *unit)
{
	unit->compiler = fork();
	if (unit->compiler < 0)
		die("Cannot start a compiler: %s.", strerror(errno));
	if (!unit->compiler)
		compile(unit);
}

static void check_object(const struct unit *unit)
{
	char magic[SELFMAG];
	FILE *f = fopen(unit->object, "re");

	if (!f)
		die("%s gave no object: %s.", unit->source, strerror(errno));
	if (fread(magic, sizeof(magic), 1, f) != 1 ||
	    memcmp(magic, ELFMAG, SELFMAG))
		die("The object of %s is not an ELF file.", unit->source);
	fclose(f);
}

static void wait_for_one(size_t count)
{
	int status;
	pid_t pid = wait(&status);

	if (pid < 0)
		die("Cannot wait for a compiler: %s.", strerror(errno));
	for (size_t i = 0; i < count; i++) {
		if (units[i].compiler != pid)
			continue;
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			die("The compiler failed on %s.", units[i].source);
		units[i].compiler = 0;
		check_object(&units[i]);
		return;
	}
}

static double seconds(struct timeval t)
{
	return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

int main(int argc, char **argv)
{
	uint64_t jobs = 2, running = 0, begin, elapsed;
	struct rusage usage;
	size_t count;
	int i = 1;

	if (argc > 2 && !strcmp(argv[1], "--jobs")) {
		jobs = parse_number("--jobs", argv[2], 1, MAX_FILES);
		i = 3;
	}
	if (i + 1 != argc || argv[i][0] == '-')
		die("usage: " WORKLOAD " [--jobs N] DIRECTORY");
	if (chdir(argv[i]) || chdir("build"))
		die("There is no %s/build: %s.", argv[i], strerror(errno));
	count = read_units();
	setenv("LD_LIBRARY_PATH", "../lib", 1);
	setenv("TMPDIR", "../tmp", 1);
	setenv("LC_ALL", "C", 1);

	begin = now_ns();
	for (size_t unit = 0; unit < count; unit++) {
		if (running == jobs) {
			wait_for_one(count);
			running--;
		}
		start(&units[unit]);
		running++;
	}
	for (; running; running--)
		wait_for_one(count);
	elapsed = now_ns() - begin;

	getrusage(RUSAGE_CHILDREN, &usage);
	figure("build_s", (double)elapsed / NSEC_PER_SEC, "s");
	figure("compiler_user_s", seconds(usage.ru_utime), "s");
	figure("compiler_system_s", seconds(usage.ru_stime), "s");
	figure("compiler_faults", (double)usage.ru_minflt, "faults");
	return 0;
}
