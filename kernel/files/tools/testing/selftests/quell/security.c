// SPDX-License-Identifier: GPL-2.0-only
/*
 * One user gains nothing over another through Quell's mechanisms. Attacks R1 and R4 of
 * mm/luf.c, the zeroing of mm/folio_order.c, and the permissions of all. Usage:
 *
 *	security DIR [ROUNDS [TEST]]
 *
 * Needs root. DIR is on a file system that lazy unmap flush supports, with small folios
 * (ext4). TEST is the beginning of test names:
 *
 *	secrets		R1: a user's threads read a mapping all the time while reclaim takes it
 *			away. Another user writes secrets to its frames. By page-out of a range,
 *			and of a whole memory cgroup
 *	bound		R4: users that page out fast defer no more than the list may hold
 *	memory		R4: memory is available at once while the deferred-free list is full,
 *			without an OOM kill
 *	zeroes		pages that a fault populates beside its own are zero
 *	permissions	only root writes the switches, and no file shows an address
 *	flood		a user that pages out and opens files for writing in a loop, or
 *			keeps paged-out pages, or forks, has other CPUs interrupted no more
 *			often than with Quell off; with and without reclaim of others' memory
 */
#include <grp.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "security.h"

struct shared *sh;
char path[4096], victim_path[4096 + 8];
int rounds = 10, nr_cpus;

long now_us(void)
{
	return now() * 1e6;
}

static void become(unsigned int uid)
{
	if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		die("setresuid");
	/* setresuid() clears it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* As another user, on @cpu. */
pid_t start(unsigned int uid, int cpu, void (*work)(int which), int which)
{
	pid_t pid;

	pid = must_fork();
	if (pid)
		return pid;
	pin(cpu);
	become(uid);
	work(which);
	_exit(0);
}

void reset(void)
{
	memset(sh, 0, sizeof(*sh));
}

void wait_ready(int number)
{
	for (long end = now_us() + 120000000; atomic_load(&sh->ready) < number;) {
		if (now_us() > end) {
			errno = ETIMEDOUT;
			die("a child");
		}
		usleep(1000);
	}
}

/* 0 for pages that are not present. */
void frames_of(pid_t pid, const volatile void *address, int pages, uint64_t *frames)
{
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "/proc/%d/pagemap", pid);
	fd = open(name, O_RDONLY);
	if (fd < 0 || pread(fd, frames, pages * sizeof(*frames),
			    (off_t)((unsigned long)address / PAGE * sizeof(*frames))) !=
		      (ssize_t)(pages * sizeof(*frames)))
		die(name);
	close(fd);
	for (int i = 0; i < pages; i++)
		frames[i] = frames[i] & PM_PRESENT ? PAGEMAP_PFN(frames[i]) : 0;
}

void page_out_of(pid_t pid, volatile void *address, unsigned long size)
{
	struct iovec range = { (void *)address, size };
	int fd = syscall(SYS_pidfd_open, pid, 0);

	if (fd < 0 || syscall(SYS_process_madvise, fd, &range, 1, MADV_PAGEOUT, 0) < 0)
		die("process_madvise");
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: security DIR [ROUNDS [TEST]]\n");
		return 2;
	}
	if (argc > 2)
		rounds = atoi(argv[2]);
	if (argc > 3)
		only = argv[3];
	ksft_print_header();
	need_luf();
	if (geteuid())
		ksft_exit_skip("only root can be somebody else\n");
	nr_cpus = sysconf(_SC_NPROCESSORS_ONLN);
	if (nr_cpus < 2)
		ksft_exit_skip("two CPUs are needed\n");
	if (nr_cpus > MAX_CPUS)
		nr_cpus = MAX_CPUS;
	sh = map_shared(sizeof(*sh));
	/* Other users must reach their files. */
	snprintf(path, sizeof(path), "%s/security", argv[1]);
	if (mkdir(path, 0755) && errno != EEXIST)
		die(path);
	strcat(path, "/file");
	snprintf(victim_path, sizeof(victim_path), "%s.victim", path);
	umask(0);
	pin(0);

	if (wanted("secrets"))
		test_secrets();
	if (wanted("bound"))
		test_bound();
	if (wanted("memory"))
		test_memory();
	if (wanted("zeroes"))
		test_zeroes();
	if (wanted("permissions"))
		test_permissions();
	if (wanted("flood"))
		test_flood();
	unlink(path);
	test_end();
}
