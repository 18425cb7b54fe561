// SPDX-License-Identifier: GPL-2.0-only
/* Rounds: a mapping with readers, a way to take its pages away, and an action. */
#include <sys/socket.h>
#include <sys/wait.h>

#include "luf_torture.h"

/* Passes of the readers after the change, and their time limit. */
#define PASSES		4

static const char * const kind_names[] = {
	"shared", "private", "private writable", "anonymous", "read-only anonymous",
	"copy-on-write",
};

/* How pages are taken from the readers. */
struct method {
	const char *name;
	int kinds;
	int weight;
	enum op_code code;
	bool here;		/* by this process */
	bool nodes;		/* needs two nodes */
};

static const struct method methods[] = {
	{ "paged out", OF_FILE, 12, OP_PAGEOUT, false, false },
	{ "paged out by itself", OF_FILE, 2, OP_PAGEOUT, true, false },
	{ "reclaimed", OF_FILE, 1, OP_RECLAIM, false, false },
	{ "moved", OF_ANY, 8, OP_MOVE, false, true },
	{ "migrated", OF_ANY, 1, OP_MIGRATE, false, true },
	{ "compacted", OF_ANY, 1, OP_COMPACT, false, false },
};

#define NR_METHODS	ARRAY_SIZE(methods)

static bool action_on[64];

bool background_on = true;

static const struct action *pick_action(void)
{
	int total = 0, n;

	for (unsigned int i = 0; i < nr_actions; i++)
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
	status = must_wait(round_.child);
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

void torturer(uint64_t seed)
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
	must_wait(pid);
	exit(0);
}

void print_rounds(void)
{
	for (unsigned int i = 0; i < nr_actions; i++)
		if (action_on[i])
			ksft_print_msg("%s: %lu rounds\n", actions[i].name,
				       atomic_load(&sh->action_rounds[i]));
}

void select_actions(char *names)
{
	bool found;

	background_on = !names;
	for (unsigned int i = 0; i < nr_actions; i++)
		action_on[i] = !names;
	for (char *name = names ? strtok(names, ",") : NULL; name; name = strtok(NULL, ",")) {
		found = !strcmp(name, "background");
		background_on |= found;
		for (unsigned int i = 0; i < nr_actions; i++) {
			if (strcmp(name, actions[i].name))
				continue;
			action_on[i] = true;
			found = true;
		}
		if (found)
			continue;
		fprintf(stderr, "luf_torture: there is no action '%s', only background", name);
		for (unsigned int i = 0; i < nr_actions; i++)
			fprintf(stderr, ", %s", actions[i].name);
		fprintf(stderr, "\n");
		exit(2);
	}
	if (names) {
		found = false;
		for (unsigned int i = 0; i < nr_actions; i++)
			found |= action_on[i];
		if (!found)
			action_on[0] = true;
	}
}
