// SPDX-License-Identifier: GPL-2.0-only
/* Permissions of all files, and addresses that they show. */
#include <ftw.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "security.h"

static int nr_files, nr_wrong;

static void complain(const char *name, const char *what)
{
	ksft_print_msg("%s: %s\n", name, what);
	nr_wrong++;
}

static int only_root_writes(const char *name, const struct stat *st, int type,
			    struct FTW *at __always_unused)
{
	if (type != FTW_F && type != FTW_D)
		return 0;
	nr_files += type == FTW_F;
	if (st->st_uid || st->st_mode & 0022)
		complain(name, "not only root may write it");
	return 0;
}

static const char * const parameters[] = {
	"/sys/module/luf_lot/parameters", "/sys/module/luf_debug/parameters",
	"/sys/module/luf_torture/parameters", "/sys/module/quell_mutants/parameters",
};

/* Exit code: files that a user can open for writing. */
static int can_write;

static int try_open(const char *name, const struct stat *st __always_unused, int type,
		    struct FTW *at __always_unused)
{
	int fd;

	if (type == FTW_D || type == FTW_DNR)
		return 0;
	fd = open(name, O_WRONLY);
	if (fd < 0)
		return 0;
	can_write++;
	close(fd);
	return 0;
}

static void try_all(int own_namespace)
{
	if (own_namespace && unshare(CLONE_NEWUSER))
		_exit(99);
	nftw("/sys/kernel/mm/quell", try_open, 8, FTW_PHYS);
	for (unsigned long i = 0; i < ARRAY_SIZE(parameters); i++)
		nftw(parameters[i], try_open, 8, FTW_PHYS);
	/* These cannot even be looked up. */
	can_write += !access("/sys/kernel/debug/.", X_OK);
	can_write += !access("/sys/kernel/tracing/events/luf", F_OK);
	_exit(can_write);
}

static int tried_by_user(int own_namespace)
{
	pid_t pid = start(READER, 0, try_all, own_namespace);
	int status = 0;

	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int nr_debugfs;

static int look_for_ours(const char *name, const struct stat *st __always_unused,
			 int type __always_unused, struct FTW *at)
{
	static const char * const words[] = {
		"quell", "luf", "early_ack", "folio_order", "rmap_batch", "writeout_batch",
		"gather_range",
	};
	const char *base = name + at->base;

	/* Results of unit tests. */
	if (strstr(name, "/kunit/"))
		return 0;
	for (unsigned long i = 0; i < ARRAY_SIZE(words); i++)
		if (!strncmp(base, words[i], strlen(words[i]))) {
			ksft_print_msg("%s\n", name);
			nr_debugfs++;
		}
	return 0;
}

/* %p prints an address, and a pointer field has '*'. */
static int check_format(const char *name, const struct stat *st, int type, struct FTW *at)
{
	char line[1024];
	FILE *f;

	if (type != FTW_F)
		return 0;
	if (st->st_uid || st->st_mode & 0037)
		complain(name, "not only root may use it");
	if (strcmp(name + at->base, "format"))
		return 0;
	nr_files++;
	f = fopen(name, "r");
	if (!f)
		die(name);
	while (fgets(line, sizeof(line), f))
		if (strstr(line, "%p") || (strstr(line, "field:") && strchr(line, '*')))
			complain(name, "it shows an address");
	fclose(f);
	return 0;
}

void test_permissions(void)
{
	int by_user, in_namespace;
	struct stat st;

	mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
	if (access("/sys/kernel/tracing/events", F_OK))
		mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);

	nr_files = 0;
	nr_wrong = 0;
	nftw("/sys/kernel/mm/quell", only_root_writes, 8, FTW_PHYS);
	/* Debug kernels only. */
	for (unsigned long i = 0; nr_files && i < ARRAY_SIZE(parameters); i++)
		nftw(parameters[i], only_root_writes, 8, FTW_PHYS);
	test_result(nr_files && !nr_wrong,
		    "security permissions switches: %d files, %d wrong", nr_files, nr_wrong);

	by_user = tried_by_user(false);
	in_namespace = tried_by_user(true);
	test_result(!by_user, "security permissions user: %d of them writable", by_user);
	if (in_namespace == 99)
		test_skip("CONFIG_USER_NS", "security permissions user namespace");
	else
		test_result(!in_namespace,
			    "security permissions user namespace: %d of them writable",
			    in_namespace);

	nftw("/sys/kernel/debug", look_for_ours, 16, FTW_PHYS | FTW_MOUNT);
	test_result(!nr_debugfs, "security permissions debugfs: %d files of Quell's", nr_debugfs);

	nr_files = 0;
	nr_wrong = 0;
	if (stat("/sys/kernel/tracing", &st) || st.st_uid || st.st_mode & 0007)
		complain("/sys/kernel/tracing", "others may enter it");
	nftw("/sys/kernel/tracing/events/luf", check_format, 8, FTW_PHYS);
	nftw("/sys/kernel/tracing/events/early_ack", check_format, 8, FTW_PHYS);
	nftw("/sys/kernel/tracing/events/writeout_batch", check_format, 8, FTW_PHYS);
	test_result(nr_files && !nr_wrong,
		    "security permissions tracepoints: %d formats, %d wrong", nr_files, nr_wrong);
}
