/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit tests of early acknowledgment: what arrives is what was sent, several
 * requests become one flush, and while it is owed nobody gets at user memory.
 */
#include <kunit/test.h>
#include <linux/mman.h>
#include <linux/stacktrace.h>
#include <linux/uaccess.h>

#define EARLY_ACK_TEXT	"text"

/* An mm that no CPU has loaded, as requests for such need nothing. */
static struct mm_struct early_ack_mm;

/* What the target makes of @sent. */
static struct flush_tlb_info early_ack_travel(const struct flush_tlb_info *sent)
{
	struct early_ack_request request;
	struct flush_tlb_info received;

	early_ack_put(&request, sent);
	early_ack_unpack(&received, &request);
	return received;
}

static void early_ack_same(struct kunit *test, const struct flush_tlb_info *sent)
{
	struct flush_tlb_info received = early_ack_travel(sent);

	KUNIT_EXPECT_PTR_EQ(test, received.mm, sent->mm);
	KUNIT_EXPECT_EQ(test, received.start, sent->start);
	KUNIT_EXPECT_EQ(test, received.end, sent->end);
	KUNIT_EXPECT_EQ(test, received.new_tlb_gen, sent->new_tlb_gen);
	KUNIT_EXPECT_EQ(test, received.stride_shift, sent->stride_shift);
	KUNIT_EXPECT_FALSE(test, received.freed_tables);
	/* So that it is not taken for a flush of the target's own. */
	KUNIT_EXPECT_GE(test, received.initiating_cpu, nr_cpu_ids);
}

/* A range of small pages, of huge ones, all of an mm, and all mms. */
static void early_ack_travel_test(struct kunit *test)
{
	struct flush_tlb_info range = {
		.mm		= &early_ack_mm,
		.start		= 0x7f0012345000,
		.end		= 0x7f0012348000,
		.new_tlb_gen	= U64_MAX,
		.stride_shift	= PAGE_SHIFT,
	};
	struct flush_tlb_info huge = range;
	struct flush_tlb_info all = {
		.mm		= &early_ack_mm,
		.end		= TLB_FLUSH_ALL,
		.new_tlb_gen	= 7,
		.stride_shift	= PUD_SHIFT,
	};
	struct flush_tlb_info batch = { .end = TLB_FLUSH_ALL };

	huge.start = 0x7f0000000000;
	huge.end = huge.start + 4 * PMD_SIZE;
	huge.stride_shift = PMD_SHIFT;
	early_ack_same(test, &range);
	early_ack_same(test, &huge);
	early_ack_same(test, &all);
	early_ack_same(test, &batch);
}

/* An address within a page is that page. */
static void early_ack_round_test(struct kunit *test)
{
	struct flush_tlb_info sent = {
		.mm		= &early_ack_mm,
		.start		= 0x7f0012345678,
		.end		= 0x7f0012346678,
		.new_tlb_gen	= 7,
		.stride_shift	= PAGE_SHIFT,
	};
	struct flush_tlb_info received = early_ack_travel(&sent);

	KUNIT_EXPECT_EQ(test, received.start, 0x7f0012345000);
	KUNIT_EXPECT_EQ(test, received.end, sent.end);
	KUNIT_EXPECT_EQ(test, received.stride_shift, PAGE_SHIFT);
}

/* One is carried out as it came, two as a flush of all that is missing. */
static void early_ack_merge_test(struct kunit *test)
{
	struct early_ack_request request = {
		.mm		= &early_ack_mm,
		.start		= 0x7f0012345000 | PAGE_SHIFT,
		.end		= 0x7f0012346000,
		.new_tlb_gen	= 7,
	};
	struct early_ack_work one, two;
	bool owed_first, owed_last;
	struct flush_tlb_info info;

	local_irq_disable();
	two.nr = 0;
	early_ack_take(&two, &request);
	one = two;
	owed_first = early_ack_owes();
	request.new_tlb_gen++;
	early_ack_take(&two, &request);
	info = two.info;
	early_ack_carry_out(&two);
	owed_last = early_ack_owes();
	local_irq_enable();

	KUNIT_EXPECT_TRUE(test, owed_first);
	KUNIT_EXPECT_FALSE(test, owed_last);
	KUNIT_EXPECT_EQ(test, one.nr, 1);
	KUNIT_EXPECT_PTR_EQ(test, one.info.mm, &early_ack_mm);
	KUNIT_EXPECT_EQ(test, one.info.end, 0x7f0012346000);
	KUNIT_EXPECT_EQ(test, one.info.new_tlb_gen, 7);
	KUNIT_EXPECT_EQ(test, two.nr, 2);
	KUNIT_EXPECT_NULL(test, info.mm);
	KUNIT_EXPECT_EQ(test, info.start, 0);
	KUNIT_EXPECT_EQ(test, info.end, TLB_FLUSH_ALL);
	KUNIT_EXPECT_EQ(test, info.new_tlb_gen, TLB_GENERATION_INVALID);
}

struct early_ack_tried {
	bool okay;
	long copied;
	long written;
	long copied_nmi;
	long string;
	long length;
};

/* What is there for whoever interrupts a window; @owed: is this one? */
static void early_ack_try(char __user *text, bool owed, struct early_ack_tried *t)
{
	char buf[sizeof(EARLY_ACK_TEXT)];

	local_irq_disable();
	this_cpu_write(early_ack_owed, owed);
	t->okay = nmi_uaccess_okay();
	t->copied = copy_from_user_nofault(buf, text, sizeof(buf));
	t->written = copy_to_user_nofault(text, EARLY_ACK_TEXT, sizeof(buf));
	t->copied_nmi = copy_from_user_nmi(buf, text, sizeof(buf));
	t->string = strncpy_from_user_nofault(buf, text, sizeof(buf));
	t->length = strnlen_user_nofault(text, sizeof(buf));
	this_cpu_write(early_ack_owed, false);
	local_irq_enable();
}

static void early_ack_owed_test(struct kunit *test)
{
	const long size = sizeof(EARLY_ACK_TEXT);
	struct early_ack_tried t;
	unsigned long address;
	char __user *text;

	address = kunit_vm_mmap(test, NULL, 0, PAGE_SIZE, PROT_READ | PROT_WRITE,
				MAP_ANONYMOUS | MAP_PRIVATE, 0);
	KUNIT_ASSERT_NE(test, address, 0);
	KUNIT_ASSERT_FALSE(test, IS_ERR_VALUE(address));
	text = (char __user *)address;
	KUNIT_ASSERT_EQ(test, copy_to_user(text, EARLY_ACK_TEXT, size), 0);

	early_ack_try(text, false, &t);
	KUNIT_EXPECT_TRUE(test, t.okay);
	KUNIT_EXPECT_EQ(test, t.copied, 0);
	KUNIT_EXPECT_EQ(test, t.written, 0);
	KUNIT_EXPECT_EQ(test, t.copied_nmi, 0);
	KUNIT_EXPECT_EQ(test, t.string, size);
	KUNIT_EXPECT_EQ(test, t.length, size);

	early_ack_try(text, true, &t);
	KUNIT_EXPECT_FALSE(test, t.okay);
	KUNIT_EXPECT_EQ(test, t.copied, -EFAULT);
	KUNIT_EXPECT_EQ(test, t.written, -EFAULT);
	KUNIT_EXPECT_EQ(test, t.copied_nmi, size);
	KUNIT_EXPECT_EQ(test, t.string, -EFAULT);
	KUNIT_EXPECT_EQ(test, t.length, 0);
}

/* Two frames of a user's stack, as arch_stack_walk_user() expects them. */
struct early_ack_frame {
	unsigned long next;
	unsigned long ret;
};

static bool early_ack_consume(void *cookie, unsigned long addr)
{
	unsigned long **at = cookie;

	*(*at)++ = addr;
	return true;
}

static void early_ack_walk(struct kunit *test, unsigned long stack, bool owed,
			   unsigned int expected)
{
	const struct pt_regs regs = { .ip = 1, .sp = stack, .bp = stack };
	unsigned long found[8] = { }, *at = found, i;

	local_irq_disable();
	this_cpu_write(early_ack_owed, owed);
	arch_stack_walk_user(early_ack_consume, &at, &regs);
	this_cpu_write(early_ack_owed, false);
	local_irq_enable();

	KUNIT_EXPECT_EQ(test, at - found, expected);
	for (i = 0; i < expected; i++)
		KUNIT_EXPECT_EQ(test, found[i], i + 1);
}

/* Only the first entry is in the registers. */
static void early_ack_walk_test(struct kunit *test)
{
	struct early_ack_frame frames[2] = { { .ret = 2 }, { .ret = 3 } };
	unsigned long stack;

	stack = kunit_vm_mmap(test, NULL, 0, PAGE_SIZE, PROT_READ | PROT_WRITE,
			      MAP_ANONYMOUS | MAP_PRIVATE, 0);
	KUNIT_ASSERT_NE(test, stack, 0);
	KUNIT_ASSERT_FALSE(test, IS_ERR_VALUE(stack));
	frames[0].next = stack + sizeof(frames[0]);
	KUNIT_ASSERT_EQ(test, copy_to_user((void __user *)stack, frames, sizeof(frames)),
			0);

	early_ack_walk(test, stack, false, 3);
	early_ack_walk(test, stack, true, 1);
}

/* After a window that did not end with an empty queue: once as in stock. */
static void early_ack_pause_test(struct kunit *test)
{
	bool paused, then, now = true;
	int tries = 100;

	local_irq_disable();
	this_cpu_write(early_ack_ended, get_cycles() - early_ack_gap);
	early_ack_pause();
	paused = early_ack_may_take();
	then = early_ack_may_take();
	/* Emulation, or a host, may take its time in between. */
	while (now && --tries) {
		this_cpu_write(early_ack_ended, get_cycles());
		now = early_ack_may_take();
	}
	local_irq_enable();

	KUNIT_EXPECT_FALSE(test, paused);
	KUNIT_EXPECT_TRUE(test, then);
	KUNIT_EXPECT_TRUE(test, !now || !early_ack_gap);
}

/* What frees page tables, or has the target change the mm, is flushed for as in stock. */
static void early_ack_possible_test(struct kunit *test)
{
	struct flush_tlb_info info = { .mm = &early_ack_mm, .end = TLB_FLUSH_ALL };
	bool on = static_branch_likely(&early_ack_key) && early_ack_native();

	KUNIT_EXPECT_EQ(test, early_ack_possible(&info), on);
	info.freed_tables = true;
	KUNIT_EXPECT_FALSE(test, early_ack_possible(&info));
	info.freed_tables = false;
	info.trim_cpumask = 1;
	KUNIT_EXPECT_FALSE(test, early_ack_possible(&info));
}

/* Who waits looks as often as it is told, and no longer than until it sees something. */
static void early_ack_poll_test(struct kunit *test)
{
	unsigned int polls = early_ack_polls, waits, acknowledged, unasked;
	unsigned int posted = CSD_FLAG_LOCK | CSD_TYPE_SYNC | CSD_FLAG_EARLY_ACK;
	unsigned int late = CSD_FLAG_LOCK | CSD_TYPE_SYNC, none = 0;

	WRITE_ONCE(early_ack_polls, 100);
	waits = early_ack_poll(&posted);
	acknowledged = early_ack_poll(&none);
	/* Nobody acknowledges that one early. */
	unasked = early_ack_poll(&late);
	WRITE_ONCE(early_ack_polls, 0);
	none = early_ack_poll(&none);
	WRITE_ONCE(early_ack_polls, polls);

	KUNIT_EXPECT_FALSE(test, waits);
	KUNIT_EXPECT_TRUE(test, acknowledged);
	KUNIT_EXPECT_TRUE(test, unasked);
	KUNIT_EXPECT_FALSE(test, none);
}

static struct kunit_case early_ack_cases[] = {
	KUNIT_CASE(early_ack_travel_test),
	KUNIT_CASE(early_ack_round_test),
	KUNIT_CASE(early_ack_merge_test),
	KUNIT_CASE(early_ack_owed_test),
	KUNIT_CASE(early_ack_walk_test),
	KUNIT_CASE(early_ack_pause_test),
	KUNIT_CASE(early_ack_poll_test),
	KUNIT_CASE(early_ack_possible_test),
	{}
};

static struct kunit_suite early_ack_suite = {
	.name = "early_ack",
	.test_cases = early_ack_cases,
};

kunit_test_suite(early_ack_suite);
