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
#include <dirent.h>
#include <ftw.h>
#include <grp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "luf_reader.h"

#define SECRET		0x5ec3e75ec3e75ec3UL
#define READER		65533
#define WRITER		65532
#define VICTIM		65531
#define MAX_CPUS	8
#define FILL		(16UL << 20)
#define CGROUP		"/sys/fs/cgroup/quell_security"

struct shared {
	volatile uint64_t *map;			/* the reader's */
	atomic_ulong passes[MAX_CPUS];		/* by CPU */
	atomic_ulong reads, secrets, wrong;
	atomic_bool go, stop, more;
	atomic_int ready;
	atomic_ulong loops;
	atomic_long worst_us;
	atomic_ulong size;
};

static struct shared *sh;
static char path[4096], victim_path[4096 + 8];
static int rounds = 10, nr_cpus;
static const char *only = "";

static bool wanted(const char *name)
{
	return !strncmp(name, only, strlen(only));
}

static long now_us(void)
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
static pid_t start(unsigned int uid, int cpu, void (*work)(int which), int which)
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

static void reset(void)
{
	memset(sh, 0, sizeof(*sh));
}

static void wait_ready(int number)
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
static void frames_of(pid_t pid, const volatile void *address, int pages, uint64_t *frames)
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

static void page_out_of(pid_t pid, volatile void *address, unsigned long size)
{
	struct iovec range = { (void *)address, size };
	int fd = syscall(SYS_pidfd_open, pid, 0);

	if (fd < 0 || syscall(SYS_process_madvise, fd, &range, 1, MADV_PAGEOUT, 0) < 0)
		die("process_madvise");
	close(fd);
}

/* --- secrets ------------------------------------------------------------------ */

static void *read_on(void *arg)
{
	int cpu = (long)arg;

	pin(cpu);
	/* No system call: only interrupts and faults flush. */
	while (!atomic_load(&sh->stop)) {
		for (int i = 0; i < PAGES; i++) {
			for (unsigned long at = 0; at < WORDS; at += 73) {
				uint64_t v = sh->map[i * WORDS + at];

				if (v == SECRET)
					atomic_fetch_add(&sh->secrets, 1);
				else if (v != OLD)
					atomic_fetch_add(&sh->wrong, 1);
			}
		}
		atomic_fetch_add(&sh->reads, PAGES * (WORDS / 73 + 1));
		atomic_fetch_add(&sh->passes[cpu], 1);
	}
	return NULL;
}

static void reader(int unused)
{
	pthread_t threads[MAX_CPUS];

	(void)unused;
	/* Its memory must be charged to its cgroup. */
	while (!atomic_load(&sh->go))
		usleep(1000);
	sh->map = map_file(path, MAP_SHARED);
	for (long cpu = 1; cpu < nr_cpus; cpu++)
		start_thread(&threads[cpu], read_on, (void *)cpu);
	atomic_store(&sh->ready, 1);
	for (int cpu = 1; cpu < nr_cpus; cpu++)
		pthread_join(threads[cpu], NULL);
}

static void wait_hot(void)
{
	unsigned long before[MAX_CPUS];

	for (int cpu = 1; cpu < nr_cpus; cpu++)
		before[cpu] = atomic_load(&sh->passes[cpu]);
	for (int cpu = 1; cpu < nr_cpus; cpu++)
		while (atomic_load(&sh->passes[cpu]) < before[cpu] + 2)
			usleep(100);
}

static uint64_t *writer_map;

static void writer(int unused)
{
	(void)unused;
	for (unsigned long i = 0; i < FILL / 8; i++)
		writer_map[i] = SECRET;
	atomic_store(&sh->ready, 2);
	pause();
}

/*
 * Another user writes secrets to the reader's frames. Returns how many of @frames it got.
 */
static int reuse(const uint64_t *frames)
{
	static uint64_t theirs[FILL / PAGE];
	int reused = 0;
	pid_t pid;

	writer_map = map_private(FILL);
	/* Single pages, freed last and used first. */
	madvise(writer_map, FILL, MADV_NOHUGEPAGE);
	pid = start(WRITER, 0, writer, 0);
	wait_ready(2);
	frames_of(pid, writer_map, FILL / PAGE, theirs);
	for (int i = 0; i < PAGES; i++)
		for (unsigned long k = 0; frames[i] && k < FILL / PAGE; k++)
			if (theirs[k] == frames[i]) {
				reused++;
				break;
			}
	usleep(5000);
	kill_and_wait(pid);
	munmap(writer_map, FILL);
	atomic_store(&sh->ready, 1);
	return reused;
}

static void by_page_out(pid_t pid)
{
	page_out_of(pid, sh->map, SIZE);
}

static void by_cgroup(pid_t pid)
{
	int fd = open(CGROUP "/memory.reclaim", O_WRONLY);

	(void)pid;
	if (fd < 0)
		die(CGROUP "/memory.reclaim");
	/* EAGAIN: there was less. */
	if (write(fd, "4M", 2) < 0 && errno != EAGAIN)
		die("memory.reclaim");
	close(fd);
}

/* @least: pages deferred per round. */
static void test_secrets(const char *name, void (*take)(pid_t pid), const char *cgroup, int least)
{
	unsigned long seen, wrong, reads;
	long parked, reused = 0;
	uint64_t frames[PAGES];
	char text[32];
	pid_t pid;

	reset();
	fill_file(path, OLD);
	/* The file's pages are charged to the next reader. */
	drain_all_lru();
	pid = start(READER, 1, reader, 0);
	if (cgroup) {
		snprintf(text, sizeof(text), "%d", pid);
		write_text(cgroup, text);
	}
	atomic_store(&sh->go, true);
	wait_ready(1);
	parked = vm_counter("luf_park");
	for (int i = 0; i < rounds; i++) {
		wait_hot();
		drain_all_lru();
		wait_hot();
		frames_of(pid, sh->map, PAGES, frames);
		take(pid);
		/* Root frees the frames for the next user. */
		drain_luf();
		reused += reuse(frames);
	}
	parked = vm_counter("luf_park") - parked;
	atomic_store(&sh->stop, true);
	waitpid(pid, NULL, 0);
	seen = atomic_load(&sh->secrets);
	wrong = atomic_load(&sh->wrong);
	reads = atomic_load(&sh->reads);
	test_result(!seen && !wrong && parked >= rounds * least && reused >= rounds,
		    "security secrets %s: %lu words read, %lu of them secrets, %lu wrong, %ld pages parked, %ld frames written by another user",
		    name, reads, seen, wrong, parked, reused);
}

static bool have_cgroup(void)
{
	if (access("/sys/fs/cgroup/cgroup.controllers", R_OK))
		return false;
	if (mkdir(CGROUP, 0755) && errno != EEXIST)
		return false;
	return !access(CGROUP "/memory.reclaim", W_OK);
}

/* --- bound -------------------------------------------------------------------- */

#define PARKERS		6
#define PARK_PAGES	1024UL
#define LIST_PAGES	128	/* LUF_LIST_MAX: pages of a reclaiming task */

static volatile char *map_park_file(int which)
{
	char name[sizeof(path) + 16];
	void *map;
	int fd;

	snprintf(name, sizeof(name), "%s.%d", path, which);
	fd = must_open(name, O_RDONLY);
	map = must_map(NULL, PARK_PAGES * PAGE, PROT_READ, MAP_SHARED, fd);
	close(fd);
	return map;
}

static void parker(int which)
{
	unsigned long size = PARK_PAGES * PAGE;
	volatile char *map = map_park_file(which);

	atomic_fetch_add(&sh->ready, 1);
	/* Two CPUs: a purely local flush is never deferred. */
	for (int cpu = which; !atomic_load(&sh->stop); cpu++) {
		touch(map, size);
		pin(cpu % nr_cpus);
		touch(map, size);
		madvise((void *)map, size, MADV_PAGEOUT);
		atomic_fetch_add(&sh->loops, 1);
	}
}

static void make_park_files(void)
{
	static char page[PAGE];
	char name[sizeof(path) + 16];

	for (int i = 0; i < PARKERS; i++) {
		int fd;

		snprintf(name, sizeof(name), "%s.%d", path, i);
		fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		if (fd < 0 || fchown(fd, READER, READER))
			die(name);
		for (unsigned long k = 0; k < PARK_PAGES; k++)
			if (write(fd, page, PAGE) != (ssize_t)PAGE)
				die(name);
		if (fsync(fd) || close(fd))
			die(name);
	}
}

static void unlink_park_files(void)
{
	char name[sizeof(path) + 16];

	for (int i = 0; i < PARKERS; i++) {
		snprintf(name, sizeof(name), "%s.%d", path, i);
		unlink(name);
	}
}

static int nr_nodes(void)
{
	char name[64];
	int nodes = 0;

	do {
		snprintf(name, sizeof(name), "/sys/devices/system/node/node%d", ++nodes);
	} while (!access(name, F_OK));
	return nodes;
}

/*
 * Pages of a deferred-free list with lot_pages at @pages: 1/64 of a node at most. Nodes
 * have one size.
 */
static long lot_limit(long pages)
{
	long managed = sysconf(_SC_PHYS_PAGES) / nr_nodes() / 64;

	return pages < managed ? pages : managed;
}

/*
 * A task's list of up to LIST_PAGES comes before the check. /proc/vmstat lacks per-CPU
 * deltas.
 */
static void test_bound(void)
{
	long limit = lot_limit(256), slack, most = 0, parked, samples = 0;
	char lot_pages[32];
	pid_t pids[PARKERS];
	long end;

	reset();
	make_park_files();
	read_text(LOT_PAGES, lot_pages, sizeof(lot_pages));
	write_text(LOT_PAGES, "256");
	/* The limit alone gives pages back. */
	hold_windows();
	parked = vm_counter("luf_park");
	for (int i = 0; i < PARKERS; i++)
		pids[i] = start(READER, i % nr_cpus, parker, i);
	wait_ready(PARKERS);
	/* A busy host may need longer. */
	for (end = now_us() + rounds * 400000L;
	     now_us() < end || (vm_counter("luf_park") - parked <= 10 * limit &&
				now_us() < end + 60000000);
	     samples++) {
		long n = vm_counter("nr_luf_parked");

		most = n > most ? n : most;
	}
	atomic_store(&sh->stop, true);
	for (int i = 0; i < PARKERS; i++)
		waitpid(pids[i], NULL, 0);
	parked = vm_counter("luf_park") - parked;
	write_text(LOT_PAGES, lot_pages);
	release_windows();
	unlink_park_files();
	slack = PARKERS * LIST_PAGES + nr_cpus * 64;
	test_result(most <= limit * nr_nodes() + slack && parked > 10 * limit,
		    "security bound: %d users parked %ld pages, at most %ld at once in %ld looks; the limit is %ld",
		    PARKERS, parked, most, samples, limit);
}

/* --- memory --------------------------------------------------------------------- */

/* Returns the longest wait for a page. */
static long take_memory(unsigned long size)
{
	char *map = map_private(size);
	long worst = 0;

	for (unsigned long at = 0; at < size; at += PAGE) {
		long before = now_us(), took;

		map[at] = 1;
		took = now_us() - before;
		worst = took > worst ? took : worst;
	}
	return worst;
}

/* Most free memory; then, on order, more than there is. */
static void hog(int unused)
{
	(void)unused;
	take_memory(atomic_load(&sh->size));
	atomic_store(&sh->ready, 1);
	while (!atomic_load(&sh->go))
		usleep(1000);
	atomic_store(&sh->worst_us, take_memory(atomic_load(&sh->size)));
	atomic_store(&sh->ready, 99);
	pause();
}

/* Up to half of @limit. */
static void park_some(long limit)
{
	unsigned long size = PARK_PAGES * PAGE;

	for (int i = 0; i < PARKERS && vm_counter("nr_luf_parked") < limit / 2; i++) {
		volatile char *map = map_park_file(i);

		/* Two CPUs, as above. */
		for (int cpu = 1; cpu >= 0; cpu--) {
			pin(cpu);
			touch(map, size);
		}
		if (madvise((void *)map, limit / 2 * PAGE < size ? limit / 2 * PAGE : size,
			    MADV_PAGEOUT))
			die("MADV_PAGEOUT");
		munmap((void *)map, size);
	}
}

static void test_memory(void)
{
	long limit = lot_limit(16384), kills, parked, left, reserve;
	char lot_pages[32], reserve_kb[32];
	unsigned long taken;
	bool got = false;
	pid_t pid;

	reset();
	read_text("/proc/sys/vm/min_free_kbytes", reserve_kb, sizeof(reserve_kb));
	/* Large with several nodes. */
	reserve = atol(reserve_kb) << 10;
	/* kswapd must sleep until pages are deferred. */
	taken = (number_in("/proc/meminfo", "MemFree:") << 10) - reserve * 3 / 2 - (32UL << 20);
	atomic_store(&sh->size, taken);
	pid = start(WRITER, 0, hog, 0);
	wait_ready(1);
	make_park_files();
	read_text(LOT_PAGES, lot_pages, sizeof(lot_pages));
	write_text(LOT_PAGES, "16384");
	/* Only an allocation gives them back. */
	hold_windows();
	park_some(limit);
	parked = vm_counter("nr_luf_parked");
	kills = vm_counter("oom_kill");
	/*
	 * All that is free or deferred, and some page cache. At once: time gives pages back
	 * in 20 s.
	 */
	atomic_store(&sh->size, (number_in("/proc/meminfo", "MemFree:") << 10) - reserve + parked * PAGE +
				(4UL << 20));
	taken += atomic_load(&sh->size);
	atomic_store(&sh->go, true);
	for (int i = 0; i < 6000 && !got && waitpid(pid, NULL, WNOHANG) != pid; i++) {
		usleep(10000);
		got = atomic_load(&sh->ready) >= 99;
	}
	got = atomic_load(&sh->ready) >= 99;
	/* Others may still free pages. */
	for (int i = 0; i < 100 && vm_counter("nr_luf_parked") >= parked / 2; i++)
		usleep(10000);
	left = vm_counter("nr_luf_parked");
	kills = vm_counter("oom_kill") - kills;
	kill_and_wait(pid);
	write_text(LOT_PAGES, lot_pages);
	release_windows();
	unlink_park_files();
	test_result(got && !kills && parked >= limit / 4 && left < parked / 2 &&
		    atomic_load(&sh->worst_us) < 10000000,
		    "security memory: %lu MB taken with %ld of %ld pages parked, %ld left, %ld processes killed, no page took longer than %ld us",
		    taken >> 20, parked, limit, left, kills, atomic_load(&sh->worst_us));
}

/* --- zeroes ----------------------------------------------------------------------- */

/* Memory that is filled in order is populated in large folios. */
static void fill_in_order(int unused)
{
	unsigned long words = FILL / 8, found = 0;
	uint64_t *map;

	(void)unused;
	map = map_private(FILL);
	for (unsigned long i = 0; i < words; i += WORDS)
		map[i] = 1;
	for (unsigned long i = 0; i < words; i++)
		found += i % (WORDS) && map[i];
	atomic_fetch_add(&sh->wrong, found);
	atomic_fetch_add(&sh->reads, words);
}

static void test_zeroes(void)
{
	static const char thp[] = "/sys/kernel/mm/transparent_hugepage/enabled";
	static const char * const sizes[] = { "always", "madvise", "never" };
	char was[64];
	long large;

	if (get_switch("folio_order") < 0 || access(thp, W_OK)) {
		test_skip("CONFIG_QUELL_FOLIO_ORDER", "security zeroes");
		return;
	}
	reset();
	read_text(thp, was, sizeof(was));
	/* Never is the default of small machines. */
	write_text(thp, "madvise");
	large = vm_counter("folio_order_alloc");
	for (int i = 0; i < rounds; i++) {
		pid_t pid;

		writer_map = map_private(FILL);
		atomic_store(&sh->ready, 0);
		pid = start(WRITER, 0, writer, 0);
		wait_ready(2);
		kill_and_wait(pid);
		munmap(writer_map, FILL);
		pid = start(READER, 0, fill_in_order, 0);
		waitpid(pid, NULL, 0);
	}
	large = vm_counter("folio_order_alloc") - large;
	for (int i = 0; i < 3; i++) {
		char marked[16];

		snprintf(marked, sizeof(marked), "[%s]", sizes[i]);
		if (strstr(was, marked))
			write_text(thp, sizes[i]);
	}
	test_result(!atomic_load(&sh->wrong) && large > 0 &&
		    atomic_load(&sh->reads) == rounds * FILL / 8,
		    "security zeroes: %lu words looked at, %lu of them not zero, %ld large folios",
		    atomic_load(&sh->reads), atomic_load(&sh->wrong), large);
}

/* --- permissions ---------------------------------------------------------------- */

static int nr_files, nr_wrong;

static void complain(const char *name, const char *what)
{
	ksft_print_msg("%s: %s\n", name, what);
	nr_wrong++;
}

static int only_root_writes(const char *name, const struct stat *st, int type, struct FTW *at)
{
	(void)at;
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

static int try_open(const char *name, const struct stat *st, int type, struct FTW *at)
{
	int fd;

	(void)st;
	(void)at;
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

static int look_for_ours(const char *name, const struct stat *st, int type, struct FTW *at)
{
	static const char * const words[] = {
		"quell", "luf", "early_ack", "folio_order", "rmap_batch", "writeout_batch",
		"gather_range",
	};
	const char *base = name + at->base;

	(void)st;
	(void)type;
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

	(void)st;
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

static void test_permissions(void)
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

/* --- flood ------------------------------------------------------------------------ */

#define LOOPS	(rounds * 40UL)
/* Page-outs of the victim's memory, at least: interrupts per page-out are compared. */
#define PAGE_OUTS	30

static bool attack_again(unsigned long loop)
{
	return loop < LOOPS || atomic_load(&sh->more);
}

static long shootdowns_of(int cpu)
{
	FILE *f = fopen("/proc/interrupts", "r");
	char line[1024], *at;
	long value = -1;

	if (!f)
		die("/proc/interrupts");
	while (value < 0 && fgets(line, sizeof(line), f)) {
		at = strstr(line, "TLB:");
		if (!at)
			continue;
		at += 4;
		for (int i = 0; i <= cpu; i++)
			value = strtol(at, &at, 10);
	}
	fclose(f);
	return value;
}

static void *touch_on_one(void *arg)
{
	volatile char *map = arg;

	pin(1);
	while (!atomic_load(&sh->stop))
		touch(map, SIZE);
	return NULL;
}

/* Each round defers a page, and its open waits for the flush. */
static void open_for_write(int unused)
{
	pthread_t thread;
	char *map;

	(void)unused;
	map = map_file(path, MAP_SHARED);
	start_thread(&thread, touch_on_one, map);
	for (unsigned long i = 0; attack_again(i); i++) {
		int fd;

		for (unsigned long at = 0; at < SIZE; at += PAGE)
			(void)*(volatile char *)(map + at);
		if (madvise(map + i % PAGES * PAGE, PAGE, MADV_PAGEOUT))
			die("MADV_PAGEOUT");
		fd = must_open(path, O_WRONLY);
		close(fd);
		atomic_fetch_add(&sh->loops, 1);
	}
	atomic_store(&sh->stop, true);
	pthread_join(thread, NULL);
}

/* Each round unmaps a page and keeps it, so the flush comes at once. */
static void keep_pages(int unused)
{
	char *map, content[PAGE];
	pthread_t thread;
	int fds[2];

	(void)unused;
	map = map_file(path, MAP_SHARED);
	if (pipe(fds) || pthread_create(&thread, NULL, touch_on_one, map))
		die("pthread_create");
	for (unsigned long i = 0; attack_again(i); i++) {
		struct iovec page = { map + i % PAGES * PAGE, PAGE };

		for (unsigned long at = 0; at < SIZE; at += PAGE)
			(void)*(volatile char *)(map + at);
		if (vmsplice(fds[1], &page, 1, 0) != PAGE)
			die("vmsplice");
		if (madvise(page.iov_base, PAGE, MADV_PAGEOUT))
			die("MADV_PAGEOUT");
		if (read(fds[0], content, PAGE) != PAGE)
			die("pipe");
		atomic_fetch_add(&sh->loops, 1);
	}
	atomic_store(&sh->stop, true);
	pthread_join(thread, NULL);
}

static void fork_much(int unused)
{
	unsigned long size = 1UL << 20;
	char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t thread;

	(void)unused;
	if (map == MAP_FAILED || pthread_create(&thread, NULL, touch_on_one, map))
		die("pthread_create");
	for (unsigned long i = 0; attack_again(i); i++) {
		pid_t pid;

		memset(map, i, size);
		pid = must_fork();
		if (!pid)
			_exit(0);
		waitpid(pid, NULL, 0);
		atomic_fetch_add(&sh->loops, 1);
	}
	atomic_store(&sh->stop, true);
	pthread_join(thread, NULL);
}

static void victim(int unused)
{
	pthread_t threads[MAX_CPUS];

	(void)unused;
	sh->map = map_file(victim_path, MAP_SHARED);
	/* Not the attacker's CPUs. */
	for (long cpu = 2; cpu < 4; cpu++)
		start_thread(&threads[cpu], read_on, (void *)cpu);
	atomic_store(&sh->ready, 1);
	pause();
}

static void all_switches(bool on)
{
	static const char * const names[] = {
		"luf", "rmap_batch", "early_ack", "folio_order", "writeout_batch", "gather_range",
	};

	for (unsigned long i = 0; i < ARRAY_SIZE(names); i++)
		if (get_switch(names[i]) >= 0)
			set_switch(names[i], on);
}

struct flood {
	long interrupts;	/* of the victim's CPUs */
	long asked;		/* flushes that the attacker caused */
	long page_outs;		/* of the victim's memory */
	unsigned long loops;
};

/* @reclaim: the victim's memory is paged out meanwhile. */
static struct flood attack(void (*work)(int), bool reclaim, const char *counter)
{
	struct flood found = { 0 };
	pid_t them, it;

	reset();
	fill_file(victim_path, OLD);
	if (chown(victim_path, VICTIM, VICTIM))
		die(victim_path);
	them = start(VICTIM, 2, victim, 0);
	wait_ready(1);
	usleep(50000);
	found.interrupts = shootdowns_of(2) + shootdowns_of(3);
	found.asked = counter ? vm_counter(counter) : 0;
	atomic_store(&sh->more, reclaim);
	it = start(READER, 0, work, 0);
	while (waitpid(it, NULL, WNOHANG) != it) {
		usleep(5000);
		if (reclaim) {
			page_out_of(them, sh->map, SIZE);
			if (++found.page_outs == PAGE_OUTS)
				atomic_store(&sh->more, false);
		}
	}
	found.interrupts = shootdowns_of(2) + shootdowns_of(3) - found.interrupts;
	found.asked = counter ? vm_counter(counter) - found.asked : 0;
	found.loops = atomic_load(&sh->loops);
	kill_and_wait(them);
	unlink(victim_path);
	return found;
}

/*
 * Compares interrupts of the victim's CPUs; with reclaim, interrupts per page-out. @counter
 * rises in at least some rounds of an attack on lazy unmap flush.
 */
static void test_flood(const char *name, void (*work)(int), bool reclaim, const char *counter)
{
	struct flood on, off;
	bool ok = false;

	fill_file(path, OLD);
	if (chown(path, READER, READER))
		die(path);
	/* Noise of the host: an attack would differ each time. */
	for (int i = 0; i < 3 && !ok; i++) {
		double on_each, off_each;

		on = attack(work, reclaim, counter);
		all_switches(false);
		off = attack(work, reclaim, NULL);
		all_switches(true);
		on_each = (double)on.interrupts / (reclaim ? on.page_outs : 1);
		off_each = (double)off.interrupts / (reclaim ? off.page_outs : 1);
		ok = on.loops >= LOOPS && off.loops >= LOOPS &&
		     (!counter || on.asked >= (long)LOOPS / 8) &&
		     on_each <= off_each + (reclaim ? 0.5 : 10);
	}
	test_result(ok,
		    "security flood %s: %lu loops, %ld flushes asked for, %ld interrupts of others' CPUs, %ld with Quell off; %ld and %ld page-outs of theirs",
		    name, on.loops, on.asked, on.interrupts, off.interrupts, on.page_outs,
		    off.page_outs);
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

	if (wanted("secrets")) {
		fill_file(path, OLD);
		if (chown(path, READER, READER))
			die(path);
		test_secrets("page-out", by_page_out, NULL, PAGES / 2);
		if (have_cgroup())
			test_secrets("memory.reclaim", by_cgroup, CGROUP "/cgroup.procs", 1);
		else
			test_skip("cgroup v2 with memory", "security secrets memory.reclaim");
		rmdir(CGROUP);
	}
	if (wanted("bound"))
		test_bound();
	if (wanted("memory"))
		test_memory();
	if (wanted("zeroes"))
		test_zeroes();
	if (wanted("permissions"))
		test_permissions();
	if (wanted("flood")) {
		if (nr_cpus < 4) {
			test_skip("four CPUs", "security flood");
		} else {
			test_flood("opens", open_for_write, false, "luf_write");
			test_flood("pages kept", keep_pages, false, "luf_kept");
			test_flood("forks", fork_much, false, NULL);
			test_flood("opens and reclaim", open_for_write, true, "luf_write");
			test_flood("pages kept and reclaim", keep_pages, true, "luf_kept");
		}
	}
	unlink(path);
	test_end();
}
