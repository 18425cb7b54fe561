// SPDX-License-Identifier: GPL-2.0-only
/*
 * Torture of lazy unmap flush, the user-space half: no read, write or execution goes
 * through a stale TLB entry. Attacks R1 to R5 of mm/luf.c in random combinations. Usage:
 *
 *	luf_torture DIR [--seconds N] [--reads N] [--seed N] [--only ACTION,...]
 *
 * DIR is on a file system that lazy unmap flush supports (ext4). Every 64-bit word names
 * its file or memory, its generation and its place. The states that an address may show are
 * in its struct window. A writer adds the new state before a change (may_change()) and
 * removes the old ones after it (has_changed()). A reader notes the window before and after
 * a read: the word must be one of these states, or a mix of their bytes, as a copy need not
 * be atomic.
 *
 * Most work is done in short rounds, as much flushes a TLB. Readers on other CPUs spin over
 * a small mapping. Its pages are taken away, mostly by another process: a madvise() or
 * munmap() in the same mm would flush. An action of actions[] makes old states illegal, and
 * the readers look.
 *
 * Background processes read a larger file under memory pressure while it is written and
 * paged out, and move the tunables. mm/luf_torture.c, the kernel half, poisons freed frames
 * and hotplugs CPUs. The ledger (mm/luf_debug.c) is read. Both are optional.
 *
 * A violation prints the round, the word and the legal states. The exit code is 1.
 */
#include <limits.h>
#include <linux/falloc.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "luf.h"

#define KERNEL_HALF	"/sys/module/luf_torture/parameters/"
#define LEDGER		"/sys/module/luf_debug/parameters/violations"

#define NR_FILES	6
#define BIG_FILE	100			/* IDs in words */
#define ANON_FILE	200
#define CHUNK		PAGES			/* pages per window of the big file */
#define MAX_CHUNKS	64
#define MAX_CPUS	64
#define MAX_STATES	8			/* power of two */
#define POISON		0xf4f4f4f4f4f4f4f4UL	/* HLT: execution is noticed */
/* Passes of the readers after the change, and their time limit. */
#define PASSES		4
#define PATIENCE	0.3
#define STUCK		60.0
/* Extra seconds on a busy host. */
#define GRACE		60.0

/* --- Content of words ---------------------------------------------------------- */

enum content {
	CONTENT,	/* generation @gen of @file */
	ZERO,
	FAULT,		/* access faults */
};

struct state {
	enum content content;
	unsigned int file;
	unsigned int gen;
	unsigned int shift;	/* pages cut out at the front */
	unsigned int pages;	/* 0: all; else pages behind fault */
};

struct window {
	atomic_uint lo, hi;
	struct state states[MAX_STATES];
};

/*
 * The first word of a page is code, too: mov $gen:page, %eax; ret. It is not executed while
 * it changes, as the CPU would have to serialize.
 */
static uint64_t word_of(unsigned int file, unsigned int gen, unsigned long word)
{
	uint64_t page = word / WORDS;

	if (word % WORDS == 0)
		return 0xb8 | (page & 0xffff) << 8 | (uint64_t)(gen & 0xffff) << 24 |
		       0xc3UL << 40 | (uint64_t)file << 48 |
		       (uint64_t)(gen >> 16 & 0xff) << 56;
	return 0x4cUL << 56 | (uint64_t)file << 48 |
	       (uint64_t)(gen & 0xffffff) << 24 | (word & 0xffffff);
}

static bool faults(const struct state *s, unsigned long word)
{
	return s->content == FAULT || (s->pages && word / WORDS >= s->pages);
}

static uint64_t expected(const struct state *s, unsigned long word)
{
	if (s->content == ZERO)
		return 0;
	return word_of(s->file, s->gen, word + s->shift * WORDS);
}

static void window_init(struct window *w, struct state first)
{
	w->states[0] = first;
	atomic_store(&w->hi, 0);
	atomic_store(&w->lo, 0);
}

static void may_change(struct window *w, struct state new)
{
	unsigned int hi = atomic_load(&w->hi) + 1;

	w->states[hi % MAX_STATES] = new;
	atomic_store(&w->hi, hi);
}

static void has_changed(struct window *w)
{
	atomic_store(&w->lo, atomic_load(&w->hi));
}

static struct state *state_at(struct window *w, unsigned int i)
{
	return &w->states[i % MAX_STATES];
}

static bool legal(struct window *w, unsigned int lo, unsigned int hi,
		  unsigned long word, uint64_t v)
{
	uint64_t missing = ~0UL, differ;

	for (unsigned int i = lo; i <= hi; i++) {
		struct state *s = state_at(w, i);

		if (faults(s, word))
			continue;
		differ = expected(s, word) ^ v;
		if (!differ)
			return true;
		for (int byte = 0; byte < 64; byte += 8)
			if (!(differ >> byte & 0xff))
				missing &= ~(0xffUL << byte);
	}
	if (!missing)
		return true;
	/* The reader slept: the states from before its read are overwritten. */
	return atomic_load(&w->hi) - lo >= MAX_STATES - 1;
}

/* --- Shared by all processes ---------------------------------------------------- */

struct violation {
	atomic_int claimed, complete;
	char what[64], by[128];
	uint64_t found, again;
	unsigned long word;
	void *addr;
	int cpu;
	unsigned int lo, hi;
	struct state first, last;
	double when;
};

struct shared {
	atomic_bool stop, background;
	atomic_ulong reads[MAX_CPUS + 2], skipped, rounds;
	atomic_uint big_gen;
	struct window chunks[MAX_CHUNKS];
	struct violation violation;
	/* Of the process that reads the big file. */
	atomic_uintptr_t big_map;
	atomic_int big_pid;
	atomic_ulong big_writes, fills, knobs;
	atomic_ulong action_rounds[64];
};

static struct shared *sh;
static const char *dir;
static int nr_cpus, nr_nodes;
static unsigned int big_chunks;
static double started;
static __thread uint64_t random_state;
static char doing[128];		/* the round, for reports */

static unsigned int pick(unsigned int n)
{
	return next_random(&random_state) % n;
}

static bool stopped(void)
{
	return atomic_load(&sh->stop);
}

static void violated(const char *what, const char *by, struct window *w,
		     unsigned int lo, unsigned int hi, unsigned long word,
		     volatile uint64_t *addr, uint64_t found)
{
	struct violation *v = &sh->violation;

	if (atomic_exchange(&v->claimed, 1))
		return;
	v->when = now() - started;
	snprintf(v->what, sizeof(v->what), "%s", what);
	snprintf(v->by, sizeof(v->by), "%s", by);
	v->found = found;
	v->word = word;
	v->addr = (void *)addr;
	v->cpu = sched_getcpu();
	v->lo = lo;
	v->hi = hi;
	v->first = *state_at(w, lo);
	v->last = *state_at(w, hi);
	atomic_store(&v->complete, 1);
	atomic_store(&sh->stop, true);
}

/* --- Readers --------------------------------------------------------------------- */

struct reader {
	pthread_t thread;
	int cpu;
	atomic_uint job;		/* number of its job, or 0 */
	atomic_ulong passes, faults;
	/* For the signal handler. */
	sigjmp_buf jump;
	bool armed;
	volatile unsigned int page, word, lo;
	unsigned int offset;		/* of the word in a page */
	uint64_t token;			/* its last write, and that of each page */
	uint64_t wrote[PAGES];
	unsigned long reads;
	volatile uint64_t *addr;
};

static struct job {
	atomic_uint number;		/* odd: active */
	volatile uint64_t *map;
	unsigned int pages;
	bool execute;
	bool write;			/* each reader writes its own word of a page */
	uint64_t readers;		/* mask of CPUs */
	struct window window;
} job;

static struct reader readers[MAX_CPUS];
static __thread struct reader *me;

static void on_fault(int sig, siginfo_t *info, void *context)
{
	struct window *w = &job.window;
	unsigned int hi;

	(void)info;
	(void)context;
	if (!me || !me->armed) {
		signal(sig, SIG_DFL);
		raise(sig);
		return;
	}
	hi = atomic_load(&w->hi);
	if (sig == SIGSEGV || sig == SIGBUS)
		for (unsigned int i = me->lo; i <= hi; i++)
			if (faults(state_at(w, i), me->word))
				siglongjmp(me->jump, 1);
	violated(sig == SIGBUS ? "SIGBUS" : sig == SIGSEGV ? "SIGSEGV" :
		 "executed what is no code", doing, w, me->lo, hi, me->word, me->addr, 0);
	siglongjmp(me->jump, 1);
}

static void check(struct reader *r, uint64_t v, const char *what)
{
	struct window *w = &job.window;
	unsigned int hi = atomic_load(&w->hi);

	if (!legal(w, r->lo, hi, r->word, v))
		violated(what, doing, w, r->lo, hi, r->word, r->addr, v);
}

/* The word has no other writer: its last value must be there. */
static void rewrite(struct reader *r)
{
	uint64_t v;

	r->word = (r->page + 1) * WORDS - 1 - r->cpu;
	r->addr = job.map + r->word;
	v = *r->addr;
	if (r->wrote[r->page] && v != r->wrote[r->page])
		violated("lost a write", doing, &job.window, 0, 0, r->word, r->addr, v);
	r->wrote[r->page] = 0x4dUL << 56 | (uint64_t)r->cpu << 48 | ++r->token;
	*r->addr = r->wrote[r->page];
}

static void look(struct reader *r, unsigned int number)
{
	uint64_t v;

	r->page = 0;
	r->offset = 0;
	memset(r->wrote, 0, sizeof(r->wrote));
	if (sigsetjmp(r->jump, 0)) {
		r->page++;
		atomic_fetch_add(&r->faults, 1);
	}
	r->armed = true;
	while (atomic_load(&job.number) == number) {
		for (; r->page < job.pages; r->page++) {
			r->word = r->page * WORDS + r->offset;
			r->addr = job.map + r->word;
			r->lo = atomic_load(&job.window.lo);
			v = *r->addr;
			check(r, v, "read");
			r->reads++;
			if (job.write)
				rewrite(r);
			if (!job.execute)
				continue;
			r->word = r->page * WORDS;
			r->addr = job.map + r->word;
			r->lo = atomic_load(&job.window.lo);
			v = ((unsigned int (*)(void))r->addr)();
			v = v << 8 | (expected(state_at(&job.window, r->lo), r->word) &
				      ~(0xffffffffUL << 8));
			check(r, v, "executed");
			r->reads++;
		}
		r->page = 0;
		r->offset = (r->offset + 37) % (WORDS - MAX_CPUS);
		atomic_fetch_add(&r->passes, 1);
		atomic_store(&sh->reads[r->cpu], r->reads);
	}
	r->armed = false;
}

static void *reader_thread(void *arg)
{
	const struct timespec nap = { .tv_nsec = 50000000 };
	struct reader *r = arg;

	me = r;
	while (!stopped()) {
		unsigned int number = atomic_load(&job.number);

		if (!(number & 1) || !(job.readers >> r->cpu & 1)) {
			/* Bounded: stop may have been set just now. */
			syscall(SYS_futex, &job.number, FUTEX_WAIT_PRIVATE, number,
				&nap, NULL, 0);
			continue;
		}
		/* job.readers belongs to the job while the number is the same. */
		atomic_store(&r->job, number);
		if (atomic_load(&job.number) == number) {
			if (sched_getcpu() != r->cpu)
				try_pin(r->cpu);
			look(r, number);
		}
		atomic_store(&r->job, 0);
	}
	return NULL;
}

/* Waits for @passes of all readers, for PATIENCE at most. */
static bool await_passes(int passes)
{
	double limit = now() + PATIENCE;
	unsigned long from[MAX_CPUS];
	bool all;

	for (int cpu = 0; cpu < nr_cpus; cpu++)
		from[cpu] = atomic_load(&readers[cpu].passes);
	do {
		all = true;
		for (int cpu = 0; cpu < nr_cpus; cpu++)
			if (job.readers >> cpu & 1)
				all &= atomic_load(&readers[cpu].passes) >=
				       from[cpu] + passes;
		if (!all)
			sched_yield();
	} while (!all && now() < limit && !stopped());
	return all;
}

static void job_start(void)
{
	atomic_fetch_add(&job.number, 1);
	syscall(SYS_futex, &job.number, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void job_end(void)
{
	unsigned int number = atomic_fetch_add(&job.number, 1);

	for (int cpu = 0; cpu < nr_cpus; cpu++)
		while (atomic_load(&readers[cpu].job) == number)
			sched_yield();
}

/* --- Files ------------------------------------------------------------------------- */

static struct file {
	char path[4096];
	struct state state;
} files[NR_FILES];

static unsigned int last_gen;
static uint64_t *buffer;		/* aligned for O_DIRECT */

static unsigned int new_gen(void)
{
	return ++last_gen & 0xffffff;
}

static void fill_words(volatile uint64_t *to, unsigned int file, unsigned int gen,
		       unsigned long first, unsigned long count)
{
	for (unsigned long i = 0; i < count; i++)
		to[i] = word_of(file, gen, first + i);
}

static struct state content(unsigned int file, unsigned int gen)
{
	return (struct state){ .content = CONTENT, .file = file, .gen = gen };
}

/* --- Operations, by this process or the helper ------------------------------------ */

enum op_code {
	OP_READY, OP_PWRITE, OP_MMAP_WRITE, OP_DIRECT, OP_TRUNCATE, OP_PUNCH, OP_ZERO,
	OP_COLLAPSE, OP_OPEN, OP_PAGEOUT, OP_MOVE, OP_MIGRATE, OP_RECLAIM, OP_COMPACT,
	OP_DRAIN, OP_FILL, OP_PIN, OP_UNPIN,
};

struct op {
	enum op_code code;
	int cpu;
	unsigned int file, gen, arg;
	void *addr;
	unsigned int pages;
};

static int helper_fd, torturer_pid, torturer_pidfd;
static char reclaim_path[4096];

/* Frames of one node, or of all nodes in turn. */
static void set_nodes(bool all)
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

static void helper(int fd)
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

static void send_op(struct op op)
{
	if (op.cpu < 0)
		op.cpu = sched_getcpu();
	if (write(helper_fd, &op, sizeof(op)) != sizeof(op))
		die("the helper process is gone");
}

static long wait_op(void)
{
	long result;

	if (read(helper_fd, &result, sizeof(result)) != sizeof(result))
		die("the helper process is gone");
	return result;
}

static bool succeeded(const struct op *op, long result)
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

static struct round {
	int kind;
	unsigned int file;
	pid_t child;
	int child_fd;		/* to a COW round's child */
	void *also;		/* a second mapping to undo */
	void *filled;		/* a third one */
	unsigned long filled_size;
	int fd;			/* an open file, or -1 */
	bool alone;		/* no helper: it would switch this CPU's mm */
	bool changed;		/* the file's state is unknown */
} round_;

static bool here(const struct op *op)
{
	return succeeded(op, do_op(op));
}

static bool elsewhere(struct op op)
{
	if (round_.alone)
		return here(&op);
	op.cpu = -1;
	send_op(op);
	return succeeded(&op, wait_op());
}

static bool anywhere(struct op op)
{
	if (pick(4))
		return elsewhere(op);
	return here(&op);
}

/* --- Rounds -------------------------------------------------------------------------- */

enum {
	SHARED = 1,
	PRIVATE = 2,		/* read-only */
	WRITABLE = 4,		/* private, too */
	ANON = 8,
	ANON_RO = 16,
	COW = 32,		/* anonymous, after fork() */
	OF_FILE = SHARED | PRIVATE | WRITABLE,
	OF_ANON = ANON | ANON_RO | COW,
};

static const char * const kind_names[] = {
	"shared", "private", "private writable", "anonymous", "read-only anonymous",
	"copy-on-write",
};

/* Multiples of 128 kB. */
static bool fill(unsigned int most)
{
	struct op op = { .code = OP_FILL, .arg = pick(most) };

	if (!round_.alone || round_.filled)
		return elsewhere(op);
	/* munmap() would flush: after the round. */
	op.addr = &round_.filled;
	round_.filled_size = (1UL + op.arg) << 17;
	return here(&op);
}

static bool do_drain(void)
{
	struct op op = { .code = OP_DRAIN };

	return anywhere(op) && fill(8);
}

static bool do_fill(void)
{
	return fill(pick(4) ? 8 : 32);
}

static bool do_toggle(void)
{
	try_write(LUF "enabled", "0");
	fill(8);
	try_write(LUF "enabled", "1");
	return true;
}

static bool do_age(void)
{
	long ms = number_in(LUF "max_stale_ms", "");

	usleep((ms < 0 ? 20 : ms > 200 ? 200 : ms) * 1100);
	return fill(8);
}

static bool do_stale_ms(void)
{
	char old[32];

	if (access(LUF "max_stale_ms", W_OK))
		return false;
	read_text(LUF "max_stale_ms", old, sizeof(old));
	try_write(LUF "max_stale_ms", "2");
	usleep(3000);
	fill(8);
	try_write(LUF "max_stale_ms", old);
	return true;
}

/* @new is the state after the operation. */
static bool change_file(struct op op, struct state new)
{
	op.file = round_.file;
	round_.changed = true;
	may_change(&job.window, new);
	if (!anywhere(op))
		return false;
	has_changed(&job.window);
	files[round_.file].state = new;
	round_.changed = false;
	return true;
}

static bool write_by(enum op_code code)
{
	unsigned int gen = new_gen();

	return change_file((struct op){ .code = code, .gen = gen },
			   content(round_.file, gen));
}

static bool do_write(void)
{
	return write_by(OP_PWRITE);
}

static bool do_mmap_write(void)
{
	return write_by(OP_MMAP_WRITE);
}

static bool do_direct(void)
{
	return write_by(OP_DIRECT);
}

/* R3: the second of two writers must wait, too. */
static bool do_two_writers(void)
{
	struct op op = { .code = OP_OPEN, .file = round_.file, .arg = 1 + pick(20) };
	struct op mine = { .code = OP_PWRITE, .file = round_.file, .gen = new_gen() };
	struct state new = content(round_.file, mine.gen);
	bool ok;

	op.cpu = -1;
	if (round_.alone)
		here(&op);
	else
		send_op(op);
	sched_yield();
	round_.changed = true;
	may_change(&job.window, new);
	ok = here(&mine);
	if (ok) {
		has_changed(&job.window);
		files[round_.file].state = new;
		round_.changed = false;
	}
	if (!round_.alone)
		ok &= succeeded(&op, wait_op());
	return ok;
}

static bool open_writer(void)
{
	round_.fd = open(files[round_.file].path, O_RDWR);
	return round_.fd >= 0;
}

/* R3: the file was open for writing before. */
static bool do_writer_writes(void)
{
	struct state new = content(round_.file, new_gen());

	round_.changed = true;
	fill_words(buffer, new.file, new.gen, 0, SIZE / 8);
	may_change(&job.window, new);
	if (pwrite(round_.fd, buffer, SIZE, 0) != (ssize_t)SIZE)
		return false;
	has_changed(&job.window);
	files[round_.file].state = new;
	round_.changed = false;
	return true;
}

static bool pin_pages(void)
{
	return elsewhere((struct op){ .code = OP_PIN, .file = round_.file });
}

static bool do_unpin(void)
{
	return elsewhere((struct op){ .code = OP_UNPIN, .file = round_.file }) && fill(8);
}

static bool do_truncate(void)
{
	/* A short file faults. */
	may_change(&job.window, (struct state){ .content = FAULT });
	return change_file((struct op){ .code = OP_TRUNCATE },
			   (struct state){ .content = ZERO });
}

static bool do_punch(void)
{
	return change_file((struct op){ .code = OP_PUNCH },
			   (struct state){ .content = ZERO });
}

static bool do_zero(void)
{
	return change_file((struct op){ .code = OP_ZERO },
			   (struct state){ .content = ZERO });
}

static bool do_collapse(void)
{
	unsigned int cut = 1 + pick(PAGES / 2);
	struct state new = files[round_.file].state;

	new.shift = cut;
	new.pages = PAGES - cut;
	/* The file becomes shorter, and its end may be zeros before. */
	may_change(&job.window, (struct state){ .content = FAULT });
	may_change(&job.window, (struct state){ .content = ZERO });
	return change_file((struct op){ .code = OP_COLLAPSE, .arg = cut }, new);
}

static bool change_words(void)
{
	unsigned int gen = new_gen();

	may_change(&job.window, content(ANON_FILE + 1, gen));
	fill_words(job.map, ANON_FILE + 1, gen, 0, job.pages * WORDS);
	has_changed(&job.window);
	return true;
}

static bool do_private(void)
{
	struct op op = { .code = OP_READY, .file = round_.file };

	/*
	 * Pages in the page cache: the write faults are fast, and all entries are still
	 * cached.
	 */
	if (pick(4) && !elsewhere(op))
		return false;
	return change_words();
}

static bool do_make_writable(void)
{
	if (mprotect((void *)job.map, job.pages * PAGE, PROT_READ | PROT_WRITE))
		return false;
	return change_words();
}

static void *map_file_at(void *at, unsigned int file, int fixed)
{
	int fd = must_open(files[file].path, O_RDONLY);
	void *map = MAP_FAILED;

	map = mmap(at, job.pages * PAGE, PROT_READ, MAP_SHARED | fixed, fd, 0);
	close(fd);
	return map;
}

static unsigned int another_file(void)
{
	return (round_.file + 1 + pick(NR_FILES - 1)) % NR_FILES;
}

static bool prepare_file(unsigned int file)
{
	struct state *s = &files[file].state;
	struct op op = { .file = file };

	if (s->content != CONTENT || s->pages) {
		op.code = OP_PWRITE;
		op.gen = new_gen();
		if (!elsewhere(op))
			return false;
		*s = content(file, op.gen);
	}
	op.code = OP_READY;
	return elsewhere(op);
}

static bool do_remap(void)
{
	unsigned int other = another_file();

	if (!prepare_file(other))
		return false;
	may_change(&job.window, (struct state){ .content = FAULT });
	may_change(&job.window, files[other].state);
	if (map_file_at((void *)job.map, other, MAP_FIXED) == MAP_FAILED)
		return false;
	has_changed(&job.window);
	return true;
}

static bool do_mremap_over(void)
{
	unsigned int other = another_file();
	void *map;

	if (!prepare_file(other))
		return false;
	map = map_file_at(NULL, other, 0);
	if (map == MAP_FAILED)
		return false;
	may_change(&job.window, (struct state){ .content = FAULT });
	may_change(&job.window, files[other].state);
	if (mremap(map, job.pages * PAGE, job.pages * PAGE,
		   MREMAP_MAYMOVE | MREMAP_FIXED, (void *)job.map) == MAP_FAILED)
		die("mremap");
	has_changed(&job.window);
	return true;
}

/* The main thread reads, with the window's states. */
static bool see(volatile uint64_t *map, const char *what)
{
	struct window *w = &job.window;
	unsigned int lo = atomic_load(&w->lo);
	uint64_t v;

	for (unsigned long i = 0; i < job.pages * WORDS; i += 1 + pick(WORDS)) {
		if (job.write && i % WORDS >= WORDS - MAX_CPUS)
			continue;
		v = map[i];
		if (!legal(w, lo, atomic_load(&w->hi), i, v)) {
			violated(what, doing, w, lo, lo, i, map + i, v);
			return false;
		}
	}
	return true;
}

static bool do_mremap_away(void)
{
	void *map;

	round_.also = mmap(NULL, job.pages * PAGE, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (round_.also == MAP_FAILED) {
		round_.also = NULL;
		return false;
	}
	may_change(&job.window, (struct state){ .content = FAULT });
	map = mremap((void *)job.map, job.pages * PAGE, job.pages * PAGE,
		     MREMAP_MAYMOVE | MREMAP_FIXED, round_.also);
	if (map == MAP_FAILED)
		die("mremap");
	/* The window starts with the present states. */
	see(map, "read at the new address");
	has_changed(&job.window);
	return true;
}

static bool do_munmap(void)
{
	may_change(&job.window, (struct state){ .content = FAULT });
	munmap((void *)job.map, job.pages * PAGE);
	has_changed(&job.window);
	return true;
}

static bool do_protect(void)
{
	may_change(&job.window, (struct state){ .content = FAULT });
	if (mprotect((void *)job.map, job.pages * PAGE, PROT_NONE))
		return false;
	has_changed(&job.window);
	return true;
}

static bool do_dontneed(void)
{
	bool anon = round_.kind & OF_ANON;

	if (anon)
		may_change(&job.window, (struct state){ .content = ZERO });
	if (madvise((void *)job.map, job.pages * PAGE, MADV_DONTNEED))
		return false;
	if (anon)
		has_changed(&job.window);
	return anon ? fill(8) : do_write();
}

static bool do_fork(void)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		return false;
	if (!child) {
		see(job.map, "read in a child");
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child)
		die("waitpid");
	if (!WIFEXITED(status))
		violated("a child died", doing, &job.window, 0, 0, 0, job.map, status);
	return true;
}

/*
 * Orders to a COW round's child: 'w' writes to its copy, 'e' executes another program, end
 * of file checks the old content.
 */
static void cow_child(int fd)
{
	static struct window old;
	char order, done = 0;

	window_init(&old, *state_at(&job.window, 0));
	while (read(fd, &order, 1) == 1) {
		if (order == 'e')
			execl("/bin/true", "true", NULL);
		else
			fill_words(job.map, ANON_FILE + 2, 1, 0, job.pages * WORDS);
		if (write(fd, &done, 1) != 1 || order == 'w')
			_exit(0);
	}
	for (unsigned long i = 0; i < job.pages * WORDS; i++) {
		uint64_t v = job.map[i];

		if (legal(&old, 0, 0, i, v))
			continue;
		violated("read in the child", doing, &old, 0, 0, i, job.map + i, v);
		break;
	}
	_exit(0);
}

static bool do_parent_writes(void)
{
	return change_words();
}

static bool order_child(char order)
{
	char done;

	if (write(round_.child_fd, &order, 1) != 1)
		return false;
	/* execl() closes the socket. */
	if (read(round_.child_fd, &done, 1) < 0)
		return false;
	return true;
}

static bool do_child_writes(void)
{
	return order_child('w') && fill(8);
}

/* The parent, alone now, may write in place. */
static bool do_child_leaves(void)
{
	return order_child('e') && change_words();
}

static bool do_zap(void)
{
	may_change(&job.window, (struct state){ .content = FAULT });
	may_change(&job.window, (struct state){ .content = ZERO });
	if (mmap((void *)job.map, job.pages * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		return false;
	has_changed(&job.window);
	return true;
}

static bool do_compact(void)
{
	return elsewhere((struct op){ .code = OP_COMPACT }) && fill(8);
}

static const struct action {
	const char *name;
	int kinds;
	int weight;
	bool (*change)(void);	/* false: not done, nothing known */
	const char *lot_pages;	/* for the round */
	bool (*before)(void);	/* before the pages go */
	bool execute;		/* content stays */
} actions[] = {
	{ .name = "drain", .kinds = OF_FILE | OF_ANON, .weight = 8,
	  .change = do_drain, .execute = true },
	{ .name = "full lot", .kinds = OF_FILE | OF_ANON, .weight = 8,
	  .change = do_fill, .lot_pages = "1", .execute = true },
	{ .name = "small lot", .kinds = OF_FILE | OF_ANON, .weight = 4,
	  .change = do_fill, .lot_pages = "16", .execute = true },
	{ .name = "fill", .kinds = OF_FILE | OF_ANON, .weight = 2,
	  .change = do_fill, .execute = true },
	{ .name = "toggle", .kinds = OF_FILE | OF_ANON, .weight = 2,
	  .change = do_toggle, .execute = true },
	{ .name = "age", .kinds = OF_FILE | OF_ANON, .weight = 1,
	  .change = do_age, .execute = true },
	{ .name = "stale ms", .kinds = OF_FILE | OF_ANON, .weight = 1,
	  .change = do_stale_ms, .execute = true },
	{ .name = "compact", .kinds = OF_FILE | OF_ANON, .weight = 1,
	  .change = do_compact, .execute = true },
	{ .name = "write", .kinds = OF_FILE, .weight = 6, .change = do_write },
	{ .name = "mmap-write", .kinds = OF_FILE, .weight = 4,
	  .change = do_mmap_write },
	{ .name = "direct", .kinds = OF_FILE, .weight = 4, .change = do_direct },
	{ .name = "two writers", .kinds = OF_FILE, .weight = 4,
	  .change = do_two_writers },
	{ .name = "open writer", .kinds = OF_FILE, .weight = 4,
	  .change = do_writer_writes, .before = open_writer },
	{ .name = "kept", .kinds = OF_FILE, .weight = 6, .change = do_unpin,
	  .before = pin_pages, .execute = true },
	{ .name = "truncate", .kinds = OF_FILE, .weight = 4, .change = do_truncate },
	{ .name = "punch", .kinds = OF_FILE, .weight = 4, .change = do_punch },
	{ .name = "zero", .kinds = OF_FILE, .weight = 2, .change = do_zero },
	{ .name = "collapse", .kinds = OF_FILE, .weight = 2, .change = do_collapse },
	{ .name = "private", .kinds = WRITABLE, .weight = 12,
	  .change = do_private },
	{ .name = "make writable", .kinds = PRIVATE | ANON_RO, .weight = 6,
	  .change = do_make_writable },
	{ .name = "remap", .kinds = OF_FILE | OF_ANON, .weight = 4, .change = do_remap },
	{ .name = "mremap over", .kinds = OF_FILE | OF_ANON, .weight = 4,
	  .change = do_mremap_over },
	{ .name = "mremap away", .kinds = OF_FILE | OF_ANON, .weight = 4,
	  .change = do_mremap_away },
	{ .name = "munmap", .kinds = OF_FILE | OF_ANON, .weight = 3, .change = do_munmap },
	{ .name = "protect", .kinds = OF_FILE | OF_ANON, .weight = 4, .change = do_protect },
	{ .name = "dontneed", .kinds = OF_FILE | ANON | COW, .weight = 4, .change = do_dontneed },
	{ .name = "fork", .kinds = OF_FILE | ANON | ANON_RO, .weight = 3,
	  .change = do_fork, .execute = true },
	{ .name = "anon write", .kinds = ANON, .weight = 4, .change = do_parent_writes },
	{ .name = "parent writes", .kinds = COW, .weight = 12, .change = do_parent_writes },
	{ .name = "child writes", .kinds = COW, .weight = 4, .change = do_child_writes },
	{ .name = "child leaves", .kinds = COW, .weight = 4, .change = do_child_leaves },
	{ .name = "zap", .kinds = OF_ANON, .weight = 4, .change = do_zap },
};

#define NR_ACTIONS	ARRAY_SIZE(actions)

/* How pages are taken from the readers. */
static const struct method {
	const char *name;
	int kinds;
	int weight;
	enum op_code code;
	bool here;		/* by this process */
	bool nodes;		/* needs two nodes */
} methods[] = {
	{ "paged out", OF_FILE, 12, OP_PAGEOUT, false, false },
	{ "paged out by itself", OF_FILE, 2, OP_PAGEOUT, true, false },
	{ "reclaimed", OF_FILE, 1, OP_RECLAIM, false, false },
	{ "moved", OF_FILE | OF_ANON, 8, OP_MOVE, false, true },
	{ "migrated", OF_FILE | OF_ANON, 1, OP_MIGRATE, false, true },
	{ "compacted", OF_FILE | OF_ANON, 1, OP_COMPACT, false, false },
};

#define NR_METHODS	ARRAY_SIZE(methods)

static bool action_on[NR_ACTIONS], background_on = true;

static const struct action *pick_action(void)
{
	int total = 0, n;

	for (unsigned int i = 0; i < NR_ACTIONS; i++)
		total += action_on[i] ? actions[i].weight : 0;
	n = pick(total);
	for (unsigned int i = 0; ; i++) {
		n -= action_on[i] ? actions[i].weight : 0;
		if (n < 0)
			return &actions[i];
	}
}

static const struct method *pick_method(int kind)
{
	int total = 0, n;

	for (unsigned int i = 0; i < NR_METHODS; i++)
		if ((methods[i].kinds & kind) && (!methods[i].nodes || nr_nodes > 1))
			total += methods[i].weight;
	n = pick(total);
	for (unsigned int i = 0; ; i++) {
		if ((methods[i].kinds & kind) && (!methods[i].nodes || nr_nodes > 1))
			n -= methods[i].weight;
		if (n < 0)
			return &methods[i];
	}
}

static int pick_kind(int kinds)
{
	int kind;

	do {
		kind = 1 << pick(6);
		/* Without swap and a second node anonymous memory hardly moves. */
		if (nr_nodes < 2 && (kind & OF_ANON) && (kinds & OF_FILE) && pick(16))
			kind = 0;
	} while (!(kind & kinds));
	return kind;
}

static bool set_up_anon(void)
{
	struct state s = content(ANON_FILE, new_gen());
	unsigned long size = job.pages * PAGE;
	int pair[2];

	job.map = mmap(NULL, size, PROT_READ | PROT_WRITE | PROT_EXEC,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (job.map == MAP_FAILED)
		return false;
	fill_words(job.map, s.file, s.gen, 0, job.pages * WORDS);
	window_init(&job.window, s);
	if (round_.kind == ANON_RO &&
	    mprotect((void *)job.map, size, PROT_READ | PROT_EXEC))
		die("mprotect");
	if (round_.kind != COW)
		return true;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		die("socketpair");
	round_.child = fork();
	if (!round_.child) {
		close(pair[0]);
		cow_child(pair[1]);
	}
	close(pair[1]);
	round_.child_fd = pair[0];
	if (round_.child > 0)
		return true;
	round_.child = 0;
	close(pair[0]);
	munmap((void *)job.map, size);
	return false;
}

static bool set_up_file(void)
{
	int prot = round_.kind == WRITABLE ? PROT_READ | PROT_WRITE : PROT_READ;
	int flags = round_.kind == SHARED ? MAP_SHARED : MAP_PRIVATE;
	int fd;

	round_.file = pick(NR_FILES);
	if (!prepare_file(round_.file))
		return false;
	fd = must_open(files[round_.file].path, O_RDONLY);
	if (job.execute)
		prot |= PROT_EXEC;
	job.map = mmap(NULL, job.pages * PAGE, prot, flags, fd, 0);
	close(fd);
	if (job.map == MAP_FAILED)
		return false;
	window_init(&job.window, files[round_.file].state);
	return true;
}

static void tear_down(void)
{
	int status;

	munmap((void *)job.map, job.pages * PAGE);
	if (round_.also)
		munmap(round_.also, job.pages * PAGE);
	if (round_.filled)
		munmap(round_.filled, round_.filled_size);
	if (round_.fd >= 0)
		close(round_.fd);
	if (round_.changed)
		files[round_.file].state.content = ZERO;
	if (!round_.child)
		return;
	close(round_.child_fd);
	if (waitpid(round_.child, &status, 0) != round_.child)
		die("waitpid");
	if (!WIFEXITED(status))
		violated("the child died", doing, &job.window, 0, 0, 0, job.map, status);
}

/*
 * One reader on another CPU with the helper here; readers on all CPUs; or the reader here,
 * without the helper or with the helper racing on another CPU. Threads of one mm alternate
 * without a flush.
 */
static bool pick_places(int cpu, const struct action *a, const struct method *m,
			struct op *away)
{
	int other = (cpu + 1 + pick(nr_cpus - 1)) % nr_cpus;
	bool race = false;

	try_pin(cpu);
	away->cpu = -1;
	job.readers = 1UL << other;
	switch (pick(8)) {
	case 0:
		job.readers = (1UL << (nr_cpus - 1) << 1) - 1;
		break;
	case 1:
		job.readers = 1UL << cpu;
		round_.alone = true;
		break;
	case 2:
	case 3:
		race = !m->here && !a->before;
		if (!race)
			break;
		job.readers = 1UL << cpu;
		round_.alone = true;
		away->cpu = other;
		break;
	}
	return race;
}

static void spin(unsigned int us)
{
	double until = now() + us / 1e6;

	while (now() < until)
		;
}

/* False: nothing known. */
static bool act(const struct action *a, const struct method *m, struct op *away,
		bool race)
{
	bool done;

	if (!await_passes(3))
		return false;
	if (a->before && !a->before())
		return false;
	away->code = m->code;
	away->addr = (void *)job.map;
	away->pages = job.pages;
	away->arg = pick(nr_nodes);
	if (race) {
		send_op(*away);
		spin(pick(3000));
		done = a->change();
		done &= succeeded(away, wait_op());
	} else {
		done = m->here ? here(away) : elsewhere(*away);
		done = done && a->change();
	}
	return done && await_passes(PASSES);
}

static void one_round(const char *lot_pages)
{
	const struct action *a = pick_action();
	const struct method *m;
	int kind = pick_kind(a->kinds);
	struct op away = { 0 };
	bool race;

	round_ = (struct round){ .kind = kind, .fd = -1 };
	m = pick_method(kind);
	job.pages = 1 << (2 + pick(5));
	job.execute = a->execute && !pick(4);
	job.write = a->execute && kind == ANON && pick(4);
	snprintf(doing, sizeof(doing), "%s, setting up", a->name);
	if (kind & OF_ANON ? !set_up_anon() : !set_up_file()) {
		atomic_fetch_add(&sh->skipped, 1);
		return;
	}
	race = pick_places(pick(nr_cpus), a, m, &away);
	snprintf(doing, sizeof(doing), "%s, %s %s, %u pages%s%s%s%s", a->name,
		 kind_names[__builtin_ctz(kind)], m->name, job.pages,
		 job.execute ? ", executed" : "", job.write ? ", written" : "",
		 race ? ", at the same time" : "", round_.alone ? ", on one CPU" : "");
	if (a->lot_pages)
		try_write(LOT_PAGES, a->lot_pages);
	job_start();
	if (!act(a, m, &away, race))
		atomic_fetch_add(&sh->skipped, 1);
	job_end();
	if (a->lot_pages)
		try_write(LOT_PAGES, lot_pages);
	tear_down();
	atomic_fetch_add(&sh->rounds, 1);
	atomic_fetch_add(&sh->action_rounds[a - actions], 1);
}

static void torturer(uint64_t seed)
{
	char lot_pages[32];
	int pair[2];
	pid_t pid;

	random_state = seed;
	torturer_pid = getpid();
	torturer_pidfd = syscall(SYS_pidfd_open, torturer_pid, 0);
	if (torturer_pidfd < 0)
		die("pidfd_open");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		die("socketpair");
	pid = must_fork();
	if (!pid) {
		close(pair[0]);
		helper(pair[1]);
	}
	close(pair[1]);
	helper_fd = pair[0];
	mlockall(MCL_CURRENT);

	read_text(LOT_PAGES, lot_pages, sizeof(lot_pages));
	for (int cpu = 0; cpu < nr_cpus; cpu++) {
		readers[cpu].cpu = cpu;
		start_thread(&readers[cpu].thread, reader_thread, &readers[cpu]);
	}
	while (!stopped())
		one_round(lot_pages);
	for (int cpu = 0; cpu < nr_cpus; cpu++)
		pthread_join(readers[cpu].thread, NULL);
	close(helper_fd);
	waitpid(pid, NULL, 0);
	exit(0);
}

/* --- Background --------------------------------------------------------------------- */

static char big_path[4096];

static bool wait_for_background(unsigned int most_us)
{
	do
		usleep(1000 + pick(most_us));
	while (!stopped() && !atomic_load(&sh->background));
	return !stopped();
}

static void *big_reader(void *arg)
{
	unsigned int number = (unsigned long)arg, chunk;
	volatile uint64_t *map = (void *)atomic_load(&sh->big_map);
	struct window *w;

	random_state = 88172645463325252UL + number;
	while (wait_for_background(2000)) {
		chunk = pick(big_chunks);
		w = &sh->chunks[chunk];
		for (unsigned int i = 0; i < 20 * CHUNK; i++) {
			unsigned long word = (chunk * CHUNK + i % CHUNK) * WORDS +
					     pick(WORDS);
			unsigned int lo = atomic_load(&w->lo), hi;
			uint64_t v = map[word];

			hi = atomic_load(&w->hi);
			if (!legal(w, lo, hi, word, v))
				violated("read", "the big file under pressure", w, lo, hi,
					 word, map + word, v);
		}
		atomic_fetch_add(&sh->reads[MAX_CPUS + number], 20 * CHUNK);
	}
	return NULL;
}

static void big_readers(void)
{
	int fd = must_open(big_path, O_RDONLY);
	pthread_t threads[2];
	void *map;

	map = must_map(NULL, big_chunks * SIZE, PROT_READ, MAP_SHARED, fd);
	close(fd);
	atomic_store(&sh->big_map, (uintptr_t)map);
	atomic_store(&sh->big_pid, getpid());
	for (unsigned long i = 0; i < 2; i++)
		start_thread(&threads[i], big_reader, (void *)i);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	exit(0);
}

static void write_chunk(unsigned int chunk, bool direct)
{
	unsigned int gen = atomic_fetch_add(&sh->big_gen, 1) + 1;
	int fd = must_open(big_path, O_RDWR | (direct ? O_DIRECT : 0));
	struct window *w = &sh->chunks[chunk];
	long written;

	fill_words(buffer, BIG_FILE, gen, chunk * CHUNK * WORDS, SIZE / 8);
	may_change(w, content(BIG_FILE, gen));
	written = pwrite(fd, buffer, SIZE, chunk * SIZE);
	if (written != (ssize_t)SIZE)
		die(big_path);
	has_changed(w);
	sync_file_range(fd, chunk * SIZE, SIZE, SYNC_FILE_RANGE_WAIT_BEFORE |
			SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
	close(fd);
	atomic_fetch_add(&sh->big_writes, 1);
}

static void big_writer(void)
{
	struct iovec range = { .iov_len = SIZE };
	char *map = NULL;
	int pidfd = -1;

	while (wait_for_background(10000)) {
		if (!map) {
			map = (char *)atomic_load(&sh->big_map);
			pidfd = syscall(SYS_pidfd_open, atomic_load(&sh->big_pid), 0);
		}
		if (!pick(4)) {
			write_chunk(pick(big_chunks), !pick(3));
		} else if (map && pidfd >= 0) {
			range.iov_base = map + pick(big_chunks) * SIZE;
			syscall(SYS_process_madvise, pidfd, &range, 1, MADV_PAGEOUT, 0);
		}
	}
	exit(0);
}

/* Nearly all memory, short of an OOM kill. */
static void pressure(void)
{
	unsigned long step = 2UL << 20, most, size;
	long spare;
	char *map;

	if (!try_write("/proc/self/oom_score_adj", "1000"))
		die("/proc/self/oom_score_adj");
	most = number_in("/proc/meminfo", "MemTotal:") * 1024UL;
	spare = number_in("/proc/meminfo", "MemTotal:") / 6;
	if (spare < 32 << 10)
		spare = 32 << 10;
	while (wait_for_background(50000)) {
		map = mmap(NULL, most, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (map == MAP_FAILED)
			continue;
		for (size = 0; size + step <= most; size += step) {
			if (number_in("/proc/meminfo", "MemAvailable:") < spare ||
			    !atomic_load(&sh->background) || stopped())
				break;
			for (unsigned long i = 0; i < step; i += WORDS)
				*(uint64_t *)(map + size + i) = POISON;
		}
		munmap(map, most);
		atomic_fetch_add(&sh->fills, 1);
	}
	exit(0);
}

static void try_value(const char *path, const char *value)
{
	char old[32];

	if (access(path, W_OK))
		return;
	read_text(path, old, sizeof(old));
	try_write(path, value);
	usleep(pick(30000));
	try_write(path, old);
}

static void knobs(void)
{
	static const char * const sizes[] = { "1", "8", "64", "512", "4096" };

	while (wait_for_background(100000)) {
		switch (pick(5)) {
		case 0:
			try_value(LOT_PAGES, sizes[pick(5)]);
			break;
		case 1:
			try_value(LUF "max_stale_ms", pick(2) ? "2" : "1000");
			break;
		case 2:
			try_value(LUF "enabled", "0");
			break;
		case 3:
			try_write(LUF "drain", "1");
			break;
		case 4:
			try_write("/proc/sys/vm/compact_memory", "1");
			break;
		}
		atomic_fetch_add(&sh->knobs, 1);
	}
	exit(0);
}

/* --- Main ----------------------------------------------------------------------------- */

static struct process {
	const char *name;
	pid_t pid;
} processes[8];

static unsigned int nr_processes;

/* True in the new process. */
static bool spawn(const char *name)
{
	pid_t pid = must_fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* The torturer is first and finds the most. */
		if (nr_processes && nice(10) < 0)
			die("nice");
		random_state += nr_processes * 0x9e3779b97f4a7c15UL;
		return true;
	}
	processes[nr_processes].name = name;
	processes[nr_processes++].pid = pid;
	return false;
}

static unsigned long reads_so_far(void)
{
	unsigned long sum = 0;

	for (unsigned int i = 0; i < MAX_CPUS + 2; i++)
		sum += atomic_load(&sh->reads[i]);
	return sum;
}

/* Returns the name of a process that ended. */
static const char *ended(int *status)
{
	for (unsigned int i = 0; i < nr_processes; i++) {
		if (processes[i].pid && waitpid(processes[i].pid, status, WNOHANG) > 0) {
			processes[i].pid = 0;
			return processes[i].name;
		}
	}
	return NULL;
}

static bool stop_all(void)
{
	double limit = now() + STUCK;
	bool all, clean = true;
	int status;

	atomic_store(&sh->stop, true);
	do {
		usleep(5000);
		while (ended(&status))
			clean &= WIFEXITED(status) && !WEXITSTATUS(status);
		all = true;
		for (unsigned int i = 0; i < nr_processes; i++)
			all &= !processes[i].pid;
	} while (!all && now() < limit);
	for (unsigned int i = 0; i < nr_processes; i++) {
		if (!processes[i].pid)
			continue;
		ksft_print_msg("the process '%s' did not stop\n", processes[i].name);
		kill(processes[i].pid, SIGKILL);
	}
	return all && clean;
}

static void print_state(const char *name, const struct state *s)
{
	if (s->content == CONTENT)
		ksft_print_msg("  %s: generation %u of file %u, %u pages cut out, %u pages (0: all)\n",
		       name, s->gen, s->file, s->shift, s->pages);
	else
		ksft_print_msg("  %s: %s\n", name, s->content == ZERO ? "zeros" : "no access");
}

static void print_violation(struct violation *v)
{
	uint64_t f = v->found;

	ksft_print_msg("VIOLATION: by user half after %.3f s: %s (%s)\n", v->when, v->by, v->what);
	ksft_print_msg("  word %lu at %p on CPU %d is %016lx", v->word, v->addr, v->cpu, f);
	if (f >> 56 == 0x4c)
		printf(": generation %lu of file %lu, word %lu", f >> 24 & 0xffffff,
		       f >> 48 & 0xff, f & 0xffffff);
	else if (f == POISON)
		printf(": poison, the frame has been given to somebody else");
	printf("\n#   states %u to %u were possible:\n", v->lo, v->hi);
	print_state("oldest", &v->first);
	print_state("newest", &v->last);
}

static void count_nodes(void)
{
	FILE *f = fopen("/sys/devices/system/node/has_memory", "r");
	int first, last;

	nr_nodes = 1;
	if (!f)
		return;
	/* Nodes 0 to N only. */
	if (fscanf(f, "%d-%d", &first, &last) == 2 && first == 0 && last > 0 && last < 64)
		nr_nodes = last + 1;
	fclose(f);
}

static void find_cgroup(void)
{
	FILE *f = fopen("/proc/self/cgroup", "r");
	char line[2048];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "0::%2047[^\n]", line) == 1)
			snprintf(reclaim_path, sizeof(reclaim_path),
				 "/sys/fs/cgroup%s/memory.reclaim", line);
	if (f)
		fclose(f);
}

static void make_files(void)
{
	struct statvfs fs;
	int fd;

	if (statvfs(dir, &fs))
		die(dir);
	big_chunks = fs.f_bavail * fs.f_frsize / 2 / SIZE;
	if (big_chunks < 4)
		ksft_exit_skip("the file system is too small\n");
	if (big_chunks > MAX_CHUNKS)
		big_chunks = MAX_CHUNKS;

	for (unsigned int i = 0; i < NR_FILES; i++) {
		snprintf(files[i].path, sizeof(files[i].path), "%s/luf_torture.%u", dir, i);
		fd = open(files[i].path, O_RDWR | O_CREAT | O_TRUNC, 0600);
		if (fd < 0 || close(fd))
			die(files[i].path);
		files[i].state.content = ZERO;
	}
	snprintf(big_path, sizeof(big_path), "%s/luf_torture.big", dir);
	fd = open(big_path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || close(fd))
		die(big_path);
	for (unsigned int i = 0; i < big_chunks; i++) {
		window_init(&sh->chunks[i], content(BIG_FILE, 0));
		write_chunk(i, false);
	}
}

static void remove_files(void)
{
	for (unsigned int i = 0; i < NR_FILES; i++)
		unlink(files[i].path);
	unlink(big_path);
}

static void select_actions(char *names)
{
	bool found;

	background_on = !names;
	for (unsigned int i = 0; i < NR_ACTIONS; i++)
		action_on[i] = !names;
	for (char *name = names ? strtok(names, ",") : NULL; name; name = strtok(NULL, ",")) {
		found = !strcmp(name, "background");
		background_on |= found;
		for (unsigned int i = 0; i < NR_ACTIONS; i++) {
			if (strcmp(name, actions[i].name))
				continue;
			action_on[i] = true;
			found = true;
		}
		if (found)
			continue;
		fprintf(stderr, "luf_torture: there is no action '%s', only background", name);
		for (unsigned int i = 0; i < NR_ACTIONS; i++)
			fprintf(stderr, ", %s", actions[i].name);
		fprintf(stderr, "\n");
		exit(2);
	}
	if (names) {
		found = false;
		for (unsigned int i = 0; i < NR_ACTIONS; i++)
			found |= action_on[i];
		if (!found)
			action_on[0] = true;
	}
}

static unsigned long to_number(const char *option, const char *text)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || end == text || *end || *text == '-') {
		fprintf(stderr, "luf_torture: %s takes a number, not '%s'\n", option, text);
		exit(2);
	}
	return value;
}

static void wrong_usage(void)
{
	fprintf(stderr,
		"usage: luf_torture DIR [--seconds N] [--reads N] [--seed N] [--only ACTION,...]\n");
	exit(2);
}

/* @parked: luf_park, or -1. */
static bool nothing_done(long parked)
{
	return atomic_load(&sh->skipped) >= atomic_load(&sh->rounds) ||
	       vm_counter("luf_park") == parked;
}

static const char *watch(double seconds, unsigned long reads, long parked)
{
	long ledger = number_in(LEDGER, ""), kernel = number_in(KERNEL_HALF "violations", "");
	unsigned long rounds = 0, round_now;
	double moved = now(), phase = now() + 0.5;
	static char found[160];
	const char *name;
	int status;

	while (!stopped() &&
	       (!seconds || now() < started + seconds ||
		(now() < started + seconds + GRACE && nothing_done(parked))) &&
	       (!reads || reads_so_far() < reads)) {
		usleep(10000);
		if (background_on && now() > phase) {
			bool on = !atomic_load(&sh->background);

			atomic_store(&sh->background, on);
			phase = now() + (on ? 0.25 : 2.5);
		}
		if (number_in(LEDGER, "") > ledger)
			return "ledger";
		if (number_in(KERNEL_HALF "violations", "") > kernel)
			return "kernel half";
		name = stopped() ? NULL : ended(&status);
		if (name) {
			snprintf(found, sizeof(found),
				 "user half (the process '%s' ended with %s %d)", name,
				 WIFSIGNALED(status) ? "signal" : "exit code",
				 WIFSIGNALED(status) ? WTERMSIG(status) :
				 WEXITSTATUS(status));
			return found;
		}
		round_now = atomic_load(&sh->rounds) + atomic_load(&sh->skipped);
		if (round_now != rounds) {
			rounds = round_now;
			moved = now();
		} else if (now() > moved + STUCK) {
			return "user half (no round ended for a long time)";
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct sigaction fault = {
		.sa_sigaction = on_fault,
		.sa_flags = SA_SIGINFO | SA_NODEFER,
	};
	unsigned long seconds = 0, reads = 0, seed = 0, sum;
	bool kernel_half = false, clean;
	long parked, kernel, ledger;
	char *only = NULL;
	const char *found;
	double elapsed;

	for (int i = 1; i < argc; i++) {
		const char *option = argv[i];

		if (option[0] != '-' && !dir)
			dir = option;
		else if (++i == argc)
			wrong_usage();
		else if (!strcmp(option, "--seconds"))
			seconds = to_number(option, argv[i]);
		else if (!strcmp(option, "--reads"))
			reads = to_number(option, argv[i]);
		else if (!strcmp(option, "--seed"))
			seed = to_number(option, argv[i]);
		else if (!strcmp(option, "--only"))
			only = argv[i];
		else
			wrong_usage();
	}
	if (!dir)
		wrong_usage();
	if (!seconds && !reads)
		seconds = 15;
	select_actions(only);
	ksft_print_header();
	need_luf();
	nr_cpus = sysconf(_SC_NPROCESSORS_ONLN);
	if (nr_cpus < 2)
		ksft_exit_skip("two CPUs are needed\n");
	if (nr_cpus > MAX_CPUS)
		nr_cpus = MAX_CPUS;

	sh = map_shared(sizeof(*sh));
	buffer = map_private(SIZE);
	sigaction(SIGBUS, &fault, NULL);
	sigaction(SIGSEGV, &fault, NULL);
	sigaction(SIGILL, &fault, NULL);
	sigaction(SIGTRAP, &fault, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (!seed)
		seed = (uint64_t)(now() * 1e9) | 1;
	random_state = seed * 0x9e3779b97f4a7c15UL | 1;
	count_nodes();
	find_cgroup();
	set_nodes(true);
	make_files();
	ksft_print_msg("%d CPUs, %d nodes, seed %lu\n", nr_cpus, nr_nodes, seed);
	if (!access(KERNEL_HALF "run", W_OK)) {
		kernel_half = try_write(KERNEL_HALF "run", "1");
		if (!kernel_half)
			ksft_print_msg("the kernel half did not start: %s\n", strerror(errno));
	}

	parked = vm_counter("luf_park");
	ledger = number_in(LEDGER, "");
	kernel = number_in(KERNEL_HALF "violations", "");
	started = now();
	if (spawn("torturer"))
		torturer(random_state | 1);
	if (background_on) {
		if (spawn("big readers"))
			big_readers();
		if (spawn("big writer"))
			big_writer();
		if (spawn("pressure"))
			pressure();
		if (spawn("knobs"))
			knobs();
	}
	found = watch(seconds, reads, only ? -1 : parked);
	elapsed = now() - started;
	if (found)
		ksft_print_msg("VIOLATION: by %s after %.3f s\n", found, elapsed);
	clean = stop_all();
	if (kernel_half)
		try_write(KERNEL_HALF "run", "0");
	if (atomic_load(&sh->violation.complete))
		print_violation(&sh->violation);
	remove_files();

	sum = reads_so_far();
	for (unsigned int i = 0; i < NR_ACTIONS; i++)
		if (action_on[i])
			ksft_print_msg("%s: %lu rounds\n", actions[i].name,
			       atomic_load(&sh->action_rounds[i]));
	ksft_print_msg("in the background: %lu writes, %lu fills, %lu tunables\n",
	       atomic_load(&sh->big_writes), atomic_load(&sh->fills),
	       atomic_load(&sh->knobs));
	ksft_print_msg("%lu reads checked in %.1f s, %.0f per second\n", sum, elapsed, sum / elapsed);
	test_result(!atomic_load(&sh->violation.claimed) && clean && !found && sum &&
		    atomic_load(&sh->skipped) < atomic_load(&sh->rounds),
		    "luf_torture reads: %lu checked in %lu rounds, %lu more could not be done",
		    sum, atomic_load(&sh->rounds), atomic_load(&sh->skipped));
	if (!only) {
		parked = vm_counter("luf_park") - parked;
		test_result(parked > 0, "luf_torture lot: %ld pages parked", parked);
	}
	if (kernel_half) {
		kernel = number_in(KERNEL_HALF "violations", "");
		test_result(!kernel, "luf_torture kernel half: %ld violations", kernel);
	}
	if (ledger >= 0) {
		ledger = number_in(LEDGER, "") - ledger;
		test_result(!ledger, "luf_torture ledger: %ld violations", ledger);
	}
	test_end();
}
