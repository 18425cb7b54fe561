/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Quell: run-time switches for mechanisms that make TLB shootdowns fewer or cheaper.
 *
 * Every mechanism has a static key, a directory /sys/kernel/mm/quell/NAME/ with the file
 * "enabled", and its name in the boot parameter quell=; mm/quell.c has the parameter's grammar.
 * The mechanism's own file registers it.
 */
#ifndef _LINUX_QUELL_H
#define _LINUX_QUELL_H

#include <linux/jump_label.h>
#include <linux/types.h>

struct attribute;
struct cpumask;

/**
 * struct quell_mechanism - one switch
 * @name:	its name in sysfs and in quell=
 * @key:	true while the mechanism is on
 * @linux_own:	Linux has this mechanism: quell=off leaves it on
 * @refused:	why it must stay off on this machine, a few words; or NULL
 * @attrs:	further sysfs files beside "enabled", NULL-terminated, or NULL
 * @off:	called after @key went from true to false; may sleep; or NULL
 * @list:	for mm/quell.c
 */
struct quell_mechanism {
	const char *name;
	struct static_key *key;
	bool linux_own;
	const char *refused;
	const struct attribute * const *attrs;
	void (*off)(void);
	struct list_head list;
};

#ifdef CONFIG_QUELL
int quell_register(struct quell_mechanism *m);
ssize_t quell_store_uint(const char *buf, size_t count, unsigned int *value,
			 unsigned int most);
#endif

#ifdef CONFIG_QUELL_UNMAP_BATCH
DECLARE_STATIC_KEY_TRUE(quell_unmap_batch_key);
#define quell_unmap_batch()	static_branch_likely(&quell_unmap_batch_key)
#else
#define quell_unmap_batch()	true
#endif

#ifdef CONFIG_QUELL_ZAP_BATCH
DECLARE_STATIC_KEY_TRUE(quell_zap_batch_key);
#define quell_zap_batch()	static_branch_likely(&quell_zap_batch_key)
#else
#define quell_zap_batch()	true
#endif

#ifdef CONFIG_QUELL_CONCURRENT
DECLARE_STATIC_KEY_TRUE(quell_concurrent_key);
#define quell_concurrent()	static_branch_likely(&quell_concurrent_key)
void quell_flush_serial(const struct cpumask *mask,
			bool (*cond)(int cpu, void *info),
			void (*func)(void *info), void *info);
#else
#define quell_concurrent()	true
static inline void quell_flush_serial(const struct cpumask *mask,
				      bool (*cond)(int cpu, void *info),
				      void (*func)(void *info), void *info)
{
}
#endif

#endif /* _LINUX_QUELL_H */
