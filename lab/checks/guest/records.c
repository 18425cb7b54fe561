// SPDX-License-Identifier: GPL-2.0-only
/*
 * Records on a disk that loses power: a durable record is never lost or mixed up, under
 * reclaim and migration. Usage:
 *
 *	records write DIR FILES		until the machine ends
 *	records check DIR FILE:NUMBER...
 *
 * write starts a process per file DIR/records.N. It writes records of one page by pwrite()
 * or a shared mapping, over older ones, at places that follow from their numbers. After
 * fsync() or msync() it prints "synced FILE NUMBER": records up to NUMBER are durable. It
 * also reads older records through the mapping, and prints "wrong ..." if one differs.
 *
 * check reads the files. Each word must be of the newest durable record of its place, or of
 * a later one, which may be half written. It prints "wrong ..." (exit code 1) or "checked
 * PAGES".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE	4096UL
#define SECTOR	512UL
#define WORDS	(SECTOR / sizeof(uint64_t))
#define SECTORS	(PAGE / SECTOR)
#define PAGES	2048UL		/* per file */
#define SYNC	24		/* records per sync, at most */
#define LATER	(3 * SYNC)	/* records after the last known sync */
#define REREAD	4		/* older records read per write */

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

static unsigned long place_of(unsigned int file, uint64_t number)
{
	return mix((uint64_t)file << 48 ^ number) % PAGES;
}

/* The record's number first; the rest follows from it. */
static uint64_t word_of(unsigned int file, unsigned long sector, uint64_t number, unsigned int i)
{
	return i ? mix(number * 64 + i + ((uint64_t)file << 48 ^ (uint64_t)sector << 32)) : number;
}

static void fill(volatile uint64_t *page, unsigned int file, unsigned long at, uint64_t number)
{
	for (unsigned long s = 0; s < SECTORS; s++)
		for (unsigned int i = 0; i < WORDS; i++)
			page[s * WORDS + i] = word_of(file, at * SECTORS + s, number, i);
}

static void fail(const char *what)
{
	dprintf(1, "wrong: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static int open_file(const char *dir, unsigned int file, int flags)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/records.%u", dir, file);
	fd = open(path, flags | O_CLOEXEC, 0644);
	if (fd < 0)
		fail(path);
	return fd;
}

/* The first word of a page that is of none of @numbers, or PAGE / 8. */
static unsigned long odd_word(const uint64_t *page, unsigned int file, unsigned long at,
			      const uint64_t *numbers, int count)
{
	unsigned long word;
	int i;

	for (word = 0; word < PAGE / 8; word++) {
		for (i = 0; i < count; i++)
			if (page[word] == word_of(file, at * SECTORS + word / WORDS, numbers[i],
						  word % WORDS))
				break;
		if (i == count)
			break;
	}
	return word;
}

static void reread(const uint64_t *map, unsigned int file, const uint64_t *newest, uint64_t number)
{
	for (unsigned int i = 0; i < REREAD; i++) {
		unsigned long at = place_of(file, 1 + mix(number * REREAD + i) % number);
		unsigned long word = odd_word(map + at * PAGE / 8, file, at, &newest[at], 1);

		if (word == PAGE / 8)
			continue;
		dprintf(1, "wrong: page %lu of file %u, word %lu is not of record %llu\n",
			at, file, word, (unsigned long long)newest[at]);
		_exit(1);
	}
}

static void write_file(const char *dir, unsigned int file)
{
	static uint64_t newest[PAGES], page[PAGE / 8];
	int fd = open_file(dir, file, O_RDWR | O_CREAT | O_TRUNC);
	uint64_t *map, synced = 0;

	/* All holes: writes must allocate. */
	if (ftruncate(fd, PAGES * PAGE))
		fail("ftruncate");
	map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		fail("mmap");
	for (uint64_t number = 1;; number++) {
		unsigned long at = place_of(file, number);

		if (number % 3) {
			fill(page, file, at, number);
			if (pwrite(fd, page, PAGE, at * PAGE) != PAGE)
				fail("pwrite");
		} else {
			fill(map + at * PAGE / 8, file, at, number);
		}
		newest[at] = number;
		reread(map, file, newest, number);
		if (number - synced < 1 + mix(number) % SYNC)
			continue;
		if (mix(synced) % 2 ? fsync(fd) : msync(map, PAGES * PAGE, MS_SYNC))
			fail("fsync");
		synced = number;
		dprintf(1, "synced %u %llu\n", file, (unsigned long long)synced);
	}
}

/* Returns the number of right pages, or -1. */
static long check_file(const char *dir, unsigned int file, uint64_t synced)
{
	static uint64_t newest[PAGES], page[PAGE / 8];
	int fd = open_file(dir, file, O_RDONLY);
	uint64_t numbers[1 + LATER];
	long good = 0, bad = 0;

	memset(newest, 0, sizeof(newest));
	for (uint64_t number = 1; number <= synced; number++)
		newest[place_of(file, number)] = number;
	for (unsigned long at = 0; at < PAGES; at++) {
		unsigned long word;
		int count = 1;

		if (!newest[at])
			continue;
		if (pread(fd, page, PAGE, at * PAGE) != PAGE)
			fail("pread");
		numbers[0] = newest[at];
		for (uint64_t number = synced + 1; number <= synced + LATER; number++)
			if (place_of(file, number) == at)
				numbers[count++] = number;
		word = odd_word(page, file, at, numbers, count);
		if (word == PAGE / 8) {
			good++;
			continue;
		}
		bad++;
		dprintf(1, "wrong: page %lu of file %u, word %lu: %#llx is not of record %llu\n",
			at, file, word, (unsigned long long)page[word],
			(unsigned long long)newest[at]);
	}
	close(fd);
	return bad ? -1 : good;
}

int main(int argc, char **argv)
{
	long checked = 0, files;
	int failed = 0, status;

	if (argc == 4 && !strcmp(argv[1], "write")) {
		files = atol(argv[3]);
		for (long file = 0; file < files; file++)
			if (!fork())
				write_file(argv[2], file);
		/* A process ends only if it found something wrong. */
		wait(&status);
		return 1;
	}
	if (argc < 4 || strcmp(argv[1], "check")) {
		fprintf(stderr, "usage: records write DIR FILES | check DIR FILE:NUMBER...\n");
		return 2;
	}
	for (int i = 3; i < argc; i++) {
		unsigned int file;
		unsigned long long synced;
		long good;

		if (sscanf(argv[i], "%u:%llu", &file, &synced) != 2) {
			fprintf(stderr, "records: no FILE:NUMBER: %s\n", argv[i]);
			return 2;
		}
		good = check_file(argv[2], file, synced);
		failed |= good < 0;
		checked += good > 0 ? good : 0;
	}
	if (!failed)
		printf("checked %ld\n", checked);
	return failed;
}
