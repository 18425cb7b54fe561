// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest's init (init=): runs one command with counters before and after, and powers
 * off. The root is the host's over 9p, read-only. A general init needs 10 s and more under
 * emulation, this one about 0.1 s. In order:
 *
 *   1. an overlay over the root: reads go through, writes are discarded;
 *   2. /proc, /sys, /dev, /run, the data disk (copied to /dev/ram0 on demand), swap;
 *   3. a cgroup for the command and its peak memory;
 *   4. counters, the command, counters; then all is sent.
 *
 * The last argument is the job: NUL-terminated strings, keys and values by turns:
 *
 *   arg S       one word of the command, in order       (required)
 *   env S       NAME=VALUE of its environment
 *   cwd S       directory to start it in                (default /)
 *   data DEV    disk to mount at /run/quell/data, DEV as in vda
 *   ram 1       copy DEV to /dev/ram0 first and mount that
 *   swap KIND   swap to /dev/ram1 (ramdisk), to a zram device of that size (zram), or to
 *               /dev/ram1 through zswap (zswap)
 *   disk DEV:FS:PATH    mount this disk's file system at /run/quell/disk/N, and bind the entry
 *               "data" of its root to PATH (any characters); repeatable
 *   stage PATH  copy this file to /run/quell/bin: it runs without 9p; repeatable
 *   write S     PATH=VALUE, written before counting
 *   tty S       run on this terminal (hvc0), not on the ports
 *   rows N, cols N      its size
 *
 * Ports (virtio-serial, by name): quell.frames, and optionally quell.stdout, quell.stderr,
 * quell.stdin.
 *
 * quell.frames gets, in PROTOCOL 1:
 *
 *   quell-runner 1\n
 *   @NAME LENGTH\n  LENGTH bytes  \n        any number of these
 *   @end COUNT\n                            COUNT sections were sent
 *
 * A stream without the last line is truncated and worthless.
 */
#define _GNU_SOURCE
#include "runner_root.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROTOCOL	1
#define CGROUP		"/sys/fs/cgroup/quell"
#define MAX_KSWAPD	64

static int frames = -1;
static unsigned int sections;

struct job job = { .cwd = "/" };

static void power_off(void)
{
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}

void write_all(int fd, const char *p, size_t len)
{
	while (fd >= 0 && len) {
		ssize_t n = write(fd, p, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return;
		p += n;
		len -= n;
	}
}

static void section(const char *name, const char *p, size_t len)
{
	char head[128];
	int n = snprintf(head, sizeof(head), "@%s %zu\n", name, len);

	write_all(frames, head, n);
	write_all(frames, p, len);
	write_all(frames, "\n", 1);
	sections++;
}

static void finish(void)
{
	char line[32];
	int n = snprintf(line, sizeof(line), "@end %u\n", sections);

	write_all(frames, line, n);
	power_off();
}

/* One sentence for the user. */
void fail(const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fprintf(stderr, "quell-runner: %s\n", text);
	section("failure", text, strlen(text));
	finish();
	__builtin_unreachable();
}

static void buf_reserve(struct buf *b, size_t room)
{
	if (b->len + room <= b->cap)
		return;
	b->cap = (b->len + room) * 2;
	b->p = realloc(b->p, b->cap);
	if (!b->p)
		fail("out of memory");
}

static void __attribute__((format(printf, 2, 3))) buf_add(struct buf *b, const char *fmt, ...)
{
	va_list ap;
	int n;

	buf_reserve(b, 4096);
	va_start(ap, fmt);
	n = vsnprintf(b->p + b->len, 4096, fmt, ap);
	va_end(ap);
	b->len += n < 4096 ? n : 4095;
}

/* A missing file adds nothing. */
int buf_file(struct buf *b, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -1;
	do {
		buf_reserve(b, 65536);
		n = read(fd, b->p + b->len, 65536);
		if (n > 0)
			b->len += n;
	} while (n > 0);
	close(fd);
	return 0;
}

/* Whether a file begins with this word. */
int begins(const char *path, const char *word)
{
	char line[64] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return 0;
	if (read(fd, line, sizeof(line) - 1) < 0)
		line[0] = 0;
	close(fd);
	return !strncmp(line, word, strlen(word));
}

int put(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -1;
	n = write(fd, value, strlen(value));
	close(fd);
	return n < 0 ? -1 : 0;
}

/* @name ends as its file does, in a line feed. */
static int open_port(const char *name, int flags)
{
	char path[300];
	struct dirent *d;
	int fd = -1;
	DIR *dir = opendir("/sys/class/virtio-ports");

	while (dir && fd < 0 && (d = readdir(dir))) {
		snprintf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", d->d_name);
		if (!begins(path, name))
			continue;
		snprintf(path, sizeof(path), "/dev/%s", d->d_name);
		fd = open(path, flags | O_CLOEXEC);
	}
	if (dir)
		closedir(dir);
	return fd;
}

/* A port appears when QEMU has answered the driver, maybe after init has started. */
static int wait_for_port(const char *name)
{
	int fd;

	for (int tries = 0; (fd = open_port(name, O_WRONLY)) < 0 && tries < 1000; tries++)
		usleep(10000);
	return fd;
}

void open_frames(void)
{
	frames = wait_for_port("quell.frames\n");
	if (frames < 0) {
		fprintf(stderr, "quell-runner: no port quell.frames\n");
		power_off();
	}
	dprintf(frames, "quell-runner %d\n", PROTOCOL);
}

static void read_job(const char *path)
{
	struct buf b = {};
	char *p, *end;

	if (buf_file(&b, path))
		fail("cannot read the job %s in the guest: %s", path, strerror(errno));
	if (!b.len || b.p[b.len - 1])
		fail("the job %s is truncated", path);
	for (p = b.p, end = b.p + b.len; p < end;) {
		char *key = p, *value = key + strlen(key) + 1;

		if (value >= end)
			fail("the job %s is truncated", path);
		p = value + strlen(value) + 1;
		if (job.argc == MAX_WORDS || job.envc == MAX_WORDS || job.writec == MAX_WORDS ||
		    job.stagec == MAX_STAGES || job.diskc == MAX_DISKS)
			fail("the job %s has too many words, files or disks", path);
		if (!strcmp(key, "arg"))
			job.argv[job.argc++] = value;
		else if (!strcmp(key, "env"))
			job.env[job.envc++] = value;
		else if (!strcmp(key, "write"))
			job.write[job.writec++] = value;
		else if (!strcmp(key, "cwd"))
			job.cwd = value;
		else if (!strcmp(key, "data"))
			job.data = value;
		else if (!strcmp(key, "stage"))
			job.stage[job.stagec++] = value;
		else if (!strcmp(key, "disk"))
			job.disk[job.diskc++] = value;
		else if (!strcmp(key, "ram"))
			job.ram = 1;
		else if (!strcmp(key, "swap"))
			job.swap = value;
		else if (!strcmp(key, "tty"))
			job.tty = value;
		else if (!strcmp(key, "rows"))
			job.size.ws_row = atoi(value);
		else if (!strcmp(key, "cols"))
			job.size.ws_col = atoi(value);
		else
			fail("the job %s has an unknown key '%s'", path, key);
	}
	if (!job.argc)
		fail("the job %s names no command", path);
}

/*
 * -1: no memory controller, and the host reports that the peak is missing. With systemd's
 * parameter the command mounts version 1 itself.
 */
static int make_cgroup(void)
{
	static const char without[] = "systemd.unified_cgroup_hierarchy=0";
	struct buf b = {};

	if (!buf_file(&b, "/proc/cmdline") && memmem(b.p, b.len, without, strlen(without)))
		return -1;
	may_mount("cgroup", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	put("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	return mkdir(CGROUP, 0755);
}

static void write_switches(void)
{
	for (int i = 0; i < job.writec; i++) {
		char *path = job.write[i], *eq = strchr(path, '=');

		if (!eq)
			fail("'%s' is not PATH=VALUE", path);
		*eq = 0;
		if (put(path, eq + 1))
			fail("cannot write '%s' to %s in the guest: %s", eq + 1, path, strerror(errno));
	}
}

static const char * const counters[] = { "interrupts", "vmstat", "kswapd" };

struct snapshot {
	struct buf of[3];
};

static pid_t kswapd[MAX_KSWAPD];
static int kswapds;

static void find_kswapd(void)
{
	struct dirent *d;
	DIR *dir = opendir("/proc");

	while (dir && (d = readdir(dir)) && kswapds < MAX_KSWAPD) {
		char path[300];

		snprintf(path, sizeof(path), "/proc/%s/comm", d->d_name);
		if (begins(path, "kswapd"))
			kswapd[kswapds++] = atoi(d->d_name);
	}
	if (dir)
		closedir(dir);
}

static void snap(struct snapshot *s)
{
	buf_file(&s->of[0], "/proc/interrupts");
	buf_file(&s->of[1], "/proc/vmstat");
	for (int i = 0; i < kswapds; i++) {
		char path[64];

		snprintf(path, sizeof(path), "/proc/%d/stat", kswapd[i]);
		buf_file(&s->of[2], path);
	}
}

static void send_snapshot(const char *when, const struct snapshot *s)
{
	for (int i = 0; i < 3; i++) {
		char name[64];

		snprintf(name, sizeof(name), "%s/%s", when, counters[i]);
		section(name, s->of[i].p, s->of[i].len);
	}
}

static void send_guest(char **argv)
{
	struct buf b = {};

	/* Parameters unknown to the kernel reach init. */
	for (int i = 1; argv[i]; i++)
		buf_add(&b, "%s%c", argv[i], 0);
	buf_file(&b, "/proc/self/environ");
	section("unknown", b.p, b.len);
	b.len = 0;
	buf_add(&b, "hz %ld\n", sysconf(_SC_CLK_TCK));
	section("guest", b.p, b.len);
	free(b.p);
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

struct child {
	pid_t pid;
	int out[2], err[2], status_pipe[2];
};

/* In the child: why there is no command. */
static void __attribute__((noreturn)) give_up(int fd, const char *how)
{
	dprintf(fd, "status %s %d\nmessage %s\n", how, errno, strerror(errno));
	_exit(127);
}

static void __attribute__((noreturn)) start(struct child *c, int in, int has_cgroup)
{
	struct rlimit nofile = { 1024, 524288 };
	sigset_t none;

	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setrlimit(RLIMIT_NOFILE, &nofile);
	if (has_cgroup)
		put(CGROUP "/cgroup.procs", "0");
	if (job.tty) {
		char path[64];
		int fd;

		snprintf(path, sizeof(path), "/dev/%s", job.tty);
		fd = open(path, O_RDWR);
		if (fd < 0)
			give_up(c->status_pipe[1], "notty");
		ioctl(fd, TIOCSCTTY, 1);
		if (job.size.ws_row && job.size.ws_col)
			ioctl(fd, TIOCSWINSZ, &job.size);
		for (int i = 0; i < 3; i++)
			dup2(fd, i);
		if (fd > 2)
			close(fd);
	} else {
		dup2(in, 0);
		dup2(c->out[1], 1);
		dup2(c->err[1], 2);
	}
	if (chdir(job.cwd))
		give_up(c->status_pipe[1], "nodir");
	clearenv();
	for (int i = 0; i < job.envc; i++)
		putenv(job.env[i]);
	execvp(job.argv[0], job.argv);
	give_up(c->status_pipe[1], "noexec");
}

/* 0: end of file. */
static int relay(int from, int to)
{
	static char p[65536];
	ssize_t n = read(from, p, sizeof(p));

	if (n > 0)
		write_all(to, p, n);
	return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* Pipes: a port opens only once, so a script that writes to /dev/stderr would fail. */
static void run(char **args, int has_cgroup)
{
	/* With a terminal there are none. QEMU adds stdin before them, if at all. */
	int out = job.tty ? -1 : wait_for_port("quell.stdout\n");
	int err = job.tty ? -1 : wait_for_port("quell.stderr\n");
	int in = open_port("quell.stdin\n", O_RDONLY), ended = 0, status = 0;
	struct snapshot before = {}, after = {};
	struct buf result = {}, peak = {};
	struct rusage usage = {};
	struct child c = {};
	int64_t t0, t1 = 0;
	sigset_t chld;
	char msg[256];
	ssize_t got;

	if (in < 0)
		in = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (pipe2(c.out, O_CLOEXEC) || pipe2(c.err, O_CLOEXEC) || pipe2(c.status_pipe, O_CLOEXEC))
		fail("cannot make a pipe in the guest: %s", strerror(errno));
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, NULL);
	struct pollfd fds[] = {
		{ .fd = signalfd(-1, &chld, SFD_CLOEXEC), .events = POLLIN },
		{ .fd = c.out[0], .events = POLLIN },
		{ .fd = c.err[0], .events = POLLIN },
	};

	find_kswapd();
	snap(&before);
	t0 = now_ns();
	c.pid = fork();
	if (c.pid < 0)
		fail("cannot fork in the guest: %s", strerror(errno));
	if (!c.pid)
		start(&c, in, has_cgroup);
	close(c.out[1]);
	close(c.err[1]);
	close(c.status_pipe[1]);

	while (!ended) {
		if (poll(fds, 3, -1) < 0)
			continue;
		if (fds[0].revents) {
			struct signalfd_siginfo si;
			struct rusage ru;
			pid_t pid;
			int st;

			if (read(fds[0].fd, &si, sizeof(si)) < 0)
				continue;
			while ((pid = wait4(-1, &st, WNOHANG, &ru)) > 0) {
				if (pid != c.pid)
					continue;
				t1 = now_ns();
				ended = 1;
				status = st;
				usage = ru;
			}
		}
		for (int i = 1; i < 3 && !ended; i++)
			if (fds[i].revents && !relay(fds[i].fd, i == 1 ? out : err))
				fds[i].fd = -1;
	}
	snap(&after);
	if (has_cgroup)
		buf_file(&peak, CGROUP "/memory.peak");

	/* Remaining processes would keep the pipes open. */
	kill(-1, SIGKILL);
	for (int i = 1; i < 3; i++)
		while (fds[i].fd >= 0 && relay(fds[i].fd, i == 1 ? out : err))
			;

	got = read(c.status_pipe[0], msg, sizeof(msg));
	if (got > 0)
		buf_add(&result, "%.*s", (int)got, msg);
	else if (WIFSIGNALED(status))
		buf_add(&result, "status signalled %d\n", WTERMSIG(status));
	else
		buf_add(&result, "status exited %d\n", WEXITSTATUS(status));
	buf_add(&result, "elapsed_ns %lld\nuser_us %lld\nsystem_us %lld\n", (long long)(t1 - t0),
		usage.ru_utime.tv_sec * 1000000LL + usage.ru_utime.tv_usec,
		usage.ru_stime.tv_sec * 1000000LL + usage.ru_stime.tv_usec);
	buf_add(&result, "minflt %ld\nmajflt %ld\n", usage.ru_minflt, usage.ru_majflt);
	if (peak.len)
		buf_add(&result, "memory_peak %.*s", (int)peak.len, peak.p);
	send_guest(args);
	send_snapshot("before", &before);
	send_snapshot("after", &after);
	section("result", result.p, result.len);
}

int main(int argc, char **argv)
{
	int has_cgroup;

	if (getpid() != 1) {
		fprintf(stderr, "quell-runner: the init of a guest, not a program to start by hand\n");
		return 2;
	}
	make_root();
	if (argc < 2)
		fail("no job was given to the guest");
	read_job(argv[argc - 1]);
	network_up();
	has_cgroup = !make_cgroup();
	mkdir("/run/quell", 0755);
	for (int i = 0; i < job.stagec; i++)
		stage_program(job.stage[i]);
	mount_data();
	mount_disks();
	swap_on();
	write_switches();
	run(argv, has_cgroup);
	finish();
	return 0;
}
