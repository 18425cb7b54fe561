// SPDX-License-Identifier: GPL-2.0-only
/* A reader on another CPU, with hot TLB entries: see luf_reader.h. */
#include "luf_reader.h"

#define REFILL	(32UL << 20)

/* A mix of OLD and NEW by bytes: rep movsb copies byte by byte. */
static bool changing(uint64_t value)
{
	for (int i = 0; i < 64; i += 8)
		if ((uint8_t)(value >> i) != (uint8_t)(OLD >> i) &&
		    (uint8_t)(value >> i) != (uint8_t)(NEW >> i))
			return false;
	return true;
}

static void *read_all(void *arg)
{
	struct reader *r = arg;
	volatile unsigned long looks = 0;
	sigjmp_buf jump;

	pin(!r->on_first);
	/* A fault is as good as new content. */
	if (sigsetjmp(jump, 1)) {
		jump_on_fault(NULL);
		atomic_store(&r->stop, true);
		return NULL;
	}
	jump_on_fault(&jump);

	while (!atomic_load(&r->stop) && looks < LOOKS) {
		for (int i = 0; i < PAGES; i++) {
			bool changed = atomic_load(&r->changed);
			uint64_t v = r->map[i * WORDS];

			if (!changing(v) && (v || !r->zero_is_fine))
				atomic_fetch_add(&r->wrong, 1);
			else if (changed && v == OLD)
				atomic_fetch_add(&r->stale, 1);
		}
		looks += atomic_load(&r->changed);
		atomic_fetch_add(&r->reads, PAGES);
		atomic_store(&r->hot, true);
	}
	jump_on_fault(NULL);
	atomic_store(&r->stop, true);
	return NULL;
}

void reader_start(struct reader *r)
{
	start_thread(&r->thread, read_all, r);
	while (!atomic_load(&r->hot))
		;
}

void reader_stop(struct reader *r)
{
	atomic_store(&r->stop, true);
	pthread_join(r->thread, NULL);
}

void reader_look(struct reader *r, bool old_is_fine)
{
	if (old_is_fine) {
		usleep(5000);
		atomic_store(&r->stop, true);
	}
	atomic_store(&r->changed, true);
	pthread_join(r->thread, NULL);
	if (old_is_fine)
		atomic_store(&r->stale, 0);
}

void poison_frames(int flags)
{
	uint64_t *fill = must_map(NULL, REFILL, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | flags, -1);

	for (unsigned long i = 0; i < REFILL / 8; i++)
		fill[i] = POISON;
	usleep(20000);
	munmap(fill, REFILL);
}

void put_new(int fd)
{
	uint64_t value = NEW;

	for (int i = 0; i < PAGES; i++)
		if (pwrite(fd, &value, sizeof(value), i * PAGE) != sizeof(value))
			die("pwrite");
}
