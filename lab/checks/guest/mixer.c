// SPDX-License-Identifier: GPL-2.0-only
/*
 * Random selftests beside random events. They attack the invariants of all mechanisms at
 * once. Usage, as root in a guest:
 *
 *	mixer PROGRAMS DATA LARGE SECONDS SEED
 *
 * PROGRAMS has Quell's selftests. DATA is on ext4, LARGE on a file system with large
 * folios.
 *
 * Three lanes run one thing after the other, with random arguments: luf_torture, the other
 * selftests, and events. Events are Quell's and MGLRU's switches off for a while, reclaim,
 * compaction, dropped caches, swap, folio sizes and CPU hotplug. SEED decides each lane's
 * sequence, and the machine its timing.
 *
 * A selftest's output is printed at its end, for the caller to judge. It may fail for a
 * switch that is off, and must not read wrong data. A task that cannot be killed is a line
 * "not ok: WHY". The last line is "programs: N, events: N".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/swap.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT(a)	(sizeof(a) / sizeof((a)[0]))
#define QUELL		"/sys/kernel/mm/quell/"
#define THP		"/sys/kernel/mm/transparent_hugepage/"
#define SWAP		"/dev/ram1"	/* selftests use /dev/ram0 */
#define GRACE		60		/* seconds for the last selftests */
#define DYING		120		/* seconds until a task must be gone */
#define MAX_ARGS	10

enum { LUF, OTHERS, EVENTS, NR_LANES };

struct lane {
	uint64_t rng;
	pid_t child;
	double started;
	const char *name;
	int out;
	int count;
};

/* %dN is a number from 1 to N, %s a seed. */
static const char luf_torture[] = "luf_torture DATA --seconds %d20 --seed %s";
static const char * const others[] = {
	"rmap_torture LARGE --seconds %d20 --workers %d4 --seed %s",
	"rmap_torture DATA --seconds %d20 --workers %d4 --seed %s",
	"rmap_batch LARGE 1",
	"writeout_batch 0.5",
	"gather_range %d200",
	"luf_stale DATA %d3",
	"luf_migrate DATA %d4",
	"folio_order DATA races",
	"folio_order DATA fork",
	"folio_order DATA swap",
	"early_ack %d400",
	"security DATA %d2 secrets",
	"security DATA 1 memory",
	"security DATA 1 zeroes",
};
static const char * const switches[] = {
	"unmap_batch", "concurrent", "zap_batch", "rmap_batch", "luf", "early_ack", "folio_order",
	"writeout_batch",
	"gather_range",
};

static const char *programs, *data, *large;
static struct lane lanes[NR_LANES];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static uint64_t next(uint64_t *rng)
{
	uint64_t x = *rng += 0x9e3779b97f4a7c15ULL;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

static unsigned int below(uint64_t *rng, unsigned int limit)
{
	return next(rng) % limit;
}

static void say(const char *fmt, ...)
{
	char line[512];
	va_list args;
	int n;

	n = snprintf(line, sizeof(line), "[%8.1f] ", now());
	va_start(args, fmt);
	vsnprintf(line + n, sizeof(line) - n - 1, fmt, args);
	va_end(args);
	strcat(line, "\n");
	if (write(1, line, strlen(line)) < 0)
		exit(2);
}

static void set(const char *value, const char *fmt, ...)
{
	char path[200];
	va_list args;
	int fd, err;

	va_start(args, fmt);
	vsnprintf(path, sizeof(path), fmt, args);
	va_end(args);
	fd = open(path, O_WRONLY);
	err = fd < 0 || write(fd, value, strlen(value)) < 0 ? errno : 0;
	say("%s > %s%s%s", value, path, err ? ": " : "", err ? strerror(err) : "");
	if (fd >= 0)
		close(fd);
}

static void wait_a_while(uint64_t *rng)
{
	usleep(1000 * below(rng, 2000));
}

/* A process of its own: it may block. */
static void event(uint64_t rng)
{
	static const char * const sizes[] = { "always", "inherit", "madvise", "never" };
	unsigned int which = below(&rng, 14), n;
	char text[32];

	switch (which) {
	case 0:
	case 1:
		set("0", "/sys/kernel/mm/lru_gen/enabled");
		wait_a_while(&rng);
		set("7", "/sys/kernel/mm/lru_gen/enabled");
		break;
	case 2:
	case 3:
		snprintf(text, sizeof(text), "%uM", 1 + below(&rng, 64));
		set(text, "/sys/fs/cgroup/memory.reclaim");
		break;
	case 4:
		set(below(&rng, 2) ? "1" : "3", "/proc/sys/vm/drop_caches");
		break;
	case 5:
		set("1", "/proc/sys/vm/compact_memory");
		break;
	case 6:
	case 7:
		n = 1 + below(&rng, sysconf(_SC_NPROCESSORS_CONF) - 1);
		set("0", "/sys/devices/system/cpu/cpu%u/online", n);
		wait_a_while(&rng);
		set("1", "/sys/devices/system/cpu/cpu%u/online", n);
		break;
	case 8:
		say("swapoff: %s", swapoff(SWAP) ? strerror(errno) : "done");
		wait_a_while(&rng);
		say("swapon: %s", swapon(SWAP, 0) ? strerror(errno) : "done");
		break;
	case 9:
		set(sizes[below(&rng, COUNT(sizes))], THP "hugepages-%ukB/enabled",
		    16U << below(&rng, 3));
		break;
	default:
		n = below(&rng, COUNT(switches));
		set("0", QUELL "%s/enabled", switches[n]);
		wait_a_while(&rng);
		set("1", QUELL "%s/enabled", switches[n]);
	}
	wait_a_while(&rng);
}

static void run(const char *line, uint64_t rng, int out)
{
	char text[256], shown[300], path[300], numbers[MAX_ARGS][24], *argv[MAX_ARGS + 1];
	int argc = 0;

	snprintf(text, sizeof(text), "%s", line);
	snprintf(shown, sizeof(shown), "start");
	for (char *word = strtok(text, " "); word && argc < MAX_ARGS; word = strtok(NULL, " ")) {
		char *number = numbers[argc];

		if (!strcmp(word, "DATA"))
			word = (char *)data;
		else if (!strcmp(word, "LARGE"))
			word = (char *)large;
		else if (word[0] == '%') {
			snprintf(number, sizeof(numbers[0]), "%u", 1 +
				 below(&rng, word[1] == 's' ? 1U << 30 : (unsigned int)atoi(word + 2)));
			word = number;
		}
		argv[argc++] = word;
		snprintf(shown + strlen(shown), sizeof(shown) - strlen(shown), " %s", word);
	}
	argv[argc] = NULL;
	say("%s", shown);
	snprintf(path, sizeof(path), "%s/%s", programs, argv[0]);
	dup2(out, 1);
	dup2(out, 2);
	execv(path, argv);
	say("not started: %s", strerror(errno));
}

/* luf_torture would skip itself. */
static int luf_is_off(void)
{
	char text[8] = "";
	int fd = open(QUELL "luf/enabled", O_RDONLY);

	if (fd < 0)
		return 0;
	if (read(fd, text, sizeof(text) - 1) < 0)
		text[0] = 0;
	close(fd);
	return text[0] == '0';
}

static void start(int number)
{
	struct lane *l = &lanes[number];
	const char *line = luf_torture;
	uint64_t rng = next(&l->rng);

	if (number == OTHERS)
		line = others[below(&rng, COUNT(others))];
	l->name = number == EVENTS ? "an event" : line;
	l->started = now();
	l->out = number == EVENTS ? -1 : open("/run/work", O_TMPFILE | O_RDWR, 0600);
	l->child = fork();
	if (l->child)
		return;
	setpgid(0, 0);
	if (number == EVENTS) {
		event(rng);
		_exit(0);
	}
	run(line, rng, l->out);
	_exit(127);
}

static void ended(struct lane *l, int status)
{
	static char text[65536];
	ssize_t n;

	l->child = 0;
	l->count++;
	if (l->out < 0)
		return;
	say("end %.*s: %s %d", (int)strcspn(l->name, " "), l->name,
	    WIFSIGNALED(status) ? "signal" : "exit code",
	    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	lseek(l->out, 0, SEEK_SET);
	while ((n = read(l->out, text, sizeof(text))) > 0)
		if (write(1, text, n) != n)
			exit(2);
	close(l->out);
}

int main(int argc, char **argv)
{
	double end, killed = 0;
	int status, left;
	uint64_t seed;

	if (argc != 6) {
		fprintf(stderr, "usage: mixer PROGRAMS DATA LARGE SECONDS SEED\n");
		return 2;
	}
	programs = argv[1];
	data = argv[2];
	large = argv[3];
	end = now() + atof(argv[4]);
	seed = strtoull(argv[5], NULL, 0);
	for (int i = 0; i < NR_LANES; i++)
		lanes[i].rng = next(&seed);
	do {
		left = 0;
		for (int i = 0; i < NR_LANES; i++) {
			struct lane *l = &lanes[i];

			if (l->child && waitpid(l->child, &status, WNOHANG) == l->child)
				ended(l, status);
			if (!l->child && now() < end && !(i == LUF && luf_is_off()))
				start(i);
			left += l->child != 0;
		}
		if (left && !killed && now() > end + GRACE) {
			killed = now();
			for (int i = 0; i < NR_LANES; i++) {
				if (!lanes[i].child)
					continue;
				say("cut off: %s, after %.0f s", lanes[i].name,
				    now() - lanes[i].started);
				kill(-lanes[i].child, SIGKILL);
			}
		}
		usleep(20000);
	} while ((left || now() < end) && !(killed && now() > killed + DYING));
	if (left) {
		for (int i = 0; i < NR_LANES; i++)
			if (lanes[i].child)
				printf("not ok: cannot be killed: %s\n", lanes[i].name);
		fflush(stdout);
		set("w", "/proc/sysrq-trigger");
	}
	printf("programs: %d, events: %d\n", lanes[LUF].count + lanes[OTHERS].count,
	       lanes[EVENTS].count);
	return left ? 1 : 0;
}
