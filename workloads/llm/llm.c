// SPDX-License-Identifier: GPL-2.0-only
/*
 * llm: processes of llama.cpp share a mapped file of weights larger than memory (luf).
 * Usage: llm [--processes N] [--tokens N] COMMAND ARG...
 * All outputs must be equal, byte for byte. The output is printed, so the lab compares runs
 * and kernels as well.
 */
#define WORKLOAD "llm"
#include "../workload.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PROCESSES	64
#define MAX_OUTPUT	65536
/* Bytes of the output that are printed. */
#define SHOWN_BYTES	400

struct process {
	pid_t pid;
	int fd;				/* -1: closed */
	size_t length;
	unsigned char output[MAX_OUTPUT];
};

static struct process processes[MAX_PROCESSES];

static void start(struct process *process, char **command)
{
	int pipe_fds[2];

	if (pipe2(pipe_fds, O_CLOEXEC))
		die("Cannot make a pipe: %s.", strerror(errno));
	process->pid = fork();
	if (process->pid < 0)
		die("Cannot start a process: %s.", strerror(errno));
	if (!process->pid) {
		if (dup2(pipe_fds[1], STDOUT_FILENO) < 0)
			die("Cannot redirect the output: %s.", strerror(errno));
		execv(command[0], command);
		die("Cannot run %s: %s.", command[0], strerror(errno));
	}
	close(pipe_fds[1]);
	process->fd = pipe_fds[0];
}

static void receive(struct process *process, int number)
{
	ssize_t n = read(process->fd, process->output + process->length,
			 MAX_OUTPUT - process->length);

	if (n < 0 && errno == EINTR)
		return;
	if (n < 0)
		die("Cannot read what process %d says: %s.", number,
		    strerror(errno));
	process->length += (size_t)n;
	if (process->length == MAX_OUTPUT)
		die("Process %d says more than %d bytes.", number, MAX_OUTPUT);
	if (!n) {
		close(process->fd);
		process->fd = -1;
	}
}

static void receive_all(int count)
{
	struct pollfd fds[MAX_PROCESSES];
	int open;

	do {
		open = 0;
		for (int i = 0; i < count; i++) {
			fds[i] = (struct pollfd){ .fd = processes[i].fd,
						  .events = POLLIN };
			open += processes[i].fd >= 0;
		}
		if (!open)
			break;
		if (poll(fds, (nfds_t)count, -1) < 0 && errno != EINTR)
			die("Cannot wait for output: %s.", strerror(errno));
		for (int i = 0; i < count; i++)
			if (fds[i].fd >= 0 && fds[i].revents)
				receive(&processes[i], i + 1);
	} while (open);
}

static void reap(const struct process *process, int number)
{
	int status;

	while (waitpid(process->pid, &status, 0) < 0)
		if (errno != EINTR)
			die("Cannot wait for process %d: %s.", number,
			    strerror(errno));
	if (WIFSIGNALED(status))
		die("Process %d was ended by signal %d (%s).", number,
		    WTERMSIG(status), strsignal(WTERMSIG(status)));
	if (WEXITSTATUS(status))
		die("Process %d failed with exit code %d.", number,
		    WEXITSTATUS(status));
}

/* Its length, a hash, and its beginning. */
static void print_same(const struct process *process)
{
	uint64_t hash = 0xcbf29ce484222325;	/* FNV-1a */

	for (size_t i = 0; i < process->length; i++)
		hash = (hash ^ process->output[i]) * 0x100000001b3;
	printf("same output %zu bytes, %016llx: ", process->length,
	       (unsigned long long)hash);
	for (size_t i = 0; i < process->length && i < SHOWN_BYTES; i++) {
		unsigned char c = process->output[i];

		putchar(c == '\n' ? ' ' : c >= ' ' && c <= '~' ? c : '?');
	}
	putchar('\n');
}

int main(int argc, char **argv)
{
	uint64_t count = 3, tokens = 1, begin, elapsed;
	int i = 1;

	for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
		if (!strcmp(argv[i], "--processes"))
			count = parse_number(argv[i], argv[i + 1], 1,
					     MAX_PROCESSES);
		else if (!strcmp(argv[i], "--tokens"))
			tokens = parse_number(argv[i], argv[i + 1], 1, 1000000);
		else
			break;
	}
	if (i >= argc || argv[i][0] == '-')
		die("usage: " WORKLOAD " [--processes N] [--tokens N] COMMAND ARG...");

	begin = now_ns();
	for (uint64_t n = 0; n < count; n++)
		start(&processes[n], argv + i);
	receive_all((int)count);
	for (uint64_t n = 0; n < count; n++)
		reap(&processes[n], (int)n + 1);
	elapsed = now_ns() - begin;

	if (!processes[0].length)
		die("%s says nothing.", argv[i]);
	for (uint64_t n = 1; n < count; n++)
		if (processes[n].length != processes[0].length ||
		    memcmp(processes[n].output, processes[0].output,
			   processes[0].length))
			die("Process %d says something else than process 1.",
			    (int)n + 1);
	print_same(&processes[0]);
	figure_more("tokens_per_s",
		    (double)(count * tokens) * NSEC_PER_SEC / (double)elapsed,
		    "tokens/s");
	return 0;
}
