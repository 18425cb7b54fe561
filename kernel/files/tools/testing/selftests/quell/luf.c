// SPDX-License-Identifier: GPL-2.0-only
/* Tunables of lazy unmap flush: see luf.h. */
#include "luf.h"

const char *only = "";

bool wanted(const char *name)
{
	return !strncmp(name, only, strlen(only));
}

void need_luf(void)
{
	int on = get_switch("luf");

	if (on < 0)
		ksft_exit_skip("this kernel has no lazy unmap flush\n");
	if (!on)
		ksft_exit_skip("lazy unmap flush is switched off\n");
}

void drain_luf(void)
{
	write_text(LUF "drain", "1");
}

static char lot_pages[32];

void set_lot_pages(const char *pages)
{
	if (!lot_pages[0]) {
		save_setting(LOT_PAGES);
		read_text(LOT_PAGES, lot_pages, sizeof(lot_pages));
	}
	write_text(LOT_PAGES, pages);
}

void restore_lot_pages(void)
{
	write_text(LOT_PAGES, lot_pages);
}

static char stale_ms[32];
static pid_t stale_ms_owner;

void release_windows(void)
{
	/* A child's exit changes nothing. */
	if (stale_ms_owner != getpid())
		return;
	stale_ms_owner = 0;
	if (!try_write(STALE_MS, stale_ms))
		ksft_print_msg(STALE_MS " is not as it was, %s", stale_ms);
}

void hold_windows(void)
{
	static bool registered;

	if (!registered)
		atexit(release_windows);
	registered = true;
	read_text(STALE_MS, stale_ms, sizeof(stale_ms));
	stale_ms_owner = getpid();
	write_text(STALE_MS, "60000");
}

long luf_given_back(void)
{
	long parked = vm_pages("nr_luf_parked");

	return vm_counter("luf_park") - parked;
}
