/* SPDX-License-Identifier: GPL-2.0-only */
/* KUnit tests of the deferred-free list: one of their own, with real folios. */
#include <kunit/test.h>

static int luf_lot_test_init(struct kunit *test)
{
	test->priv = kunit_kzalloc(test, sizeof(struct luf_lot), GFP_KERNEL);
	if (!test->priv)
		return -ENOMEM;
	luf_lot_init(test->priv);
	return 0;
}

/* A folio on @list; the tests free the folios that they take. */
static struct folio *luf_test_folio(struct kunit *test, struct list_head *list,
				    unsigned int order)
{
	struct folio *folio = folio_alloc(GFP_KERNEL, order);

	KUNIT_ASSERT_NOT_NULL(test, folio);
	list_add_tail(&folio->lru, list);
	return folio;
}

static void luf_test_put(struct list_head *list)
{
	struct folio *folio, *next;

	list_for_each_entry_safe(folio, next, list, lru) {
		list_del(&folio->lru);
		folio_put(folio);
	}
}

/* Returns whether the clock should move. */
static bool luf_test_park(struct luf_lot *lot, struct list_head *list, u64 label)
{
	unsigned long nr_pages;

	return luf_lot_add(lot, list, label, &nr_pages);
}

/* Take all folios of generations up to @done, and free them. Returns their pages. */
static unsigned long luf_test_take(struct kunit *test, struct luf_lot *lot, u64 done)
{
	unsigned long nr_pages, sum = 0;
	struct folio_batch fbatch;

	do {
		folio_batch_init(&fbatch);
		nr_pages = luf_lot_take(lot, done, &fbatch);
		sum += nr_pages;
		while (folio_batch_count(&fbatch)) {
			struct folio *folio = fbatch.folios[--fbatch.nr];

			KUNIT_EXPECT_NULL(test, folio->private);
			folio_put(folio);
		}
	} while (nr_pages);
	return sum;
}

/* Pages are counted in all and per zone, in base pages. */
static void luf_lot_count_test(struct kunit *test)
{
	struct luf_lot *lot = test->priv;
	unsigned long sum = 0;
	LIST_HEAD(list);
	int i;

	luf_test_folio(test, &list, 0);
	luf_test_folio(test, &list, 2);
	luf_test_park(lot, &list, 1);
	KUNIT_EXPECT_TRUE(test, list_empty(&list));
	KUNIT_EXPECT_EQ(test, lot->nr_pages, 5);
	for (i = 0; i < MAX_NR_ZONES; i++)
		sum += lot->nr_zone[i];
	KUNIT_EXPECT_EQ(test, sum, 5);

	KUNIT_EXPECT_EQ(test, luf_test_take(test, lot, 1), 5);
	KUNIT_EXPECT_EQ(test, lot->nr_pages, 0);
	for (i = 0; i < MAX_NR_ZONES; i++)
		KUNIT_EXPECT_EQ(test, lot->nr_zone[i], 0);
}

/* The clock moves with every 31 pages, however many are parked at once. */
static void luf_lot_tick_test(struct kunit *test)
{
	struct luf_lot *lot = test->priv;
	LIST_HEAD(list);
	int i;

	for (i = 1; i <= 2 * FOLIO_BATCH_SIZE; i++) {
		luf_test_folio(test, &list, 0);
		KUNIT_EXPECT_EQ(test, luf_test_park(lot, &list, 1),
				i % FOLIO_BATCH_SIZE == 0);
	}
	luf_test_folio(test, &list, 6);
	KUNIT_EXPECT_TRUE(test, luf_test_park(lot, &list, 1));
	KUNIT_EXPECT_EQ(test, luf_test_take(test, lot, 1), 2 * FOLIO_BATCH_SIZE + 64);
}

/* References are dropped when their generations are complete, in any order. */
static void luf_lot_held_test(struct kunit *test)
{
	struct luf_lot *lot = test->priv;
	struct folio *folios[3];
	LIST_HEAD(list);
	int i;

	for (i = 0; i < 3; i++) {
		folios[i] = luf_test_folio(test, &list, 0);
		folio_get(folios[i]);
		lot->held[i].folio = folios[i];
		lot->held[i].label = 7 - i;
	}
	lot->nr_held = 3;
	luf_lot_put_held(lot, 4);
	KUNIT_EXPECT_EQ(test, lot->nr_held, 3);
	luf_lot_put_held(lot, 6);
	KUNIT_EXPECT_EQ(test, lot->nr_held, 1);
	KUNIT_EXPECT_PTR_EQ(test, lot->held[0].folio, folios[0]);
	for (i = 0; i < 3; i++)
		KUNIT_EXPECT_EQ(test, folio_ref_count(folios[i]), i ? 1 : 2);
	luf_lot_put_held(lot, 7);
	KUNIT_EXPECT_EQ(test, lot->nr_held, 0);
	luf_test_put(&list);
}

/* A migration that wants the frames drops all references, complete or not; others drop none. */
static void luf_let_go_test(struct kunit *test)
{
	struct folio *folio;
	struct luf_lot *lot;
	bool held = false;
	LIST_HEAD(list);
	int i;

	folio = luf_test_folio(test, &list, 0);
	lot = luf_lots[folio_nid(folio)];
	/* Another drain may be faster. */
	for (i = 0; i < 100 && !held; i++) {
		luf_drain_all();
		folio_get(folio);
		spin_lock(&lot->lock);
		lot->held[lot->nr_held].folio = folio;
		lot->held[lot->nr_held].label = luf_now();
		WRITE_ONCE(lot->nr_held, lot->nr_held + 1);
		spin_unlock(&lot->lock);
		luf_let_go(MR_COMPACTION);
		held = folio_ref_count(folio) == 2;
	}
	KUNIT_EXPECT_TRUE(test, held);
	luf_let_go(MR_LONGTERM_PIN);
	KUNIT_EXPECT_EQ(test, folio_ref_count(folio), 1);
	luf_test_put(&list);
}

/* No folio leaves before its generation is complete; the rest stays. */
static void luf_lot_label_test(struct kunit *test)
{
	struct luf_lot *lot = test->priv;
	struct folio_batch fbatch;
	struct folio *old;
	LIST_HEAD(list);

	old = luf_test_folio(test, &list, 0);
	luf_test_park(lot, &list, 3);
	luf_test_folio(test, &list, 0);
	luf_test_park(lot, &list, 5);

	folio_batch_init(&fbatch);
	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 2, &fbatch), 0);
	KUNIT_EXPECT_EQ(test, folio_batch_count(&fbatch), 0);
	KUNIT_EXPECT_EQ(test, luf_lot_take(lot, 4, &fbatch), 1);
	KUNIT_EXPECT_PTR_EQ(test, fbatch.folios[0], old);
	folio_put(old);
	KUNIT_EXPECT_EQ(test, lot->nr_pages, 1);
	KUNIT_EXPECT_EQ(test, luf_test_take(test, lot, 5), 1);
	KUNIT_EXPECT_EQ(test, luf_test_take(test, lot, 5), 0);
}

/* A folio that is parked late with an older generation waits behind a newer one. */
static void luf_lot_order_test(struct kunit *test)
{
	struct luf_lot *lot = test->priv;
	LIST_HEAD(list);

	luf_test_folio(test, &list, 0);
	luf_test_park(lot, &list, 8);
	luf_test_folio(test, &list, 0);
	luf_test_park(lot, &list, 7);
	KUNIT_EXPECT_EQ(test, luf_test_take(test, lot, 7), 0);
	KUNIT_EXPECT_EQ(test, luf_test_take(test, lot, 8), 2);
}

/*
 * An allocation that may not sleep releases nothing. The last look before the OOM killer releases
 * all, although it has no __GFP_DIRECT_RECLAIM either.
 */
static void luf_lot_oom_test(struct kunit *test)
{
	unsigned long parked = 0, left = 1;
	struct folio *folio;
	struct zone *zone;
	int i;

	/* The timer may be faster. */
	for (i = 0; i < 100 && parked != 1; i++) {
		LIST_HEAD(list);

		folio = luf_test_folio(test, &list, 0);
		zone = folio_zone(folio);
		luf_drain_all();
		KUNIT_ASSERT_TRUE(test, folio_ref_freeze(folio, 1));
		luf_test_park(luf_lots[folio_nid(folio)], &list, luf_now());
		luf_drain_for_alloc(zone, 0, 0, min_wmark_pages(zone), MAX_NR_ZONES - 1,
				    ALLOC_WMARK_MIN);
		parked = luf_zone_parked(zone);
		luf_drain_for_alloc(zone, 0, 0, high_wmark_pages(zone), MAX_NR_ZONES - 1,
				    ALLOC_WMARK_HIGH);
		left = luf_zone_parked(zone);
	}
	luf_drain_all();
	KUNIT_EXPECT_EQ(test, parked, 1);
	KUNIT_EXPECT_EQ(test, left, 0);
}

u64 luf_test_newest(void);

/* Park @nr pages of @pgdat, of a generation that has not aged. Returns their zone. */
static struct zone *luf_test_wait(struct kunit *test, struct pglist_data *pgdat, unsigned long nr)
{
	struct folio *folio = NULL;
	LIST_HEAD(list);

	while (nr--) {
		folio = __folio_alloc_node(GFP_KERNEL | __GFP_THISNODE, 0, pgdat->node_id);
		KUNIT_ASSERT_NOT_NULL(test, folio);
		KUNIT_ASSERT_TRUE(test, folio_ref_freeze(folio, 1));
		list_add_tail(&folio->lru, &list);
	}
	luf_test_park(luf_lots[pgdat->node_id], &list, luf_test_newest());
	return folio_zone(folio);
}

/*
 * With free pages above low kswapd keeps pages that need a flush. Below low it keeps fewer than a
 * piece. No zone has a block of the order of this test, so all are below.
 */
static void luf_lot_kswapd_test(struct kunit *test)
{
	struct pglist_data *pgdat = NODE_DATA(first_memory_node);
	unsigned long piece, few = 0, kept = 0, left = 1;
	int nid = pgdat->node_id, i;

	luf_node_limit(pgdat, &piece);
	/* The timer may be faster, and moves the clock. */
	for (i = 0; i < 100 && (few != piece - 1 || kept != piece); i++) {
		luf_drain_all();
		luf_test_wait(test, pgdat, piece - 1);
		luf_drain_for_kswapd(pgdat, NR_PAGE_ORDERS, MAX_NR_ZONES - 1);
		few = luf_parked(nid);
		luf_test_wait(test, pgdat, 1);
		luf_drain_for_kswapd(pgdat, 0, MAX_NR_ZONES - 1);
		kept = luf_parked(nid);
		luf_drain_for_kswapd(pgdat, NR_PAGE_ORDERS, MAX_NR_ZONES - 1);
		left = luf_parked(nid);
	}
	KUNIT_EXPECT_EQ(test, few, piece - 1);
	KUNIT_EXPECT_EQ(test, kept, piece);
	KUNIT_EXPECT_EQ(test, left, 0);
}

/* Waiting pages count for kswapd's target, and not for the low watermark. */
static void luf_lot_balanced_test(struct kunit *test)
{
	struct pglist_data *pgdat = NODE_DATA(first_memory_node);
	bool with = false, more = true, below = true;
	unsigned long free;
	struct zone *zone;
	int i;

	for (i = 0; i < 100 && (!with || more); i++) {
		luf_drain_all();
		zone = luf_test_wait(test, pgdat, 1024);
		free = luf_zone_free(zone);
		with = luf_balanced(zone, 0, free + 512, zone_idx(zone));
		more = luf_balanced(zone, 0, free + 1536, zone_idx(zone));
		below = luf_balanced(zone, NR_PAGE_ORDERS, free + 512, zone_idx(zone));
	}
	luf_drain_all();
	KUNIT_EXPECT_TRUE(test, with);
	KUNIT_EXPECT_FALSE(test, more);
	KUNIT_EXPECT_FALSE(test, below);
	KUNIT_EXPECT_FALSE(test, luf_balanced(zone, 0, free, zone_idx(zone)));
}

/* The limits of a node, and of kswapd while free pages are short, follow the watermarks. */
static void luf_lot_limit_test(struct kunit *test)
{
	struct pglist_data *pgdat = NODE_DATA(first_memory_node);
	unsigned long limit = 0, piece, saved = luf_lot_pages;
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++) {
		struct zone *zone = &pgdat->node_zones[i];

		limit += high_wmark_pages(zone) - low_wmark_pages(zone);
	}
	luf_lot_pages = 2048;
	KUNIT_EXPECT_EQ(test, luf_node_limit(pgdat, &piece), 2048);
	luf_lot_pages = ULONG_MAX;
	KUNIT_EXPECT_EQ(test, luf_node_limit(pgdat, &piece), 16384);
	luf_lot_pages = 0;
	KUNIT_EXPECT_GE(test, luf_node_limit(pgdat, &piece), min(limit, 16384));
	KUNIT_EXPECT_LE(test, luf_node_limit(pgdat, &piece), 16384);
	luf_lot_pages = saved;
	KUNIT_EXPECT_EQ(test, piece, clamp(limit / 4, 128, 4096));
	KUNIT_EXPECT_EQ(test, luf_worth(53613), 837);
	KUNIT_EXPECT_EQ(test, luf_worth(1 << 20), 1024);
}

static struct kunit_case luf_lot_cases[] = {
	KUNIT_CASE(luf_lot_count_test),
	KUNIT_CASE(luf_lot_tick_test),
	KUNIT_CASE(luf_lot_held_test),
	KUNIT_CASE(luf_let_go_test),
	KUNIT_CASE(luf_lot_label_test),
	KUNIT_CASE(luf_lot_order_test),
	KUNIT_CASE(luf_lot_oom_test),
	KUNIT_CASE(luf_lot_kswapd_test),
	KUNIT_CASE(luf_lot_balanced_test),
	KUNIT_CASE(luf_lot_limit_test),
	{}
};

static struct kunit_suite luf_lot_suite = {
	.name = "luf_lot",
	.init = luf_lot_test_init,
	.test_cases = luf_lot_cases,
};

kunit_test_suite(luf_lot_suite);
