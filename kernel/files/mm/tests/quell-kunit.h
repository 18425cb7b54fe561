/* SPDX-License-Identifier: GPL-2.0-only */
/* KUnit tests of quell=, as parsed by quell_param_wants(). */
#include <kunit/test.h>

#define QUELL_DEFAULT	IS_ENABLED(CONFIG_QUELL_DEFAULT_ON)

static void __init quell_param_test(struct kunit *test)
{
	struct quell_mechanism luf = { .name = "luf" };
	struct quell_mechanism early_ack = { .name = "early_ack" };
	struct quell_mechanism unmap_batch = { .name = "unmap_batch", .linux_own = true };
	static const struct {
		const char *param;
		bool added;	/* is "luf", which Quell adds, on? */
		bool own;	/* is "unmap_batch", which Linux has, on? */
	} cases[] = {
		{ "on",				true,	true },
		{ "",				QUELL_DEFAULT, true },
		/* off is stock Linux, not a slower one */
		{ "off",			false,	true },
		{ "luf",			true,	true },
		{ "early_ack",			false,	true },
		{ "-luf",			false,	true },
		{ "-early_ack",			QUELL_DEFAULT, true },
		{ "-unmap_batch",		QUELL_DEFAULT, false },
		{ "on,-unmap_batch",		true,	false },
		{ "off,-unmap_batch",		false,	false },
		{ "off,-unmap_batch,luf",	true,	false },
		{ "-luf,luf",			true,	true },
		{ "luf,-luf",			false,	true },
		{ "early_ack,luf",		true,	true },
		{ "luf,early_ack",		true,	true },
		/* names are whole words */
		{ "off,lu",			false,	true },
		{ "off,luff",			false,	true },
		/* an unknown word changes nothing, as the first one either */
		{ "luff",			QUELL_DEFAULT, true },
		{ "lu",				QUELL_DEFAULT, true },
		{ "luff,luf",			true,	true },
		{ "luff,early_ack",		false,	true },
		{ "luff,-luf",			false,	true },
		{ "on,luff",			true,	true },
		{ ",off",			false,	true },
		/* on and off are whole words, too, and have no minus */
		{ "once",			QUELL_DEFAULT, true },
		{ "offline",			QUELL_DEFAULT, true },
		{ "off,once",			false,	true },
		{ "on,offline",			true,	true },
		{ "o",				QUELL_DEFAULT, true },
		{ "-on",			QUELL_DEFAULT, true },
		{ "off,-on",			false,	true },
		{ "on,-off",			true,	true },
	};
	LIST_HEAD(all);
	int i;

	list_add_tail(&luf.list, &all);
	list_add_tail(&early_ack.list, &all);
	list_add_tail(&unmap_batch.list, &all);
	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *param = cases[i].param;

		KUNIT_EXPECT_EQ_MSG(test, cases[i].added,
				    quell_param_wants(param, &luf, &all),
				    "quell=%s, luf", param);
		KUNIT_EXPECT_EQ_MSG(test, cases[i].own,
				    quell_param_wants(param, &unmap_batch, &all),
				    "quell=%s, unmap_batch", param);
	}
}

/* A refused mechanism stays off, and `enabled` says why; to switch it off again is no error. */
static void __init quell_refused_test(struct kunit *test)
{
	struct static_key key = STATIC_KEY_INIT_FALSE;
	struct quell_mechanism m = { .name = "refused", .key = &key, .refused = "no reason" };
	struct quell_dir dir = { .mechanism = &m };
	char *page = (char *)get_zeroed_page(GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, page);
	KUNIT_EXPECT_EQ(test, enabled_store(&dir.kobj, NULL, "1", 1), -EOPNOTSUPP);
	KUNIT_EXPECT_EQ(test, enabled_store(&dir.kobj, NULL, "0", 1), 1);
	KUNIT_EXPECT_GT(test, enabled_show(&dir.kobj, NULL, page), 0);
	KUNIT_EXPECT_STREQ(test, page, "0 (no reason)\n");
	KUNIT_EXPECT_FALSE(test, static_key_enabled(&key));
	free_page((unsigned long)page);
}

static struct kunit_case __refdata quell_cases[] = {
	KUNIT_CASE(quell_param_test),
	KUNIT_CASE(quell_refused_test),
	{}
};

static struct kunit_suite quell_suite = {
	.name = "quell",
	.test_cases = quell_cases,
};
kunit_test_init_section_suite(quell_suite);
