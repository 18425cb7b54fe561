/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Common parts of the tests of unmapping by reclaim and migration: /proc/kpageflags, folio
 * sizes, swap, a memory cgroup, NUMA nodes and the kernel's log. Include after util.h.
 * Needs root. All settings are restored at exit.
 *
 * Large folios are swapped out whole to block devices only. A loop device over a memfd
 * writes in the background: folios stay in the swap cache, and faults find them there. A
 * RAM disk (a free /dev/ram0 of SWAP_MB or more, brd.rd_size) is synchronous: folios leave
 * at once, and faults bypass the swap cache.
 */
#ifndef QUELL_RMAP_H
#define QUELL_RMAP_H

#include <dirent.h>
#include <linux/loop.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>

/* /proc/kpageflags */
#define KPF_LRU		FLAG(5)
#define KPF_WRITEBACK	FLAG(8)
#define KPF_SWAPCACHE	FLAG(13)
#define KPF_HEAD	FLAG(15)
#define KPF_TAIL	FLAG(16)

#define THP		"/sys/kernel/mm/transparent_hugepage/"
#define THP_SIZES	9		/* 8 kB to 2 MB */
#define MAX_ORDER_PAGES	512
#define HUGE		(2UL << 20)
#define SWAP_MB		32UL
#define CGROUP_ROOT	"/sys/fs/cgroup/"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif
#define MOVE_ALL	4		/* MPOL_MF_MOVE_ALL */

/* --- Small helpers ------------------------------------------------------- */

static inline bool try_write(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t done;

	if (fd < 0)
		return false;
	done = write(fd, text, strlen(text));
	close(fd);
	return done >= 0;
}

static inline bool try_read(const char *path, char *text, size_t size)
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

/* The number after @name at the start of a line, or -1. */
static inline long number_in(const char *path, const char *name)
{
	static char text[16384];
	const char *at = text;

	if (!try_read(path, text, sizeof(text)))
		return -1;
	while (at) {
		if (!strncmp(at, name, strlen(name)))
			return atol(at + strlen(name));
		at = strchr(at, '\n');
		at = at ? at + 1 : NULL;
	}
	return -1;
}

/* Empties the CPUs' folio batches. */
static inline void drain_lru(void)
{
	static char page[PAGE];
	void *pages = page;
	int node = 0, status;

	page[0] = 1;
	if (syscall(SYS_move_pages, 0, 1, &pages, &node, &status, 0))
		sched_yield();
}

/* --- Pages -------------------------------------------------------------- */

static inline bool can_soft_dirty(void)
{
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool can;

	if (page == MAP_FAILED)
		die("mmap");
	*page = 1;
	can = pagemap_at(page) & PM_SOFT_DIRTY;
	munmap(page, PAGE);
	return can;
}

static inline void kpageflags_read(uint64_t pfn, unsigned long n, uint64_t *flags)
{
	static uint64_t known;
	int fd = proc_fd("/proc/kpageflags", &known);

	memset(flags, 0, n * 8);
	if (pread(fd, flags, n * 8, pfn * 8) < 8)
		die("kpageflags");
}

static inline uint64_t kpageflags_at(uint64_t pfn)
{
	uint64_t flags;

	kpageflags_read(pfn, 1, &flags);
	return flags;
}

/* 0 if no page is mapped. */
static inline unsigned int folio_pages_at(const void *addr)
{
	uint64_t entry = pagemap_at(addr), flags[MAX_ORDER_PAGES], first, pfn;
	unsigned int head, end;

	if (!(entry & PM_PRESENT))
		return 0;
	pfn = PM_PFN(entry);
	if (!(kpageflags_at(pfn) & (KPF_HEAD | KPF_TAIL)))
		return 1;
	/* Folios are aligned to their size. */
	first = pfn & -(uint64_t)MAX_ORDER_PAGES;
	kpageflags_read(first, MAX_ORDER_PAGES, flags);
	for (head = pfn - first; head && flags[head] & KPF_TAIL; head--)
		;
	for (end = head + 1; end < MAX_ORDER_PAGES && flags[end] & KPF_TAIL; end++)
		;
	return end - head;
}

/* --- Sizes of anonymous and shared folios -------------------------------- */

static struct {
	char path[128], value[16];
} saved_thp[2 * THP_SIZES];
static int nr_saved_thp;
static pid_t restorer;

static inline void restore_thp(void)
{
	for (int i = 0; i < nr_saved_thp; i++)
		try_write(saved_thp[i].path, saved_thp[i].value);
}

/* The choice is the word in brackets. */
static inline void save_thp(void)
{
	static const char * const files[] = { "enabled", "shmem_enabled" };

	for (int i = 0; i < 2 * THP_SIZES; i++) {
		char text[128], *from, *to;

		snprintf(saved_thp[nr_saved_thp].path, sizeof(saved_thp->path),
			 THP "hugepages-%dkB/%s", 8 << i / 2, files[i % 2]);
		if (!try_read(saved_thp[nr_saved_thp].path, text, sizeof(text)))
			continue;
		from = strchr(text, '[');
		to = from ? strchr(from, ']') : NULL;
		if (!to)
			continue;
		snprintf(saved_thp[nr_saved_thp++].value, sizeof(saved_thp->value),
			 "%.*s", (int)(to - from - 1), from + 1);
	}
}

/* MADV_HUGEPAGE gives folios of @kb, a sum of sizes, and no others. */
static inline void choose_thp(unsigned int kb)
{
	for (int i = 0; i < nr_saved_thp; i++) {
		unsigned int size = 0;
		const char *how = "never";

		if (sscanf(saved_thp[i].path, THP "hugepages-%u", &size) == 1 && size & kb)
			how = strstr(saved_thp[i].path, "shmem") ? "advise" : "madvise";
		try_write(saved_thp[i].path, how);
	}
}

/* --- Swap ---------------------------------------------------------------- */

enum swap { RAM, LOOP, SWAPS };

static const char * const swap_names[] = { "ram", "loop" };

static struct swap_device {
	char path[64];		/* "" if unused */
	int fd;			/* keeps a loop device alive; -1: none */
	void *memory;		/* of a loop device, or NULL */
} swaps[SWAPS] = { { .fd = -1 }, { .fd = -1 } };

static inline void forget_swap(struct swap_device *swap)
{
	if (swap->fd >= 0)
		close(swap->fd);
	if (swap->memory)
		munmap(swap->memory, SWAP_MB << 20);
	*swap = (struct swap_device){ .fd = -1 };
}

static inline bool find_loop(struct swap_device *swap)
{
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), memory, number;
	struct loop_config config = { .info.lo_flags = LO_FLAGS_AUTOCLEAR };

	if (control < 0)
		return false;
	number = ioctl(control, LOOP_CTL_GET_FREE);
	close(control);
	if (number < 0)
		return false;
	snprintf(swap->path, sizeof(swap->path), "/dev/loop%d", number);
	memory = memfd_create("swap", MFD_CLOEXEC);
	if (memory < 0 || ftruncate(memory, SWAP_MB << 20))
		die("memfd_create");
	/*
	 * Populated and locked here, or the cgroup under test is charged for it and swaps
	 * it to itself.
	 */
	swap->memory = mmap(NULL, SWAP_MB << 20, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_POPULATE, memory, 0);
	if (swap->memory == MAP_FAILED || mlock(swap->memory, SWAP_MB << 20))
		die("memory for swap");
	make_swap(memory, SWAP_MB << 20);
	swap->fd = open(swap->path, O_RDWR | O_CLOEXEC);
	config.fd = memory;
	number = swap->fd < 0 ? -1 : ioctl(swap->fd, LOOP_CONFIGURE, &config);
	close(memory);
	return !number;
}

static inline bool find_ram(struct swap_device *swap)
{
	snprintf(swap->path, sizeof(swap->path), RAM_DISK);
	return make_ram_swap(SWAP_MB << 20);
}

static inline bool swap_off(enum swap which)
{
	struct swap_device *swap = &swaps[which];
	bool ok;

	if (!swap->path[0])
		return true;
	/* swapoff() looks for a leaked entry forever; SIGALRM ends it. */
	ok = !swapoff(swap->path);
	forget_swap(swap);
	return ok;
}

/* @flags: further ones of swapon() */
static inline bool swap_on_with(enum swap which, int flags)
{
	struct swap_device *swap = &swaps[which];

	if ((which == LOOP ? find_loop(swap) : find_ram(swap)) &&
	    !swapon(swap->path, SWAP_FLAG_PREFER | SWAP_FLAG_PRIO_MASK | flags))
		return true;
	forget_swap(swap);
	return false;
}

static inline bool swap_on(enum swap which)
{
	return swap_on_with(which, 0);
}

static inline void on_alarm(int sig)
{
	(void)sig;
}

static inline bool swap_off_in_time(enum swap which)
{
	struct sigaction end = { .sa_handler = on_alarm }, before;
	bool ok;

	sigaction(SIGALRM, &end, &before);
	alarm(20);
	ok = swap_off(which);
	alarm(0);
	sigaction(SIGALRM, &before, NULL);
	return ok;
}

/* --- A memory cgroup ----------------------------------------------------- */

static char cgroup[128];		/* "" without one */

static inline void cgroup_path(char *path, size_t size, const char *file)
{
	snprintf(path, size, "%s/%s", cgroup, file);
}

static inline bool make_cgroup(const char *name)
{
	char path[256];

	try_write(CGROUP_ROOT "cgroup.subtree_control", "+memory");
	snprintf(cgroup, sizeof(cgroup), CGROUP_ROOT "%s.%d", name, getpid());
	cgroup_path(path, sizeof(path), "memory.reclaim");
	if (mkdir(cgroup, 0755) || access(path, W_OK)) {
		rmdir(cgroup);
		cgroup[0] = 0;
		return false;
	}
	return true;
}

static inline void remove_cgroup(void)
{
	if (cgroup[0])
		rmdir(cgroup);
	cgroup[0] = 0;
}

static inline bool enter_cgroup(void)
{
	char path[256];

	cgroup_path(path, sizeof(path), "cgroup.procs");
	return cgroup[0] && try_write(path, "0");
}

/* Reclaim scans by statistics. Small deltas are not flushed without this. */
static inline void flush_cgroup(void)
{
	char path[256], text[1024];

	cgroup_path(path, sizeof(path), "cpu.stat");
	try_read(path, text, sizeof(text));
}

static inline long cgroup_number(const char *file, const char *name)
{
	char path[256];

	cgroup_path(path, sizeof(path), file);
	return number_in(path, name);
}

/*
 * The cgroup's remaining memory once its processes have ended, or "". Statistics may be
 * late by seconds.
 */
static inline const char *cgroup_rest(void)
{
	static const char * const names[] = {
		"anon ", "anon_thp ", "file_mapped ", "shmem ", "swapcached ", "unevictable ",
	};
	static char left[256];
	long swap;

	for (int tries = 0; tries < 50; tries++) {
		flush_cgroup();
		left[0] = 0;
		for (unsigned long i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
			long value = cgroup_number("memory.stat", names[i]);

			if (value > 0)
				snprintf(left + strlen(left), sizeof(left) - strlen(left),
					 "%s%ld ", names[i], value);
		}
		swap = cgroup_number("memory.swap.current", "");
		if (swap > 0)
			snprintf(left + strlen(left), sizeof(left) - strlen(left),
				 "swap %ld ", swap);
		if (!left[0])
			break;
		drain_lru();
		usleep(100000);
	}
	return left;
}

static inline void reclaim_cgroup(unsigned long bytes, bool anonymous)
{
	char path[256], text[64];

	flush_cgroup();
	cgroup_path(path, sizeof(path), "memory.reclaim");
	snprintf(text, sizeof(text), "%lu swappiness=%d", bytes, anonymous ? 200 : 0);
	try_write(path, text);
}

/* --- NUMA nodes ---------------------------------------------------------- */

static inline bool two_nodes(void)
{
	return !access("/sys/devices/system/node/node1", R_OK);
}

/* -1 without a page. */
static inline int node_of(void *addr)
{
	int node = -1;

	if (syscall(SYS_move_pages, 0, 1, &addr, NULL, &node, 0))
		die("move_pages");
	return node < 0 ? -1 : node;
}

/* A busy page may stay. */
static inline void move_to_node(char *map, unsigned long n, int node)
{
	enum { MANY = 512 };
	void *pages[MANY];
	int nodes[MANY], status[MANY];

	for (unsigned long i = 0, k; i < n; i += k) {
		for (k = 0; k < MANY && i + k < n; k++) {
			pages[k] = map + (i + k) * PAGE;
			nodes[k] = node;
		}
		if (syscall(SYS_move_pages, 0, k, pages, nodes, status, MOVE_ALL) < 0)
			die("move_pages");
	}
}

/* --- The kernel's log ---------------------------------------------------- */

static int kmsg_fd = -1;

static inline void watch_kernel_log(void)
{
	kmsg_fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (kmsg_fd >= 0)
		lseek(kmsg_fd, 0, SEEK_END);
}

/*
 * The first complaint since the last call, or NULL. Without data races (KCSAN): stock has
 * some.
 */
static inline const char *kernel_complaint(void)
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
		for (unsigned long i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
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

/* --- The switch ---------------------------------------------------------- */

#define RMAP_BATCH	QUELL_SYSFS "rmap_batch/enabled"

/* -1: no such switch. */
static inline int rmap_batch_enabled(void)
{
	char text[8];

	if (!try_read(RMAP_BATCH, text, sizeof(text)))
		return -1;
	return atoi(text);
}

static inline void switch_rmap_batch(int on)
{
	if (on >= 0)
		write_file(RMAP_BATCH, on ? "1" : "0");
}

/* --- Restoring the system ------------------------------------------------ */

static int saved_switch = -1;

static inline void restore_system(void)
{
	/* Not in children. */
	if (getpid() != restorer)
		return;
	restore_thp();
	/* Sizes that restore_thp() wrote are manual until then. */
	try_write(QUELL_SYSFS "folio_order/max_kb", "64");
	for (int i = 0; i < SWAPS; i++)
		swap_off_in_time(i);
	remove_cgroup();
	if (saved_switch >= 0)
		try_write(RMAP_BATCH, saved_switch ? "1" : "0");
}

static inline void on_end(int sig)
{
	restore_system();
	signal(sig, SIG_DFL);
	raise(sig);
}

static inline void save_system(void)
{
	restorer = getpid();
	save_thp();
	saved_switch = rmap_batch_enabled();
	atexit(restore_system);
	signal(SIGTERM, on_end);
	signal(SIGINT, on_end);
}

#endif /* QUELL_RMAP_H */
