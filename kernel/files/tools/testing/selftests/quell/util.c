// SPDX-License-Identifier: GPL-2.0-only
/* Results, files, counters, processes, mappings and faults: see util.h. */
#include <sys/wait.h>

#include "util.h"

/* --- Results ------------------------------------------------------------- */

void test_result(bool ok, const char *fmt, ...)
{
	char name[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(name, sizeof(name), fmt, args);
	va_end(args);
	ksft_test_result(ok, "%s\n", name);
	/* Mutation testing needs the first finding only. */
	if (getenv("TAP_STOP") && (!ok || nr_violations()))
		exit(KSFT_FAIL);
}

void test_skip(const char *why, const char *fmt, ...)
{
	char name[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(name, sizeof(name), fmt, args);
	va_end(args);
	ksft_test_result_code(KSFT_SKIP, name, "needs %s", why);
}

void test_end(void)
{
	ksft_set_plan(ksft_test_num());
	ksft_finished();
}

void die(const char *what)
{
	ksft_exit_fail_perror(what);
}

long nr_violations(void)
{
	long found = number_in("/sys/module/luf_debug/parameters/violations", "");

	return found < 0 ? 0 : found;
}

/* --- Files and counters -------------------------------------------------- */

bool try_write(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	ssize_t done;

	if (fd < 0)
		return false;
	done = write(fd, text, strlen(text));
	close(fd);
	return done >= 0;
}

bool try_read(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t done;

	if (fd < 0)
		return false;
	done = read(fd, text, size - 1);
	close(fd);
	if (done < 0)
		return false;
	text[done] = 0;
	return true;
}

void write_text(const char *path, const char *text)
{
	if (!try_write(path, text))
		die(path);
}

void read_text(const char *path, char *text, size_t size)
{
	if (!try_read(path, text, size))
		die(path);
}

int must_open(const char *path, int flags)
{
	int fd = open(path, flags, 0600);

	if (fd < 0)
		die(path);
	return fd;
}

long number_in(const char *path, const char *name)
{
	FILE *f = fopen(path, "r");
	size_t len = strlen(name);
	long found = -1;
	char line[256];

	if (!f)
		return -1;
	while (found < 0 && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, len))
			found = atol(line + len);
	fclose(f);
	return found;
}

long vm_counter(const char *name)
{
	char key[64];

	snprintf(key, sizeof(key), "%s ", name);
	return number_in("/proc/vmstat", key);
}

long vm_pages(const char *name)
{
	write_text("/proc/sys/vm/stat_refresh", "1");
	return vm_counter(name);
}

bool counts_flushes(void)
{
	return vm_counter("nr_tlb_remote_flush") >= 0;
}

double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* --- CPUs, threads and processes ----------------------------------------- */

bool try_pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return !sched_setaffinity(0, sizeof(set), &set);
}

void pin(int cpu)
{
	if (!try_pin(cpu))
		die("two CPUs are needed");
}

void start_thread(pthread_t *thread, void *(*work)(void *arg), void *arg)
{
	errno = pthread_create(thread, NULL, work, arg);
	if (errno)
		die("pthread_create");
}

pid_t must_fork(void)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	return pid;
}

int must_wait(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	return status;
}

void kill_and_wait(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* --- Mappings ------------------------------------------------------------ */

void *must_map(void *at, size_t bytes, int prot, int flags, int fd)
{
	void *map = mmap(at, bytes, prot, flags, fd, 0);

	if (map == MAP_FAILED)
		die("mmap");
	return map;
}

void must_protect(void *addr, size_t bytes, int prot)
{
	if (mprotect(addr, bytes, prot))
		die("mprotect");
}

char *reserve(size_t bytes, size_t align)
{
	char *all = must_map(NULL, bytes + align, PROT_NONE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	char *at = (char *)(((uintptr_t)all + align - 1) / align * align);

	if ((at != all && munmap(all, at - all)) || munmap(at + bytes, all + align - at))
		die("munmap");
	return at;
}

static __thread struct {
	sigjmp_buf *jump;
} fault;

static void on_fault(int sig)
{
	if (fault.jump)
		siglongjmp(*fault.jump, 1);
	signal(sig, SIG_DFL);
	raise(sig);
}

void jump_on_fault(sigjmp_buf *jump)
{
	fault.jump = jump;
}

void catch_faults(void)
{
	struct sigaction fault = { .sa_handler = on_fault };

	sigaction(SIGBUS, &fault, NULL);
	sigaction(SIGSEGV, &fault, NULL);
}
