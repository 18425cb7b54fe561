// SPDX-License-Identifier: GPL-2.0-only
/*
 * Mutation testing: each mutation disables one step that the safety argument of a mechanism needs,
 * to show that a test fails without it. Memory is corrupted then, and the kernel is tainted
 * (TAINT_TEST). Parameters, below /sys/module/quell_mutants/parameters/ or
 * quell_mutants.NAME=VALUE at boot:
 *
 *	mutant		the mutation that is on, default "none"
 *	mutants		the names of all; read only
 *
 * The list is in include/linux/quell_mutants.h.
 */
#include <linux/init.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/panic.h>
#include <linux/quell_mutants.h>
#include <linux/string.h>
#include <linux/sysfs.h>

enum quell_mutant quell_mutant_on;

static const char * const quell_mutant_names[] = {
	"none",
#define QUELL_MUTANT_NAME(name)	#name,
	QUELL_MUTANTS(QUELL_MUTANT_NAME)
};

static int quell_mutant_set(const char *val, const struct kernel_param *kp)
{
	int i = sysfs_match_string(quell_mutant_names, val);

	if (i < 0)
		return i;
	if (i) {
		/* Memory may be corrupted from now on, also after the mutation. */
		add_taint(TAINT_TEST, LOCKDEP_STILL_OK);
		pr_warn("quell_mutants: the mutation %s is on\n",
			quell_mutant_names[i]);
	}
	WRITE_ONCE(quell_mutant_on, i);
	return 0;
}

static int quell_mutant_get(char *buf, const struct kernel_param *kp)
{
	return sysfs_emit(buf, "%s\n", quell_mutant_names[quell_mutant_on]);
}

static int quell_mutants_get(char *buf, const struct kernel_param *kp)
{
	int i, at = 0;

	for (i = QUELL_MUTANT_NONE + 1; i < QUELL_NR_MUTANTS; i++)
		at += sysfs_emit_at(buf, at, "%s\n", quell_mutant_names[i]);
	return at;
}

static const struct kernel_param_ops quell_mutant_ops = {
	.set = quell_mutant_set,
	.get = quell_mutant_get,
};

static const struct kernel_param_ops quell_mutants_ops = {
	.get = quell_mutants_get,
};

#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "quell_mutants."
module_param_cb(mutant, &quell_mutant_ops, NULL, 0600);
module_param_cb(mutants, &quell_mutants_ops, NULL, 0444);
