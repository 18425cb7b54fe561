// SPDX-License-Identifier: GPL-2.0-only
/*
 * store: fill a key-value server, read it back, change half, read again. Measures faults
 * and memory of a server's heap (mm/folio_order.c). Usage:
 *
 *	store --protocol redis|memcached [--keys N] [--min BYTES] [--max BYTES] [--cgroup 1]
 *		DIRECTORY
 *
 * collect.sh makes DIRECTORY with the server, which runs on a Unix socket. One connection;
 * requests go in batches. Values follow from key and generation, so each value read is
 * compared: a wrong byte, a missing value or a deleted one fails the run. The phases are
 * the same in each run:
 *
 *   load		each key once, in order
 *   read		all keys, compared
 *   churn	half as many requests as keys, at random: one in three deletes, the others
 *		store a value of another size
 *   read		all keys again
 *   save	Redis: a forked child writes all keys to a file (BGSAVE) while churn and read
 *		run once more
 *
 * Figures: requests per second of each phase, the server's faults, and its memory
 * (/proc/PID/smaps_rollup) a second after load, churn and save; with --cgroup, which needs root,
 * in_use and server_peak are memory.current and memory.peak of the server's cgroup. The server's
 * addresses are not randomized.
 */
#define WORKLOAD "store"
#include "../workload.h"
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SOCKET		"store.socket"	/* in DIRECTORY */
#define SAVE_DIR	"/dev/shm"
#define START_TRIES	6000		/* 10 ms each */
#define KEY_BYTES	16
#define BATCH		16		/* requests before answers are read */
#define MAX_VALUE	65536UL
#define MAX_REQUEST	(MAX_VALUE + 256)

static uint64_t min_value = 64, max_value = 8192, has_cgroup;

/* Stores of each key; 0: none. Bit 31: deleted. */
static uint32_t *generations;
#define DELETED		(1U << 31)

/* --- Values ---------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

/* Returns its length. */
static size_t make_value(uint64_t key, uint32_t generation, char *value)
{
	uint64_t seed = mix(key << 24 ^ generation ^ 0x9e3779b97f4a7c15ULL);
	size_t length = min_value + seed % (max_value - min_value + 1);

	for (size_t i = 0; i < length; i += sizeof(seed)) {
		seed += 0x9e3779b97f4a7c15ULL;
		uint64_t word = seed ^ seed >> 29;

		memcpy(value + i, &word, sizeof(word));	/* there is room */
	}
	return length;
}

static void make_key(uint64_t key, char text[KEY_BYTES])
{
	snprintf(text, KEY_BYTES, "key:%010" PRIu64, key);
}

/* --- The connection -------------------------------------------------------- */

static int connection = -1;
static char out[BATCH * MAX_REQUEST];
static size_t out_bytes;
static char in[1 << 18];
static size_t in_first, in_last;

static void put(const char *bytes, size_t count)
{
	memcpy(out + out_bytes, bytes, count);
	out_bytes += count;
}

static void __attribute__((format(printf, 1, 2))) put_text(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	out_bytes += (size_t)vsnprintf(out + out_bytes, 256, format, args);
	va_end(args);
}

static void send_batch(void)
{
	for (size_t sent = 0; sent < out_bytes; ) {
		ssize_t n = write(connection, out + sent, out_bytes - sent);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			die("The server takes no requests: %s.", strerror(errno));
		sent += (size_t)n;
	}
	out_bytes = 0;
}

/* At least @count bytes in one piece. */
static const char *take(size_t count)
{
	const char *at;

	if (count > sizeof(in))
		die("An answer of %zu bytes is too long.", count);
	if (in_first + count > sizeof(in)) {
		memmove(in, in + in_first, in_last - in_first);
		in_last -= in_first;
		in_first = 0;
	}
	while (in_last - in_first < count) {
		ssize_t n = read(connection, in + in_last, sizeof(in) - in_last);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			die("The server gives no answer: %s.", strerror(errno));
		if (!n)
			die("The server ended.");
		in_last += (size_t)n;
	}
	at = in + in_first;
	in_first += count;
	return at;
}

/* Without the line end; valid until the next call. */
static const char *take_line(void)
{
	static char line[256];

	for (size_t length = 0; length < sizeof(line); length++) {
		line[length] = *take(1);
		if (line[length] != '\n')
			continue;
		if (!length || line[length - 1] != '\r')
			break;
		line[length - 1] = '\0';
		return line;
	}
	die("The server's answer is no line.");
}

static void expect(const char *should, const char *request, uint64_t key)
{
	const char *line = take_line();

	if (strcmp(line, should))
		die("The server says '%s', not '%s', to %s of key %" PRIu64 ".",
		    line, should, request, key);
}

/* --- The two protocols ----------------------------------------------------- */

struct protocol {
	const char *name;
	char *const *argv;
	void (*store)(const char *key, const char *value, size_t length);
	void (*get)(const char *key);
	void (*delete)(const char *key);
	const char *stored, *deleted, *not_deleted, *no_value, *after_value;
	/* The line before a value of @length. */
	void (*value_line)(char *line, size_t room, const char *key, size_t length);
};

static void redis_store(const char *key, const char *value, size_t length)
{
	put_text("*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n", strlen(key), key, length);
	put(value, length);
	put("\r\n", 2);
}

static void redis_get(const char *key)
{
	put_text("*2\r\n$3\r\nGET\r\n$%zu\r\n%s\r\n", strlen(key), key);
}

static void redis_delete(const char *key)
{
	put_text("*2\r\n$3\r\nDEL\r\n$%zu\r\n%s\r\n", strlen(key), key);
}

static void redis_value_line(char *line, size_t room, const char *key, size_t length)
{
	(void)key;
	snprintf(line, room, "$%zu", length);
}

static void memcached_store(const char *key, const char *value, size_t length)
{
	put_text("set %s 0 0 %zu\r\n", key, length);
	put(value, length);
	put("\r\n", 2);
}

static void memcached_get(const char *key)
{
	put_text("get %s\r\n", key);
}

static void memcached_delete(const char *key)
{
	put_text("delete %s\r\n", key);
}

static void memcached_value_line(char *line, size_t room, const char *key, size_t length)
{
	snprintf(line, room, "VALUE %s 0 %zu", key, length);
}

/* Absolute: Redis changes to SAVE_DIR first. */
static char socket_path[sizeof(((struct sockaddr_un *)0)->sun_path)];

/*
 * No timers, disk or network. Allocators as packaged: jemalloc, memcached's slabs on the C
 * library's.
 */
static char *const redis_argv[] = {
	"bin/redis-server", "--port", "0", "--unixsocket", socket_path, "--save", "",
	"--dir", SAVE_DIR, "--rdbcompression", "no", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning",
	"--hz", "1", "--dynamic-hz", "no", "--activerehashing", "no",
	"--activedefrag", "no", "--jemalloc-bg-thread", "no", "--io-threads", "1",
	NULL
};

/* An error instead of an eviction. */
static char *const memcached_argv[] = {
	"bin/memcached", "-u", "root", "-s", socket_path, "-t", "1", "-m", "800", "-M",
	"-o", "no_modern,hashpower=18", NULL
};

static const struct protocol protocols[] = {
	{ "redis", redis_argv, redis_store, redis_get, redis_delete,
	  "+OK", ":1", ":0", "$-1", "", redis_value_line },
	{ "memcached", memcached_argv, memcached_store, memcached_get, memcached_delete,
	  "STORED", "DELETED", "NOT_FOUND", "END", "END", memcached_value_line },
};

static const struct protocol *protocol;

/* --- The server ------------------------------------------------------------ */

static pid_t server;

static void start_server(const char *directory)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timespec pause = { .tv_nsec = 10000000 };
	int status;

	if (chdir(directory))
		die("There is no directory %s: %s.", directory, strerror(errno));
	unlink(SOCKET);
	if (!getcwd(socket_path, sizeof(socket_path) - sizeof("/" SOCKET)))
		die("The path of %s is too long.", directory);
	strcat(socket_path, "/" SOCKET);
	strcpy(address.sun_path, socket_path);
	if (has_cgroup)
		make_cgroup();
	fflush(stdout);
	server = fork();
	if (server < 0)
		die("Cannot fork: %s.", strerror(errno));
	if (!server) {
		/* Dies with this process. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (has_cgroup)
			write_file(OWN_CGROUP "cgroup.procs", "0");
		dup2(STDERR_FILENO, STDOUT_FILENO);
		setenv("LD_LIBRARY_PATH", "lib", 1);
		setenv("LC_ALL", "C", 1);
		personality(ADDR_NO_RANDOMIZE);
		execv(protocol->argv[0], protocol->argv);
		die("Cannot run %s: %s.", protocol->argv[0], strerror(errno));
	}
	for (int i = 0; i < START_TRIES; i++) {
		connection = socket(AF_UNIX, SOCK_STREAM, 0);
		if (connection < 0)
			die("Cannot make a socket: %s.", strerror(errno));
		if (!connect(connection, (struct sockaddr *)&address, sizeof(address)))
			return;
		close(connection);
		if (waitpid(server, &status, WNOHANG) == server)
			die("%s did not start.", protocol->argv[0]);
		nanosleep(&pause, NULL);
	}
	kill(server, SIGKILL);
	die("%s does not take connections.", protocol->argv[0]);
}

/* Waits, so that its time and faults count. */
static void stop_server(void)
{
	int status;

	close(connection);
	kill(server, SIGTERM);
	if (waitpid(server, &status, 0) != server || !WIFEXITED(status) ||
	    WEXITSTATUS(status))
		die("%s did not end as it should.", protocol->argv[0]);
}

static void read_proc(const char *file, char *text, size_t room)
{
	char path[64];
	size_t got;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)server, file);
	f = fopen(path, "re");
	if (!f)
		die("Cannot open %s: %s.", path, strerror(errno));
	got = fread(text, 1, room - 1, f);
	fclose(f);
	text[got] = '\0';
}

static void report_memory(const char *when)
{
	static const struct { const char *field, *name; } wanted[] = {
		{ "\nRss:", "resident" }, { "\nAnonymous:", "anonymous" },
	};
	char text[8192], name[64];

	sleep(1);
	read_proc("smaps_rollup", text, sizeof(text));
	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
		const char *line = strstr(text, wanted[i].field);

		if (!line)
			die("smaps_rollup has no %s", wanted[i].field + 1);
		snprintf(name, sizeof(name), "%s_%s_kb", when, wanted[i].name);
		figure(name, strtod(line + strlen(wanted[i].field), NULL), "kB");
	}
	if (has_cgroup) {
		snprintf(name, sizeof(name), "%s_in_use_kb", when);
		figure(name, cgroup_kb("memory.current"), "kB");
	}
}

static uint64_t server_faults(void)
{
	unsigned long long faults;
	char text[4096];
	const char *rest;

	read_proc("stat", text, sizeof(text));
	/* minflt is the 10th field. The name before it may hold anything. */
	rest = strrchr(text, ')');
	if (!rest || sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %llu", &faults) != 1)
		die("/proc/PID/stat of the server is damaged.");
	return faults;
}

/* --- The phases ------------------------------------------------------------ */

static uint64_t keys = 25000;

struct request {
	uint64_t key;
	enum { STORE, GET, DELETE } what;
	bool there;		/* before the request */
	uint32_t generation;	/* of the stored or expected value */
};

static void request(struct request *r, uint64_t key, int what)
{
	static char value[MAX_VALUE + sizeof(uint64_t)];
	uint32_t old = generations[key];
	char name[KEY_BYTES];

	r->key = key;
	r->what = what;
	r->there = old && !(old & DELETED);
	r->generation = old & ~DELETED;
	make_key(key, name);
	switch (r->what) {
	case STORE:
		generations[key] = ++r->generation;
		protocol->store(name, value, make_value(key, r->generation, value));
		break;
	case GET:
		protocol->get(name);
		break;
	case DELETE:
		if (r->there)
			generations[key] |= DELETED;
		protocol->delete(name);
		break;
	}
}

static void check_value(const struct request *r)
{
	static char value[MAX_VALUE + sizeof(uint64_t)];
	char line[64], name[KEY_BYTES];
	size_t length;

	if (!r->there) {
		expect(protocol->no_value, "a read", r->key);
		return;
	}
	make_key(r->key, name);
	length = make_value(r->key, r->generation, value);
	protocol->value_line(line, sizeof(line), name, length);
	expect(line, "a read", r->key);
	if (memcmp(take(length), value, length))
		die("The value of key %" PRIu64 " is not what was stored.", r->key);
	expect("", "a read", r->key);
	if (protocol->after_value[0])
		expect(protocol->after_value, "a read", r->key);
}

static void answers(const struct request *requests, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const struct request *r = &requests[i];

		if (r->what == GET)
			check_value(r);
		else if (r->what == STORE)
			expect(protocol->stored, "a store", r->key);
		else
			expect(r->there ? protocol->deleted : protocol->not_deleted,
			       "a delete", r->key);
	}
}

static uint64_t draws;

static void next_request(struct request *r, uint64_t number, const char *phase)
{
	uint64_t x;

	switch (phase[0]) {
	case 'l':
		request(r, number, STORE);
		break;
	case 'r':
		request(r, number, GET);
		break;
	default:
		x = mix(++draws * 0x9e3779b97f4a7c15ULL);
		request(r, x % keys, (x >> 40) % 3 ? STORE : DELETE);
	}
}

/* Returns ns. */
static uint64_t run_phase(const char *phase, uint64_t count)
{
	struct request requests[BATCH];
	uint64_t start = now_ns();

	for (uint64_t done = 0; done < count; ) {
		size_t batch = 0;

		for (; batch < BATCH && done < count; batch++, done++)
			next_request(&requests[batch], done, phase);
		send_batch();
		answers(requests, batch);
	}
	return now_ns() - start;
}

static void report_rate(const char *name, uint64_t count, uint64_t ns)
{
	figure_more(name, (double)count * NSEC_PER_SEC / (double)ns, "requests/s");
}

/* One bulk answer as text. */
static const char *info(void)
{
	static char text[8192];
	size_t length;

	put_text("*2\r\n$4\r\nINFO\r\n$11\r\npersistence\r\n");
	send_batch();
	if (sscanf(take_line(), "$%zu", &length) != 1 || length >= sizeof(text))
		die("The server's answer to INFO is damaged.");
	memcpy(text, take(length), length);
	text[length] = '\0';
	take(2);
	return text;
}

/* BGSAVE with requests beside it; the memory of the child and of the file is freed by the end. */
static void save_beside_requests(void)
{
	put_text("*1\r\n$6\r\nBGSAVE\r\n");
	send_batch();
	expect("+Background saving started", "a save", 0);
	run_phase("churn", keys / 2);
	run_phase("read", keys);
	while (strstr(info(), "rdb_bgsave_in_progress:1"))
		usleep(100000);
	if (!strstr(info(), "rdb_last_bgsave_status:ok"))
		die("The server could not save.");
	unlink(SAVE_DIR "/dump.rdb");
	report_memory("saved");
}

static void take_options(int argc, char **argv)
{
	int i = 1;

	for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
		if (!strcmp(argv[i], "--protocol")) {
			for (size_t k = 0; k < ARRAY_SIZE(protocols); k++)
				if (!strcmp(argv[i + 1], protocols[k].name))
					protocol = &protocols[k];
		} else if (!strcmp(argv[i], "--keys")) {
			keys = parse_number("--keys", argv[i + 1], 2, 1 << 28);
		} else if (!strcmp(argv[i], "--min")) {
			min_value = parse_number("--min", argv[i + 1], 1, MAX_VALUE);
		} else if (!strcmp(argv[i], "--max")) {
			max_value = parse_number("--max", argv[i + 1], 1, MAX_VALUE);
		} else if (!strcmp(argv[i], "--cgroup")) {
			has_cgroup = parse_number("--cgroup", argv[i + 1], 0, 1);
		} else {
			break;
		}
	}
	if (i + 1 != argc || !protocol || max_value < min_value)
		die("usage: " WORKLOAD " --protocol redis|memcached [--keys N] "
		    "[--min BYTES] [--max BYTES] [--cgroup 1] DIRECTORY");
}

int main(int argc, char **argv)
{
	uint64_t load, read, churn, again;

	take_options(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	generations = calloc(keys, sizeof(*generations));
	if (!generations)
		die("No memory for %" PRIu64 " keys.", keys);
	start_server(argv[argc - 1]);

	load = run_phase("load", keys);
	figure("load_faults", (double)server_faults(), "faults");
	report_memory("loaded");
	read = run_phase("read", keys);
	churn = run_phase("churn", keys / 2);
	report_memory("churned");
	again = run_phase("read", keys);
	figure("server_faults", (double)server_faults(), "faults");

	if (protocol->store == redis_store)
		save_beside_requests();

	report_rate("load_per_s", keys, load);
	report_rate("read_per_s", 2 * keys, read + again);
	report_rate("churn_per_s", keys / 2, churn);
	report_rate("requests_per_s", 3 * keys + keys / 2, load + read + churn + again);
	if (has_cgroup)
		figure("server_peak_kb", cgroup_kb("memory.peak"), "kB");
	stop_server();
	if (has_cgroup)
		remove_cgroup();
	return 0;
}
