/* SPDX-License-Identifier: GPL-2.0-only */
/* KUnit tests of quell=, as parsed by quell_param_wants(). */
#include <kunit/test.h>

static void __init quell_param_test(struct kunit *test)
{
	static const struct {
		const char *param;
		bool added;	/* is "luf", which Quell adds, on? */
		bool own;	/* is "unmap_batch", which Linux has, on? */
	} cases[] = {
		{ "on",				true,	true },
		{ "",				true,	true },
		/* off is stock Linux, not a slower one */
		{ "off",			false,	true },
		{ "luf",			true,	true },
		{ "early_ack",			false,	true },
		{ "-luf",			false,	true },
		{ "-unmap_batch",		true,	false },
		{ "off,-unmap_batch",		false,	false },
		{ "off,-unmap_batch,luf",	true,	false },
		{ "-luf,luf",			true,	true },
		{ "luf,-luf",			false,	true },
		/* names are whole words */
		{ "off,lu",			false,	true },
		{ "off,luff",			false,	true },
	};
	int i;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *param = cases[i].param;

		KUNIT_EXPECT_EQ_MSG(test, cases[i].added,
				    quell_param_wants(param, "luf", false),
				    "quell=%s, luf", param);
		KUNIT_EXPECT_EQ_MSG(test, cases[i].own,
				    quell_param_wants(param, "unmap_batch", true),
				    "quell=%s, unmap_batch", param);
	}
}

/* A refused mechanism stays off; to switch it off again is no error. */
static void __init quell_refused_test(struct kunit *test)
{
	struct static_key key = STATIC_KEY_INIT_FALSE;
	struct quell_mechanism m = { .name = "refused", .key = &key, .refused = "no reason" };

	mutex_lock(&quell_mutex);
	KUNIT_EXPECT_EQ(test, quell_set(&m, true), -EOPNOTSUPP);
	KUNIT_EXPECT_EQ(test, quell_set(&m, false), 0);
	mutex_unlock(&quell_mutex);
	KUNIT_EXPECT_FALSE(test, static_key_enabled(&key));
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
