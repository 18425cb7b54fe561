// SPDX-License-Identifier: GPL-2.0-only
/* Users that flush in a loop, and interrupts of other users' CPUs. */
#include <sys/wait.h>

#include "security.h"

#define LOOPS	(rounds * 40UL)
/* Page-outs of the victim's memory: interrupts per page-out are compared. */
#define PAGE_OUTS	30

static bool attack_again(unsigned long loop)
{
	return loop < LOOPS || atomic_load(&sh->more);
}

static long shootdowns_of(int cpu)
{
	FILE *f = fopen("/proc/interrupts", "r");
	char line[1024], *at;
	long value = -1;

	if (!f)
		die("/proc/interrupts");
	while (value < 0 && fgets(line, sizeof(line), f)) {
		at = strstr(line, "TLB:");
		if (!at)
			continue;
		at += 4;
		for (int i = 0; i <= cpu; i++)
			value = strtol(at, &at, 10);
	}
	fclose(f);
	return value;
}

static void *touch_on_one(void *arg)
{
	volatile char *map = arg;

	pin(1);
	while (!atomic_load(&sh->stop))
		touch(map, SIZE);
	return NULL;
}

/* Repeats @step while another CPU reads @map. */
static void repeat(char *map, void (*step)(char *map, unsigned long i))
{
	pthread_t thread;

	start_thread(&thread, touch_on_one, map);
	for (unsigned long i = 0; attack_again(i); i++) {
		step(map, i);
		atomic_fetch_add(&sh->loops, 1);
	}
	atomic_store(&sh->stop, true);
	pthread_join(thread, NULL);
}

/* Defers a page; the open waits for the flush. */
static void page_out_and_open(char *map, unsigned long i)
{
	touch(map, SIZE);
	must_advise(map + i % PAGES * PAGE, PAGE, MADV_PAGEOUT);
	close(must_open(path, O_WRONLY));
}

static void open_for_write(int unused __always_unused)
{
	repeat(map_file(path, MAP_SHARED), page_out_and_open);
}

static int pipe_ends[2];

/* Unmaps a page and keeps it, so the flush comes at once. */
static void page_out_and_keep(char *map, unsigned long i)
{
	struct iovec page = { map + i % PAGES * PAGE, PAGE };
	char content[PAGE];

	touch(map, SIZE);
	if (vmsplice(pipe_ends[1], &page, 1, 0) != PAGE)
		die("vmsplice");
	must_advise(page.iov_base, PAGE, MADV_PAGEOUT);
	if (read(pipe_ends[0], content, PAGE) != PAGE)
		die("pipe");
}

static void keep_pages(int unused __always_unused)
{
	if (pipe(pipe_ends))
		die("pipe");
	repeat(map_file(path, MAP_SHARED), page_out_and_keep);
}

#define FORKED	(256 * PAGE)

static void fork_once(char *map, unsigned long i)
{
	pid_t pid;

	memset(map, i, FORKED);
	pid = must_fork();
	if (!pid)
		_exit(0);
	must_wait(pid);
}

static void fork_much(int unused __always_unused)
{
	repeat(map_private(FORKED), fork_once);
}

static void victim(int unused __always_unused)
{
	pthread_t threads[MAX_CPUS];

	sh->map = map_file(victim_path, MAP_SHARED);
	/* Not the attacker's CPUs. */
	for (long cpu = 2; cpu < 4; cpu++)
		start_thread(&threads[cpu], read_on, (void *)cpu);
	atomic_store(&sh->ready, 1);
	pause();
}

static void all_switches(bool on)
{
	static const char * const names[] = {
		"luf", "rmap_batch", "early_ack", "folio_order", "writeout_batch", "gather_range",
	};

	for (unsigned long i = 0; i < ARRAY_SIZE(names); i++)
		if (get_switch(names[i]) >= 0)
			set_switch(names[i], on);
}

struct cost {
	long interrupts;	/* of the victim's CPUs */
	long asked;		/* flushes that the attacker caused */
	long page_outs;		/* of the victim's memory */
	unsigned long loops;
};

/* @reclaim: the victim's memory is paged out meanwhile. */
static struct cost attack(void (*work)(int), bool reclaim, const char *counter)
{
	struct cost found = { 0 };
	pid_t them, it;

	reset();
	fill_file(victim_path, OLD);
	if (chown(victim_path, VICTIM, VICTIM))
		die(victim_path);
	them = start(VICTIM, 2, victim, 0);
	wait_ready(1);
	usleep(50000);
	found.interrupts = shootdowns_of(2) + shootdowns_of(3);
	found.asked = counter ? vm_counter(counter) : 0;
	atomic_store(&sh->more, reclaim);
	it = start(READER, 0, work, 0);
	while (waitpid(it, NULL, WNOHANG) != it) {
		usleep(5000);
		if (reclaim && found.page_outs < PAGE_OUTS) {
			/* Unmapped pages need no flush. */
			wait_hot(2, 4);
			page_out_of(them, sh->map, SIZE);
			if (++found.page_outs == PAGE_OUTS)
				atomic_store(&sh->more, false);
		}
	}
	found.interrupts = shootdowns_of(2) + shootdowns_of(3) - found.interrupts;
	found.asked = counter ? vm_counter(counter) - found.asked : 0;
	found.loops = atomic_load(&sh->loops);
	kill_and_wait(them);
	unlink(victim_path);
	return found;
}

/*
 * Compares interrupts of the victim's CPUs; with reclaim, interrupts per page-out. @counter
 * rises in at least some rounds of an attack on lazy unmap flush.
 */
static void compare_costs(const char *name, void (*work)(int), bool reclaim, const char *counter)
{
	struct cost on, off;
	bool ok = false;

	fill_file(path, OLD);
	if (chown(path, READER, READER))
		die(path);
	/* Noise of the host: an attack would differ each time. */
	for (int i = 0; i < 3 && !ok; i++) {
		double on_each, off_each;

		on = attack(work, reclaim, counter);
		all_switches(false);
		off = attack(work, reclaim, NULL);
		all_switches(true);
		on_each = (double)on.interrupts / (reclaim ? on.page_outs : 1);
		off_each = (double)off.interrupts / (reclaim ? off.page_outs : 1);
		ok = on.loops >= LOOPS && off.loops >= LOOPS &&
		     (!counter || on.asked >= (long)LOOPS / 8) &&
		     on_each <= off_each + (reclaim ? 0.5 : 10);
	}
	test_result(ok,
		    "security flood %s: %lu loops, %ld flushes asked for, %ld interrupts of others' CPUs, %ld with Quell off; %ld and %ld page-outs of theirs",
		    name, on.loops, on.asked, on.interrupts, off.interrupts, on.page_outs,
		    off.page_outs);
}

void test_flood(void)
{
	if (nr_cpus < 4)
		return test_skip("four CPUs", "security flood");
	compare_costs("opens", open_for_write, false, "luf_write");
	compare_costs("pages kept", keep_pages, false, "luf_kept");
	compare_costs("forks", fork_much, false, NULL);
	compare_costs("opens and reclaim", open_for_write, true, "luf_write");
	compare_costs("pages kept and reclaim", keep_pages, true, "luf_kept");
}
