// SPDX-License-Identifier: GPL-2.0-only
/* Files, and operations on them and on memory, by this process or the helper. */
#include "luf_torture.h"

/* --- Files ------------------------------------------------------------------------- */

struct file files[NR_FILES];

static unsigned int last_gen;
uint64_t *buffer;		/* aligned for O_DIRECT */

unsigned int new_gen(void)
{
	return ++last_gen & 0xffffff;
}

void fill_words(volatile uint64_t *to, unsigned int file, unsigned int gen,
		unsigned long first, unsigned long count)
{
	for (unsigned long i = 0; i < count; i++)
		to[i] = word_of(file, gen, first + i);
}

struct state content(unsigned int file, unsigned int gen)
{
	return (struct state){ .content = CONTENT, .file = file, .gen = gen };
}

/* --- Operations, by this process or the helper ------------------------------------ */

int helper_fd, torturer_pid, torturer_pidfd;
char reclaim_path[4096];

/* Frames of one node, or of all nodes in turn. */
void set_nodes(bool all)
{
	unsigned long nodes = (1UL << nr_nodes) - 1;

	if (nr_nodes < 2)
		return;
	if (!all)
		nodes = 1UL << pick(nr_nodes);
	syscall(SYS_set_mempolicy, all ? MPOL_INTERLEAVE : MPOL_PREFERRED, &nodes, 64L);
}

static long op_write(const struct op *op)
{
	int flags = O_RDWR | (op->code == OP_DIRECT ? O_DIRECT : 0);
	int fd = open(files[op->file].path, flags);
	uint64_t *map;
	long err = 0;

	if (fd < 0)
		return -errno;
	if (op->code == OP_MMAP_WRITE) {
		map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (map == MAP_FAILED) {
			err = -errno;
		} else {
			fill_words(map, op->file, op->gen, 0, SIZE / 8);
			munmap(map, SIZE);
		}
	} else {
		fill_words(buffer, op->file, op->gen, 0, SIZE / 8);
		if (pwrite(fd, buffer, SIZE, 0) != (ssize_t)SIZE)
			err = errno ? -errno : -EIO;
	}
	close(fd);
	return err;
}

static long op_fallocate(const struct op *op, int mode, unsigned long length)
{
	int fd = open(files[op->file].path, O_RDWR);
	long err;

	if (fd < 0)
		return -errno;
	err = fallocate(fd, mode, 0, length) ? -errno : 0;
	close(fd);
	return err;
}

/* Clean, in the page cache, without a writer. */
static long op_ready(const struct op *op)
{
	int fd = open(files[op->file].path, O_RDONLY);
	long err = 0;

	if (fd < 0)
		return -errno;
	/* Frames of one node make the nodes' deferred-free lists differ in age. */
	set_nodes(pick(2));
	if (sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE |
			    SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER) ||
	    pread(fd, buffer, SIZE, 0) < 0)
		err = -errno;
	close(fd);
	return err;
}

static long op_pageout(const struct op *op)
{
	struct iovec range = { op->addr, op->pages * PAGE };

	if (syscall(SYS_process_madvise, torturer_pidfd, &range, 1, MADV_PAGEOUT, 0) < 0)
		return -errno;
	return 0;
}

static long op_move(const struct op *op)
{
	int from[PAGES], to[PAGES], status[PAGES];
	void *pages[PAGES];

	for (unsigned int i = 0; i < op->pages; i++)
		pages[i] = (char *)op->addr + i * PAGE;
	if (syscall(SYS_move_pages, torturer_pid, (long)op->pages, pages, NULL, from, 0))
		return -errno;
	for (unsigned int i = 0; i < op->pages; i++)
		to[i] = from[i] < 0 ? 0 : (from[i] + 1) % nr_nodes;
	if (syscall(SYS_move_pages, torturer_pid, (long)op->pages, pages, to, status,
		    MPOL_MF_MOVE_ALL) < 0)
		return -errno;
	return 0;
}

static long op_migrate(const struct op *op)
{
	unsigned long from = 1UL << op->arg % nr_nodes;
	unsigned long to = 1UL << (op->arg + 1) % nr_nodes;

	if (syscall(SYS_migrate_pages, torturer_pid, 64L, &from, &to) < 0)
		return -errno;
	return 0;
}

/* The kernel clears the frames; one poisoned word per 64 bytes suffices. */
static long op_fill(const struct op *op)
{
	unsigned long size = (1UL + op->arg) << 17;
	uint64_t *fill = mmap(NULL, size, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (fill == MAP_FAILED)
		return -errno;
	set_nodes(true);
	for (unsigned long i = 0; i < size / 8; i += WORDS / 8)
		fill[i] = POISON;
	if (op->addr)
		*(void **)op->addr = fill;
	else
		munmap(fill, size);
	return 0;
}

static int pinned[2] = { -1, -1 };

static void unpin(void)
{
	if (pinned[0] < 0)
		return;
	close(pinned[0]);
	close(pinned[1]);
	pinned[0] = -1;
}

/* References keep folios in memory after they are unmapped. */
static long op_pin(const struct op *op)
{
	int fd = open(files[op->file].path, O_RDONLY);
	long err = 0;

	if (fd < 0)
		return -errno;
	/* A round may have ended early. */
	unpin();
	if (pipe2(pinned, O_CLOEXEC | O_NONBLOCK))
		err = -errno;
	else if (fcntl(pinned[1], F_SETPIPE_SZ, SIZE) < 0 ||
		 splice(fd, NULL, pinned[1], NULL, SIZE, SPLICE_F_NONBLOCK) < 0)
		err = -errno;
	close(fd);
	return err;
}

/* The folios leave the page cache without reclaim. */
static long op_unpin(const struct op *op)
{
	int fd = open(files[op->file].path, O_RDONLY);

	unpin();
	if (fd < 0)
		return -errno;
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	return 0;
}

static long do_op(const struct op *op)
{
	int fd;

	switch (op->code) {
	case OP_READY:
		return op_ready(op);
	case OP_PWRITE:
	case OP_MMAP_WRITE:
	case OP_DIRECT:
		return op_write(op);
	case OP_TRUNCATE:
		if (truncate(files[op->file].path, 0) ||
		    truncate(files[op->file].path, SIZE))
			return -errno;
		return 0;
	case OP_PUNCH:
		return op_fallocate(op, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, SIZE);
	case OP_ZERO:
		return op_fallocate(op, FALLOC_FL_ZERO_RANGE, SIZE);
	case OP_COLLAPSE:
		return op_fallocate(op, FALLOC_FL_COLLAPSE_RANGE, op->arg * PAGE);
	case OP_OPEN:
		for (unsigned int i = 0; i < op->arg; i++) {
			fd = open(files[op->file].path, O_RDWR);
			if (fd < 0)
				return -errno;
			close(fd);
		}
		return 0;
	case OP_PAGEOUT:
		return op_pageout(op);
	case OP_MOVE:
		return op_move(op);
	case OP_MIGRATE:
		return op_migrate(op);
	case OP_RECLAIM:
		/* It may find less than requested. */
		for (unsigned int i = 0; i < 3; i++)
			try_write(reclaim_path, "512K");
		return 0;
	case OP_COMPACT:
		try_write("/proc/sys/vm/compact_memory", "1");
		return 0;
	case OP_DRAIN:
		return try_write(LUF "drain", "1") ? 0 : -errno;
	case OP_FILL:
		return op_fill(op);
	case OP_PIN:
		return op_pin(op);
	case OP_UNPIN:
		return op_unpin(op);
	}
	return -EINVAL;
}

void helper(int fd)
{
	struct op op;
	long result;

	/* Fast under pressure. Mappings of rounds are not locked. */
	mlockall(MCL_CURRENT);
	while (read(fd, &op, sizeof(op)) == sizeof(op)) {
		/* CPU hotplug may have moved this process, or removed the CPU. */
		if (sched_getcpu() != op.cpu)
			try_pin(op.cpu);
		result = do_op(&op);
		if (write(fd, &result, sizeof(result)) != sizeof(result))
			break;
	}
	_exit(0);
}

void send_op(struct op op)
{
	if (op.cpu < 0)
		op.cpu = sched_getcpu();
	if (write(helper_fd, &op, sizeof(op)) != sizeof(op))
		die("the helper process is gone");
}

long wait_op(void)
{
	long result;

	if (read(helper_fd, &result, sizeof(result)) != sizeof(result))
		die("the helper process is gone");
	return result;
}

bool succeeded(const struct op *op, long result)
{
	if (!result)
		return true;
	/* Expected under pressure and migration. */
	if (result == -ENOMEM || result == -EAGAIN || result == -EBUSY ||
	    result == -EINTR)
		return false;
	errno = -result;
	fprintf(stderr, "operation %d in %s\n", op->code, doing);
	die("an operation failed");
	return false;
}

struct round round_;

bool here(const struct op *op)
{
	return succeeded(op, do_op(op));
}

bool elsewhere(struct op op)
{
	if (round_.alone)
		return here(&op);
	op.cpu = -1;
	send_op(op);
	return succeeded(&op, wait_op());
}

bool anywhere(struct op op)
{
	if (pick(4))
		return elsewhere(op);
	return here(&op);
}
