/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What of mm/folio_order.c is used outside of mm/: fork, and /proc/PID/status.
 */
#ifndef _LINUX_FOLIO_ORDER_H
#define _LINUX_FOLIO_ORDER_H

struct mm_struct;
struct seq_file;

#ifdef CONFIG_QUELL_FOLIO_ORDER
void folio_order_dup(struct mm_struct *mm, struct mm_struct *oldmm);
void folio_order_status(struct seq_file *m, struct mm_struct *mm);
#else
static inline void folio_order_dup(struct mm_struct *mm, struct mm_struct *oldmm)
{
}

static inline void folio_order_status(struct seq_file *m, struct mm_struct *mm)
{
}
#endif

#endif /* _LINUX_FOLIO_ORDER_H */
