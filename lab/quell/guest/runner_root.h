/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef RUNNER_ROOT_H
#define RUNNER_ROOT_H

#include <stddef.h>
#include <sys/ioctl.h>

#define MAX_WORDS	4096
#define MAX_STAGES	8
#define MAX_DISKS	16

struct buf {
	char *p;
	size_t len, cap;
};

extern struct job {
	char *argv[MAX_WORDS + 1], *env[MAX_WORDS + 1], *write[MAX_WORDS];
	int argc, envc, writec, stagec, diskc;
	const char *cwd, *data, *stage[MAX_STAGES], *swap, *tty;
	char *disk[MAX_DISKS];
	int ram;
	struct winsize size;
} job;

/* In runner.c. */
void open_frames(void);
void write_all(int fd, const char *p, size_t len);
void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *fmt, ...);
int buf_file(struct buf *b, const char *path);
int begins(const char *path, const char *word);
int put(const char *path, const char *value);

/* In runner_root.c. */
int may_mount(const char *source, const char *target, const char *type,
	      unsigned long flags, const char *data);
void make_root(void);
void network_up(void);
void stage_program(const char *file);
void mount_data(void);
void mount_disks(void);
void swap_on(void);

#endif
