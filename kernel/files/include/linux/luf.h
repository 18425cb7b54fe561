/* SPDX-License-Identifier: GPL-2.0-only */
/* Lazy unmap flush: the hooks outside of mm/. The head of mm/luf.c has the rules. */
#ifndef _LINUX_LUF_H
#define _LINUX_LUF_H

#include <linux/bits.h>

struct inode;

#ifdef CONFIG_QUELL_LUF
/*
 * In s_iflags: the file system keeps the promises of R3 in mm/luf.c. Linux's own flags fit into the
 * 32 bits of struct fs_context's s_iflags.
 */
#define SB_I_LUF	BIT(32)
/*
 * In flags of a mapping: luf_exclude() was called. Linux numbers its own flags upwards, and
 * mapping_set_folio_order_range() would clear bits from 32 on.
 */
#define AS_LUF_NEVER	31

void luf_write_access(struct inode *inode);
void luf_exclude(struct inode *inode);
#else
#define SB_I_LUF	0

static inline void luf_write_access(struct inode *inode)
{
}

static inline void luf_exclude(struct inode *inode)
{
}
#endif

#endif /* _LINUX_LUF_H */
