/* SPDX-License-Identifier: GPL-2.0-only */
/* Parts of the torture of lazy unmap flush: see luf_torture.c. */
#ifndef QUELL_LUF_TORTURE_H
#define QUELL_LUF_TORTURE_H

#include "luf.h"

#define NR_FILES	6
#define BIG_FILE	100			/* IDs in words */
#define ANON_FILE	200
#define CHUNK		PAGES			/* pages per window of the big file */
#define MAX_CHUNKS	64
#define MAX_CPUS	64
#define MAX_STATES	8			/* power of two */
#define POISON		0xf4f4f4f4f4f4f4f4UL	/* HLT: execution is noticed */

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

struct violation {
	atomic_int claimed, complete;
	char what[64], by[128];
	uint64_t found;
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

struct job {
	atomic_uint number;		/* odd: active */
	volatile uint64_t *map;
	unsigned int pages;
	bool execute;
	bool write;			/* each reader writes its own word of a page */
	uint64_t readers;		/* mask of CPUs */
	struct window window;
};

struct file {
	char path[4096];
	struct state state;
};

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

struct round {
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
};

enum {
	SHARED = 1,
	PRIVATE = 2,		/* read-only */
	WRITABLE = 4,		/* private, too */
	ANON = 8,
	ANON_RO = 16,
	COW = 32,		/* anonymous, after fork() */
	OF_FILE = SHARED | PRIVATE | WRITABLE,
	OF_ANON = ANON | ANON_RO | COW,
	OF_ANY = OF_FILE | OF_ANON,
};

struct action {
	const char *name;
	int kinds;
	int weight;
	bool (*change)(void);	/* false: not done, nothing known */
	const char *lot_pages;	/* for the round */
	bool (*before)(void);	/* before the pages go */
	bool execute;		/* content stays */
};

/* luf_torture.c */
extern struct shared *sh;
extern int nr_cpus, nr_nodes;
extern unsigned int big_chunks;
extern double started;
extern __thread uint64_t random_state;
extern char doing[128];

unsigned int pick(unsigned int n);
bool stopped(void);

/* luf_torture_content.c */
uint64_t word_of(unsigned int file, unsigned int gen, unsigned long word);
bool faults(const struct state *s, unsigned long word);
uint64_t expected(const struct state *s, unsigned long word);
void window_init(struct window *w, struct state first);
void may_change(struct window *w, struct state new);
void has_changed(struct window *w);
struct state *state_at(struct window *w, unsigned int i);
bool legal(struct window *w, unsigned int lo, unsigned int hi, unsigned long word,
	   uint64_t v);
void violated(const char *what, const char *by, struct window *w, unsigned int lo,
	      unsigned int hi, unsigned long word, volatile uint64_t *addr,
	      uint64_t found);
void print_violation(struct violation *v);

/* luf_torture_readers.c */
extern struct job job;
extern struct reader readers[MAX_CPUS];

void on_fault(int sig, siginfo_t *info, void *context);
void *reader_thread(void *arg);
bool await_passes(int passes);
void job_start(void);
void job_end(void);

/* luf_torture_ops.c */
extern struct file files[NR_FILES];
extern uint64_t *buffer;
extern int helper_fd, torturer_pid, torturer_pidfd;
extern char reclaim_path[4096];
extern struct round round_;

unsigned int new_gen(void);
void fill_words(volatile uint64_t *to, unsigned int file, unsigned int gen,
		unsigned long first, unsigned long count);
struct state content(unsigned int file, unsigned int gen);
void set_nodes(bool all);
void helper(int fd);
void send_op(struct op op);
long wait_op(void);
bool succeeded(const struct op *op, long result);
bool here(const struct op *op);
bool elsewhere(struct op op);
bool anywhere(struct op op);

/* luf_torture_actions.c */
extern const struct action actions[];
extern const unsigned int nr_actions;

bool fill(unsigned int most);
bool prepare_file(unsigned int file);
void cow_child(int fd);

/* luf_torture_rounds.c */
extern bool background_on;

void torturer(uint64_t seed);
void print_rounds(void);
void select_actions(char *names);

/* luf_torture_background.c */
extern char big_path[4096];

void big_readers(void);
void write_chunk(unsigned int chunk, bool direct);
void big_writer(void);
void pressure(void);
void knobs(void);

#endif /* QUELL_LUF_TORTURE_H */
