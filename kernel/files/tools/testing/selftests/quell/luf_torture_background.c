// SPDX-License-Identifier: GPL-2.0-only
/* Background processes: a large file under pressure, and tunables that move. */
#include "luf_torture.h"

char big_path[4096];

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

void big_readers(void)
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

void write_chunk(unsigned int chunk, bool direct)
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

void big_writer(void)
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
void pressure(void)
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

void knobs(void)
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
