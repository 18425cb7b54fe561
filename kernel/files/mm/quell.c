// SPDX-License-Identifier: GPL-2.0-only
/*
 * Quell's switches: /sys/kernel/mm/quell/NAME/enabled and quell=.
 *
 * quell= takes a comma list, read from left to right:
 *
 *	on	every mechanism
 *	off	none of the mechanisms that Quell adds, all that Linux has
 *	NAME	this mechanism; as the first word it means off,NAME
 *	-NAME	not this mechanism, Linux's own ones included
 *
 * The list begins from on with CONFIG_QUELL_DEFAULT_ON, from off without it. A word that is none
 * of these is ignored, with a warning: a misspelled word switches nothing off.
 *
 * So quell=luf is stock Linux with lazy unmap flush.
 */
#define pr_fmt(fmt) "quell: " fmt

#include <linux/init.h>
#include <linux/kconfig.h>
#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/quell.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>

static LIST_HEAD(quell_mechanisms);
/* Protects quell_mechanisms and every change of a key. */
static DEFINE_MUTEX(quell_mutex);
static struct kobject *quell_kobj;
static char *quell_param __initdata = "";

struct quell_dir {
	struct kobject kobj;
	struct quell_mechanism *mechanism;
};

struct quell_word {
	const char *start;
	int len;
	bool minus;
};

static bool __init quell_word_is(const struct quell_word *word, const char *text)
{
	return word->len == strlen(text) && !strncmp(word->start, text, word->len);
}

/* Take the first word off @param. Returns false if there is none. */
static bool __init quell_next_word(const char **param, struct quell_word *word)
{
	const char *end = strchrnul(*param, ',');

	if (!**param)
		return false;
	word->minus = **param == '-';
	word->start = *param + word->minus;
	word->len = end - word->start;
	*param = *end ? end + 1 : end;
	return true;
}

/* Is @word "on", "off", or the name of one of the mechanisms in @all? */
static bool __init quell_word_known(const struct quell_word *word,
				    const struct list_head *all)
{
	struct quell_mechanism *m;

	if (!word->minus && (quell_word_is(word, "on") || quell_word_is(word, "off")))
		return true;
	list_for_each_entry(m, all, list) {
		if (quell_word_is(word, m->name))
			return true;
	}
	return false;
}

/* Does @param switch @m on? Words that name no mechanism in @all are ignored. */
static bool __init quell_param_wants(const char *param,
				     const struct quell_mechanism *m,
				     const struct list_head *all)
{
	bool wanted = m->linux_own || IS_ENABLED(CONFIG_QUELL_DEFAULT_ON);
	struct quell_word word;
	bool first = true;

	while (quell_next_word(&param, &word)) {
		if (!quell_word_known(&word, all))
			continue;
		if (quell_word_is(&word, "on"))
			wanted = true;
		else if (quell_word_is(&word, "off") || (first && !word.minus))
			wanted = m->linux_own;
		if (quell_word_is(&word, m->name))
			wanted = !word.minus;
		first = false;
	}
	return wanted;
}

static int __init quell_setup(char *str)
{
	if (str)
		quell_param = str;
	return 0;
}
early_param("quell", quell_setup);

static int quell_set(struct quell_mechanism *m, bool on)
{
	lockdep_assert_held(&quell_mutex);
	if (static_key_enabled(m->key) == on)
		return 0;
	if (on && m->refused)
		return -EOPNOTSUPP;
	if (on) {
		static_key_enable(m->key);
	} else {
		static_key_disable(m->key);
		if (m->off)
			m->off();
	}
	return 0;
}

static ssize_t enabled_show(struct kobject *kobj, struct kobj_attribute *attr,
			    char *buf)
{
	struct quell_mechanism *m = container_of(kobj, struct quell_dir, kobj)->mechanism;

	if (m->refused)
		return sysfs_emit(buf, "0 (%s)\n", m->refused);
	return sysfs_emit(buf, "%d\n", static_key_enabled(m->key));
}

static ssize_t enabled_store(struct kobject *kobj, struct kobj_attribute *attr,
			     const char *buf, size_t count)
{
	struct quell_dir *dir = container_of(kobj, struct quell_dir, kobj);
	bool on;
	int err;

	err = kstrtobool(buf, &on);
	if (err)
		return err;

	mutex_lock(&quell_mutex);
	err = quell_set(dir->mechanism, on);
	mutex_unlock(&quell_mutex);
	return err ?: count;
}

static struct kobj_attribute quell_enabled_attr = __ATTR_RW(enabled);

static struct attribute *quell_dir_attrs[] = {
	&quell_enabled_attr.attr,
	NULL,
};
ATTRIBUTE_GROUPS(quell_dir);

static void quell_dir_release(struct kobject *kobj)
{
	kfree(container_of(kobj, struct quell_dir, kobj));
}

static const struct kobj_type quell_dir_ktype = {
	.release	= quell_dir_release,
	.sysfs_ops	= &kobj_sysfs_ops,
	.default_groups	= quell_dir_groups,
};

/**
 * quell_register - give a mechanism its switch
 * @m: the mechanism; never freed
 *
 * Makes @m's sysfs directory. quell_apply_param() sets @m's key after all subsys_initcalls, so call
 * this from one; may sleep.
 *
 * Return: 0, or -ENOMEM or an error of sysfs. The key will be set in any case.
 */
int __init quell_register(struct quell_mechanism *m)
{
	struct quell_dir *dir;
	int err;

	mutex_lock(&quell_mutex);
	list_add_tail(&m->list, &quell_mechanisms);
	if (!quell_kobj)
		quell_kobj = kobject_create_and_add("quell", mm_kobj);
	mutex_unlock(&quell_mutex);

	dir = kzalloc_obj(*dir);
	if (!quell_kobj || !dir) {
		kfree(dir);
		return -ENOMEM;
	}
	dir->mechanism = m;
	err = kobject_init_and_add(&dir->kobj, &quell_dir_ktype, quell_kobj,
				   "%s", m->name);
	if (!err && m->attrs)
		err = sysfs_create_files(&dir->kobj, m->attrs);
	if (err)
		kobject_put(&dir->kobj);
	return err;
}

/* Set all keys. A word of quell= may name any mechanism, so all have to be registered. */
static int __init quell_apply_param(void)
{
	const char *param = quell_param;
	struct quell_mechanism *m;
	struct quell_word word;

	mutex_lock(&quell_mutex);
	while (quell_next_word(&param, &word)) {
		if (!quell_word_known(&word, &quell_mechanisms))
			pr_warn("quell=: no mechanism is called '%.*s'; the word is ignored\n",
				word.len, word.start);
	}
	list_for_each_entry(m, &quell_mechanisms, list) {
		if (quell_set(m, quell_param_wants(quell_param, m, &quell_mechanisms)))
			pr_info("%s stays off: %s\n", m->name, m->refused);
	}
	mutex_unlock(&quell_mutex);
	return 0;
}
subsys_initcall_sync(quell_apply_param);

/**
 * quell_store_uint - store the value that was written to a sysfs file of a mechanism
 * @buf:	a number, decimal, octal or hexadecimal
 * @count:	bytes in @buf
 * @value:	where to; read with READ_ONCE()
 * @most:	the greatest that is allowed
 *
 * Return: @count, -EINVAL or -ERANGE.
 */
ssize_t quell_store_uint(const char *buf, size_t count, unsigned int *value,
			 unsigned int most)
{
	unsigned int new;
	int err;

	err = kstrtouint(buf, 0, &new);
	if (err)
		return err;
	if (new > most)
		return -EINVAL;
	WRITE_ONCE(*value, new);
	return count;
}

#ifdef CONFIG_QUELL_KUNIT_TEST
#include "tests/quell-kunit.h"
#endif
