/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lazy unmap flush: the hook outside of mm/. What it is for is at the head of
 * mm/luf.c.
 */
#ifndef _LINUX_LUF_H
#define _LINUX_LUF_H

struct inode;

#ifdef CONFIG_QUELL_LUF
void luf_write_access(struct inode *inode);
#else
static inline void luf_write_access(struct inode *inode)
{
}
#endif

#endif /* _LINUX_LUF_H */
