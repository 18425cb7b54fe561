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
	save_setting(LOT_PAGES);
	if (!lot_pages[0])
		read_text(LOT_PAGES, lot_pages, sizeof(lot_pages));
	write_text(LOT_PAGES, pages);
}

void restore_lot_pages(void)
{
	write_text(LOT_PAGES, lot_pages);
}

static char stale_ms[32];

void hold_windows(void)
{
	save_setting(STALE_MS);
	read_text(STALE_MS, stale_ms, sizeof(stale_ms));
	write_text(STALE_MS, "60000");
}

void release_windows(void)
{
	write_text(STALE_MS, stale_ms);
}

long luf_given_back(void)
{
	long parked = vm_pages("nr_luf_parked");

	return vm_counter("luf_park") - parked;
}
