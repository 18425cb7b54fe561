/* SPDX-License-Identifier: GPL-2.0-only */
/* Lazy unmap flush: the hooks outside of mm/. The head of mm/luf.c has the rules. */
#ifndef _LINUX_LUF_H
#define _LINUX_LUF_H

struct inode;

#ifdef CONFIG_QUELL_LUF
void luf_write_access(struct inode *inode);
void luf_exclude(struct inode *inode);
#else
static inline void luf_write_access(struct inode *inode)
{
}

static inline void luf_exclude(struct inode *inode)
{
}
#endif

#endif /* _LINUX_LUF_H */
