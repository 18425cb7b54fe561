// SPDX-License-Identifier: GPL-2.0-only
/* Actions that make the states of a mapping illegal. */
#include <sys/wait.h>

#include "luf_torture.h"

/* Multiples of 128 kB. */
bool fill(unsigned int most)
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

static bool has_content(struct state new)
{
	has_changed(&job.window);
	files[round_.file].state = new;
	round_.changed = false;
	return true;
}

/* @new is the state after the operation. */
static bool change_file(struct op op, struct state new)
{
	op.file = round_.file;
	round_.changed = true;
	may_change(&job.window, new);
	return anywhere(op) && has_content(new);
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
	ok = here(&mine) && has_content(new);
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
	return pwrite(round_.fd, buffer, SIZE, 0) == (ssize_t)SIZE && has_content(new);
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

bool prepare_file(unsigned int file)
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
	status = must_wait(child);
	if (!WIFEXITED(status))
		violated("a child died", doing, &job.window, 0, 0, 0, job.map, status);
	return true;
}

/*
 * Orders to a COW round's child: 'w' writes to its copy, 'e' executes another program, end
 * of file checks the old content.
 */
void cow_child(int fd)
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

const struct action actions[] = {
	{ "drain", OF_ANY, 8, .change = do_drain, .execute = true },
	{ "full lot", OF_ANY, 8, .change = do_fill, .lot_pages = "1", .execute = true },
	{ "small lot", OF_ANY, 4, .change = do_fill, .lot_pages = "16", .execute = true },
	{ "fill", OF_ANY, 2, .change = do_fill, .execute = true },
	{ "toggle", OF_ANY, 2, .change = do_toggle, .execute = true },
	{ "age", OF_ANY, 1, .change = do_age, .execute = true },
	{ "stale ms", OF_ANY, 1, .change = do_stale_ms, .execute = true },
	{ "compact", OF_ANY, 1, .change = do_compact, .execute = true },
	{ "write", OF_FILE, 6, .change = do_write },
	{ "mmap-write", OF_FILE, 4, .change = do_mmap_write },
	{ "direct", OF_FILE, 4, .change = do_direct },
	{ "two writers", OF_FILE, 4, .change = do_two_writers },
	{ "open writer", OF_FILE, 4, .change = do_writer_writes, .before = open_writer },
	{ "kept", OF_FILE, 6, .change = do_unpin, .before = pin_pages, .execute = true },
	{ "truncate", OF_FILE, 4, .change = do_truncate },
	{ "punch", OF_FILE, 4, .change = do_punch },
	{ "zero", OF_FILE, 2, .change = do_zero },
	{ "collapse", OF_FILE, 2, .change = do_collapse },
	{ "private", WRITABLE, 12, .change = do_private },
	{ "make writable", PRIVATE | ANON_RO, 6, .change = do_make_writable },
	{ "remap", OF_ANY, 4, .change = do_remap },
	{ "mremap over", OF_ANY, 4, .change = do_mremap_over },
	{ "mremap away", OF_ANY, 4, .change = do_mremap_away },
	{ "munmap", OF_ANY, 3, .change = do_munmap },
	{ "protect", OF_ANY, 4, .change = do_protect },
	{ "dontneed", OF_FILE | ANON | COW, 4, .change = do_dontneed },
	{ "fork", OF_FILE | ANON | ANON_RO, 3, .change = do_fork, .execute = true },
	{ "anon write", ANON, 4, .change = change_words },
	{ "parent writes", COW, 12, .change = change_words },
	{ "child writes", COW, 4, .change = do_child_writes },
	{ "child leaves", COW, 4, .change = do_child_leaves },
	{ "zap", OF_ANON, 4, .change = do_zap },
};

const unsigned int nr_actions = ARRAY_SIZE(actions);
