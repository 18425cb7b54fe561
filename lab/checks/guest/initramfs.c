// SPDX-License-Identifier: GPL-2.0-only
/*
 * /init of the initramfs of a kernel with modules: loads them, and starts the command
 * line's init= on the host's root over 9p.
 *
 * /modules/order lists the files of /modules, dependencies first. A module's parameters are
 * on the command line (NAME.PARAMETER=). ENODEV, no hardware, is no error. Loaded files are
 * removed: the initramfs stays in memory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char cmdline[4096];

static void __attribute__((noreturn)) fail(const char *what)
{
	fprintf(stderr, "quell-initramfs: %s: %s\n", what, strerror(errno));
	reboot(RB_POWER_OFF);
	exit(1);
}

/* The last one on the command line; @name ends with "=". */
static char *value_of(const char *name)
{
	char *copy = strdup(cmdline), *value = NULL, *save = NULL;

	for (char *word = strtok_r(copy, " \n", &save); word; word = strtok_r(NULL, " \n", &save)) {
		if (!strcmp(word, "--"))
			break;
		if (!strncmp(word, name, strlen(name)))
			value = word + strlen(name);
	}
	return value;
}

/* NAME.PARAMETER=VALUE of module @name, without the name. */
static const char *parameters_of(const char *name)
{
	static char found[sizeof(cmdline)];
	char *copy = strdup(cmdline), *save = NULL;
	size_t len = strlen(name);

	found[0] = 0;
	for (char *word = strtok_r(copy, " \n", &save); word; word = strtok_r(NULL, " \n", &save))
		if (!strncmp(word, name, len) && word[len] == '.') {
			strcat(found, word + len + 1);
			strcat(found, " ");
		}
	free(copy);
	return found;
}

static void load(const char *file)
{
	char *name = strndup(file, strcspn(file, "."));
	int fd = open(file, O_RDONLY | O_CLOEXEC);

	for (char *p = name; *p; p++)
		if (*p == '-')
			*p = '_';
	if (fd < 0)
		fail(file);
	if (syscall(SYS_finit_module, fd, parameters_of(name), 0) && errno != ENODEV)
		fprintf(stderr, "quell-initramfs: %s: %s\n", file, strerror(errno));
	close(fd);
	unlink(file);
	free(name);
}

int main(int argc, char **argv)
{
	char file[256], *init, *flags;
	ssize_t len;
	FILE *order;
	int fd;

	(void)argc;
	mkdir("/proc", 0755);
	mkdir("/root", 0755);
	if (mount("proc", "/proc", "proc", 0, NULL))
		fail("/proc");
	fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
	len = read(fd, cmdline, sizeof(cmdline) - 1);
	if (len < 0)
		fail("/proc/cmdline");
	close(fd);
	init = value_of("init=");
	flags = value_of("rootflags=");
	if (!init)
		fail("the command line names no init");

	if (chdir("/modules"))
		fail("/modules");
	order = fopen("order", "re");
	if (!order)
		fail("/modules/order");
	while (fgets(file, sizeof(file), order)) {
		file[strcspn(file, "\n")] = 0;
		load(file);
	}
	fclose(order);

	umount("/proc");
	if (mount("/dev/root", "/root", "9p", MS_RDONLY, flags))
		fail("the host's root over 9p");
	if (chdir("/root") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
		fail("changing to the host's root");
	argv[0] = init;
	execv(init, argv);
	fail(init);
}
