// SPDX-License-Identifier: GPL-2.0-only
/* Page tables, frames and page-out: see pages.h. */
#include "pages.h"

#define MAX_ORDER_PAGES	512

int proc_fd(const char *path, uint64_t *known)
{
	uint64_t was = __atomic_load_n(known, __ATOMIC_RELAXED);
	int fd;

	if (was >> 32 == (uint64_t)getpid())
		return (uint32_t)was;
	fd = must_open(path, O_RDONLY | O_CLOEXEC);
	__atomic_store_n(known, (uint64_t)getpid() << 32 | (uint32_t)fd, __ATOMIC_RELAXED);
	return fd;
}

static int pagemap_fd(void)
{
	static uint64_t known;

	return proc_fd("/proc/self/pagemap", &known);
}

void pagemap_read(const volatile void *addr, unsigned long n, uint64_t *entries)
{
	if (pread(pagemap_fd(), entries, n * 8, (uintptr_t)addr / PAGE * 8) != (ssize_t)(n * 8))
		die("pagemap");
}

uint64_t pagemap_at(const volatile void *addr)
{
	return pagemap_get_entry(pagemap_fd(), (char *)addr);
}

static void kpageflags_read(uint64_t pfn, unsigned long n, uint64_t *flags)
{
	static uint64_t known;
	int fd = proc_fd("/proc/kpageflags", &known);

	memset(flags, 0, n * 8);
	if (pread(fd, flags, n * 8, pfn * 8) < 8)
		die("kpageflags");
}

uint64_t kpageflags_at(uint64_t pfn)
{
	uint64_t flags;

	kpageflags_read(pfn, 1, &flags);
	return flags;
}

unsigned int folio_pages_at(const void *addr)
{
	uint64_t entry = pagemap_at(addr), flags[MAX_ORDER_PAGES], first, pfn;
	unsigned int head, end;

	if (!(entry & PM_PRESENT))
		return 0;
	pfn = PAGEMAP_PFN(entry);
	if (!(kpageflags_at(pfn) & (KPF_COMPOUND_HEAD | KPF_COMPOUND_TAIL)))
		return 1;
	/* Folios are aligned to their size. */
	first = pfn & -(uint64_t)MAX_ORDER_PAGES;
	kpageflags_read(first, MAX_ORDER_PAGES, flags);
	for (head = pfn - first; head && flags[head] & KPF_COMPOUND_TAIL; head--)
		;
	for (end = head + 1; end < MAX_ORDER_PAGES && flags[end] & KPF_COMPOUND_TAIL; end++)
		;
	return end - head;
}

void drain_lru(void)
{
	static char page[PAGE];
	void *pages = page;
	int node = 0, status;

	page[0] = 1;
	if (syscall(SYS_move_pages, 0, 1, &pages, &node, &status, 0))
		sched_yield();
}

void drain_all_lru(void)
{
	write_text("/proc/sys/vm/drop_caches", "1");
}

bool two_nodes(void)
{
	return !access("/sys/devices/system/node/node1", R_OK);
}

int node_of(void *addr)
{
	int node = -1;

	if (syscall(SYS_move_pages, 0, 1, &addr, NULL, &node, 0))
		die("move_pages");
	return node < 0 ? -1 : node;
}

void move_to_node(volatile void *map, unsigned long n, int node)
{
	enum { MANY = 512 };
	void *pages[MANY];
	int nodes[MANY], status[MANY];

	for (unsigned long i = 0, k; i < n; i += k) {
		for (k = 0; k < MANY && i + k < n; k++) {
			pages[k] = (char *)map + (i + k) * PAGE;
			nodes[k] = node;
		}
		/* Short of memory it moves fewer. */
		if (syscall(SYS_move_pages, 0, k, pages, nodes, status, MPOL_MF_MOVE_ALL) < 0 &&
		    errno != ENOMEM)
			die("move_pages");
	}
}

int open_uffd(volatile void *addr, size_t bytes, uint64_t features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return -1;
	if (!ioctl(fd, UFFDIO_API, &api) &&
	    !uffd_register(fd, (void *)addr, bytes, false, true, false))
		return fd;
	close(fd);
	return -1;
}

bool uffd_protect(int uffd, volatile void *addr, size_t bytes, bool on)
{
	struct uffdio_writeprotect protect = {
		.range.start = (uintptr_t)addr,
		.range.len = bytes,
		.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};

	return !ioctl(uffd, UFFDIO_WRITEPROTECT, &protect);
}

void fill_file(const char *name, uint64_t value)
{
	int fd = must_open(name, O_RDWR | O_CREAT | O_TRUNC);
	uint64_t page[WORDS];

	for (unsigned long i = 0; i < WORDS; i++)
		page[i] = value;
	for (int i = 0; i < PAGES; i++)
		if (write(fd, page, PAGE) != (ssize_t)PAGE)
			die(name);
	if (fsync(fd) || close(fd))
		die(name);
}

/*
 * Aligned to SIZE: MADV_PAGEOUT splits a large folio that crosses page tables and does not
 * page it out.
 */
void *map_file(const char *name, int flags)
{
	int prot = flags & MAP_PRIVATE ? PROT_READ | PROT_WRITE : PROT_READ;
	int fd = must_open(name, O_RDONLY);
	void *map = must_map(reserve(SIZE, SIZE), SIZE, prot, flags | MAP_FIXED, fd);

	close(fd);
	return map;
}

void *map_filled(uint64_t value)
{
	uint64_t *map = map_private(SIZE);

	madvise(map, SIZE, MADV_NOHUGEPAGE);
	for (unsigned long i = 0; i < SIZE / 8; i++)
		map[i] = value;
	return map;
}

void touch(const volatile void *map, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += PAGE)
		(void)*((const volatile char *)map + at);
}

static void *touch_thread(void *map)
{
	pin(1);
	touch(map, SIZE);
	return NULL;
}

void touch_on_other_cpu(void *map)
{
	pthread_t thread;

	start_thread(&thread, touch_thread, map);
	pthread_join(thread, NULL);
}

long pageout(void *map, const char *counter)
{
	long before = vm_counter(counter);

	must_advise(map, SIZE, MADV_PAGEOUT);
	return vm_counter(counter) - before;
}

static void *companion_thread(void *arg)
{
	struct companion *c = arg;

	touch_thread(c->map);
	__atomic_store_n(&c->touched, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE))
		;
	return NULL;
}

void companion_start(struct companion *c, void *map)
{
	*c = (struct companion) { .map = map };
	start_thread(&c->thread, companion_thread, c);
	while (!__atomic_load_n(&c->touched, __ATOMIC_ACQUIRE))
		;
	drain_all_lru();
}

void companion_stop(struct companion *c)
{
	__atomic_store_n(&c->stop, true, __ATOMIC_RELEASE);
	pthread_join(c->thread, NULL);
}

long pageout_shared(void *map, const char *counter)
{
	struct companion c;
	long rise;

	companion_start(&c, map);
	rise = pageout(map, counter);
	companion_stop(&c);
	return rise;
}
