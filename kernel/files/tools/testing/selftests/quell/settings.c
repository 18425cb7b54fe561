// SPDX-License-Identifier: GPL-2.0-only
/* Settings that are restored at exit, and the kernel's log: see system.h. */
#include "system.h"

#define THP_SIZES	9		/* 8 kB to 2 MB */

static struct {
	char path[128], value[32];
} saved[2 * THP_SIZES + 8];
static int nr_saved;
static pid_t owner;

void restore_settings(void)
{
	for (int i = nr_saved - 1; i >= 0; i--)
		try_write(saved[i].path, saved[i].value);
}

static void restore_system(void)
{
	/* Not in children. */
	if (getpid() != owner)
		return;
	restore_settings();
	for (int i = 0; i < SWAPS; i++)
		swap_off_in_time(i);
	remove_cgroup();
}

static void on_end(int sig)
{
	restore_system();
	signal(sig, SIG_DFL);
	raise(sig);
}

void save_setting(const char *path)
{
	char text[128], *from;

	for (int i = 0; i < nr_saved; i++)
		if (!strcmp(saved[i].path, path))
			return;
	if (!try_read(path, text, sizeof(text)) || nr_saved == ARRAY_SIZE(saved))
		return;
	/* A choice is the word in brackets. */
	from = strchr(text, '[');
	from = from ? from + 1 : text;
	from[strcspn(from, "]\n")] = 0;
	snprintf(saved[nr_saved].path, sizeof(saved->path), "%s", path);
	snprintf(saved[nr_saved++].value, sizeof(saved->value), "%.31s", from);
	if (owner)
		return;
	owner = getpid();
	atexit(restore_system);
	signal(SIGTERM, on_end);
	signal(SIGINT, on_end);
}

void save_system(void)
{
	char path[128];

	save_setting(QUELL_SYSFS "rmap_batch/enabled");
	/* Restored after the sizes, which are manual until then. */
	save_setting(QUELL_SYSFS "folio_order/max_kb");
	for (int i = 0; i < 2 * THP_SIZES; i++) {
		snprintf(path, sizeof(path), THP "hugepages-%dkB/%s", 8 << i / 2,
			 i % 2 ? "shmem_enabled" : "enabled");
		save_setting(path);
	}
}

void choose_thp(unsigned int kb)
{
	for (int i = 0; i < nr_saved; i++) {
		unsigned int size;
		const char *how = "never";

		if (sscanf(saved[i].path, THP "hugepages-%u", &size) != 1)
			continue;
		if (size & kb)
			how = strstr(saved[i].path, "shmem") ? "advise" : "madvise";
		try_write(saved[i].path, how);
	}
}

int get_switch(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), QUELL_SYSFS "%s/enabled", name);
	return number_in(path, "");
}

void set_switch(const char *name, bool on)
{
	char path[128];

	snprintf(path, sizeof(path), QUELL_SYSFS "%s/enabled", name);
	save_setting(path);
	write_text(path, on ? "1" : "0");
}

static int kmsg_fd = -1;

void watch_kernel_log(void)
{
	kmsg_fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (kmsg_fd >= 0)
		lseek(kmsg_fd, 0, SEEK_END);
}

const char *kernel_complaint(void)
{
	static const char * const marks[] = {
		"BUG:", "WARNING:", "Bad page", "Bad rss-counter", "swap_free",
		"swap_info_get", "swap_dup", "Bad swap", "Unused swap",
	};
	static char found[256];
	char record[1024];
	ssize_t n;

	found[0] = 0;
	while (kmsg_fd >= 0) {
		n = read(kmsg_fd, record, sizeof(record) - 1);
		if (n < 0 && (errno == EPIPE || errno == EINTR))
			continue;
		if (n <= 0)
			break;
		record[n] = 0;
		for (unsigned long i = 0; i < ARRAY_SIZE(marks); i++) {
			char *text = strchr(record, ';');

			if (!found[0] && text && strstr(text, marks[i]) &&
			    !strstr(text, "BUG: KCSAN:")) {
				text[strcspn(text, "\n")] = 0;
				snprintf(found, sizeof(found), "%s", text + 1);
			}
		}
	}
	return found[0] ? found : NULL;
}
